"""The service's own storage of staged files, the way to files outside of it, and the named stages."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import ipaddress
import json
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

import duckdb

from snowpipe_local.datadir import Clock
from snowpipe_local.definitions import Definitions
from snowpipe_local.errors import ConfigurationError, SqlError, access_error, compilation_error
from snowpipe_local.names import Names, Rename
from snowpipe_local.stages.definition import FileFormatDefinition, StageDefinition
from snowpipe_local.stages.files import FileArea, FolderArea, StagedFile, make_private_folder, suffix_of

# -- Files of a bucket behind a local S3 endpoint --------------------------------------------------------

DEFAULT_REGION = "us-east-1"
_BLOCK = 1 << 20
_DELETE_BATCH = 1000
_CONNECT_SECONDS = 5
_READ_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket, and how to reach it.

    :param key_id: access key id; None makes unsigned requests.
    """

    endpoint: str
    name: str
    region: str = DEFAULT_REGION
    key_id: str | None = None
    secret: str | None = None
    token: str | None = None

    def __repr__(self) -> str:
        """Show no secret."""
        return f"Bucket({self.endpoint}/{self.name})"


def loopback_endpoint(text: str) -> str:
    """Return the URL of an S3 endpoint on this machine.

    :param text: ``host:port``, with or without a scheme; without one it is ``http``.
    :raises SqlError: for a host that is not loopback: the local service reaches no other machine.
    """
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise _refused(text) from error
    plain = parts.path in {"", "/"} and not parts.query and not parts.username
    if parts.scheme not in {"http", "https"} or not plain or not _is_loopback(host):
        raise _refused(text)
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port else "")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _refused(text: str) -> SqlError:
    allowed = "the local service reaches S3 on this machine only: use 127.0.0.1:port or localhost:port."
    why = f"invalid value [{text}] for parameter 'ENDPOINT'; {allowed}"
    return compilation_error(why, "001008", "22023")


@functools.lru_cache(maxsize=32)
def _client(bucket: Bucket) -> Any:
    # boto3 takes a quarter of a second to import; a service without s3 stages does not pay for it.
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    config = Config(
        signature_version="s3v4" if bucket.key_id else UNSIGNED,
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        retries={"total_max_attempts": 3, "mode": "standard"},
        s3={"addressing_style": "path"},
        # The endpoint is on this machine; a proxy of the environment does not lead there.
        proxies={},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    session = boto3.session.Session(
        aws_access_key_id=bucket.key_id,
        aws_secret_access_key=bucket.secret,
        aws_session_token=bucket.token,
        region_name=bucket.region,
    )
    return session.client("s3", endpoint_url=bucket.endpoint, config=config)


class S3Area:
    """Files of a bucket below a key prefix.

    :param base: key prefix of the stage, empty or with a closing ``/``.
    """

    def __init__(self, bucket: Bucket, base: str, downloads: Path) -> None:
        self._bucket = bucket
        self._base = base
        self._downloads = downloads

    def list(self, prefix: str) -> list[StagedFile]:
        """Return the objects whose key starts with a text, by key; "folder" objects do not show."""
        found: list[StagedFile] = []
        with _as_sql_error(self._bucket):
            pages = _client(self._bucket).get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket.name, Prefix=self._base + prefix):
                found += [
                    StagedFile(
                        entry["Key"][len(self._base) :],
                        entry["Size"],
                        entry["ETag"].strip('"'),
                        int(entry["LastModified"].timestamp() * 1000),
                    )
                    for entry in page.get("Contents", ())
                    if not entry["Key"].endswith("/")
                ]
        return sorted(found, key=lambda staged: staged.path)

    @contextlib.contextmanager
    def local_copy(self, file: StagedFile) -> Iterator[Path]:
        """Download an object into a private file that goes away afterwards.

        What was listed is what is read.

        :raises SqlError: when the object is gone, or is not the one that was listed.
        """
        descriptor, name = tempfile.mkstemp(suffix=suffix_of(file.path), dir=self._downloads)
        try:
            with os.fdopen(descriptor, "wb") as handle, _as_sql_error(self._bucket):
                answer = _client(self._bucket).get_object(
                    Bucket=self._bucket.name, Key=self._base + file.path, IfMatch=f'"{file.etag}"'
                )
                for block in answer["Body"].iter_chunks(_BLOCK):
                    handle.write(block)
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    def remove(self, files: Iterable[StagedFile]) -> None:
        """Delete objects."""
        keys = [{"Key": self._base + file.path} for file in files]
        with _as_sql_error(self._bucket):
            for start in range(0, len(keys), _DELETE_BATCH):
                batch = {"Objects": keys[start : start + _DELETE_BATCH], "Quiet": True}
                answer = _client(self._bucket).delete_objects(Bucket=self._bucket.name, Delete=batch)
                for failed in answer.get("Errors", ())[:1]:
                    raise _remote_error(self._bucket, f"{failed.get('Key')}: {failed.get('Message')}")


@contextlib.contextmanager
def _as_sql_error(bucket: Bucket) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise _remote_error(bucket, str(error)) from error


