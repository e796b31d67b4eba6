"""snowflake-connector-python, unmodified: transactions, and an orderly stop under a statement."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
import requests
from snowpipe_local.testing import LocalService

from tests.conftest import ServiceFactory


@pytest.fixture
def trusted(local_service: LocalService, monkeypatch: pytest.MonkeyPatch) -> LocalService:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(local_service.ca_file))
    return local_service


def test_without_autocommit_a_block_ends_its_transaction(trusted: LocalService) -> None:
    import snowflake.connector

    parameters = trusted.connector_arguments
    connection = snowflake.connector.connect(**parameters)
    connection.cursor().execute("CREATE OR REPLACE TABLE block (id INT)")
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
    connection.close()


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
