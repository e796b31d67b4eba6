"""PUT and GET of the connectors: the shape in which both generations move files, and the routes behind it.

Observed with connectors 4.8.1 and 5.2.0: a stage of type ``GCS`` with an ``endPoint`` makes both send
``PUT``, ``HEAD`` and ``GET`` to ``https://<endPoint>/<location>/<file>`` with a bearer token. Without
``encryptionMaterial`` neither encrypts. JDBC 3.24.2 would use Google's own library and routes with such a
token; without one it sends plain ``PUT`` and ``GET`` to signed URLs, one for each file. Node's snowflake-sdk
3.3.0 takes the token, and reads ``presignedUrls`` of GET all the same; connector 5.2.0 takes an empty one
for a URL.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import secrets
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote

import jwt

from airflow_provider_snowpipe.local.errors import Refusal, SqlError
from airflow_provider_snowpipe.local.fronts.http import (
    INTERNAL_ERROR,
    Receive,
    Response,
    Scope,
    Send,
    in_thread,
    receive_in_time,
    respond,
)
from airflow_provider_snowpipe.local.stages.files import (
    FolderArea,
    Transfer,
    digest,
    make_private_folder,
    remember_digest,
)
from airflow_provider_snowpipe.local.stages.storage import Storage

log = logging.getLogger(__name__)

BUCKET = "snowpipe-local-files"
TOKEN_SECONDS = 3600
_ISSUER = "snowpipe-local-files"
_BLOCK = 1 << 20
_SNOWFLAKE_HOST = re.compile(r"([a-z0-9._-]+\.snowflakecomputing\.com)(?::443)?\Z", re.IGNORECASE)
_PLACE_ATTEMPTS = 5
# Longest name of a file in a folder, on the file systems of Linux.
_NAME_BYTES = 255


class StageFilesFront:
    """Tokens and routes of file transfer.

    :param storage: files of internal stages.
    :param secret: key that signs tokens.
    :param endpoint: ``host:port`` of the service.
    """

    def __init__(self, storage: Storage, secret: bytes, endpoint: str) -> None:
        self._storage = storage
        self._secret = secret
        self._endpoint = endpoint

    @staticmethod
    def is_route(scope: Scope) -> bool:
        """Return True for a request that this front answers."""
        return str(scope["path"]).startswith(f"/{BUCKET}/")

    def instruct(self, transfer: Transfer, host: str = "", client: str = "") -> dict[str, Any]:
        """Return what the connector protocol's answer to PUT or GET tells the client.

        :param host: the host that the client asked; one of ``*.snowflakecomputing.com`` came through the
            CONNECT proxy, which leads its files here too.
        :param client: as in :class:`Session`. For ``JDBC`` the token is put into a URL for each file; it then
            sends PUT again for each of its files, under the name that the file gets in the stage.
        """
        sign_urls = client == "JDBC"
        through_proxy = _SNOWFLAKE_HOST.match(host)
        endpoint = through_proxy[1] if through_proxy else self._endpoint
        token = self._issue(transfer)
        location = f"{BUCKET}/{transfer.identity}/"
        has_none = transfer.is_upload or client == "PYTHON"

        def signed(path: str) -> str:
            return f"https://{endpoint}/{location}{quote(path)}?token={token}" if sign_urls else ""

        common: dict[str, Any] = {
            "command": "UPLOAD" if transfer.is_upload else "DOWNLOAD",
            "src_locations": list(transfer.sources),
            "parallel": transfer.parallel,
            "encryptionMaterial": None,
            "presignedUrls": None if has_none else [signed(path) for path in transfer.sources],
            "clientShowEncryptionParameter": False,
            "stageInfo": {
                "locationType": "GCS",
                "location": location + (transfer.prefix if transfer.is_upload else ""),
                "path": transfer.prefix,
                "region": "LOCAL",
                "endPoint": endpoint,
                "storageAccount": None,
                "isClientSideEncrypted": False,
                "creds": {} if sign_urls else {"GCS_ACCESS_TOKEN": token},
            },
        }
        if transfer.is_upload:
            if sign_urls:
                name = transfer.sources[0].rpartition("/")[2]
                common["stageInfo"]["presignedUrl"] = signed(transfer.prefix + name)
            return common | {
                "autoCompress": transfer.auto_compress,
                "overwrite": transfer.overwrite,
                "threshold": transfer.threshold,
                "sourceCompression": transfer.source_compression.lower(),
            }
        return common | {"localLocation": transfer.local_folder}

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every failure becomes a JSON error."""
        try:
            await self._answer(scope, receive, send)
        except Refusal as refusal:
            await respond(send, Response.of_refusal(refusal))
        except SqlError as error:
            await respond(send, Response.of_refusal(Refusal(400, "INVALID_FILE_PATH", error.message)))
        except OSError as error:
            # A full disk, for one: no 5xx, which a connector would repeat for minutes.
            log.exception("moving a staged file failed")
            why = f"the local service could not move the file: {error.strerror}; see its log"
            await respond(send, Response.of_refusal(Refusal(400, "STORAGE_FAILED", why)))
        except Exception:
            log.exception("moving a staged file failed")
            await respond(send, Response.of_refusal(INTERNAL_ERROR))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        area, path = self._place(scope)
        method = scope["method"]
        token = _given_token(scope)
        if method not in {"PUT", "GET", "HEAD"}:
            raise Refusal(405, "METHOD_NOT_ALLOWED", "files of a stage take PUT, GET and HEAD")
        self._check(token, area.root.name, path, method)
        if method == "PUT":
            await self._store(area, path, receive)
            await respond(send, Response.of_json({"name": path}))
        else:
            await _send_file(area.path(path), send, with_body=method == "GET")

    def _place(self, scope: Scope) -> tuple[FolderArea, str]:
        try:
            raw = scope["raw_path"].decode("ascii").partition("?")[0]
            parts = [unquote(part, errors="strict") for part in raw.split("/")[2:]]
        except UnicodeDecodeError as error:
            raise Refusal(400, "INVALID_URL", "the URL is not percent-encoded UTF-8") from error
        is_name = all("/" not in part and len(part.encode()) <= _NAME_BYTES for part in parts)
        if len(parts) < 2 or not is_name or parts[0] in {"", ".", ".."}:
            raise Refusal(400, "INVALID_FILE_PATH", "the URL names no file of a stage")
        area = self._storage.internal(parts[0]) if "\0" not in parts[0] else None
        if area is None or not area.root.is_dir():
            raise Refusal(404, "STAGE_DOES_NOT_EXIST", "the stage does not exist any more")
        path = "/".join(parts[1:])
        area.path(path)
        return area, path

    # -- tokens ---------------------------------------------------------------------------------------------

    def _issue(self, transfer: Transfer) -> str:
        claims = {
            "iss": _ISSUER,
            "exp": int(time.time()) + TOKEN_SECONDS,
            "stage": transfer.identity,
            "prefix": transfer.prefix,
            "upload": transfer.is_upload,
        }
        return jwt.encode(claims, self._secret, algorithm="HS256")

    def _check(self, token: str, identity: str, path: str, method: str) -> None:
        try:
            claims = jwt.decode(
                token, self._secret, algorithms=["HS256"], issuer=_ISSUER, options={"require": ["exp", "iss"]}
            )
        except jwt.InvalidTokenError as error:
            # Connector 5.2.0 answers 401 by running its PUT or GET again; 4.8.1 fails at once.
            raise Refusal(
                401, "FILE_TOKEN_INVALID", "the token is wrong or has expired; run PUT or GET again"
            ) from error
        # An upload asks with HEAD whether the file is there.
        may_use = method == "HEAD" or bool(claims["upload"]) == (method == "PUT")
        if claims["stage"] != identity or not path.startswith(claims["prefix"]) or not may_use:
            raise Refusal(403, "ACCESS_DENIED", "the token belongs to another place or another direction")

    # -- uploads --------------------------------------------------------------------------------------------

    async def _store(self, area: FolderArea, path: str, receive: Receive) -> None:
        temporary = self._storage.incoming / secrets.token_hex(16)
        try:
            known = await _receive_into(temporary, receive)
            await in_thread(lambda: _move_into_place(temporary, area, path, known))
        finally:
            temporary.unlink(missing_ok=True)


