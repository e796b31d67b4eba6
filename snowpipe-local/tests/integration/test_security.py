"""Who gets in, what listens, which files others may read, and what the log never holds."""

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import socket
import ssl
import stat
import time
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import jwt
import psutil
import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import rsa
from snowpipe_local.accounts import sign_key_pair_jwt
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.environment import fetch
from snowpipe_local.testing import LocalService
from tests.contract.account import Account
from tests.streaming_rest import Rest

from tests.conftest import ServiceFactory

BASE = "/v2/streaming/databases/LOCAL/schemas/PUBLIC/pipes/SAFE-STREAMING"
DATA = (
    "/v2/streaming/data/databases/LOCAL/schemas/PUBLIC/pipes/SAFE-STREAMING/channels/c/rows"
    "?continuationToken=1_0&requestId=x"
)
JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
EXCHANGE = {"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange"}
PAT = {**EXCHANGE, "subject_token_type": "programmatic_access_token"}
OAUTH = {**EXCHANGE, "subject_token_type": "urn:ietf:params:oauth:token-type:access_token"}


class Door:
    """Requests with any credential."""

    def __init__(self, service: LocalService) -> None:
        self.service = service
        self.home = DataDirectory(service.data_dir)
        self.pat = self.secret("demo_pat")
        self.client = json.loads(self.secret("oauth_client.json"))
        self.account = Account.local(service)

    def call(self, method: str, path: str, token: str, **more: Any) -> requests.Response:
        return self.account.call(method, path, token=token, **more)

    def exchange(self, token: str, **form: str) -> requests.Response:
        form = {"grant_type": JWT_GRANT, "scope": "127.0.0.1", **form}
        return self.call("POST", "/oauth/token", token, data=form)

    def access_token(self, auth: Any = None, **form: str) -> requests.Response:
        return self.call("POST", "/oauth/token-request", "", data=form, auth=auth)

    def sql(self, statement: str) -> list[list[Any]]:
        return fetch(self.home, statement)[1]

    def login(self, **data: str) -> dict[str, Any]:
        return dict(self.call("POST", "/session/v1/login-request", "", json={"data": data}).json())

    def secret(self, name: str) -> str:
        return (self.service.data_dir / name).read_text().strip()

    def append(self, token: str) -> requests.Response:
        return self.call("POST", DATA, token, data=b"{}")

    def tried(self, token: str) -> list[requests.Response]:
        """Try a token at every door for tokens; the first three take other ones than pipes and channels."""
        channel = f"{BASE}/channels/c"
        return [
            self.call("GET", "/v2/streaming/hostname", token),
            self.call("POST", "/api/v2/statements", token, json={"statement": "SELECT 1"}),
            self.exchange(token),
            *(
                self.call("POST", f"{BASE}:{verb}", token, json={})
                for verb in ("pipe-info", "bulk-channel-status")
            ),
            *(self.call(method, channel, token, json={}) for method in ("PUT", "DELETE")),
            *(self.call("POST", DATA.replace("/rows", f"/{kind}"), token) for kind in ("rows", "filebuffer")),
        ]


@pytest.fixture(scope="module")
def door(local_service: LocalService) -> Door:
    door = Door(local_service)
    door.sql("CREATE TABLE safe (n INT)")
    return door


