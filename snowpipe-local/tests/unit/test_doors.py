"""Who gets in, for how long, and with how much: sessions, tokens, bodies, results."""

from __future__ import annotations

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


# -- results belong to user, session and statement ----------------------------------------------------------


def test_a_request_id_belongs_to_a_session_and_to_one_statement(service, admin):
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


def test_a_request_id_of_the_sql_api_belongs_to_a_user_and_to_one_statement(service, admin):
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


def test_bindings_of_the_sql_api_are_numbered(service: ServiceInProcess, admin: Any) -> None:
    for bindings in [{"a": {"type": "TEXT", "value": "1"}}, [{"type": "TEXT"}]]:
        body = {"statement": "SELECT 1", "bindings": bindings}
        refused = service.call("POST", "/api/v2/statements", body, token=service.jwt())
        assert refused.status == 422
        assert "positions" in refused.json()["message"]


def test_the_sql_api_names_a_value_of_the_wrong_type(service: ServiceInProcess) -> None:
    for wrong, named in [
        ({"statement": ["SELECT 1"]}, "statement"), ({"statement": {"text": "SELECT 1"}}, "statement"),
        ({"statement": 1}, "statement"), ({"role": ["PUBLIC"]}, "role"),
        ({"parameters": ["query_tag"]}, "parameters"), ({"parameters": "query_tag"}, "parameters"),
        ({"parameters": {"query_tag": ["a"]}}, "query_tag"),
    ]:  # fmt: skip
        refused = service.call(
            "POST", "/api/v2/statements", {"statement": "SELECT 1", **wrong}, token=service.jwt()
        )
        assert (refused.status, refused.json()["code"]) == (400, "391902")
        assert named in refused.json()["message"]


def test_what_anybody_may_read_takes_get_only(service: ServiceInProcess) -> None:
    for path in ["/health", "/openapi.json"]:
        assert [service.call(method, path).status for method in ("GET", "POST", "DELETE")] == [200, 405, 405]


def test_only_the_user_of_a_statement_sees_or_stops_it(service: ServiceInProcess, admin: Any) -> None:
    query_id = admin.query("SELECT 'secret'")["data"]["queryId"]
    assert service.connect().call("GET", f"/queries/{query_id}/result")["success"]
    other = service.connect("OTHER", PASSWORD)
    assert other.call("GET", f"/queries/{query_id}/result")["code"] == "000709"
    assert other.call("GET", f"/monitoring/queries/{query_id}")["data"]["queries"] == []
    assert not other.call("POST", f"/queries/{query_id}/abort-request")["success"]


# -- sessions and tokens end --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "ALTER USER other SET DISABLED = TRUE",
        "DROP USER other",
        f"CREATE OR REPLACE USER other PASSWORD = '{PASSWORD}'",
        "REVOKE ROLE loader FROM USER other",
    ],
)
def test_sessions_and_statements_end_with_their_user(service, admin, change):
    for statement in (
        "CREATE ROLE loader", "GRANT ROLE loader TO USER other", "ALTER USER other SET DEFAULT_ROLE = loader",
    ):  # fmt: skip
        assert admin.query(statement)["success"]
    other = service.connect("OTHER", PASSWORD)
    assert other.query("SELECT CURRENT_ROLE()")["data"]["finalRoleName"] == "LOADER"
    running = other.query(SLOW, asyncExec=True)["data"]["queryId"]
    admin.query(change)
    assert other.query("SELECT 1")["code"] == "390111"
    execution = service.service._connector._executions.find(running)
    assert execution.wait(240)
    assert execution.error is not None


@pytest.mark.parametrize("kind", ["access token", "access token as password", "key"])
def test_sessions_and_statements_end_with_the_credential_that_opened_them(service, admin, kind):
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = _public_key(key).splitlines()[1:-1]
    admin.query(f"ALTER USER other SET RSA_PUBLIC_KEY = '{''.join(text)}'")
    pat = admin.query("ALTER USER other ADD PAT p")["data"]["rowset"][0][1]
    pat_kind = "PROGRAMMATIC_ACCESS_TOKEN"
    if kind == "key":
        credential = _jwt_of(service, key)
        opened = service.connect("OTHER", "", AUTHENTICATOR="SNOWFLAKE_JWT", TOKEN=credential)
    elif kind == "access token":
        credential = pat
        opened = service.connect("OTHER", "", AUTHENTICATOR=pat_kind, TOKEN=pat)
    else:
        credential = pat
        opened = service.connect("OTHER", pat)
    kept = service.connect("OTHER", PASSWORD)
    submitted = service.call("POST", "/api/v2/statements?async=true", {"statement": SLOW}, token=credential)
    running = opened.query(SLOW, asyncExec=True)["data"]["queryId"]
    admin.query("ALTER USER other " + ("UNSET RSA_PUBLIC_KEY" if kind == "key" else "REMOVE PAT p"))
    assert opened.query("SELECT 1")["code"] == "390111"
    assert kept.query("SELECT 1")["success"]
    for execution in (
        service.service._connector._executions.find(running),
        service.service._sql_api._submissions.find(submitted.json()["statementHandle"]),
    ):
        assert execution.wait(240)
        assert execution.error is not None


