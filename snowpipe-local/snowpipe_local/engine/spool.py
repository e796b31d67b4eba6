"""Bodies in flight on disk: each file is sealed with AES-256-GCM under the newest key of the data directory.

It covers what waits for its commit outside of memory: uploads of the SDK's file mode and queued appends above
the bound of memory. Committed rows are in the database files, which are not encrypted.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import duckdb
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from snowpipe_local.datadir import write_file
from snowpipe_local.errors import DataDirectoryError, Refusal, ServiceError

# -- A disk without room: what is held back before it is full, and what happened when it is --------------

# Kept free for the write-ahead log of a commit that has begun and for the small files of the service.
RESERVED_BYTES = 16 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_WORDS = ("No space left on device", "Disk quota exceeded")


def has_space(folder: Path, size: int) -> bool:
    """Return True when a folder's disk takes so many bytes and keeps its reserve."""
    return shutil.disk_usage(folder).free >= size + RESERVED_BYTES


def is_full(error: BaseException) -> bool:
    """Return True for the failure of a write that found no room, also of the engine's."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    return isinstance(error, duckdb.Error) and any(word in str(error) for word in _WORDS)


def disk_full() -> Refusal:
    """Return the refusal of a call for which there is no room now."""
    return Refusal(503, "SERVICE_UNAVAILABLE", "the disk of the local service is full; send again")


def is_invalidated(error: BaseException) -> bool:
    """Return True when the engine refuses a database whose checkpoint failed."""
    return isinstance(error, duckdb.Error) and "has been invalidated" in str(error)


_MAGIC = b"SPB1"
_KEY_ID_BYTES, _NONCE_BYTES = 8, 12
_HEADER_BYTES = len(_MAGIC) + _KEY_ID_BYTES
_KEEP_SECONDS = 24 * 3600


class SpoolError(ServiceError):
    """A body on disk cannot be read back: gone, cut short, changed, or its key is gone."""


class KeyRing:
    """Keys of bodies on disk: one for new bodies, and older ones while bodies under them exist.

    :param file: JSON, mode 0600; created with a first key when it is missing.
    :raises DataDirectoryError: when it exists and is not a key ring.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._keys: dict[str, bytes] = {}
        self.current: str
        if not file.exists():
            self.add()
            return
        try:
            stored = json.loads(file.read_bytes())
            self._keys = {name: base64.b64decode(key, validate=True) for name, key in stored["keys"].items()}
            self.current = stored["current"]
            AESGCM(self._keys[self.current])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataDirectoryError(
                f"{file} is damaged; delete it with the folders spool and stage, clients send again"
            ) from error

    @property
    def ids(self) -> set[str]:
        """Ids of all keys."""
        return set(self._keys)

    def add(self) -> None:
        """Make a new key and use it from now on."""
        name = secrets.token_hex(_KEY_ID_BYTES // 2)
        self._save({**self._keys, name: AESGCM.generate_key(256)}, name)

    def keep(self, used: Iterable[str]) -> None:
        """Delete all keys but the current one and those in use."""
        kept = {self.current, *used}
        if self.ids - kept:
            self._save({name: key for name, key in self._keys.items() if name in kept}, self.current)

    def cipher(self, name: str) -> AESGCM:
        """Return the cipher of a key.

        :raises SpoolError: when the key is gone.
        """
        key = self._keys.get(name)
        if key is None:
            raise SpoolError(f"the key {name} of a body on disk is gone; the client must send it again")
        return AESGCM(key)

    def _save(self, keys: dict[str, bytes], current: str) -> None:
        stored = {"current": current, "keys": {n: base64.b64encode(k).decode() for n, k in keys.items()}}
        write_file(self._file, json.dumps(stored).encode(), mode=0o600)
        self._keys, self.current = keys, current


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """One body on disk."""

    spool: Spool
    path: Path

    def read(self) -> bytes:
        """Return the body.

        :raises SpoolError: when it is not what was written.
        """
        return self.spool.read(self.path)

    def remove(self) -> None:
        """Delete it; harmless when it is gone."""
        self.spool.remove(self.path)


class Spool:
    """Writes, reads and deletes bodies on disk. Thread-safe.

    :param queue: folder of queued appends; what a crash left in it was never acknowledged as committed, and
        is deleted.
    :param uploads: folder of uploads, which clients may still name after a restart; they are deleted after
        a day.
    """

    def __init__(self, queue: Path, uploads: Path, key_file: Path) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._ring = KeyRing(key_file)
        for path in queue.iterdir():
            path.unlink()
        self._key_of: dict[Path, str] = {}
        limit = time.time() - _KEEP_SECONDS
        for folder in [path for path in uploads.iterdir() if path.is_dir()]:
            for path in folder.iterdir():
                self._take_in(path, limit)
            if not any(folder.iterdir()):
                folder.rmdir()
        self._ring.keep(self._key_of.values())

    @property
    def key_ids(self) -> set[str]:
        """Ids of the keys that exist."""
        with self._lock:
            return self._ring.ids

    @property
    def files(self) -> int:
        """How many bodies are on disk."""
        with self._lock:
            return len(self._key_of)

    def park(self, body: bytes) -> SpoolFile:
        """Write a queued body; it need not survive the process.

        :raises OSError: when the disk refuses it.
        """
        path = self._queue / secrets.token_hex(16)
        sealed = self._seal(path, body)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as handle:
                handle.write(sealed)
        except OSError:
            self.remove(path)
            raise
        return SpoolFile(self, path)

    def write(self, path: Path, body: bytes) -> None:
        """Write an upload, durably and in one step.

        :raises OSError: when the disk refuses it.
        """
        try:
            write_file(path, self._seal(path, body), mode=0o600)
        except OSError:
            self.remove(path)
            raise

    def read(self, path: Path) -> bytes:
        """Return a body.

        :raises SpoolError: when it is not what was written.
        """
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise SpoolError(f"the body {path.name} is not on disk") from error
        name, start = _key_id(content), _HEADER_BYTES + _NONCE_BYTES
        if name is None:
            raise SpoolError(f"the file {path.name} is not a body of this service")
        try:
            return self._cipher(name).decrypt(
                content[_HEADER_BYTES:start], memoryview(content)[start:], _bound_to(path)
            )
        except (InvalidTag, ValueError) as error:
            raise SpoolError(f"the body {path.name} was changed on disk") from error

    def remove(self, path: Path) -> None:
        """Delete a body, and its key when it was the last under an old one."""
        path.unlink(missing_ok=True)
        with self._lock:
            name = self._key_of.pop(path, None)
            if name is not None and name != self._ring.current:
                self._ring.keep(self._key_of.values())

    def rotate(self) -> None:
        """Use a new key for new bodies; an old key is deleted as soon as no body needs it."""
        with self._lock:
            self._ring.add()
            self._ring.keep(self._key_of.values())

    def _seal(self, path: Path, body: bytes) -> bytes:
        with self._lock:
            # Noted before it is used: the key stays while the body is on its way to the disk.
            name = self._key_of[path] = self._ring.current
            cipher = self._ring.cipher(name)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return b"".join((_MAGIC, name.encode(), nonce, cipher.encrypt(nonce, body, _bound_to(path))))

    def _cipher(self, name: str) -> AESGCM:
        with self._lock:
            return self._ring.cipher(name)

    def _take_in(self, path: Path, limit: float) -> None:
        with path.open("rb") as handle:
            name = _key_id(handle.read(_HEADER_BYTES + _NONCE_BYTES))
        old = path.stat().st_mtime < limit
        if old or name is None or name not in self._ring.ids or path.name.startswith("."):
            # Half written, of another key ring, or taken by no commit.
            path.unlink()
        else:
            self._key_of[path] = name


def _key_id(content: bytes) -> str | None:
    if len(content) < _HEADER_BYTES + _NONCE_BYTES or not content.startswith(_MAGIC):
        return None
    return content[len(_MAGIC) : _HEADER_BYTES].decode("ascii", "replace")


def _bound_to(path: Path) -> bytes:
    """Authenticated with the body: a file that was moved in place of another is not read."""
    return f"{path.parent.name}/{path.name}".encode()
