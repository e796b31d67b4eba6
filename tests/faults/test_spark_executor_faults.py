"""The job on executors of two hosts: whatever dies, each row is in the table once, in order."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.sdk_profile import write_sdk_profile
from tests.spark_cluster import HOSTS, SPECULATION, StandaloneCluster, session_on
from tests.spark_deeds import Deed, Deeds, deeds_of, doing
from tests.spark_groups import GROUPS, ROWS, assert_exact, load, load_until_it_succeeds, seeds
from tests.spark_job import SparkJob, wait_until, write_rows

pytestmark = pytest.mark.spark

_REPO = str(Path(__file__).parents[2])


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A context on a cluster of two hosts, with speculation on, as an author's own context may have it."""
    cluster = StandaloneCluster(tmp_path_factory.mktemp("cluster"), {"PYTHONPATH": _REPO}, HOSTS)
    try:
        cluster.start()
        with session_on(cluster, "faults", SPECULATION) as session:
            yield session.sparkContext
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    "deed",
    [
        Deed("raise", "row", "b", row=200),
        Deed("raise", "written", "b"),
        Deed("raise", "received", "b"),
        Deed("kill-worker", "row", "b", row=300),
        Deed("kill-worker", "commit-wait", "b"),
        Deed("kill-executor", "received", "b"),
        Deed("kill-executor", "committed", "b"),
    ],
    ids=lambda deed: f"{deed.what}-{deed.point}",
)
def test_a_task_is_repeated_after_whatever_ended_it(
    job: SparkJob, spark: Any, tmp_path: Path, deed: Deed
) -> None:
    job.service.admin("faults", set=_delay(deed.point))
    deeds = deeds_of(tmp_path / "deeds", [deed])

    with doing(deeds):
        run = load(job, spark)

    assert_exact(job)
    assert len(deeds.notes(deed.what)) == 1
    attempts = [note["attempt"] for note in deeds.notes("began") if note["partition"] == "b"]
    assert attempts[0] == 0
    assert len(attempts) > 1
    assert [(one.partition, one.rows, one.committed) for one in run.channels] == [
        (g, ROWS, True) for g in GROUPS
    ]


@pytest.mark.parametrize(
    "deed",
    [
        Deed("raise", "received", "b"),
        Deed("kill-worker", "row", "b", row=300),
        Deed("kill-executor", "commit-wait", "b"),
    ],
    ids=lambda deed: f"{deed.what}-{deed.point}",
)
def test_rows_that_the_sdk_carries_stay_exact_too(
    job: SparkJob, spark: Any, tmp_path: Path, deed: Deed
) -> None:
    job.service.admin("faults", set=_delay(deed.point))
    deeds = deeds_of(tmp_path / "deeds", [deed])
    profile = write_sdk_profile(job.service, tmp_path / "profile.json")

    with doing(deeds):
        run = load(job, spark, sdk_profile=str(profile))

    assert_exact(job)
    assert len(deeds.notes(deed.what)) == 1
    assert [(one.partition, one.rows, one.committed) for one in run.channels] == [
        (g, ROWS, True) for g in GROUPS
    ]


@pytest.mark.parametrize("seed", seeds(rounds=2))
def test_rows_stay_exact_under_deeds_at_seeded_points(
    job: SparkJob, spark: Any, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    deeds = deeds_of(tmp_path / "deeds", [_drawn(draw) for _ in range(3)])
    job.service.admin("faults", set=f"commit-delay={draw.choice(['0.1', '1', '2'])}")

    with doing(deeds):
        load_until_it_succeeds(job, spark)

    assert_exact(job)
    assert any((deeds.folder / f"deed-{number}").exists() for number in range(3)), deeds.each


def _delay(point: str) -> str:
    """Commits that come late, and later for what is to happen while one is awaited."""
    return f"commit-delay={5 if point == 'commit-wait' else 1}"


def _drawn(draw: random.Random) -> Deed:
    what = draw.choice(["raise", "kill-worker", "kill-worker", "kill-executor"])
    points = ["row", "row", "written", "received", "committed"] + ["commit-wait"] * (what != "raise")
    point = draw.choice(points)
    return Deed(what, point, draw.choice(GROUPS), draw.randrange(0, ROWS, 50) if point == "row" else 0)


def test_a_worker_that_comes_back_late_is_shut_out(job: SparkJob, spark: Any, tmp_path: Path) -> None:
    deeds = deeds_of(tmp_path / "deeds", [Deed("freeze", "row", "b", row=200)])

    with doing(deeds):
        load(job, spark)
        assert_exact(job)
        (frozen,) = deeds.notes("freeze")
        zombie = psutil.Process(frozen["pid"])
        assert zombie.status() == psutil.STATUS_STOPPED
        zombie.resume()
        wait_until(lambda: _ends(deeds, zombie.pid), seconds=300, what="the end of the zombie's load")

    (end,) = _ends(deeds, zombie.pid)
    assert end.get("error") == "ChannelFencedError"
    assert_exact(job)


def _ends(deeds: Deeds, pid: int) -> list[dict[str, Any]]:
    """How a worker's load of ``b`` ended; it may have loaded another group before."""
    notes = [*deeds.notes("failed"), *deeds.notes("ended")]
    return [note for note in notes if note["pid"] == pid and note["partition"] == "b"]


def test_rows_stay_exact_though_the_authors_context_speculates(
    job: SparkJob, spark: Any, tmp_path: Path
) -> None:
    deeds = deeds_of(tmp_path / "deeds", [Deed("stall", "row", "b", row=200)])
    with doing(deeds), ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load_until_it_succeeds, job, spark)
        try:
            wait_until(
                lambda: len([note for note in deeds.notes("began") if note["partition"] == "b"]) > 1,
                seconds=300,
                what="a second attempt beside the one that stands still",
            )
        finally:
            deeds.release()
        loading.result()

    assert_exact(job)


def test_groups_that_come_and_go_between_runs_are_loaded_once(
    job: SparkJob, spark: Any, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    load(job, spark)

    shutil.move(source / "b", tmp_path / "b")
    write_rows(source / "d" / "0.ndjson", range(30_000, 30_010))
    write_rows(source / "a" / "3.ndjson", range(ROWS, ROWS + 10))
    second = load(job, spark)
    shutil.move(tmp_path / "b", source / "b")
    write_rows(source / "b" / "2.ndjson", range(10_000 + ROWS, 10_000 + ROWS + 10))
    third = load(job, spark)

    assert [(one.partition, one.rows) for one in second.channels] == [("a", 10), ("c", 0), ("d", 10)]
    assert [(one.partition, one.rows) for one in third.channels] == [("a", 0), ("b", 10), ("c", 0), ("d", 0)]
    found = [int(row["ID"]) for row in job.service.sql(f"SELECT ID FROM LOCAL.PUBLIC.{job.table}")]
    wanted = {*range(30_000, 30_010), *range(20_000, 20_000 + ROWS)}
    wanted |= {begin + row for begin in (0, 10_000) for row in range(ROWS + 10)}
    assert sorted(found) == sorted(wanted)
