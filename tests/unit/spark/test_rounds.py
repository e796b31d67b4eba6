"""How partitions and queries become tasks, what each may send, and what a round leaves for the next one."""

import pickle
import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from airflow_provider_snowpipe.spark.driver import rounds as rounds_module
from airflow_provider_snowpipe.spark.driver.outcome import TaskFailedError
from airflow_provider_snowpipe.spark.driver.plan import LOCAL_MASTER
from airflow_provider_snowpipe.spark.driver.rounds import FrameRounds, TaskRounds, one_task_each, rounds_of
from airflow_provider_snowpipe.spark.driver.session import LocalTasks
from airflow_provider_snowpipe.spark.source import CHANNEL, LINE, Behind, FrameWork
from airflow_provider_snowpipe.spark.sources.tables.reader import TablePartition
from airflow_provider_snowpipe.spark.task.sink import SinkSettings, Versions, load_batches
from airflow_provider_snowpipe.streaming import errors
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

SETTINGS = SinkSettings(URL, None, PIPE, True, 60.0, BatchLimits(rows=1, requests_per_second=10_000))
PARTITIONS = {f"c{number}": MemoryPartition(str(number), rows(4)) for number in range(3)}
OWN = MemoryFramePartition("p", rows(6))


class QuickPartition(MemoryPartition):
    """One in whose rows the driver searches itself."""

    def is_quick(self, committed):
        return True


@pytest.fixture
def spark():
    return InProcessSpark()


def ids(snowpipe, channel):
    return [row["ID"] for row in snowpipe.channels[channel].rows]


def at(number):
    return None if number is None else IntegerOffset(number)


@pytest.mark.parametrize("quick", [False, True], ids=["tasks", "driver"])
def test_channels_get_their_own_positions_by_one_task_each_and_finished_ones_are_left_out(spark, quick):
    kind = QuickPartition if quick else MemoryPartition
    partitions = {f"c{number}": kind(str(number), rows(4)) for number in range(4)}
    committed = {"c2": at(0), "c1": None, "c3": at(3), "c0": at(2)}

    works = TaskRounds(spark).locate(partitions, committed)

    assert [(work.channel, work.partition, work.committed, work.resume_at) for work in works] == [
        ("c0", partitions["c0"], at(2), 3),
        ("c1", partitions["c1"], None, 0),
        ("c2", partitions["c2"], at(0), 1),
    ]
    assert spark.jobs == ([] if quick else [3])


def test_driver_that_has_read_for_long_leaves_the_rest_to_tasks(spark, monkeypatch):
    partitions = {f"c{number}": QuickPartition(str(number), rows(4)) for number in range(4)}
    clock = iter([0.0, 0.9, 1.0, 1.1])
    monkeypatch.setattr(rounds_module.time, "monotonic", lambda: next(clock))
    works = TaskRounds(spark).locate(partitions, {**dict.fromkeys(partitions, at(1)), "c3": None})
    assert [(work.channel, work.resume_at) for work in works] == [("c0", 2), ("c1", 2), ("c2", 2), ("c3", 0)]
    assert spark.jobs == [2]


def test_position_that_is_gone_names_the_channel_before_anything_is_sent(spark):
    with pytest.raises(errors.SourcePositionError, match=r"'c1'.*position 70"):
        TaskRounds(spark).locate(PARTITIONS, {"c0": None, "c1": at(70), "c2": None})


def test_task_that_was_fenced_is_tried_again_by_spark_and_no_row_doubled(snowpipe):
    snowpipe.fault(after="append", channel="c1", error=error(409, STALE))
    rounds = TaskRounds(InProcessSpark(attempts=2))
    works = rounds.locate(PARTITIONS, dict.fromkeys(PARTITIONS))
    results = rounds.run(SETTINGS, snowpipe.scoped_token(), works)
    assert [one.position for one in results] == [at(3)] * 3
    assert ids(snowpipe, "c1") == [0, 1, 2, 3]


