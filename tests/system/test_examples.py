"""The other example DAGs under a real scheduler and triggerer, at night: each loads once over two runs.

Daily, the tests of their operators in ``tests/integration`` prove the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from conftest import Stack
from runs import DagRun

from airflow_provider_snowpipe.streaming.names import channel_name
from tests.checkpoints import shown

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.nightly]


def _done(stack: Stack, dag_id: str, run_id: str, conf: dict[str, Any] | None = None) -> DagRun:
    run = DagRun(stack, dag_id, run_id, conf)
    run.wait()
    return run


def _positions(stack: Stack, table: str, *channels: str) -> list[str | None]:
    with stack.service.client(table) as client:
        found = client.channel_statuses(channels)
    return [shown(found[name].committed) for name in channels]


def test_flood_with_spark(stack: Stack, tmp_path: Path) -> None:
    params = {"table": "FLOODED", "folder": str(tmp_path)}
    first, second = (_done(stack, "flood_with_spark", run_id, params) for run_id in ("first", "second"))
    assert first.xcom("count") == second.xcom("count") == 2_400
    load = first.xcom("load")
    assert (load["rows"], load["rows_loaded"], len(load["files"])) == (2_400, 2_400, 1)
    assert second.xcom("load") == load
    assert stack.service.sql("LIST @FLOODED_FLOOD") == []


def test_files_to_pipe(stack: Stack, tmp_path: Path) -> None:
    params = {"table": "PIPED", "folder": str(tmp_path)}
    runs = [_done(stack, "files_to_pipe", run_id, params) for run_id in ("first", "second")]
    names = [f"2013-01-01/{origin}.csv" for origin in ("EWR", "JFK", "LGA")]
    for run in runs:
        assert run.xcom("count") == 72
        assert run.xcom("ingest", "files") == names
        loaded = {name: one["rows_loaded"] for name, one in run.xcom("loaded").items()}
        assert loaded == dict.fromkeys(names, 24)
    first, second = (run.xcom("stage") for run in runs)
    assert (len(first["uploaded"]), second["uploaded"], len(second["skipped"])) == (3, [], 3)
    assert [run.xcom("pipe")["changed"] for run in runs] == [True, False]


def test_backfill_days(stack: Stack) -> None:
    params = {"table": "BACKFILLED", "stage": "BACKFILLED_DAYS", "first_day": "2013-02-27"}
    days = {"2013-02-27": 72, "2013-02-28": 72}
    first = _done(stack, "backfill_days", "first", {**params, "last_day": "2013-02-28"})
    assert first.xcom("verify") == days
    second = _done(stack, "backfill_days", "second", {**params, "last_day": "2013-03-01"})
    assert second.xcom("verify") == {**days, "2013-03-01": 72}
    loads = stack.service.sql(
        "SELECT FILE_NAME, COUNT(*) AS N FROM INFORMATION_SCHEMA.LOAD_HISTORY "
        "WHERE TABLE_NAME = 'BACKFILLED' GROUP BY 1"
    )
    assert [int(row["N"]) for row in loads] == [1] * 9


def test_load_by_router(stack: Stack) -> None:
    dag_id, table, folder = "load_by_router", "READINGS", stack.folder / "READINGS"
    params = {"table": table, "folder": str(folder), "rows": 0}
    channel = channel_name(dag_id, table, "EWR")
    streamed = _done(stack, dag_id, "trickle", {**params, "rows": 100})
    assert streamed.xcom("load")["path"] == "stream"
    assert _positions(stack, table, channel) == ["2013-01-01.ndjson:100"]

    lines = "".join(f'{{"STATION": "EWR", "READING": {number}}}\n' for number in range(100, 175))
    (folder / "EWR" / "2013-01-02.ndjson").write_text(lines)
    copied = _done(stack, dag_id, "flood", {**params, "path": "copy"})
    done, plan = copied.xcom("load"), copied.xcom("load", "plan")
    assert (done["path"], done["rows_loaded"]) == ("copy", 75)
    assert (plan["path"], plan["is_forced"]) == ("copy", True)
    assert copied.xcom("load", "outcome")["actual"]["rows"] == 75
    assert _positions(stack, table, channel) == ["2013-01-02.ndjson:75"]
    (row,) = stack.service.sql(f"SELECT COUNT(*) AS N, COUNT(DISTINCT STATION, READING) AS D FROM {table}")
    assert (int(row["N"]), int(row["D"])) == (275, 275)


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker: the small one, or Apache Kafka from Maven Central; skipped without both."""
    pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")
    from tests.kafka_broker import KafkaBroker, broker_jars
    from tests.noida_broker import NoidaBroker

    folder = tmp_path_factory.mktemp("broker")
    with ExitStack() as running:
        try:
            yield running.enter_context(NoidaBroker(folder)).address
        except pytest.skip.Exception:
            yield running.enter_context(KafkaBroker(folder, broker_jars())).address


def test_kafka_to_snowflake(stack: Stack, broker: str) -> None:
    from tests.kafka_topics import create_topic, group_offsets, numbered, produce

    # The DAG's own defaults: the scheduler may start a run by its schedule as soon as the DAG is unpaused.
    dag_id, table, topic, group = "kafka_to_snowflake", "EVENTS", "events", "snowpipe-events"
    stack.service.sql(f"DROP TABLE IF EXISTS {table}")  # other tests' rows are of no topic
    create_topic(broker, topic, 2)
    produce(broker, topic, numbered(range(200)), partition=lambda row: row % 2)
    produce(broker, topic, [None], partition=0)  # a tombstone, which the DAG drops and the token passes
    fields = {"conn_type": "kafka", "extra": {"bootstrap.servers": broker}}
    stack.airflow.api.add_connection("kafka_default", fields)
    _done(stack, dag_id, "first")
    assert group_offsets(broker, group, topic, 2) == [101, 100]

    produce(broker, topic, numbered(range(200, 210)), partition=1)
    _done(stack, dag_id, "second")
    stack.airflow.api.pause(dag_id)

    ids = [int(row["ID"]) for row in stack.service.sql(f"SELECT ID FROM {table} ORDER BY ID")]
    assert ids == list(range(210))
    assert group_offsets(broker, group, topic, 2) == [101, 110]
    assert _positions(stack, table, f"{dag_id}_{topic}_0", f"{dag_id}_{topic}_1") == ["100", "109"]
