"""Files that are streamed in one run and loaded in another: the source log gives each to one loader."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_snowpipe.operators.load_planning import LoadChoice
from airflow_provider_snowpipe.routing.load_plan import LoadPath
from airflow_provider_snowpipe.spark.sources.files.storage import LOG_FOLDER
from airflow_provider_snowpipe.streaming import errors
from tests.fake_account import AFTER, BEFORE
from tests.unit.operators.account_in_task import task_context
from tests.unit.operators.unit_load import PIPE, PIPE_COPY, STAGE, A, B, Load, MakeLoad


class TestLoad:
    def test_rows_that_the_token_does_not_count_fail_the_load_if_they_are_to(self, load: Load) -> None:
        load.stream(A, "1.ndjson:3", *load.write("a", "1.ndjson", 3))
        load.write("a", "2.ndjson")
        load.channels.inserted[A] += 1
        with pytest.raises(AirflowFailException, match=r"ImbalanceError.*1 more"):
            load.run(on_imbalance="fail")
        assert "PUT" not in load.account.calls
        load.run()
        load.assert_every_row_is_there_once()

    def test_file_that_copy_would_read_otherwise_is_streamed_or_refused(self, load: Load) -> None:
        load.write("a", "1.ndjson", 3)
        (load.folder / "a" / "2.ndjson").write_text('{"ID":7}{"ID":8}\n')
        choice = load.operator(path="auto", shape={"backfill": True})._choice({"backfill": True})
        assert choice.plan.path.value == "copy"
        assert choice.path()[0].value == "stream"
        with pytest.raises(AirflowFailException, match="line 1"):
            load.run()
        assert (load.account.rows, load.states) == ([], {})

    @pytest.mark.parametrize("path", ["copy", "pipe"])
    def test_forced_path_with_another_format_is_refused_only_where_rows_were_streamed(
        self, any_load: MakeLoad, caplog: pytest.LogCaptureFixture, path: str
    ) -> None:
        arguments = {"options": {"truncate_columns": True}} if path == "copy" else {}
        load = any_load("new", path)
        load.account.pipes[PIPE].statement += " TRUNCATECOLUMNS = TRUE"
        load.write("a", "2.ndjson")
        load.run(**arguments)
        load.assert_every_row_is_there_once()
        assert "TRUNCATECOLUMNS = TRUE in place of FALSE" in caplog.text
        load.write("a", "3.ndjson")
        with pytest.raises(errors.ConfigurationError, match=f"path='{path}'"):
            load.operator(**arguments, path="auto", shape={"freshness": 1})._choice({}).path()
        assert load.run("r2", **arguments)["rows_loaded"] == 2

        load = any_load("streamed", path)
        load.account.pipes[PIPE].statement += " TRUNCATECOLUMNS = TRUE"
        load.stream(A, "1.ndjson:2", *load.write("a", "1.ndjson"))
        load.write("a", "2.ndjson")
        with pytest.raises(AirflowFailException, match="TRUNCATECOLUMNS"):
            load.run(**arguments)
        assert not {"open", "PUT", "SET TOKEN"} & set(load.account.calls)
        assert load.positions == {A: "1.ndjson:2"}

    @pytest.mark.parametrize(
        "policy", [{"unknown_columns": "fail"}, {"evolve_columns": True}, {"evolve_columns": False}], ids=str
    )
    def test_a_policy_about_unknown_keys_is_followed(self, load: Load, policy: dict[str, Any]) -> None:
        load.write("a", "1.ndjson")

        path, why = load.operator(**policy, path="auto")._choice({"backfill": True}).path()

        assert path is LoadPath.STREAM
        assert str(why).startswith(f"{next(iter(policy))} is ")
        for source in ({"path": str(load.folder)}, "@FILES"):
            with pytest.raises(AirflowFailException, match=next(iter(policy))):
                load.run(**policy, source=source)
        assert load.account.rows == []

    def test_a_file_that_grows_while_it_is_staged_is_not_loaded(self, load: Load) -> None:
        load.write("a", "1.ndjson")
        load.account.meanwhile("PUT", AFTER, lambda: load.write("a", "1.ndjson"))
        with pytest.raises(AirflowFailException, match="growing=True"):
            load.run()
        assert (load.account.rows, load.states) == ([], {})

    def test_blank_lines_behind_the_last_row_do_not_count(self, load: Load) -> None:
        load.stream(A, "1.ndjson:2", *load.write("a", "1.ndjson"))
        load.append("a/1.ndjson", "\n\n")
        load.write("a", "2.ndjson")
        assert load.run()["rows_loaded"] == 2
        load.assert_every_row_is_there_once()


class TestTokens:
    """What the channel's token shows of the files."""

    @pytest.fixture(autouse=True)
    def files(self, load: Load) -> list[str]:
        return load.write("a", "1.ndjson", 2) + load.write("a", "2.ndjson", 2)

    def test_show_which_files_are_left_and_which_one_is_begun(self, load: Load, files: list[str]) -> None:
        for token, untouched, has_rest in (
            (None, ("1.ndjson", "2.ndjson"), False),
            ("1.ndjson:2", ("2.ndjson",), False),
            ("1.ndjson:1", ("2.ndjson",), True),
        ):
            load.stands(A, token)
            position = load.position()
            assert (tuple(one.name for one in position.left), position.has_rest) == (untouched, has_rest)
        with pytest.raises(AirflowFailException, match="PartlyStreamedError"):
            load.run()
        assert (load.account.rows, load.positions[A]) == ([], "1.ndjson:1")

    def test_the_last_file_that_grows_is_left_to_the_stream(self, load: Load, files: list[str]) -> None:
        load.run(source={"path": str(load.folder), "format": {"type": "ndjson", "growing": True}})
        assert (load.account.rows, load.states) == (files[:2], {"a/1.ndjson": "COPY"})

    @pytest.mark.parametrize("position", ["1.ndjson:9", "3.ndjson:1"], ids=["row", "file"])
    def test_ahead_of_the_files_it_is_refused(self, load: Load, position: str) -> None:
        load.stream(A, position)
        with pytest.raises(AirflowFailException, match="SourcePositionError"):
            load.run()
        assert load.account.rows == []

    def test_of_another_format_it_is_refused(self, load: Load) -> None:
        for token in ("17", "", '{"copy_after":null'):
            load.channels.stream(A, token)
            with pytest.raises(AirflowFailException, match="OffsetTokenError"):
                load.run()
            assert (load.account.rows, load.positions) == ([], {A: token})

    def test_that_of_the_logs_channel_counts_for_a_renamed_dag(self, load: Load, files: list[str]) -> None:
        units = load.operator(path="stream").units()
        assert units.source.claim(units._channels(), {A: None})
        for token, refused in ((None, True), ("2.ndjson:1", True), ("2.ndjson:2", False)):
            load.stands(A, token)
            load.account.rows = list(files)
            if refused:
                with pytest.raises(AirflowFailException, match="PartlyStreamedError"):
                    load.run(channel_prefix="renamed")
        load.write("a", "3.ndjson")
        load.run(channel_prefix="renamed")
        load.assert_every_row_is_there_once()

    def test_a_folder_moved_without_its_log_is_refused(self, load: Load, files: list[str]) -> None:
        load.stream(A, "2.ndjson:2", *files)
        load.folder = load.folder.rename(load.folder.with_name("moved"))
        load.write("a", "3.ndjson")
        load.run()
        load.assert_every_row_is_there_once()
        shutil.rmtree(load.folder / LOG_FOLDER)
        with pytest.raises(AirflowFailException, match="SourceChangedError"):
            load.run("r2")
        load.assert_every_row_is_there_once()

    @pytest.mark.parametrize("path", ["copy", "stream"])
    def test_files_without_their_log_are_refused_until_all_load_again(self, load: Load, path: str) -> None:
        load.run()
        load.stream(B, "1.ndjson:2", *load.write("b", "1.ndjson"))
        shutil.rmtree(load.folder / LOG_FOLDER)
        for prefix, rebind in (("p", None), ("renamed", None), ("renamed", "continue")):
            with pytest.raises(AirflowFailException, match=r"SourceChangedError.*files rebuild"):
                load.run("r2", path=path, channel_prefix=prefix, rebind=rebind)
        assert (load.account.rows, load.states) == (load.written, {})
        if path == "stream":
            load.operator(path=path, rebind="restart").units().require_log()
        else:
            load.run("r3", rebind="restart")
        load.run("r4")
        assert load.account.rows == load.written * 2

    def test_an_earlier_state_of_the_log_is_refused(self, load: Load, tmp_path: Path) -> None:
        load.write("b", "1.ndjson")
        load.run()
        shutil.copytree(load.folder / LOG_FOLDER, tmp_path / "kept")
        load.write("a", "3.ndjson")
        load.run("r2")
        shutil.rmtree(load.folder / LOG_FOLDER)
        shutil.copytree(tmp_path / "kept", load.folder / LOG_FOLDER)
        with pytest.raises(AirflowFailException, match=r"SourceChangedError.*earlier state"):
            load.run("r3")
        load.assert_every_row_is_there_once()


