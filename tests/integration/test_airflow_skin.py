"""Hook, operator, sensor and trigger against the real local service and real Spark."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.triggers.commit import SnowpipeCommitTrigger
from tests.airflow_connections import SetConnection, pem, private_key, set_connection
from tests.local_connection import TaskInstance, append
from tests.local_service import LocalService
from tests.waiting import wait_until

__all__ = ["pem", "private_key", "set_connection"]

Connect = Callable[..., str]
_numbers = itertools.count(1)


@pytest.fixture
def connect(set_connection: SetConnection) -> Connect:
    """Define a connection to a local service, with some fields changed; its id."""

    def define(service: LocalService, **changes: Any) -> str:
        fields = json.loads(service.env["AIRFLOW_CONN_SNOWFLAKE_DEFAULT"])
        fields["extra"] = {**fields["extra"], "ca_bundle": str(service.ca_file), **changes.pop("extra", {})}
        set_connection("spark_default", conn_type="spark", host="local[2,4]")
        return set_connection("local", **{**fields, **changes})

    return define


@pytest.fixture
def table(local_service: LocalService) -> str:
    """A new table of two columns for each test."""
    name = f"SKIN{next(_numbers)}"
    local_service.sql(f"CREATE TABLE LOCAL.PUBLIC.{name} (ID INTEGER, NAME VARCHAR)")
    return name


def ids_of(service: LocalService, table: str) -> list[int]:
    return [int(row["ID"]) for row in service.sql(f"SELECT ID FROM LOCAL.PUBLIC.{table} ORDER BY ID")]


def context() -> Any:
    """A task's context, as much of it as a sensor asks for."""
    return {"ti": TaskInstance()}


def sensor(conn_id: str, table: str, targets: Any, **options: Any) -> SnowpipeCommitSensor:
    return SnowpipeCommitSensor(
        task_id="wait",
        targets=targets,
        offset_format="file:line",
        table=table,
        snowflake_conn_id=conn_id,
        **{"poke_interval": 0.1, "timeout": 60, **options},
    )


class TestHook:
    def test_accepts_the_connection_that_the_local_service_prints(
        self, local_service: LocalService, monkeypatch: pytest.MonkeyPatch, table: str
    ) -> None:
        for name, value in local_service.env.items():
            monkeypatch.setenv(name, value)

        ok, text = SnowpipeHook(table=table).test_connection()

        assert ok, text
        assert f"pipe LOCAL.PUBLIC.{table}-STREAMING is there" in text

    def test_accepts_a_snowpipe_connection(
        self, local_service: LocalService, set_connection: SetConnection, table: str
    ) -> None:
        conn_id = set_connection(
            "form",
            conn_type="snowpipe",
            host=local_service.url,
            login=local_service.user,
            schema="PUBLIC",
            extra={
                "account": local_service.account,
                "auth": "key_pair",
                "private_key_content": local_service.key_file.read_text().replace("\n", ""),
                "database": "LOCAL",
                "table": table,
                "ca_bundle": str(local_service.ca_file),
            },
        )

        assert SnowpipeHook(conn_id).test_connection() == (
            True,
            f"Credentials accepted, ingest host 127.0.0.1, pipe LOCAL.PUBLIC.{table}-STREAMING is there, "
            "0 channels listed.",
        )

    def test_reports_that_the_key_is_not_the_users(
        self, local_service: LocalService, connect: Connect, pem: str, table: str
    ) -> None:
        conn_id = connect(local_service, extra={"private_key_file": None, "private_key_content": pem})

        ok, text = SnowpipeHook(conn_id, table=table).test_connection()

        assert not ok
        assert text.startswith("Failed at: account URL and credentials. ")
        assert "PRIVATE KEY" not in text

    def test_reports_that_the_certificate_is_not_trusted(
        self, local_service: LocalService, connect: Connect
    ) -> None:
        import certifi

        ok, text = SnowpipeHook(
            connect(local_service, extra={"ca_bundle": certifi.where()})
        ).test_connection()

        assert not ok
        assert "certificate" in text


class TestWaiting:
    def test_poke_succeeds_only_when_the_rows_can_be_read(
        self, local_service: LocalService, connect: Connect, table: str
    ) -> None:
        waiting = sensor(connect(local_service), table, {"c1": "a:2"})
        with local_service.held_commits():
            append(local_service, table, "c1", ["a:1", "a:2"])
            assert not waiting.poke(context()).is_done
            assert ids_of(local_service, table) == []

        assert waiting.execute(context()) == {"c1": "a:2"}
        assert ids_of(local_service, table) == [0, 1]

    def test_deferred_sensor_resumes_only_when_the_rows_can_be_read(
        self, local_service: LocalService, connect: Connect, table: str
    ) -> None:
        async def wait(trigger: SnowpipeCommitTrigger) -> dict[str, Any]:
            waiting = asyncio.ensure_future(_first(trigger))
            await asyncio.to_thread(_wait_for_polls, local_service, 2)
            assert not waiting.done()
            local_service.admin("faults", clear=True)
            return await asyncio.wait_for(waiting, 120)

        with local_service.held_commits():
            append(local_service, table, "c1", ["a:1", "a:2"])
            append(local_service, table, "c2", ["b:1"])
            given = {"c1": "a:2", "c2": "b:1"}
            with pytest.raises(TaskDeferred) as deferred:
                sensor(connect(local_service), table, given, deferrable=True).execute(context())
            _, arguments = deferred.value.trigger.serialize()
            event = asyncio.run(wait(SnowpipeCommitTrigger(**json.loads(json.dumps(arguments)))))

        assert event == {"status": "success", "tokens": {"c1": "a:2", "c2": "b:1"}}
        assert ids_of(local_service, table) == [0, 0, 1]


async def _first(trigger: SnowpipeCommitTrigger) -> dict[str, Any]:
    (payload,) = [event.payload async for event in trigger.run()]
    return payload


def _wait_for_polls(service: LocalService, times: int) -> None:
    """Wait until the service has been asked for statuses so many times more."""
    service.set_faults(f"slow-status=0.001x{times}")
    wait_until(
        lambda: not any(fault.startswith("slow-status") for fault in service.admin("faults")["faults"]),
        what="somebody who asks",
    )
