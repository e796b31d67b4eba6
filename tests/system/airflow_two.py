"""Airflow 2.11 instead of Airflow 3: other processes, another login, and the REST API v1."""

import secrets
from pathlib import Path
from typing import Any

from demo.airflow_api import AirflowApi
from demo.airflow_processes import USER, AirflowProcesses


class AirflowTwoApi(AirflowApi):
    """A client of Airflow's REST API v1 with basic authentication (Airflow 2)."""

    base_path = "api/v1"
    health_path = "health"

    def _run_fields(self) -> dict[str, Any]:
        return {}

    def _log_in(self) -> None:
        self._session.auth = (self._user, self._password())
        self._authorized = True


class AirflowTwoProcesses(AirflowProcesses):
    """Webserver, scheduler (which reads the DAGs itself) and triggerer of Airflow 2.11.

    On SQLite Airflow 2 runs one task at a time, in the scheduler.
    """

    components = ("metadatabase", "scheduler", "triggerer")
    before_migration = ()
    api_client = AirflowTwoApi

    def _serves_tasks(self) -> bool:
        return True

    def _commands(self) -> dict[str, list[str]]:
        return {
            "webserver": ["webserver", "--hostname", "127.0.0.1", "--port", str(self.port), "--workers", "1"],
            "scheduler": ["scheduler", "--skip-serve-logs"],
            "triggerer": ["triggerer", "--skip-serve-logs"],
        }

    def _settings(self, dags_folder: Path) -> dict[str, str]:
        return {
            **super()._settings(dags_folder),
            "AIRFLOW__CORE__EXECUTOR": "SequentialExecutor",
            "AIRFLOW__API__AUTH_BACKENDS": "airflow.providers.fab.auth_manager.api.auth.backend.basic_auth",
            "AIRFLOW__SCHEDULER__MIN_FILE_PROCESS_INTERVAL": "10",
            "AIRFLOW__SCHEDULER__PARSING_PROCESSES": "1",
            "AIRFLOW__WEBSERVER__SECRET_KEY": secrets.token_hex(16),
        }

    def _migrate(self) -> None:
        super()._migrate()
        # Airflow 2 takes a password from a terminal or as an argument; this one opens nothing but this test.
        self._run(
            "users-create", "users", "create", "--username", USER, f"--password={self._password()}",
            "--role", "Admin", "--firstname", "Ad", "--lastname", "Min", "--email", "admin@example.org",
        )  # fmt: skip