def _remote_error(bucket: Bucket, detail: str) -> SqlError:
    why = f"Failure using stage area. Cause: [s3://{bucket.name} at {bucket.endpoint}: {detail}]"
    return SqlError("100016", "22000", why)


_FILES, _INCOMING, _DOWNLOADS, _TRASH = "files", "incoming", "downloads", "trash"


@dataclass(frozen=True, slots=True)
class Outside:
    """What external stages may reach.

    :param folders: real paths of the folders that ``file://`` stages may be in.
    :param s3_endpoint: URL of the S3 service for stages without ENDPOINT, or None.
    :param s3_credentials: AWS_KEY_ID, AWS_SECRET_KEY and AWS_TOKEN for stages without CREDENTIALS.
    """

    folders: tuple[Path, ...] = ()
    s3_endpoint: str | None = None
    s3_credentials: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def from_options(cls, folders: Iterable[Path], s3_endpoint: str | None) -> Outside:
        """Check the options of ``serve``; S3 credentials come from the usual environment variables.

        :raises ConfigurationError: for a folder that does not exist, or an endpoint that is not loopback.
        """
        real: list[Path] = []
        for folder in folders:
            if not folder.expanduser().is_dir():
                raise ConfigurationError(f"--allow-folder {folder} is not a folder; create it first")
            real.append(folder.expanduser().resolve())
        try:
            endpoint = None if s3_endpoint is None else loopback_endpoint(s3_endpoint)
        except SqlError as error:
            raise ConfigurationError(
                f"--s3-endpoint {s3_endpoint}: only an address of this machine is allowed, "
                f"for example http://127.0.0.1:9000"
            ) from error
        names = {
            "AWS_KEY_ID": "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_KEY": "AWS_SECRET_ACCESS_KEY",
            "AWS_TOKEN": "AWS_SESSION_TOKEN",
        }
        given = {name: os.environ[variable] for name, variable in names.items() if os.environ.get(variable)}
        return cls(tuple(real), endpoint, given if "AWS_SECRET_KEY" in given else {})


class Storage:
    """Folders of internal stages, and access to external ones.

    :param private: folder that no ``file://`` stage may reach: the data directory.
    :param outside: what external stages may reach.
    """

    def __init__(self, root: Path, private: Path, outside: Outside | None = None) -> None:
        self._root = root
        self._private = private.resolve()
        self.outside = outside or Outside()
        self.clock: Clock | None = None
        """The service's clock, by which uploads are dated; None for that of the machine."""
        for name in (_INCOMING, _DOWNLOADS, _TRASH):
            # Left behind by a service that was killed.
            shutil.rmtree(root / name, ignore_errors=True)
        for name in (_FILES, _INCOMING, _DOWNLOADS, _TRASH):
            make_private_folder(root / name)

    @property
    def incoming(self) -> Path:
        """Folder of uploads that are not complete."""
        return self._root / _INCOMING

    @property
    def readable_folders(self) -> tuple[Path, ...]:
        """Folders that the engine may read: staged files, downloads, and those that were allowed."""
        return (self._root, *self.outside.folders)

    def internal(self, identity: str) -> FolderArea:
        """Return the files of an internal stage.

        :param identity: the stage's folder, see :attr:`Table.folder` and :func:`user_identity`.
        """
        return FolderArea(self._root / _FILES / identity, pins=self._root / _DOWNLOADS, clock=self.clock)

    def create(self, *identities: str) -> None:
        """Create the folders of internal stages, unless they are there."""
        for identity in identities:
            (self._root / _FILES / identity).mkdir(exist_ok=True, mode=0o700)

    def external(self, url: str, definition: StageDefinition | None = None) -> tuple[FileArea, str, str]:
        """Return the files below the last ``/`` of a URL, the URL up to it, and what it has after it.

        :param url: ``file://`` or ``s3://``; without a closing ``/`` all that starts with it counts.
        :param definition: stage with endpoint and credentials; None takes the service's own.
        :raises SqlError: for a folder or endpoint that the service was not allowed to reach.
        """
        if url.startswith("file://"):
            return self._folder(url)
        if url.startswith(("s3://", "s3compat://")):
            return self._bucket(url, definition)
        raise compilation_error(f"invalid URL '{url}': a stage is at file:///folder or s3://bucket/path.")

    def _folder(self, url: str) -> tuple[FileArea, str, str]:
        path = self.allowed_folder(url)
        lead = "" if url.endswith("/") or path.is_dir() else path.name
        root = path.parent if lead else path
        return FolderArea(root, self.outside.folders, self._private), f"file://{root}/", lead

    def allowed_folder(self, url: str) -> Path:
        """Return the folder of a ``file://`` URL.

        :raises SqlError: unless it is below a folder of ``serve --allow-folder``.
        """
        path = unquote(url.removeprefix("file://"))
        folder = Path(path).resolve() if path.startswith("/") and "\0" not in path else None
        if folder is None:
            raise compilation_error(f"invalid URL '{url}': write file:///absolute/folder.")
        is_private = folder.is_relative_to(self._private)
        if is_private or not any(folder.is_relative_to(allowed) for allowed in self.outside.folders):
            raise access_error(
                f"the local service may not read '{url}'; "
                f"start it with: serve --allow-folder {folder if not is_private else 'DIR'}"
                + (" (a folder outside of its data directory)" if is_private else "")
            )
        return folder

    def _bucket(self, url: str, definition: StageDefinition | None) -> tuple[FileArea, str, str]:
        scheme, _, path = url.partition("://")
        bucket, _, key = path.partition("/")
        if not bucket:
            raise compilation_error(f"invalid URL '{url}': write s3://bucket/path/.")
        endpoint = definition.endpoint if definition and definition.endpoint else self.outside.s3_endpoint
        if endpoint is None:
            raise compilation_error(
                f"the local service knows no S3 endpoint for '{url}'; start it with "
                f"serve --s3-endpoint http://127.0.0.1:PORT, or give the stage ENDPOINT = '127.0.0.1:PORT'."
            )
        region = (definition.region if definition else None) or DEFAULT_REGION
        credentials = (definition.credentials if definition else {}) or self.outside.s3_credentials
        keys = map(credentials.get, ("AWS_KEY_ID", "AWS_SECRET_KEY", "AWS_TOKEN"))
        described = Bucket(loopback_endpoint(endpoint), bucket, region, *keys)
        base, slash, lead = key.rpartition("/")
        area = S3Area(described, base + slash, self._root / _DOWNLOADS)
        return area, f"{scheme}://{bucket}/{base}{slash}", lead

    def remove(self, identities: Iterable[str]) -> None:
        """Delete the files of internal stages; those that never had one do no harm."""
        for identity in identities:
            # Out of sight first: a reader sees all files of a stage, or none.
            away = self._root / _TRASH / secrets.token_hex(8)
            with contextlib.suppress(FileNotFoundError):
                (self._root / _FILES / identity).rename(away)
                shutil.rmtree(away, ignore_errors=True)

    def remove_all_but(self, identities: Iterable[str]) -> None:
        """Delete what stages left behind that a killed service could not delete; user stages stay."""
        known = set(identities)
        self.remove(
            folder.name
            for folder in (self._root / _FILES).iterdir()
            if folder.name not in known and not folder.name.startswith("user-")
        )


