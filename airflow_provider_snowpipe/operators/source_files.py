"""Files of this machine or of an object store, found below an address and brought here one by one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
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
    _found: dict[str, tuple[Any, str]] = field(default_factory=dict, init=False)

    def find(self) -> list[SourceFile]:
        """List the files, by their paths below the address that they were found at.

        :raises ConfigurationError: if two have the same path, or an address cannot be used
        :raises SourceUnavailableError: if the store does not answer
        """
        files: list[SourceFile] = []
        for address in self.addresses:
            root = storage_path(address, self.conn_id)
            for below, key, size in self._below(root, address):
                if below in self._found:
                    raise ConfigurationError(
                        f"two files would be staged as {below!r}, one of them below {address!r}: stage them "
                        "below different paths, by a task for each"
                    )
                self._found[below] = (root, key)
                files.append(SourceFile(below, size, _shown(root, key)))
        return sorted(files, key=lambda file: file.below)

    @contextmanager
    def local(self, file: SourceFile) -> Iterator[Path]:
        """Have a file on this machine, as long as the block runs; one of an object store is copied here.

        :param file: the file
        :raises SourceUnavailableError: if it cannot be read
        """
        root, key = self._found[file.below]
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

    def _below(self, root: Any, address: str) -> Iterator[tuple[str, str, int]]:
        """Path below the address, key in the store, and bytes of each file."""
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
                yield below, key, int(known["size"])


def _shown(root: Any, key: str) -> str:
    return key if root.protocol in _LOCAL else f"{root.protocol}://{key}"
