"""Who gets in, what listens, which files others may read, and what the log never holds."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import socket
import ssl
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
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
from tests.streaming_rest import signed_upload

from tests.conftest import ServiceFactory

BASE = "/v2/streaming/databases/LOCAL/schemas/PUBLIC/pipes/SAFE-STREAMING"
DATA = "/v2/streaming/data/databases/LOCAL/schemas/PUBLIC/pipes/SAFE-STREAMING/channels/c/rows"
JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_TEMPORARY = Path(tempfile.gettempdir())
EXCHANGE_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"


class Door:
    """Requests with any credential."""

    def __init__(self, service: LocalService) -> None:
        self.service = service
        self.home = DataDirectory(service.data_dir)
        self._http = requests.Session()
        self._http.trust_env = False
        self._http.verify = str(service.ca_file)

    def call(self, method: str, path: str, token: str, **more: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {token}"}
        return self._http.request(method, self.service.url + path, headers=headers, timeout=60, **more)

    def exchange(
        self, token: str, scope: str = "127.0.0.1", grant: str = JWT_GRANT, **more: str
    ) -> requests.Response:
        return self.call("POST", "/oauth/token", token, data={"grant_type": grant, "scope": scope, **more})

    def sql(self, statement: str) -> list[list[Any]]:
        return fetch(self.home, statement)[1]

    def login(self, **data: str) -> dict[str, Any]:
        answer = self._http.post(
            f"{self.service.url}/session/v1/login-request", json={"data": data}, timeout=60
        )
        found: dict[str, Any] = answer.json()
        return found

    def secret(self, name: str) -> str:
        return (self.service.data_dir / name).read_text().strip()


@pytest.fixture(scope="module")
def door(local_service: LocalService) -> Door:
    door = Door(local_service)
    door.sql("CREATE TABLE safe (n INT)")
    return door


def _pem_public(home: DataDirectory) -> bytes:
    return str(home.read_account()["public_key"]).encode()


def _claims(home: DataDirectory, **changes: Any) -> dict[str, Any]:
    right = jwt.decode(sign_key_pair_jwt(home), options={"verify_signature": False})
    return {name: value for name, value in {**right, **changes}.items() if value is not None}


def _signed(home: DataDirectory, **changes: Any) -> str:
    return jwt.encode(_claims(home, **changes), home.key_file.read_bytes(), algorithm="RS256")


def _part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _unsigned(home: DataDirectory, algorithm: str) -> str:
    return f"{_part({'alg': algorithm, 'typ': 'JWT'})}.{_part(_claims(home))}."


def _signed_with_the_public_key(home: DataDirectory) -> str:
    """The confusion of algorithms: an HMAC whose key is the text of the RSA public key."""
    import hashlib
    import hmac

    signed = f"{_part({'alg': 'HS256', 'typ': 'JWT'})}.{_part(_claims(home))}"
    mac = hmac.new(_pem_public(home), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def _of_another_key(home: DataDirectory) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return jwt.encode(_claims(home), key, algorithm="RS256")


def _of_a_key_inside_the_token(home: DataDirectory) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    jwk = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return jwt.encode(_claims(home), key, algorithm="RS256", headers={"jwk": jwk})


_NOW = time.time()
_WRONG: dict[str, Callable[[DataDirectory], str]] = {
    "expired": lambda home: _signed(home, iat=int(_NOW) - 7200, exp=int(_NOW) - 3700),
    "lives-too-long": lambda home: _signed(home, iat=int(_NOW) - 86400, exp=int(_NOW) + 86400),
    "from-the-future": lambda home: _signed(home, iat=int(time.time()) + 7200, exp=int(time.time()) + 9000),
    "without-exp": lambda home: _signed(home, exp=None),
    "without-iat": lambda home: _signed(home, iat=None),
    "exp-no-number": lambda home: _signed(home, exp="never"),
    "other-account": lambda home: _signed(home, sub="OTHER.DEMO"),
    "other-user": lambda home: _signed(home, sub="LOCAL.NOBODY"),
    "other-issuer": lambda home: _signed(home, iss="OTHER.DEMO.SHA256:x"),
    "other-fingerprint": lambda home: _signed(home, iss=f"LOCAL.DEMO.SHA256:{'A' * 43}="),
    "no-fingerprint": lambda home: _signed(home, iss="LOCAL.DEMO"),
    "alg-none": lambda home: _unsigned(home, "none"),
    "alg-None": lambda home: _unsigned(home, "NONE"),
    "alg-RS256-unsigned": lambda home: _unsigned(home, "RS256"),
    "hs256-of-public-key": _signed_with_the_public_key,
    "rs512": lambda home: jwt.encode(_claims(home), home.key_file.read_bytes(), algorithm="RS512"),
    "another-key": _of_another_key,
    "key-inside": _of_a_key_inside_the_token,
}


@pytest.mark.parametrize("kind", list(_WRONG))
def test_a_wrong_jwt_opens_nothing(door: Door, kind: str) -> None:
    token = _WRONG[kind](door.home)
    refused = [
        door.call("GET", "/v2/streaming/hostname", token),
        door.exchange(token),
        door.call("POST", f"{BASE}:pipe-info", token, json={}),
        door.call("POST", f"{DATA}?continuationToken=1_0&requestId=x", token, data=b"{}"),
        door.call("POST", "/api/v2/statements", token, json={"statement": "SELECT 1"}),
    ]
    assert [answer.status_code for answer in refused] == [401] * 5
    assert door.login(AUTHENTICATOR="SNOWFLAKE_JWT", TOKEN=token)["success"] is False
    assert all(token not in answer.text for answer in refused)


def _scoped(door: Door) -> str:
    answer = door.exchange(sign_key_pair_jwt(door.home))
    assert answer.status_code == 200
    return answer.text


def _resigned(door: Door, **changes: Any) -> str:
    claims = jwt.decode(_scoped(door), options={"verify_signature": False})
    return jwt.encode({**claims, **changes}, door.home.token_secret_file.read_bytes(), algorithm="HS256")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"exp": int(_NOW) - 10}, "SCOPED_TOKEN_EXPIRED"),
        ({"scope": "evil.example"}, "SCOPED_TOKEN_INVALID"),
        ({"iss": "elsewhere"}, "SCOPED_TOKEN_INVALID"),
    ],
)
def test_an_expired_or_foreign_scoped_token_appends_nothing(
    door: Door, changes: dict[str, Any], code: str
) -> None:
    answer = door.call(
        "POST", f"{DATA}?continuationToken=1_0&requestId=x", _resigned(door, **changes), data=b"{}"
    )
    assert (answer.status_code, answer.json()["code"]) == (401, code)


@pytest.mark.parametrize("cut", [1, 5, 43])
def test_a_scoped_token_with_another_signature_appends_nothing(door: Door, cut: int) -> None:
    token = _scoped(door)
    forged = token[:-cut] + "".join("B" if letter == "A" else "A" for letter in token[-cut:])
    if cut == 1:
        # The last letter of base64 carries two bits that mean nothing.
        forged = token[:-2] + ("A" if token[-2] != "A" else "B") + token[-1]
    answer = door.call("POST", f"{DATA}?continuationToken=1_0&requestId=x", forged, data=b"{}")
    assert (answer.status_code, answer.json()["code"]) == (401, "SCOPED_TOKEN_INVALID")


@pytest.mark.parametrize("kind", ["jwt", "pat", "scoped"])
def test_only_a_scoped_token_appends_and_it_opens_no_sql(door: Door, kind: str) -> None:
    token = {"jwt": sign_key_pair_jwt(door.home), "pat": door.secret("demo_pat"), "scoped": _scoped(door)}[
        kind
    ]
    append = door.call("POST", f"{DATA}?continuationToken=1_0&requestId=x", token, data=b"{}")
    assert append.status_code == (404 if kind == "scoped" else 401)
    if kind == "scoped":
        sql = door.call("POST", "/api/v2/statements", token, json={"statement": "SELECT 1"})
        assert sql.status_code == 401
        assert door.exchange(token).status_code == 401


def test_credentials_of_another_data_directory_open_nothing(door: Door, crash_service: LocalService) -> None:
    other = Door(crash_service)
    strangers = [sign_key_pair_jwt(other.home), other.secret("demo_pat"), _scoped(other)]
    for token in strangers:
        assert door.call("GET", "/v2/streaming/hostname", token).status_code == 401
        assert door.call("POST", f"{BASE}:pipe-info", token, json={}).status_code == 401
        assert (
            door.call("POST", f"{DATA}?continuationToken=1_0&requestId=x", token, data=b"{}").status_code
            == 401
        )
    password = other.secret("demo_password")
    assert door.login(LOGIN_NAME="DEMO", PASSWORD=password)["code"] == "390100"


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
    door.sql("CREATE DATABASE other")
    door.sql("CREATE TABLE safe (n INT)")
    door.sql("INSERT INTO safe VALUES (1)")
    door.sql("CREATE STAGE files")
    _upload(door, b"rows")
    door.service.cli("env")
    _all_private(door.service)


def _all_private(service: LocalService) -> None:
    seen = 0
    for folder, folders, files in os.walk(service.data_dir):
        for name in [*folders, *files]:
            path = Path(folder, name)
            # The tests themselves make the log, with the umask of the test.
            if path == service.log_file:
                continue
            mode = stat.S_IMODE(path.lstat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), f"{path} {mode:o}"
            seen += 1
    assert seen > 15


def _upload(door: Door, body: bytes) -> str:
    """Upload a file as the SDK's file mode does and return its path."""
    info = door.call("POST", f"{BASE}:pipe-info", _scoped(door), json={}).json()["rowset_stage_location"]
    path = f"{info['location']}0.ndjson"
    url = f"{door.service.url}/{path}"
    signed = signed_upload(url, body, info["creds"])
    answer = requests.put(url, data=body, headers=signed, verify=str(door.service.ca_file), timeout=30)
    assert answer.status_code == 200, answer.text
    return path


