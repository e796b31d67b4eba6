"""Who gets in, for how long, and with how much: sessions, tokens, bodies, results."""

import asyncio
import base64
import json
import resource
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import quote, urlencode

import jwt
import pytest
import zstandard
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from snowpipe_local import server
from snowpipe_local.accounts import ensure_account, fingerprint
from snowpipe_local.errors import Refusal
from snowpipe_local.fronts import http, sessions
from snowpipe_local.limits import DEFAULTS, parse_limits
from snowpipe_local.sql import front
from snowpipe_local.sql.session import Session
from tests.streaming_rest import signed_upload
from tests.unit.service_in_process import ServiceInProcess

PASSWORD = "a long password"
PIPE = "/v2/streaming/databases/LOCAL/schemas/PUBLIC/pipes/T-STREAMING"
CHANNEL = f"{PIPE.replace('streaming', 'streaming/data', 1)}/channels/c"
MANY = "(SELECT SEQ4() AS i FROM TABLE(GENERATOR(ROWCOUNT => {})))"
COPY = "COPY INTO t FROM (SELECT $1:ID FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))"
SLOW = (
    "WITH n AS (SELECT SEQ4() AS i FROM TABLE(GENERATOR(ROWCOUNT => 100000))) "
    "SELECT SUM(a.i * b.i + c.i) FROM n a, n b, n c"
)


@pytest.fixture
def admin(service: ServiceInProcess) -> Any:
    connector = service.connect()
    connector.query(f"CREATE USER other PASSWORD = '{PASSWORD}'")
    return connector


@pytest.fixture
def pat(admin: Any) -> str:
    """An access token of OTHER."""
    return added(admin, "p")


def added(admin: Any, name: str, more: str = "") -> str:
    return str(admin.query(f"ALTER USER other ADD PAT {name} {more}")["data"]["rowset"][0][1])


def sql_api(
    service: ServiceInProcess, token: str, statement: Any = "SELECT 1", path: str = "", **body: Any
) -> Any:
    """Send a statement to the SQL API."""
    path = f"/api/v2/statements{path}"
    return service.call("POST", path, {"statement": statement, **body}, token=token)


def is_stopped(execution: Any) -> bool:
    """Whether a statement ended before its end."""
    assert execution.wait(240)
    return execution.error is not None


def test_results_belong_to_their_user_session_and_statement(service, admin):
    admin.query("CREATE TABLE t (id INT)")
    request_id = str(uuid.uuid4())
    first = admin.query("INSERT INTO t VALUES (1)", request_id)
    assert admin.query("INSERT INTO t VALUES (1)", request_id)["data"]["queryId"] == first["data"]["queryId"]
    for changed in (
        {"text": "INSERT INTO t VALUES (2)"}, {"bindings": {"1": {"type": "FIXED", "value": "1"}}},
    ):  # fmt: skip
        again = admin.query(changed.pop("text", "INSERT INTO t VALUES (1)"), request_id, **changed)
        assert (again["success"], again["code"]) == (False, "391902")
        assert request_id in again["message"]
    for connector in (service.connect("OTHER", PASSWORD), service.connect()):
        other = connector.query("SELECT 'mine'", request_id)
        assert other["data"]["queryId"] != first["data"]["queryId"]
    assert admin.query("SELECT COUNT(*) FROM t WHERE id = 1")["data"]["total"] == 1
    query_id = admin.query("SELECT 'secret'")["data"]["queryId"]
    assert service.connect().call("GET", f"/queries/{query_id}/result")["success"]
    other = service.connect("OTHER", PASSWORD)
    assert other.call("GET", f"/queries/{query_id}/result")["code"] == "000709"
    assert other.call("GET", f"/monitoring/queries/{query_id}")["data"]["queries"] == []
    assert not other.call("POST", f"/queries/{query_id}/abort-request")["success"]


def test_a_request_id_of_the_sql_api_belongs_to_a_user_and_to_one_statement(service, pat):
    path = f"?requestId={uuid.uuid4()}"
    first = sql_api(service, service.jwt(), path=path)
    assert sql_api(service, service.jwt(), path=path).json() == first.json()
    changed = sql_api(service, service.jwt(), "SELECT 2", path)
    assert (changed.status, changed.json()["code"]) == (422, "391902")
    other = sql_api(service, pat, path=path)
    assert other.status == 200
    handles = [answer.json()["statementHandle"] for answer in (first, other)]
    assert handles[0] != handles[1]
    assert service.call("GET", f"/api/v2/statements/{handles[0]}", token=pat).status == 404


