"""The job under ``spark-submit`` on a cluster: whenever its driver dies, the next run completes it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_snowpipe.operators.submission import launch_environment
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.local_service import LocalService
from tests.spark_cluster import HOSTS, StandaloneCluster, spark_home
from tests.spark_deeds import POINTS, Deed, Deeds, deeds_of
from tests.spark_groups import GROUPS, ROWS, assert_exact, grouped_job, seeds
from tests.spark_job import SparkJob, wait_until

pytestmark = pytest.mark.spark

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
def job(admin_service: LocalService, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SparkJob]:
    """A job whose tasks pass the points of deeds; the service forgets its faults afterwards."""
    job = grouped_job(admin_service, tmp_path, request.node.name)
    job.application = _TESTS / "spark_job_with_deeds.py"
    job.conf = {"spark.executor.memory": "512m", "spark.driver.host": HOSTS[0]}
    job.env = {
        **launch_environment(tmp_path / "java"),
        "PYTHONPATH": str(_TESTS.parent),
        "DEEDS": str(tmp_path / "deeds"),
    }
    deeds_of(tmp_path / "deeds", [])
    yield job
    admin_service.admin("faults", clear=True)


def _run_until_it_succeeds(job: SparkJob, master: str) -> list[int]:
    """Run as a scheduler does; the exit codes of all runs, the last one 0."""
    codes: list[int] = []
    while 0 not in codes:
        finished = job.run(master=master)
        codes.append(finished.code)
        assert len(codes) <= _MOST_RUNS, finished.out[-2000:] + finished.err[-3000:]
    return codes


@pytest.mark.parametrize("seed", seeds(rounds=1))
def test_a_driver_killed_at_a_seeded_point_is_resumed_by_the_next_run(
    job: SparkJob, cluster: StandaloneCluster, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    point = draw.choice(POINTS)
    death = Deed(
        "kill-driver", point, draw.choice(GROUPS), draw.randrange(0, ROWS, 50) if point == "row" else 0
    )
    other = Deed(
        draw.choice(["kill-worker", "kill-executor"]), "row", draw.choice(GROUPS), draw.randrange(0, ROWS, 50)
    )
    deeds = deeds_of(tmp_path / "deeds", [death, other])
    job.service.admin("faults", set=f"commit-delay={draw.choice([0.1, 1, 2])}")

    codes = _run_until_it_succeeds(job, cluster.url)

    assert len(deeds.notes("kill-driver")) == 1, deeds.each
    assert codes == [-9, 0]
    assert_exact(job)


def test_the_job_switches_speculation_off_whatever_its_submitter_sets(
    job: SparkJob, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    deeds = deeds_of(tmp_path / "deeds", [Deed("stall", "row", "b", row=200)])
    job.conf |= {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    with job.start(master=cluster.url) as running:
        wait_until(lambda: _ended(deeds) == {"a", "c"}, seconds=300, what="the end of the other tasks")
        # Far longer than speculation needs: it looks ten times a second.
        wait_until(lambda: _look_count(job) >= 4, seconds=300, what="eight seconds of looks at the channels")
        deeds.release()
        finished = running.wait()

    assert finished.code == 0, finished.err[-3000:]
    assert sorted(note["partition"] for note in deeds.notes("began")) == list(GROUPS)
    assert_exact(job)


def _ended(deeds: Deeds) -> set[str]:
    return {note["partition"] for note in deeds.notes("ended")}


def _look_count(job: SparkJob) -> int:
    """How often the driver has printed its progress, every other second."""
    return (job.directory / f"run{job.runs}" / "out").read_text().count("snowpipe progress total")


def test_two_drivers_at_once_on_the_same_channels_leave_every_row_once(
    job: SparkJob, cluster: StandaloneCluster
) -> None:
    job.conf["spark.cores.max"] = "2"
    job.options["limits"] = BatchLimits(rows=20, requests_per_second=8)
    with job.start(master=cluster.url) as first:
        wait_until(lambda: any(job.committed(*GROUPS).values()), seconds=300, what="the first commit")
        with job.start(master=cluster.url) as second:
            ended = [first.wait(), second.wait()]
    for one in ended:
        if one.code != 0:
            assert one.error_lines[-1].startswith(
                ("snowpipe error: ChannelFencedError", "snowpipe error: ChannelInvalidError")
            )
    if all(one.code for one in ended):
        assert job.run(master=cluster.url).code == 0

    assert_exact(job)


def test_executors_of_a_cluster_inside_the_driver_survive_each_other(job: SparkJob, tmp_path: Path) -> None:
    """``local-cluster``: an executor is a JVM of its own, without master or worker process."""
    deeds = deeds_of(
        tmp_path / "deeds", [Deed("kill-executor", "row", "a", row=300), Deed("kill-worker", "received", "c")]
    )
    job.env["SPARK_HOME"] = str(spark_home(tmp_path / "spark"))

    finished = job.run(master="local-cluster[2,1,1024]")

    assert finished.code == 0, finished.out[-2000:] + finished.err[-3000:]
    assert [len(deeds.notes(what)) for what in ("kill-executor", "kill-worker")] == [1, 1]
    assert_exact(job)
