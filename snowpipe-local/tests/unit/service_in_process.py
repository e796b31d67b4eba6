"""The whole service behind its ASGI door, without a socket, a process or TLS."""

from __future__ import annotations

import asyncio
import functools
import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from cryptography.hazmat.primitives.asymmetric import rsa
from snowpipe_local import accounts
from snowpipe_local.access.access import Access
from snowpipe_local.accounts import ensure_account, sign_key_pair_jwt
from snowpipe_local.catalog import Catalog
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.engine.spool import Spool
from snowpipe_local.faults import Faults
from snowpipe_local.limits import DEFAULTS, Limits
from snowpipe_local.server import Service
from snowpipe_local.stages.storage import Storage
from tests.local_catalog import emptied


class Answer:
    """Status and content of one answer."""

    def __init__(self, messages: list[Any]) -> None:
        self.status = int(messages[0]["status"])
        self.headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        self.content = b"".join(message.get("body", b"") for message in messages[1:])

    def json(self) -> Any:
        return json.loads(self.content)


async def exchanged(
    app: Any,
    method: str,
    path: str,
    headers: Mapping[str, str],
    parts: Sequence[bytes],
    *,
    breaks_off: bool = False,
) -> list[Any]:
    """Send a request to an ASGI application; its messages, none where it sent no answer."""
    raw, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": raw,
        "raw_path": raw.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
        "query_string": query.encode(),
        "client": ("127.0.0.1", 1),
    }
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages[-1]["more_body"] = breaks_off
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


class Connector:
    """One session of the connector protocol."""

    def __init__(self, service: ServiceInProcess, token: str) -> None:
        self._service = service
        self.token = token

    def query(self, text: str, request_id: str = "", **body: Any) -> Any:
        path = f"/queries/v1/query-request?requestId={request_id or uuid.uuid4()}"
        return self.call("POST", path, {"sqlText": text, **body})

    def call(self, method: str, path: str, body: Any = None) -> Any:
        header = f'Snowflake Token="{self.token}"'
        return self._service.call(method, path, body, {"authorization": header}).json()


# The services of a test process share the key of their account: to make one takes half of a start.
_made_once = SimpleNamespace(generate_private_key=functools.cache(rsa.generate_private_key))


class ServiceInProcess:
    """A service on a data directory."""

    def __init__(self, root: Path, limits: Limits = DEFAULTS) -> None:
        self.home = DataDirectory(root)
        self.home.create()
        self.limits = limits
        self.access = Access(self.home.access_file)
        self.spool = Spool(self.home.spool_dir, self.home.stage_dir, self.home.spool_keys_file)
        self.catalog = Catalog(
            self.home.databases_dir, Faults(), limits, access=self.access,
            storage=Storage(self.home.staged_files_dir, self.home.root), spool=self.spool,
        )  # fmt: skip
        self._begin()

    def _begin(self) -> None:
        with patch.object(accounts, "rsa", _made_once):
            self.account = ensure_account(self.home, self.access)
        proxy: Any = None
        self.service = Service(self.account, self.catalog, self.home, Faults(), 1, proxy, self.limits)

    def empty(self) -> None:
        """Begin again, for the next test."""
        self.service.close()
        self.home.access_file.unlink(missing_ok=True)
        self.access = emptied(self.catalog).access = Access(self.home.access_file, self.catalog.clock)
        self._begin()

    def close(self) -> None:
        self.service.close()
        self.catalog.close()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        *,
        token: str = "",
    ) -> Answer:
        """Send one request; a body that is not bytes goes as JSON."""
        return asyncio.run(self.answer(method, path, body, headers, token=token))

    async def answer(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        *,
        token: str = "",
    ) -> Answer:
        """The same in the event loop of the caller."""
        given = dict(headers or {}) | ({"authorization": f"Bearer {token}"} if token else {})
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        parts = [content[at : at + 65536] for at in range(0, len(content), 65536)] or [b""]
        return Answer(await exchanged(self.service, method, path, given, parts))

    def login(self, user: str = "DEMO", password: str | None = None, **data: Any) -> Any:
        secret = self.home.password_file.read_text().strip() if password is None else password
        sent = {"data": {"LOGIN_NAME": user, "PASSWORD": secret, **data}}
        return self.call(
            "POST", "/session/v1/login-request?databaseName=LOCAL&schemaName=PUBLIC", sent
        ).json()

    def connect(self, user: str = "DEMO", password: str | None = None, **data: Any) -> Connector:
        return Connector(self, self.login(user, password, **data)["data"]["token"])

    def jwt(self) -> str:
        return sign_key_pair_jwt(self.home)
