"""Rows of a query on their way into channels: rounds, ends, and tasks that get what is not theirs."""

import pickle
from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.driver.rounds import FrameRounds
from airflow_provider_snowpipe.spark.source import CHANNEL, LINE, Behind, FrameWork
from airflow_provider_snowpipe.spark.sources.tables.reader import TablePartition
from airflow_provider_snowpipe.spark.task.sink import SinkSettings
from airflow_provider_snowpipe.spark.task.work import load_batches
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from tests.checkpoints import binding_of, loaded
from tests.fake_snowpipe import PIPE, URL
from tests.memory_source import MemoryFramePartition, MemoryFrameSource, MemoryPartition, rows

SETTINGS = SinkSettings(URL, None, PIPE, True, 60.0, BatchLimits(rows=1, requests_per_second=10_000))
OWN = MemoryFramePartition("p", rows(6))


@pytest.fixture
def run(snowpipe):
    def run(source, committed, works=None):
        rounds = FrameRounds(None, source)
        partitions = {f"c{one.name}": one for one in source.own}
        if works is None:
            works = rounds.locate(partitions, {name: committed for name in partitions})
        results = rounds.run(SETTINGS, snowpipe.scoped_token(), works)
        return results, rounds.unfinished(works, results)

    return run


def ids(snowpipe, channel="cp"):
    return [row["ID"] for row in snowpipe.channels[channel].rows]


def test_query_brings_each_channel_its_own_rows(snowpipe, run):
    source = MemoryFrameSource([OWN, replace(OWN, name="q", rows=rows(1))])

    results, left = run(source, None)

    assert [(one.channel, one.rows, one.position) for one in results] == [
        ("cp", 6, IntegerOffset(5)), ("cq", 1, IntegerOffset(0)),
    ]  # fmt: skip
    assert (ids(snowpipe), ids(snowpipe, "cq"), left) == ([0, 1, 2, 3, 4, 5], [0], [])


def test_rows_that_another_attempt_committed_meanwhile_are_not_sent_again(snowpipe, run):
    snowpipe.channel("cp", **loaded(3, 4))

    run(MemoryFrameSource([OWN]), None)

    assert ids(snowpipe) == [4, 5]


def test_channel_that_has_less_than_the_query_was_asked_for_gets_no_row(snowpipe, run):
    snowpipe.channel("cp", **loaded(1, 2))

    (result,), _ = run(
        MemoryFrameSource([OWN]), None, [FrameWork("cp", OWN, IntegerOffset(3), IntegerOffset(5))]
    )

    assert (result.error_type, snowpipe.appends()) == ("TokenWentBackError", [])


def test_rows_behind_are_those_that_were_counted_until_the_end_is_committed():
    eight, nine, ten = map(IntegerOffset, (8, 9, 10))
    whole = TablePartition("all", binding_of(), "ID", "integer")
    counted = replace(whole, rows=4, end=nine)

    assert counted.behind(None) == counted.behind(eight) == Behind(None, 4)
    assert counted.behind(nine) == counted.behind(ten) == Behind(0, 0)
    assert whole.behind(eight).bytes is None


def test_channel_without_a_row_is_not_opened(snowpipe, run):
    source = MemoryFrameSource([OWN])
    work = FrameWork("cp", OWN, IntegerOffset(5), IntegerOffset(5))

    (result,), left = run(source, None, [work])

    assert (result.channel, result.complete, result.error_type, result.rows) == ("cp", True, None, 0)
    assert left == []
    assert snowpipe.calls == []


@pytest.mark.parametrize(("loses", "reached"), [(2, "3"), (6, "none")])
def test_query_that_ends_before_the_end_that_was_fixed_is_no_success(run, loses, reached):
    (result,), _ = run(MemoryFrameSource([OWN], loses=loses), None)

    assert (result.channel, result.error_type) == ("cp", "SourcePositionError")
    assert f"ended at {reached}" in result.error
    assert "position 5" in result.error


def test_query_that_has_lost_what_was_committed_before_is_no_success(snowpipe, run):
    snowpipe.channel("cp", **loaded(3, 4))
    work = FrameWork("cp", OWN, IntegerOffset(3), IntegerOffset(5))

    (result,), _ = run(MemoryFrameSource([OWN], loses=2), None, [work])

    assert result.error_type == "SourcePositionError"


def test_error_of_a_task_is_not_hidden_by_the_missing_end(snowpipe, run):
    snowpipe.channel("cp", committed="a.log:1")

    (result,), _ = run(MemoryFrameSource([OWN]), None)

    assert result.error_type == "OffsetTokenError"


def test_task_with_rows_of_two_channels_sends_none_of_the_others(snowpipe):
    works = [FrameWork("cp", OWN, None), FrameWork("cq", OWN, None)]
    mixed = pa.record_batch({CHANNEL: [0, 1], LINE: ['{"ID":0}\n', '{"ID":1}\n'], "number": [0, 1]})

    (batch,) = load_batches(SETTINGS, snowpipe.scoped_token(), works, iter([mixed]))

    assert b"ContinuityError" in batch.column(0)[0].as_py()
    assert b"rows of ['cq']" in batch.column(0)[0].as_py()
    assert snowpipe.did("append") == []


@pytest.mark.parametrize("gaps_legal", [True, False])
def test_every_batch_is_loaded_and_gaps_between_them_are_the_partitions_to_allow(snowpipe, gaps_legal):
    works = [FrameWork("cp", replace(OWN, gaps_legal=gaps_legal), None)]
    batches = [
        pa.record_batch({CHANNEL: [0], LINE: [f'{{"ID":{number}}}\n'], "number": [number]})
        for number in (0, 1, 5)
    ]

    (batch,) = load_batches(SETTINGS, snowpipe.scoped_token(), works, iter(batches))

    result = pickle.loads(batch.column(0)[0].as_py())  # noqa: S301  made here
    assert result.error_type == (None if gaps_legal else "ContinuityError")
    assert not gaps_legal or ids(snowpipe) == [0, 1, 5]


def test_session_that_shows_no_plans_is_refused():
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    source = MemoryFrameSource([OWN])
    used = []
    source.use = used.append

    with pytest.raises(ConfigurationError, match="Spark Connect"):
        source.with_spark(remote)
    assert (source.with_spark(lambda: 5), used) == (source, [5])


def test_empty_batches_are_passed_over(snowpipe):
    empty = pa.record_batch({CHANNEL: pa.array([], pa.int64()), LINE: pa.array([], pa.string())})

    assert list(load_batches(SETTINGS, snowpipe.scoped_token(), [], iter([empty, empty]))) == []


def test_second_round_asks_the_source_from_the_new_committed_position_on(snowpipe, run):
    source = MemoryFrameSource([replace(OWN, seconds_per_part=700.0)])

    first, left = run(source, None)
    second, rest = run(source, None, left)

    assert [one.complete for one in (*first, *second)] == [False, True]
    assert source.asked == [{"cp": None}, {"cp": IntegerOffset(2)}]
    assert (ids(snowpipe), rest) == ([0, 1, 2, 3, 4, 5], [])


def test_only_partitions_of_a_query_become_its_works():
    source = MemoryFrameSource([OWN])
    source.locate = list
    partitions = {"a": OWN, "b": MemoryPartition("b", rows(1))}

    works = FrameRounds(None, source).locate(partitions, {"a": IntegerOffset(2), "b": None})

    assert works == [FrameWork("a", OWN, IntegerOffset(2))]
