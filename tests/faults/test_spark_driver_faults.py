"""The job under ``spark-submit`` on a cluster whose driver dies, at night.

Every day the same runs without Java (``test_job_faults.py``), and once with it (``test_worker_death.py``).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_snowpipe.operators.submission import launch_environment
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.spark_cluster import HOSTS, StandaloneCluster, spark_home
from tests.spark_deeds import POINTS, Deed, deeds_of
from tests.spark_groups import GROUPS, ROWS, assert_exact, seeds
from tests.spark_job import SparkJob, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

_TESTS = Path(__file__).parents[1]
_MOST_RUNS = 5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(tmp_path_factory.mktemp("cluster"), {"PYTHONPATH": str(_TESTS.parent)}, HOSTS)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture
def submitted(job: SparkJob, tmp_path: Path) -> SparkJob:
    """A job whose tasks pass the points of faults."""
    job.application = _TESTS / "spark_job_with_deeds.py"
    job.conf = {"spark.executor.memory": "512m", "spark.driver.host": HOSTS[0]}
    job.env = {
        **launch_environment(tmp_path / "java"),
        "PYTHONPATH": str(_TESTS.parent),
        "DEEDS": str(tmp_path / "deeds"),
    }
    deeds_of(tmp_path / "deeds", [])
    return job


@pytest.mark.parametrize("seed", seeds(rounds=1))
def test_driver_killed_at_a_seeded_point_is_resumed_by_the_next_run(
    submitted: SparkJob, cluster: StandaloneCluster, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    point = draw.choice(POINTS)
    # A deed counts the rows of an attempt. One that follows the other death has at least half of them left,
    # if that came before this row.
    row = draw.randrange(0, ROWS // 2, 50) if point == "row" else 0
    death = Deed("kill-driver", point, draw.choice(GROUPS), row)
    what = draw.choice(["kill-worker", "kill-executor"])
    other = Deed(what, "row", draw.choice(GROUPS), draw.randrange(0, ROWS, 50))
    deeds = deeds_of(tmp_path / "deeds", [death, other])
    submitted.service.admin("faults", set=f"commit-delay={draw.choice([0.1, 1, 2])}")

    codes: list[int] = []
    while 0 not in codes:
        finished = submitted.run(master=cluster.url)
        codes.append(finished.code)
        assert len(codes) <= _MOST_RUNS, finished.out[-2000:] + finished.err[-3000:]

    assert len(deeds.notes("kill-driver")) == 1, deeds.each
    assert codes == [-9, 0]
    assert_exact(submitted)


def test_job_switches_speculation_off_whatever_its_submitter_sets(
    submitted: SparkJob, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    deeds = deeds_of(tmp_path / "deeds", [Deed("stall", "row", "b", row=200)])
    submitted.conf |= {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    with submitted.start(master=cluster.url) as running:
        ended = {"a", "c"}
        wait_until(
            lambda: {note["partition"] for note in deeds.notes("ended")} == ended,
            seconds=300,
            what="the end of the other tasks",
        )
        # Far longer than speculation needs, which looks ten times a second; a line comes every other one.
        wait_until(
            lambda: running.out.read_text().count("snowpipe progress total") >= 4,
            seconds=300,
            what="four lines of progress",
        )
        deeds.release()
        finished = running.wait()

    assert finished.code == 0, finished.err[-3000:]
    assert sorted(note["partition"] for note in deeds.notes("began")) == list(GROUPS)
    assert_exact(submitted)


def test_two_drivers_at_once_leave_every_row_once(submitted: SparkJob, cluster: StandaloneCluster) -> None:
    submitted.conf["spark.cores.max"] = "2"
    submitted.options["limits"] = BatchLimits(rows=20, requests_per_second=8)
    with submitted.start(master=cluster.url) as first:
        wait_until(lambda: any(submitted.committed(*GROUPS).values()), seconds=300, what="the first commit")
        with submitted.start(master=cluster.url) as second:
            ended = [first.wait(), second.wait()]
    for one in ended:
        if one.code != 0:
            assert one.report is not None
            assert one.report.error_type in {"ChannelFencedError", "ChannelInvalidError"}
    if all(one.code for one in ended):
        assert submitted.run(master=cluster.url).code == 0

    assert_exact(submitted)


def test_executors_inside_the_driver_survive_each_other(submitted: SparkJob, tmp_path: Path) -> None:
    """``local-cluster``: an executor is a JVM of its own, without master or worker process."""
    each = [Deed("kill-executor", "row", "a", row=300), Deed("kill-worker", "received", "c")]
    deeds = deeds_of(tmp_path / "deeds", each)
    submitted.env["SPARK_HOME"] = str(spark_home(tmp_path / "spark"))

    finished = submitted.run(master="local-cluster[2,1,1024]")

    assert finished.code == 0, finished.out[-2000:] + finished.err[-3000:]
    assert [len(deeds.notes(one.what)) for one in each] == [1, 1]
    assert_exact(submitted)
