"""What a local service keeps over restarts: the files of its data directory, and its clock."""

from __future__ import annotations

import fcntl
import json
import math
import os
import secrets
import threading
import time
from pathlib import Path
from typing import IO, Any

from snowpipe_local.errors import DataDirectoryError

_ACCOUNT_FIELDS = ("account", "user", "public_key", "instance")


class DataDirectory:
    """Paths inside the directory given by ``--data-dir``; secrets have mode 0600.

    :param root: the directory; created with mode 0700 by :meth:`create`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        # Account name, user name, public key and instance id.
        self.account_file = root / "account.json"
        # Of the service's own user: private RSA key (PKCS#8 PEM without passphrase), password, access token.
        self.key_file = root / "demo_rsa_key.p8"
        self.password_file = root / "demo_password"
        self.pat_file = root / "demo_pat"
        # OAuth client id, secret and refresh token as JSON.
        self.oauth_client_file = root / "oauth_client.json"
        # Secret that signs scoped tokens; kept so that tokens survive a restart.
        self.token_secret_file = root / "token_secret"
        # Users, roles, grants and warehouses as JSON.
        self.access_file = root / "access.json"
        # The newest statements and logins, one JSON array a line.
        self.query_history_file = root / "query_history.ndjson"
        self.tls_dir = root / "tls"
        # Certificate of the service's own CA; and with the public roots, for ``SSL_CERT_FILE``.
        self.authority_file = self.tls_dir / "ca.pem"
        self.bundle_file = self.tls_dir / "bundle.pem"
        # One DuckDB file per Snowflake database.
        self.databases_dir = root / "databases"
        # Until they are committed: files of the SDK's file mode, queued appends above the bound of memory.
        self.stage_dir = root / "stage"
        self.spool_dir = root / "spool"
        self.spool_keys_file = root / "spool_keys.json"
        # Files of internal stages.
        self.staged_files_dir = root / "staged_files"
        # What a restart keeps: ports of service and CONNECT proxy, seconds by which a test moved the clock.
        self.port_file = root / "port"
        self.proxy_port_file = root / "proxy_port"
        self.clock_file = root / "clock"
        # Unix socket of ``serve --admin``, there while the service runs.
        self.admin_socket = root / "admin.sock"

    def create(self) -> None:
        """Create the directory tree.

        :raises DataDirectoryError: when the path cannot be a directory of ours.
        """
        try:
            for folder in (self.root, self.tls_dir, self.databases_dir, self.stage_dir, self.spool_dir):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise DataDirectoryError(f"cannot use {self.root} as data directory: {error}") from error

    def lock(self) -> IO[bytes]:
        """Take the lock that keeps a second service off this directory; hold the returned file open.

        :raises DataDirectoryError: when another service holds it.
        """
        try:
            handle = (self.root / "lock").open("ab")
        except OSError as error:
            raise DataDirectoryError(f"cannot use {self.root} as data directory: {error}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.close()
            raise DataDirectoryError(
                f"another snowpipe-local already serves {self.root}; stop it or choose another --data-dir"
            ) from error
        return handle

    def remembered_port(self) -> int | None:
        """Return the port of the last start, or None."""
        return _read_port(self.port_file)

    def remembered_proxy_port(self) -> int | None:
        """Return the port of the CONNECT proxy of the last start, or None."""
        return _read_port(self.proxy_port_file)

    def remember_ports(self, port: int, proxy_port: int) -> None:
        """Write both ports down for the next start."""
        for file, number in ((self.port_file, port), (self.proxy_port_file, proxy_port)):
            write_file(file, f"{number}\n".encode(), mode=0o600)

    def read_account(self) -> dict[str, Any]:
        """Read the account file.

        :raises DataDirectoryError: when no service was ever started on this directory, it is another user's,
            or the file is damaged.
        """
        try:
            account: Any = json.loads(self.account_file.read_text())
        except FileNotFoundError as error:
            raise DataDirectoryError(
                f"no local service was ever started on {self.root}; "
                f"run: snowpipe-local serve --data-dir {self.root}"
            ) from error
        except OSError as error:
            raise DataDirectoryError(
                f"{self.account_file} cannot be read ({error.strerror}); run the command as the user whose "
                "service it is"
            ) from error
        except ValueError:
            account = None
        if not isinstance(account, dict) or not all(
            isinstance(account.get(name), str) for name in _ACCOUNT_FIELDS
        ):
            raise DataDirectoryError(
                f"{self.account_file} is not JSON with {', '.join(_ACCOUNT_FIELDS)}; delete it, and let "
                "clients read the key that the next start makes"
            )
        return account


def _read_port(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataDirectoryError(f"{file} does not hold a port number; delete it") from error


def write_file(path: Path, content: bytes, *, mode: int) -> None:
    """Write a file in one step: readers see the old content or the new, never a part.

    :param path: target; its folder must exist.
    :param content: whole content.
    :param mode: permission bits, set before the file gets its name.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink()
        raise


# -- The service's wall clock, which a test may move forward to reach an expiry --------------------------

# Ten years: further away no timestamp of a client or a database would make sense.
_MOST_SECONDS = 10 * 365 * 86_400


class Clock:
    """Wall-clock time, plus what a test has moved it by.

    Everything that is remembered for days asks this clock: load histories and channels. Tokens of clients
    and time-outs of requests do not; they follow the machine's clock.

    :param moved_seconds: how far the clock runs ahead of the machine's.
    :param file: keeps that number over restarts; None forgets it.
    """

    def __init__(self, moved_seconds: float = 0.0, file: Path | None = None) -> None:
        self._moved_seconds = moved_seconds
        self._file = file
        self._lock = threading.Lock()

    @classmethod
    def kept_in(cls, file: Path) -> Clock:
        """Return the clock as the last run of the service left it.

        :param file: holds the seconds by which it was moved; absent until it is moved.
        :raises DataDirectoryError: when the file does not hold a number.
        """
        try:
            moved = float(file.read_text())
        except FileNotFoundError:
            moved = 0.0
        except ValueError as error:
            raise DataDirectoryError(f"{file} does not hold a number of seconds; delete it") from error
        return cls(moved, file)

    @property
    def moved_seconds(self) -> float:
        """How far the clock runs ahead of the machine's, in seconds."""
        return self._moved_seconds

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return time.time() + self._moved_seconds

    def now_ms(self) -> int:
        """Return the time in milliseconds since the epoch."""
        return int(self.now() * 1000)

    def move(self, seconds: float) -> None:
        """Move the clock forward.

        :param seconds: by how much; not negative, because what has expired stays expired.
        :raises ValueError: for a negative number, or one that is not finite.
        """
        if not (math.isfinite(seconds) and 0 <= seconds <= _MOST_SECONDS):
            raise ValueError(
                f"the clock only moves forward, by at most {_MOST_SECONDS} s, not by {seconds} s"
            )
        with self._lock:
            moved = self._moved_seconds + seconds
            if self._file is not None:
                write_file(self._file, f"{moved!r}\n".encode(), mode=0o600)
            self._moved_seconds = moved
