"""Channels that are quiet for long: the service deletes them after 30 days, and no row is lost or doubled."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.spark.data_source.gates import prepare, settle_batch
from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.data_source.task import Task
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from tests.iceberg_tables import IcebergTable
from tests.loaded_folder import Loaded, variables
from tests.local_connection import connect, context, ids, make_table
from tests.local_service import LocalService
from tests.spark_session import Door
from tests.waiting import wait_until

__all__ = ["variables"]

DAY = dt.timedelta(days=1)


class Days:
    """A load, and the days that have passed."""

    def __init__(self, load: Loaded) -> None:
        self.load, self.after = load, dt.timedelta()

    def run(self, **options: Any) -> None:
        self.load.run(after=self.after, **options)

    def of(self, name: str, source: dict[str, Any]) -> Days:
        """A load of another source into a table of its own, with the same days."""
        load = self.load
        other = Loaded(load.service, make_table(load.service, name), load.conn_id, load.folder)
        other.other = source_spec(source)
        return Days(other)

    def passes(self, days: int) -> None:
        self.load.service.admin("clock", move=days * DAY.total_seconds())
        self.after += days * DAY

    @property
    def is_whole(self) -> bool:
        """True where each row is in the table once."""
        table = ids(self.load.service, self.load.table)
        return table == list(range(next(self.load.ids)))


@pytest.fixture
def days(
    admin_service: LocalService,
    set_connection: Any,
    variables: dict[str, str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Days:
    table = make_table(admin_service, re.sub(r"\W+", "_", request.node.name.upper()))
    return Days(Loaded(admin_service, table, connect(admin_service, set_connection), tmp_path / "src"))


def test_a_partition_that_was_deleted_meanwhile_is_refused_and_goes_on_where_it_stood(
    days: Days, variables: dict[str, str]
) -> None:
    for name, has_record in (("1", True), ("3", False)):
        days.load.write(f"a/{name}.ndjson")
        days.run()
        days.passes(31)
        if not has_record:
            variables.clear()  # in another Airflow
        days.load.write(f"a/{name}b.ndjson")

        with pytest.raises(SourcePositionError, match="30 days"):
            days.run()
        days.run(rebind="continue")

    assert days.is_whole


def test_quiet_partitions_of_files_tables_topics_writes_and_appends_are_kept_by_jobs_that_run(
    days: Days, tmp_path: Path
) -> None:
    pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")
    from tests.kafka_topics import MockCluster, numbered, produce

    service, cluster = days.load.service, MockCluster()
    cluster.make_topic("quiet")
    table = IcebergTable(tmp_path / "lake", partitioned=True)
    kafka = {"kind": "kafka", "bootstrap_servers": cluster.address, "topics": ["quiet"]}
    lake, topic = days.of("LAKE", table.source(partition_by="FILE")), days.of("TOPIC", kafka)
    door = Door(service, "WRITTEN", tmp_path / "credentials.json", columns="ID NUMBER, K VARCHAR").create()
    door.common = {"offsetBackup": str(tmp_path / "offsets.json")}
    appended = make_table(service, "APPENDED")
    written = {"quiet": [1], "daily": []}

    def append(rows: int, channel: str = "a", *, waits: bool = True) -> None:
        SnowpipeAppendRowsOperator(
            task_id="t", table=appended, channel=channel, rows=[{"ID": one} for one in range(rows)],
            token_column="ID", snowflake_conn_id=days.load.conn_id, wait_for_commit=waits,
        ).execute(context())  # fmt: skip

    def all_jobs(rows: int) -> None:
        append(rows)
        write(door, written)
        days.run()
        for one in (lake, topic):
            one.after = days.after
            one.run()

    table.append([1])
    days.load.write("quiet/1.ndjson")
    produce(cluster.address, "quiet", numbered([1]), partition=1)
    for day in range(0, 40, 8):
        table.append([2 * day])
        produce(cluster.address, "quiet", numbered([2 * day]), partition=0)
        written["daily"].append(2 * day)
        days.load.write("daily/all.ndjson", rows=1)
        all_jobs(rows=3)
        days.passes(8)
    table.append([3])
    produce(cluster.address, "quiet", numbered([3]), partition=1)
    written["quiet"].append(3)
    days.load.write("quiet/2.ndjson")
    all_jobs(rows=4)

    expected = sorted([1, 3, *range(0, 80, 16)])
    assert [ids(service, one) for one in ("LAKE", "TOPIC", "WRITTEN")] == [expected] * 3
    assert ids(service, appended) == [0, 1, 2, 3]
    assert days.is_whole
    append(2, "once", waits=False)
    wait_until(lambda: ids(service, appended) == [0, 0, 1, 1, 2, 3])
    days.passes(31)
    with pytest.raises(AirflowFailException, match=r"'once'.*30 days"):
        append(2, "once")
    for one in (lake, topic):
        one.after = days.after
        with pytest.raises(SourcePositionError, match="30 days"):
            one.run()
    with pytest.raises(SourcePositionError, match="30 days"):
        write(door, written)
    assert ids(service, "WRITTEN") == expected


def write(door: Door, numbers: dict[str, list[int]]) -> None:
    """Write all rows as a DataFrame with a channel for each key, as Spark would: those of before, too."""
    options = WriteOptions.parse(door.options(channelColumn="K", offsetColumn="ID"))
    prepared = prepare(options, integer_offsets=True)
    task = Task(options, prepared, None, 0, 0)
    batches = (pa.record_batch({"ID": some, "K": [key] * len(some)}) for key, some in sorted(numbers.items()))
    settle_batch(options, [task.run(batches)], "batch", integer_offsets=True)
