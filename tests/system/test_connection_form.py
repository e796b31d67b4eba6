"""The Test button of the connection form, pressed through the API server of a real Airflow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Stack

pytestmark = pytest.mark.airflow


def form(stack: Stack, **extra: Any) -> dict[str, Any]:
    """The form of a ``snowpipe`` connection to the local service, filled in."""
    service = stack.service
    fields = {
        "account": service.account,
        "auth": "key_pair",
        "private_key_content": service.key_file.read_text(),
        "database": "LOCAL",
        "table": "TESTED",
        "ca_bundle": str(service.ca_file),
        **extra,
    }
    return {
        "connection_id": "tested",
        "conn_type": "snowpipe",
        "host": service.url,
        "login": service.user,
        "schema": "PUBLIC",
        "extra": json.dumps(fields),
    }


@pytest.fixture(autouse=True)
def table(stack: Stack) -> None:
    stack.service.sql("CREATE TABLE IF NOT EXISTS TESTED (N INTEGER)")


def test_the_button_reports_that_a_good_connection_works(stack: Stack) -> None:
    works, message = stack.airflow.api.test_connection(form(stack))
    assert works, message
    assert "TESTED-STREAMING" in message


def test_the_button_reports_what_is_wrong_and_shows_no_secret(stack: Stack) -> None:
    works, message = stack.airflow.api.test_connection(form(stack, table="ABSENT"))
    assert not works
    assert "ABSENT" in message
    works, message = stack.airflow.api.test_connection(form(stack, private_key_content="no key at all"))
    assert not works
    assert "private key" in message
    assert "no key at all" not in message
