"""A service process for tests: ``with LocalService() as service:`` starts one and stops it at the end.

::

    import snowflake.connector
    from snowpipe_local.testing import LocalService

    with LocalService() as service:
        service.sql("CREATE TABLE orders (id INT)")
        with snowflake.connector.connect(**service.connector_arguments) as connection:
            connection.cursor().execute("INSERT INTO orders VALUES (1)")
        assert service.sql("SELECT id FROM orders") == [{"ID": 1}]

A child process gets the service's address and files from ``service.process_env()``. A client in this process
gets the service's certificate from ``service.ca_file``; the Python connector reads that path from the
environment variable ``REQUESTS_CA_BUNDLE``.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Self

from snowpipe_local.accounts import sign_key_pair_jwt
from snowpipe_local.admin import ask
from snowpipe_local.cli import main
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.environment import check_ready, run_statement, variables
from snowpipe_local.errors import ServiceError
from snowpipe_local.tables import quote

_COMMAND = (sys.executable, "-m", "snowpipe_local.cli")
_READY_SECONDS = 240.0
_STOP_SECONDS = 120.0
_COMMAND_SECONDS = 300.0
_POLL_SECONDS = 0.02
_LOG_TAIL = 2_000
_OWN_NAMES = frozenset({"DEMO", "ACCOUNTADMIN", "PUBLIC", "SECURITYADMIN", "SYSADMIN", "USERADMIN", "LOCAL"})


class LocalService:
    """A service process on a data directory and a free port of 127.0.0.1.

    :param data_dir: folder of its state, which stays; without one, a temporary folder that does not.
    :param faults: faults from the start, as for ``serve --faults``.
    :param limits: limits, as for ``serve --limits``, for example ``off``.
    :param admin: opens the admin socket, which the methods about faults and the clock need.
    :param allowed_folder: a folder that external stages may use.
    :param options: further options of ``snowpipe-local serve``.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        faults: str | None = None,
        limits: str | None = None,
        *,
        admin: bool = False,
        allowed_folder: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._temporary = (
            None if data_dir else tempfile.TemporaryDirectory(prefix="snowpipe-", ignore_cleanup_errors=True)
        )
        self.data_dir = Path(data_dir or self._temporary.name)  # type: ignore[union-attr]
        self.env: dict[str, str] = {}
        self._faults = faults
        self._limits = limits
        self._admin = admin
        self._allowed_folder = allowed_folder
        self._options = tuple(options)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._temporary:
            self._temporary.cleanup()

    # -- The process ----------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the process and wait until it answers.

        :raises ServiceError: if it ends before that, with the end of its log.
        """
        self.data_dir.mkdir(parents=True, exist_ok=True)
        command = [*_COMMAND, "serve", "--data-dir", str(self.data_dir), "--port", "0"]
        if self._faults:
            command += ["--faults", self._faults]
        if self._limits:
            command += ["--limits", self._limits]
        if self._admin:
            command.append("--admin")
        if self._allowed_folder:
            command += ["--allow-folder", str(self._allowed_folder)]
        command += self._options
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  the service of this package
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # an interrupt of the tests would end it before its clients
            )
        self._wait_until_ready()
        return self

    def stop(self) -> None:
        """Stop the process in order: it commits the queued rows first."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._process = None

    def kill(self) -> None:
        """Kill the process with SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_STOP_SECONDS)
            self._process = None

    def restart(self, faults: str | None = None) -> None:
        """Stop the process and start it again on its data directory and port.

        :param faults: faults from the start, instead of those of the first start.
        """
        self.stop()
        self._faults = faults
        self.start()

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the running service."""
        if self._process is None:
            raise ServiceError("the service does not run: call start() first")
        return self._process.pid

    @property
    def log_file(self) -> Path:
        """File with the output of the process."""
        return self.data_dir / "service.log"

    # -- What clients need ----------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """``https://127.0.0.1:PORT``."""
        return self.env["SNOWPIPE_LOCAL_URL"]

    @property
    def port(self) -> int:
        """Port on 127.0.0.1; a restart keeps it."""
        return int(self.url.rpartition(":")[2])

    @property
    def account(self) -> str:
        """Name of the account."""
        return self.env["SNOWPIPE_LOCAL_ACCOUNT"]

    @property
    def user(self) -> str:
        """Name of the service's own user, who has the role ACCOUNTADMIN."""
        return self.env["SNOWPIPE_LOCAL_USER"]

    @property
    def key_file(self) -> Path:
        """The user's private key, in PEM."""
        return Path(self.env["SNOWPIPE_LOCAL_PRIVATE_KEY_FILE"])

    @property
    def password(self) -> str:
        """The user's password."""
        return Path(self.env["SNOWPIPE_LOCAL_PASSWORD_FILE"]).read_text().strip()

    def key_pair_jwt(self) -> str:
        """Return a key-pair JWT of the user, for ``Authorization: Bearer``; it is valid for ten minutes."""
        return sign_key_pair_jwt(DataDirectory(self.data_dir))

    @property
    def ca_file(self) -> Path:
        """Certificate of the service's own authority.

        ``SSL_CERT_FILE`` of ``env`` also has the public ones; reading those costs each connection 20 ms.
        """
        return DataDirectory(self.data_dir).authority_file

    @property
    def connector_arguments(self) -> dict[str, Any]:
        """Arguments of ``snowflake.connector.connect``: sign in with the key pair, in database ``LOCAL``."""
        return {
            "account": self.account,
            "user": self.user,
            "host": "127.0.0.1",
            "port": self.port,
            "private_key_file": str(self.key_file),
            "authenticator": "SNOWFLAKE_JWT",
            "database": "LOCAL",
            "schema": "PUBLIC",
        }

    def process_env(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a child process that is a client of this service.

        :param base: variables to add to; without them, those of this process.
        """
        return {**(os.environ if base is None else base), **self.env}

    # -- Statements and commands ----------------------------------------------------------------------------

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """Run one statement in ``LOCAL.PUBLIC`` and return its rows by column name.

        :raises ServiceError: if it fails, with the service's message.
        """
        rows: list[dict[str, Any]] = json.loads(
            run_statement(DataDirectory(self.data_dir), statement, "json")
        )
        return rows

    def cli(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of ``snowpipe-local`` on this data directory; only ``serve`` starts a process."""
        line = [command, "--data-dir", str(self.data_dir), *arguments]
        if command == "serve":
            return subprocess.run(  # noqa: S603  the command of this package
                [*_COMMAND, *line], capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
            )
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            try:
                code = main(line)
            except SystemExit as wrong_usage:
                code = int(wrong_usage.code or 0)
        return subprocess.CompletedProcess(line, code, out.getvalue(), err.getvalue())

    def admin(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command to the admin socket, for example ``admin("clock", move=86_400)``."""
        return ask(DataDirectory(self.data_dir).admin_socket, command, arguments)

    def set_faults(self, faults: str) -> None:
        """Add faults, as for ``serve --faults``."""
        self.admin("faults", set=faults)

    @contextmanager
    def held_commits(self) -> Iterator[None]:
        """Commit nothing inside the block; the rows that wait are committed when it ends."""
        self.set_faults("hold-commits")
        try:
            yield
        finally:
            if self.is_running:
                self.admin("faults", clear=True)

    def new_folder(self) -> Path:
        """Make a folder in ``allowed_folder`` for an external stage."""
        if self._allowed_folder is None:
            raise ServiceError("the service allows no folder: give LocalService(allowed_folder=...)")
        return Path(tempfile.mkdtemp(dir=self._allowed_folder))

    def drop_everything(self) -> None:
        """Drop all databases, users, roles, warehouses and faults that tests left behind."""
        self.admin("faults", clear=True)
        for kind in ("USER", "ROLE", "WAREHOUSE"):
            for row in self.sql(f"SHOW {kind}S"):
                if row["name"] not in _OWN_NAMES:
                    self.sql(f"DROP {kind} {quote(row['name'])}")
        for row in self.sql("SHOW DATABASES"):
            if row["name"] != "LOCAL":
                self.sql(f"DROP DATABASE {quote(row['name'])}")
        self.sql("CREATE OR REPLACE DATABASE LOCAL")

    def _wait_until_ready(self) -> None:
        home = DataDirectory(self.data_dir)
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline:
            if not self.is_running:
                raise ServiceError(f"the service ended: {self._log_tail()}")
            try:
                check_ready(home)
            except ServiceError:
                time.sleep(_POLL_SECONDS)
                continue
            self.env = variables(home)
            return
        self.kill()
        raise ServiceError(f"the service did not answer in {_READY_SECONDS:.0f} s: {self._log_tail()}")

    def _log_tail(self) -> str:
        return self.log_file.read_text(errors="replace")[-_LOG_TAIL:].strip()
