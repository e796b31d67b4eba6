"""Files that are streamed in one run and loaded in another: an intent stands for the token meanwhile."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from airflow_provider_snowpipe.operators.file_boundary import FileBoundary
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.routing.boundary import PartitionPosition
from airflow_provider_snowpipe.spark.files.groups import LISTING_FOLDER
from airflow_provider_snowpipe.spark.files.source import FileSource
from airflow_provider_snowpipe.spark.plan import JobPlan
from airflow_provider_snowpipe.spark.sources import source_spec
from airflow_provider_snowpipe.streaming import lifecycle, reset
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.copy_intent import CopyIntent, is_copy_intent
from airflow_provider_snowpipe.streaming.errors import (
    CommitTimeoutError,
    OffsetTokenError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset
from tests.fake_account import AFTER, BEFORE, CrashError, FakeAccount, Pipe
from tests.unit.operators.account_in_task import install, task_context

A, B = "p_s_a", "p_s_b"
STAGE = "%T"
CALLS = {"copy": 41, "pipe": 45}
"""Calls of one load that nothing disturbs."""
PIPE = "LOCAL.PUBLIC.P"


class Load:
    """A table, and a folder with the partitions ``a`` and ``b`` of NDJSON files."""

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, key_pair: KeyPair | None = None, path: str = "copy"
    ) -> None:
        self.folder = folder
        self.account = FakeAccount()
        self.channels = install(self.account, patch, key_pair)
        self.began = dt.datetime.now(dt.UTC)
        self.numbers = itertools.count(1)
        self.written: list[str] = []
        self.path = path
        copy = 'COPY INTO "LOCAL"."PUBLIC"."T" FROM @"LOCAL"."PUBLIC".PS'
        self.account.pipes[PIPE] = Pipe(copy)

    def write(self, partition: str, name: str, rows: int = 2) -> list[str]:
        """Add rows to a file; what the table is to hold of them."""
        lines = [json.dumps({"ID": next(self.numbers)}) for _ in range(rows)]
        file = self.folder / partition / name
        file.parent.mkdir(exist_ok=True, parents=True)
        with file.open("a") as out:
            out.writelines(f"{line}\n" for line in lines)
        self.written += lines
        return lines

    def operator(self, **arguments: Any) -> SnowpipeLoadOperator:
        piped = {"file_pipe": "P", "poll_interval": 0.01, "load_timeout": 5.0} if self.path == "pipe" else {}
        return SnowpipeLoadOperator(
            task_id="load",
            snowflake_conn_id="account",
            channel_prefix="p",
            source_name="s",
            **{"source": {"path": str(self.folder)}, "path": self.path, "table": "T", **piped, **arguments},
        )

    def run(self, run: str = "r1", try_number: int = 1, **arguments: Any) -> dict[str, Any]:
        return self.operator(**arguments).execute(task_context(run, try_number, self.began))

    def crash(self, call: str | None, when: str, nth: int = 1, **arguments: Any) -> None:
        self.account.fault(call, when, CrashError(), nth)
        with pytest.raises(CrashError):
            self.run(**arguments)

    def boundary(self, **spec: Any) -> FileBoundary:
        operator = self.operator(source={"path": str(self.folder), **spec})
        found = operator._file_boundary(operator._choice({}).path()[0])
        assert found is not None
        return found

    def position(self, **spec: Any) -> PartitionPosition:
        """Of partition a."""
        return self.boundary(**spec).positions()[0]

    def assert_every_row_is_there_once(self) -> None:
        assert sorted(self.account.rows) == sorted(self.written)


@pytest.fixture(scope="module")
def key_pair() -> KeyPair:
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyPair("ACC", "U", pem)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return Load(tmp_path, monkeypatch)


class TestLoad:
    def test_files_after_the_last_streamed_one_are_copied_and_the_token_moves(self, load: Load) -> None:
        load.channels.stream(A, "1.ndjson:3", *load.write("a", "1.ndjson", 3))
        load.write("a", "2.ndjson")
        load.write("a", "3.ndjson", 4)
        load.write("b", "1.ndjson", 1)
        done = load.run()

        load.assert_every_row_is_there_once()
        assert load.account.tokens == {A: "3.ndjson:4", B: "1.ndjson:1"}
        assert (done["path"], done["rows_loaded"]) == ("copy", 7)
        assert done["channels"] == {
            A: {"partition": "a", "from": "1.ndjson:3", "to": "3.ndjson:4", "files": 2, "rows": 6},
            B: {"partition": "b", "from": None, "to": "1.ndjson:1", "files": 1, "rows": 1},
        }

    def test_a_second_run_loads_nothing_and_sets_no_token(self, load: Load) -> None:
        load.write("a", "1.ndjson")
        load.run()
        del load.account.calls[:]

        assert load.run("r2")["rows_loaded"] == 0
        load.assert_every_row_is_there_once()
        assert not {"PUT", "submit", "SET TOKEN"} & set(load.account.calls)

    def test_things_are_done_in_the_order_that_makes_a_crash_harmless(self, load: Load) -> None:
        load.write("a", "1.ndjson")
        load.run()

        steps = [call for call in load.account.calls if call in ("open", "PUT", "SET TOKEN", "submit")]
        assert steps == ["open", "PUT", "open", "SET TOKEN", "open", "submit", "open", "SET TOKEN", "open"]

    def test_rows_that_wait_for_their_commit_are_waited_for(
        self, load: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        load.write("a", "1.ndjson")
        load.channels.uncommitted[A] = 3
        slept: list[float] = []
        monkeypatch.setattr(lifecycle.time, "sleep", slept.append)
        load.run()

        load.assert_every_row_is_there_once()
        assert len(slept) == 3


class TestTokens:
    """What the channel's token says of the files."""

    @pytest.fixture(autouse=True)
    def files(self, load: Load) -> list[str]:
        return load.write("a", "1.ndjson", 2) + load.write("a", "2.ndjson", 2)

    def test_null_means_every_file(self, load: Load) -> None:
        position = load.position()
        assert (position.untouched, position.committed, position.intent) == (
            ("1.ndjson", "2.ndjson"),
            None,
            None,
        )

    def test_behind_the_end_of_a_file_it_is_streamed_in_part_and_refused(
        self, load: Load, files: list[str]
    ) -> None:
        load.channels.stream(A, "1.ndjson:1", files[0])
        assert load.position().has_rest
        with pytest.raises(AirflowFailException, match="PartlyStreamedError"):
            load.run()
        assert (load.account.rows, load.account.tokens[A]) == (files[:1], "1.ndjson:1")

    def test_at_the_end_of_a_file_the_later_ones_are_left(self, load: Load, files: list[str]) -> None:
        load.channels.stream(A, "1.ndjson:2", *files[:2])
        position = load.position()
        assert (position.untouched, position.has_rest) == (("2.ndjson",), False)

    @pytest.mark.parametrize("token", ["1.ndjson:9", "3.ndjson:1"], ids=["row", "file"])
    def test_ahead_of_the_files_it_is_refused(self, load: Load, token: str) -> None:
        load.channels.stream(A, token)
        with pytest.raises(AirflowFailException, match="SourcePositionError"):
            load.run()
        assert load.account.rows == []

    @pytest.mark.parametrize("token", ["17", "x", ""], ids=repr)
    def test_of_another_format_it_is_refused_with_channel_and_token(self, load: Load, token: str) -> None:
        load.channels.stream(A, token)
        with pytest.raises(OffsetTokenError, match=A):
            load.position()
        with pytest.raises(AirflowFailException, match="OffsetTokenError"):
            load.run()
        assert (load.account.rows, load.account.tokens[A]) == ([], token)

    def test_with_a_digest_it_is_the_row_in_the_file(self, load: Load, files: list[str]) -> None:
        load.channels.stream(A, f"1.ndjson@{'0' * 16}:2", *files[:2])
        assert str(load.position().committed) == "1.ndjson:2"

    def test_an_intent_stands_for_the_token_before_it(self, load: Load, files: list[str]) -> None:
        intent = CopyIntent("1.ndjson:2", "2.ndjson", load.began)
        load.channels.stream(A, str(intent), *files[:2])
        position = load.position()

        assert position.intent is not None
        assert (str(position.committed), position.has_rest) == ("1.ndjson:2", False)
        assert not position.is_done

    def test_what_begins_as_an_intent_and_is_none_is_refused(self, load: Load) -> None:
        load.channels.stream(A, '{"copy_after":null')
        with pytest.raises(OffsetTokenError):
            load.position()

    def test_a_growing_file_is_left_to_the_stream(self, load: Load, files: list[str]) -> None:
        load.run(source={"path": str(load.folder), "growing": True})
        assert (load.account.rows, load.account.tokens[A]) == (files[:2], "1.ndjson:2")


