"""How partitions become tasks, and what a round leaves for the next one."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from airflow_provider_snowpipe.spark.driver import rounds as rounds_module
from airflow_provider_snowpipe.spark.driver.outcome import TaskFailedError
from airflow_provider_snowpipe.spark.driver.rounds import FrameRounds, TaskRounds, one_task_each, rounds_of
from airflow_provider_snowpipe.spark.source import FrameWork
from airflow_provider_snowpipe.spark.task.sink import PartitionResult, SinkSettings
from airflow_provider_snowpipe.spark.task.work import Versions
from airflow_provider_snowpipe.streaming.errors import (
    ChannelFencedError,
    ConfigurationError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from tests.checkpoints import binding_of, loaded
from tests.fake_snowpipe import PIPE, STALE, URL, error
from tests.memory_source import (
    InProcessSpark,
    MemoryFramePartition,
    MemoryFrameSource,
    MemoryPartition,
    MemorySource,
    rows,
)

SETTINGS = SinkSettings(URL, None, PIPE, True, 60.0, BatchLimits(requests_per_second=10_000))
PARTITIONS = {f"c{number}": MemoryPartition(str(number), rows(4)) for number in range(3)}


@pytest.fixture
def spark():
    return InProcessSpark()


def test_channels_with_a_token_are_located_by_one_task_each_and_finished_ones_left_out(spark):
    committed = {"c0": IntegerOffset(1), "c1": IntegerOffset(3), "c2": None}

    works = TaskRounds(spark).locate(PARTITIONS, committed)

    assert [(work.channel, work.committed, work.resume_at) for work in works] == [
        ("c0", IntegerOffset(1), 2), ("c2", None, 0),
    ]  # fmt: skip
    assert spark.jobs == [2]


@pytest.mark.parametrize("quick", [False, True], ids=["tasks", "driver"])
def test_every_channel_gets_its_own_position_in_whichever_order_the_tokens_come(spark, quick):
    kind = QuickPartition if quick else MemoryPartition
    partitions = {name: kind(one.name, one.rows) for name, one in PARTITIONS.items()}
    committed = {"c2": IntegerOffset(0), "c1": None, "c0": IntegerOffset(2)}

    works = TaskRounds(spark).locate(partitions, committed)

    assert [(work.channel, work.partition, work.committed, work.resume_at) for work in works] == [
        ("c0", partitions["c0"], IntegerOffset(2), 3),
        ("c1", partitions["c1"], None, 0),
        ("c2", partitions["c2"], IntegerOffset(0), 1),
    ]
    assert spark.jobs == ([] if quick else [2])


class QuickPartition(MemoryPartition):
    """One in whose rows the driver searches itself."""

    def is_quick(self, committed):
        return True


def test_position_that_is_gone_names_the_channel_before_anything_is_sent(spark):
    with pytest.raises(SourcePositionError, match=r"'c1'.*position 70"):
        TaskRounds(spark).locate(PARTITIONS, {"c0": None, "c1": IntegerOffset(70), "c2": None})


def test_task_that_was_fenced_is_tried_again_by_spark_and_no_row_doubled(snowpipe):
    spark = InProcessSpark(attempts=2)
    snowpipe.fault(after="append", channel="c1", error=error(409, STALE))
    rounds = TaskRounds(spark)

    results = rounds.run(
        SETTINGS, snowpipe.scoped_token(), rounds.locate(PARTITIONS, dict.fromkeys(PARTITIONS))
    )

    assert [one.position for one in results] == [IntegerOffset(3)] * 3
    assert [row["ID"] for row in snowpipe.channels["c1"].rows] == [0, 1, 2, 3]


def test_error_that_is_not_ours_stays_as_it_is(spark):
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="ZeroDivisionError"):
        one_task_each(spark, lambda item: 1 // item, [0])


def test_executor_of_another_version_is_refused_before_it_works(spark, monkeypatch):
    here = Versions.here()
    work = []
    versions = iter([here, replace(here, package="0.0.0")])
    monkeypatch.setattr(Versions, "here", lambda: next(versions))

    with pytest.raises((TaskFailedError, ConfigurationError), match=r"0\.0\.0"):
        one_task_each(spark, work.append, ["item"])

    assert work == []


@pytest.mark.parametrize(
    ("before", "reached", "after"), [(None, 4, 4), (2, 4, 4), (2, None, 2), (None, None, None), (0, None, 0)]
)
def test_next_round_of_a_query_goes_on_from_the_new_committed_position(before, reached, after):
    def position(number):
        return None if number is None else IntegerOffset(number)

    work = FrameWork("c", None, position(before), IntegerOffset(9))
    result = PartitionResult("c", position(reached), complete=False)

    (again,) = FrameRounds(None, None).unfinished([work], [result])

    assert again == replace(work, committed=position(after))


class Tracker:
    """Spark's status tracker: one job whose last stage loads, one that has ended, one without a stage."""

    def getActiveJobsIds(self):  # noqa: N802  Spark's name
        return [1, 2, 3]

    def getJobInfo(self, job):  # noqa: N802  Spark's name
        return {1: SimpleNamespace(stageIds=[4, 5]), 2: None, 3: SimpleNamespace(stageIds=[])}[job]

    def getStageInfo(self, stage):  # noqa: N802  Spark's name
        return SimpleNamespace(numCompletedTasks=stage)