def _part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _forged(home: DataDirectory) -> dict[str, str]:
    """Return tokens that are wrong in one way each."""
    now, right = int(time.time()), jwt.decode(sign_key_pair_jwt(home), options={"verify_signature": False})
    own, other = home.key_file.read_bytes(), rsa.generate_private_key(public_exponent=65537, key_size=2048)
    jwk = jwt.algorithms.RSAAlgorithm.to_jwk(other.public_key(), as_dict=True)
    changes: dict[str, dict[str, Any]] = {
        "expired": {"iat": now - 7200, "exp": now - 3700},
        "lives too long": {"iat": now - 86400, "exp": now + 86400},
        "from the future": {"iat": now + 7200, "exp": now + 9000},
        "without exp": {"exp": None},
        "without iat": {"iat": None},
        "exp no number": {"exp": "never"},
        "other account": {"sub": "OTHER.DEMO"},
        "other user": {"sub": "LOCAL.NOBODY"},
        "other issuer": {"iss": "OTHER.DEMO.SHA256:x"},
        "other fingerprint": {"iss": f"LOCAL.DEMO.SHA256:{'A' * 43}="},
        "no fingerprint": {"iss": "LOCAL.DEMO"},
    }
    tokens = {}
    for name, changed in changes.items():
        claims = {key: value for key, value in {**right, **changed}.items() if value is not None}
        tokens[name] = jwt.encode(claims, own, algorithm="RS256")
    for algorithm in ("none", "NONE", "RS256"):
        tokens[f"unsigned {algorithm}"] = f"{_part({'alg': algorithm, 'typ': 'JWT'})}.{_part(right)}."
    # The confusion of algorithms: an HMAC whose key is the text of the RSA public key.
    signed = f"{_part({'alg': 'HS256', 'typ': 'JWT'})}.{_part(right)}"
    mac = hmac.new(str(home.read_account()["public_key"]).encode(), signed.encode(), hashlib.sha256).digest()
    tokens["public key as secret"] = f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    tokens["rs512"] = jwt.encode(right, own, algorithm="RS512")
    tokens["another key"] = jwt.encode(right, other, algorithm="RS256")
    tokens["key inside"] = jwt.encode(right, other, algorithm="RS256", headers={"jwk": jwk})
    return tokens | {"garbage": "a.b.c", "one part": "x", "none": ""}


def test_a_wrong_token_opens_nothing(door: Door) -> None:
    for kind, token in _forged(door.home).items():
        answers = door.tried(token)
        assert [answer.status_code for answer in answers] == [401] * 9, kind
        assert all(set(answer.json()) == {"code", "message"} for answer in answers), kind
        assert all(token not in answer.text or len(token) < 9 for answer in answers), kind
        assert door.login(AUTHENTICATOR="SNOWFLAKE_JWT", TOKEN=token)["success"] is False, kind
        for grant in (PAT, OAUTH):
            assert door.exchange(token, **grant).status_code == 401, kind


def test_a_scoped_token_that_expired_or_was_changed_appends_nothing(door: Door) -> None:
    token = door.account.scoped_token
    claims = jwt.decode(token, options={"verify_signature": False})
    assert claims["exp"] > time.time() + 3000
    secret, invalid = door.home.token_secret_file.read_bytes(), "SCOPED_TOKEN_INVALID"
    wrong = [
        (jwt.encode({**claims, **changes}, secret, algorithm="HS256"), code)
        for changes, code in (
            ({"exp": int(time.time()) - 10}, "SCOPED_TOKEN_EXPIRED"), ({"scope": "evil.example"}, invalid),
            ({"iss": "elsewhere"}, invalid),
        )
    ]  # fmt: skip
    # The last letter of base64 carries two bits that mean nothing.
    wrong.append((token[:-2] + ("A" if token[-2] != "A" else "B") + token[-1], invalid))
    wrong.append((token[:-43] + "A" * 43, invalid))
    for forged, code in wrong:
        answer = door.append(forged)
        assert (answer.status_code, answer.json()["code"]) == (401, code)


def test_only_a_scoped_token_appends_and_it_opens_nothing_else(door: Door) -> None:
    scoped = door.account.scoped_token
    assert door.append(scoped).status_code == 404
    for token in (sign_key_pair_jwt(door.home), door.pat):
        assert door.append(token).status_code == 401
    assert [answer.status_code for answer in door.tried(scoped)[:3]] == [401] * 3
    assert door.exchange(scoped, **OAUTH).status_code == 401


