"""Airflow's own hook and operator on stages: PUT, and COPY from an internal stage and from a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.local_service import LocalService
from tests.s3_service import KEY_ID, SECRET, S3Service, s3_service

if TYPE_CHECKING:
    from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook


@pytest.fixture
def hook(local_service: LocalService, monkeypatch: pytest.MonkeyPatch) -> SnowflakeHook:
    for name, value in local_service.env.items():
        monkeypatch.setenv(name, value)
    from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

    return SnowflakeHook()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Service]:
    with s3_service() as service:
        yield service


def _copy(**options: Any) -> None:
    from airflow.providers.snowflake.transfers.copy_into_snowflake import (
        CopyFromExternalStageToSnowflakeOperator,
    )

    CopyFromExternalStageToSnowflakeOperator(
        task_id="copy", snowflake_conn_id="snowflake_default", **options
    ).execute({})


def test_the_hook_puts_files_and_the_operator_copies_them(hook: SnowflakeHook, tmp_path: Path) -> None:
    (tmp_path / "day 1.csv").write_text("id,s\n1,a\n2,b\n")
    hook.run(
        [
            "CREATE OR REPLACE TABLE days (id INT, s VARCHAR)",
            "CREATE OR REPLACE FILE FORMAT with_header TYPE = CSV SKIP_HEADER = 1",
            "CREATE OR REPLACE STAGE days_stage",
            f"PUT 'file://{tmp_path}/day 1.csv' @days_stage/2026",
        ]
    )
    assert hook.get_first("LIST @days_stage")[0] == "days_stage/2026/day 1.csv.gz"
    options = {
        "table": "DAYS",
        "stage": "days_stage",
        "prefix": "2026",
        "file_format": "(FORMAT_NAME = with_header)",
    }
    _copy(**options)
    _copy(**options)
    assert hook.get_records("SELECT id, s FROM days ORDER BY id") == [(1, "a"), (2, "b")]


def test_the_operator_copies_from_a_bucket(hook: SnowflakeHook, s3: S3Service) -> None:
    s3.put(
        "lake",
        {f"events/{number}.json": b'{"id": %d}\n' % number for number in range(5)} | {"other.json": b"x"},
    )
    hook.run(
        [
            "CREATE OR REPLACE TABLE events (id INT)",
            f"CREATE OR REPLACE STAGE lake URL = 's3://lake/' ENDPOINT = '{s3.endpoint}' "
            f"CREDENTIALS = (AWS_KEY_ID = '{KEY_ID}' AWS_SECRET_KEY = '{SECRET}')",
        ]
    )
    _copy(
        table="EVENTS",
        stage="lake",
        prefix="events",
        files=["1.json", "3.json"],
        file_format="(TYPE = JSON)",
        copy_options="MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE",
    )
    assert hook.get_records("SELECT id FROM events ORDER BY id") == [(1,), (3,)]
    _copy(
        table="EVENTS",
        stage="lake",
        file_format="(TYPE = JSON)",
        pattern=".*events/[0-9][.]json",
        copy_options="MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE PURGE = TRUE",
    )
    assert hook.get_first("SELECT count(*), sum(id) FROM events") == (5, 10)
    assert s3.keys("lake") == ["events/1.json", "events/3.json", "other.json"]
