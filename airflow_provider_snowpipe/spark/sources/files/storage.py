"""Where the files of a source are: a directory of this machine, a bucket, or Hadoop's file system."""

from __future__ import annotations

import io
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from uuid import uuid4

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    SourceMissingError,
    SourcePositionError,
)

LOG_FOLDER = "_snowpipe"
"""Directory in a source's path that belongs to this package: nothing in it is a file of the source. It is
listed at any depth, since it shows who else has loaded the files beside it."""
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")
_OBJECTS, _HADOOP = "object_storage:ObjectStorage", "hadoop_storage:HadoopStorage"
_CLASSES = dict.fromkeys(("s3", "s3a", "gs", "az", "abfs", "abfss"), _OBJECTS)
_CLASSES |= dict.fromkeys(("hdfs", "webhdfs"), _HADOOP)


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as its storage lists it.

    :param name: below the storage's root, with ``/`` between its parts
    :param version: what is another one when the content is, an object's ETag; empty for local files
    :param node: the same for two paths that lead to one file, its second number for a renamed file as well;
        empty where the storage has none
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

    @property
    def renames(self) -> bool:
        """True where a renamed file is known again: it keeps its time, and its number where it has one."""
        return True

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
    def open(self, path: str, version: str = "", size: int = -1) -> io.BufferedIOBase:
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
        :raises SnowpipeError: if a store refuses it, or does not answer: it may be there then
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
    """Make the storage of a path: a directory, or a URL of a store.

    :param secrets: options of the store's client, as ``options_of`` makes them of a connection
    :raises ConfigurationError: if nothing reads such a URL
    """
    check_path(path)
    found = _URL.match(path)
    if found is None:
        return LocalStorage(path)
    made: Storage = resolve_name(f"{__package__}.{_CLASSES[found['scheme']]}")(
        path.rstrip("/"), secrets or SourceSecrets()
    )
    return made


def check_path(path: str) -> None:
    """Refuse a URL that no storage reads."""
    found = _URL.match(path)
    if found is None:
        return
    scheme = found["scheme"]
    if scheme not in _CLASSES:
        known = ", ".join(f"{one}://" for one in sorted(_CLASSES))
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
            f"source path {path!r} lacks its bucket or host, or a name between two slashes: write "
            f"{scheme}://{'host:port' if _CLASSES[scheme] == _HADOOP else 'bucket'}/folder"
        )


def is_url(path: str) -> bool:
    """True for the URL of a store, False for a directory."""
    return _URL.match(path) is not None


def canonical_path(path: str) -> str:
    """The one spelling of a path, which every record of its source has."""
    return re.sub("^s3a:", "s3:", path.rstrip("/")) if is_url(path) else os.path.realpath(path)


def bucket_of(path: str) -> str:
    """The URL of the bucket or host that a URL is in; empty for a directory."""
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
                    if depth is None or level < depth or LOG_FOLDER in name.split("/"):
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

    def open(self, path: str, version: str = "", size: int = -1) -> io.BufferedIOBase:
        """Open a file."""
        return open(path, "rb")

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
