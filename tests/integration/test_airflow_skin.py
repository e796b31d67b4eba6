"""Hook, operator, sensor and trigger against the real local service and real Spark."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.operators.process import runs
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset
from airflow_provider_snowpipe.triggers.commit import SnowpipeCommitTrigger
from tests.airflow_connections import SetConnection, pem, private_key, set_connection
from tests.local_connection import append
from tests.local_service import LocalService

__all__ = ["pem", "private_key", "set_connection"]

Connect = Callable[..., str]
_numbers = itertools.count(1)


class TaskInstance:
    """As much of a running task instance as the operator asks for."""

    def __init__(self) -> None:
        self.dag_id, self.task_id, self.run_id, self.map_index = "d", "load", "manual__1", -1
        self.xcoms: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value


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
    return make_table(local_service, f"T{next(_numbers)}")


def make_table(service: LocalService, name: str) -> str:
    service.sql(f"CREATE TABLE LOCAL.PUBLIC.{name} (ID INTEGER, NAME VARCHAR)")
    return name


def rows_of(service: LocalService, table: str) -> list[int]:
    found = service.sql(f"SELECT ID FROM LOCAL.PUBLIC.{table} ORDER BY ID")
    return [int(row["ID"]) for row in found]


def write_source(directory: Path, partitions: dict[str, int], start: int = 0) -> Path:
    """Write a directory for each partition with two files of rows."""
    number = start
    for partition, count in partitions.items():
        (directory / partition).mkdir(parents=True, exist_ok=True)
        for part in ("01", "02"):
            lines = []
            for _ in range(count):
                lines.append(json.dumps({"ID": number, "NAME": partition}))
                number += 1
            (directory / partition / f"{partition}_{part}.ndjson").write_text("\n".join(lines) + "\n")
    return directory


def load(conn_id: str, source: Path, table: str, **options: Any) -> tuple[dict[str, Any], dict[str, str]]:
    instance = TaskInstance()
    operator = stream_operator(conn_id, source, table, **options)
    value = operator.execute({"ti": instance})  # type: ignore[typeddict-item]
    return value, instance.xcoms["targets"]


def stream_operator(conn_id: str, source: Path, table: str, **options: Any) -> SnowpipeStreamOperator:
    return SnowpipeStreamOperator(
        task_id="load",
        source={"path": str(source)},
        table=table,
        snowflake_conn_id=conn_id,
        channel_prefix="p",
        source_name="s",
        conf={"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", **options.pop("conf", {})},
        driver_memory="512m",
        **options,
    )


def context() -> Any:
    """A task's context, as much of it as a sensor asks for."""
    return {"ti": TaskInstance()}


