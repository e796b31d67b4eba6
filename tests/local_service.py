"""A real local service in its own process, started through the real command line."""

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
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snowpipe_local.admin import ask
from snowpipe_local.cli import main
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.environment import check_ready, run_statement, variables
from snowpipe_local.errors import ServiceError

if TYPE_CHECKING:
    from airflow_provider_snowpipe.streaming.auth import KeyPair
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient
    from airflow_provider_snowpipe.streaming.limits import RetryPolicy

_CLI = [sys.executable, "-m", "snowpipe_local.cli"]
_READY_SECONDS = 240.0
_STOP_SECONDS = 120.0
_POLL_SECONDS = 0.02
_OWN_NAMES = frozenset({"DEMO", "ACCOUNTADMIN", "PUBLIC", "SECURITYADMIN", "SYSADMIN", "USERADMIN", "LOCAL"})


class LocalService:
    """One service process on one data directory; its output is kept in ``<data_dir>/service.log``.

    :param allowed_folder: a folder that external stages may use.
    """

    def __init__(
        self,
        data_dir: Path,
        faults: str | None = None,
        limits: str | None = None,
        *,
        admin: bool = False,
        options: Sequence[str] = (),
        allowed_folder: Path | None = None,
    ) -> None:
        self.data_dir = Path(data_dir)
        self.with_admin = admin
        self.faults = faults
        self.limits = limits
        self.options = tuple(options)
        self.allowed_folder = allowed_folder
        self.env: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, data_dir: Path, faults: str | None = None) -> LocalService:
        """Start a service and wait until it answers."""
        service = cls(data_dir, faults)
        service.launch()
        return service

    def launch(self) -> None:
        """Start the process and wait until it answers."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        command = [*_CLI, "serve", "--data-dir", str(self.data_dir), "--port", "0"]
        if self.faults:
            command += ["--faults", self.faults]
        if self.limits:
            command += ["--limits", self.limits]
        if self.with_admin:
            command.append("--admin")
        if self.allowed_folder:
            command += ["--allow-folder", str(self.allowed_folder)]
        command += self.options
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # an interrupt of the tests would end it before what waits for its answers
            )
        self._wait_until_ready()

    @property
    def log_file(self) -> Path:
        return self.data_dir / "service.log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        return self.env["SNOWPIPE_LOCAL_URL"]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def account(self) -> str:
        return self.env["SNOWPIPE_LOCAL_ACCOUNT"]

    @property
    def user(self) -> str:
        return self.env["SNOWPIPE_LOCAL_USER"]

    @property
    def key_file(self) -> Path:
        return Path(self.env["SNOWPIPE_LOCAL_PRIVATE_KEY_FILE"])

    @property
    def ca_file(self) -> Path:
        """The service's own authority alone: reading the public ones costs each connection 20 ms of CPU."""
        return DataDirectory(self.data_dir).authority_file

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @cached_property
    def credentials(self) -> KeyPair:
        """Key pair of the service's own user for our client."""
        from airflow_provider_snowpipe.streaming.auth import KeyPair

        return KeyPair(self.account, self.user, self.key_file.read_bytes())

    @property
    def connector_arguments(self) -> dict[str, Any]:
        """What the Python connector needs to sign in with the key pair, in database ``LOCAL``."""
        return {
            "account": self.account,
            "user": self.user,
            "host": "127.0.0.1",
            "port": self.port,
            "private_key": self.credentials.signing_key,
            "authenticator": "SNOWFLAKE_JWT",
            "database": "LOCAL",
            "schema": "PUBLIC",
        }

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """Run one statement as ``snowpipe-local sql`` does, without a process for each, and return its rows.

        :raises AssertionError: when it fails, with what the command prints.
        """
        try:
            printed = run_statement(DataDirectory(self.data_dir), statement, "json")
        except ServiceError as error:
            raise AssertionError(f"{statement}\nsnowpipe-local: {error}") from error
        rows: list[dict[str, Any]] = json.loads(printed)
        return rows

    def cli(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another command of ``snowpipe-local`` on this data directory, ``serve`` as a process."""
        line = [command, "--data-dir", str(self.data_dir), *arguments]
        if command == "serve":
            return subprocess.run([*_CLI, *line], capture_output=True, text=True, timeout=300, check=False)
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            try:
                code = main(line)
            except SystemExit as wrong_usage:
                code = int(wrong_usage.code or 0)
        return subprocess.CompletedProcess(line, code, out.getvalue(), err.getvalue())

    def admin(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command to the admin socket of a service that was started with ``admin=True``."""
        return ask(self.data_dir / "admin.sock", command, arguments)

    def new_folder(self) -> Path:
        """Make a folder that external stages of this service may use."""
        assert self.allowed_folder is not None
        return Path(tempfile.mkdtemp(dir=self.allowed_folder))

    def set_faults(self, text: str) -> None:
        """Add faults, as for ``serve --faults``, to a service with the admin socket."""
        self.admin("faults", set=text)

    @contextmanager
    def held_commits(self) -> Iterator[None]:
        """Let no commit happen inside the block; what waits is committed when it ends."""
        self.set_faults("hold-commits")
        try:
            yield
        finally:
            if self.is_running:
                self.admin("faults", clear=True)

    def drop_everything(self) -> None:
        """Drop all databases, users, roles and faults that tests left behind."""
        self.admin("faults", clear=True)
        for kind in ("USER", "ROLE", "WAREHOUSE"):
            for row in self.sql(f"SHOW {kind}S"):
                if row["name"] not in _OWN_NAMES:
                    self.sql(f'DROP {kind} "{row["name"]}"')
        for row in self.sql("SHOW DATABASES"):
            if row["name"] != "LOCAL":
                self.sql(f'DROP DATABASE "{row["name"]}"')
        self.sql("CREATE OR REPLACE DATABASE LOCAL")

    def client(
        self,
        table_or_pipe: str,
        *,
        database: str = "LOCAL",
        schema: str = "PUBLIC",
        retry: RetryPolicy | None = None,
    ) -> SnowpipeClient:
        """Return our client on a table's default pipe, or on a pipe when the name ends in ``-STREAMING``."""
        from airflow_provider_snowpipe.streaming.client import SnowpipeClient
        from airflow_provider_snowpipe.streaming.names import PipeName

        if table_or_pipe.upper().endswith("-STREAMING"):
            pipe = PipeName(database, schema, table_or_pipe)
        else:
            pipe = PipeName.default_for_table(database, schema, table_or_pipe)
        return SnowpipeClient(self.url, self.credentials, pipe, ca_bundle=str(self.ca_file), retry=retry)

    def process_env(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return an environment for a child process that is a client of this service."""
        return {**(os.environ if base is None else base), **self.env}

    def kill(self) -> None:
        """Kill the process with SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_STOP_SECONDS)
            self._process = None

    def stop(self) -> None:
        """Stop the process in order: queued rows are committed."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._process = None

    def restart(self, faults: str | None = None) -> None:
        """Start again on the same data directory and port; stops a running process first."""
        self.stop()
        self.faults = faults
        self.launch()

    def _wait_until_ready(self) -> None:
        home = DataDirectory(self.data_dir)
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline:
            if not self.is_running:
                raise AssertionError(f"the service ended: {self.log_file.read_text()[-2000:]}")
            try:
                check_ready(home)
            except ServiceError:
                time.sleep(_POLL_SECONDS)
                continue
            self.env = variables(home)
            return
        self.kill()
        raise AssertionError(f"the service did not answer in time: {self.log_file.read_text()[-2000:]}")
