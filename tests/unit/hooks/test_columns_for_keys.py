"""The columns that each load asks for, over the SQL API of an account that answers as a test prescribes."""

import json
import sys

import pytest
from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_snowpipe.bulk import statement_client
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.operators.row_policy import SchemaPolicy
from airflow_provider_snowpipe.streaming.checked_values import RowPolicy
from airflow_provider_snowpipe.streaming.errors import SnowpipeError, SqlError
from tests.scripted_service import Reply

DESCRIBED = [["ID", "NUMBER(38,0)", "COLUMN", "Y", None], ["NAME", "VARCHAR(5)", "COLUMN", "N", "'x'"]]
SHOWN = [["T", "N"]]


def rows(names, data, handle="h"):
    metadata = {"rowType": [{"name": name} for name in names], "partitionInfo": [{}]}
    return Reply(body=json.dumps({"statementHandle": handle, "resultSetMetaData": metadata, "data": data}))


def answer(request):
    statement = json.loads(request.body)["statement"]
    if statement.startswith("DESCRIBE TABLE "):
        return rows(["name", "type", "kind", "null?", "default"], DESCRIBED)
    assert statement.startswith("SHOW ")
    return rows(["name", "enable_schema_evolution"], SHOWN)


@pytest.fixture
def hook(service_connection, set_connection):
    found = BaseHook.get_connection(service_connection)
    fields = {name: getattr(found, name) for name in ("conn_type", "host", "password", "schema")}
    set_connection(service_connection, **fields, extra={**found.extra_dejson, "role": "LOADER"})
    return SnowpipeHook(service_connection, table="T")


def test_two_requests_are_enough_and_no_connector(service, hook, monkeypatch):
    service.on("statements", answer)
    monkeypatch.setitem(sys.modules, "snowflake.connector", None)

    columns = hook.columns_for_keys()

    assert [(one.name, one.nullable) for one in columns] == [("ID", True), ("NAME", False)]
    sent = service.requests("statements")
    assert [(one.method, one.query["async"]) for one in sent] == [("POST", "false")] * 2
    bodies = [json.loads(one.body) for one in sent]
    assert [(one["timeout"], one["role"]) for one in bodies] == [(60, "LOADER")] * 2


def test_a_statement_that_still_runs_is_asked_for_again(service, hook, monkeypatch):
    monkeypatch.setattr(statement_client, "_POLL_SECONDS", 0.01)
    running = Reply(202, json.dumps({"statementHandle": "slow"}))
    service.on("statements", running, answer)
    service.on("slow", running, rows(["name", "type", "kind", "null?", "default"], DESCRIBED, "slow"))
    assert len(hook.columns_for_keys()) == 2
    assert len(service.requests("slow")) == 2


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(422, json.dumps({"code": "002003", "message": "Object does not exist"})), SqlError),
        (Reply(403, json.dumps({"code": "390318", "message": "no"})), SnowpipeError),
    ],
    ids=["no-table", "refused"],
)
def test_a_load_goes_on_without_them_unless_unknown_keys_are_to_fail_it(service, hook, reply, error):
    service.on("statements", reply)
    lines = []

    def log(text, *values):
        lines.append(text % values)

    assert SchemaPolicy(RowPolicy(unknown_columns="warn")).known_columns(hook, log) == ()
    (line,) = lines
    assert line.startswith("keys of rows are not held against")
    with pytest.raises(error):
        SchemaPolicy(RowPolicy(unknown_columns="fail")).known_columns(hook, log)
