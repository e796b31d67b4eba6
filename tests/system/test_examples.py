"""The other example DAGs under a real scheduler and triggerer, at night: each loads once over two runs.

Daily, the tests of their operators in ``tests/integration`` prove the same.
"""

from pathlib import Path
from typing import Any

import pytest
from conftest import Stack
from runs import DagRun

from airflow_provider_snowpipe.streaming.names import channel_name
from tests.checkpoints import shown

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.nightly]


DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")


def _done(stack: Stack, dag_id: str, run_id: str, conf: dict[str, Any] | None = None) -> DagRun:
    run = DagRun(stack, dag_id, run_id, conf)
    run.wait()
    return run


def _positions(stack: Stack, table: str, *channels: str) -> list[str | None]:
    with stack.service.client(table) as client:
        found = client.channel_statuses(channels)
    return [shown(found[name].committed) for name in channels]


def test_flights_to_snowflake(stack: Stack, tmp_path: Path) -> None:
    """Its last task compares what the table holds with the source."""
    run = _done(stack, "flights_to_snowflake", "all", {"table": "FLIGHTS_2013", "data_dir": str(tmp_path)})
    assert run.xcom("stream")["rows"] == sum(one["rows"] for one in run.xcom("verify").values()) == 336_776


@pytest.mark.parametrize(
    ("dag_id", "params", "counted", "rows"),
    [
        ("flood_with_spark", {"table": "FLOODED"}, "count", [2_400] * 2),
        ("files_to_pipe", {"table": "PIPED"}, "count", [72] * 2),
        ("backfill_days", {"table": "BACKFILLED"}, "verify", [dict.fromkeys(DAYS, 72)] * 2),
        ("trickle_or_flood", {"rows": 50, "history": True}, "count", [50, 100]),  # of a file for each run
    ],
)
def test_two_runs_load_once(
    stack: Stack, tmp_path: Path, dag_id: str, params: dict[str, Any], counted: str, rows: list[Any]
) -> None:
    given = {**params, "folder": str(tmp_path)}
    assert [_done(stack, dag_id, run, given).xcom(counted) for run in ("first", "second")] == rows


def test_load_by_router(stack: Stack) -> None:
    dag_id, table, folder = "load_by_router", "READINGS", stack.folder / "READINGS"
    params = {"table": table, "folder": str(folder), "rows": 0}
    channel = channel_name(dag_id, table, "EWR")
    streamed = _done(stack, dag_id, "trickle", {**params, "rows": 100})
    lines = "".join(f'{{"STATION": "EWR", "READING": {number}}}\n' for number in range(100, 175))
    (folder / "EWR" / "2013-01-02.ndjson").write_text(lines)
    copied = _done(stack, dag_id, "flood", {**params, "path": "copy"})
    assert [run.xcom("load")["path"] for run in (streamed, copied)] == ["stream", "copy"]
    assert _positions(stack, table, channel) == ["2013-01-01.ndjson:100"]
    (row,) = stack.service.sql(f"SELECT COUNT(*) AS N, COUNT(DISTINCT STATION, READING) AS D FROM {table}")
    assert (int(row["N"]), int(row["D"])) == (275, 275)


def test_kafka_to_snowflake(stack: Stack, tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")
    from tests.kafka_broker import NoidaBroker
    from tests.kafka_topics import create_topic, group_offsets, numbered, produce

    with NoidaBroker(tmp_path) as running:
        broker = running.address
        # The DAG's own defaults: the scheduler may start a run by its schedule once the DAG is unpaused.
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
