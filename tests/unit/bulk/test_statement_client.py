"""A refused statement's error names the object and the GRANT that opens it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.statement_client import StatementClient, grant_remedy
from airflow_provider_snowpipe.streaming.auth import ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.errors import SqlError
from airflow_provider_snowpipe.streaming.http import Answer, Transports


@pytest.mark.parametrize(
    ("message", "grant"),
    [
        ("Database 'D' does not exist or not authorized.", "GRANT USAGE ON DATABASE D TO ROLE …"),
        ("Schema 'D.S' does not exist or not authorized", "GRANT USAGE ON SCHEMA D.S TO ROLE …"),
        ("Stage 'D.S.\"in\"' does not exist or not authorized", 'READ, WRITE ON STAGE D.S."in" TO ROLE …'),
        ("Table 'D.S.T' does not exist or not authorized", "GRANT INSERT, SELECT ON TABLE D.S.T TO ROLE …"),
        ("Object 'D.S.T' does not exist or not authorized", "GRANT INSERT, SELECT ON TABLE D.S.T TO ROLE …"),
        ("Insufficient privileges to operate on table 'T'", "GRANT INSERT, SELECT ON TABLE T TO ROLE …"),
        ("Insufficient privileges to operate on pipe 'P'", "GRANT MONITOR, OPERATE ON PIPE P TO ROLE …"),
        ("Insufficient privileges to operate on warehouse 'W'", "GRANT USAGE ON WAREHOUSE W TO ROLE …"),
    ],
)
def test_remedy_is_the_grant_on_the_object_that_snowflake_names(message: str, grant: str) -> None:
    assert grant in grant_remedy(f"SQL compilation error: {message}")


@pytest.mark.parametrize(
    "message",
    ["Object does not exist, or operation cannot be performed.", "Insufficient privileges", "Divided"],
)
def test_an_error_that_names_no_object_has_no_grant(message: str) -> None:
    assert grant_remedy(message) == ""


def test_a_statement_that_the_sql_api_refuses_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"code": "003001", "message": "Insufficient privileges to operate on table 'T'"}
    answer = Answer(422, json.dumps(body).encode(), None)
    monkeypatch.setattr(Transports, "send", lambda *_, **__: answer)
    client: Any = StatementClient("https://account.invalid", ProgrammaticAccessToken("t"))

    with pytest.raises(SqlError, match=r"operate on table 'T'\. .*GRANT INSERT, SELECT ON TABLE T") as failed:
        client.submit("COPY INTO T FROM @S", "id")
    assert (failed.value.errno, failed.value.retryable) == (3001, False)
