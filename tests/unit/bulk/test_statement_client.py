"""A refused statement's error names the object and the GRANT that opens it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.statement_client import StatementClient
from airflow_provider_snowpipe.streaming.auth import ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.errors import SqlError
from airflow_provider_snowpipe.streaming.http import Answer, Transports


def test_a_statement_that_the_sql_api_refuses_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"code": "003001", "message": "Insufficient privileges to operate on table 'T'"}
    answer = Answer(422, json.dumps(body).encode(), None)
    monkeypatch.setattr(Transports, "send", lambda *_, **__: answer)
    client: Any = StatementClient("https://account.invalid", ProgrammaticAccessToken("t"))

    with pytest.raises(SqlError, match=r"operate on table 'T'\. .*GRANT INSERT, SELECT ON TABLE T") as failed:
        client.submit("COPY INTO T FROM @S", "id")
    assert (failed.value.errno, failed.value.retryable) == (3001, False)
