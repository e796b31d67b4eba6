"""Files of this machine or of an object store, found below an address and brought here one by one."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow_provider_snowpipe.bulk.stage_upload import SourceFile
from airflow_provider_snowpipe.operators.storage import file_system, storage_path
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourceUnavailableError

_LOCAL = ("file", "local", "")
_BLOCK = 1 << 20
_MARKS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "mtime", "created")
"""What the file systems of fsspec call it that changes with a file's content."""


@dataclass(slots=True)
class SourceFiles:
    """The files below some addresses.

    :param addresses: files, or folders, of which all files below count; whatever ``ObjectStoragePath`` takes
    :param conn_id: the connection for them, None for none
    :param pattern: only files whose path below the folder matches it, with ``*`` and ``?``
    """

    addresses: Sequence[str]
    conn_id: str | None = None
    pattern: str | None = None
    _found: dict[str, tuple[Any, str, str]] = field(default_factory=dict, init=False)

    def find(self) -> list[SourceFile]:
        """List the files, by their paths below the address that they were found at.

        :raises ConfigurationError: if two have the same path, or an address cannot be used
        :raises SourceUnavailableError: if the store does not answer
        """
        files: list[SourceFile] = []
        for address in self.addresses:
            root = storage_path(address, self.conn_id)
            for below, key, size, mark in self._below(root, address):
                if below in self._found:
                    raise ConfigurationError(
                        f"two files would be staged as {below!r}, one of them below {address!r}: stage them "
                        "below different paths, by a task for each"
                    )
                self._found[below] = (root, key, mark)
                files.append(SourceFile(below, size, _shown(root, key)))
        return sorted(files, key=lambda file: file.below)

    @contextmanager
    def local(self, file: SourceFile) -> Iterator[Path]:
        """Have a file on this machine, as long as the block runs; one of an object store is copied here.

        :param file: the file
        :raises SourceUnavailableError: if it cannot be read
        """
        root, key, _ = self._found[file.below]
        if root.protocol in _LOCAL:
            yield Path(key)
            return
        with TemporaryDirectory(prefix="snowpipe-stage-") as folder:
            path = Path(folder) / file.name
            try:
                with file_system(root).open(key, "rb") as stored, path.open("wb") as copy:
                    shutil.copyfileobj(stored, copy, _BLOCK)
            except OSError as error:
                raise SourceUnavailableError(f"{file.address} cannot be read: {error}") from error
            yield path

    def is_local(self, file: SourceFile) -> bool:
        """True for a file of this machine.

        :param file: the file
        """
        return self._found[file.below][0].protocol in _LOCAL

    def mark(self, file: SourceFile) -> str:
        """Tell a file's content from another one of the same name and size.

        :param file: the file
        :returns: the MD5 of a file of this machine; for one of an object store what that keeps of it, an
            ETag or the moment of its last change
        """
        _, key, mark = self._found[file.below]
        if not self.is_local(file):
            return mark
        md5 = hashlib.md5(usedforsecurity=False)
        with open(key, "rb") as stream:
            while block := stream.read(_BLOCK):
                md5.update(block)
        return md5.hexdigest()

    def _below(self, root: Any, address: str) -> Iterator[tuple[str, str, int, str]]:
        """Path below the address, key in the store, bytes, and the store's mark of each file."""
        start = str(root.path).rstrip("/")
        try:
            found = file_system(root).find(start, detail=True)
        except FileNotFoundError:
            found = {}
        except OSError as error:
            raise SourceUnavailableError(f"{address} cannot be listed: {error}") from error
        for key, known in sorted(found.items()):
            below = key.removeprefix(start).lstrip("/") or start.rpartition("/")[2]
            if known.get("type") == "file" and (self.pattern is None or fnmatch(below, self.pattern)):
                yield below, key, int(known["size"]), _mark(known)


def _mark(known: Mapping[str, Any]) -> str:
    return str(next((known[name] for name in _MARKS if known.get(name)), ""))


def _shown(root: Any, key: str) -> str:
    return key if root.protocol in _LOCAL else f"{root.protocol}://{key}"
