"""Tasks of a local master as threads of the driver."""

import threading
from functools import partial

import pytest

from airflow_provider_snowpipe.spark.driver.local_tasks import LocalTasks, is_local
from airflow_provider_snowpipe.spark.driver.rounds import TaskRounds, one_task_each
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, RetriesExhaustedError
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from tests.memory_source import MemoryPartition, rows


def test_local_master_is_one_without_executors():
    assert all(map(is_local, ("local", "local[*]", "local[2,4]", "local[2, 4]")))
    assert not any(map(is_local, ("local-cluster[2,1,1024]", "local[x]", "spark://local:7077", "yarn")))
    with pytest.raises(ConfigurationError, match="yarn"):
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
        raise RetriesExhaustedError("lost to another writer")
    return item


@pytest.mark.parametrize("times", [2, 3])
def test_task_is_tried_as_often_as_the_master_has_it(times, capsys):
    seen, tasks = [], LocalTasks("local[1,3]")
    work = partial(failing, times, seen)

    if times < 3:
        assert tasks.run(work, [0, 1, 2]) == [0, 1, 2]
    else:
        with pytest.raises(RetriesExhaustedError):
            tasks.run(work, [0, 1, 2])
    assert seen.count(1) == 3
    assert capsys.readouterr().err.count("lost to another writer") == 2


def test_after_a_failure_no_task_begins_and_those_that_run_come_to_their_end():
    failed, ended = threading.Event(), []

    def work(item):
        if item == 1:
            failed.set()
            raise RetriesExhaustedError("lost")
        failed.wait(60)
        ended.append(item)
        return item

    with pytest.raises(RetriesExhaustedError):
        LocalTasks("local[2]").run(work, list(range(50)))
    assert 0 in ended
    assert len(ended) < 49


def test_no_task_is_needed_where_every_channel_is_at_its_end():
    partition = MemoryPartition("0", rows(4))
    assert TaskRounds(LocalTasks("local[2]")).locate({"c": partition}, {"c": IntegerOffset(3)}) == []
