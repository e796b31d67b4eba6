"""What the data source's tasks do with rows that do not fit, without Spark, against the local service."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_snowpipe.spark.data_source.gates import prepare, settle_batch
from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.data_source.parts import GIVEN_WRITER, BatchIdentity
from airflow_provider_snowpipe.spark.data_source.task import Task
from airflow_provider_snowpipe.streaming.errors import AuthenticationError, ConfigurationError
from tests.spark_job import numbered_name
from tests.spark_session import Door

QUERY = "0000abcd"
BAD = frozenset({0, 7, 8, 51, 198, 199})


@dataclass
class Writes:
    """Batches of numbered rows into one table, each by one task."""

    door: Door
    path: Path

    def write(self, numbers, *, batch=1, bad=BAD, writer=GIVEN_WRITER, die_at=None, **more):
        """Write one batch as Spark would, in Arrow batches of 20 rows; returns its reports."""
        dead = {"onError": "dead_letter", "deadLetterPath": self.path, "partitions": 1}
        options = WriteOptions.parse(self.door.options(**{**dead, **more}))
        prepared = prepare(options, integer_offsets=True)
        identity = None if options.offset_column else BatchIdentity(batch, writer, 1)
        task = Task(options, prepared, identity, 0, 0)
        outcome = task.run(self._batches(list(numbers), bad, die_at))
        return settle_batch(options, [outcome], f"batch={batch}", integer_offsets=True)

    @staticmethod
    def _batches(numbers, bad, die_at):
        for low in range(0, len(numbers), 20):
            some = numbers[low : low + 20]
            if die_at is not None and die_at in some:
                raise ZeroDivisionError("the attempt dies")
            yield pa.record_batch(
                {"ID": pa.array(some, pa.int64()), "N": ["1000" if n in bad else "1" for n in some]}
            )

    def dead_letters(self):
        return [row for file in self.path.rglob("*.parquet") for row in pq.read_table(file).to_pylist()]

    def put_aside(self):
        """The bad rows' numbers, with how often each was put aside."""
        return Counter(json.loads(dead_letter["payload"])["ID"] for dead_letter in self.dead_letters())


@pytest.fixture
def writes(local_service, tmp_path):
    table = numbered_name("TASKS")
    door = Door(local_service, table, tmp_path / "credentials.json", columns="ID NUMBER, N NUMBER(3,0)")
    return Writes(door.create(), tmp_path / "dead letters")


def _good(numbers, bad=BAD):
    return [n for n in numbers if n not in bad]


def test_bad_rows_are_put_aside_once_whatever_dies_and_the_repeat_adds_none(writes):
    for die_at in 60, 199:
        with pytest.raises(ZeroDivisionError):
            writes.write(range(200), die_at=die_at, batchBytes=300)
    (report,) = writes.write(range(200))
    (again,) = writes.write(range(200))

    assert (report.rejected, again.to_token) == (0, report.to_token)
    assert writes.door.ids() == _good(range(200))
    assert writes.put_aside() == dict.fromkeys(BAD, 1)
    found = {json.loads(dead_letter["payload"])["ID"]: dead_letter for dead_letter in writes.dead_letters()}
    assert (found[7]["column"], found[7]["channel"]) == ("N", "ds_0")
    assert found[7]["reason"] == "the value cannot be converted to NUMBER(3,0)"
    assert found[7]["position"].startswith("1:8/")
    assert found[7]["application"] == "ds batch=1"


@pytest.mark.parametrize("column", [None, "ID"], ids=["digest", "offset-column"])
def test_bad_rows_at_the_end_of_a_micro_batch_stay_put_aside(writes, column):
    bad = {18, 19, *range(20, 40), 119}

    def run(batch):
        numbers = range(batch * 40, batch * 40 + 40)
        return writes.write(numbers, batch=batch, bad=bad, writer=QUERY, offsetColumn=column)

    reports = [report for batch in (0, 0, 1, 2, 2) for report in run(batch)]

    if column:
        assert {one["position"] for one in writes.dead_letters()} == set(map(str, bad))
    assert writes.door.ids() == _good(range(120), bad)
    assert writes.put_aside() == dict.fromkeys(bad, 1)
    # The token of the last good rows passes them, so that no repeat of a batch meets them again.
    assert [report.dead_lettered for report in reports] == [22, 0, 0, 1, 0]


def test_rows_go_by_the_sdk_where_a_profile_is_named(writes, tmp_path, pem):
    pytest.importorskip("snowflake.ingest.streaming", reason="the SDK is not installed")
    with pytest.raises(ConfigurationError, match=r"none\.json"):
        writes.write([1], sdkProfile=tmp_path / "none.json")
    service = writes.door.service
    strange = service.write_sdk_profile(tmp_path / "strange.json", private_key=pem)
    with pytest.raises(AuthenticationError, match="sdk_profile") as refused:
        writes.write([1], sdkProfile=strange)
    assert pem.splitlines()[1] not in str(refused.value)
    writes.write([1], sdkProfile=service.write_sdk_profile(tmp_path / "profile.json"))
    assert writes.door.ids() == [1]
