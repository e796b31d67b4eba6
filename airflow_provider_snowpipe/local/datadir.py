"""Files of one local service: port, account, keys, certificates, databases, and the lock that guards them."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from pathlib import Path
from typing import IO, Any

from airflow_provider_snowpipe.local.errors import DataDirectoryError


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
        handle = (self.root / "lock").open("ab")
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

        :raises DataDirectoryError: when no service was ever started on this directory.
        """
        try:
            account: dict[str, Any] = json.loads(self.account_file.read_text())
        except FileNotFoundError as error:
            raise DataDirectoryError(
                f"no local service was ever started on {self.root}; "
                f"run: snowpipe-local serve --data-dir {self.root}"
            ) from error
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
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(temporary, path)