@pytest.mark.parametrize(
    "name",
    [
        "../escaped",
        "..",
        ".",
        "a/../../escaped",
        f"{_TEMPORARY}/escaped",
        "%2e%2e%2fescaped",
        "a\x00b",
        "x" * 120,
    ],
)
def test_a_name_of_a_database_or_schema_stays_in_its_folder(door: Door, name: str) -> None:
    root = door.service.data_dir
    before = _outside(root)
    answer = door.call(
        "POST",
        "/api/v2/statements",
        sign_key_pair_jwt(door.home),
        json={"statement": f'CREATE DATABASE "{name}"'},
    )
    assert answer.status_code in (200, 422), answer.text
    assert _outside(root) == before
    if answer.status_code == 200:
        door.sql(f'CREATE SCHEMA "{name}"."{name}"')
        door.sql(f'DROP DATABASE "{name}"')
    assert _outside(root) == before
    assert all(file.parent == root / "databases" for file in root.rglob("*.duckdb"))


def _outside(root: Path) -> set[str]:
    beside = {str(path) for path in root.parent.iterdir()} | {str(path) for path in root.iterdir()}
    return beside | {str(path) for path in _TEMPORARY.glob("escaped*")}


@pytest.mark.parametrize(
    "path",
    ["../account.json", "..%2faccount.json", "0123456789abcdef/../../account.json",
     "0123456789abcdef/..%2f..%2fx",
     "0123456789abcdef/%00", "x" * 3000 + "/y", "0123456789abcdef/" + "x" * 3000,
     "0123456789abcdef/.hidden", "0123456789abcdef/a%2fb", "%2e%2e/account.json"],
)  # fmt: skip
def test_an_upload_never_leaves_its_folder(door: Door, path: str) -> None:
    account = door.home.account_file.read_bytes()
    for bucket in ("snowpipe-local-stage", "snowpipe-local-files"):
        answer = _raw(door.service, f"PUT /{bucket}/{path} HTTP/1.1", b"owned")
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 401", b"HTTP/1.1 403", b"HTTP/1.1 404")), answer
    assert door.home.account_file.read_bytes() == account