def test_a_copied_file_that_has_grown_is_finished_by_the_stream(load: Load) -> None:
    for name, run in (("2.ndjson", "r1"), ("3.ndjson", "r2")):
        load.write("a", name)
        load.run(run)
    load.write("a", "2.ndjson")
    with pytest.raises(AirflowFailException, match=r"PartlyStreamedError.*path='stream'"):
        load.run("r3")
    path, why = load.operator(path="auto")._choice({"backfill": True}).path()
    assert (path, "has grown" in str(why)) == (LoadPath.STREAM, True)


@pytest.mark.parametrize("path", ["copy", "pipe"])
def test_committed_files_are_cleaned_up_after_their_retention(any_load: MakeLoad, path: str) -> None:
    load = any_load("in", path)
    load.write("a", "1.ndjson")
    source = {"path": str(load.folder), "after_commit": "delete"}
    load.run(source=source | {"retention": 3600})
    assert list((load.folder / "a").iterdir()) != []
    load.run("r2", source=source)
    assert list((load.folder / "a").iterdir()) == []
    load.assert_every_row_is_there_once()


def test_rows_are_staged_for_columns_about_the_file_by_a_backfill_as_by_its_retry(load: Load) -> None:
    source = {"path": str(load.folder), "metadata": {"ROW": "file_row_number", "AT": "start_scan_time"}}
    load.write("a", "1.ndjson")
    choice = load.operator(path="auto", source=source)._choice({"backfill": True})
    assert choice.path() == (LoadPath.COPY, None)
    load.crash("submit", BEFORE, source=source)
    staged = dict(load.account.stages[STAGE])
    load.run(try_number=2, source=source)
    assert load.account.stages[STAGE] == staged
    assert sorted(json.loads(row)["ROW"] for row in load.account.rows) == [1, 2]


