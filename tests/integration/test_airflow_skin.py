"""Hook, operator, sensor and trigger against the real local service and real Spark."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from tests.airflow_connections import SetConnection
from tests.integration.trigger_events import event_of
from tests.local_connection import append, connect, connect_by_form, context, ids, make_table
from tests.local_service import LocalService
from tests.waiting import wait_until

_numbers = itertools.count(1)


@pytest.fixture
def table(local_service: LocalService) -> str:
    """A new table of two columns for each test."""
    return make_table(local_service, f"SKIN{next(_numbers)}")


class TestHook:
    def test_accepts_the_connection_that_the_local_service_prints(
        self, local_service: LocalService, monkeypatch: pytest.MonkeyPatch, table: str
    ) -> None:
        for name, value in local_service.env.items():
            monkeypatch.setenv(name, value)

        ok, text = SnowpipeHook(table=table).test_connection()

        assert ok, text
        assert f"pipe LOCAL.PUBLIC.{table}-STREAMING is there" in text

    def test_accepts_a_snowpipe_connection_and_reports_a_key_that_is_not_the_users(
        self, local_service: LocalService, set_connection: SetConnection, pem: str, table: str
    ) -> None:
        assert SnowpipeHook(
            connect_by_form(local_service, set_connection, extra={"table": table})
        ).test_connection() == (
            True,
            f"Credentials accepted, ingest host 127.0.0.1, pipe LOCAL.PUBLIC.{table}-STREAMING is there, "
            "0 channels listed.",
        )
        strange = connect_by_form(local_service, set_connection, extra={"private_key_content": pem})

        ok, text = SnowpipeHook(strange, table=table).test_connection()

        assert not ok
        assert text.startswith("Failed at: account URL and credentials. ")
        assert "PRIVATE KEY" not in text

    def test_reports_that_the_certificate_is_not_trusted(
        self, local_service: LocalService, set_connection: SetConnection
    ) -> None:
        import certifi

        strange = connect(local_service, set_connection, extra={"ca_bundle": certifi.where()})
        ok, text = SnowpipeHook(strange).test_connection()

        assert not ok
        assert "certificate" in text


def test_deferred_sensor_resumes_only_when_the_rows_can_be_read(
    local_service: LocalService, set_connection: SetConnection, table: str
) -> None:
    given = {"c1": "a:2", "c2": "b:1"}
    waiting = SnowpipeCommitSensor(
        task_id="wait",
        targets=given,
        offset_format="file:line",
        table=table,
        snowflake_conn_id=connect(local_service, set_connection),
        poke_interval=0.1,
        deferrable=True,
    )
    with local_service.held_commits(), ThreadPoolExecutor(1) as pool:
        append(local_service, table, "c1", ["a:1", "a:2"])
        append(local_service, table, "c2", ["b:1"])
        with pytest.raises(TaskDeferred) as deferred:
            waiting.execute(context())
        event = pool.submit(event_of, deferred.value.trigger)
        _wait_for_polls(local_service, 2)
        assert not event.done()
        local_service.admin("faults", clear=True)

        assert event.result() == {"status": "success", "tokens": given}
    assert ids(local_service, table) == [0, 0, 1]


def _wait_for_polls(service: LocalService, times: int) -> None:
    """Wait until the service has been asked for statuses so many times more."""
    service.set_faults(f"slow-status=0.001x{times}")
    wait_until(
        lambda: not any(fault.startswith("slow-status") for fault in service.admin("faults")["faults"]),
        what="somebody who asks",
    )
