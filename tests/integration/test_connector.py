"""snowflake-connector-python and Airflow's SnowflakeHook, unmodified, over the exported connection."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import requests

from tests.conftest import ServiceFactory
from tests.local_service import LocalService
from tests.outlet_events import OutletEvents

if TYPE_CHECKING:
    from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

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


@pytest.fixture
def connection(hook: SnowflakeHook) -> Iterator[Any]:
    connection = hook.get_conn()
    yield connection
    connection.close()


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


def test_without_autocommit_a_block_ends_its_transaction(connection: Any, hook: SnowflakeHook) -> None:
    import snowflake.connector

    connection.cursor().execute("CREATE OR REPLACE TABLE block (id INT)")
    parameters = hook._get_conn_params()
    with snowflake.connector.connect(**parameters, autocommit=False) as unfinished:
        assert unfinished.cursor().execute("INSERT INTO block VALUES (1), (2)").rowcount == 2
    with (
        contextlib.suppress(KeyError),
        snowflake.connector.connect(**parameters, autocommit=False) as unfinished,
    ):
        unfinished.cursor().execute("DELETE FROM block")
        raise KeyError
    merged = connection.cursor().execute(
        "MERGE INTO block t USING (SELECT 2 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET t.id = 3"
    )
    assert merged.rowcount == 1
    assert connection.cursor().execute("SELECT id FROM block ORDER BY id").fetchall() == [(1,), (3,)]


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


def test_an_orderly_stop_cancels_a_statement_that_a_client_waits_for(
    service_factory: ServiceFactory,
) -> None:
    service = service_factory()

    def call(path: str, body: dict[str, Any], token: str = "") -> dict[str, Any]:
        with requests.Session() as http:
            http.trust_env = False
            headers = {"Authorization": f'Snowflake Token="{token}"'} if token else {}
            url = service.url + path
            answer = http.post(url, json=body, headers=headers, verify=str(service.ca_file), timeout=60)
            content: dict[str, Any] = answer.json()
            return content

    password = (service.data_dir / "demo_password").read_text().strip()
    login = {"LOGIN_NAME": "DEMO", "PASSWORD": password}
    token = call("/session/v1/login-request", {"data": login})["data"]["token"]
    endless = "SELECT SUM(HASH(a.i, b.i)) FROM {0} a, {0} b".format(
        "(SELECT SEQ4() AS i FROM TABLE(GENERATOR(ROWCOUNT => 3000000)))"
    )
    started = {"sqlText": endless, "asyncExec": True}
    running = call("/queries/v1/query-request", started, token)["data"]["queryId"]

    def wait() -> None:
        # The stop may cut the connection before it is answered.
        with contextlib.suppress(requests.RequestException):
            call("/queries/v1/query-request", {"sqlText": "SELECT 1"}, token)

    # In the same session, so it waits behind the first one, on a thread of the service's event loop.
    waiting = threading.Thread(target=wait)
    waiting.start()
    assert call(f"/monitoring/queries/{running}", {}, token)["data"]["queries"][0]["status"] == "RUNNING"
    service.stop()
    waiting.join(300)
    assert not waiting.is_alive()