def sensor(conn_id: str, table: str, targets: Any, **options: Any) -> SnowpipeCommitSensor:
    return SnowpipeCommitSensor(
        task_id="wait",
        targets=targets,
        table=table,
        snowflake_conn_id=conn_id,
        **{"poke_interval": 0.2, "timeout": 60, **options},
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
            "0 channel(s) listed.",
        )

    def test_test_button_works_through_airflows_connection(
        self, local_service: LocalService, table: str
    ) -> None:
        from airflow.sdk import Connection

        connection = Connection(
            conn_id="button",
            conn_type="snowpipe",
            host=local_service.url,
            login=local_service.user,
            extra=json.dumps(
                {
                    "account": local_service.account,
                    "private_key_file": str(local_service.key_file),
                    "ca_bundle": str(local_service.ca_file),
                }
            ),
        )

        ok, text = connection.test_connection()

        assert ok, text

    def test_says_that_the_key_is_not_the_users(
        self, local_service: LocalService, connect: Connect, pem: str, table: str
    ) -> None:
        conn_id = connect(local_service, extra={"private_key_file": None, "private_key_content": pem})

        ok, text = SnowpipeHook(conn_id, table=table).test_connection()

        assert not ok
        assert text.startswith("Failed at: account URL and credentials. ")
        assert "PRIVATE KEY" not in text

    def test_says_that_the_table_is_unknown(self, local_service: LocalService, connect: Connect) -> None:
        ok, text = SnowpipeHook(connect(local_service), table="NO_SUCH").test_connection()

        assert not ok
        assert text.startswith("Failed at: pipe. ")
        assert "NO_SUCH" in text

    def test_says_that_nothing_answers(
        self, local_service: LocalService, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("airflow_provider_snowpipe.hooks.snowpipe._TEST_BUDGET_SECONDS", 0.5)

        ok, text = SnowpipeHook(connect(local_service, extra={"port": 9})).test_connection()

        assert not ok
        assert "https://127.0.0.1:9" in text

    def test_says_that_the_certificate_is_not_trusted(
        self, local_service: LocalService, connect: Connect
    ) -> None:
        import certifi

        ok, text = SnowpipeHook(
            connect(local_service, extra={"ca_bundle": certifi.where()})
        ).test_connection()

        assert not ok
        assert "certificate" in text


@contextmanager
def commits_after(service: LocalService, seconds: float) -> Iterator[None]:
    """Let a service that holds commits back go on with them after a while."""
    timer = threading.Timer(seconds, service.admin, ("faults",), {"clear": True})
    timer.start()
    try:
        yield
    finally:
        timer.join()


@pytest.fixture
def slow(service_factory: Callable[..., LocalService]) -> LocalService:
    """A service that commits nothing until it is told to."""
    return service_factory(faults="commit-delay=3600", admin=True)


class TestWaiting:
    def test_poke_succeeds_only_when_the_rows_can_be_read(self, slow: LocalService, connect: Connect) -> None:
        table = make_table(slow, "T")
        append(slow, table, "c1", ["a:1", "a:2"])
        waiting = sensor(connect(slow), table, {"c1": "a:2"})

        assert not waiting.poke(context()).is_done
        assert rows_of(slow, table) == []
        with commits_after(slow, 1.0):
            assert waiting.execute(context()) == {"c1": "a:2"}
        assert rows_of(slow, table) == [0, 1]

    def test_deferred_sensor_resumes_only_when_the_rows_can_be_read(
        self, slow: LocalService, connect: Connect
    ) -> None:
        table = make_table(slow, "T")
        append(slow, table, "c1", ["a:1", "a:2"])
        append(slow, table, "c2", ["b:1"])

        with pytest.raises(TaskDeferred) as deferred:
            sensor(connect(slow), table, {"c1": "a:2", "c2": "b:1"}, deferrable=True).execute(context())
        _, arguments = deferred.value.trigger.serialize()
        began = time.monotonic()
        with commits_after(slow, 2.0):
            event = asyncio.run(_first(SnowpipeCommitTrigger(**json.loads(json.dumps(arguments)))))
            ended = time.monotonic()

        assert event == {"status": "success", "tokens": {"c1": "a:2", "c2": "b:1"}}
        assert ended - began >= 2.0
        assert rows_of(slow, table) == [0, 0, 1]

    def test_trigger_survives_a_crash_and_restart_of_the_service(
        self, slow: LocalService, connect: Connect
    ) -> None:
        table = make_table(slow, "T")
        append(slow, table, "c1", ["a:1"])
        conn_id = connect(slow)
        trigger = SnowpipeCommitTrigger(
            targets={"c1": "a:2"},
            offset_format="file:line",
            snowflake_conn_id=conn_id,
            table=table,
            poll_interval=0.2,
        )

        async def crash_and_restart() -> dict[str, Any]:
            waiting = asyncio.ensure_future(_first(trigger))
            await asyncio.sleep(0.5)
            await asyncio.to_thread(slow.kill)
            await asyncio.to_thread(slow.launch)
            await asyncio.to_thread(append, slow, table, "c1", ["a:1", "a:2"])
            assert not waiting.done()
            await asyncio.to_thread(slow.admin, "faults", clear=True)
            return await waiting

        event = asyncio.run(asyncio.wait_for(crash_and_restart(), 240))

        assert event == {"status": "success", "tokens": {"c1": "a:2"}}

    def test_missing_channel_fails(self, local_service: LocalService, connect: Connect, table: str) -> None:
        with pytest.raises(AirflowFailException, match=r"channel_missing: channel 'nobody'"):
            sensor(connect(local_service), table, {"nobody": "a:1"}).execute(context())

    def test_unknown_table_is_said(self, local_service: LocalService, connect: Connect) -> None:
        with pytest.raises(AirflowException, match=r"refused: .*NO_SUCH"):
            sensor(connect(local_service), "NO_SUCH", {"c": "a:1"}).execute(context())


async def _first(trigger: SnowpipeCommitTrigger) -> dict[str, Any]:
    (payload,) = [event.payload async for event in trigger.run()]
    return payload


@pytest.mark.spark
class TestStreamOperator:
    def test_loads_reports_and_then_sends_nothing_twice(
        self, local_service: LocalService, connect: Connect, table: str, tmp_path: Path
    ) -> None:
        conn_id = connect(local_service)
        source = write_source(tmp_path / "in", {"EWR": 30, "JFK": 20})

        first, targets = load(conn_id, source, table)
        tokens = sensor(conn_id, table, targets).execute(context())
        again, same_targets = load(conn_id, source, table)

        assert first["rows"] == 100
        assert first["channels"]["p_s_EWR"]["to"] == targets["p_s_EWR"] == "EWR_02.ndjson:30"
        assert tokens == targets == same_targets
        assert again["rows"] == 0
        assert rows_of(local_service, table) == list(range(100))

    def test_sensor_waits_for_what_the_operator_did_not_wait_for(
        self, slow: LocalService, connect: Connect, tmp_path: Path
    ) -> None:
        table, conn_id = make_table(slow, "T"), connect(slow)
        source = write_source(tmp_path / "in", {"EWR": 5})

        _, targets = load(conn_id, source, table, wait_for_commit=False)
        before = sensor(conn_id, table, targets).poke(context())
        with commits_after(slow, 1.0):
            after = sensor(conn_id, table, targets).execute(context())

        assert not before.is_done
        assert after == {"p_s_EWR": "EWR_02.ndjson:5"}
        assert rows_of(slow, table) == list(range(10))

    def test_missing_source_is_said_in_the_jobs_own_words(
        self, local_service: LocalService, connect: Connect, table: str, tmp_path: Path
    ) -> None:
        with pytest.raises(AirflowException, match=r"^snowpipe error: SourcePositionError: .*nowhere"):
            load(connect(local_service), tmp_path / "nowhere", table)

    def test_rejected_rows_fail_for_good(
        self, local_service: LocalService, connect: Connect, table: str, tmp_path: Path
    ) -> None:
        source = write_source(tmp_path / "in", {"EWR": 2})
        (source / "EWR" / "EWR_03.ndjson").write_text('{"ID": "no number", "NAME": "x"}\n')

        with pytest.raises(AirflowFailException, match=r"^snowpipe error: RowsRejectedError: .*1 row"):
            load(connect(local_service), source, table)

    def test_token_of_another_format_leaves_the_channel_untouched(
        self, local_service: LocalService, connect: Connect, table: str, tmp_path: Path
    ) -> None:
        append(local_service, table, "p_s_EWR", ["12345"])
        conn_id = connect(local_service)
        _until(lambda: SnowpipeHook(conn_id, table=table).channel_statuses(["p_s_EWR"])["p_s_EWR"].committed)

        with pytest.raises(AirflowFailException, match=r"OffsetTokenError: channel 'p_s_EWR'.*'12345'"):
            load(conn_id, write_source(tmp_path / "in", {"EWR": 2}), table)

        status = SnowpipeHook(conn_id, table=table).channel_statuses(["p_s_EWR"])["p_s_EWR"]
        assert (status.committed, status.rows_inserted) == ("12345", 1)

    def test_kill_ends_spark_and_the_next_run_finishes_the_load(
        self, slow: LocalService, connect: Connect, tmp_path: Path
    ) -> None:
        table, conn_id = make_table(slow, "T"), connect(slow)
        source = write_source(tmp_path / "in", {"EWR": 50})
        operator = stream_operator(conn_id, source, table)
        ended: list[BaseException] = []

        def execute() -> None:
            try:
                operator.execute({"ti": TaskInstance()})  # type: ignore[typeddict-item]
            except AirflowException as error:
                ended.append(error)

        thread = threading.Thread(target=execute)
        thread.start()
        hook = SnowpipeHook(conn_id, table=table)
        _until(lambda: hook.channel_statuses(["p_s_EWR"])["p_s_EWR"].exists)
        family = psutil.Process(operator._hook._submit_sp.pid).children(recursive=True)  # type: ignore[union-attr]

        operator.on_kill()
        thread.join(300)

        assert not thread.is_alive()
        assert len(ended) == 1
        assert family
        _until(lambda: not any(map(runs, family)))
        slow.admin("faults", clear=True)
        load(conn_id, source, table)
        assert rows_of(slow, table) == list(range(100))


def test_a_writer_of_its_own_and_the_sensor_agree(
    local_service: LocalService, connect: Connect, table: str
) -> None:
    with local_service.client(table) as client, Channel.open(client, "own", FileLineOffset) as channel:
        target = FileLineOffset("f", 1)
        channel.append(b'{"ID": 7, "NAME": "x"}\n', target, target, rows=1)
        channel.flush()

        assert sensor(connect(local_service), table, {"own": str(target)}).execute(context()) == {
            "own": "f:1"
        }
    assert rows_of(local_service, table) == [7]


def _until(condition: Callable[[], object], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.1)
