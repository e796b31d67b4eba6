"""The Test button of the connection form, pressed through the API server of a real Airflow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Stack

pytestmark = pytest.mark.airflow


def _tested(stack: Stack, **extra: Any) -> tuple[bool, str]:
    """What the button answers for a ``snowpipe`` connection to the local service."""
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
    form = {"connection_id": "tested", "conn_type": "snowpipe", "host": service.url, "login": service.user}
    return stack.airflow.api.test_connection({**form, "schema": "PUBLIC", "extra": json.dumps(fields)})


def test_the_button_reports_what_works_and_what_is_wrong_and_shows_no_secret(stack: Stack) -> None:
    stack.service.sql("CREATE TABLE IF NOT EXISTS TESTED (N INTEGER)")
    works, message = _tested(stack)
    assert works, message
    assert "TESTED-STREAMING" in message
    works, message = _tested(stack, table="ABSENT")
    assert not works
    assert "ABSENT" in message
    works, message = _tested(stack, private_key_content="no key at all")
    assert not works
    assert "private key" in message
    assert "no key at all" not in message