def test_a_load_of_files_is_given_up_where_rows_are_to_be_staged_by_now(load: Load) -> None:
    load.write("a", "1.ndjson")
    load.crash("submit", BEFORE)
    load.run(try_number=2, source={"path": str(load.folder), "metadata": {"ROW": "file_row_number"}})
    assert [json.loads(row) for row in sorted(load.account.rows)] == [
        {"ROW": 1, "ID": 1},
        {"ROW": 2, "ID": 2},
    ]


def test_a_pipe_that_would_read_staged_rows_otherwise_is_refused(piped: Load) -> None:
    piped.account.pipes[PIPE].statement = f"{PIPE_COPY} FILE_FORMAT = (TYPE = CSV)"
    piped.write("a", "1.ndjson")
    with pytest.raises(AirflowFailException, match="TYPE"):
        piped.run(source={"path": str(piped.folder), "metadata": {"ROW": "file_row_number"}})
    assert (piped.account.rows, piped.states) == ([], {})


class TestChoice:
    @pytest.fixture(autouse=True)
    def files(self, load: Load) -> list[str]:
        return load.write("a", "1.ndjson", 3)

    def choice(self, load: Load, shape: Mapping[str, Any], **arguments: Any) -> LoadChoice:
        return load.operator(path="auto", **arguments)._choice(shape, task_context())

    def test_a_backfill_goes_by_copy_and_reports_why_and_what_came_of_it(self, load: Load) -> None:
        assert self.choice(load, {}).path() == ("stream", None)
        context = task_context()
        context["dag_run"].run_type = "backfill"
        load.operator(path="auto").execute(context)
        plan, outcome = (context["ti"].xcom_pull(key=key) for key in ("plan", "outcome"))
        load.assert_every_row_is_there_once()
        assert (plan["path"], plan["is_forced"]) == ("copy", False)
        assert "a backfill" in plan["reasons"][0]
        assert plan["expected"]["bytes"] == (load.folder / "a" / "1.ndjson").stat().st_size
        assert (outcome["path"], outcome["planned"], outcome["actual"]["rows"]) == ("copy", "copy", 3)

    def test_what_is_streamed_in_part_is_finished_by_the_stream(self, load: Load, files: list[str]) -> None:
        load.stream(A, "1.ndjson:2", *files[:2])
        path, why = self.choice(load, {"backfill": True}).path()
        assert path == "stream"
        assert "up to row 2" in str(why)

    def test_what_has_no_path_is_refused(self, load: Load) -> None:
        load.account.put("a", "1")
        source = {"kind": "table", "path": str(load.folder), "offset_column": "ID"}
        for given, words in (
            ({"source": source, "path": "auto"}, "known"),
            ({"source": "@S", "path": "stream"}, "copied"),
        ):
            with pytest.raises(AirflowFailException, match=words):
                load.run(**given)
        with pytest.raises(errors.SourceMissingError):
            load.run(source=str(load.folder / "gone"))