def test_the_sql_api_names_a_value_of_the_wrong_type(service: ServiceInProcess) -> None:
    for status, wrong, named in [
        (400, {"statement": ["SELECT 1"]}, "statement"), (400, {"role": ["PUBLIC"]}, "role"),
        (400, {"parameters": ["query_tag"]}, "parameters"),
        (400, {"parameters": {"query_tag": ["a"]}}, "query_tag"),
        (422, {"bindings": {"a": {"type": "TEXT", "value": "1"}}}, "positions"),
        (422, {"bindings": [{"type": "TEXT"}]}, "positions"),
    ]:  # fmt: skip
        refused = sql_api(service, service.jwt(), **{"statement": "SELECT 1", **wrong})
        assert (refused.status, named in refused.json()["message"]) == (status, True)
        assert status == 422 or refused.json()["code"] == "391902"
    for kind in ["nan", "inf", "endless"]:
        claims = jwt.decode(service.jwt(), options={"verify_signature": False})
        for name in ("exp", "iat"):
            token = _signed(service, claims | {name: 10**400 if kind == "endless" else float(kind)})
            answer = sql_api(service, token)
            assert (answer.status, answer.json()["code"]) == (401, "JWT_TOKEN_INVALID")


def test_a_jwt_may_count_milliseconds_and_a_second_start_keeps_the_account(service: ServiceInProcess) -> None:
    claims = jwt.decode(service.jwt(), options={"verify_signature": False})
    for unit in (1, 1000):
        token = _signed(service, claims | {name: claims[name] * unit for name in ("exp", "iat")})
        assert sql_api(service, token).status == 200
    assert "secret" not in repr(service.account)
    assert ensure_account(service.home, service.access) == service.account


