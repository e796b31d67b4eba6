"""The job when a task, its driver or the service dies or refuses: each row is in the table once, in order.

Tasks and drivers are processes that die for real; Java is left out (see ``tests/job_without_spark.py``).
"""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.job_without_spark import without_spark
from tests.local_service import LocalService
from tests.spark_deeds import Deed, Deeds, deeds_of
from tests.spark_groups import GROUPS, ROWS, assert_exact, grouped_job
from tests.spark_job import Finished, SparkJob
from tests.waiting import wait_until

_IN_THE_MIDDLE = Deed("stall", "row", "b", row=200)


@pytest.fixture
def job(admin_service: LocalService, tmp_path: Path) -> SparkJob:
    return without_spark(grouped_job(admin_service, tmp_path), tmp_path / "deeds")


def _let(job: SparkJob, *each: Deed) -> Deeds:
    """Let something happen in the job's runs."""
    return deeds_of(Path(job.env["DEEDS"]), each)


def _interrupted(job: SparkJob, do: Callable[[], object], *stalls: Deed) -> Finished:
    """Do something while tasks of a run stand still."""
    deeds = _let(job, *stalls)
    with job.start(commit_timeout=10.0) as running:
        wait_until(lambda: len(deeds.notes("stall")) == len(stalls), seconds=120, what="tasks that stall")
        do()
        deeds.release()
        return running.wait()


def _assert_reported(finished: Finished) -> None:
    """The report is of a run that loaded all groups."""
    assert finished.code == 0, finished.err[-3000:]
    found = [(one.partition, one.rows, one.committed) for one in finished.report.channels]
    assert found == [(group, ROWS, True) for group in GROUPS]


@pytest.mark.parametrize(
    "death", [Deed("kill-worker", "row", "b", 300), Deed("kill-worker", "commit-wait", "b")]
)
def test_a_task_is_repeated_wherever_it_died(job: SparkJob, death: Deed) -> None:
    job.service.admin("faults", set="commit-delay=1")
    deeds = _let(job, death)
    finished = job.run()
    _assert_reported(finished)
    assert_exact(job)
    assert len(deeds.notes(death.what)) == 1
    assert [note["attempt"] for note in deeds.notes("began") if note["partition"] == "b"] == [0, 1]


def _tasks_that_die(job: SparkJob) -> Finished:
    _let(job, *[Deed("kill-worker", "row", "b", row=200)] * 4)
    return job.run()


def _another_writer(job: SparkJob) -> Finished:
    def open_channel() -> None:
        with job.service.client(job.table) as client:
            client.open_channel(job.channel("b"), fail_on_uncommitted_rows=False)

    job.env["TASK_ATTEMPTS"] = "1"
    return _interrupted(job, open_channel, _IN_THE_MIDDLE)


def _failover(job: SparkJob) -> Finished:
    pipe = str(job.pipe).replace('"', "")
    failed = _interrupted(job, lambda: job.service.admin("failover", pipe=pipe), _IN_THE_MIDDLE)
    job.service.admin("failover", pipe=pipe, back=True)
    return failed


def _refused_credentials(job: SparkJob) -> Finished:
    job.service.admin("faults", set="answer-append=401x1")
    return job.run()


@pytest.mark.parametrize(
    ("fail", "error"),
    [
        (_tasks_that_die, "ExecutorLostError"),
        (_another_writer, "ChannelFencedError"),
        (_failover, "PipeFailedOverError"),
        (_refused_credentials, "AuthenticationError"),
    ],
)
def test_a_run_ends_with_the_reason_and_the_next_one_goes_on(
    job: SparkJob, fail: Callable[[SparkJob], Finished], error: str
) -> None:
    failed = fail(job)
    assert failed.code == 1
    assert failed.report.error_type == error
    (line,) = failed.error_lines
    assert line.startswith(f"snowpipe error: {error}: ")
    assert "Traceback" not in failed.out
    job.load()
    assert_exact(job)


def test_a_driver_that_is_killed_is_resumed_while_its_tasks_still_run(job: SparkJob) -> None:
    job.service.admin("faults", set="commit-delay=1")
    deeds = _let(job, Deed("kill-driver", "received", "b"))
    with job.start() as first:
        assert first.process.wait(120) == -9
        job.load()
        left = [note["pid"] for note in deeds.notes("began")]
        wait_until(lambda: not any(map(psutil.pid_exists, left)), seconds=120, what="the end of all tasks")
    assert len(deeds.notes("kill-driver")) == 1
    assert_exact(job)


@pytest.mark.parametrize("commit_delay", [0, 3600], ids=["some rows are committed", "none is"])
def test_a_service_that_is_killed_and_comes_back_has_every_row_once(job: SparkJob, commit_delay: int) -> None:
    def restart() -> None:
        job.service.kill()
        job.service.start()

    job.service.admin("faults", set=f"commit-delay={commit_delay}")
    finished = _interrupted(job, restart, _IN_THE_MIDDLE, Deed("stall", "received", "c"))
    if finished.code != 0:
        finished = job.run()

    assert finished.code == 0, finished.err[-3000:]
    assert_exact(job)
