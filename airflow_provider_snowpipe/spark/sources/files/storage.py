"""Where the files of a source are: a directory of this machine, or a bucket.

Object stores are read by obstore, Rust's ``object_store``: it lists as Arrow batches, reads ranges of one
version of an object, repeats failed requests itself, and creates an object only where there is none. Neither
``pyarrow.fs`` nor fsspec has the last three for all stores.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast
from urllib.parse import urlsplit
from uuid import uuid4

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    SourceMissingError,
    SourcePositionError,
    SourceUnavailableError,
)

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")
_COLUMNS = ("path", "size", "last_modified", "e_tag")
_CHUNK_BYTES = 8 << 20
"""One read of an object: large enough that the time of a request does not show."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as its storage lists it.

    :param name: below the storage's root, with ``/`` between its parts
    :param size: in bytes
    :param modified_ns: when it was written last, nanoseconds since 1970
    :param version: what is another one when the content is, an object's ETag; empty for local files
    :param node: the same for two paths that lead to one file; empty where a file has one path
    """

    name: str
    size: int
    modified_ns: int
    version: str = ""
    node: tuple[int, ...] = ()


class Storage(ABC):
    """A tree of files below a root. Travels to executors; what it knows in secret is in no ``repr``.

    :param root: a directory, or a URL
    """

    root: str

    @abstractmethod
    def files(self, depth: int | None = None) -> Iterator[Listed]:
        """List the files below the root, in no order.

        :param depth: how many parts a name has at most, None for any number
        :raises SourceMissingError: if the root is not there
        """

    def names(self) -> list[str]:
        """The names of the files directly in the root, none where it is not there."""
        try:
            return [one.name for one in self.files(1)]
        except SourceMissingError:
            return []

    @abstractmethod
    def stat(self, path: str) -> Listed:
        """Describe one file as it is now.

        :param path: the file, as :meth:`path` gives it
        :raises FileNotFoundError: if it is not there
        """

    @abstractmethod
    def open(self, path: str, version: str = "") -> BinaryIO:
        """Open a file to read it from any position.

        :param version: refuses another version than this one while it is read; empty takes any
        :raises OSError: if it cannot be opened
        """

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Create a file with its content, in one step that only one of several writers can take.

        :return: False where it is there already
        :raises OSError: if it cannot be written
        """

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Read a whole file.

        :raises FileNotFoundError: if it is not there
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a file; nothing happens where it is not there."""

    @abstractmethod
    def below(self, folder: str) -> Storage:
        """The tree of a folder below the root, which need not exist."""

    @abstractmethod
    def path(self, name: str) -> str:
        """The whole path or URL of a name, for people and for :meth:`open`."""


def storage_of(path: str, secrets: SourceSecrets | None = None) -> Storage:
    """Make the storage of a path: a directory, or a URL of an object store.

    :param secrets: options of the object store's client, by obstore's names
    :raises ConfigurationError: if nothing reads such a URL
    """
    found = _URL.match(path)
    if found is None:
        return LocalStorage(path)
    if found["scheme"] not in ObjectStorage.schemes:
        known = ", ".join(f"{one}://" for one in sorted(ObjectStorage.schemes))
        raise ConfigurationError(
            f"source path {path!r} has the scheme {found['scheme']!r}: give a directory, or a URL with one "
            f"of {known}"
        )
    return ObjectStorage(path.rstrip("/"), secrets or SourceSecrets())


def options_of(connection: Any) -> SourceSecrets:
    """Read the options of an object store's client from an Airflow connection, by obstore's names.

    :param connection: of type ``aws``, ``google_cloud_platform``, ``wasb`` or ``adls``, with the fields and
        the extra that Airflow's hooks of these types read
    :raises ConfigurationError: if it is of another type, or names what obstore cannot use
    """
    # Older forms of these connections write ``extra__google_cloud_platform__keyfile_dict``.
    extra = {str(key).split("__")[-1]: one for key, one in connection.extra_dejson.items()}
    make = _OPTIONS.get(str(connection.conn_type))
    if make is None:
        raise ConfigurationError(
            f"source conn_id {connection.conn_id!r} is a connection of type {connection.conn_type!r}: "
            f"give one of {', '.join(sorted(_OPTIONS))}"
        )
    return SourceSecrets({key: str(value) for key, value in make(connection, extra).items() if value})


def _of_aws(connection: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    config = extra.get("service_config") or {}
    endpoint = (config.get("s3") or {}).get("endpoint_url") or extra.get("endpoint_url") or extra.get("host")
    for name in ("role_arn", "profile_name", "assume_role_method"):
        if extra.get(name):
            raise ConfigurationError(
                f"source conn_id {connection.conn_id!r} has {name} in its extra, which the readers of files "
                "do not use: give keys, or leave conn_id out and give the role to driver and executors"
            )
    is_anonymous = (extra.get("config_kwargs") or {}).get("signature_version") == "unsigned"
    return {
        "aws_access_key_id": connection.login or extra.get("aws_access_key_id"),
        "aws_secret_access_key": connection.password or extra.get("aws_secret_access_key"),
        "aws_session_token": extra.get("aws_session_token"),
        "aws_region": extra.get("region_name"),
        "aws_endpoint": endpoint,
        "aws_skip_signature": "true" if is_anonymous or extra.get("anonymous") else None,
        "aws_request_payer": "true" if extra.get("requester_pays") else None,
        "allow_http": "true" if str(endpoint or "").startswith("http://") else None,
    }


def _of_google(connection: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    key = extra.get("keyfile_dict")
    return {
        "google_service_account_key": json.dumps(key) if isinstance(key, Mapping) else key,
        "google_service_account": extra.get("key_path"),
        "google_base_url": extra.get("endpoint_url"),
        "google_skip_signature": "true" if extra.get("is_anonymous") else None,
        "allow_http": "true" if str(extra.get("endpoint_url") or "").startswith("http://") else None,
    }


def _of_azure(connection: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    host = str(connection.host or "")
    account = extra.get("account_name") or connection.login or urlsplit(host).netloc.split(".")[0]
    is_principal = bool(extra.get("tenant_id"))
    return {
        "azure_storage_account_name": extra.get("account_name") or (None if is_principal else account),
        "azure_storage_account_key": extra.get("account_key")
        or (None if is_principal else connection.password),
        "azure_storage_sas_token": extra.get("sas_token"),
        "azure_storage_client_id": connection.login if is_principal else None,
        "azure_storage_client_secret": connection.password if is_principal else None,
        "azure_storage_tenant_id": extra.get("tenant_id"),
        "azure_endpoint": host if host.startswith("http://") else None,
        "allow_http": "true" if host.startswith("http://") else None,
    }


_OPTIONS: Mapping[str, Callable[[Any, Mapping[str, Any]], dict[str, Any]]] = {
    "aws": _of_aws,
    "google_cloud_platform": _of_google,
    "wasb": _of_azure,
    "adls": _of_azure,
}


def is_url(path: str) -> bool:
    """True for the URL of an object store, False for a directory."""
    return _URL.match(path) is not None


@dataclass(frozen=True)
class LocalStorage(Storage):
    """A directory, as this machine sees it."""

    root: str

    def files(self, depth: int | None = None) -> Iterator[Listed]:
        """List the files, through links as well."""
        root = Path(self.root)
        if not root.is_dir():
            state = "is not a directory" if root.exists() else "does not exist"
            raise SourceMissingError(
                f"source path {self.root!r} {state}: give the directory that holds the files, as the Spark "
                "driver sees it"
            )
        yield from self._files(self.root, "", 1, depth, frozenset())

    def names(self) -> list[str]:
        """The names in the directory."""
        try:
            return os.listdir(self.root)
        except FileNotFoundError:
            return []

    def _files(
        self, folder: str, below: str, level: int, depth: int | None, above: frozenset[tuple[int, int]]
    ) -> Iterator[Listed]:
        found = os.stat(folder)
        here = (found.st_dev, found.st_ino)
        if here in above:  # a link back up
            return
        with os.scandir(folder) as entries:
            for entry in entries:
                name = f"{below}{entry.name}"
                if entry.is_dir():
                    if depth is None or level < depth:
                        yield from self._files(entry.path, f"{name}/", level + 1, depth, above | {here})
                elif entry.is_file():
                    yield _listed(name, self._stat(entry))

    def _stat(self, entry: os.DirEntry[str]) -> os.stat_result:
        try:
            return entry.stat()
        except FileNotFoundError:
            raise SourcePositionError(
                f"file {entry.path!r} vanished while the source was being listed; run again when nothing "
                "moves files"
            ) from None

    def stat(self, path: str) -> Listed:
        """Describe one file."""
        return _listed(path, os.stat(path))

    def open(self, path: str, version: str = "") -> BinaryIO:
        """Open a file."""
        return cast(BinaryIO, open(path, "rb", buffering=0))

    def create(self, name: str, data: bytes) -> bool:
        """Create a file: a link to a whole one, which fails where its name is taken."""
        path = Path(self.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_name(f".{uuid4().hex}")
        try:
            with whole.open("xb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            os.link(whole, path)
        except FileExistsError:
            return False
        finally:
            whole.unlink(missing_ok=True)
        return True

    def read(self, name: str) -> bytes:
        """Read a whole file."""
        return Path(self.path(name)).read_bytes()

    def delete(self, name: str) -> None:
        """Delete a file."""
        Path(self.path(name)).unlink(missing_ok=True)

    def below(self, folder: str) -> LocalStorage:
        """The tree of a folder."""
        return LocalStorage(os.path.join(self.root, folder))

    def path(self, name: str) -> str:
        """The absolute path."""
        return os.path.abspath(os.path.join(self.root, name))


def _listed(name: str, found: os.stat_result) -> Listed:
    node = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    return Listed(name, found.st_size, found.st_mtime_ns, node=node)


@dataclass(frozen=True)
class ObjectStorage(Storage):
    """A bucket or a container, or what is below a prefix of it.

    :param root: its URL, without a slash at the end
    :param options: of obstore's client, among them keys
    """

    root: str
    options: SourceSecrets

    schemes: ClassVar[frozenset[str]] = frozenset({"s3", "s3a", "gs", "az", "abfs", "abfss"})

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "options": self.options}

    @cached_property
    def _client(self) -> Any:
        """Obstore's client of the root."""
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        root = re.sub(r"^s3a://", "s3://", self.root)
        values: dict[str, Any] = dict(self.options.values)
        client = {"allow_http": True} if values.pop("allow_http", "") == "true" else {}
        try:
            return from_url(root, config=values, client_options=client)  # type: ignore[call-overload]
        except (BaseError, ValueError) as error:
            raise ConfigurationError(
                f"source path {self.root!r}: its client cannot be made ({self._text_of(error)}): correct the "
                "URL, or the connection that conn_id names"
            ) from None

    def files(self, depth: int | None = None) -> Iterator[Listed]:
        """List the objects; marks of folders are none."""
        import obstore

        try:
            with self._asking("list", self.root):
                for batch in obstore.list(self._client, chunk_size=1_000, return_arrow=True):
                    columns = [batch.column(one).to_pylist() for one in _COLUMNS]
                    for name, size, modified, version in zip(*columns, strict=True):
                        if depth is None or name.count("/") < depth:
                            yield Listed(name, size, _nanoseconds(modified), version or "")
        except FileNotFoundError:
            raise SourceMissingError(f"source path {self.root!r} does not exist: create the bucket") from None

    def stat(self, path: str) -> Listed:
        """Describe one object."""
        import obstore

        with self._asking("head", path):
            found = obstore.head(self._client, self._name(path))
        name, modified = self._name(path), _nanoseconds(found["last_modified"])
        return Listed(name, found["size"], modified, found["e_tag"] or "")

    def open(self, path: str, version: str = "") -> BinaryIO:
        """Open one version of an object."""
        return cast(BinaryIO, _ObjectStream(self, path, version))

    def create(self, name: str, data: bytes) -> bool:
        """Create an object by a conditional request, ``If-None-Match: *``."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._asking("put", self.path(name)):
            try:
                obstore.put(self._client, name, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def read(self, name: str) -> bytes:
        """Read a whole object."""
        import obstore

        with self._asking("get", self.path(name)):
            return bytes(obstore.get(self._client, name).bytes())

    def get(self, path: str, version: str, first: int, end: int) -> bytes:
        """Read a range of one version of an object.

        :raises SourcePositionError: if it is another version now
        """
        import obstore
        from obstore.exceptions import PreconditionError

        options: dict[str, Any] = {"range": (first, end)}
        if version:
            options["if_match"] = version
        with self._asking("get", path):
            try:
                return bytes(obstore.get(self._client, self._name(path), options=options).bytes())  # type: ignore[arg-type]
            except PreconditionError:
                raise SourcePositionError(
                    f"file {path!r} was written again during the run, so that rows of both versions may have "
                    "been sent. Leave the files in place until the run has ended, and compare the table with "
                    "the files"
                ) from None

    def delete(self, name: str) -> None:
        """Delete an object."""
        import obstore

        try:
            with self._asking("delete", self.path(name)):
                obstore.delete(self._client, name)
        except FileNotFoundError:
            return

    def below(self, folder: str) -> ObjectStorage:
        """The tree of a prefix."""
        return ObjectStorage(f"{self.root}/{folder}", self.options)

    def path(self, name: str) -> str:
        """The URL."""
        return f"{self.root}/{name}"

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self.root}/")

    @contextmanager
    def _asking(self, what: str, url: str) -> Iterator[None]:
        from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except (NotFoundError, FileNotFoundError):
            raise FileNotFoundError(2, "no such object", url) from None
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise ConfigurationError(
                f"{url!r}: the request {what} was refused ({self._text_of(error)}): allow it to the identity "
                "of the source's conn_id, or of the driver and the executors where there is none"
            ) from None
        except BaseError as error:
            raise SourceUnavailableError(
                f"{url!r}: the request {what} failed ({self._text_of(error)}): see whether the store answers "
                "from the driver and the executors"
            ) from None

    def _text_of(self, error: Exception) -> str:
        """The client's words, without a secret and without what is behind the ``?`` of a URL."""
        text = re.sub(r"\?[^\s\"')]*", "", " ".join(str(error).split("Debug source")[0].split()))
        for value in self.options.values.values():
            if len(value) > 5:
                text = text.replace(value, "…")
        return text[:300].rstrip()


