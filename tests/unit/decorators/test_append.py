"""``@task.snowpipe_append`` against a real local service."""

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG

from airflow_provider_snowpipe.decorators.append import snowpipe_append_task
from tests.checkpoints import shown
from tests.local_connection import connect, context, ids, make_table


@pytest.fixture(scope="module")
def table(local_service):
    return make_table(local_service, "DECORATED")


def test_rows_that_a_function_returns_are_appended_once(local_service, set_connection, table):
    conn_id = connect(local_service, set_connection)
    calls = []

    @snowpipe_append_task(table=table, snowflake_conn_id=conn_id, channel="made", batch="{{ 3 + 4 }}")
    def make_rows(count):
        calls.append(count)
        return [{"ID": number, "NAME": "x"} for number in range(count)]

    with DAG("d", schedule=None):
        operator = make_rows(3).operator
    operator.render_template_fields(context())

    first, second = operator.execute(context()), operator.execute(context())

    assert (first["channel"], shown(first["to"]), first["rows"], second["rows"]) == ("made", "7:3", 3, 0)
    assert calls == [3, 3]
    assert ids(local_service, table) == [0, 1, 2]
    assert operator.rows is None


def test_airflow_knows_it_as_a_task_decorator():
    from airflow.providers.common.compat.sdk import task

    with DAG("d", schedule=None):

        @task.snowpipe_append(table="T", channel="c")
        def none_at_all() -> list[dict[str, Any]]:
            return []

        operator = none_at_all().operator

    assert "rows" not in operator.template_fields
    assert [name for name in operator.template_fields if not hasattr(operator, name)] == []
    assert operator.custom_operator_name == "@task.snowpipe_append"
    assert operator.preview() == ["would append the rows that none_at_all() returns; it is not called here"]