def test_error_that_is_not_ours_stays_as_it_is(spark):
    with pytest.raises(PySparkException, match="ZeroDivisionError"):
        one_task_each(spark, lambda item: 1 // item, [0])


def test_source_decides_how_its_partitions_become_tasks(spark):
    assert isinstance(rounds_of(MemoryFrameSource([OWN]), spark), FrameRounds)
    for source in (MemorySource([]), None):
        assert isinstance(rounds_of(source, spark), TaskRounds)


def test_of_the_running_jobs_the_tasks_of_their_last_stages_count():
    jobs = {1: SimpleNamespace(stageIds=[4, 7]), 2: None, 3: SimpleNamespace(stageIds=[])}
    stages = {4: SimpleNamespace(numCompletedTasks=50), 7: SimpleNamespace(numCompletedTasks=3)}
    tracker = SimpleNamespace(getActiveJobsIds=jobs.keys, getJobInfo=jobs.get, getStageInfo=stages.get)
    assert TaskRounds(SimpleNamespace(statusTracker=lambda: tracker)).finished_channels(10) == 13


class TestConnect:
    """A session of Spark Connect, whose server stands between this process and the executors."""

    @pytest.fixture
    def session(self, monkeypatch, spark):
        session = type("Session", (), {"__module__": "pyspark.sql.connect.session"})()

        def one_task_each(asked, work, items):
            assert asked is session
            return spark.parallelize(items, len(items)).map(work).collect()

        monkeypatch.setattr(rounds_module, "one_connect_task_each", one_task_each)
        return session

    def executors_run(self, monkeypatch, **versions):
        """Let what runs after the driver's check of its own versions run with others."""
        here = Versions.here()
        found = iter([here])
        monkeypatch.setattr(Versions, "here", lambda: next(found, replace(here, **versions)))

    @pytest.mark.parametrize("over_connect", [False, True])
    def test_executor_of_another_version_is_refused(self, spark, session, monkeypatch, over_connect):
        self.executors_run(monkeypatch, package="0.0.0")
        work = []
        with pytest.raises((TaskFailedError, errors.ConfigurationError), match=r"0\.0\.0"):
            one_task_each(session if over_connect else spark, work.append, ["item"])
        assert work == []

    def test_each_item_is_a_task_whatever_pyspark_the_server_has(self, session, monkeypatch):
        self.executors_run(monkeypatch, pyspark="0.1.0")
        assert one_task_each(session, str, [1, 2]) == ["1", "2"]
        assert TaskRounds(session).finished_channels(10) == 10


@pytest.fixture
def run(snowpipe):
    """One round of a query, from one committed position for all or by works; and what is left."""

    def run(source, committed=None, works=None):
        rounds = FrameRounds(None, source)
        partitions = {f"c{one.name}": one for one in source.own}
        if works is None:
            works = rounds.locate(partitions, dict.fromkeys(partitions, committed))
        results = rounds.run(SETTINGS, snowpipe.scoped_token(), works)
        return results, rounds.unfinished(works, results)

    return run


class TestQuery:
    def test_is_asked_for_the_channels_that_are_not_at_their_end_and_loads_them(self, snowpipe, spark):
        partitions = {f"c{number}": MemoryFramePartition(str(number), rows(4)) for number in range(3)}
        source = MemoryFrameSource(list(partitions.values()))
        snowpipe.channel("c0", **loaded(1, 2, binding=binding_of("0")))
        rounds = rounds_of(source, spark)
        works = rounds.locate(partitions, {"c0": at(1), "c1": at(3), "c2": None})
        results = rounds.run(SETTINGS, snowpipe.scoped_token(), works)
        assert source.asked == [{"c0": at(1), "c2": None}]
        found = [(one.channel, one.rows, one.position) for one in results]
        assert found == [("c0", 2, at(3)), ("c2", 4, at(3))]

    def test_second_round_asks_the_source_from_the_new_committed_position_on(self, snowpipe, run):
        source = MemoryFrameSource([replace(OWN, seconds_per_part=700.0)])
        first, left = run(source)
        second, rest = run(source, works=left)
        assert [one.complete for one in (*first, *second)] == [False, True]
        assert source.asked == [{"cp": None}, {"cp": at(2)}]
        assert (ids(snowpipe, "cp"), rest) == ([0, 1, 2, 3, 4, 5], [])

    def test_rows_that_another_attempt_committed_meanwhile_are_not_sent_again(self, snowpipe, run):
        snowpipe.channel("cp", **loaded(3, 4))
        run(MemoryFrameSource([OWN]))
        assert ids(snowpipe, "cp") == [4, 5]

    def test_channel_that_has_less_than_the_query_was_asked_for_gets_no_row(self, snowpipe, run):
        snowpipe.channel("cp", **loaded(1, 2))
        (result,), _ = run(MemoryFrameSource([OWN]), works=[FrameWork("cp", OWN, at(3), at(5))])
        assert (result.error_type, snowpipe.appends()) == ("TokenWentBackError", [])

    def test_channel_without_a_row_is_not_opened(self, snowpipe, run):
        (result,), left = run(MemoryFrameSource([OWN]), works=[FrameWork("cp", OWN, at(5), at(5))])
        found = (result.channel, result.complete, result.error_type, result.rows)
        assert (found, left, snowpipe.calls) == (("cp", True, None, 0), [], [])

    @pytest.mark.parametrize(
        ("at_open", "loses", "reached"), [(None, 2, "3"), (None, 6, "none"), (3, 2, "3")]
    )
    def test_that_ends_before_its_fixed_end_is_no_success(self, snowpipe, run, at_open, loses, reached):
        snowpipe.channel("cp", **loaded(at_open, 4))
        source = MemoryFrameSource([OWN], loses=loses)
        (result,), _ = run(source, works=[FrameWork("cp", OWN, at(at_open), at(5))])
        assert (result.channel, result.error_type) == ("cp", "SourcePositionError")
        assert f"ended at {reached}" in result.error
        assert "position 5" in result.error

    def test_error_of_a_task_is_not_hidden_by_the_missing_end(self, snowpipe, run):
        snowpipe.channel("cp", committed="a.log:1")
        (result,), _ = run(MemoryFrameSource([OWN]))
        assert result.error_type == "OffsetTokenError"

    def test_has_as_many_rows_behind_as_were_counted_until_the_end_is_committed(self):
        whole = TablePartition("all", binding_of(), "ID")
        counted = replace(whole, rows=4, end=at(9))
        assert counted.behind(None) == counted.behind(at(8)) == Behind(None, 4)
        assert counted.behind(at(9)) == counted.behind(at(10)) == Behind(0, 0)
        assert whole.behind(at(8)).bytes is None

    def test_over_a_session_that_shows_no_plans_is_refused(self):
        remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
        source, used = MemoryFrameSource([OWN]), []
        source.use = used.append
        with pytest.raises(errors.ConfigurationError, match="Spark Connect"):
            source.with_spark(remote)
        assert (source.with_spark(lambda: 5), used) == (source, [5])


def batch_of(channels, numbers):
    lines = pa.array([f'{{"ID":{number}}}\n' for number in numbers], pa.string())
    return pa.record_batch({CHANNEL: pa.array(channels, pa.int64()), LINE: lines, "number": numbers})


class TestTaskOfAQuery:
    @pytest.fixture
    def load(self, snowpipe):
        def load(works, *batches):
            answers = list(load_batches(SETTINGS, snowpipe.scoped_token(), works, iter(batches)))
            return [pickle.loads(one.column(0)[0].as_py()) for one in answers]  # noqa: S301  made here

        return load

    def test_with_rows_of_two_channels_sends_none_of_the_others(self, snowpipe, load):
        works = [FrameWork("cp", OWN, None), FrameWork("cq", OWN, None)]
        (result,) = load(works, batch_of([0, 1], [0, 1]))
        assert (result.error_type, snowpipe.did("append")) == ("ContinuityError", [])
        assert "rows of ['cq']" in result.error

    @pytest.mark.parametrize("gaps_legal", [True, False])
    def test_loads_every_batch_and_the_partition_allows_gaps(self, snowpipe, load, gaps_legal):
        works = [FrameWork("cp", replace(OWN, gaps_legal=gaps_legal), None)]
        (result,) = load(works, *(batch_of([0], [number]) for number in (0, 1, 5)))
        assert result.error_type == (None if gaps_legal else "ContinuityError")
        assert not gaps_legal or ids(snowpipe, "cp") == [0, 1, 5]


def test_local_master_is_one_without_executors():
    assert all(map(LOCAL_MASTER.fullmatch, ("local", "local[*]", "local[2,4]", "local[2, 4]")))
    assert not any(
        map(LOCAL_MASTER.fullmatch, ("local-cluster[2,1,1024]", "local[x]", "spark://local:7077", "yarn"))
    )
    with pytest.raises(errors.ConfigurationError, match="yarn"):
        LocalTasks("yarn")


@pytest.mark.parametrize(("master", "at_once"), [("local", 1), ("local[3]", 3)])
def test_as_many_tasks_run_at_once_as_the_master_has_threads(master, at_once):
    together = threading.Barrier(at_once)
    tasks = LocalTasks(master)

    def work(item):
        together.wait(60)
        return item, threading.current_thread() is threading.main_thread()

    assert one_task_each(tasks, work, list(range(6))) == [(number, False) for number in range(6)]
    assert tasks.finished == 6


def failing(times, seen, item):
    """Return the item; 1 fails so often before."""
    seen.append(item)
    if item == 1 and seen.count(1) <= times:
        raise errors.RetriesExhaustedError("lost to another writer")
    return item


@pytest.mark.parametrize("times", [2, 3])
def test_task_is_tried_as_often_as_the_master_has_it(times, capsys):
    seen, tasks = [], LocalTasks("local[1,3]")
    work = partial(failing, times, seen)
    if times < 3:
        assert tasks.run(work, [0, 1, 2]) == [0, 1, 2]
    else:
        with pytest.raises(errors.RetriesExhaustedError):
            tasks.run(work, [0, 1, 2])
    assert seen.count(1) == 3
    assert capsys.readouterr().err.count("lost to another writer") == 2


def test_after_a_failure_no_task_begins_and_those_that_run_come_to_their_end():
    failed, ended = threading.Event(), []

    def work(item):
        if item == 1:
            failed.set()
            raise errors.RetriesExhaustedError("lost")
        failed.wait(60)
        ended.append(item)
        return item

    with pytest.raises(errors.RetriesExhaustedError):
        LocalTasks("local[2]").run(work, list(range(50)))
    assert 0 in ended
    assert len(ended) < 49