def test_an_upload_key_opens_its_own_folder_only(door: Door) -> None:
    path = _upload(door, b"first")
    key = path.split("/")[1]
    credential = f"AWS4-HMAC-SHA256 Credential={'SNOWPIPE' + 'A' * 24}/20260101/us-east-1/s3/aws4_request"
    answer = requests.put(
        f"{door.service.url}/snowpipe-local-stage/{key}/1.ndjson", data=b"x",
        headers={"Authorization": credential}, verify=str(door.service.ca_file), timeout=30,
    )  # fmt: skip
    assert (answer.status_code, answer.json()["code"]) == (403, "AccessDenied")


def _raw(service: LocalService, line: str, body: bytes) -> bytes:
    head = f"{line}\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    context = ssl.create_default_context(cafile=str(service.ca_file))
    with (
        socket.create_connection(("127.0.0.1", service.port), timeout=240) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        secured.sendall(head.encode() + body)
        return secured.recv(65536)


@pytest.mark.parametrize(
    "line",
    ["CONNECT example.org:443", "CONNECT 127.0.0.1:22", "CONNECT localhost:443", "GET http://example.org/",
     "CONNECT a.snowflakecomputing.com:22", "CONNECT a.snowflakecomputing.com.evil.example:443",
     "CONNECT evil.example/.snowflakecomputing.com:443", "CONNECT [::1]:443", "POST /"],
)  # fmt: skip
def test_the_proxy_leads_to_the_service_only(local_service: LocalService, line: str) -> None:
    answer = _ask_proxy(local_service, f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 403"), answer


@pytest.mark.parametrize(
    "head", [b"\x16\x03\x01" * 3000 + b"\r\n\r\n", b"A" * 40_000, b"\r\n\r\n", b"\x00\r\n\r\n"]
)
def test_the_proxy_ends_a_connection_that_makes_no_sense(local_service: LocalService, head: bytes) -> None:
    answer = _ask_proxy(local_service, head)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 403")


def test_the_proxy_leads_a_snowflake_host_to_the_service(local_service: LocalService) -> None:
    answer = _ask_proxy(local_service, b"CONNECT acme.snowflakecomputing.com:443 HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")


def _ask_proxy(service: LocalService, head: bytes) -> bytes:
    port = int(service.env["SNOWPIPE_LOCAL_PROXY"].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=240) as connection:
        try:
            connection.sendall(head)
            return connection.recv(4096)
        except ConnectionError:
            return b""


@pytest.mark.parametrize(
    "sent", [b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00" * 50, b"\x16\x03\x01\xff\xff"]
)
def test_plain_text_on_the_tls_port_is_refused_and_hurts_nobody(
    local_service: LocalService, sent: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", local_service.port), timeout=240) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while part := connection.recv(4096):
                answer += part
        except ConnectionError:
            pass
    assert not answer.startswith(b"HTTP/1.1 2")
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


def test_a_connection_that_a_client_keeps_does_not_hold_up_the_end(crash_service: LocalService) -> None:
    context = ssl.create_default_context(cafile=str(crash_service.ca_file))
    kept = http.client.HTTPSConnection("127.0.0.1", crash_service.port, timeout=30, context=context)
    with contextlib.closing(kept):
        kept.request("GET", "/health")
        assert kept.getresponse().read()
        before = crash_service.log_file.stat().st_size
        crash_service.stop()
        assert kept.sock.recv(1) == b""
    assert "shutdown exceeded" not in crash_service.log_file.read_text()[before:]


def test_no_secret_is_in_the_log_or_on_a_command_line(crash_service: LocalService) -> None:
    door = Door(crash_service)
    client = json.loads(door.secret("oauth_client.json"))
    key_pair, pat, scoped = sign_key_pair_jwt(door.home), door.secret("demo_pat"), _scoped(door)
    oauth = requests.post(
        f"{door.service.url}/oauth/token-request", data={"grant_type": "client_credentials", **client},
        verify=str(door.service.ca_file), timeout=30,
    ).json()["access_token"]  # fmt: skip
    secrets = {
        "password": door.secret("demo_password"), "pat": pat, "client secret": client["client_secret"],
        "refresh token": client["refresh_token"], "access token": oauth, "key-pair JWT": key_pair,
        "scoped": scoped,
        "private key": "".join(door.secret("demo_rsa_key.p8").splitlines()[1:3]),
        "token secret": base64.b64encode(door.home.token_secret_file.read_bytes()).decode(),
        "typed": f"typed-{uuid.uuid4()}", "bound": f"bound-{uuid.uuid4()}",
    }  # fmt: skip
    door.sql("CREATE TABLE safe (n INT)")
    for token in (pat, oauth):
        kind = (
            "programmatic_access_token" if token == pat else "urn:ietf:params:oauth:token-type:access_token"
        )
        assert door.exchange(token, grant=EXCHANGE_GRANT, subject_token_type=kind).status_code == 200
    info = door.call("POST", f"{BASE}:pipe-info", scoped, json={}).json()
    secrets["pipe key"] = info["encryption_info"]["pipe_key"]
    secrets["upload key"] = info["rowset_stage_location"]["creds"]["AWS_SECRET_KEY"]
    _upload(door, b"x")
    logged_in = door.login(LOGIN_NAME="DEMO", PASSWORD=secrets["password"])
    secrets["session token"] = logged_in["data"]["token"]
    secrets["master token"] = logged_in["data"]["masterToken"]
    assert door.login(LOGIN_NAME="DEMO", PASSWORD=secrets["typed"])["success"] is False
    for wrong in (f"{scoped}x", f"{pat}x", secrets["typed"], f"{key_pair}x"):
        assert door.call("POST", f"{BASE}:pipe-info", wrong, json={}).status_code == 401
    body = {"statement": "SELECT nowhere, ?", "bindings": {"1": {"type": "TEXT", "value": secrets["bound"]}}}
    assert door.call("POST", "/api/v2/statements", key_pair, json=body).status_code == 422
    half = {"statement": f"CREATE TABLE half (n INT) PASSWORD = '{secrets['typed']}' nope IS"}
    assert door.call("POST", "/api/v2/statements", key_pair, json=half).status_code == 422
    command_line = " ".join(psutil.Process(door.service.pid).cmdline())
    door.service.stop()
    log = door.service.log_file.read_text()
    assert "serving https://" in log
    for name, secret in secrets.items():
        assert len(secret) > 8
        assert secret not in log, f"the {name} is in the log"
        assert quote(secret, safe="") not in log, f"the {name} is in the log"
        assert secret not in command_line, f"the {name} is on the command line"