class TestLateFiles:
    """What changed before the token, by the listing that every load keeps."""

    @pytest.fixture(autouse=True)
    def loaded(self, load: Load) -> None:
        load.write("a", "2.ndjson")
        load.write("a", "3.ndjson")
        load.run()

    def refused(self, load: Load, name: str, **source: Any) -> None:
        rows, tokens = list(load.account.rows), dict(load.account.tokens)
        with pytest.raises(AirflowFailException, match=f"SourcePositionError.*{name}"):
            load.run("r2", source={"path": str(load.folder), **source})
        assert (load.account.rows, load.account.tokens) == (rows, tokens)

    @pytest.mark.parametrize("name", ["1.ndjson", "2.ndjson"], ids=["new", "grown"])
    def test_a_file_before_the_last_one_that_was_copied_is_refused(self, load: Load, name: str) -> None:
        load.write("a", name)
        load.write("a", "4.ndjson")
        self.refused(load, name)
        self.refused(load, name, listing_path=str(load.folder / LISTING_FOLDER))

    def test_it_is_named_and_left_out_where_the_source_says_warn(
        self, load: Load, caplog: pytest.LogCaptureFixture
    ) -> None:
        late = load.write("a", "1.ndjson")
        load.write("a", "4.ndjson")
        assert load.run("r2", source={"path": str(load.folder), "on_late_files": "warn"})["rows_loaded"] == 2
        assert "1.ndjson" in caplog.text
        assert sorted(load.account.rows + late) == sorted(load.written)

    def test_the_stream_refuses_what_came_after_a_copy(self, load: Load) -> None:
        load.write("a", "1.ndjson")
        hook = load.operator().bulk_hook()
        spec = source_spec({"path": str(load.folder)})
        plan = JobPlan("app", hook.account_url(), hook.pipe_name(), "p", "s", spec, credentials_variable="X")
        source = FileSource(plan.source, "fail")
        (partition,) = source.partitions()
        channels = {plan.channel(partition.name): partition}
        committed = FileLineOffset.parse(str(load.account.tokens[A]))
        with pytest.raises(SourcePositionError, match=r"1\.ndjson"):
            source.compare_with_last_run(plan.pipe.address(plan.account_url), channels, {A: committed})

    def test_a_load_that_is_finished_takes_what_came_between_its_files_and_knows_it(self, load: Load) -> None:
        load.write("a", "5.ndjson")
        load.crash("submit", BEFORE, run="r2")
        load.write("a", "4.ndjson")
        load.run("r3")
        load.run("r4")
        load.assert_every_row_is_there_once()

    def test_numbers_that_sort_before_the_token_are_refused(self, load: Load) -> None:
        load.write("b", "9.ndjson")
        load.run("r2")
        (load.folder / "b" / "9.ndjson").unlink()
        load.write("b", "10.ndjson")
        with pytest.raises(AirflowFailException, match="numbering"):
            load.run("r3", on_data_loss="skip")


