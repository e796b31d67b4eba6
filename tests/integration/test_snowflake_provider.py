"""Airflow's Snowflake provider, unmodified; its hook of the SQL API is in ``test_how_to_pages``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.local_service import LocalService

if TYPE_CHECKING:
    from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook


@pytest.fixture
def hook(local_service: LocalService, monkeypatch: pytest.MonkeyPatch) -> SnowflakeHook:
    for name, value in local_service.env.items():
        monkeypatch.setenv(name, value)
    from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

    return SnowflakeHook()


def test_the_hook_puts_files_and_the_operator_copies_them(hook: SnowflakeHook, tmp_path: Path) -> None:
    from airflow.providers.snowflake.transfers.copy_into_snowflake import (
        CopyFromExternalStageToSnowflakeOperator,
    )

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
    given = {"table": "DAYS", "stage": "days_stage", "prefix": "2026"}
    given |= {"file_format": "(FORMAT_NAME = with_header)", "snowflake_conn_id": "snowflake_default"}
    copy = CopyFromExternalStageToSnowflakeOperator(task_id="copy", **given)
    for _ in range(2):
        copy.execute({})
    assert hook.get_records("SELECT id, s FROM days ORDER BY id") == [(1, "a"), (2, "b")]
