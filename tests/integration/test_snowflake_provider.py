"""Airflow's Snowflake provider, unmodified, against the service over the exported connection."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.local_service import LocalService

if TYPE_CHECKING:
    from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook
    from airflow.providers.snowflake.hooks.sql_api import SnowflakeSqlApiHook

SLOW = "SELECT sum(a.n * b.n * c.n) FROM many a, many b, many c"


@pytest.fixture
def hook(local_service: LocalService, monkeypatch: pytest.MonkeyPatch) -> SnowflakeHook:
    for name, value in local_service.env.items():
        monkeypatch.setenv(name, value)
    from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

    return SnowflakeHook()


def test_the_hook_of_the_snowflake_provider_works_as_it_is(hook: SnowflakeHook) -> None:
    assert hook.test_connection() == (True, "Connection successfully tested")
    hook.run(["CREATE OR REPLACE TABLE h (id INT, s VARCHAR)", "INSERT INTO h VALUES (1, 'a')"])
    assert hook.get_first("SELECT count(*) FROM h WHERE id = %s", parameters=(1,)) == (1,)
    hook.insert_rows("h", [(7, "it's"), (8, None)], target_fields=["id", "s"])
    with pytest.raises(Exception, match="NO_SUCH_TABLE"):
        hook.run(["INSERT INTO h (id) VALUES (9)", "INSERT INTO no_such_table VALUES (1)"], autocommit=False)
    assert hook.get_records("SELECT id, s FROM h WHERE id > 1 ORDER BY id") == [(7, "it's"), (8, None)]
    frame = hook.get_df("SELECT 1 AS a, NULL AS b UNION ALL SELECT 2, NULL ORDER BY a", df_type="pandas")
    assert frame["A"].tolist() == [1, 2]


def test_the_common_sql_operator_runs_statements_and_returns_rows(hook: SnowflakeHook) -> None:
    from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator

    def run(sql: Any, **more: Any) -> Any:
        return SQLExecuteQueryOperator(task_id="t", conn_id="snowflake_default", sql=sql, **more).execute({})

    run(["CREATE OR REPLACE TABLE by_operator (id INT)", "INSERT INTO by_operator VALUES (1), (2)"])
    assert run("SELECT id FROM by_operator WHERE id > %(id)s", parameters={"id": 1}) == [(2,)]
    text = "INSERT INTO by_operator VALUES (3); SELECT count(*) FROM by_operator"
    assert run(text, split_statements=True, return_last=True) == [(3,)]
    with pytest.raises(Exception, match="NOWHERE"):
        run("SELECT * FROM nowhere")


@pytest.fixture
def sql_api(hook: SnowflakeHook, local_service: LocalService) -> SnowflakeSqlApiHook:
    """The SQL API has no host option: the hook reaches the service through its proxy."""
    from airflow.providers.snowflake.hooks.sql_api import SnowflakeSqlApiHook

    hook.run("CREATE OR REPLACE TABLE many AS SELECT SEQ4() AS n FROM TABLE(GENERATOR(ROWCOUNT => 40000))")
    proxies = {"https": local_service.env["SNOWPIPE_LOCAL_PROXY"]}
    return SnowflakeSqlApiHook("snowflake_default", http_request_kwargs={"proxies": proxies})


def test_airflows_hook_runs_several_statements_binds_and_reads_partitions(
    sql_api: SnowflakeSqlApiHook,
) -> None:
    handles = sql_api.execute_query("SELECT 1 AS a; SELECT 2 AS b", statement_count=2)
    ended = [sql_api.wait_for_query(handle, poll_interval=1)["status"] for handle in handles]
    assert ended == ["success", "success"]
    assert sql_api.get_result_from_successful_sql_api_query(handles[1]) == [{"B": "2"}]

    bound = {"1": {"type": "FIXED", "value": "25000"}}
    (handle,) = sql_api.execute_query("SELECT n FROM many WHERE n < ?", statement_count=1, bindings=bound)
    sql_api.wait_for_query(handle, poll_interval=1, raise_error=True)
    assert len(sql_api.get_result_from_successful_sql_api_query(handle)) == 25_000


def test_airflows_hook_cancels_and_reports_errors(sql_api: SnowflakeSqlApiHook) -> None:
    (slow,) = sql_api.execute_query(SLOW, statement_count=1)
    assert sql_api.get_sql_api_query_status(slow)["status"] == "running"
    sql_api.cancel_queries([slow])
    assert "canceled" in sql_api.wait_for_query(slow, poll_interval=1)["message"]
    (wrong,) = sql_api.execute_query("SELECT * FROM nowhere", statement_count=1)
    with pytest.raises(RuntimeError, match="NOWHERE"):
        sql_api.wait_for_query(wrong, poll_interval=1, raise_error=True)


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
