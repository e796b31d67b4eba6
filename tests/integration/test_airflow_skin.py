"""The test of a connection against the real local service."""

from __future__ import annotations

import certifi
import pytest

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from tests.airflow_connections import SetConnection
from tests.local_connection import connect, connect_by_form, make_table
from tests.local_service import LocalService


def test_connections_are_accepted_or_refused_with_the_reason(
    local_service: LocalService, set_connection: SetConnection, pem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(local_service, "SKIN")
    for name, value in local_service.env.items():
        monkeypatch.setenv(name, value)

    def tried(conn_id: str) -> tuple[bool, str]:
        return SnowpipeHook(conn_id, table=table).test_connection()

    found = f"ingest host 127.0.0.1, pipe LOCAL.PUBLIC.{table}-STREAMING is there, 0 channels listed."
    assert tried("snowflake_default") == (True, f"Credentials accepted, {found}")
    assert tried(connect_by_form(local_service, set_connection)) == (True, f"Credentials accepted, {found}")

    ok, text = tried(connect_by_form(local_service, set_connection, extra={"private_key_content": pem}))
    assert not ok
    assert text.startswith("Failed at: account URL and credentials. ")
    assert "PRIVATE KEY" not in text

    ok, text = tried(connect(local_service, set_connection, extra={"ca_bundle": certifi.where()}))
    assert not ok
    assert "certificate" in text
