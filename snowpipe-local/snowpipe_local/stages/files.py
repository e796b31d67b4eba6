"""Files below one folder of this machine: listing, reading, removing, and paths that stay inside."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from snowpipe_local.datadir import Clock
from snowpipe_local.errors import SqlError, access_error, compilation_error

# -- What PUT and GET ask a client to do: which of its files go where ------------------------------------


@dataclass(frozen=True, slots=True)
class Transfer:
    """One PUT or GET, resolved.

    :param prefix: path below it: where PUT stores files (empty or ending with ``/``), or what GET may read.
    :param sources: PUT: the client's path or pattern; GET: paths of the files below the stage.
    :param parallel: number of files that the client moves at a time.
    :param threshold: PUT: bytes from which a client may send a file in parts; None for its own rule.
    """

    is_upload: bool
    identity: str
    prefix: str
    sources: tuple[str, ...]
    local_folder: str = ""
    parallel: int = 4
    auto_compress: bool = True
    source_compression: str = "AUTO_DETECT"
    overwrite: bool = False
    threshold: int | None = None


_MAX_PATH_BYTES = 1024
_MAX_PART_BYTES = 255
_DIGESTS = 10_000
_BLOCK = 1 << 20
_MOVE_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One file of a stage.

    :param path: path below the stage, or below the bucket or folder of a bare URL, with ``/``.
    :param etag: MD5 in hexadecimal for local files, the store's ETag for S3.
    """

    path: str
    size: int
    etag: str
    modified_ms: int


class FileArea(Protocol):
    """Where the files of a stage really are."""

    def list(self, prefix: str) -> list[StagedFile]:
        """Return the files whose path starts with a text, by path."""

    def local_copy(self, file: StagedFile) -> AbstractContextManager[Path]:
        """Return a path on this machine that can be read inside the ``with`` block."""

    def remove(self, files: Iterable[StagedFile]) -> None:
        """Delete files; those that are gone already do no harm."""


def check_path(path: str) -> str:
    """Return a file's path when it cannot lead out of its stage.

    :raises SqlError: for an absolute path, ``.`` and ``..``, NUL, and names that no file can have.
    """
    parts = path.split("/")
    is_bad = any(part in {"", ".", ".."} or len(part.encode()) > _MAX_PART_BYTES for part in parts)
    if is_bad or "\0" in path or "\\" in path or len(path.encode()) > _MAX_PATH_BYTES:
        raise compilation_error(
            f"invalid file path '{path[:120]}': a path in a stage is relative and "
            f"has no '.', '..' or empty part, no NUL or backslash, at most {_MAX_PART_BYTES} bytes "
            f"in a part and {_MAX_PATH_BYTES} in all."
        )
    return path


def make_private_folder(folder: Path) -> None:
    """Create a folder and those above it, each with mode 0700; harmless when they exist.

    :raises OSError: when a part of the path is a file.
    """
    if not folder.is_dir():
        make_private_folder(folder.parent)
        folder.mkdir(exist_ok=True, mode=0o700)


