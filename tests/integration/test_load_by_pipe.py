"""``SnowpipeLoadOperator`` through a file pipe: paths that follow each other, crashes while files wait."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from contextlib import aclosing
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.lineage import ChannelOffsets, dataset_name
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.operators.file_boundary import FileBoundary
from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from airflow_provider_snowpipe.streaming.copy_intent import CopyIntent, is_copy_intent
from airflow_provider_snowpipe.streaming.errors import FilesNotLoadedError
from tests.airflow_connections import set_connection
from tests.airflow_version import AIRFLOW
from tests.file_loads import CHANNEL, Load, die_at, load
from tests.local_connection import ids
from tests.outlet_events import OutletEvents
from tests.staged_files import put

__all__ = ["load", "set_connection"]


@pytest.fixture
def piped(load: Load) -> Load:
    """With a pipe, and a first file that is streamed."""
    load.make_pipe("/in")
    load.write("1.ndjson", 3)
    load.stream("1.ndjson")
    return load


def by_pipe(load: Load, run: str | None = None, try_number: int = 1, **arguments: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"path": "pipe", "file_pipe": load.pipe, "poll_interval": 0.1, **arguments}
    return load.run(run, try_number, **given)


class TestBoundary:
    def test_the_pipe_begins_after_the_last_streamed_file_and_moves_the_token(self, piped: Load) -> None:
        piped.write("2.ndjson")
        piped.write("3.ndjson", 4)
        done = by_pipe(piped)

        piped.assert_every_row_is_there_once()
        assert piped.token == "3.ndjson:4"
        assert (done["path"], done["rows_loaded"], done["rejected"]) == ("pipe", 6, 0)
        assert done["channels"] == {
            CHANNEL: {"partition": "a", "from": "1.ndjson:3", "to": "3.ndjson:4", "files": 2, "rows": 6}
        }
        assert [path.startswith("p_s_a/") for path in done["files"]] == [True, True]
        assert (piped.ti.xcoms["plan"]["path"], piped.ti.xcoms["outcome"]["actual"]["rows"]) == ("pipe", 6)
        assert by_pipe(piped)["rows_loaded"] == 0
        piped.assert_every_row_is_there_once()

    @pytest.mark.nightly
    def test_stream_pipe_copy_stream_pipe_lose_nothing_and_double_nothing(self, piped: Load) -> None:
        for number, way in enumerate(["pipe", "copy", "stream", "pipe"], 2):
            piped.write(f"{number}.ndjson", number)
            if way == "stream":
                piped.stream(f"{number}.ndjson")
            else:
                piped.run(path=way, file_pipe=piped.pipe)
            piped.assert_every_row_is_there_once()
            assert piped.token == f"{number}.ndjson:{number}"

    def test_a_partly_streamed_file_is_refused(self, piped: Load) -> None:
        piped.write("2.ndjson", 3)
        piped.stream("2.ndjson", rows=2)
        with pytest.raises(AirflowFailException, match=r"PartlyStreamedError.*up to row 2.*path='stream'"):
            by_pipe(piped)
        assert piped.token == "2.ndjson:2"

    def test_files_that_the_pipe_has_loaded_before_the_token_was_set_back_are_refused(
        self, piped: Load
    ) -> None:
        piped.write("2.ndjson")
        by_pipe(piped)
        piped.set_token("1.ndjson:3")

        with pytest.raises(AirflowFailException, match="FilesGivenTwiceError"):
            piped.run(path="copy", file_pipe=piped.pipe, stage=f"@{piped.stage}/in")
        assert piped.token == "1.ndjson:3"
        piped.assert_every_row_is_there_once()

    @pytest.mark.nightly
    def test_a_file_that_fails_in_the_pipe_is_mended_by_mending_the_file(self, piped: Load) -> None:
        piped.write("2.ndjson")
        file = piped.folder / "a" / "2.ndjson"
        good = file.read_text()
        file.write_text(good + '{"ID": "seven"}\n')
        with pytest.raises(AirflowFailException, match=r"load_failed.*'seven'"):
            by_pipe(piped)
        intent = CopyIntent.parse(piped.token)
        assert intent is not None
        assert (intent.after, intent.last_file, intent.pipe) == ("1.ndjson:3", "2.ndjson", piped.pipe)
        file.write_text(good)

        assert by_pipe(piped)["rows_loaded"] == 2
        piped.assert_every_row_is_there_once()
        assert piped.token == "2.ndjson:2"

    def test_rows_that_do_not_fit_are_reported_where_the_author_says_so(self, piped: Load) -> None:
        piped.service.sql(f"DROP PIPE {piped.pipe}")
        piped.service.sql(
            f"CREATE PIPE {piped.pipe} AS COPY INTO {piped.table} FROM @{piped.stage} FILE_FORMAT = "
            "(TYPE = JSON) MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE ON_ERROR = CONTINUE"
        )
        piped.write("2.ndjson")
        with (piped.folder / "a" / "2.ndjson").open("a") as lines:
            lines.write('{"ID": "seven"}\n')
        done = by_pipe(piped, on_error="continue")

        assert (done["rows_loaded"], done["rejected"], piped.token) == (2, 1, "2.ndjson:3")
        piped.assert_every_row_is_there_once()


class TestCrashes:
    @pytest.fixture
    def began(self, piped: Load) -> Load:
        piped.write("2.ndjson")
        piped.write("3.ndjson")
        return piped

    @pytest.mark.parametrize(
        ("kind", "name", "way"),
        [
            pytest.param(FileBoundary, "promise", "pipe", marks=pytest.mark.nightly),
            pytest.param(SnowpipeIngestFilesOperator, "perform", "pipe", marks=pytest.mark.nightly),
            (SnowpipeIngestFilesOperator, "_waited_here", "pipe"),
            pytest.param(SnowpipeIngestFilesOperator, "_waited_here", "copy", marks=pytest.mark.nightly),
            pytest.param(FileBoundary, "settle", "copy", marks=pytest.mark.nightly),
        ],
        ids=["before-intent", "before-submission", "after-submission", "after-submission-copy", "after-load"],
    )
    def test_the_next_load_finishes_what_a_crash_has_left(
        self, began: Load, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, way: str
    ) -> None:
        die_at(monkeypatch, kind, name, lambda: by_pipe(began, "crashed"))
        began.write("4.ndjson", 5)
        done = began.run("crashed" if way == "pipe" else "later", 2, path=way, file_pipe=began.pipe)

        began.assert_every_row_is_there_once()
        assert began.token == "4.ndjson:5"
        assert (done["channels"][CHANNEL]["from"], done["channels"][CHANNEL]["rows"]) == ("1.ndjson:3", 9)
        assert done["rows_loaded"] == 9

    @pytest.mark.nightly
    def test_a_copy_that_was_interrupted_is_finished_by_copy_before_the_pipe_takes_more(
        self, began: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        die_at(monkeypatch, SnowpipeCopyOperator, "perform", lambda: began.run("crashed"))
        began.write("4.ndjson")
        by_pipe(began)

        began.assert_every_row_is_there_once()
        loads = began.service.sql(
            "SELECT FILE_NAME, PIPE_NAME FROM TABLE(INFORMATION_SCHEMA.COPY_HISTORY(TABLE_NAME => "
            f"'{began.table}', START_TIME => DATEADD(HOUR, -1, CURRENT_TIMESTAMP()))) ORDER BY 1"
        )
        by = {str(row["FILE_NAME"]).rpartition("/")[2]: row["PIPE_NAME"] for row in loads}
        assert by == {"2.ndjson": None, "3.ndjson": None, "4.ndjson": began.pipe}

    @pytest.mark.nightly
    def test_each_partition_is_finished_by_the_loader_that_began_it(
        self, began: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        die_at(monkeypatch, SnowpipeIngestFilesOperator, "_waited_here", lambda: by_pipe(began, "crashed"))
        other = began.folder / "b" / "1.ndjson"
        other.parent.mkdir()
        other.write_text(json.dumps({"ID": len(began.ids)}) + "\n")
        began.ids.append(len(began.ids))
        with began.service.client(began.table) as client:
            client.open_channel("p_s_b")
        intent = CopyIntent(None, "1.ndjson", dt.datetime.now(dt.UTC))
        began.set_token(str(intent), channel="p_s_b")
        done = began.run()

        began.assert_every_row_is_there_once()
        moved = {name: (one["from"], one["to"], one["rows"]) for name, one in done["channels"].items()}
        assert moved == {CHANNEL: ("1.ndjson:3", "3.ndjson:2", 4), "p_s_b": (None, "1.ndjson:1", 1)}

    def test_files_that_wait_in_the_queue_are_never_loaded_another_way(self, began: Load) -> None:
        began.pause_pipe()
        for way in ("pipe", "copy"):
            with pytest.raises(FilesNotLoadedError):
                began.run(f"first-{way}", path=way, file_pipe=began.pipe, load_timeout=0.3)
        assert is_copy_intent(began.token)
        began.pause_pipe(paused=False)

        assert began.run(path="copy", file_pipe=began.pipe)["rows_loaded"] == 4
        began.assert_every_row_is_there_once()
        assert began.token == "3.ndjson:2"

    @pytest.mark.nightly
    def test_a_file_that_changed_while_its_content_waits_is_refused(self, began: Load) -> None:
        began.pause_pipe()
        with pytest.raises(FilesNotLoadedError):
            by_pipe(began, load_timeout=0.3)
        file = began.folder / "a" / "3.ndjson"
        good = file.read_text()
        file.write_text(good + '{"ID": 99}\n')
        with pytest.raises(AirflowFailException, match=r"'3\.ndjson' .*has changed.*in its queue.*REMOVE"):
            by_pipe(began)
        file.write_text(good)
        began.pause_pipe(paused=False)

        by_pipe(began)
        began.assert_every_row_is_there_once()

    def test_what_nobody_remembers_any_more_is_not_guessed(self, began: Load) -> None:
        long_ago = dt.datetime.now(dt.UTC) - dt.timedelta(days=15)
        began.set_token(str(CopyIntent("1.ndjson:3", "3.ndjson", long_ago, began.pipe)))

        with pytest.raises(
            AirflowFailException,
            match=r"SourcePositionError.*more than 14 days ago.*'3\.ndjson:2' if all are",
        ):
            by_pipe(began)
        assert ids(began.service, began.table) == [0, 1, 2]


class TestDeferred:
    def test_the_task_waits_in_the_triggerer_and_settles_the_token_afterwards(self, piped: Load) -> None:
        piped.write("2.ndjson", 4)
        operator = self.waiting(piped)
        with pytest.raises(TaskDeferred) as deferred:
            operator.execute(piped.context())
        assert is_copy_intent(piped.token)
        done = self.waiting(piped).execute_complete(
            piped.context(), event=_event(deferred.value), **(deferred.value.kwargs or {})
        )

        piped.assert_every_row_is_there_once()
        assert (done["path"], done["rows_loaded"], piped.token) == ("pipe", 4, "2.ndjson:4")

    @pytest.mark.nightly
    def test_what_load_history_does_not_know_yet_is_taken_from_the_trigger(
        self, piped: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        piped.write("2.ndjson", 4)
        operator = self.waiting(piped)
        with pytest.raises(TaskDeferred) as deferred:
            operator.execute(piped.context())
        event = _event(deferred.value)
        resumed = self.waiting(piped)
        monkeypatch.setattr("airflow_provider_snowpipe.hooks.bulk.SnowpipeBulkHook.past_loads", lambda *_: [])
        done = resumed.execute_complete(piped.context(), event=event, **(deferred.value.kwargs or {}))

        assert (done["rows_loaded"], piped.token) == (4, "2.ndjson:4")
        piped.assert_every_row_is_there_once()

    @pytest.mark.nightly
    def test_a_wait_that_ends_badly_leaves_the_intent(self, piped: Load) -> None:
        piped.pause_pipe()
        piped.write("2.ndjson")
        operator = self.waiting(piped, load_timeout=0.5)
        with pytest.raises(TaskDeferred) as deferred:
            operator.execute(piped.context())
        event = _event(deferred.value)

        with pytest.raises(FilesNotLoadedError, match="PIPE_STATUS"):
            self.waiting(piped).execute_complete(
                piped.context(), event=event, **(deferred.value.kwargs or {})
            )
        assert is_copy_intent(piped.token)

    def test_a_wait_that_nobody_ends_speaks_of_the_files(self, piped: Load) -> None:
        piped.pause_pipe()
        piped.write("2.ndjson")
        context, words = (
            piped.context(),
            "Trigger timeout" if AIRFLOW >= (3, 0) else "Trigger/execution timeout",
        )
        with pytest.raises(TaskDeferred):
            self.waiting(piped, load_timeout=77.0).execute(context)

        with pytest.raises(AirflowException, match=r"FilesNotLoadedError: pipe .* within 77 s .*1 files"):
            self.waiting(piped, load_timeout=77.0).resume_execution("__fail__", {"error": words}, context)
        with pytest.raises(AirflowException, match="CommitTimeoutError"):
            self.waiting(piped).resume_execution("__fail__", {"error": words}, piped.context())

    def waiting(self, load: Load, **arguments: Any) -> Any:
        return load.operator(
            path="pipe", file_pipe=load.pipe, deferrable=True, poll_interval=0.1, **arguments
        )


class Event:
    """An outlet event as Airflow 3.3 has it."""

    def __init__(self) -> None:
        self.extra: dict[str, Any] = {}
        self.keys: list[str] = []

    def add_partitions(self, keys: list[str]) -> None:
        self.keys += keys


class TestTraces:
    """What a load leaves for assets and lineage, whichever way the files went."""

    def asset(self, load: Load, **names: Any) -> Any:
        account = load.service.account
        return snowpipe_asset(account=account, database="LOCAL", schema="PUBLIC", table=load.table, **names)

    def told(self, load: Load, outlets: list[Any], **arguments: Any) -> tuple[Any, OutletEvents]:
        events = OutletEvents(Event)
        operator = load.operator(outlets=outlets, poll_interval=0.1, **arguments)
        operator.execute({**load.context(), "outlet_events": events})
        return operator, events

    @pytest.mark.parametrize("way", ["pipe", "copy"])
    def test_asset_events_tell_tokens_rows_and_partitions_as_those_of_a_stream(
        self, piped: Load, way: str
    ) -> None:
        piped.write("2.ndjson", 4)
        whole = self.asset(piped, partitioned=True)
        channel = self.asset(piped, channel=CHANNEL)
        _, events = self.told(piped, [whole, channel], path=way, file_pipe=piped.pipe)

        extra = {
            "pipe": f"LOCAL.PUBLIC.{piped.table}-STREAMING",
            "committed": True,
            "tokens": {CHANNEL: "2.ndjson:4"},
            "rows": 4,
        }
        assert [events[one].extra for one in (whole, channel)] == [extra, extra]
        assert events[whole].keys == ["a"]
        assert piped.ti.xcoms["targets"][CHANNEL]["token"] == "2.ndjson:4"

    @pytest.mark.parametrize("way", ["pipe", "copy"])
    def test_files_of_a_stage_tell_their_rows_and_who_loaded_them(self, load: Load, way: str) -> None:
        load.make_pipe()
        put(load.service, load.folder, load.stage, {"a.json": '{"ID": 7}'})
        options = {"file_format": {"type": "JSON"}, "match_by_column_name": "CASE_INSENSITIVE"}
        given = {"file_pipe": load.pipe} if way == "pipe" else {"options": options}
        whole, channel = self.asset(load), self.asset(load, channel=CHANNEL)
        _, events = self.told(load, [whole, channel], path=way, source=f"@{load.stage}", **given)

        loader = f"LOCAL.PUBLIC.{load.pipe}" if way == "pipe" else "COPY"
        assert events[whole].extra == {"committed": True, "rows": 1, "loader": loader}
        assert channel.uri not in events.made

    @pytest.mark.parametrize("way", ["pipe", "copy"])
    def test_lineage_has_source_table_rows_and_where_the_channels_stand(self, piped: Load, way: str) -> None:
        piped.write("2.ndjson", 4)
        operator, _ = self.told(piped, [], path=way, file_pipe=piped.pipe)
        lineage = operator.task_lineage

        assert (lineage.sources, lineage.rows, lineage.loads) == ((str(piped.folder),), 4, True)
        assert lineage.size == (piped.folder / "a" / "2.ndjson").stat().st_size
        assert lineage.channels == (ChannelOffsets(CHANNEL, "1.ndjson:3", "2.ndjson:4", 4),)
        assert dataset_name(lineage.hook) == f"LOCAL.PUBLIC.{piped.table}"


class TestStaged:
    def test_files_of_a_stage_are_given_to_its_pipe_below_its_location(self, load: Load) -> None:
        load.make_pipe("/in")
        put(load.service, load.folder, load.stage, {"in/day/a.json": '{"ID": 7}', "in/b.json": '{"ID": 8}'})
        done = by_pipe(load, source=f"@{load.stage}/in/day")

        assert ids(load.service, load.table) == [7]
        assert (done["path"], list(done["files"]), done["rows_loaded"]) == ("pipe", ["day/a.json"], 1)
        assert done["pipe"] == f"LOCAL.PUBLIC.{load.pipe}"
        again = by_pipe(load, source=f"@{load.stage}/in")
        assert (list(again["files"]), list(again["loaded_before"])) == (["b.json"], ["day/a.json"])
        assert ids(load.service, load.table) == [7, 8]

    def test_a_stage_that_the_pipe_does_not_load_from_is_refused(self, load: Load) -> None:
        load.make_pipe("/in")
        put(load.service, load.folder, load.stage, {"out/a.json": '{"ID": 7}'})

        with pytest.raises(
            AirflowFailException, match=r"loads from .*_STAGE/in, and the files are at .*/out"
        ):
            by_pipe(load, source=f"@{load.stage}/out")

    def test_the_task_waits_in_the_triggerer(self, load: Load) -> None:
        load.make_pipe()
        put(load.service, load.folder, load.stage, {"a.json": '{"ID": 7}'})
        given = {"path": "pipe", "file_pipe": load.pipe, "deferrable": True, "source": f"@{load.stage}"}
        with pytest.raises(TaskDeferred) as deferred:
            load.operator(poll_interval=0.1, **given).execute(load.context())
        done = load.operator(**given).execute_complete(
            load.context(), event=_event(deferred.value), **(deferred.value.kwargs or {})
        )

        assert (done["path"], list(done["files"]), done["rows_loaded"]) == ("pipe", ["a.json"], 1)


class TestChoice:
    def test_files_that_keep_arriving_go_by_the_pipe_that_is_named(self, piped: Load) -> None:
        piped.write("2.ndjson")
        shape = {"bounded": False, "arrival_rate": 1e6, "freshness": 600}
        # These options are for the runs that COPY takes.
        done = by_pipe(piped, path="auto", shape=shape, options={"on_error": "SKIP_FILE"})

        assert (done["path"], done["rows_loaded"]) == ("pipe", 2)
        assert piped.ti.xcoms["plan"]["is_forced"] is False
        piped.assert_every_row_is_there_once()

    def test_without_a_named_pipe_the_plan_says_that_there_is_none(self, piped: Load) -> None:
        piped.write("2.ndjson")
        shape = {"bounded": False, "arrival_rate": 1e6, "freshness": 600}
        plan = piped.operator(path="auto", shape=shape)._choice(shape, piped.context()).plan

        assert plan is not None
        assert plan.path != "pipe"
        assert "suit a pipe, and none is known" in plan.reasons[0]

    def test_a_backfill_goes_by_copy_although_there_is_a_pipe(self, piped: Load) -> None:
        piped.write("2.ndjson")
        operator = piped.operator(path="auto", file_pipe=piped.pipe)

        assert operator._choice({"backfill": True}, piped.context()).path() == ("copy", None)

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (
                {"file_pipe": None},
                r"file_pipe is None: name the file pipe .*SnowpipePipeOperator.*path='copy'",
            ),
            ({"file_pipe": "NOWHERE"}, r"no file pipe LOCAL\.PUBLIC\.NOWHERE.*SnowpipePipeOperator"),
            ({"options": {"on_error": "CONTINUE"}}, r"options is .*a pipe has those of its own statement"),
            (
                {"source": {"kind": "table", "query": "Q", "offset_column": "ID"}, "shape": {"rows": 1}},
                "only files go that way; take path='stream'",
            ),
        ],
        ids=["not-named", "not-there", "options", "no-files"],
    )
    def test_what_no_pipe_can_take_is_refused_with_the_remedy(
        self, piped: Load, arguments: dict[str, Any], told: str
    ) -> None:
        piped.write("2.ndjson")
        with pytest.raises(AirflowFailException, match=told):
            by_pipe(piped, **arguments)
        assert piped.token == "1.ndjson:3"

    def test_a_pipe_into_another_table_is_refused(self, piped: Load) -> None:
        piped.write("2.ndjson")
        piped.service.sql(f"CREATE TABLE {piped.table}_2 (ID INTEGER)")
        piped.make_pipe(into=f"{piped.table}_2")

        with pytest.raises(AirflowFailException, match=rf"loads into LOCAL\.PUBLIC\.{piped.table}_2, and"):
            by_pipe(piped)

    def test_a_pipe_that_loads_by_itself_is_refused(self, piped: Load) -> None:
        piped.write("2.ndjson")
        piped.make_pipe(options="AUTO_INGEST = TRUE")

        with pytest.raises(AirflowFailException, match="has AUTO_INGEST, so that it may load a file as soon"):
            by_pipe(piped)


def _event(deferred: TaskDeferred) -> Any:
    async def first() -> Any:
        trigger: Any = deferred.trigger
        async with aclosing(trigger.run()) as events:
            return (await anext(events)).payload

    return asyncio.run(asyncio.wait_for(first(), 240))
