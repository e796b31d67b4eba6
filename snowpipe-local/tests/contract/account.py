"""The account that the contract is checked on: the local service, or a real one that a connection names."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import jwt
import requests
import snowflake.connector
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from snowpipe_local.testing import LocalService

from tests.waiting import wait_until

_JWT_SECONDS = 600
# Snowflake commits within seconds; a real account's first pipe takes longer.
SECONDS = 180.0
NAMES = ("database", "schema", "role", "warehouse")


@dataclass(frozen=True)
class KeyPair:
    """A user of an account who signs in with a private key."""

    account: str
    user: str
    key: RSAPrivateKey = field(repr=False)

    @classmethod
    def read(cls, account: str, user: str, pem: bytes, password: str | None = None) -> KeyPair:
        key = load_pem_private_key(pem, password.encode() if password else None)
        assert isinstance(key, RSAPrivateKey)
        return cls(account, user, key)

    def bearer(self, role: str = "") -> str:
        """Sign a JWT of the user, by default without a role."""
        # A JWT names the account alone, without its region.
        subject = f"{self.account.partition('.')[0]}.{self.user}".upper()
        public = self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        digest = base64.b64encode(hashlib.sha256(public).digest()).decode()
        now = int(time.time())
        claims = {"iss": f"{subject}.SHA256:{digest}", "sub": subject, "iat": now, "exp": now + _JWT_SECONDS}
        claims |= {"scp": f"session:role:{role}"} if role else {}
        return jwt.encode(claims, self.key, algorithm="RS256")


def _new_schema() -> str:
    return f"CONTRACT_{uuid.uuid4().hex[:8].upper()}"


@dataclass(frozen=True)
class Account:
    """Where the contract is checked, and the scratch schema there, which is made for this run.

    :param arguments: what the Python connector takes to sign in
    :param database: an existing one, in which the user may make a schema
    :param ca_file: of a service whose authority the system does not know
    """

    url: str
    key_pair: KeyPair
    arguments: Mapping[str, Any] = field(repr=False)
    database: str
    schema: str
    ca_file: str | None = None

    @classmethod
    def local(cls, service: LocalService) -> Account:
        pair = KeyPair.read(service.account, service.user, service.key_file.read_bytes())
        ca_file = str(service.ca_file)
        return cls(service.url, pair, service.connector_arguments, "LOCAL", _new_schema(), ca_file)

    @classmethod
    def named(cls, connection: str) -> Account:
        """A connection of Snowflake's ``connections.toml``, which signs in with a key pair.

        :raises ValueError: if the connection lacks something, naming it
        """
        from snowflake.connector.config_manager import CONFIG_MANAGER

        known = CONFIG_MANAGER["connections"]
        if connection not in known:
            raise ValueError(f"connections.toml has no [{connection}]; it has {', '.join(sorted(known))}")
        given = dict(known[connection])
        needed = ("account", "user", "private_key_file", "database")
        missing = [name for name in needed if not given.get(name)]
        if missing:
            raise ValueError(f"[{connection}] of connections.toml lacks {', '.join(missing)}")
        host = given.get("host") or f"{given['account']}.snowflakecomputing.com"
        port = f":{given['port']}" if given.get("port") else ""
        pem = Path(given["private_key_file"]).expanduser().read_bytes()
        pair = KeyPair.read(given["account"], given["user"], pem, given.get("private_key_file_pwd"))
        taken = ("account", "user", *NAMES, "host", "port")
        arguments = {name: given[name] for name in taken if given.get(name)}
        arguments |= {"private_key": pair.key, "authenticator": "SNOWFLAKE_JWT"}
        return cls(f"https://{host}{port}", pair, arguments, given["database"], _new_schema())

    @cached_property
    def connection(self) -> snowflake.connector.SnowflakeConnection:
        """The session that prepares and reads; its schema is the scratch schema once that is made."""
        return snowflake.connector.connect(**self.arguments)

    def connect(self) -> snowflake.connector.SnowflakeConnection:
        return snowflake.connector.connect(**{**self.arguments, "schema": self.schema})

    def rows(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        """Run one statement; its rows by lower-case column."""
        with self.connection.cursor(snowflake.connector.DictCursor) as cursor:
            found = cursor.execute(statement, values or None).fetchall()
        return [{name.lower(): value for name, value in row.items()} for row in found]

    def count(self, table: str) -> int:
        return int(self.rows(f"SELECT count(*) AS n FROM {table}")[0]["n"])

    def new_table(self, columns: str = "id INT, s VARCHAR", options: str = "") -> str:
        name = f"T_{uuid.uuid4().hex[:8].upper()}"
        self.rows(f"CREATE TABLE {name} ({columns}) {options}")
        return name

    @cached_property
    def http(self) -> requests.Session:
        """A session that retries nothing and reads no environment but the proxy's."""
        session = requests.Session()
        if self.ca_file:
            session.trust_env = False
            session.verify = self.ca_file
        return session

    def call(
        self, method: str, path: str, *, host: str = "", token: str | None = None, **more: Any
    ) -> requests.Response:
        """Send a request with the user's JWT, or with ``token`` (empty: with none)."""
        bearer = self.key_pair.bearer() if token is None else token
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        if token is None:
            headers["X-Snowflake-Authorization-Token-Type"] = "KEYPAIR_JWT"
        headers |= more.pop("headers", {})
        url = (host or self.url) + path
        return self.http.request(method, url, headers=headers, timeout=(20, 240), **more)

    @cached_property
    def ingest_name(self) -> str:
        """The host name that takes rows, as the service reports it."""
        query = {"requestId": str(uuid.uuid4()), "retryCount": "0"}
        answer = self.call("GET", "/v2/streaming/hostname", params=query)
        assert answer.status_code == 200, answer.text
        return answer.text

    @property
    def ingest_url(self) -> str:
        """The address that takes rows: the host of ``hostname`` with the account's own port."""
        port = urlsplit(self.url).port
        return f"https://{self.ingest_name.replace('_', '-')}" + (f":{port}" if port else "")

    def exchange(self) -> requests.Response:
        grant = "urn:ietf:params:oauth:grant-type:jwt-bearer"
        form = {"grant_type": grant, "scope": self.ingest_name.replace("_", "-")}
        return self.call("POST", "/oauth/token", data=form)

    @cached_property
    def scoped_token(self) -> str:
        answer = self.exchange()
        assert answer.status_code == 200, answer.text
        return answer.text

    def pipe(self, table: str) -> Pipe:
        return Pipe(self, f"{table}-STREAMING")

    def streamed(self, columns: str = "id INT, s VARCHAR") -> tuple[str, Pipe]:
        table = self.new_table(columns)
        assert self.pipe(table).info().status_code == 200
        return table, self.pipe(table)

    def sdk(self, folder: Path, scenario: str, pipe: str) -> dict[str, Any]:
        """Run a scenario with the official SDK in a process of its own, and return what it reports.

        The SDK reads ``SSL_CERT_FILE`` when it is loaded. The key goes through a file of this user alone.
        """
        secret = folder / "properties.json"
        secret.touch(mode=0o600)
        pem = self.key_pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        pair = self.key_pair
        properties = {"account": pair.account, "user": pair.user, "url": self.url, "private_key": pem}
        if role := self.arguments.get("role"):
            properties["role"] = role
        target = [self.database, self.schema, pipe]
        secret.write_text(json.dumps({"properties": properties, "target": target}))
        trusted = {"SSL_CERT_FILE": self.ca_file} if self.ca_file else {}
        done = subprocess.run(
            [sys.executable, "-c", _SDK + scenario, str(secret)],
            env=os.environ | {"SS_LOG_LEVEL": "warn"} | trusted,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        secret.unlink()
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return dict(json.loads(done.stdout.splitlines()[-1]))


_SDK = """
import json, os, sys, time
from pathlib import Path
from snowflake.ingest.streaming import StreamingIngestClient

given = json.loads(Path(sys.argv[1]).read_text())
budgets = ("mgmt", "data", "misclassified_404", "non_scoped_auth_failure")
properties = given["properties"] | {f"{name}_retry_total_backoff_seconds": "20" for name in budgets}

def connect(name="contract", **more):
    return StreamingIngestClient(name, *given["target"], profile_json=None, properties=properties | more)

def committed(channel, token):
    channel.wait_for_commit(lambda seen: seen is not None and int(seen) >= token, timeout_seconds=180)
"""


@dataclass(frozen=True)
class Pipe:
    """The streaming routes of one pipe, by plain HTTP and without any retry."""

    account: Account
    name: str

    @property
    def _resource(self) -> str:
        target = self.account
        names = {"databases": target.database, "schemas": target.schema, "pipes": self.name}
        return "/".join(f"{kind}/{quote(name, safe='')}" for kind, name in names.items())

    def call(self, method: str, path: str, **more: Any) -> requests.Response:
        """Send a request below the pipe, with the scoped token unless another is given."""
        route = more.pop("route", "/v2/streaming")
        token = more.pop("token", self.account.scoped_token)
        query = {"requestId": str(uuid.uuid4()), "retryCount": "0", **more.pop("params", {})}
        url = f"{route}/{more.pop('resource', self._resource)}{path}?{urlencode(query)}"
        return self.account.call(method, url, host=self.account.ingest_url, token=token, **more)

    def info(self) -> requests.Response:
        """Ask for the pipe; the first call makes a table's default pipe."""
        body = {"generate_new_token": True, "encryption_version": "AES-CTR-128.1"}
        return self.call("POST", ":pipe-info", json=body)

    def open(self, channel: str, **body: Any) -> requests.Response:
        body = {"fail_on_uncommitted_rows": True, **body}
        return self.call("PUT", f"/channels/{quote(channel, safe='')}", json=body)

    def opened(self, channel: str) -> str:
        """Open a channel and return its continuation token."""
        answer = self.open(channel)
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["next_continuation_token"])

    def append(
        self, channel: str, continuation: str, body: bytes, end: str = "", **more: Any
    ) -> requests.Response:
        query = {"continuationToken": continuation, "startOffsetToken": "", "endOffsetToken": end}
        more["headers"] = {"Content-Type": "application/x-ndjson", **more.get("headers", {})}
        more["params"] = {**query, **more.get("params", {})}
        path = f"/channels/{quote(channel, safe='')}/rows"
        return self.call("POST", path, route="/v2/streaming/data", data=body, **more)

    def appended(self, channel: str, continuation: str, body: bytes, end: str = "") -> str:
        """Append, and return the next continuation token."""
        answer = self.append(channel, continuation, body, end)
        assert answer.status_code in (200, 202), answer.text
        return str(answer.json()["next_continuation_token"])

    def statuses(self, *channels: str) -> dict[str, dict[str, Any]]:
        """The status of those channels that there are."""
        answer = self.bulk_status(*channels)
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["channel_statuses"])

    def bulk_status(self, *channels: str) -> requests.Response:
        return self.call("POST", ":bulk-channel-status", json={"channel_names": channels})

    def committed(self, channel: str) -> str | None:
        return self.statuses(channel)[channel]["last_committed_offset_token"]

    def drop(self, channel: str) -> requests.Response:
        return self.call("DELETE", f"/channels/{quote(channel, safe='')}")

    def wait_for_token(self, channel: str, token: str) -> dict[str, Any]:
        """Wait until a channel has committed a token, and return its status."""
        wait_until(lambda: self.committed(channel) == token, seconds=SECONDS, what=f"token {token}")
        return dict(self.statuses(channel)[channel])