def test_access_tokens_are_made_and_exchanged_as_their_kind_only(door: Door) -> None:
    assert door.exchange(door.pat, **OAUTH).status_code == 400
    assert door.exchange(door.pat, **PAT).status_code == 200
    assert door.exchange(door.pat, **PAT, scope="evil.example.com").status_code == 400
    declared = {"X-Snowflake-Authorization-Token-Type": "OAUTH"}
    form = {"scope": "127.0.0.1", **PAT}
    assert door.call("POST", "/oauth/token", door.pat, data=form, headers=declared).status_code == 401
    for grant in (EXCHANGE["grant_type"], "password", ""):
        refused = door.exchange(sign_key_pair_jwt(door.home), grant_type=grant)
        assert (refused.status_code, "grant type" in refused.json()["message"]) == (400, True)

    basic = (door.client["client_id"], door.client["client_secret"])
    refreshing = {"grant_type": "refresh_token", "refresh_token": door.client["refresh_token"]}
    made = door.access_token(basic, **refreshing)
    assert (made.status_code, made.json()["expires_in"]) == (200, 3600)
    assert door.exchange(made.json()["access_token"], **OAUTH).status_code == 200
    for auth, asked, status, error in (
        (None, {"grant_type": "client_credentials"}, 401, "invalid_client"),
        (("x", "y"), {"grant_type": "client_credentials"}, 401, "invalid_client"),
        (basic, {**refreshing, "refresh_token": "x"}, 400, "invalid_grant"),
        (basic, {"grant_type": "password"}, 400, "unsupported_grant_type"),
    ):
        answer = door.access_token(auth, **asked)
        assert (answer.status_code, answer.json()["error"]) == (status, error)


def test_credentials_of_another_data_directory_open_nothing(door: Door, crash_service: LocalService) -> None:
    other = Door(crash_service)
    for token in (sign_key_pair_jwt(other.home), other.pat, other.account.scoped_token):
        assert {answer.status_code for answer in door.tried(token)} == {401}
    assert door.login(LOGIN_NAME="DEMO", PASSWORD=other.secret("demo_password"))["code"] == "390100"


