"""The sensor of loaded files and its trigger against the real local service: COPY, file pipes, bad files."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from airflow.exceptions import AirflowRescheduleException
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.sensors.files_loaded import SnowpipeFilesLoadedSensor
from airflow_provider_snowpipe.triggers.files_loaded import SnowpipeFilesLoadedTrigger
from tests.airflow_connections import SetConnection, set_connection
from tests.local_connection import connect, connect_by_form
from tests.local_service import LocalService
from tests.staged_files import put, submit

__all__ = ["set_connection"]

_numbers = itertools.count(1)


@pytest.fixture(scope="module", autouse=True)
def _trusted(local_service: LocalService) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REQUESTS_CA_BUNDLE", str(local_service.ca_file))
        yield


@pytest.fixture
def conn_id(local_service: LocalService, set_connection: SetConnection) -> str:
    return connect(local_service, set_connection)


class LoadTarget:
    """A table, a stage and a file pipe of their own for a test."""

    def __init__(self, service: LocalService, folder: Path, copy_options: str = "") -> None:
        self.service, self.folder = service, folder
        self.table = f"LOADS{next(_numbers)}"
        self.stage, self.pipe = f"{self.table}_STAGE", f"{self.table}_PIPE"
        service.sql(f"CREATE TABLE {self.table} (ID INTEGER, NAME VARCHAR)")
        service.sql(f"CREATE STAGE {self.stage} FILE_FORMAT = (TYPE = CSV)")
        service.sql(f"CREATE PIPE {self.pipe} AS COPY INTO {self.table} FROM @{self.stage} {copy_options}")

    def put(self, **files: str) -> None:
        """Stage files; two underlines in a name stand for a slash, and ``.csv`` is put at its end."""
        named = {f"{name.replace('__', '/')}.csv": content for name, content in files.items()}
        put(self.service, self.folder, self.stage, named)

    def copy(self, path: str = "", options: str = "") -> None:
        """Load what is staged."""
        self.service.sql(f"COPY INTO {self.table} FROM @{self.stage}{path} {options}")

    def submit(self, *paths: str) -> None:
        """Give files to the pipe."""
        submit(self.service, f"LOCAL.PUBLIC.{self.pipe}", *paths)


@pytest.fixture
def target(local_service: LocalService, tmp_path: Path) -> LoadTarget:
    return LoadTarget(local_service, tmp_path)


def sensor(conn_id: str, **options: Any) -> SnowpipeFilesLoadedSensor:
    given: dict[str, Any] = {
        "task_id": "wait",
        "snowflake_conn_id": conn_id,
        "poke_interval": 0.2,
        "timeout": 60,
    }
    return SnowpipeFilesLoadedSensor(**{**given, **options})


def context(store: dict[str, Any] | None = None) -> Any:
    return {"ti": _Instance(), "task_state_store": None if store is None else _Store(store)}


class _Instance:
    try_number = 1

    def get_first_reschedule_date(self, _context: Any) -> None:
        return None


class _Store:
    def __init__(self, values: dict[str, Any]) -> None:
        self.get, self.set = values.get, values.__setitem__
        self.delete = lambda key: values.pop(key, None)


def run(trigger: SnowpipeFilesLoadedTrigger, seconds: float = 240) -> Mapping[str, Any]:
    async def first() -> Any:
        return [event.payload async for event in trigger.run()]

    (payload,) = asyncio.run(asyncio.wait_for(first(), seconds))
    return dict(payload)


def deferred(waiting: SnowpipeFilesLoadedSensor) -> SnowpipeFilesLoadedTrigger:
    """The trigger that the sensor defers to, after a round trip through its serialized form."""
    with pytest.raises(TaskDeferred) as raised:
        waiting.execute(context())
    path, arguments = raised.value.trigger.serialize()
    assert path == "airflow_provider_snowpipe.triggers.files_loaded.SnowpipeFilesLoadedTrigger"
    return SnowpipeFilesLoadedTrigger(**arguments)


LOADED = {"status": "LOADED", "rows_loaded": 2, "rows_parsed": 2, "errors_seen": 0, "first_error": None}


class TestCopy:
    @pytest.mark.parametrize("define", [connect, connect_by_form], ids=["snowflake", "snowpipe"])
    def test_files_that_copy_has_loaded(
        self, local_service: LocalService, set_connection: SetConnection, target: LoadTarget, define: Any
    ) -> None:
        target.put(a="1,x\n2,y\n", in__b="3,x\n4,y\n")
        target.copy()

        found = sensor(
            define(local_service, set_connection), files=["a.csv", "in/b.csv"], table=target.table
        ).execute(context())

        assert found == {"a.csv": LOADED, "in/b.csv": LOADED}

    @pytest.mark.parametrize(
        ("file", "below"), [("in/a.csv", ""), ("a.csv", "/in")], ids=["below-the-stage", "below-a-path"]
    )
    def test_a_path_that_copy_names_belongs_to_the_file(
        self, conn_id: str, target: LoadTarget, file: str, below: str
    ) -> None:
        target.put(in__a="1,x\n2,y\n")
        target.copy("/in", "FILES = ('a.csv')")
        waiting = sensor(conn_id, table=target.table, files=[file], stage=f"@{target.stage}{below}")

        assert waiting.execute(context()) == {"in/a.csv": LOADED}

    def test_all_files_with_a_prefix_or_a_number_of_them(self, conn_id: str, target: LoadTarget) -> None:
        target.put(day1__a="1,x\n2,y\n", day1__b="3,x\n4,y\n", day2__a="5,x\n")
        target.copy()

        found = sensor(conn_id, prefix="day1/", stage=f"@{target.stage}", table=target.table).execute(
            context()
        )

        assert found == {"day1/a.csv": LOADED, "day1/b.csv": LOADED}
        waiting = sensor(conn_id, prefix="day1/", count="2", table=target.table)

        assert list(waiting.execute(context())) == ["day1/a.csv", "day1/b.csv"]

        with pytest.raises(AirflowSensorTimeout, match="2 of 3"):
            sensor(conn_id, prefix="day1/", count=3, table=target.table, timeout=0.5).execute(context())

    def test_a_partly_loaded_file_fails_at_once_with_its_first_error(
        self, conn_id: str, target: LoadTarget
    ) -> None:
        target.put(good="1,x\n", bad="2,x\nthree,y\n4,z\n")
        target.copy(options="ON_ERROR = CONTINUE")
        options = {"files": ["good.csv", "bad.csv", "never.csv"], "table": target.table}

        with pytest.raises(AirflowFailException) as raised:
            sensor(conn_id, **options).execute(context())

        text = str(raised.value)
        assert text.startswith("partially_loaded: 1 of 3 files did not load: ")
        assert "'bad.csv' is PARTIALLY_LOADED with 2 of 3 rows" in text
        assert "'three'" in text
        assert "(line 2, character 1, column" in text
        # A first poll that decides defers nothing.
        with pytest.raises(AirflowSkipException, match="partially_loaded"):
            sensor(conn_id, deferrable=True, soft_fail=True, **options).execute(context())
        options["files"] = ["bad.csv"]
        found = sensor(conn_id, deferrable=True, on_partial="report", **options).execute(context())
        result = found["bad.csv"]
        assert (result["status"], result["rows_loaded"], result["rows_parsed"]) == ("PARTIALLY_LOADED", 2, 3)
        assert (result["errors_seen"], result["first_error"]["line"]) == (1, 2)


class TestPipe:
    def test_files_that_a_pipe_has_loaded_by_its_report(self, conn_id: str, target: LoadTarget) -> None:
        target.put(a="1,x\n2,y\n", in__b="3,x\n4,y\n")
        target.submit("a.csv", "in/b.csv")

        found = sensor(conn_id, files=["a.csv", "in/b.csv"], pipe=target.pipe).execute(context())

        assert found == {"a.csv": LOADED, "in/b.csv": LOADED}


class TestReschedule:
    def test_what_was_listed_at_the_first_poll_stays(self, conn_id: str, target: LoadTarget) -> None:
        target.put(day1__a="1,x\n2,y\n")
        store: dict[str, Any] = {}
        options = {"prefix": "day1/", "stage": target.stage, "table": target.table, "mode": "reschedule"}

        with pytest.raises(AirflowRescheduleException):
            sensor(conn_id, **options).execute(context(store))
        target.put(day1__b="3,x\n")
        target.copy("/day1", "FILES = ('a.csv')")

        assert sensor(conn_id, **options).execute(context(store)) == {"day1/a.csv": LOADED}
        assert store == {}


class TestDeferred:
    def test_ends_when_the_last_file_is_loaded(self, conn_id: str, target: LoadTarget) -> None:
        target.put(a="1,x\n2,y\n", b="3,x\n4,y\n")
        target.copy(options="FILES = ('a.csv')")
        waiting = sensor(conn_id, files=["a.csv", "b.csv"], table=target.table, deferrable=True)
        trigger = deferred(waiting)
        timer = threading.Timer(0.3, target.copy)
        timer.start()

        event = run(trigger)

        timer.join()
        assert waiting.execute_complete(context(), event) == {"a.csv": LOADED, "b.csv": LOADED}


class TestStartFromTrigger:
    def test_the_trigger_takes_what_it_renders(self, conn_id: str, target: LoadTarget) -> None:
        target.put(a="1,x\n2,y\n")
        target.copy()
        waiting = sensor(
            conn_id, files='["a.csv"]', table=target.table, deferrable=True, start_from_trigger=True
        )
        started = waiting.start_trigger_args

        event = run(SnowpipeFilesLoadedTrigger(**started.trigger_kwargs))

        assert event == {"status": "success", "files": {"a.csv": LOADED}}
        assert started.next_method == "execute_complete"
        assert started.trigger_kwargs["timeout"] == 60


def test_the_hook_lists_stages(conn_id: str, target: LoadTarget, tmp_path: Path) -> None:
    target.put(in__a="1,x\n", in__b="1,x\n")
    put(target.service, tmp_path, f"%{target.table}", {"t.csv": "1,x\n"})
    hook = SnowpipeHook(conn_id, table=target.table)

    assert hook.list_stage(target.stage) == ["in/a.csv", "in/b.csv"]
    assert hook.list_stage(f"@PUBLIC.{target.stage}/in", "b") == ["in/b.csv"]
    assert hook.list_stage(f"@LOCAL.PUBLIC.{target.stage}", "in/b") == ["in/b.csv"]
    assert hook.list_stage(f"@%{target.table}") == ["t.csv"]
    assert hook.list_stage("@~", "nothing/") == []
