"""Files in a store: what buckets and Hadoop have in common, and a file as a stream of ranges."""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeVar

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.files.spec import SourceFile
from airflow_provider_snowpipe.spark.sources.files.storage import Storage, bucket_of
from airflow_provider_snowpipe.streaming.errors import (
    SnowpipeError,
    SourcePositionError,
    SourceUnavailableError,
)

_WINDOW_BYTES = 8 << 20
"""The longest request of a file: large enough that the time of a request does not show."""
_FIRST_BYTES = 512 << 10
"""The first one, and each is twice as long as the one before, so that the first rows are here soon."""
_BYTES_AHEAD = 2 * _WINDOW_BYTES
"""So much is asked for while what is before it is read."""
_REQUESTS = 5
"""At a time: as many windows as make that up at the begin of a file."""
_FILES_AHEAD = 10
"""So many, or as many as have so many bytes, but at least one."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class RemoteStorage(Storage):
    """A tree of files below a URL, which are read in ranges.

    :param options: of the store's client, as ``options_of`` makes them of a connection, among them secrets
    """

    root: str
    options: SourceSecrets

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "options": self.options}

    @abstractmethod
    def get(self, path: str, version: str, first: int, end: int) -> memoryview:
        """Read a range of one version of a file.

        :raises SourcePositionError: if the file is another version now, or gone
        """

    def open(self, path: str, version: str = "", size: int = -1) -> io.BufferedIOBase:
        """Open one version of a file."""
        if not version or size < 0:
            found = self.stat(path)
            version, size = version or found.version, found.size
        return self._expected.pop((path, version, size), None) or RangeStream(self, path, version, size)

    def expect(self, path: str, version: str, size: int, position: int) -> None:
        """Ask for a range of a file that is opened soon, for all of a small one."""
        self._expected[path, version, size] = stream = RangeStream(self, path, version, size)
        stream.fetch(position, min(position + _FIRST_BYTES, size), goes_on=False)

    @cached_property
    def _expected(self) -> dict[tuple[str, str, int], RangeStream]:
        return {}

    def below(self, folder: str) -> Self:
        """The tree of a folder."""
        return type(self)(f"{self.root}/{folder}", self.options)

    def path(self, name: str) -> str:
        """The URL."""
        return f"{self.root}/{name}"

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self.root}/")

    def _path(self, url: str) -> str:
        """The path within the bucket or the file system."""
        return url.removeprefix(bucket_of(self.root)) or "/"


def read_ahead(
    files: Iterable[tuple[SourceFile, _T]], *, has_footer: bool
) -> Iterator[tuple[SourceFile, _T]]:
    """Give files in their order; the first range of the next ones is asked for while one is read.

    :param has_footer: True where it is the last one of the file
    """
    ahead = deque[tuple[SourceFile, _T]]()
    for file, start in files:
        if ahead:
            expect(file, file.start, has_footer=has_footer)
        ahead.append((file, start))
        while len(ahead) > _FILES_AHEAD or (
            len(ahead) > 1 and sum(one.size for one, _ in ahead) > _BYTES_AHEAD
        ):
            yield ahead.popleft()
    yield from ahead


def expect(file: SourceFile, position: int, *, has_footer: bool) -> None:
    """Ask for the first range of a file in a store that is opened soon.

    :param has_footer: True where it is the last one of the file, wherever reading begins then
    """
    if file.version and isinstance(file.storage, RemoteStorage):
        position = max(file.size - _FIRST_BYTES, 0) if has_footer else position
        file.storage.expect(file.path, file.version, file.size, position)


def rewritten(path: str) -> SourcePositionError:
    """Return the error of a file that is another version than was listed."""
    return SourcePositionError(
        f"file {path!r} was written again during the run, so that rows of both versions may have been sent. "
        "Leave the files in place until the run has ended, and compare the table with the files"
    )


def gone(path: str) -> SourcePositionError:
    """Return the error of a file that was listed and is not there."""
    return SourcePositionError(
        f"file {path!r} was deleted during the run. Leave the files in place until the run has ended"
    )


def incomplete(path: str, size: int, expected: int) -> SourceUnavailableError:
    """Return the error of a range that has arrived in part."""
    return SourceUnavailableError(
        f"{path!r}: the request get gave {size} of {expected} bytes: see what is between the store and this "
        "machine"
    )


class _Window(NamedTuple):
    first: int
    end: int
    data: Future[memoryview]


class RangeStream(io.BufferedIOBase):
    """One version of a file, read by windows; the next ones are fetched while reading goes straight on."""

    def __init__(self, store: RemoteStorage, path: str, version: str, size: int) -> None:
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

    def read(self, size: int | None = -1) -> bytes:
        """Read so many bytes, all that are left for a negative number."""
        return b"".join(self._views(size))

    def read1(self, size: int = -1) -> memoryview:  # type: ignore[override]
        """Read up to so many bytes, as many as one window has, without a copy of them."""
        return next(self._views(size), memoryview(b""))

    def _views(self, size: int | None) -> Iterator[memoryview]:
        begin, windows = self._at, self._windows
        end = self.size if size is None or size < 0 else min(begin + size, self.size)
        if end <= begin:
            return
        while windows and not windows[0].first <= begin < windows[0].end:
            windows.popleft()
        is_straight = self._last in (-1, begin)
        self.fetch(begin, end, goes_on=is_straight or end - begin >= _WINDOW_BYTES // 2)
        try:
            for one in windows:
                if one.first < end:
                    data = one.data.result()[max(begin - one.first, 0) : end - one.first]
                    self._at = self._last = min(one.end, end)
                    yield data
        except SnowpipeError as error:
            self.failure = error
            raise

    def fetch(self, begin: int, end: int, *, goes_on: bool) -> None:
        """Have the windows for a read fetched, and where reading goes straight on those behind them.

        A small file is one window, whatever is read of it first.
        """
        windows = self._windows
        if self.size <= _WINDOW_BYTES:
            begin, end = 0, self.size
        fetched = windows[-1].end if windows else begin
        last = self.size if goes_on else end
        self._threads = self._threads or ThreadPoolExecutor(_REQUESTS)
        length = max(2 * (windows[-1].end - windows[-1].first) if windows else end - begin, _FIRST_BYTES)
        while fetched < end or fetched < min(last, end + _BYTES_AHEAD):
            first, fetched = fetched, min(fetched + min(length, _WINDOW_BYTES), last)
            length *= 2
            data = self._threads.submit(self._store.get, self._path, self._version, first, fetched)
            windows.append(_Window(first, fetched, data))

    def close(self) -> None:
        """Fetch nothing more."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._windows.clear()
        super().close()