def test_a_revoked_role_stops_its_statements_of_the_sql_api(service: ServiceInProcess, admin: Any) -> None:
    for statement in ("CREATE ROLE loader", "GRANT ROLE loader TO USER other"):
        admin.query(statement)
    pat = admin.query("ALTER USER other ADD PAT p")["data"]["rowset"][0][1]
    body = {"statement": SLOW, "role": "LOADER"}
    handle = service.call("POST", "/api/v2/statements?async=true", body, token=pat).json()["statementHandle"]
    admin.query("REVOKE ROLE loader FROM USER other")
    execution = service.service._sql_api._submissions.find(handle)
    assert execution.wait(240)
    assert execution.error is not None


def test_another_user_of_the_same_name_has_no_result_of_the_first(service, admin):
    pat = admin.query("ALTER USER other ADD PAT p")["data"]["rowset"][0][1]
    path = f"/api/v2/statements?requestId={uuid.uuid4()}"
    handle = service.call("POST", path, {"statement": "SELECT 'mine'"}, token=pat).json()["statementHandle"]
    large = service.connect("OTHER", PASSWORD).query(f"SELECT i FROM {MANY.format(30_000)}")["data"]
    chunk = "/" + large["chunks"][0]["url"].partition("//")[2].partition("/")[2]
    assert service.call("GET", chunk, None, large["chunkHeaders"]).status == 200
    admin.query(f"CREATE OR REPLACE USER other PASSWORD = '{PASSWORD}'")
    pat = admin.query("ALTER USER other ADD PAT p")["data"]["rowset"][0][1]
    assert service.call("GET", f"/api/v2/statements/{handle}", token=pat).status == 404
    again = service.call("POST", path, {"statement": "SELECT 'mine'"}, token=pat).json()
    assert again["statementHandle"] != handle
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


def _public_key(key: rsa.RSAPrivateKey) -> str:
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return key.public_key().public_bytes(*form).decode()


def _jwt_of(service: ServiceInProcess, key: rsa.RSAPrivateKey) -> str:
    subject, now = f"{service.account.name}.OTHER", int(time.time())
    issuer = f"{subject}.{fingerprint(_public_key(key))}"
    claims = {"iss": issuer, "sub": subject, "iat": now, "exp": now + 600}
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


def test_a_dropped_user_of_the_same_name_has_no_scoped_token(service: ServiceInProcess, admin: Any) -> None:
    token = service.account.issue_scoped_token("127.0.0.1", "OTHER")
    path = "/v2/streaming/databases/LOCAL/schemas/PUBLIC/pipes/T-STREAMING:pipe-info"
    assert service.call("POST", path, {}, token=token).status == 404
    admin.query("DROP USER other")
    admin.query("CREATE USER other")
    assert service.call("POST", path, {}, token=token).status == 401


def test_a_removed_access_token_ends_its_scoped_tokens(service: ServiceInProcess, admin: Any) -> None:
    pat = admin.query("ALTER USER other ADD PAT p")["data"]["rowset"][0][1]
    kept = admin.query("ALTER USER other ADD PAT q")["data"]["rowset"][0][1]
    path = "/v2/streaming/databases/LOCAL/schemas/PUBLIC/pipes/T-STREAMING:pipe-info"
    first, second = _exchanged(service, pat), _exchanged(service, kept)
    assert service.call("POST", path, {}, token=first).status == 404
    admin.query("ALTER USER other REMOVE PAT p")
    assert service.call("POST", path, {}, token=first).status == 401
    assert service.call("POST", path, {}, token=second).status == 404