def begun(load: Load) -> Load:
    """A partition that is streamed up to its first file, two files that are left, and a new partition."""
    load.channels.stream(A, "1.ndjson:3", *load.write("a", "1.ndjson", 3))
    for partition, name in (("a", "2.ndjson"), ("a", "3.ndjson"), ("b", "1.ndjson")):
        load.write(partition, name)
    return load


class TestCrashes:
    """A worker that dies after any call, which is before the next one, and the retry or run that follows."""

    @pytest.mark.parametrize(
        ("path", "run", "nth"),
        [
            (path, run, nth)
            for path, run in (("copy", "r1"), ("copy", "r2"), ("pipe", "r1"))
            for nth in range(1, CALLS[path] + 1)
        ],
    )
    def test_the_next_load_leaves_every_row_once(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        key_pair: KeyPair,
        path: str,
        run: str,
        nth: int,
    ) -> None:
        load = begun(Load(tmp_path, monkeypatch, key_pair, path))
        load.crash(None, AFTER, nth)
        load.write("a", "4.ndjson")
        done = load.run(run, try_number=2 if run == "r1" else 1)

        load.assert_every_row_is_there_once()
        assert load.account.tokens == {A: "4.ndjson:2", B: "1.ndjson:2"}
        assert done["channels"][A]["to"] == "4.ndjson:2"

    @pytest.mark.parametrize("path", CALLS)
    def test_these_are_all_the_calls(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key_pair: KeyPair, path: str
    ) -> None:
        load = begun(Load(tmp_path, monkeypatch, key_pair, path))
        load.run()
        assert len(load.account.calls) == CALLS[path]

    def test_a_copy_that_still_runs_is_joined(self, load: Load) -> None:
        begun(load)
        load.account.holds = True
        load.crash("submit", AFTER)
        load.account.finish()
        load.run(try_number=2)

        load.assert_every_row_is_there_once()
        assert len(load.account.statements) == 1

    def test_a_pipe_that_still_has_the_files_gets_nothing_twice_by_copy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key_pair: KeyPair
    ) -> None:
        load = begun(Load(tmp_path, monkeypatch, key_pair, "pipe"))
        load.account.holds = True
        load.crash("insertFiles", AFTER)
        load.account.finish()
        load.write("a", "4.ndjson")
        load.path = "copy"
        load.run("r2", file_pipe="P", poll_interval=0.01)

        load.assert_every_row_is_there_once()
        assert {one["pipe_name"] for one in load.account.history} == {"P", None}

    def test_the_stream_finishes_what_was_begun_and_no_more(self, load: Load) -> None:
        begun(load).crash("submit", BEFORE)
        later = load.write("a", "4.ndjson")
        operator = load.operator(path="stream")
        boundary = operator._boundary()
        operator._file_loading(task_context("r2", 1, load.began)).finish(boundary)

        assert sorted(load.account.rows + later) == sorted(load.written)
        assert load.account.tokens == {A: "3.ndjson:2", B: "1.ndjson:2"}


