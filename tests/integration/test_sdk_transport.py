"""The job whose rows Snowflake's own SDK carries."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.spark.sources.files.spec import FileSource, Ndjson
from tests.checkpoints import shown
from tests.local_service import LocalService
from tests.spark_job import SUBMIT_SECONDS, SparkJob, numbered_name
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

ROWS = 15_000
"""Of 100 bytes and more: what is above 1 MB goes through a file (observed with SDK 1.9.1)."""


@pytest.fixture
def job(admin_service: LocalService, tmp_path: Path, shared_spark: Any) -> SparkJob:
    service = admin_service
    source = tmp_path / "source"
    (source / "g").mkdir(parents=True)
    lines = [json.dumps({"ID": n, "TEXT": f"{n:>100}", "EXACT": "#"}) for n in range(ROWS)]
    text = "\n".join(line.replace('"#"', f"{n}.10") for n, line in enumerate(lines))
    (source / "g" / "1.ndjson").write_text(f"\r\n{text}\r\n\n")
    table = numbered_name("SDK")
    service.sql(f'CREATE OR REPLACE TABLE "{table}" (ID INT, TEXT VARCHAR, EXACT NUMBER(20, 2))')
    spec = FileSource(path=str(source), format=Ndjson(growing=True))
    return SparkJob(service, tmp_path / "runs", table, spec, spark=shared_spark)


def _uploads(service: LocalService) -> list[Path]:
    """Files of the SDK whose rows are not committed yet."""
    return [file for file in (service.data_dir / "stage").rglob("*") if file.is_file()]


def test_rows_come_through_files_exactly_and_the_next_run_may_send_with_our_own_client(
    job: SparkJob, tmp_path: Path
) -> None:
    profile = job.service.write_sdk_profile(tmp_path / "profile.json")

    def release_commits_after_an_upload() -> None:
        try:
            wait_until(lambda: bool(_uploads(job.service)), seconds=SUBMIT_SECONDS, what="a file of rows")
        finally:
            job.service.admin("faults", clear=True)

    with job.service.held_commits(), ThreadPoolExecutor(1) as pool:
        uploaded = pool.submit(release_commits_after_an_upload)
        first = job.load(sdk_profile=str(profile))
        uploaded.result()

    (found,) = job.service.sql(
        f'SELECT COUNT(*) N, COUNT(DISTINCT ID) D, SUM(ID) S, SUM(EXACT)::VARCHAR E FROM "{job.table}"'
    )
    total = sum(range(ROWS))
    assert (int(found["N"]), int(found["D"]), int(found["S"])) == (ROWS, ROWS, total)
    assert found["E"] == f"{total + ROWS // 10}.00"
    (channel,) = first.report.channels
    assert (shown(channel.to_token), channel.rows, channel.committed) == (f"1.ndjson:{ROWS + 1}", ROWS, True)

    second = job.load(sdk_profile=str(profile))

    assert [(one.rows, one.committed) for one in second.report.channels] == [(0, True)]
    assert int(job.service.sql(f'SELECT COUNT(*) N FROM "{job.table}"')[0]["N"]) == ROWS

    with (Path(job.source.path) / "g" / "1.ndjson").open("a") as file:
        file.write('{"ID": -1}\n')

    third = job.load()

    (channel,) = third.report.channels
    assert (shown(channel.from_token), channel.rows) == (f"1.ndjson:{ROWS + 1}", 1)
