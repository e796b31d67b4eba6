"""The job under ``spark-submit`` on a cluster whose driver dies, at night.

Every day the same runs without Java (``test_job_faults.py``), and once with it in the system tests.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_snowpipe.operators.submission import launch_environment
from tests.spark_cluster import HOSTS, StandaloneCluster
from tests.spark_deeds import POINTS, Deed, deeds_of
from tests.spark_groups import GROUPS, ROWS, assert_exact, seeds
from tests.spark_job import SparkJob

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