async def _receive_into(temporary: Path, receive: Receive) -> str:
    """Write a body to a file as it arrives and return its MD5."""
    md5 = hashlib.md5(usedforsecurity=False)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as handle:
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive_in_time(receive)
            if message["type"] != "http.request":
                raise Refusal(400, "CLIENT_DISCONNECTED", "the client closed the connection")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
            if size >= _BLOCK or not more:
                block = b"".join(parts)
                await in_thread(functools.partial(_write, handle, md5, block))
                parts, size = [], 0
    return md5.hexdigest()


def _write(handle: Any, md5: Any, block: bytes) -> None:
    md5.update(block)
    view = memoryview(block)
    while view:
        view = view[handle.write(view) :]


def _move_into_place(temporary: Path, area: FolderArea, path: str, known: str) -> None:
    target = area.path(path)
    remember_digest(temporary, known)
    for attempt in range(_PLACE_ATTEMPTS):
        try:
            make_private_folder(target.parent)
            os.replace(temporary, target)
            return
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise Refusal(
                400, "INVALID_FILE_PATH", f"'{path}' meets a file of the stage where it needs a folder"
            ) from error
        except FileNotFoundError:
            # REMOVE has just deleted the empty folder.
            if attempt == _PLACE_ATTEMPTS - 1:
                raise


# -- downloads ----------------------------------------------------------------------------------------------


async def _send_file(path: Path, send: Send, *, with_body: bool) -> None:
    try:
        handle = await in_thread(lambda: path.open("rb"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise Refusal(404, "FILE_DOES_NOT_EXIST", "the stage holds no such file") from error
    with contextlib.closing(handle):
        size = os.fstat(handle.fileno()).st_size
        etag = await in_thread(lambda: digest(path))
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", str(size).encode()),
            (b"etag", f'"{etag}"'.encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        left = size if with_body else 0
        while left:
            block = await in_thread(lambda: handle.read(_BLOCK))
            left = max(left - len(block), 0) if block else 0
            await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _given_token(scope: Scope) -> str:
    """Return the token of the URL, or of the header."""
    in_url = parse_qs(scope["query_string"].decode("latin-1")).get("token")
    if in_url:
        return str(in_url[0])
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer":
                return str(token.strip())
    raise Refusal(401, "AUTHORIZATION_MISSING", "send the header Authorization: Bearer <token>")