@dataclass(frozen=True, slots=True)
class FolderArea:
    """Files below one folder of this machine.

    :param allowed: real paths of the folders that a symbolic link may lead to; None follows no link.
    :param private: real path of a folder that must not be reached.
    :param pins: folder on the same file system where a file that is read gets a second name.
    :param clock: the service's clock, by which a file is as old as it seems; None for that of the machine.
    """

    root: Path
    allowed: tuple[Path, ...] | None = None
    private: Path | None = None
    pins: Path | None = None
    clock: Clock | None = None

    def list(self, prefix: str) -> list[StagedFile]:
        """Return the files whose path starts with a text, by path; links that lead outside do not show."""
        folder, _, _ = prefix.rpartition("/")
        start = self.root.joinpath(*(part for part in folder.split("/") if part not in {"", ".", ".."}))
        if not self._is_inside(start):
            return []
        found = [
            staged
            for parent, _, names in os.walk(start)
            for path in (Path(parent, name) for name in names)
            if path.is_file()
            and (name := path.relative_to(self.root).as_posix()).startswith(prefix)
            and (staged := self._described(name, path)) is not None
        ]
        return sorted(found, key=lambda staged: staged.path)

    @contextlib.contextmanager
    def local_copy(self, file: StagedFile) -> Iterator[Path]:
        """Return the file itself, under a name of its own where there is a folder for that.

        What was listed is what is read: an upload that replaces the file meanwhile does not show.

        :raises SqlError: when the file is gone, or is not the one that was listed.
        """
        path = self.path(file.path)
        if self.pins is None:
            _check_unchanged(path, file)
            try:
                yield path
            except FileNotFoundError as error:
                raise _changed(file, "was removed") from error
            return
        # The suffix stays: readers find compression and type by it.
        pin = self.pins / (secrets.token_hex(8) + suffix_of(file.path))
        try:
            with contextlib.suppress(FileNotFoundError):
                os.link(path, pin)
            _check_unchanged(pin, file)
            yield pin
        finally:
            pin.unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        """Return where a file is, or would be.

        :raises SqlError: for a path that leaves the folder.
        """
        path = self.root.joinpath(*check_path(name).split("/"))
        if not self._is_inside(path):
            raise access_error(f"file '{name}' lies outside of its stage.")
        return path

    def move_in(self, temporary: Path, name: str, *, replace: bool = True) -> Path:
        """Give a complete file its path in the folder, at once, and return it.

        :param temporary: the file, on the same file system; without ``replace`` it keeps this path as well.
        :raises FileExistsError: when a file is where a folder is needed or the reverse, or it must not be
            replaced.
        """
        target = self.path(name)
        if self.clock is not None and self.clock.moved_seconds:
            os.utime(temporary, (self.clock.now(),) * 2)
        for attempt in range(_MOVE_ATTEMPTS):
            try:
                make_private_folder(target.parent)
                (os.replace if replace else os.link)(temporary, target)
                break
            except (NotADirectoryError, IsADirectoryError) as error:
                raise FileExistsError(*error.args) from error
            except FileNotFoundError:
                # REMOVE has just deleted the empty folder.
                if attempt == _MOVE_ATTEMPTS - 1:
                    raise
        return target

    def remove(self, files: Iterable[StagedFile]) -> None:
        """Delete files, and the folders that become empty; a file that was replaced meanwhile stays."""
        for file in files:
            path = self.path(file.path)
            with contextlib.suppress(FileNotFoundError):
                if digest(path) == file.etag:
                    path.unlink()
            for folder in path.relative_to(self.root).parents:
                # A folder that is not empty, or where an upload just arrives, stays.
                with contextlib.suppress(OSError):
                    if folder != Path("."):
                        (self.root / folder).rmdir()

    def _is_inside(self, path: Path) -> bool:
        real = path.resolve()
        if self.private is not None and real.is_relative_to(self.private):
            return False
        allowed = (self.root.resolve(),) if self.allowed is None else self.allowed
        return any(real.is_relative_to(folder) for folder in allowed)

    def _described(self, name: str, path: Path) -> StagedFile | None:
        try:
            # The walk follows no folder's link, so only a file's own link can lead outside.
            if path.is_symlink() and not self._is_inside(path):
                return None
            status = path.stat()
            return StagedFile(name, status.st_size, digest(path), status.st_mtime_ns // 1_000_000)
        except FileNotFoundError:
            # Removed while the folder was read, or a link to nothing.
            return None


def suffix_of(path: str) -> str:
    """Return the last two suffixes of a file name, for example ``.csv.gz``."""
    return "".join(Path(path).suffixes[-2:])[-40:]


def _check_unchanged(path: Path, file: StagedFile) -> None:
    try:
        if digest(path) == file.etag:
            return
    except FileNotFoundError as error:
        raise _changed(file, "was removed") from error
    raise _changed(file, "was replaced")


def _changed(file: StagedFile, what: str) -> SqlError:
    cause = f"file '{file.path}' {what} after it was listed; run the statement again"
    return SqlError("100016", "22000", f"Failure using stage area. Cause: [{cause}]")


_digests: OrderedDict[tuple[int, int, int, int], str] = OrderedDict()
_digests_lock = threading.Lock()


def digest(path: Path) -> str:
    """Return the MD5 of a file in hexadecimal; computed once for each content."""
    status = path.stat()
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    with _digests_lock:
        known = _digests.get(key)
    if known is not None:
        return known
    md5 = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as handle:
        while block := handle.read(_BLOCK):
            md5.update(block)
    remember_digest(path, md5.hexdigest())
    return md5.hexdigest()


def remember_digest(path: Path, known: str) -> None:
    """Keep the MD5 of a file that was computed while it was written."""
    status = path.stat()
    with _digests_lock:
        _digests[status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns] = known
        while len(_digests) > _DIGESTS:
            _digests.popitem(last=False)