def test_another_key_ends_the_scoped_tokens_of_the_old_one(service: ServiceInProcess, admin: Any) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    admin.query(f"ALTER USER other SET RSA_PUBLIC_KEY = '{''.join(_public_key(key).splitlines()[1:-1])}'")
    scoped = _exchanged(service, _jwt_of(service, key), key_pair=True)
    path = "/v2/streaming/databases/LOCAL/schemas/PUBLIC/pipes/T-STREAMING:pipe-info"
    assert service.call("POST", path, {}, token=scoped).status == 404
    admin.query("ALTER USER other UNSET RSA_PUBLIC_KEY")
    assert service.call("POST", path, {}, token=scoped).status == 401


def _exchanged(service: ServiceInProcess, credential: str, *, key_pair: bool = False) -> str:
    grant = "jwt-bearer" if key_pair else "token-exchange"
    form = {"grant_type": f"urn:ietf:params:oauth:grant-type:{grant}", "scope": "127.0.0.1"}
    if not key_pair:
        form["subject_token_type"] = "programmatic_access_token"
    answer = service.call("POST", "/oauth/token", urlencode(form).encode(), token=credential)
    assert answer.status == 200, answer.content
    return answer.content.decode()


def test_a_jwt_whose_times_are_no_numbers_is_refused(service: ServiceInProcess) -> None:
    for kind in ["nan", "inf", "endless"]:
        claims = jwt.decode(service.jwt(), options={"verify_signature": False})
        for name in ("exp", "iat"):
            token = _signed(service, claims | {name: 10**400 if kind == "endless" else float(kind)})
            answer = service.call("POST", "/api/v2/statements", {"statement": "SELECT 1"}, token=token)
            assert (answer.status, answer.json()["code"]) == (401, "JWT_TOKEN_INVALID")


