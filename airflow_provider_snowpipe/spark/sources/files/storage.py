"""Where the files of a source are: a directory of this machine, or a bucket.

Object stores are read by obstore, Rust's ``object_store``: it lists as Arrow batches, reads ranges of one
version of an object, repeats failed requests itself, and creates an object only where there is none. Neither
``pyarrow.fs`` nor fsspec has the last three for all stores.
"""

from __future__ import annotations

import datetime as dt
import io
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple, cast
from urllib.parse import quote
from uuid import uuid4

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.files.storage_options import identity_of
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    SnowpipeError,
    SourceMissingError,
    SourcePositionError,
    SourceUnavailableError,
)

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")
_WINDOW_BYTES = 8 << 20
"""One request of an object: large enough that the time of a request does not show."""
_WINDOWS_AHEAD = 2
"""So many are fetched while those before are read."""
_RETRY = {"max_retries": 10, "retry_timeout": dt.timedelta(seconds=60)}
_CLIENT = {"connect_timeout": dt.timedelta(seconds=5), "timeout": dt.timedelta(seconds=30)}


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
    def open(self, path: str, version: str = "", size: int = -1) -> BinaryIO:
        """Open a file to read it from any position.

        :param version: refuses another version than this one while it is read; empty takes any
        :param size: of this version, where it is known, which saves asking for it
        :raises OSError: if it cannot be opened
        """

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Create a file with its content, in one step that only one of several writers can take.

        :return: False where it is there already; it may be this writer's own, where an answer was lost
        :raises OSError: if it cannot be written
        :raises SnowpipeError: if an object store refuses it, or does not answer: it may be there then
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
    def move(self, path: str, target: str) -> None:
        """Move a file to a name that no other file has.

        :param path: the file, as :meth:`path` gives it
        :param target: the whole path, or a URL in the same bucket
        :raises OSError: if it cannot be moved, or there is a file already
        """

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
    check_path(path)
    return ObjectStorage(path.rstrip("/"), secrets or SourceSecrets()) if is_url(path) else LocalStorage(path)


def check_path(path: str) -> None:
    """Refuse a URL that no storage reads.

    :raises ConfigurationError: if there is no store of its scheme, or it holds more than bucket and prefix
    """
    found = _URL.match(path)
    if found is None:
        return
    scheme = found["scheme"]
    if scheme not in ObjectStorage.schemes:
        known = ", ".join(f"{one}://" for one in sorted(ObjectStorage.schemes))
        raise ConfigurationError(
            f"source path {path!r} has the scheme {scheme!r}: give a directory, or a URL with one of {known}"
        )
    bucket, *folders = path[found.end() :].rstrip("/").split("/")
    if "@" in bucket and not scheme.startswith("abfs"):
        raise ConfigurationError(
            f"source path {scheme}://…@{bucket.rpartition('@')[2]} has a name or a key before @, which plans "
            "and logs show: leave it out, and give conn_id"
        )
    if "?" in path or "#" in path:
        raise ConfigurationError(
            f"source path {re.split('[?#]', path)[0]!r} has ? or # behind it: settings belong into the "
            "connection that conn_id names; for such a folder, give the path above it and name it in pattern"
        )
    if not {"", ".", ".."}.isdisjoint([bucket, *folders]):
        raise ConfigurationError(
            f"source path {path!r} lacks its bucket, or a name between two slashes: write "
            f"{scheme}://bucket/folder"
        )


def is_url(path: str) -> bool:
    """True for the URL of an object store, False for a directory."""
    return _URL.match(path) is not None