class TestIntent:
    """Between the intent and the token that takes its place."""

    @pytest.fixture(autouse=True)
    def files(self, load: Load) -> None:
        begun(load)

    def test_it_says_where_the_stream_stood_and_what_is_loaded(self, load: Load) -> None:
        load.crash("submit", BEFORE)
        intent = CopyIntent.parse(load.account.tokens[A])

        assert intent is not None
        assert (intent.after, intent.last_file, intent.pipe) == ("1.ndjson:3", "3.ndjson", None)
        assert load.began - dt.timedelta(seconds=1) <= intent.since <= dt.datetime.now(dt.UTC)

    def test_it_shuts_out_a_writer_that_opened_the_channel_before(self, load: Load) -> None:
        session = int(load.channels.open_channel(A).continuation_token.partition("_")[0])
        load.crash("submit", BEFORE)
        assert not load.channels.stream(A, "2.ndjson:2", "late", session=session)

    def test_it_stays_where_copy_fails_and_is_settled_when_the_file_is_repaired(self, load: Load) -> None:
        file = load.folder / "a" / "3.ndjson"
        good = file.read_text()
        file.write_text(good + '{"ID": "bad"}\n')
        before = list(load.account.rows)
        with pytest.raises(AirflowFailException, match="SqlError"):
            load.run()
        assert is_copy_intent(load.account.tokens[A])
        assert load.account.rows == before
        file.write_text(good)
        load.run("r2")

        load.assert_every_row_is_there_once()
        assert load.account.tokens[A] == "3.ndjson:2"

    def test_a_file_that_changed_after_it_was_copied_is_refused(self, load: Load) -> None:
        load.crash("submit", AFTER)
        loaded = list(load.account.rows)
        load.write("a", "3.ndjson")
        with pytest.raises(AirflowFailException, match="SourcePositionError"):
            load.run("r2")
        assert load.account.rows == loaded
        assert is_copy_intent(load.account.tokens[A])

    def test_a_file_that_is_gone_is_refused(self, load: Load) -> None:
        load.crash("submit", BEFORE)
        (load.folder / "a" / "3.ndjson").unlink()
        with pytest.raises(AirflowFailException, match="SourcePositionError"):
            load.run("r2")

    def test_a_streamed_file_that_has_grown_since_is_refused(self, load: Load) -> None:
        load.crash("submit", BEFORE)
        load.write("a", "1.ndjson")
        with pytest.raises(AirflowFailException, match="SourcePositionError"):
            load.run("r2")

    def test_files_that_somebody_copied_before_the_token_was_set_back_are_refused(self, load: Load) -> None:
        load.run()
        load.account.tokens[A] = "1.ndjson:3"
        rows = list(load.account.rows)
        with pytest.raises(AirflowFailException, match="FilesGivenTwiceError"):
            load.run("r2")
        assert (load.account.rows, load.account.tokens[A]) == (rows, "1.ndjson:3")

    def test_of_a_pipe_that_has_forgotten_its_files_it_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key_pair: KeyPair
    ) -> None:
        load = begun(Load(tmp_path / "more", monkeypatch, key_pair, "pipe"))
        long_ago = dt.datetime.now(dt.UTC) - dt.timedelta(days=14)
        load.account.tokens[A] = str(CopyIntent("1.ndjson:3", "3.ndjson", long_ago, "P"))
        with pytest.raises(AirflowFailException, match="SourcePositionError"):
            load.run()
        assert "PUT" not in load.account.calls