def test_what_anybody_may_read_takes_get_only_and_an_upload_location_put(service: ServiceInProcess) -> None:
    for path in ["/health", "/openapi.json"]:
        assert [service.call(method, path).status for method in ("GET", "POST", "DELETE")] == [200, 405, 405]
    answer = service.call("DELETE", "/snowpipe-local-stage/0123456789abcdef/0.ndjson")
    assert (answer.status, answer.json()["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "PUT"


ENDINGS = [
    ("password", "ALTER USER other SET DISABLED = TRUE"), ("password", "DROP USER other"),
    ("password", f"CREATE OR REPLACE USER other PASSWORD = '{PASSWORD}'"),
    ("password", "REVOKE ROLE loader FROM USER other"), ("key", "ALTER USER other UNSET RSA_PUBLIC_KEY"),
    ("access token", "ALTER USER other REMOVE PAT p"),
    ("access token as password", "ALTER USER other REMOVE PAT p"),
]  # fmt: skip


@pytest.mark.parametrize(("opened_by", "change"), ENDINGS)
def test_sessions_and_statements_end_with_their_credential(service, admin, pat, opened_by, change):
    for statement in (
        "CREATE ROLE loader", "GRANT ROLE loader TO USER other", "ALTER USER other SET DEFAULT_ROLE = loader",
    ):  # fmt: skip
        assert admin.query(statement)["success"]
    credential = _key_of_other(service, admin) if opened_by == "key" else pat
    name = "SNOWFLAKE_JWT" if opened_by == "key" else "PROGRAMMATIC_ACCESS_TOKEN"
    given = {"AUTHENTICATOR": name, "TOKEN": credential} if opened_by in ("key", "access token") else {}
    password = {"password": PASSWORD, "access token as password": pat}.get(opened_by, "")
    opened, kept = service.connect("OTHER", password, **given), service.connect("OTHER", PASSWORD)
    assert opened.query("SELECT CURRENT_ROLE()")["data"]["finalRoleName"] == "LOADER"
    running = opened.query(SLOW, asyncExec=True)["data"]["queryId"]
    submitted = sql_api(service, credential, SLOW, "?async=true", role="LOADER").json()["statementHandle"]
    admin.query(change)
    assert opened.query("SELECT 1")["code"] == "390111"
    assert kept.query("SELECT 1")["success"] == (opened_by != "password")
    assert is_stopped(service.service._connector._executions.find(running))
    assert is_stopped(service.service._sql_api._submissions.find(submitted))


def test_another_user_of_the_same_name_has_no_result_of_the_first(service, admin, pat):
    path = f"?requestId={uuid.uuid4()}"
    handle = sql_api(service, pat, path=path).json()["statementHandle"]
    large = service.connect("OTHER", PASSWORD).query(f"SELECT i FROM {MANY.format(30_000)}")["data"]
    chunk = "/" + large["chunks"][0]["url"].partition("//")[2].partition("/")[2]
    assert service.call("GET", chunk, None, large["chunkHeaders"]).status == 200
    admin.query(f"CREATE OR REPLACE USER other PASSWORD = '{PASSWORD}'")
    pat = added(admin, "p")
    assert service.call("GET", f"/api/v2/statements/{handle}", token=pat).status == 404
    assert sql_api(service, pat, path=path).json()["statementHandle"] != handle
    other = service.connect("OTHER", PASSWORD)
    assert other.call("GET", f"/queries/{large['queryId']}/result")["code"] == "000709"
    assert service.call("GET", chunk, None, large["chunkHeaders"]).status == 403


def test_the_token_of_a_file_ends_with_its_user(service: ServiceInProcess, admin: Any) -> None:
    for statement in ("GRANT USAGE ON DATABASE local TO ROLE public", "CREATE STAGE s"):
        admin.query(statement)
    for statement in ("USAGE ON SCHEMA public", "READ ON STAGE s", "WRITE ON STAGE s"):
        admin.query(f"GRANT {statement} TO ROLE public")
    info = _transfer(service.connect("OTHER", PASSWORD), "PUT file:///x/a.csv @s")
    url, token = f"/{info['location']}a.csv", info["creds"]["GCS_ACCESS_TOKEN"]
    assert service.call("PUT", url, b"1\n", token=token).status == 200
    admin.query("ALTER USER other SET DISABLED = TRUE")
    assert service.call("PUT", url, b"2\n", token=token).status == 401


def _key_of_other(service: ServiceInProcess, admin: Any) -> str:
    """Give OTHER a key; return a JWT that it signed."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    pem = key.public_key().public_bytes(*form).decode()
    admin.query(f"ALTER USER other SET RSA_PUBLIC_KEY = '{''.join(pem.splitlines()[1:-1])}'")
    subject, now = f"{service.account.name}.OTHER", int(time.time())
    claims = {"iss": f"{subject}.{fingerprint(pem)}", "sub": subject, "iat": now, "exp": now + 600}
    return jwt.encode(claims, key, algorithm="RS256")


def test_a_session_ends_after_hours_without_a_call(service, monkeypatch):
    now = 0.0
    monkeypatch.setattr(sessions, "now", lambda: now)
    connector, renewed = service.connect(), service.connect()
    connector.query("BEGIN")
    now += 3 * 3600
    assert renewed.call("POST", "/session/heartbeat")["success"]
    now += 3 * 3600
    assert connector.query("SELECT 1")["code"] == "390111"
    assert renewed.query("SELECT 1")["success"]


def test_scoped_tokens_end_with_their_credential_and_their_user(service, admin, pat):
    def status(token: str) -> int:
        return service.call("POST", f"{PIPE}:pipe-info", {}, token=token).status

    by_key = _exchanged(service, _key_of_other(service, admin), key_pair=True)
    by_pat, by_other_pat = _exchanged(service, pat), _exchanged(service, added(admin, "q"))
    tokens = [by_key, by_pat, by_other_pat]
    assert [status(token) for token in tokens] == [404, 404, 404]
    admin.query("ALTER USER other UNSET RSA_PUBLIC_KEY")
    assert [status(token) for token in tokens] == [401, 404, 404]
    admin.query("ALTER USER other REMOVE PAT p")
    assert [status(token) for token in tokens] == [401, 401, 404]
    for statement in ("DROP USER other", "CREATE USER other"):
        admin.query(statement)
    assert status(by_other_pat) == 401


def _exchanged(service: ServiceInProcess, credential: str, *, key_pair: bool = False) -> str:
    grant = "jwt-bearer" if key_pair else "token-exchange"
    form = {"grant_type": f"urn:ietf:params:oauth:grant-type:{grant}", "scope": "127.0.0.1"}
    if not key_pair:
        form["subject_token_type"] = "programmatic_access_token"
    answer = service.call("POST", "/oauth/token", urlencode(form).encode(), token=credential)
    assert answer.status == 200, answer.content
    return answer.content.decode()


def _signed(service: ServiceInProcess, claims: dict[str, Any]) -> str:
    # PyJWT checks what it signs; the signature is that of any RS256 token.
    head, payload = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "RS256", "typ": "JWT"}, claims)
    )
    key: Any = load_pem_private_key(service.home.key_file.read_bytes(), None)
    signature = key.sign(head + b"." + payload, padding.PKCS1v15(), hashes.SHA256())
    return (head + b"." + payload + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def test_a_token_of_an_upload_only_uploads_and_one_of_a_download_only_reads(service, admin):
    admin.query("CREATE STAGE s")
    upload = _transfer(admin, "PUT file:///x/a.csv @s")
    url, token = f"/{upload['location']}a.csv", upload["creds"]["GCS_ACCESS_TOKEN"]
    assert [service.call(method, url, b"1\n", token=token).status for method in ("PUT", "HEAD", "GET")] == [
        200, 200, 403,
    ]  # fmt: skip
    token = _transfer(admin, "GET @s/a.csv file:///tmp")["creds"]["GCS_ACCESS_TOKEN"]
    assert [service.call(method, url, b"2\n", token=token).status for method in ("GET", "PUT")] == [200, 403]


def _transfer(connector: Any, statement: str) -> Any:
    return connector.query(statement)["data"]["stageInfo"]


def test_bodies_of_strangers_are_small_and_those_of_sessions_large(service, admin, monkeypatch):
    large = b" " * (1 << 20)
    assert service.call("POST", "/session/v1/login-request", large).status == 413
    assert service.call("POST", "/oauth/token-request", large).status == 413
    bomb = zstandard.compress(bytes(64 << 20))
    packed = service.call("POST", "/session/v1/login-request", bomb, {"content-encoding": "zstd"})
    assert packed.status == 413
    for path in ("/api/v2/statements", "/v1/data/pipes/A.B.C/insertFiles", f"{CHANNEL}/rows"):
        assert service.call("POST", path, large, token="wrong").status == 401
    assert service.call("POST", "/queries/v1/query-request", large).json()["code"] == "390111"
    comment = "SELECT 1 -- " + "x" * (1 << 20)
    assert admin.query(comment)["success"]
    assert sql_api(service, service.jwt(), comment).status == 200
    monkeypatch.setattr(http, "BODY_IDLE_SECONDS", 0.01)
    with pytest.raises(Refusal) as refusal:
        asyncio.run(http.read_body(lambda: asyncio.Future(), 10))
    assert refusal.value.status == 408


def test_an_upload_of_the_streaming_sdk_is_signed(service: ServiceInProcess) -> None:
    admin = service.connect()
    admin.query("CREATE TABLE t (id INT)")
    token = service.account.issue_scoped_token("127.0.0.1")
    info = service.call("POST", f"{PIPE}:pipe-info", {}, token=token).json()["rowset_stage_location"]
    path = f"/{info['location']}0.ndjson"
    headers = signed_upload(f"https://127.0.0.1{path}", b"rows", info["creds"])
    assert service.call("PUT", path, b"rows", headers).status == 200
    for wrong in (
        {"authorization": headers["authorization"][:-4] + "0000"}, {"x-amz-date": "20260101T000000Z"},
        {"host": "elsewhere"},
    ):  # fmt: skip
        assert service.call("PUT", path, b"rows", headers | wrong).status == 403
    assert service.call("PUT", path, b"other", headers).status == 400


def test_failures_are_500_and_what_the_end_cuts_off_is_503(service, caplog, monkeypatch):
    def fails(*_arguments: Any) -> None:
        raise KeyError("inside")

    monkeypatch.setattr(service.service._streaming, "handle", fails)
    answer = service.call("GET", "/v2/streaming/hostname", token=service.jwt())
    assert (answer.status, answer.json()["code"]) == (500, "INTERNAL_ERROR")
    errors = [one for one in caplog.records if one.name.startswith("snowpipe_local") and one.levelno >= 40]
    assert [one.exc_info is not None for one in errors] == [True]
    begun, released = threading.Event(), threading.Event()

    def waits(_request: object) -> Any:
        begun.set()
        released.wait()
        return http.Response.of_json({})

    async def cut_off() -> Any:
        task = asyncio.ensure_future(service.answer("GET", "/v2/streaming/hostname", token=service.jwt()))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        try:
            return await task
        finally:
            released.set()

    monkeypatch.setattr(service.service._streaming, "handle", waits)
    answer = asyncio.run(cut_off())
    assert (answer.status, answer.json()["code"]) == (503, "SERVICE_UNAVAILABLE")


def test_strange_requests_are_clean_errors(service: ServiceInProcess, admin: Any) -> None:
    assert admin.query("EXECUTE IMMEDIATE ''")["code"] == "000900"
    answer = service.call("POST", "/oauth/token-request", b"", {"authorization": "Basic é"})
    assert (answer.status, answer.json()["error"]) == (401, "invalid_client")
    for timeout in (b"1e400", b'"Infinity"'):
        body = b'{"statement": "SELECT 1", "timeout": ' + timeout + b"}"
        answer = service.call("POST", "/api/v2/statements", body, token=service.jwt())
        assert (answer.status, answer.json()["code"]) == (400, "391902")
    answered = admin.query(f"SELECT i FROM {MANY.format(30_000)}")["data"]
    for number, status in (("0", 200), ("1", 404), ("-1", 404), ("9" * 5_000, 404), ("²", 404)):
        path = f"/queries/{answered['queryId']}/chunks/{quote(number)}"
        assert service.call("GET", path, headers=answered["chunkHeaders"]).status == status
        for function in (f"CANCEL_ALL_QUERIES({number})", f"CANCEL_QUERY('{number}')"):
            assert admin.query(f"SELECT SYSTEM${function}")["code"] in {"000606", None}
        assert service.login(SESSION_PARAMETERS={"CLIENT_PREFETCH_THREADS": number})["success"]
    # Events need a privilege.
    for body, status in (({"Records": []}, 403), ({"Message": "[" * 100_000}, 400)):
        assert service.call("POST", "/v1/notifications/s3", body, token=service.jwt()).status == status
    admin.query("CREATE TABLE t (id INT)")
    for bindings in [{"1": None}, {"1": "x"}, {"1": {"type": "TEXT"}}, {"1": [1]}]:
        for statement in ("INSERT INTO t VALUES (?)", "SELECT ?"):
            assert admin.query(statement, bindings=bindings)["code"] == "100038"
    assert service.call("PUT", f"{PIPE}/channels/c", {}, token=service.jwt()).status == 200
    for method in ("PUT", "DELETE"):
        careful = {"fail_on_uncommitted_rows": "no"}
        refused = service.call(method, f"{PIPE}/channels/c", careful, token=service.jwt())
        assert (refused.status, refused.json()["code"]) == (400, "INVALID_REQUEST_BODY")


def test_statements_have_bounded_memory_and_time(tmp_path: Path) -> None:
    limits = parse_limits("engine-bytes=30000000,statement-seconds=3600")
    service = ServiceInProcess(tmp_path / "small", limits)
    try:
        session = service.connect()
        grown = session.query(f"SELECT ARRAY_AGG(i || '-{'x' * 200}') FROM {MANY.format(1_000_000)}")
        assert (grown["code"], "engine-bytes" in grown["message"]) == ("000603", True)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        wide = session.query(f"SELECT REPEAT(CHR(65 + MOD(i, 9)), 1000000) FROM {MANY.format(5_000)}")
        assert (wide["code"], "engine-bytes" in wide["message"]) == ("000603", True)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000
        filling = f"INSERT INTO t SELECT i FROM {MANY.format(300_000)}"
        timeout = "STATEMENT_TIMEOUT_IN_SECONDS"
        for statement in ("CREATE TABLE t (id INT)", "BEGIN", filling, f"ALTER SESSION SET {timeout} = 1"):
            assert session.query(statement)["success"]
        assert session.query(SLOW)["code"] == "000630"
        assert session.query(f"ALTER SESSION UNSET {timeout}")["success"]
        assert session.query("COMMIT")["success"]
        # What the process itself has no memory for.
        with patch.object(front, "_run", side_effect=MemoryError):
            assert session.query("SELECT 1")["code"] == "000603"
        kept = service.connect().query("SELECT id FROM t WHERE id >= 299999")
        assert kept["data"]["total"] == 1
    finally:
        service.close()


def test_calls_are_answered_while_many_statements_run(service, admin, monkeypatch):
    ended = threading.Event()

    def hold(_request: Any) -> http.Response:
        assert ended.wait(240)
        return http.Response.of_text("done")

    monkeypatch.setattr(service.service._connector, "handle", hold)
    headers = {"authorization": f'Snowflake Token="{admin.token}"'}

    async def ask() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(server._WORKERS))
        path = "/queries/v1/query-request"
        running = [
            asyncio.create_task(service.answer("POST", path, {"sqlText": "SELECT 1"}, headers))
            for _ in range(server._WORKERS + 1)
        ]
        try:
            async with asyncio.timeout(120):
                answer = await service.answer("GET", "/health")
        finally:
            ended.set()
        assert answer.status == 200
        assert {one.content for one in await asyncio.gather(*running)} == {b"done"}

    asyncio.run(ask())


def test_a_result_has_bounded_memory(tmp_path: Path) -> None:
    service = ServiceInProcess(tmp_path / "small", parse_limits("result-bytes=5000000"))
    session = service.connect()
    for value in ("i", f"'{'x' * 500}'"):
        assert session.query(f"SELECT {value} FROM {MANY.format(8_000)}")["data"]["total"] == 8_000
        refused = session.query(f"SELECT {value} FROM {MANY.format(2_000_000)}")
        assert (refused["code"], "result-bytes" in refused["message"]) == ("000603", True)
    assert session.query("SELECT 1")["success"]
    service.close()


def test_the_query_of_a_new_table_has_settings_and_time_limit_of_its_session(service, admin):
    admin.query("ALTER SESSION SET TIMEZONE = 'America/New_York'")
    query = "SELECT '2026-01-01'::TIMESTAMP_LTZ AS t, HOUR('2026-07-01 12:00 Z'::TIMESTAMP_LTZ) AS h"
    for create in ["CREATE TABLE made AS", "CREATE OR REPLACE TABLE made AS"]:
        assert admin.query(f"{create} {query}")["success"]
        made, selected = (admin.query(each)["data"]["rowset"] for each in ("SELECT * FROM made", query))
        assert made == selected == [["1767243600.000000000", "8"]]
    admin.query("ALTER SESSION SET STATEMENT_TIMEOUT_IN_SECONDS = 1")
    slow = f"CREATE TABLE slow AS SELECT s FROM ({SLOW.replace('+ c.i)', '+ c.i) AS s')})"
    assert admin.query(slow)["code"] == "000630"
    assert admin.query("SHOW TABLES LIKE 'slow'")["data"]["total"] == 0


def test_the_time_limit_is_the_users_unless_the_session_asks_and_the_warehouses_where_lower(service):
    """ "Parameters", STATEMENT_TIMEOUT_IN_SECONDS: the lowest of session and warehouse is enforced."""
    for value in ["-1", "nan", "x", "0"]:
        session = Session(service.catalog, "DEMO", parameters={"STATEMENT_TIMEOUT_IN_SECONDS": value})
        assert session.seconds_of() == DEFAULTS.statement_seconds
    session = Session(service.catalog, "DEMO")
    for statement, seconds in (
        ("ALTER USER demo SET STATEMENT_TIMEOUT_IN_SECONDS = 60", 60.0),
        ("ALTER SESSION SET STATEMENT_TIMEOUT_IN_SECONDS = 600", 600.0),
        ("CREATE WAREHOUSE timed STATEMENT_TIMEOUT_IN_SECONDS = 30", 30.0),
        ("ALTER WAREHOUSE timed SET STATEMENT_TIMEOUT_IN_SECONDS = 900", 600.0),
        ("ALTER SESSION UNSET STATEMENT_TIMEOUT_IN_SECONDS", 60.0),
        ("ALTER USER demo UNSET STATEMENT_TIMEOUT_IN_SECONDS", 900.0),
    ):
        front.execute(session, statement)
        assert session.seconds_of() == seconds, statement
    session.close()


def test_patterns_take_linear_time_and_that_of_a_pipe_is_checked_at_its_creation(service, admin):
    for statement in ("CREATE TABLE t (id INT)", "CREATE STAGE s"):
        admin.query(statement)
    copy = "AS COPY INTO t FROM @s PATTERN = "
    for wrong in ("[", "(?!a)b"):
        assert admin.query(f"CREATE PIPE p {copy} '{wrong}'")["code"] == "100048"
    assert admin.query(f"CREATE PIPE p {copy} '(a+)+b'")["success"]
    files = {"files": [{"path": "a" * 40}, {"path": "aab"}]}
    answer = service.call("POST", "/v1/data/pipes/LOCAL.PUBLIC.P/insertFiles", files, token=service.jwt())
    assert (answer.status, answer.json()["unmatchedPatternFiles"]) == (200, ["a" * 40])
    admin.query(f"CREATE TABLE {'a' * 200} (id INT)")
    for pattern, count in (
        ("%a" * 100 + "%b", 0), ("%A" * 100 + "%", 1), ("a%" + "_" * 199, 1), ("a%" + "_" * 200, 0),
        (r"a\\_%", 0), ("a", 0), ("%", 2),
    ):  # fmt: skip
        assert admin.query(f"SHOW TABLES LIKE '{pattern}'")["data"]["total"] == count, pattern


def test_json_that_is_nested_deeper_than_the_engine_s_stack_is_refused(admin: Any) -> None:
    """The process would end: the engine handles a JSON value by calls of calls."""
    admin.query("CREATE TABLE v (v VARIANT)")
    for deep in ('{"a":' * 50_000 + "1" + "}" * 50_000, "[[]," * 50_000 + "1" + "]" * 50_000):
        refused = admin.query(f"SELECT PARSE_JSON('{deep}') = PARSE_JSON('1')")
        assert (refused["code"], "more than 10000 levels" in refused["message"]) == ("100069", True)
        assert admin.query(f"INSERT OVERWRITE INTO v SELECT TRY_PARSE_JSON('{deep}')")["success"]
        assert admin.query("SELECT 1 FROM v WHERE v IS NULL")["data"]["total"] == 1
    flat = json.dumps([{"a": [[[[i]]]], "b": {"c": ["x]y{z[["]}} for i in range(12_000)])
    assert admin.query(f"SELECT ARRAY_SIZE(PARSE_JSON('{flat}')) n")["data"]["rowset"] == [["12000"]]


def test_a_quoted_name_in_a_url_is_taken_letter_by_letter(service: ServiceInProcess, admin: Any) -> None:
    for statement in ("TABLE t (id INT)", 'TABLE "a""b" (id INT)', f"PIPE p AS {COPY}"):
        assert admin.query(f"CREATE {statement}")["success"], statement
    token, scoped = service.jwt(), service.account.issue_scoped_token("127.0.0.1")
    for status, names in {
        200: "local/public/t-streaming 'LOCAL'/'PUBLIC'/'T-STREAMING' LOCAL/PUBLIC/'a''b-STREAMING' "
        "LOCAL/PUBLIC/A'B-STREAMING LOCAL/PUBLIC/'P'",
        404: "LOCAL/'public'/T-STREAMING 'local'/PUBLIC/T-STREAMING LOCAL/PUBLIC/'t-STREAMING' "
        "LOCAL/PUBLIC/'T-streaming' LOCAL/PUBLIC/'a'b-STREAMING LOCAL/PUBLIC/'' LOCAL/PUBLIC/'p'",
    }.items():
        for name in names.replace("'", "%22").split():
            database, schema, pipe = name.split("/")
            url = f"databases/{database}/schemas/{schema}"
            target = f"{url}/pipes/{pipe}"
            info = service.call("POST", f"/v2/streaming/{target}:pipe-info", {}, token=token)
            opened = service.call("PUT", f"/v2/streaming/{target}/channels/c", {}, token=token)
            assert (info.status, opened.status) == (status, status), (target, info.content)
            at = f"continuationToken={opened.json().get('next_continuation_token', '0_0')}"
            calls = [f"{target}/channels/c/rows?{at}&requestId={uuid.uuid4()}"]
            if "-STREAMING" in pipe:
                table = pipe.replace("-STREAMING", "")
                calls.append(f"{url}/tables/{table}/rows?requestId={uuid.uuid4()}")
            for call in calls:
                answer = service.call("POST", f"/v2/streaming/data/{call}", b'{"ID":1}\n', token=scoped)
                assert answer.status == status, (call, answer.content)
                assert status == 200 or answer.json()["code"].endswith("NOT_AUTHORIZED")


@pytest.mark.parametrize(
    "change", ["SET PASSWORD = 'another long password'", "UNSET PASSWORD", "SET DISABLED = TRUE"]
)
def test_alter_user_ends_the_password_that_was_issued_for_the_first_user(service, admin, change):
    issued = service.home.password_file.read_text().strip()
    assert service.login("DEMO", issued)["success"]
    assert admin.query(f"ALTER USER demo {change}")["success"]
    ended = service.login("DEMO", issued)["code"]
    ensure_account(service.home, service.access)
    assert ended == service.login("DEMO", issued)["code"] == "390100"
    assert bool(service.access.state.users["DEMO"].password) == ("UNSET" not in change)


@pytest.fixture
def restricted(service: ServiceInProcess, admin: Any) -> str:
    """A token of OTHER that is restricted to the role LOW; OTHER may use HIGH as well, by every session."""
    for statement in (
        "CREATE ROLE low", "CREATE ROLE high", "GRANT ROLE low TO USER other",
        "GRANT ROLE high TO USER other",
        "GRANT USAGE ON DATABASE local TO ROLE PUBLIC", "GRANT USAGE ON SCHEMA local.public TO ROLE PUBLIC",
        "CREATE TABLE secret AS SELECT 42 AS n", "GRANT SELECT ON TABLE secret TO ROLE high",
        "ALTER USER other SET DEFAULT_ROLE = 'HIGH' DEFAULT_SECONDARY_ROLES = ('ALL')",
    ):  # fmt: skip
        assert admin.query(statement)["success"], statement
    return added(admin, "p", "ROLE_RESTRICTION = 'LOW'")


def test_a_token_restricted_to_a_role_uses_no_other_one(service, admin, restricted):
    session = service.connect("OTHER", restricted)
    assert session.query("SELECT CURRENT_ROLE()")["data"]["rowset"] == [["LOW"]]
    for statement, code in (
        ("SELECT n FROM local.public.secret", "002003"), ("USE ROLE high", "003013"),
        ("USE ROLE PUBLIC", "003013"), ("USE SECONDARY ROLES ALL", "003013"),
        ("ALTER USER other ADD PAT all_roles", "003013"),
        ("ALTER USER other ADD PAT higher ROLE_RESTRICTION = 'HIGH'", "003013"),
        ("EXECUTE IMMEDIATE 'USE ROLE high'", "003013"),
    ):  # fmt: skip
        answer = session.query(statement)
        assert (answer["success"], answer["code"]) == (False, code), statement
    for statement in ("USE ROLE low", "USE SECONDARY ROLES NONE", "SELECT 1"):
        assert session.query(statement)["success"], statement
    assert session.query("SELECT n FROM local.public.secret")["code"] == "002003"


def test_a_token_restricted_to_a_role_reads_no_result_of_another_role(service, restricted):
    high = service.connect("OTHER", PASSWORD).query("SELECT n FROM local.public.secret")["data"]
    assert high["rowset"] == [["42"]]
    low = service.connect("OTHER", restricted)
    own = low.query("SELECT 7")["data"]["queryId"]
    for query_id, found in ((high["queryId"], False), (own, True)):
        text = f"SELECT * FROM TABLE(RESULT_SCAN('{query_id}'))"
        assert low.query(text)["success"] == found
        assert low.query(f"SELECT count(*) FROM TABLE(RESULT_SCAN('{query_id}'))")["success"] == found
    unrestricted = service.connect("OTHER", PASSWORD)
    assert unrestricted.query(f"SELECT * FROM TABLE(RESULT_SCAN('{own}'))")["success"]


def test_the_sql_api_keeps_to_the_role_of_its_token(service, admin, restricted):
    everything, statement = added(admin, "q"), "SELECT n FROM local.public.secret"
    path = f"?requestId={uuid.uuid4()}"
    high = sql_api(service, everything, statement, path)
    assert (high.status, high.json()["data"]) == (200, [["42"]])
    assert sql_api(service, restricted, statement, path).status == 422
    for role in ("HIGH", "PUBLIC"):
        assert sql_api(service, restricted, statement, role=role).status == 422
    handle = f"/api/v2/statements/{high.json()['statementHandle']}"
    assert service.call("GET", handle, token=restricted).status == 404
    assert service.call("POST", f"{handle}/cancel", {}, token=restricted).status == 404
    assert service.call("GET", handle, token=everything).status == 200