def bucket_of(path: str) -> str:
    """The URL of the bucket that a URL is in; empty for a directory."""
    found = _URL.match(path)
    return "" if found is None else f"{found[0]}{path[found.end() :].partition('/')[0]}"


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

    def open(self, path: str, version: str = "", size: int = -1) -> BinaryIO:
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

    def move(self, path: str, target: str) -> None:
        """Move a file, also to another device."""
        if os.path.lexists(target):
            raise FileExistsError(17, "a file is there already", target)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.move(path, target)

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
        """Obstore's client of the root, whose folders are taken as they are written."""
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        scheme, _, rest = self.root.partition("://")
        bucket, _, folder = rest.partition("/")
        values: dict[str, Any] = dict(self.options.values)
        account = values.get("azure_storage_account_name")
        if account and "@" in bucket and bucket.partition("@")[2].partition(".")[0] != account:
            raise ConfigurationError(
                f"source path {self.root!r} is in another account than {account!r}, which the connection of "
                "conn_id is for: correct one of them"
            )
        client = {**_CLIENT, "allow_http": values.pop("allow_http", "") == "true"}
        client["timeout"] = values.pop("timeout", client["timeout"])
        identity = identity_of(values)
        try:
            return from_url(  # type: ignore[call-overload]
                f"{scheme.replace('s3a', 's3')}://{bucket}/{quote(folder)}",
                config=values,
                client_options=client,
                retry_config=_RETRY,
                **identity,
            )
        except (BaseError, ValueError) as error:
            raise ConfigurationError(
                f"source path {self.root!r}: its client cannot be made ({self._reported(error)}): correct "
                "the URL, or the connection that conn_id names"
            ) from None

    def files(self, depth: int | None = None) -> Iterator[Listed]:
        """List the objects that have content: a mark of a folder looks like an object without any."""
        import obstore
        import pyarrow as pa

        try:
            with self._asking("list", self.root):
                for batch in obstore.list(self._client, chunk_size=1_000, return_arrow=True):
                    listed = pa.record_batch(batch)
                    times = listed.column("last_modified").cast(pa.timestamp("ns", "UTC")).cast(pa.int64())
                    columns = [listed.column("path"), listed.column("size"), times, listed.column("e_tag")]
                    for name, size, modified, tag in zip(*(c.to_pylist() for c in columns), strict=True):
                        if size and (depth is None or name.count("/") < depth):
                            yield Listed(name, size, modified, _version(tag))
        except FileNotFoundError:
            raise SourceMissingError(
                f"source path {self.root!r}: there is no such bucket: create it, or correct the path"
            ) from None

    def stat(self, path: str) -> Listed:
        """Describe one object."""
        import obstore

        name = self._name(path)
        with self._asking("head", path):
            found = obstore.head(self._client, name)
        return Listed(name, found["size"], _nanoseconds(found["last_modified"]), _version(found["e_tag"]))

    def open(self, path: str, version: str = "", size: int = -1) -> BinaryIO:
        """Open one version of an object."""
        if not version or size < 0:
            found = self.stat(path)
            version, size = version or found.version, found.size
        return cast(BinaryIO, _ObjectStream(self, path, version, size))

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

    def get(self, path: str, version: str, first: int, end: int) -> memoryview:
        """Read a range of one version of an object.

        :raises SourcePositionError: if it is another version now, or gone
        """
        import obstore
        from obstore.exceptions import PreconditionError

        options: dict[str, Any] = {"range": (first, end)}
        if version:
            options["if_match"] = f'"{version}"'
        try:
            with self._asking("get", path):
                data = obstore.get(self._client, self._name(path), options=options).bytes()  # type: ignore[arg-type]
        except PreconditionError:
            raise SourcePositionError(
                f"file {path!r} was written again during the run, so that rows of both versions may have "
                "been sent. Leave the files in place until the run has ended, and compare the table with "
                "the files"
            ) from None
        except FileNotFoundError:
            raise SourcePositionError(
                f"file {path!r} was deleted during the run. Leave the files in place until the run has ended"
            ) from None
        if len(data) != end - first:
            raise SourceUnavailableError(
                f"{path!r}: the request get gave {len(data)} of {end - first} bytes: see what is between the "
                "store and this machine"
            )
        return memoryview(data)

    def delete(self, name: str) -> None:
        """Delete an object."""
        import obstore

        with suppress(FileNotFoundError), self._asking("delete", self.path(name)):
            obstore.delete(self._client, name)

    def move(self, path: str, target: str) -> None:
        """Copy an object within its bucket, and delete it then."""
        import obstore

        bucket = ObjectStorage(bucket_of(self.root), self.options)
        try:
            bucket.stat(target)
        except FileNotFoundError:
            with self._asking("copy", target):
                obstore.copy(bucket._client, bucket._name(path), bucket._name(target))
            self.delete(self._name(path))
        else:
            raise FileExistsError(17, "an object is there already", target)

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
        """Name a request that failed: what listings report is known by its status only."""
        from obstore.exceptions import BaseError, InvalidPathError, PreconditionError

        try:
            yield
        except PreconditionError:
            raise
        except FileNotFoundError:
            raise FileNotFoundError(2, "no such object or bucket", url) from None
        except InvalidPathError as error:
            raise ConfigurationError(
                f"{url!r} has an object whose name cannot be read ({self._reported(error)}): rename it, or "
                "give a path that does not hold it"
            ) from None
        except BaseError as error:
            reported = self._reported(error)
            found = re.search(r"status code: (\d+)", str(error))
            status = int(found[1]) if found else 0
            if status == 404:
                raise FileNotFoundError(2, "no such object or bucket", url) from None
            for kind, statuses, mark, remedy in _REFUSALS:
                if status in statuses or (mark and re.search(mark, str(error))):
                    raise kind(f"{url!r}: the request {what} failed ({reported}): {remedy}") from None
            raise SourceUnavailableError(
                f"{url!r}: the request {what} failed ({reported}): see whether the store answers from the "
                "driver and the executors"
            ) from None

    def _reported(self, error: Exception) -> str:
        """The client's words: what is known of the request's fate, never a body or a query with a secret."""
        whole = str(error)
        known = [found[1] for one in _FATES if (found := re.search(one, whole))]
        text = ", ".join(known) or re.sub(r"\?[^\s\"')]*", "", " ".join(whole.partition("\n\n")[0].split()))
        for value in self.options.values.values():
            if len(value) > 5:
                text = text.replace(value, "…")
        return text[:200].rstrip()


