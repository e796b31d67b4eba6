"""Airflow's Snowflake provider, unmodified, against the service over the exported connection."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.local_service import LocalService
from tests.outlet_events import OutletEvents

if TYPE_CHECKING:
    from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook
    from airflow.providers.snowflake.hooks.sql_api import SnowflakeSqlApiHook

SLOW = "SELECT sum(a.n * b.n * c.n) FROM many a, many b, many c"
COLUMNS = (
    "id INT, x NUMBER(10,2), s VARCHAR, n TIMESTAMP_NTZ, l TIMESTAMP_LTZ, d DATE, t TIME, b BOOLEAN, "
    "f FLOAT, r BINARY, v VARIANT"
)
VALUES = (
    "1, 2.5, 'a', '2026-01-01 00:00:01.5'::TIMESTAMP_NTZ, '2026-01-01 00:00:01.5'::TIMESTAMP_LTZ, "
    "'2026-01-01'::DATE, '10:11:12'::TIME, TRUE, 1.5, TO_BINARY('6869', 'HEX'), PARSE_JSON('{\"a\":1}')"
)


@pytest.fixture
def hook(local_service: LocalService, monkeypatch: pytest.MonkeyPatch) -> SnowflakeHook:
    for name, value in local_service.env.items():
        monkeypatch.setenv(name, value)
    from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

    return SnowflakeHook()


def test_the_hook_of_the_snowflake_provider_works_as_it_is(hook: SnowflakeHook) -> None:
    assert hook.test_connection() == (True, "Connection successfully tested")
    hook.run([f"CREATE OR REPLACE TABLE h ({COLUMNS})", f"INSERT INTO h SELECT {VALUES}"])
    assert hook.get_first("SELECT count(*) FROM h WHERE id = %s", parameters=(1,)) == (1,)
    hook.insert_rows("h", [(7, "it's"), (8, None)], target_fields=["id", "s"])
    assert hook.get_records("SELECT id, s FROM h WHERE id > 1 ORDER BY id") == [(7, "it's"), (8, None)]


def test_a_hook_run_that_fails_half_way_leaves_nothing(hook: SnowflakeHook) -> None:
    hook.run("CREATE OR REPLACE TABLE half (id INT)")
    with pytest.raises(Exception, match="NO_SUCH_TABLE"):
        hook.run(["INSERT INTO half VALUES (1)", "INSERT INTO no_such_table VALUES (1)"], autocommit=False)
    assert hook.get_first("SELECT count(*) FROM half") == (0,)


def test_a_sqlalchemy_engine_creates_fills_and_reads_a_table(hook: SnowflakeHook) -> None:
    import sqlalchemy

    engine = hook.get_sqlalchemy_engine()
    try:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("CREATE OR REPLACE TABLE by_engine (id INT, s VARCHAR)"))
            connection.execute(
                sqlalchemy.text("INSERT INTO by_engine VALUES (:id, :s)"),
                [{"id": 1, "s": "it's"}, {"id": 2, "s": None}],
            )
        with engine.connect() as connection:
            rows = connection.execute(sqlalchemy.text("SELECT id, s FROM by_engine ORDER BY id")).fetchall()
        assert rows == [(1, "it's"), (2, None)]
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text("DELETE FROM by_engine"))
            connection.rollback()
        with engine.connect() as connection:
            assert connection.execute(sqlalchemy.text("SELECT count(*) FROM by_engine")).scalar() == 2
    finally:
        engine.dispose()


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


@pytest.mark.parametrize("form", ["operator", "decorator"])
def test_a_snowpark_task_gets_a_session(
    hook: SnowflakeHook, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    pytest.importorskip("snowflake.snowpark", reason="Snowpark is not installed")
    from airflow.providers.snowflake.decorators.snowpark import snowpark_task
    from airflow.providers.snowflake.operators import snowpark

    def fill(number: int, session: Any = None) -> tuple[list[int], str]:
        frame = session.create_dataframe([(number, "a"), (number + 1, None)], schema=["id", "name"])
        frame.write.mode("overwrite").save_as_table("by_snowpark")
        return [row.ID for row in session.table("by_snowpark").sort("id").collect()], session.query_tag

    # Snowpark closes every session once more when the process ends, and would log that where nobody reads.
    logging.getLogger("snowflake.snowpark.session").setLevel(logging.WARNING)
    run = SimpleNamespace(dag_id="sales", run_id="r1", task_id="fill")
    monkeypatch.setattr(snowpark, "get_current_context", lambda: {"dag_run": run, "task_instance": run})
    task: Any
    if form == "operator":
        task = snowpark.SnowparkOperator(task_id="task", python_callable=fill, op_kwargs={"number": 5})
    else:
        task = snowpark_task(fill)(5).operator
    ids, tag = task.execute({"outlet_events": OutletEvents(SimpleNamespace)})
    assert ids == [5, 6]
    assert json.loads(tag)["dag_id"] == "sales"


def test_the_hook_returns_a_pandas_frame(hook: SnowflakeHook) -> None:
    frame = hook.get_df("SELECT 1 AS a, NULL AS b UNION ALL SELECT 2, NULL ORDER BY a", df_type="pandas")
    assert frame["A"].tolist() == [1, 2]


@pytest.fixture
def hook_kwargs(local_service: LocalService, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The SQL API has no host option: the hook reaches the service through its proxy."""
    numbers = "SELECT SEQ4() AS n FROM TABLE(GENERATOR(ROWCOUNT => 40000))"
    local_service.sql(f"CREATE OR REPLACE TABLE many AS {numbers}")
    for name, value in local_service.env.items():
        monkeypatch.setenv(name, value)
    return {"http_request_kwargs": {"proxies": {"https": local_service.env["SNOWPIPE_LOCAL_PROXY"]}}}


@pytest.fixture
def sql_api(hook_kwargs: dict[str, Any]) -> SnowflakeSqlApiHook:
    from airflow.providers.snowflake.hooks.sql_api import SnowflakeSqlApiHook

    return SnowflakeSqlApiHook("snowflake_default", **hook_kwargs)


def test_airflows_hook_runs_several_statements(sql_api: SnowflakeSqlApiHook) -> None:
    handles = sql_api.execute_query("SELECT 1 AS a; SELECT 2 AS b", statement_count=2)
    assert len(handles) == 2
    assert [sql_api.wait_for_query(handle, poll_interval=1)["status"] for handle in handles] == [
        "success"
    ] * 2
    assert sql_api.get_result_from_successful_sql_api_query(handles[1]) == [{"B": "2"}]


def test_airflows_hook_reads_partitions_and_binds(sql_api: SnowflakeSqlApiHook) -> None:
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


def test_airflows_sql_api_operator_runs(hook_kwargs: dict[str, Any]) -> None:
    from airflow.providers.snowflake.operators.snowflake import SnowflakeSqlApiOperator

    def operator(sql: str) -> SnowflakeSqlApiOperator:
        return SnowflakeSqlApiOperator(
            task_id="t", sql=sql, statement_count=0, poll_interval=1, durable=False, do_xcom_push=False,
            hook_params=hook_kwargs,
        )  # fmt: skip

    operator("CREATE OR REPLACE TABLE by_operator (n INT); INSERT INTO by_operator VALUES (1)").execute({})
    with pytest.raises(Exception, match="NOWHERE"):
        operator("SELECT * FROM nowhere").execute({})