def _signed(service: ServiceInProcess, claims: dict[str, Any]) -> str:
    # PyJWT checks what it signs; the signature is that of any RS256 token.
    head, payload = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "RS256", "typ": "JWT"}, claims)
    )
    key: Any = load_pem_private_key(service.home.key_file.read_bytes(), None)
    signature = key.sign(head + b"." + payload, padding.PKCS1v15(), hashes.SHA256())
    return (head + b"." + payload + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def test_a_token_of_an_upload_only_uploads(service: ServiceInProcess, admin: Any, tmp_path: Path) -> None:
    for command, method in [("PUT", "GET"), ("GET", "PUT")]:
        admin.query("CREATE STAGE s")
        info = _transfer(admin, "PUT file:///x/a.csv @s")
        url, token = f"/{info['location']}a.csv", info["creds"]["GCS_ACCESS_TOKEN"]
        assert service.call("PUT", url, b"1\n", token=token).status == 200
        assert service.call("HEAD", url, token=token).status == 200
        info = _transfer(admin, "PUT file:///x/a.csv @s" if command == "PUT" else "GET @s/a.csv file:///tmp")
        answer = service.call(method, url, b"2\n", token=info["creds"]["GCS_ACCESS_TOKEN"])
        assert answer.status == 403


def _transfer(connector: Any, statement: str) -> Any:
    return connector.query(statement)["data"]["stageInfo"]


# -- bodies -------------------------------------------------------------------------------------------------


def test_bodies_of_strangers_are_small(service: ServiceInProcess) -> None:
    large = b" " * (1 << 20)
    assert service.call("POST", "/session/v1/login-request", large).status == 413
    assert service.call("POST", "/oauth/token-request", large).status == 413
    bomb = zstandard.compress(bytes(64 << 20))
    packed = service.call("POST", "/session/v1/login-request", bomb, {"content-encoding": "zstd"})
    assert packed.status == 413
    for path in ("/api/v2/statements", "/v1/data/pipes/A.B.C/insertFiles", f"{CHANNEL}/rows"):
        assert service.call("POST", path, large, token="wrong").status == 401
    assert service.call("POST", "/queries/v1/query-request", large).json()["code"] == "390111"


def test_large_statements_of_sessions_are_read(service: ServiceInProcess, admin: Any) -> None:
    assert admin.query("SELECT 1 -- " + "x" * (1 << 20))["success"]
    body = {"statement": "SELECT 1 -- " + "x" * (1 << 20)}
    assert service.call("POST", "/api/v2/statements", body, token=service.jwt()).status == 200


def test_a_body_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_events_of_a_bucket_need_a_privilege(service: ServiceInProcess, admin: Any) -> None:
    events: dict[str, Any] = {"Records": []}
    answer = service.call("POST", "/v1/notifications/s3", events, token=service.jwt())
    assert (answer.status, answer.json()["code"]) == (403, "390403")


# -- failures -----------------------------------------------------------------------------------------------


def test_failures_of_the_service_are_500_and_logged_once(service, caplog, monkeypatch):
    def fails(*_arguments: Any) -> None:
        raise KeyError("inside")

    monkeypatch.setattr(service.service._streaming, "handle", fails)
    answer = service.call("GET", "/v2/streaming/hostname", token=service.jwt())
    assert (answer.status, answer.json()["code"]) == (500, "INTERNAL_ERROR")
    errors = [one for one in caplog.records if one.name.startswith("snowpipe_local") and one.levelno >= 40]
    assert [one.exc_info is not None for one in errors] == [True]


def test_a_request_that_the_end_of_the_server_cuts_off_is_to_be_sent_again(service, monkeypatch):
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


def test_a_token_of_endlessly_nested_json_is_refused(service, admin, monkeypatch, caplog):
    admin.query("CREATE STAGE s")
    uploads = admin.query("PUT file:///tmp/a @s")["data"]["stageInfo"]["location"]
    token = ".".join(
        base64.urlsafe_b64encode(part).decode() for part in (b'{"alg": ' + b"[" * 6000, b"{}", b"x" * 3)
    )

    def read(given: str | bytes, *_more: Any, **_options: Any) -> Any:
        head = given.encode() if isinstance(given, str) else given
        return json.loads(base64.urlsafe_b64decode(head.split(b".")[0]))

    # As PyJWT 2.10.1 does; newer ones find the error themselves.
    monkeypatch.setattr(jwt, "decode", read)
    monkeypatch.setattr(jwt, "get_unverified_header", read)
    for path in (
        "v2/streaming/hostname", "api/v2/statements/x", "local/status", f"{uploads}a",
        "v1/data/pipes/x/insertReport",
    ):  # fmt: skip
        assert service.call("GET", f"/{path}", token=token).status == 400
    assert service.call("POST", f"{CHANNEL}/rows", b"{}", token=token).status == 400
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_an_upload_location_takes_nothing_but_put(service: ServiceInProcess) -> None:
    answer = service.call("DELETE", "/snowpipe-local-stage/0123456789abcdef/0.ndjson")
    assert (answer.status, answer.json()["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "PUT"


def test_strange_requests_are_clean_errors(service: ServiceInProcess, admin: Any) -> None:
    assert admin.query("EXECUTE IMMEDIATE ''")["code"] == "000900"
    answer = service.call("POST", "/oauth/token-request", b"", {"authorization": "Basic é"})
    assert (answer.status, answer.json()["error"]) == (401, "invalid_client")
    for timeout in (b"1e400", b"-1e400", b'"Infinity"'):
        body = b'{"statement": "SELECT 1", "timeout": ' + timeout + b"}"
        answer = service.call("POST", "/api/v2/statements", body, token=service.jwt())
        assert (answer.status, answer.json()["code"]) == (400, "391902")
    for number in ("9" * 5_000, "²"):
        for text in (
            f"SELECT SYSTEM$CANCEL_ALL_QUERIES({number})", f"SELECT SYSTEM$CANCEL_QUERY('{number}')",
        ):  # fmt: skip
            assert admin.query(text)["code"] in {"000606", None}
        assert service.login(SESSION_PARAMETERS={"CLIENT_PREFETCH_THREADS": number})["success"]
    answered = admin.query(f"SELECT i FROM {MANY.format(30_000)}")["data"]
    for number, status in (("0", 200), ("1", 404), ("9" * 5_000, 404), ("²", 404), ("-1", 404)):
        path = f"/queries/{answered['queryId']}/chunks/{quote(number)}"
        assert service.call("GET", path, headers=answered["chunkHeaders"]).status == status
    notification = {"Message": "[" * 100_000}
    assert service.call("POST", "/v1/notifications/s3", notification, token=service.jwt()).status == 400


def test_a_text_longer_than_a_varchar_is_not_made(admin: Any) -> None:
    for statement, code in [
        ("SELECT format('{:>1000000000}', 1)", "002140"), ("SELECT printf('%1000000000d', 1)", "002140"),
        ("SELECT REPEAT('xy', 100000000)", "100078"),
        ("SELECT LENGTH(LPAD('x', i * 1000000, 'y')) FROM (SELECT 1000 AS i)", "100078"),
        ("SELECT SPACE(1000000000)", "100078"),
        ("SELECT LENGTH(REPEAT(REPEAT('a', 16000000), 100))", "100078"),
        ("SELECT LENGTH(REPLACE(REPEAT('a', 1000000), 'a', REPEAT('b', 1000)))", "100078"),
        ("SELECT LENGTH(REGEXP_REPLACE(REPEAT('a', 1000000), 'a', REPEAT('b', 1000)))", "100078"),
        ("SELECT LENGTH(LISTAGG(REPEAT('a', 16000000))) FROM TABLE(GENERATOR(ROWCOUNT => 9))", "100078"),
    ]:  # fmt: skip
        assert admin.query(statement)["code"] == code
        assert admin.query("SELECT REPEAT('xy', 3), RPAD('x', 3, 'y'), SPACE(2)")["success"]


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


@pytest.mark.parametrize("value", ["i", f"'{'x' * 500}'"])
def test_a_result_has_bounded_memory(tmp_path: Path, value: str) -> None:
    service = ServiceInProcess(tmp_path / "small", parse_limits("result-bytes=5000000"))
    try:
        session = service.connect()
        assert session.query(f"SELECT {value} FROM {MANY.format(8_000)}")["data"]["total"] == 8_000
        refused = session.query(f"SELECT {value} FROM {MANY.format(2_000_000)}")
        assert (refused["code"], "result-bytes" in refused["message"]) == ("000603", True)
        assert session.query("SELECT 1")["success"]
    finally:
        service.close()


def test_the_query_of_a_new_table_has_settings_and_time_limit_of_its_session(service, admin):
    for create in ["CREATE TABLE made AS", "CREATE OR REPLACE TABLE made AS"]:
        admin.query("ALTER SESSION SET TIMEZONE = 'America/New_York'")
        noon = "'2026-07-01 12:00 +00:00'::TIMESTAMP_TZ"
        query = f"SELECT '2026-01-01'::TIMESTAMP_LTZ AS t, HOUR({noon}::TIMESTAMP_LTZ)"
        assert admin.query(f"{create} {query} AS h")["success"]
        made, selected = (admin.query(each)["data"]["rowset"] for each in ("SELECT * FROM made", query))
        assert made == selected == [["1767243600.000000000", "8"]]
        divided = admin.query(f"{create.replace('made', 'other')} SELECT 1::FLOAT / 0::FLOAT AS f")
        assert divided["code"] == "100051"
        admin.query("ALTER SESSION SET STATEMENT_TIMEOUT_IN_SECONDS = 1")
        slow = f"{create.replace('made', 'slow')} SELECT s FROM ({SLOW.replace('+ c.i)', '+ c.i) AS s')})"
        assert admin.query(slow)["code"] == "000630"
        assert admin.query("SHOW TABLES LIKE 'slow'")["data"]["total"] == 0


def test_no_value_of_a_session_lifts_the_time_limit(service: ServiceInProcess) -> None:
    for value in ["-1", "nan", "x", "0"]:
        session = Session(service.catalog, "DEMO", parameters={"STATEMENT_TIMEOUT_IN_SECONDS": value})
        assert session.seconds_of() == DEFAULTS.statement_seconds


def test_the_time_limit_is_the_users_unless_the_session_asks_and_the_warehouses_where_lower(service):
    """ "Parameters", STATEMENT_TIMEOUT_IN_SECONDS: the lowest of session and warehouse is enforced."""
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


def test_the_pattern_of_a_pipe_takes_linear_time_and_is_checked_at_its_creation(service, admin):
    for statement in ("CREATE TABLE t (id INT)", "CREATE STAGE s"):
        admin.query(statement)
    copy = "AS COPY INTO t FROM @s PATTERN = "
    for wrong in ("[", "(?!a)b"):
        assert admin.query(f"CREATE PIPE p {copy} '{wrong}'")["code"] == "100048"
    assert admin.query(f"CREATE PIPE p {copy} '(a+)+b'")["success"]
    files = {"files": [{"path": "a" * 40}, {"path": "aab"}]}
    answer = service.call("POST", "/v1/data/pipes/LOCAL.PUBLIC.P/insertFiles", files, token=service.jwt())
    assert (answer.status, answer.json()["unmatchedPatternFiles"]) == (200, ["a" * 40])


def test_the_pattern_of_show_takes_linear_time(admin: Any) -> None:
    name = "a" * 200
    admin.query(f"CREATE TABLE {name} (id INT)")
    for pattern, count in (
        ("%a" * 100 + "%b", 0), ("%A" * 100 + "%", 1), ("a%" + "_" * 199, 1), ("a%" + "_" * 200, 0),
        ("_" * 200, 1), (r"a\\_%", 0), ("a", 0), ("%", 1),
    ):  # fmt: skip
        shown = admin.query(f"SHOW TABLES LIKE '{pattern}'")["data"]["total"]
        assert shown == count, pattern


DEEP = {"objects": '{"a":' * 50_000 + "1" + "}" * 50_000, "arrays": "[[]," * 50_000 + "1" + "]" * 50_000}


def test_json_that_is_nested_deeper_than_the_engine_s_stack_is_refused(admin: Any) -> None:
    """The process would end: the engine handles a JSON value by calls of calls."""
    for kind in DEEP:
        refused = admin.query(f"SELECT PARSE_JSON('{DEEP[kind]}') = PARSE_JSON('1')")
        assert (refused["code"], "more than 10000 levels" in refused["message"]) == ("100069", True)
        for statement in ("CREATE OR REPLACE TABLE v (v VARIANT)", "CREATE OR REPLACE STAGE s"):
            admin.query(statement)
        tried = f"INSERT INTO v SELECT TRY_PARSE_JSON('{DEEP[kind]}')"
        assert admin.query(tried)["success"]
        assert admin.query("SELECT 1 FROM v WHERE v IS NULL")["data"]["total"] == 1


def test_large_json_that_is_flat_is_read(admin: Any) -> None:
    text = json.dumps([{"a": [[[[i]]]], "b": {"c": ["x]y{z[["]}} for i in range(12_000)])
    counted = admin.query(f"SELECT ARRAY_SIZE(PARSE_JSON('{text}')) n")
    assert counted["data"]["rowset"] == [["12000"]]


def test_what_is_no_bound_value_is_an_error_of_the_statement(admin: Any) -> None:
    for bindings in [{"1": None}, {"1": "x"}, {"1": {"type": "TEXT"}}, {"1": [1]}]:
        admin.query("CREATE TABLE t (id INT)")
        for statement in ("INSERT INTO t VALUES (?)", "SELECT ?"):
            assert admin.query(statement, bindings=bindings)["code"] == "100038"


# -- several statements in one request ----------------------------------------------------------------------


def test_several_statements_run_when_they_are_counted(admin: Any) -> None:
    text = "CREATE TABLE m (id INT); INSERT INTO m VALUES (1), (2); SELECT COUNT(*) FROM m"
    for given in ({}, {"MULTI_STATEMENT_COUNT": 2}):
        assert admin.query(text, parameters=given)["code"] == "000008"
    data = admin.query(text, parameters={"MULTI_STATEMENT_COUNT": 3})["data"]
    results = [admin.call("GET", f"/queries/{id}/result")["data"] for id in data["resultIds"].split(",")]
    assert [result["statementTypeId"] for result in results] == [0x6000, 0x3100, 0x1000]
    assert data["resultTypes"] == "24576,12544,4096"
    assert results[1]["rowset"] == [["2"]]
    admin.query("ALTER SESSION SET MULTI_STATEMENT_COUNT = 0")
    failed = admin.query("INSERT INTO m VALUES (3); SELECT 1/0; DELETE FROM m")
    assert (failed["success"], failed["code"]) == (False, "100051")
    assert admin.query("SELECT id FROM m")["data"]["total"] == 3


def test_parameters_are_shown_with_their_defaults(admin: Any) -> None:
    admin.query("ALTER SESSION SET AUTOCOMMIT = FALSE")
    data = admin.query("SHOW PARAMETERS LIKE 'AUTO%' IN SESSION")["data"]
    assert [column["name"] for column in data["rowtype"]] == [
        "key", "value", "default", "level", "description", "type",
    ]  # fmt: skip
    (row,) = data["rowset"]
    assert (*row[:4], row[5]) == ("AUTOCOMMIT", "false", "true", "SESSION", "BOOLEAN")
    assert len(admin.query("SHOW PARAMETERS")["data"]["rowset"]) > 30
    # Of files that Snowsight downloads.
    assert admin.query("ALTER SESSION SET CSV_TIMESTAMP_FORMAT = 'YYYY-MM-DD'")["success"]


# -- names in streaming URLs --------------------------------------------------------------------------------


def test_a_quoted_name_in_a_url_is_taken_letter_by_letter(service: ServiceInProcess, admin: Any) -> None:
    for statement in ("TABLE t (id INT)", 'TABLE "a""b" (id INT)', f"PIPE p AS {COPY}"):
        assert admin.query(f"CREATE {statement}")["success"], statement
    token, scoped = service.jwt(), service.account.issue_scoped_token("127.0.0.1")
    for database, schema, pipe, status in (
        ("LOCAL", "%22public%22", "T-STREAMING", 404), ("%22local%22", "PUBLIC", "T-STREAMING", 404),
        ("local", "public", "t-streaming", 200), ("%22LOCAL%22", "%22PUBLIC%22", "%22T-STREAMING%22", 200),
        ("LOCAL", "PUBLIC", "%22t-STREAMING%22", 404), ("LOCAL", "PUBLIC", "%22T-streaming%22", 404),
        ("LOCAL", "PUBLIC", "%22a%22%22b-STREAMING%22", 200), ("LOCAL", "PUBLIC", "A%22B-STREAMING", 200),
        ("LOCAL", "PUBLIC", "%22a%22b-STREAMING%22", 404), ("LOCAL", "PUBLIC", "%22%22", 404),
        ("LOCAL", "PUBLIC", "%22P%22", 200), ("LOCAL", "PUBLIC", "%22p%22", 404),
    ):  # fmt: skip
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


# -- the password that the service issued for its own user --------------------------------------------------


@pytest.mark.parametrize(
    "change", ["SET PASSWORD = 'another long password'", "UNSET PASSWORD", "SET DISABLED = TRUE"]
)
def test_alter_user_ends_the_password_that_was_issued_for_the_first_user(service, admin, change):
    issued = service.home.password_file.read_text().strip()
    assert service.login("DEMO", issued)["success"]
    assert admin.query(f"ALTER USER demo {change}")["success"]
    assert service.login("DEMO", issued)["code"] == "390100"
    ensure_account(service.home, service.access)
    assert service.login("DEMO", issued)["code"] == "390100"


def test_the_password_of_the_first_user_shows_until_it_is_removed(admin: Any) -> None:
    def has_password() -> str:
        shown = admin.query("SHOW USERS LIKE 'demo'")["data"]
        return dict(zip((column["name"] for column in shown["rowtype"]), shown["rowset"][0], strict=True))[
            "has_password"
        ]

    assert has_password() == "true"
    admin.query("ALTER USER demo UNSET PASSWORD")
    assert has_password() == "false"


def test_the_careful_opening_and_dropping_of_a_channel_is_true_or_false(service, admin):
    admin.query("CREATE TABLE t (id INT)")
    token = service.jwt()
    assert service.call("PUT", f"{PIPE}/channels/c", {}, token=token).status == 200
    for method in ("PUT", "DELETE"):
        body = {"fail_on_uncommitted_rows": "no"}
        refused = service.call(method, f"{PIPE}/channels/c", body, token=token)
        assert (refused.status, refused.json()["code"]) == (400, "INVALID_REQUEST_BODY")


# -- a credential that is restricted to a role -------------------------------------------------------------


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
    made = admin.query("ALTER USER other ADD PAT p ROLE_RESTRICTION = 'LOW'")
    return str(made["data"]["rowset"][0][1])


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
    everything = admin.query("ALTER USER other ADD PAT q")["data"]["rowset"][0][1]
    body = {"statement": "SELECT n FROM local.public.secret"}
    path = f"/api/v2/statements?requestId={uuid.uuid4()}"
    high = service.call("POST", path, body, token=everything)
    assert (high.status, high.json()["data"]) == (200, [["42"]])
    assert service.call("POST", path, body, token=restricted).status == 422
    for role in ("HIGH", "PUBLIC"):
        assert (
            service.call("POST", "/api/v2/statements", body | {"role": role}, token=restricted).status == 422
        )
    handle = f"/api/v2/statements/{high.json()['statementHandle']}"
    assert service.call("GET", handle, token=restricted).status == 404
    assert service.call("POST", f"{handle}/cancel", {}, token=restricted).status == 404
    assert service.call("GET", handle, token=everything).status == 200