_FATES = (
    r"status code: (\d+[\w ]*)",
    r"<Code>(\w+)</Code>",
    r"HttpError \{\s*kind: (\w+)",
    r'message: "([^"]+)"',
    r"(after \d+ retries)",
)
# Without a status the client has not sent the request.
_REFUSALS: tuple[tuple[type[SnowpipeError], tuple[int, ...], str, str], ...] = (
    (
        ConfigurationError,
        (401, 403),
        "",
        "allow it to the identity of the source's conn_id, or of driver and executors where there is none",
    ),
    (
        ConfigurationError,
        (301, 307, 400),
        "redirect|builder error",
        "correct region and endpoint in the connection that conn_id names",
    ),
    (
        SourceUnavailableError,
        (),
        "token request|credential",
        "give conn_id, or an identity to driver and executors",
    ),
)


def _version(e_tag: str | None) -> str:
    """An ETag as all requests state it: listings of Azure leave its quotes out."""
    return (e_tag or "").strip('"')


def _nanoseconds(time: dt.datetime) -> int:
    return int(time.timestamp()) * 1_000_000_000 + time.microsecond * 1_000


class _Window(NamedTuple):
    """A part of an object that is asked for."""

    first: int
    end: int
    data: Future[memoryview]


class _ObjectStream(io.RawIOBase):
    """One version of an object, read by windows; the next ones are fetched while reading goes straight on.

    :param store: gives the windows
    """

    def __init__(self, store: ObjectStorage, path: str, version: str, size: int) -> None:
        self._store, self._path, self._version, self.size = store, path, version, size
        self._at, self._last = 0, -1
        self._windows: deque[_Window] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self.failure: SnowpipeError | None = None
        """Why it could not be read: Arrow's readers make errors of their own of it."""

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
        """Read so many bytes, all that are left for a negative number."""
        begin, windows = self._at, self._windows
        end = self.size if size is None or size < 0 else min(begin + size, self.size)
        if end <= begin:
            return b""
        while windows and not windows[0].first <= begin < windows[0].end:
            windows.popleft()
        self._fetch(begin, end, goes_on=begin == self._last or end - begin >= _WINDOW_BYTES // 2)
        try:
            parts = [
                one.data.result()[max(begin - one.first, 0) : end - one.first]
                for one in windows
                if one.first < end
            ]
        except SnowpipeError as error:
            self.failure = error
            raise
        self._at = self._last = end
        return b"".join(parts)

    def _fetch(self, begin: int, end: int, *, goes_on: bool) -> None:
        """Have the windows for a read fetched, and where reading goes straight on those behind them.

        A small object is one window, whatever is read of it first.
        """
        windows = self._windows
        if self.size <= _WINDOW_BYTES:
            begin, end = 0, self.size
        fetched = windows[-1].end if windows else begin
        last = self.size if goes_on else end
        self._threads = self._threads or ThreadPoolExecutor(_WINDOWS_AHEAD + 1)
        while fetched < end or (fetched < last and len(windows) <= _WINDOWS_AHEAD):
            first, fetched = fetched, min(fetched + _WINDOW_BYTES, last)
            data = self._threads.submit(self._store.get, self._path, self._version, first, fetched)
            windows.append(_Window(first, fetched, data))

    def close(self) -> None:
        """Fetch nothing more."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._windows.clear()
        super().close()
