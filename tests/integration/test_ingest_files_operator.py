"""``SnowpipeIngestFilesOperator`` against a real local service: once per run, and until files are loaded."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.lineage import dataset_name
from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from airflow_provider_snowpipe.sensors.files_loaded import SnowpipeFilesLoadedSensor
from airflow_provider_snowpipe.streaming.errors import (
    FilesNotLoadedError,
    NothingStagedError,
    RetriesExhaustedError,
)
from airflow_provider_snowpipe.triggers.files_loaded import SnowpipeFilesLoadedTrigger
from tests.airflow_connections import SetConnection, set_connection
from tests.conftest import ServiceFactory
from tests.file_pipes import MakePlace, PipePlace, make_place, task_context
from tests.local_connection import connect, connect_by_form
from tests.local_service import LocalService
from tests.outlet_events import OutletEvents
from tests.staged_files import put

__all__ = ["make_place", "set_connection"]

MINUTE = 60
LOADED = {"status": "LOADED", "rows_loaded": 1, "rows_parsed": 1, "errors_seen": 0, "first_error": None}


@pytest.fixture
def place(local_service: LocalService, make_place: MakePlace) -> PipePlace:
    """A place whose service takes faults when a test wants them."""
    place = make_place(local_service)
    place.make_pipe()
    return place


def operator(place: PipePlace, **arguments: Any) -> SnowpipeIngestFilesOperator:
    given: dict[str, Any] = {
        "snowflake_conn_id": place.conn_id,
        "pipe": place.pipe,
        "poll_interval": 0.1,
        "load_timeout": 60.0,
        **arguments,
    }
    return SnowpipeIngestFilesOperator(task_id="ingest", **given)


def ingest(place: PipePlace, run: str = "r1", try_number: int = 1, **arguments: Any) -> dict[str, Any]:
    return operator(place, **arguments).execute(task_context(run, try_number))


def sensor(place: PipePlace, **arguments: Any) -> Any:
    given: dict[str, Any] = {"snowflake_conn_id": place.conn_id, "poke_interval": 0.1, "timeout": 20}
    return SnowpipeFilesLoadedSensor(task_id="wait", **{**given, **arguments}).execute(task_context())


class TestSubmit:
    @pytest.mark.parametrize("define", [connect, connect_by_form], ids=["snowflake", "snowpipe"])
    def test_files_are_loaded_when_the_task_ends(
        self, place: PipePlace, local_service: LocalService, set_connection: SetConnection, define: Any
    ) -> None:
        place.conn_id = define(local_service, set_connection)
        place.put({"a.csv": "1,x\n", "in/b.csv": "2,x\n"})
        done = ingest(place, files=["a.csv", "in/b.csv"])

        assert place.ids() == [1, 2]
        assert done["submitted"] == done["files"] == ["a.csv", "in/b.csv"]
        assert done["loads"] == {"a.csv": LOADED, "in/b.csv": LOADED}
        assert (done["posts"], done["rows_loaded"], done["loaded_before"]) == (1, 2, {})

    def test_its_names_are_what_the_sensor_takes(self, place: PipePlace) -> None:
        place.put({"a.csv": "1,x\n"})
        done = ingest(place, files='["a.csv"]', wait_for_load=False)

        assert "loads" not in done
        assert sensor(place, files=done["files"], pipe=place.pipe) == {"a.csv": LOADED}

    @pytest.mark.parametrize("with_table", [True, False], ids=["copy-history", "pipe-history"])
    def test_what_the_pipe_has_loaded_is_not_submitted_again(
        self, place: PipePlace, with_table: bool
    ) -> None:
        place.put({"a.csv": "1,x\n"})
        ingest(place, files=["a.csv"])
        place.put({"b.csv": "2,x\n"})
        table = place.table if with_table else None
        done = ingest(place, run="r2", files=["a.csv", "b.csv"], table=table)

        assert place.ids() == [1, 2]
        assert (done["submitted"], list(done["loads"])) == (["b.csv"], ["b.csv"])
        assert done["loaded_before"] == {"a.csv": LOADED}
        again = ingest(place, run="r3", files=["a.csv", "b.csv"], table=table)
        assert (again["posts"], again["rows_loaded"]) == (0, 0)

    def test_every_try_submits_the_same_and_nothing_is_loaded_twice(self, place: PipePlace) -> None:
        place.put({"a.csv": "1,x\n"})
        for number in (1, 2, 3):
            ingest(place, try_number=number, files=["a.csv"], wait_for_load=False)
        sensor(place, files=["a.csv"], pipe=place.pipe)

        assert place.ids() == [1]

    def test_more_than_five_thousand_files_are_several_posts(self, place: PipePlace) -> None:
        place.service.sql(f"ALTER PIPE {place.pipe} SET PIPE_EXECUTION_PAUSED = TRUE")
        names = [f"{number:05}.csv" for number in range(5_001)]
        for _ in range(2):
            assert ingest(place, files=names, wait_for_load=False)["posts"] == 2

        (row,) = place.service.sql(f"SELECT SYSTEM$PIPE_STATUS('{place.pipe}')")
        assert '"pendingFileCount": 5001' in next(iter(row.values()))


class TestTraces:
    def test_assets_and_lineage_hear_of_the_rows_where_the_table_is_named(self, place: PipePlace) -> None:
        place.put({"a.csv": "1,x\n2,x\n"})
        asset = snowpipe_asset(
            account=place.service.account, database="LOCAL", schema="PUBLIC", table=place.table
        )
        events = OutletEvents(lambda: SimpleNamespace(extra={}))
        task = operator(place, stage=f"@{place.stage}", table=place.table, outlets=[asset])
        task.execute({**task_context(), "outlet_events": events})

        told = {"committed": True, "rows": 2, "loader": f"LOCAL.PUBLIC.{place.pipe}"}
        assert events.made[asset.uri].extra == told
        assert task.task_lineage is not None
        assert (task.task_lineage.sources, task.task_lineage.rows) == ((f"@{place.stage}",), 2)
        assert dataset_name(task.task_lineage.hook) == f"LOCAL.PUBLIC.{place.table}"


class TestStage:
    def test_a_stage_is_listed_below_the_pipes_location(self, place: PipePlace) -> None:
        place.service.sql(f"DROP PIPE {place.pipe}")
        place.make_pipe(path="/in")
        place.put({"in/a.csv": "1,x\n", "in/day/b.csv": "2,x\n", "other.csv": "9,x\n"})
        done = ingest(place, stage=f"@{place.stage}/in")

        assert done["files"] == ["a.csv", "day/b.csv"]
        assert place.ids() == [1, 2]

    def test_a_prefix_and_a_pattern_choose(self, place: PipePlace) -> None:
        place.put({"day1/a.csv": "1,x\n", "day1/a.txt": "8,x\n", "day2/b.csv": "9,x\n"})
        ingest(place, stage=f"@{place.stage}", prefix="day1/", pattern=".*[.]csv")

        assert place.ids() == [1]

    def test_a_file_that_is_not_staged_is_named(self, place: PipePlace) -> None:
        with pytest.raises(NothingStagedError, match=r"1 of 1 files are not in stage .*'a\.csv'"):
            ingest(place, stage=f"@{place.stage}", files=["a.csv"])

    def test_nothing_staged_is_an_error_or_a_report(self, place: PipePlace) -> None:
        with pytest.raises(NothingStagedError, match="has no file for pipe"):
            ingest(place, stage=f"@{place.stage}")
        assert ingest(place, stage=f"@{place.stage}", on_nothing="report")["rows_loaded"] == 0

    def test_a_dry_run_names_the_files_and_submits_none(self, place: PipePlace) -> None:
        place.put({"a.csv": "1,x\n"})
        lines = operator(place, stage=f"@{place.stage}").preview()

        assert lines == [
            f"would submit 1 of 1 files to pipe LOCAL.PUBLIC.{place.pipe}; 0 were loaded before",
            "would submit a.csv",
        ]
        assert place.ids() == []


class TestTwoLoaders:
    """COPY and a pipe, or two pipes, do not share their memory of files."""

    def copy(self, place: PipePlace, stage: str, *files: str) -> None:
        names = ", ".join(f"'{name}'" for name in files)
        place.service.sql(f"COPY INTO {place.table} FROM @{stage} FILES = ({names})")

    @pytest.mark.parametrize("with_stage", [True, False], ids=["stage-given", "stage-of-the-pipe"])
    def test_files_that_copy_has_loaded_are_refused_with_the_load(
        self, place: PipePlace, with_stage: bool
    ) -> None:
        place.service.sql(f"DROP PIPE {place.pipe}")
        place.make_pipe(path="/in")
        place.put({"in/a.csv": "1,x\n", "in/b.csv": "2,x\n"})
        self.copy(place, place.stage, "in/a.csv")
        given: dict[str, Any] = {"stage": f"@{place.stage}/in"} if with_stage else {}

        with pytest.raises(
            AirflowFailException,
            match=rf"FilesGivenTwiceError.*1 of 2 files.*'in/a\.csv' by COPY at .*pipe .*{place.pipe} has no",
        ):
            ingest(place, table=place.table, files=["a.csv", "b.csv"], **given)
        assert place.ids() == [1]

    @pytest.mark.parametrize("wait", [True, False], ids=["waiting", "not-waiting"])
    def test_force_submits_them_all_the_same(self, place: PipePlace, wait: bool) -> None:
        place.put({"a.csv": "1,x\n"})
        self.copy(place, place.stage, "a.csv")
        with pytest.raises(AirflowFailException, match="FilesGivenTwiceError"):
            ingest(place, table=place.table, files=["a.csv"], wait_for_load=wait)

        ingest(place, run="r2", table=place.table, files=["a.csv"], wait_for_load=wait, force=True)
        sensor(place, files=["a.csv"], pipe=place.pipe)
        assert place.ids() == [1, 1]

    def test_a_pipe_whose_definition_does_not_show_is_warned_of(
        self, place: PipePlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        place.put({"a.csv": "1,x\n"})
        monkeypatch.setattr(SnowpipeBulkHook, "pipe_target", lambda *_: None)
        with caplog.at_level(logging.WARNING):
            ingest(place, table=place.table, files=["a.csv"])

        assert any("whether COPY has loaded these files is not known" in text for text in caplog.messages)
        assert place.ids() == [1]

    def test_files_that_another_pipe_has_loaded_are_refused(self, place: PipePlace) -> None:
        place.put({"a.csv": "1,x\n"})
        ingest(place, files=["a.csv"])
        first, place.pipe = place.pipe, f"{place.pipe}_2"
        place.make_pipe()

        with pytest.raises(AirflowFailException, match=rf"'a\.csv' by pipe LOCAL\.PUBLIC\.{first} at"):
            ingest(place, table=place.table, files=["a.csv"])

    def test_files_of_the_same_name_in_another_stage_are_not_refused(self, place: PipePlace) -> None:
        other = f"{place.stage}_2"
        place.service.sql(f"CREATE STAGE {other} FILE_FORMAT = (TYPE = CSV)")
        put(place.service, place.folder, other, {"a.csv": "1,x\n"})
        self.copy(place, other, "a.csv")
        place.put({"a.csv": "2,x\n"})

        ingest(place, table=place.table, files=["a.csv"])
        assert place.ids() == [1, 2]

    def test_a_file_that_copy_could_not_load_is_not_refused(self, place: PipePlace) -> None:
        place.put({"a.csv": "one,x\n"})
        place.service.sql(f"COPY INTO {place.table} FROM @{place.stage} ON_ERROR = SKIP_FILE")
        place.put({"a.csv": "1,x\n"})

        ingest(place, table=place.table, files=["a.csv"])
        assert place.ids() == [1]


class TestFilesThatDoNotFit:
    def test_a_file_that_fails_fails_the_task_with_its_first_error(self, place: PipePlace) -> None:
        place.put({"a.csv": "1,x\n", "bad.csv": "one,x\n"})

        with pytest.raises(AirflowFailException, match=r"load_failed: .*'bad\.csv' is LOAD_FAILED.*'one'"):
            ingest(place, files=["a.csv", "bad.csv"])
        reported = ingest(place, run="r2", files=["a.csv", "bad.csv"], on_failed="report")
        assert reported["loads"]["bad.csv"]["status"] == "LOAD_FAILED"
        assert place.ids() == [1]

    def test_the_failure_of_before_does_not_count_for_a_file_that_was_mended(self, place: PipePlace) -> None:
        place.put({"a.csv": "one,x\n"})
        with pytest.raises(AirflowFailException):
            ingest(place, files=["a.csv"])
        place.put({"a.csv": "1,x\n"})

        assert ingest(place, run="r2", files=["a.csv"])["loads"] == {"a.csv": LOADED}

    def test_a_file_loaded_in_part_stays_an_objection(self, place: PipePlace) -> None:
        place.service.sql(f"DROP PIPE {place.pipe}")
        place.make_pipe("ON_ERROR = CONTINUE")
        place.put({"a.csv": "1,x\ntwo,y\n"})

        with pytest.raises(AirflowFailException, match=r"partially_loaded: .*'a\.csv'"):
            ingest(place, files=["a.csv"])
        with pytest.raises(AirflowFailException, match=r"in part before.*1 of 2 rows.*on_partial='report'"):
            ingest(place, run="r2", files=["a.csv"])
        done = ingest(place, run="r3", files=["a.csv"], on_partial="report")
        assert done["loaded_before"]["a.csv"]["status"] == "PARTIALLY_LOADED"

    def test_files_that_the_pattern_leaves_out_are_named(self, place: PipePlace) -> None:
        place.service.sql(f"DROP PIPE {place.pipe}")
        place.make_pipe("PATTERN = '.*[.]csv'")
        place.put({"a.csv": "1,x\n", "a.txt": "2,x\n"})

        with pytest.raises(
            AirflowFailException, match=r"1 of 2 files, which its PATTERN leaves out: 'a\.txt'"
        ):
            ingest(place, files=["a.csv", "a.txt"])
        done = ingest(place, run="r2", files=["a.csv", "a.txt"], on_unmatched="report")
        assert done["unmatched"] == ["a.txt"]
        assert place.ids() == [1]


class TestFaults:
    def test_a_post_is_repeated_when_the_pipe_has_asked_to_wait(
        self, place: PipePlace, caplog: pytest.LogCaptureFixture
    ) -> None:
        place.put({"a.csv": "1,x\n"})
        place.service.admin("faults", set="answer-insert-files=429@2,answer-insert-files=503")
        with caplog.at_level(logging.WARNING):
            ingest(place, files=["a.csv"])

        assert place.ids() == [1]
        pauses = [message for message in caplog.messages if "insertFiles" in message]
        assert "HTTP 429" in pauses[0]
        assert "repeating in 2.0 s" in pauses[0]
        assert "HTTP 503" in pauses[1]

    def test_a_pipe_that_stays_overloaded_leaves_the_task_its_retries(self, place: PipePlace) -> None:
        place.service.admin("faults", set="answer-insert-files=429@30")
        with pytest.raises(RetriesExhaustedError, match=r"insertFiles of pipe .*HTTP 429") as raised:
            ingest(place, files=["a.csv"], wait_for_load=False, retry_seconds=5.0)

        assert raised.value.retry_after == 30

    def test_a_pipe_that_does_not_load_in_time_says_which_files(self, place: PipePlace) -> None:
        place.service.sql(f"ALTER PIPE {place.pipe} SET PIPE_EXECUTION_PAUSED = TRUE")
        place.put({"a.csv": "1,x\n"})
        with pytest.raises(
            FilesNotLoadedError, match=r"0 of 1 files loaded .*missing: 'a\.csv'.*PIPE_STATUS"
        ):
            ingest(place, files=["a.csv"], load_timeout=0.5)
        place.service.sql(f"ALTER PIPE {place.pipe} SET PIPE_EXECUTION_PAUSED = FALSE")

        assert ingest(place, try_number=2, files=["a.csv"])["files"] == ["a.csv"]
        assert place.ids() == [1]

    def test_a_pipe_that_is_not_there_is_named(self, place: PipePlace) -> None:
        with pytest.raises(
            AirflowFailException, match=r"insertFiles of pipe LOCAL\.PUBLIC\.NOWHERE.*OPERATE"
        ):
            ingest(place, pipe="NOWHERE", files=["a.csv"], wait_for_load=False)

    def test_a_connection_without_a_key_pair_is_refused(
        self, place: PipePlace, local_service: LocalService, set_connection: SetConnection
    ) -> None:
        token = (local_service.data_dir / "demo_pat").read_text().strip()
        place.conn_id = connect_by_form(
            local_service,
            set_connection,
            password=token,
            extra={"auth": "programmatic_access_token", "private_key_content": None},
        )
        with pytest.raises(AirflowFailException, match="insertFiles takes key pairs only"):
            ingest(place, files=["a.csv"], wait_for_load=False)


class TestDeferred:
    def test_the_task_waits_in_the_triggerer_and_comes_back_with_both(self, place: PipePlace) -> None:
        place.put({"a.csv": "1,x\n"})
        ingest(place, files=["a.csv"])
        place.put({"b.csv": "2,x\n"})
        waiting = operator(place, files=["a.csv", "b.csv"], deferrable=True)
        with pytest.raises(TaskDeferred) as deferred:
            waiting.execute(task_context("r2"))
        event = _event(deferred.value)
        resumed = operator(place, files=["a.csv", "b.csv"], deferrable=True)
        done = resumed.execute_complete(task_context("r2"), event=event, **(deferred.value.kwargs or {}))

        assert (done["loads"], done["loaded_before"]) == ({"b.csv": LOADED}, {"a.csv": LOADED})
        assert done["rows_loaded"] == 1

    def test_a_file_that_fails_meanwhile_fails_the_task(self, place: PipePlace) -> None:
        place.put({"bad.csv": "one,x\n"})
        waiting = operator(place, files=["bad.csv"], deferrable=True)
        with pytest.raises(TaskDeferred) as deferred:
            waiting.execute(task_context())

        with pytest.raises(AirflowFailException, match="load_failed"):
            waiting.execute_complete(
                task_context(), event=_event(deferred.value), **(deferred.value.kwargs or {})
            )


def _event(deferred: TaskDeferred) -> Mapping[str, Any]:
    _, arguments = deferred.trigger.serialize()

    async def first() -> Any:
        return [event.payload async for event in SnowpipeFilesLoadedTrigger(**arguments).run()]

    (payload,) = asyncio.run(asyncio.wait_for(first(), 240))
    return dict(payload)


class TestForgetfulReport:
    """The pipe's report forgets after ten minutes; loadHistoryScan and COPY_HISTORY still know."""

    @pytest.fixture
    def late(self, service_factory: ServiceFactory, make_place: MakePlace) -> PipePlace:
        """A pipe that loaded a file eleven minutes ago, by the clock of its own service."""
        service = service_factory(admin=True)
        place = make_place(service)
        place.make_pipe()
        place.put({"a.csv": "1,x\n"})
        ingest(place, files=["a.csv"])
        service.admin("clock", move=11 * MINUTE)
        return place

    def test_each_source_steps_in_for_the_one_before(
        self, late: PipePlace, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = operator(late, files=["a.csv"]).hook.get_file_pipe_client()
        now = dt.datetime.now(dt.UTC)
        try:
            assert client.insert_report().loads == []
            assert [load.path for load in client.history(now - dt.timedelta(hours=1), now)] == ["a.csv"]
        finally:
            client.close()

        assert sensor(late, files=["a.csv"], pipe=late.pipe) == {"a.csv": LOADED}

        late.service.admin("faults", set="answer-history-scan=429@60")
        with caplog.at_level(logging.WARNING):
            assert sensor(late, files=["a.csv"], pipe=late.pipe, table=late.table) == {"a.csv": LOADED}
        assert any("asking COPY_HISTORY" in message for message in caplog.messages)

    def test_a_retry_after_it_has_forgotten_finds_the_load_of_the_try_before(self, late: PipePlace) -> None:
        done = ingest(late, try_number=2, files=["a.csv"])

        assert (done["posts"], done["loaded_before"]) == (0, {"a.csv": LOADED})
        assert late.ids() == [1]