class TestWriters:
    """Somebody who writes to a channel while its files are loaded is reported."""

    @pytest.fixture(autouse=True)
    def files(self, load: Load) -> None:
        begun(load)

    def meanwhile(self, load: Load, monkeypatch: pytest.MonkeyPatch, name: str, nth: int = 1) -> None:
        """Let a stream commit just after a call."""
        calls, run = load.account.calls, load.account.call

        def call(made: str, work: Any) -> Any:
            done = run(made, work)
            if made == name and calls.count(name) == nth:
                load.channels.stream(A, "2.ndjson:1", "streamed")
            return done

        monkeypatch.setattr(load.account, "call", call)

    @pytest.mark.parametrize(
        ("call", "nth", "copied"),
        [("SET TOKEN", 2, False), ("open", 3, False), ("submit", 1, True)],
        ids=["after-the-intent", "after-opening-again", "after-copy"],
    )
    def test_a_commit_beside_the_intent_is_reported_and_its_token_stays(
        self, load: Load, monkeypatch: pytest.MonkeyPatch, call: str, nth: int, copied: bool
    ) -> None:
        monkeypatch.setattr(reset, "_CONFIRM_SECONDS", 0.0)
        self.meanwhile(load, monkeypatch, call, nth)
        with pytest.raises(Exception, match=r"WriterActiveError|CommitTimeoutError|somebody|still shows"):
            load.run()

        assert ("submit" in load.account.calls) == copied
        assert load.account.tokens[A] == "2.ndjson:1"

    def test_a_token_that_the_service_does_not_show_is_not_believed(
        self, load: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reset, "_CONFIRM_SECONDS", 0.0)
        monkeypatch.setattr(load.account, "_set_token", lambda *_: [{"status": "ok"}])
        with pytest.raises(CommitTimeoutError):
            load.run()
        assert "submit" not in load.account.calls


class TestOptions:
    @pytest.mark.parametrize(
        "options",
        [
            {"force": True},
            {"purge": True},
            {"size_limit": 1},
            {"return_failed_only": True},
            {"pattern": ".*"},
        ],
        ids=lambda options: next(iter(options)),
    )
    def test_options_that_would_break_the_boundary_are_refused(
        self, load: Load, options: dict[str, Any]
    ) -> None:
        load.write("a", "1.ndjson")
        with pytest.raises(AirflowFailException, match=next(iter(options))):
            load.run(options=options)
        assert set(load.account.calls) == {"status"}

    def test_files_loaded_in_part_fail_the_task_and_the_intent_stays(self, load: Load) -> None:
        load.write("a", "1.ndjson")
        with (load.folder / "a" / "1.ndjson").open("a") as out:
            out.write('{"ID": "bad"}\n')
        for run in ("r1", "r2"):
            with pytest.raises(AirflowFailException, match="FilesRejectedError"):
                load.run(run, options={"on_error": "CONTINUE"})
            load.assert_every_row_is_there_once()
            assert is_copy_intent(load.account.tokens[A])

        assert load.run("r3", options={"on_error": "CONTINUE"}, on_error="continue")["rejected"] == 1
        load.assert_every_row_is_there_once()
        assert load.account.tokens[A] == "1.ndjson:3"