def test_finished_channels_are_those_before_and_those_of_the_loading_stage():
    rounds = TaskRounds(SimpleNamespace(statusTracker=Tracker))

    assert rounds.finished_channels(10) == 15


class TestConnect:
    """A session of Spark Connect, whose server stands between this process and the executors."""

    @pytest.fixture
    def session(self, monkeypatch):
        session = type("Session", (), {"__module__": "pyspark.sql.connect.session"})()

        def one_task_each(asked, work, items):
            assert asked is session
            return InProcessSpark().parallelize(items, len(items)).map(work).collect()

        monkeypatch.setattr(rounds_module, "one_connect_task_each", one_task_each)
        return session

    def executors_run(self, monkeypatch, **versions):
        """Let what runs after the driver's check of its own versions run with others."""
        here = Versions.here()
        found = iter([here])
        monkeypatch.setattr(Versions, "here", lambda: next(found, replace(here, **versions)))

    def test_executor_with_another_version_of_this_package_is_refused(self, session, monkeypatch):
        self.executors_run(monkeypatch, package="0.0.0")

        with pytest.raises((TaskFailedError, ConfigurationError), match=r"0\.0\.0"):
            one_task_each(session, str, [1])

    def test_running_tasks_are_not_counted(self, session):
        assert TaskRounds(session).finished_channels(10) == 10

    def test_each_item_is_a_task_whatever_pyspark_the_server_has(self, session, monkeypatch):
        self.executors_run(monkeypatch, pyspark="0.1.0")

        assert one_task_each(session, str, [1, 2]) == ["1", "2"]

    def test_error_of_a_task_is_raised_as_it_was_there(self, session):
        def fail(_):
            raise SourcePositionError("gone")

        with pytest.raises(TaskFailedError, match="gone") as failed:
            one_task_each(session, fail, [1])

        assert failed.value.error_type == "SourcePositionError"


def test_query_is_asked_for_the_channels_that_are_not_at_their_end_and_loads_them(snowpipe, spark):
    partitions = {f"c{number}": MemoryFramePartition(str(number), rows(4)) for number in range(3)}
    source = MemoryFrameSource(list(partitions.values()))
    committed = {"c0": IntegerOffset(1), "c1": IntegerOffset(3), "c2": None}
    snowpipe.channel("c0", **loaded(1, 2, binding=binding_of("0")))
    rounds = rounds_of(source, spark)

    works = rounds.locate(partitions, committed)
    results = rounds.run(SETTINGS, snowpipe.scoped_token(), works)

    assert source.asked == [{"c0": IntegerOffset(1), "c2": None}]
    assert [(one.channel, one.rows, one.position) for one in results] == [
        ("c0", 2, IntegerOffset(3)), ("c2", 4, IntegerOffset(3)),
    ]  # fmt: skip


def test_driver_that_has_read_for_long_leaves_the_rest_to_tasks(spark, monkeypatch):
    partitions = {f"c{number}": QuickPartition(str(number), rows(4)) for number in range(4)}
    clock = iter([0.0, 0.9, 1.0, 1.1])
    monkeypatch.setattr(rounds_module.time, "monotonic", lambda: next(clock))
    committed = {**dict.fromkeys(partitions, IntegerOffset(1)), "c3": None}

    works = TaskRounds(spark).locate(partitions, committed)

    assert [(work.channel, work.resume_at) for work in works] == [("c0", 2), ("c1", 2), ("c2", 2), ("c3", 0)]
    assert spark.jobs == [2]


def test_source_decides_how_its_partitions_become_tasks(spark):
    frames = MemoryFrameSource([MemoryFramePartition("p", rows(1))])

    assert isinstance(rounds_of(frames, spark), FrameRounds)
    for source in (frames, None):
        assert rounds_of(source, SimpleNamespace(statusTracker=Tracker)).finished_channels(10) == 15
    assert isinstance(rounds_of(MemorySource([]), spark), TaskRounds)
    assert isinstance(rounds_of(None, spark), TaskRounds)


def test_error_of_a_task_that_failed_for_good_is_reported_as_it_was_there(snowpipe, spark):
    snowpipe.fault(before="append", error=error(409, STALE))
    rounds = TaskRounds(spark)

    with pytest.raises(TaskFailedError, match="another writer") as failed:
        rounds.run(SETTINGS, snowpipe.scoped_token(), rounds.locate(PARTITIONS, dict.fromkeys(PARTITIONS)))

    assert failed.value.error_type == ChannelFencedError.__name__
