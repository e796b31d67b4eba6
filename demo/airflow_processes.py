"""A real Airflow on the loopback interface: API servers, scheduler, triggerer and DAG processor."""

from __future__ import annotations

import base64
import configparser
import importlib.metadata
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import requests

from demo.airflow_api import AirflowApi
from demo.ports import reserved_port
from demo.processes import TERMINATE_SECONDS, ProcessGroup, stop_left_behind

USER = "admin"
POLL_SECONDS = 0.25
IDLE_SECONDS = 0.5
_LOCK_SECONDS = 60
"""How long a process waits for another's write; SQLite's own 5 s end a scheduler on a busy machine."""
_AIRFLOW = (sys.executable, "-m", "airflow")
_MIGRATE = ("db", "migrate")


class AirflowProcesses:
    """Airflow's own processes under one ``AIRFLOW_HOME``, with SQLite and the LocalExecutor.

    Everything listens on 127.0.0.1 only: the log servers, which know no address to bind to, stay off; the API
    server reads the log files itself.

    Tasks have an API server of their own unless nobody writes by the UI while they run: Airflow 3.3.2 writes
    its audit log on the event loop of the server itself, where such a write would wait for a task's
    transaction, whose commit waits for that loop.

    :param home: the ``AIRFLOW_HOME``; made when missing, kept afterwards
    :param dags_folder: where the DAGs are
    :param read_only_ui: True gives the tasks the UI's server
    :param forked: True starts all of them as forks of one process, see `demo.airflow_forks`; none can be
        killed or started again by its name then
    """

    components: Sequence[str] = ("metadatabase", "scheduler", "triggerer", "dag_processor")
    before_migration: Sequence[str] = ("api-server", "execution-api")
    """Processes that import for seconds before somebody asks them for what is in the database."""
    api_client: type[AirflowApi] = AirflowApi

    def __init__(
        self, home: Path, dags_folder: Path, *, read_only_ui: bool = False, forked: bool = False
    ) -> None:
        self._forked = forked
        self.home = home.resolve()
        self.logs = self.home / "logs"
        # Its own URLs are in its settings.
        self.port = reserved_port()
        self.execution_port = self.port if read_only_ui else reserved_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._database = self.home / "airflow.db"
        self._state_file = self.home / "processes.json"
        self._group = ProcessGroup(self._state_file)
        self._password_file = self.home / "simple_auth_manager_passwords.json.generated"
        self._env = {**_inherited(), **self._settings(dags_folder.resolve())}
        self.api = self.api_client(self.url, USER, self._password)

    @property
    def login(self) -> tuple[str, str]:
        """User and password of the UI."""
        return USER, self._password()

    def prepare(self) -> None:
        """Stop what an earlier owner left running, and make home and login; forks begin to import."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.logs.mkdir(exist_ok=True)
        stop_left_behind(self._state_file)
        self._write_password()
        self._write_keys()
        if self._forked:
            program = [sys.executable, "-m", "demo.airflow_forks"]
            read, self._forks_input = os.pipe()
            self._group.start("airflow", program, self._env, self.log_file("airflow"), stdin=read)
            os.close(read)

    def start(self, env: Mapping[str, str]) -> None:
        """Start the processes and bring the database to this version; see `wait_until_healthy`.

        :param env: variables added to the environment of every process (connections, certificates)
        """
        self._env.update(env)
        early, late = [], []
        for name in self._commands():
            (early if name in self.before_migration else late).append(name)
        migrated = self.home / f"migrated-{importlib.metadata.version('apache-airflow')}"
        is_migrated = self._database.exists() and migrated.exists()
        if self._forked:
            migration = {} if is_migrated else {"db-migrate": {"arguments": _MIGRATE, "done": str(migrated)}}
            self._fork({**self._forks(early), **migration, **self._forks(late)}, env)
            return
        for name in early:
            self.start_process(name)
        if not is_migrated:
            self._migrate()
            migrated.touch()
        for name in late:
            self.start_process(name)

    def _forks(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        commands = self._commands()
        return {name: {"arguments": commands[name]} for name in names}

    def _fork(self, forks: Mapping[str, Mapping[str, Any]], env: Mapping[str, str]) -> None:
        commands = {name: {**fork, "log": str(self.log_file(name))} for name, fork in forks.items()}
        message = {"environment": dict(env), "commands": commands}
        # That the program has ended is what `wait_until_healthy` reports.
        with suppress(BrokenPipeError), os.fdopen(self._forks_input, "w") as pipe:
            json.dump(message, pipe)

    def start_process(self, name: str) -> None:
        """Start one of the processes, the first time or again.

        :param name: ``api-server``, ``execution-api``, ``scheduler``, ``dag-processor`` or ``triggerer``
        """
        self._group.start(name, [*_AIRFLOW, *self._commands()[name]], self._env, self.log_file(name))

    def kill_process(self, name: str) -> None:
        """Kill one of them with SIGKILL; what it started goes on, as after a crash.

        :param name: as in `start_process`
        """
        self._group.kill(name)

    def wait_until_healthy(self, timeout: float = 600.0) -> None:
        """Wait until the API server answers and calls every component healthy.

        :param timeout: seconds
        :raises RuntimeError: if a process ends, or the time is over; names the log files
        """
        deadline = time.monotonic() + timeout
        health: Mapping[str, str | None] = {}
        while time.monotonic() < deadline:
            if ended := self._group.ended():
                raise RuntimeError(self._post_mortem(ended))
            try:
                health = self.api.health()
            except requests.RequestException:
                health = {}
            healthy = all(health.get(component) == "healthy" for component in self.components)
            if self._serves_tasks() and healthy:
                return
            time.sleep(POLL_SECONDS)
        raise RuntimeError(
            f"Airflow is not healthy after {timeout:.0f} s: {health or 'no answer'}; see {self.logs}"
        )

    def members(self) -> list[psutil.Process]:
        """List every living process of this Airflow, Spark drivers included."""
        return self._group.members()

    def log_file(self, component: str) -> Path:
        """Return the log file of one component (``scheduler``, ``api-server``, …)."""
        return self.logs / f"{component}.log"

    def stop(self, *, idle: bool = False) -> None:
        """Stop every process of this Airflow, running tasks included.

        :param idle: True where no task runs: nothing is lost with a process that takes seconds to free its
            memory at its end
        """
        self._group.stop(IDLE_SECONDS if idle else TERMINATE_SECONDS)

    def _serves_tasks(self) -> bool:
        """Ask what tasks will ask; the first question takes seconds, in which a task would wait."""
        try:
            url = f"http://127.0.0.1:{self.execution_port}/execution/health"
            return requests.get(url, timeout=(1.0, 5.0)).ok
        except requests.RequestException:
            return False

    def _commands(self) -> dict[str, list[str]]:
        server = ["api-server", "--host", "127.0.0.1", "--port"]
        servers = {"api-server": [*server, str(self.port)]}
        if self.execution_port != self.port:
            servers["api-server"] += ["--apps", "core"]
            servers["execution-api"] = [*server, str(self.execution_port), "--apps", "execution"]
        return {
            **servers,
            "scheduler": ["scheduler", "--skip-serve-logs"],
            "dag-processor": ["dag-processor"],
            "triggerer": ["triggerer", "--skip-serve-logs"],
        }

    def _settings(self, dags_folder: Path) -> dict[str, str]:
        return {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags_folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{self.execution_port}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self._password_file),
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            "AIRFLOW__DATABASE__CHECK_MIGRATIONS": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self._database}?timeout={_LOCK_SECONDS}",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.logs),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
        }

    def _migrate(self) -> None:
        self._run("db-migrate", *_MIGRATE)

    def _run(self, name: str, *arguments: str) -> None:
        """Run one command of Airflow to its end, with a log file of its own."""
        with self.log_file(name).open("ab") as output:
            done = subprocess.run(
                [*_AIRFLOW, *arguments],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=600,
            )
        if done.returncode:
            raise RuntimeError(self._post_mortem({name: done.returncode}))

    def _write_password(self) -> None:
        if not self._password_file.exists():
            descriptor = os.open(self._password_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump({USER: secrets.token_urlsafe(12)}, file)

    def _write_keys(self) -> None:
        """Make the keys that all processes need: those that start together would each make their own."""
        file = self.home / "airflow.cfg"
        if not file.exists():
            keys = configparser.ConfigParser(interpolation=None)
            keys["core"] = {"fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()}
            keys["api"] = {"secret_key": secrets.token_urlsafe(16)}
            keys["api_auth"] = {"jwt_secret": secrets.token_urlsafe(64)}
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
                keys.write(opened)

    def _password(self) -> str:
        password: str = json.loads(self._password_file.read_text())[USER]
        return password

    def _post_mortem(self, ended: Mapping[str, int]) -> str:
        parts = []
        for name, code in ended.items():
            log = self.log_file(name)
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            parts.append(f"airflow {name} ended with exit code {code}; the end of {log}:\n{tail}")
        return "\n\n".join(parts)


def _inherited() -> dict[str, str]:
    """Keep the caller's environment, except for the settings of an Airflow of its own."""
    return {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
