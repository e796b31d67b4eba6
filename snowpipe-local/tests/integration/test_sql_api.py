"""SQL API v2 by plain requests, and the CONNECT proxy."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import requests
from snowpipe_local.testing import LocalService

from tests.waiting import wait_until

SLOW = "SELECT sum(a.n * b.n * c.n) FROM many a, many b, many c"


class Api:
    """Plain requests to the SQL API."""

    def __init__(self, service: LocalService) -> None:
        self.url = f"{service.url}/api/v2/statements"
        self._service = service

    def call(self, method: str, path: str = "", **arguments: Any) -> requests.Response:
        token = self._service.key_pair_jwt()
        return requests.request(
            method,
            self.url + path,
            headers={"Authorization": f"Bearer {token}"},
            verify=str(self._service.ca_file),
            timeout=60,
            **arguments,
        )

    def submit(self, statement: str, count: int = 1, *, wait: bool = True, **more: Any) -> requests.Response:
        body = {"statement": statement, "database": "LOCAL", "schema": "PUBLIC"}
        body |= {"parameters": {"MULTI_STATEMENT_COUNT": count}, **more}
        return self.call("POST", params={"async": str(not wait).lower()}, json=body)

    def finish(self, handle: str) -> requests.Response:
        wait_until(lambda: self.call("GET", f"/{handle}").status_code != 202, what="the statement's end")
        return self.call("GET", f"/{handle}")


@pytest.fixture(scope="module")
def api(local_service: LocalService) -> Api:
    api = Api(local_service)
    assert api.submit("CREATE OR REPLACE TABLE many (n INT)").status_code == 200
    rows = ", ".join(f"({n})" for n in range(200))
    assert api.submit(f"INSERT INTO many VALUES {rows}").status_code == 200
    cross = "INSERT INTO many SELECT a.n * 200 + b.n FROM many a, many b WHERE a.n > 0"
    assert api.submit(cross).json()["data"] == [["39800"]]
    return api


def test_an_asynchronous_statement_is_polled_until_its_result(api: Api) -> None:
    accepted = api.submit("SELECT 1 AS a, NULL AS b", wait=False)
    assert (accepted.status_code, accepted.json()["code"]) == (202, "333334")
    answer = api.finish(accepted.json()["statementHandle"])
    assert answer.status_code == 200
    assert answer.json()["data"] == [["1", None]]
    assert [column["name"] for column in answer.json()["resultSetMetaData"]["rowType"]] == ["A", "B"]


def test_a_running_statement_can_be_cancelled(api: Api) -> None:
    handle = api.submit(SLOW, wait=False).json()["statementHandle"]
    assert api.call("GET", f"/{handle}").status_code == 202
    assert api.call("POST", f"/{handle}/cancel").status_code == 200
    answer = api.finish(handle)
    assert (answer.status_code, answer.json()["code"]) == (422, "000604")
    assert api.call("POST", f"/{handle}/cancel").status_code == 422


def test_a_statement_beyond_its_timeout_is_cancelled(api: Api) -> None:
    answer = api.submit(SLOW, timeout=1)
    assert (answer.status_code, answer.json()["code"]) == (408, "000630")


def test_several_statements_share_a_session_and_have_a_handle_each(api: Api) -> None:
    text = "CREATE OR REPLACE TABLE multi (s VARCHAR); INSERT INTO multi VALUES ('a;b');"
    text += " -- c;\nSELECT * FROM multi;"
    answer = api.submit(text, 3)
    assert answer.status_code == 200, answer.text
    assert answer.json()["data"] == [["Multiple statements executed successfully."]]
    handles = answer.json()["statementHandles"]
    assert len(handles) == 3
    assert api.call("GET", f"/{handles[2]}").json()["data"] == [["a;b"]]


def test_the_statements_after_a_failed_one_do_not_run(api: Api) -> None:
    api.submit("CREATE OR REPLACE TABLE stopped (n INT)")
    answer = api.submit("SELECT * FROM nowhere; INSERT INTO stopped VALUES (1)", 0)
    assert (answer.status_code, answer.json()["code"]) == (422, "002003")
    assert api.submit("SELECT count(*) FROM stopped").json()["data"] == [["0"]]


def test_a_transaction_left_open_is_rolled_back(api: Api) -> None:
    api.submit("CREATE OR REPLACE TABLE opened (n INT)")
    assert api.submit("BEGIN; INSERT INTO opened VALUES (1)", 2).status_code == 200
    assert api.submit("SELECT count(*) FROM opened").json()["data"] == [["0"]]
    assert api.submit("BEGIN; INSERT INTO opened VALUES (1); COMMIT", 3).status_code == 200
    assert api.submit("SELECT count(*) FROM opened").json()["data"] == [["1"]]


def test_bindings_are_typed(api: Api) -> None:
    bindings = {
        "1": {"type": "FIXED", "value": "7"},
        "2": {"type": "TEXT", "value": "x'y"},
        "3": {"type": "BOOLEAN", "value": "true"},
        "4": {"type": "DATE", "value": "2026-01-02"},
    }
    answer = api.submit("SELECT ?, ?, ?, ?", bindings=bindings)
    assert answer.json()["data"] == [["7", "x'y", "true", "20455"]]


def test_positions_of_bindings_are_counted_from_one(api: Api) -> None:
    second = {"2": {"type": "FIXED", "value": "5"}}
    answer = api.submit("SELECT ?", bindings=second)
    assert (answer.status_code, answer.json()["code"]) == (422, "002049")
    assert answer.json()["message"].endswith("Bind variable 1 not set.")


def test_large_results_come_in_partitions(api: Api) -> None:
    first = api.submit("SELECT n FROM many ORDER BY n").json()
    sizes = [part["rowCount"] for part in first["resultSetMetaData"]["partitionInfo"]]
    assert sizes == [10_000] * 4
    rows = list(first["data"])
    for number in range(1, len(sizes)):
        rows += api.call("GET", f"/{first['statementHandle']}?partition={number}").json()["data"]
    assert [int(row[0]) for row in rows] == list(range(40_000))
    assert api.call("GET", f"/{first['statementHandle']}?partition=4").status_code == 422


@pytest.mark.parametrize(
    ("path", "arguments", "status"),
    [
        ("/00000000-0000-0000-0000-000000000000", {}, 404),
        ("/x/cancel", {}, 404),
        ("", {}, 404),
    ],
)
def test_unknown_calls_are_refused(api: Api, path: str, arguments: dict[str, Any], status: int) -> None:
    assert api.call("GET", path, **arguments).status_code == status


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"statement": "'"},
        {"statement": "SELECT 1", "timeout": "x"},
        {"bindings": 1},
        {"statement": "SELECT ?", "bindings": {"x": 1}},
        {"statement": "SELECT ?", "bindings": {"1": {}}},
    ],
)
def test_broken_requests_are_refused(api: Api, body: dict[str, Any]) -> None:
    assert api.call("POST", json=body).status_code in {400, 422}


def test_an_orderly_stop_cancels_what_runs_and_keeps_what_is_committed(crash_service: LocalService) -> None:
    service = crash_service
    proxy, before = service.env["SNOWPIPE_LOCAL_PROXY"], service.log_file.stat().st_size
    api = Api(service)
    api.submit("CREATE TABLE many (n INT)")
    api.submit(f"INSERT INTO many VALUES {', '.join(f'({n})' for n in range(3000))}")
    assert api.submit(SLOW, wait=False).status_code == 202
    service.stop()
    assert "Traceback" not in service.log_file.read_text()[before:]
    service.start()
    assert api.submit("SELECT count(*) FROM many").json()["data"] == [["3000"]]
    assert service.env["SNOWPIPE_LOCAL_PROXY"] == proxy


# -- through the proxy --------------------------------------------------------------------------------------


def test_a_connector_without_host_comes_through_the_proxy(local_service: LocalService) -> None:
    script = (
        "import os, snowflake.connector\n"
        "with snowflake.connector.connect(account='LOCAL', user='DEMO', authenticator='SNOWFLAKE_JWT',\n"
        "    private_key_file=os.environ['SNOWPIPE_LOCAL_PRIVATE_KEY_FILE'],\n"
        "    login_timeout=240) as connection:\n"
        "    print(connection.cursor().execute('SELECT 7').fetchone())\n"
    )
    base = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    proxy = local_service.env["SNOWPIPE_LOCAL_PROXY"]
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**local_service.process_env(base), "HTTPS_PROXY": proxy},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip() == "(7,)", done.stderr[-2000:]
