"""SQL API v2 by plain requests, an orderly stop, and the connector: transactions and the CONNECT proxy."""

import contextlib
import os
import subprocess
import sys
import threading
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
            timeout=240,
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
    made = api.submit("INSERT INTO many SELECT SEQ4() FROM TABLE(GENERATOR(ROWCOUNT => 40000))")
    assert made.json()["data"] == [["40000"]]
    return api


def test_an_asynchronous_statement_is_polled_until_its_result(api: Api) -> None:
    accepted = api.submit("SELECT 1 AS a, NULL AS b", wait=False)
    assert (accepted.status_code, accepted.json()["code"]) == (202, "333334")
    answer = api.finish(accepted.json()["statementHandle"])
    assert answer.status_code == 200
    assert answer.json()["data"] == [["1", None]]
    assert [column["name"] for column in answer.json()["resultSetMetaData"]["rowType"]] == ["A", "B"]


def test_large_results_come_in_partitions(api: Api) -> None:
    first = api.submit("SELECT n FROM many ORDER BY n").json()
    sizes = [part["rowCount"] for part in first["resultSetMetaData"]["partitionInfo"]]
    assert sizes == [10_000] * 4
    rows = list(first["data"])
    for number in range(1, len(sizes)):
        rows += api.call("GET", f"/{first['statementHandle']}?partition={number}").json()["data"]
    assert [int(row[0]) for row in rows] == list(range(40_000))
    assert api.call("GET", f"/{first['statementHandle']}?partition=4").status_code == 422


def test_a_statement_is_cancelled_by_request_or_by_its_timeout(api: Api) -> None:
    handle = api.submit(SLOW, wait=False).json()["statementHandle"]
    assert api.call("GET", f"/{handle}").status_code == 202
    assert api.call("POST", f"/{handle}/cancel").status_code == 200
    answer = api.finish(handle)
    assert (answer.status_code, answer.json()["code"]) == (422, "000604")
    assert api.call("POST", f"/{handle}/cancel").status_code == 422
    answer = api.submit(SLOW, timeout=1)
    assert (answer.status_code, answer.json()["code"]) == (408, "000630")


def test_unknown_calls_and_broken_requests_are_refused(api: Api) -> None:
    for path in ("/00000000-0000-0000-0000-000000000000", "/x/cancel", ""):
        assert api.call("GET", path).status_code == 404
    for body in (
        {}, {"statement": "'"}, {"statement": "SELECT 1", "timeout": "x"}, {"bindings": 1},
        {"statement": "SELECT ?", "bindings": {"x": 1}}, {"statement": "SELECT ?", "bindings": {"1": {}}},
    ):  # fmt: skip
        assert api.call("POST", json=body).status_code in {400, 422}
    answer = api.submit("SELECT ?", bindings={"2": {"type": "FIXED", "value": "5"}})
    assert (answer.status_code, answer.json()["code"]) == (422, "002049")
    assert answer.json()["message"].endswith("Bind variable 1 not set.")


def test_an_orderly_stop_cancels_what_runs_and_keeps_what_is_committed(crash_service: LocalService) -> None:
    service = crash_service
    proxy, before = service.env["SNOWPIPE_LOCAL_PROXY"], service.log_file.stat().st_size
    api = Api(service)
    api.submit("CREATE TABLE many AS SELECT SEQ4() AS n FROM TABLE(GENERATOR(ROWCOUNT => 3000))")
    assert api.submit(SLOW, wait=False).status_code == 202
    token = service_session(service)
    running = call(service, "/queries/v1/query-request", {"sqlText": SLOW, "asyncExec": True}, token)

    def wait() -> None:
        # The stop may cut the connection before it is answered.
        with contextlib.suppress(requests.RequestException):
            call(service, "/queries/v1/query-request", {"sqlText": "SELECT 1"}, token)

    # In the same session, so it waits behind the first one, on a thread of the service's event loop.
    waiting = threading.Thread(target=wait)
    waiting.start()
    monitored = call(service, f"/monitoring/queries/{running['data']['queryId']}", {}, token)
    assert monitored["data"]["queries"][0]["status"] == "RUNNING"
    service.stop()
    waiting.join(300)
    assert not waiting.is_alive()
    assert "Traceback" not in service.log_file.read_text()[before:]
    service.start()
    assert api.submit("SELECT count(*) FROM many").json()["data"] == [["3000"]]
    assert service.env["SNOWPIPE_LOCAL_PROXY"] == proxy


def call(service: LocalService, path: str, body: dict[str, Any], token: str = "") -> dict[str, Any]:
    """Send a request of the connector protocol."""
    headers = {"Authorization": f'Snowflake Token="{token}"'} if token else {}
    verify = str(service.ca_file)
    return dict(
        requests.post(service.url + path, json=body, headers=headers, verify=verify, timeout=240).json()
    )


def service_session(service: LocalService) -> str:
    login = {"LOGIN_NAME": "DEMO", "PASSWORD": service.password}
    path = "/session/v1/login-request?databaseName=LOCAL&schemaName=PUBLIC"
    return str(call(service, path, {"data": login})["data"]["token"])


# -- the connector ------------------------------------------------------------------------------------------


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