@pytest.fixture
def open_umask() -> Iterator[None]:
    """The most careless shell: everything that a process makes is for everyone."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_no_file_of_the_data_directory_is_for_others(
    open_umask: None, service_factory: ServiceFactory
) -> None:
    door = Door(service_factory())
    for statement in (
        "CREATE DATABASE other", "CREATE TABLE safe (n INT)", "INSERT INTO safe VALUES (1)",
        "CREATE STAGE files", "COPY INTO @files/deep/er FROM safe",
    ):  # fmt: skip
        door.sql(statement)
    Rest(door.service, "SAFE").upload(b"rows")
    door.service.cli("env")
    # The tests themselves make the log, with the umask of the test.
    paths = [path for path in door.service.data_dir.rglob("*") if path != door.service.log_file]
    assert len(paths) > 15
    for path in paths:
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path} {mode:o}"


def test_every_listening_socket_is_on_loopback(local_service: LocalService) -> None:
    process = psutil.Process(local_service.pid)
    found = [
        one.laddr
        for family in (process, *process.children(recursive=True))
        for one in family.net_connections(kind="inet")
        if one.status == psutil.CONN_LISTEN
    ]
    assert len(found) == 2, found
    assert {address.ip for address in found} == {"127.0.0.1"}


def _answer(port: int, sent: bytes) -> bytes:
    """Send bytes without TLS and return what comes back until the connection ends."""
    answer = b""
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port), timeout=240) as connection,
    ):
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(4096):
            answer += part
    return answer


def test_the_proxy_leads_to_the_service_only(local_service: LocalService) -> None:
    port = int(local_service.env["SNOWPIPE_LOCAL_PROXY"].rpartition(":")[2])
    for line in (
        "CONNECT example.org:443", "CONNECT 127.0.0.1:22", "CONNECT localhost:443", "GET http://example.org/",
        "CONNECT a.snowflakecomputing.com:22", "CONNECT a.snowflakecomputing.com.evil.example:443",
        "CONNECT evil.example/.snowflakecomputing.com:443", "CONNECT [::1]:443", "POST /",
    ):  # fmt: skip
        answer = _answer(port, f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 403"), line
    for head in (b"\x16\x03\x01" * 3000 + b"\r\n\r\n", b"A" * 40_000, b"\r\n\r\n", b"\x00\r\n\r\n"):
        answer = _answer(port, head)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 403")
    answer = _answer(port, b"CONNECT acme.snowflakecomputing.com:443 HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")


def test_plain_text_on_the_tls_port_is_refused_and_hurts_nobody(local_service: LocalService) -> None:
    for sent in (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00" * 50, b"\x16\x03\x01\xff\xff"):
        assert not _answer(local_service.port, sent).startswith(b"HTTP/1.1 2")
    assert Door(local_service).call("GET", "/health", "x").status_code == 200
    assert "Traceback" not in local_service.log_file.read_text()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_an_old_tls_version_is_refused(local_service: LocalService) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", local_service.port), timeout=240) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain)


def test_no_secret_is_in_the_log_or_on_a_command_line_and_a_kept_connection_does_not_hold_up_the_end(
    crash_service: LocalService,
) -> None:
    door = Door(crash_service)
    key_pair, scoped, start = (
        sign_key_pair_jwt(door.home),
        door.account.scoped_token,
        door.service.log_file.stat().st_size,
    )
    oauth = door.access_token(grant_type="client_credentials", **door.client).json()["access_token"]
    secrets = {
        "password": door.secret("demo_password"), "pat": door.pat, "access token": oauth, "scoped": scoped,
        "client secret": door.client["client_secret"], "refresh token": door.client["refresh_token"],
        "key-pair JWT": key_pair, "private key": "".join(door.secret("demo_rsa_key.p8").splitlines()[1:3]),
        "token secret": base64.b64encode(door.home.token_secret_file.read_bytes()).decode(),
        "typed": f"typed-{uuid.uuid4()}", "bound": f"bound-{uuid.uuid4()}",
    }  # fmt: skip
    door.sql("CREATE TABLE safe (n INT)")
    for token, grant in ((door.pat, PAT), (oauth, OAUTH)):
        assert door.exchange(token, **grant).status_code == 200
    info = door.call("POST", f"{BASE}:pipe-info", scoped, json={}).json()
    secrets["pipe key"] = info["encryption_info"]["pipe_key"]
    secrets["upload key"] = info["rowset_stage_location"]["creds"]["AWS_SECRET_KEY"]
    Rest(door.service, "SAFE").upload(b"x")
    logged_in = door.login(LOGIN_NAME="DEMO", PASSWORD=secrets["password"])
    secrets["session token"] = logged_in["data"]["token"]
    secrets["master token"] = logged_in["data"]["masterToken"]
    assert door.login(LOGIN_NAME="DEMO", PASSWORD=secrets["typed"])["success"] is False
    for wrong in (f"{scoped}x", f"{door.pat}x", secrets["typed"], f"{key_pair}x"):
        assert door.call("POST", f"{BASE}:pipe-info", wrong, json={}).status_code == 401
    for body in (
        {"statement": "SELECT nowhere, ?", "bindings": {"1": {"type": "TEXT", "value": secrets["bound"]}}},
        {"statement": f"CREATE TABLE half (n INT) PASSWORD = '{secrets['typed']}' nope IS"},
    ):
        assert door.call("POST", "/api/v2/statements", key_pair, json=body).status_code == 422
    shown = " ".join(psutil.Process(door.service.pid).cmdline()) + door.service.cli("env").stdout
    context = ssl.create_default_context(cafile=str(crash_service.ca_file))
    kept = http.client.HTTPSConnection("127.0.0.1", crash_service.port, timeout=240, context=context)
    with contextlib.closing(kept):
        kept.request("GET", "/health")
        assert kept.getresponse().read()
        door.service.stop()
        assert kept.sock.recv(1) == b""
    log = door.service.log_file.read_text()
    assert "serving https://" in log
    assert "shutdown exceeded" not in log[start:]
    shown += log
    for name, secret in secrets.items():
        assert len(secret) > 8
        assert secret not in shown, f"the {name} is shown"
        assert quote(secret, safe="") not in shown, f"the {name} is shown"
