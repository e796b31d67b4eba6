"""The job when the service delays, refuses or forgets: each row is in the table once, in order."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_provider_snowpipe.spark.failures import TaskFailedError
from airflow_provider_snowpipe.streaming.errors import AuthenticationError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.spark_groups import GROUPS, ROWS, assert_exact, load, load_until_it_succeeds, seeds
from tests.spark_job import SparkJob, wait_until

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A context that runs a task up to four times, as a cluster does."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
        session = SparkSession.builder.master("local[3,4]").config("spark.ui.enabled", "false").getOrCreate()
        yield session.sparkContext
        session.stop()


@pytest.mark.parametrize(
    "faults",
    [
        "answer-append=503x4",
        "answer-append=408x2,answer-append=500x2,answer-append=404htmlx2",
        "drop-append-response=2,drop-append-response=7,drop-append-response=8",
        "answer-open=503x2,answer-status=503x2,answer-pipe-info=429x1,answer-token=500x1,answer-hostname=503x1",
    ],
)
def test_what_may_pass_is_repeated_within_the_same_attempt(job: SparkJob, spark: Any, faults: str) -> None:
    job.service.admin("faults", set=faults)

    run = load(job, spark)

    assert_exact(job)
    assert [(one.rows, one.committed) for one in run.channels] == [(ROWS, True)] * len(GROUPS)
    assert job.service.admin("faults")["faults"] == []


def test_a_pause_that_the_service_asks_for_is_kept(job: SparkJob, spark: Any) -> None:
    job.service.admin("faults", set="answer-append=429@3x1")
    began = time.monotonic()

    run = load(job, spark)

    assert time.monotonic() - began >= 3
    assert sum(one.retries for one in run.channels) == 1
    assert_exact(job)


@pytest.mark.parametrize(
    "faults",
    [
        "answer-append=409x1",
        "answer-open=409x1",
        "invalidate-channel=5,invalidate-channel=9",
        "answer-append=410x2",
        "commit-delay=2,drop-append-response=3,invalidate-channel=6",
    ],
)
def test_a_channel_that_is_lost_is_opened_again_by_the_next_attempt(
    job: SparkJob, spark: Any, faults: str
) -> None:
    job.service.admin("faults", set=faults)

    run = load(job, spark)

    assert_exact(job)
    assert [(one.rows, one.committed) for one in run.channels] == [(ROWS, True)] * len(GROUPS)


def test_an_append_that_outlives_the_clients_patience_counts_once(job: SparkJob, spark: Any) -> None:
    job.service.admin("faults", set="slow-append=35x2")

    run = load(job, spark)

    assert sum(one.retries for one in run.channels) >= 2
    assert_exact(job)


def test_a_pipe_that_failed_over_ends_the_run_and_the_next_one_goes_on(job: SparkJob, spark: Any) -> None:
    pipe = str(job.pipe).replace('"', "")
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load, job, spark, limits=BatchLimits(rows=20, requests_per_second=3))
        wait_until(lambda: any(job.committed(*GROUPS).values()), seconds=300, what="the first commit")
        job.service.admin("failover", pipe=pipe)
        with pytest.raises(TaskFailedError, match="failed over") as failed:
            loading.result()
        job.service.admin("failover", pipe=pipe, back=True)

    assert failed.value.error_type == "PipeFailedOverError"
    run = load(job, spark)
    assert 0 < sum(one.rows for one in run.channels) < ROWS * len(GROUPS)
    assert_exact(job)


def test_a_token_that_is_refused_ends_the_run_and_the_next_one_goes_on(job: SparkJob, spark: Any) -> None:
    job.service.admin("faults", set="answer-append=401x1")

    with pytest.raises((AuthenticationError, TaskFailedError), match="refuses the credentials"):
        load(job, spark)

    load(job, spark)
    assert_exact(job)


@pytest.mark.parametrize("seed", seeds(rounds=2))
def test_rows_stay_exact_under_faults_of_the_service(job: SparkJob, spark: Any, seed: int) -> None:
    draw = random.Random(seed)
    faults = [_drawn(draw) for _ in range(5)] + [f"commit-delay={draw.choice([0.1, 0.5, 1.5])}"]
    job.service.admin("faults", set=",".join(faults))

    load_until_it_succeeds(job, spark)

    assert_exact(job)


def _drawn(draw: random.Random) -> str:
    append = draw.randrange(1, 30)
    call = draw.choice(["append", "open", "status"])
    return draw.choice(
        [
            f"drop-append-response={append}",
            f"invalidate-channel={append}",
            f"answer-{call}={draw.choice(['503', '429@1', '408', '500', '404html'])}x{draw.randrange(1, 4)}",
            f"answer-{draw.choice(['append', 'open'])}={draw.choice(['409', '410'])}x1",
            f"slow-{call}={draw.choice([0.2, 1])}x{draw.randrange(1, 4)}",
        ]
    )