class TestOptions:
    def test_options_that_would_break_the_boundary_are_refused(self, load: Load) -> None:
        load.write("a", "1.ndjson")
        refused = {"force": True, "purge": True, "size_limit": 1, "pattern": ".*", "on_eror": "CONTINUE"}
        for name, value in refused.items():
            with pytest.raises(AirflowFailException, match=name):
                load.run(options={name: value})
        assert "PUT" not in load.account.calls

    def test_files_loaded_in_part_fail_each_task_until_they_are_accepted(self, load: Load) -> None:
        load.write("a", "1.ndjson")
        load.append("a/1.ndjson", '{"ID": "bad"}\n')
        with pytest.raises(AirflowFailException, match="LOAD_FAILED"):  # good rows are left out
            load.run("r0", options={"on_error": "SKIP_FILE"}, on_error="continue")
        for run in ("r1", "r2"):
            with pytest.raises(AirflowFailException, match="FilesRejectedError"):
                load.run(run, options={"on_error": "CONTINUE"})
            load.assert_every_row_is_there_once()
            assert load.states == {"a/1.ndjson": "COPY taken"}
        load.write("a", "1.ndjson")
        with pytest.raises(AirflowFailException, match="FilesRejectedError"):
            load.run("r3", options={"on_error": "CONTINUE"})
        text = (load.folder / "a" / "1.ndjson").read_text().splitlines(keepends=True)
        (load.folder / "a" / "1.ndjson").write_text("".join(text[:3]))
        del load.written[2:]

        assert load.run("r4", options={"on_error": "CONTINUE"}, on_error="continue")["rejected"] == 1
        load.assert_every_row_is_there_once()
        assert load.states == {"a/1.ndjson": "COPY"}


@pytest.mark.parametrize("path", ["auto", "copy", "pipe"])
def test_folder_without_a_row_is_a_load_of_no_rows(load: Load, path: str) -> None:
    load.path = path
    for partitions in ("", "ab"):
        for partition in partitions:
            load.write(partition, "1.ndjson", 0)
        value = load.run()
        assert (value["path"], value["rows_loaded"]) == ("copy" if path == "auto" else path, 0)
    assert load.account.rows == []
