"""Who gets in, for how long, and with how much: sessions, tokens, bodies, results."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.local.service_in_process import ServiceInProcess

PASSWORD = "a long password"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceInProcess]:
    service = ServiceInProcess(tmp_path / "home")
    yield service
    service.close()


@pytest.fixture
def admin(service: ServiceInProcess) -> Any:
    connector = service.connect()
    connector.query(f"CREATE USER other PASSWORD = '{PASSWORD}'")
    return connector


# -- results belong to user, session and statement ----------------------------------------------------------


def test_a_request_id_belongs_to_a_session_and_to_one_statement(
    service: ServiceInProcess, admin: Any
) -> None:
    admin.query("CREATE TABLE t (id INT)")
    request_id = str(uuid.uuid4())
    first = admin.query("INSERT INTO t VALUES (1)", request_id)
    assert admin.query("INSERT INTO t VALUES (1)", request_id)["data"]["queryId"] == first["data"]["queryId"]
    for changed in (
        {"text": "INSERT INTO t VALUES (2)"},
        {"bindings": {"1": {"type": "FIXED", "value": "1"}}},
    ):
        again = admin.query(changed.pop("text", "INSERT INTO t VALUES (1)"), request_id, **changed)
        assert (again["success"], again["code"]) == (False, "391902")
        assert request_id in again["message"]
    for connector in (service.connect("OTHER", PASSWORD), service.connect()):
        other = connector.query("SELECT 'mine'", request_id)
        assert other["data"]["queryId"] != first["data"]["queryId"]
    assert admin.query("SELECT COUNT(*) FROM t WHERE id = 1")["data"]["total"] == 1


def test_a_request_id_of_the_sql_api_belongs_to_a_user_and_to_one_statement(
    service: ServiceInProcess, admin: Any
) -> None:
    pat = admin.query("ALTER USER other ADD PAT p")["data"]["rowset"][0][1]
    path = f"/api/v2/statements?requestId={uuid.uuid4()}"
    first = service.call("POST", path, {"statement": "SELECT 1"}, token=service.jwt())
    assert service.call("POST", path, {"statement": "SELECT 1"}, token=service.jwt()).json() == first.json()
    changed = service.call("POST", path, {"statement": "SELECT 2"}, token=service.jwt())
    assert (changed.status, changed.json()["code"]) == (422, "391902")
    other = service.call("POST", path, {"statement": "SELECT 1"}, token=pat)
    assert other.status == 200
    handles = [answer.json()["statementHandle"] for answer in (first, other)]
    assert handles[0] != handles[1]
    assert service.call("GET", f"/api/v2/statements/{handles[0]}", token=pat).status == 404


def test_only_the_user_of_a_statement_sees_or_stops_it(service: ServiceInProcess, admin: Any) -> None:
    query_id = admin.query("SELECT 'secret'")["data"]["queryId"]
    assert service.connect().call("GET", f"/queries/{query_id}/result")["success"]
    other = service.connect("OTHER", PASSWORD)
    assert other.call("GET", f"/queries/{query_id}/result")["code"] == "000709"
    assert other.call("GET", f"/monitoring/queries/{query_id}")["data"]["queries"] == []
    assert not other.call("POST", f"/queries/{query_id}/abort-request")["success"]