def user_identity(user: str) -> str:
    """Return the folder name of a user's stage."""
    return "user-" + hashlib.sha256(json.dumps([user]).encode()).hexdigest()[:32]


# -- Named stages and file formats of one database or session, and the files of its stages ---------------

Staged = TypeVar("Staged", StageDefinition, FileFormatDefinition)


class Stages:
    """Stages and file formats of one database."""

    def __init__(
        self, names: Names, cursor: duckdb.DuckDBPyConnection, write_lock: threading.RLock, storage: Storage
    ) -> None:
        self._storage = storage
        self._lock = write_lock
        given = (names, cursor, write_lock)
        self.stages = Definitions(StageDefinition, *given)
        self.formats = Definitions(FileFormatDefinition, *given)

    def of(self, kind: type[Staged]) -> Definitions[Staged]:
        """Return those of one kind that outlive their session."""
        known: Any = self.stages if kind is StageDefinition else self.formats
        return cast("Definitions[Staged]", known)

    def put(self, new: Staged, *, replace: bool) -> None:
        """Create one; the files of an internal stage that it replaces are deleted.

        :raises SqlError: when it exists and is not to be replaced.
        """
        with self._lock:
            old = self.of(type(new)).put(new, replace=replace)
            self._storage.create(*new.folders)
            self._storage.remove(old.folders if old is not None else ())

    def drop(self, known: Staged) -> None:
        """Drop one, a stage with its internal files."""
        with self._lock:
            self.of(type(known)).drop(known)
            self._storage.remove(known.folders)

    def drop_schema(self, schema: str) -> None:
        """Drop the stages and file formats of a schema."""
        for known in (*self.stages, *self.formats):
            if known.schema == schema:
                self.drop(known)

    def drop_folder(self, folder: str) -> None:
        """Delete the files of a table's stage."""
        self._storage.remove([folder])

    def follow(self, change: Rename) -> Callable[[], None]:
        """Follow a new name of a database or schema, as :meth:`Definitions.follow` does."""
        followers = self.stages.follow(change), self.formats.follow(change)

        def follow() -> None:
            for each in followers:
                each()

        return follow


class TemporaryObjects:
    """Temporary stages and file formats of one session; they hide permanent ones of the same name."""

    def __init__(self) -> None:
        self._known: dict[type[Any], dict[tuple[str, str, str], Any]] = {}

    def of(self, kind: type[Staged]) -> dict[tuple[str, str, str], Staged]:
        """Return those of one kind, by database, schema and name."""
        return self._known.setdefault(kind, {})

    def follow(self, change: Rename) -> None:
        """Keep the objects when their database or schema, or that of a file format, gets another name."""
        for kind, known in self._known.items():
            moved = [each.moved(change) for each in known.values()]
            self._known[kind] = {each.path: each for each in moved}

    def clear(self, storage: Storage) -> None:
        """Drop everything, at the end of the session."""
        for known in self._known.values():
            storage.remove(folder for each in known.values() for folder in each.folders)
        self._known.clear()
