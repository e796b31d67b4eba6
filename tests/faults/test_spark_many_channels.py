"""A thousand channels in one job: exact, and planned in a few requests."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from airflow_provider_snowpipe.spark.sources.files.spec import FileSourceSpec
from airflow_provider_snowpipe.streaming.http import Transports
from airflow_provider_snowpipe.streaming.progress import STATUS_NAMES_PER_REQUEST
from tests.checkpoints import shown
from tests.local_service import LocalService
from tests.spark_groups import load
from tests.spark_job import SparkJob, new_table, write_rows

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(1800)]

CHANNELS = 1024
ROWS = 20
STATUS_REQUESTS = ceil(CHANNELS / STATUS_NAMES_PER_REQUEST)


@pytest.fixture
def spark() -> Iterator[Any]:
    """A context with more tasks at once than processors: most of a small channel's time is waiting."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch_environment:
        patch_environment.setenv("PYSPARK_PYTHON", sys.executable)
        patch_environment.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch_environment.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
        session = SparkSession.builder.master("local[8,4]").config("spark.ui.enabled", "false").getOrCreate()
        yield session.sparkContext
        session.stop()


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    """The driver's control requests while the block runs, by the last part of their path."""
    seen: Counter[str] = Counter()
    send = Transports.send

    def count(transport: Transports, method: str, url: str, **kwargs: Any) -> Any:
        if kwargs.get("body") is None:
            seen[url.rpartition("/")[2].rpartition(":")[2]] += 1
        return send(transport, method, url, **kwargs)

    with patch.object(Transports, "send", count):
        yield seen


def test_a_thousand_channels_are_exact_and_cost_a_request_for_each_hundred(
    local_service: LocalService, spark: Any, tmp_path: Path
) -> None:
    for group in range(CHANNELS):
        write_rows(tmp_path / "source" / f"g{group:04}" / "1.ndjson", range(group * ROWS, (group + 1) * ROWS))
    table = new_table(local_service, "MANY")
    job = SparkJob(local_service, tmp_path / "runs", table, FileSourceSpec(path=str(tmp_path / "source")))
    began = time.monotonic()

    with _counted() as first_requests:
        first = load(job, spark)
    seconds = time.monotonic() - began
    with _counted() as second_requests:
        second = load(job, spark)

    print(f"{CHANNELS} channels: {seconds:.1f} s, {dict(first_requests)}; again: {dict(second_requests)}")
    (counts,) = local_service.sql(
        f"SELECT COUNT(*) N, COUNT(DISTINCT ID) D, MIN(ID) A, MAX(ID) B FROM LOCAL.PUBLIC.{table}"
    )
    assert counts == {"N": CHANNELS * ROWS, "D": CHANNELS * ROWS, "A": 0, "B": CHANNELS * ROWS - 1}
    assert {(one.rows, shown(one.to_token), one.committed) for one in first.channels} == {
        (ROWS, f"1.ndjson:{ROWS}", True)
    }
    assert {(one.rows, shown(one.from_token)) for one in second.channels} == {(0, f"1.ndjson:{ROWS}")}
    # Before the load, after it, and once a second for the progress lines.
    polls = first_requests["bulk-channel-status"] / STATUS_REQUESTS
    assert 2 <= polls <= 2 + seconds
    assert second_requests["bulk-channel-status"] == 2 * STATUS_REQUESTS
    assert first_requests.total() - first_requests["bulk-channel-status"] < 10