def _nanoseconds(time: dt.datetime) -> int:
    return int(time.timestamp()) * 1_000_000_000 + time.microsecond * 1_000


class _ObjectStream(io.RawIOBase):
    """One version of an object, read by ranges; what comes next is read ahead when reading goes straight on.

    :param store: gives the ranges
    """

    def __init__(self, store: ObjectStorage, path: str, version: str) -> None:
        self._store, self._path = store, path
        found = store.stat(path)
        self.size, self._version = found.size, version or found.version
        self._at = 0
        self._have: tuple[int, bytes] = (0, b"")

    def readable(self) -> bool:
        """True, it is read."""
        return True

    def seekable(self) -> bool:
        """True, at any position."""
        return True

    def tell(self) -> int:
        """The position."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, into: Any) -> int:
        """Read what is at the position."""
        view = memoryview(into).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """Read up to some bytes, all that are left for a negative number."""
        left = max(0, self.size - self._at)
        count = left if size is None or size < 0 else min(size, left)
        if not count:
            return b""
        first, have = self._have
        begin = self._at - first
        if not (begin >= 0 and begin + count <= len(have)):
            goes_on = first + len(have) == self._at
            end = min(self.size, self._at + (max(count, _CHUNK_BYTES) if goes_on else count))
            have = self._store.get(self._path, self._version, self._at, end)
            self._have, begin = (self._at, have), 0
        data = have[begin : begin + count]
        self._at += len(data)
        return data
