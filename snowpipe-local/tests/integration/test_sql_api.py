"""SQL API v2 by plain requests, and an orderly stop."""

import contextlib
import threading
from typing import Any

import pytest
import requests
from snowpipe_local.testing import LocalService
from tests.contract.account import Account
from tests.streaming_rest import Rest, continuation

from tests.waiting import wait_until

SLOW = "SELECT sum(a.n * b.n * c.n) FROM many a, many b, many c"


class Api:
    """Plain requests to the SQL API."""

    def __init__(self, service: LocalService) -> None:
        self._account = Account.local(service)

    def call(self, method: str, path: str = "", **arguments: Any) -> requests.Response:
        return self._account.call(method, f"/api/v2/statements{path}", **arguments)

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


def test_an_orderly_stop_cancels_what_runs_and_commits_what_was_accepted(crash_service: LocalService) -> None:
    service = crash_service
    service.set_faults("hold-commits")
    proxy, before = service.env["SNOWPIPE_LOCAL_PROXY"], service.log_file.stat().st_size
    api = Api(service)
    api.submit("CREATE TABLE many AS SELECT SEQ4() AS n FROM TABLE(GENERATOR(ROWCOUNT => 3000))")
    rest = Rest(service, "MANY")
    rest.append("c", continuation(rest.open("c")), b'{"n":-1}\n' * 5, "5")
    assert api.submit(SLOW, wait=False).status_code == 202
    login = {"data": {"LOGIN_NAME": "DEMO", "PASSWORD": service.password}}
    path = "/session/v1/login-request?databaseName=LOCAL&schemaName=PUBLIC"
    token = call(service, path, login)["data"]["token"]
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
    assert api.submit("SELECT count(*), count_if(n < 0) FROM many").json()["data"] == [["3005", "5"]]
    assert Rest(service, "MANY").committed("c") == "5"
    assert service.env["SNOWPIPE_LOCAL_PROXY"] == proxy


def call(service: LocalService, path: str, body: dict[str, Any], token: str = "") -> dict[str, Any]:
    """Send a request of the connector protocol."""
    headers = {"Authorization": f'Snowflake Token="{token}"'} if token else {}
    return dict(Account.local(service).call("POST", path, token="", json=body, headers=headers).json())
