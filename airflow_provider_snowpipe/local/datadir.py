"""Files of one local service: port, account, keys, certificates, databases, and the lock that guards them."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from airflow_provider_snowpipe.local.errors import DataDirectoryError


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """Paths inside the directory given by ``--data-dir``.

    :param root: the directory; created with mode 0700 by :meth:`create`.
    """

    root: Path

    @property
    def account_file(self) -> Path:
        """Account name, user name, public key and instance id."""
        return self.root / "account.json"

    @property
    def key_file(self) -> Path:
        """Private RSA key of the user, PKCS#8 PEM without passphrase, mode 0600."""
        return self.root / "demo_rsa_key.p8"

    @property
    def password_file(self) -> Path:
        """Password of the user, one line, mode 0600."""
        return self.root / "demo_password"

    @property
    def pat_file(self) -> Path:
        """Programmatic access token of the user, mode 0600."""
        return self.root / "demo_pat"

    @property
    def oauth_client_file(self) -> Path:
        """OAuth client id, secret and refresh token as JSON, mode 0600."""
        return self.root / "oauth_client.json"

    @property
    def token_secret_file(self) -> Path:
        """Secret that signs scoped tokens, mode 0600; kept so that tokens survive a restart."""
        return self.root / "token_secret"

    @property
    def access_file(self) -> Path:
        """Users, roles, grants and warehouses as JSON, mode 0600."""
        return self.root / "access.json"

    @property
    def query_history_file(self) -> Path:
        """The newest statements and logins, one JSON array a line, mode 0600."""
        return self.root / "query_history.ndjson"

    @property
    def tls_dir(self) -> Path:
        """Certificate authority and server certificate."""
        return self.root / "tls"

    @property
    def authority_file(self) -> Path:
        """Certificate of the service's own CA, and nothing else."""
        return self.tls_dir / "ca.pem"

    @property
    def bundle_file(self) -> Path:
        """Public roots plus the service's own CA, for ``SSL_CERT_FILE`` and ``REQUESTS_CA_BUNDLE``."""
        return self.tls_dir / "bundle.pem"

    @property
    def databases_dir(self) -> Path:
        """One DuckDB file per Snowflake database."""
        return self.root / "databases"

    @property
    def stage_dir(self) -> Path:
        """Files that clients upload in the SDK's file mode, until they are committed."""
        return self.root / "stage"

    @property
    def spool_dir(self) -> Path:
        """Queued appends above the bound of memory, encrypted, until they are committed."""
        return self.root / "spool"

    @property
    def spool_keys_file(self) -> Path:
        """Keys of the bodies in :attr:`stage_dir` and :attr:`spool_dir`, mode 0600."""
        return self.root / "spool_keys.json"

    @property
    def staged_files_dir(self) -> Path:
        """Files of internal stages."""
        return self.root / "staged_files"

    @property
    def port_file(self) -> Path:
        """Port of the last start; a restart keeps it."""
        return self.root / "port"

    @property
    def proxy_port_file(self) -> Path:
        """Port of the CONNECT proxy at the last start; a restart keeps it."""
        return self.root / "proxy_port"

    @property
    def clock_file(self) -> Path:
        """Seconds by which a test moved the service's clock; a restart keeps them."""
        return self.root / "clock"

    @property
    def admin_socket(self) -> Path:
        """Unix socket of ``serve --admin``, mode 0600; there while the service runs."""
        return self.root / "admin.sock"

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

    def remember_port(self, port: int) -> None:
        """Write the port down for the next start."""
        write_file(self.port_file, f"{port}\n".encode(), mode=0o600)

    def remembered_proxy_port(self) -> int | None:
        """Return the port of the CONNECT proxy of the last start, or None."""
        return _read_port(self.proxy_port_file)

    def remember_proxy_port(self, port: int) -> None:
        """Write the port of the CONNECT proxy down for the next start."""
        write_file(self.proxy_port_file, f"{port}\n".encode(), mode=0o600)

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
