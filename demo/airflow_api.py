"""The few calls of Airflow's REST API that drive and observe a DAG run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import requests

TIMEOUT_SECONDS = (10.0, 120.0)
POLL_SECONDS = 0.5
FINAL_STATES = frozenset({"success", "failed"})


class AirflowApi:
    """A client of Airflow's REST API v2 with the login of the simple auth manager (Airflow 3).

    :param url: where the API server listens
    :param user: login name
    :param password: returns the password; called at the first request that needs it
    """

    base_path = "api/v2"
    health_path = "api/v2/monitor/health"

    def __init__(self, url: str, user: str, password: Callable[[], str]) -> None:
        self._url = url
        self._user = user
        self._password = password
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy of the machine has no business with the loopback interface
        self._authorized = False
        self._writing = threading.Lock()

    def health(self) -> dict[str, str | None]:
        """Return each component's state; needs no login."""
        answer = self._session.get(f"{self._url}/{self.health_path}", timeout=(1.0, 5.0))
        answer.raise_for_status()
        return {name: state.get("status") for name, state in answer.json().items() if isinstance(state, dict)}

    def wait_for_dag(self, dag_id: str, timeout: float = 300.0) -> None:
        """Wait until the DAG processor has stored the DAG.

        :raises TimeoutError: if it has not; carries the import errors of the DAGs folder
        """
        deadline = time.monotonic() + timeout
        while self._send("GET", f"dags/{dag_id}").status_code != 200:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"no DAG {dag_id} after {timeout:.0f} s; import errors: {self.import_errors()}"
                )
            time.sleep(POLL_SECONDS)

    def import_errors(self) -> list[str]:
        """Return the stack traces of DAG files that could not be imported."""
        return [entry["stack_trace"] for entry in self._get("importErrors")["import_errors"]]

    def unpause(self, dag_id: str) -> None:
        """Let the scheduler run the DAG."""
        self._checked("PATCH", f"dags/{dag_id}", json={"is_paused": False})

    def pause(self, dag_id: str) -> None:
        """Let the scheduler start no more runs of the DAG."""
        self._checked("PATCH", f"dags/{dag_id}", json={"is_paused": True})

    def parse_again(self, dag_id: str) -> None:
        """Have the DAG's file parsed once more: Airflow takes in the asset watchers of unpaused DAGs only."""
        token = self._get(f"dags/{dag_id}")["file_token"]
        self._checked("PUT", f"parseDagFile/{token}")

    def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any] | None = None) -> None:
        """Start a run of the DAG.

        :param conf: values for the DAG's params
        """
        body = {"dag_run_id": run_id, "conf": dict(conf or {}), **self._run_fields()}
        self._checked("POST", f"dags/{dag_id}/dagRuns", json=body)

    def fail_unfinished_runs(self, dag_id: str) -> list[str]:
        """Mark the runs failed that a stopped Airflow has left unfinished, and return their ids."""
        path = f"dags/{dag_id}/dagRuns"
        runs = [run["dag_run_id"] for run in self._get(path)["dag_runs"] if run["state"] not in FINAL_STATES]
        for run in runs:
            self._checked("PATCH", f"{path}/{run}", json={"state": "failed"})
        return runs

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run: queued, running, success, failed."""
        state: str = self._get(f"dags/{dag_id}/dagRuns/{run_id}")["state"]
        return state

    def wait_for_run(self, dag_id: str, run_id: str, timeout: float) -> str:
        """Wait until a run has succeeded or failed, and return which.

        :raises TimeoutError: if it is still running when the time is over; carries the states of its tasks
        """
        deadline = time.monotonic() + timeout
        while (state := self.run_state(dag_id, run_id)) not in FINAL_STATES:
            if time.monotonic() > deadline:
                tasks = {task["task_id"]: task["state"] for task in self.tasks(dag_id, run_id)}
                raise TimeoutError(f"{dag_id}/{run_id} is {state} after {timeout:.0f} s; tasks: {tasks}")
            time.sleep(POLL_SECONDS)
        return state

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return the task instances of a run, in the order they started."""
        found = self._get(f"dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return sorted(found, key=lambda task: task["start_date"] or "9999")

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """Return one task instance: state, try_number, start_date, end_date, rendered_fields."""
        return self._get(f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}")

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return one XCom's value, None when the task has not pushed it."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        answer = self._send("GET", path, params={"deserialize": "false", "stringify": "false"})
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        return answer.json()["value"]

    def links(self, dag_id: str, run_id: str, task_id: str) -> dict[str, str | None]:
        """Return the addresses of a task's extra links by their names, None for one without an address."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/links"
        links: dict[str, str | None] = self._get(path)["extra_links"]
        return links

    def task_log(self, dag_id: str, run_id: str, task_id: str, try_number: int) -> list[str]:
        """Return the lines of one try of a task, exceptions as type and text."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        answer = self._send("GET", path, headers={"Accept": "application/json"})
        answer.raise_for_status()
        return [line for entry in answer.json()["content"] for line in _log_lines(entry)]

    def set_task_state(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Mark a task as a person does in the UI.

        :param state: ``failed``, ``success`` or ``skipped``
        """
        self._checked(
            "PATCH", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}", json={"new_state": state}
        )

    def clear(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Clear a task and all that comes after it, as a person does in the UI."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": [task_id],
            "only_failed": False,
            "include_downstream": True,
            "reset_dag_runs": True,
        }
        self._checked("POST", f"dags/{dag_id}/clearTaskInstances", json=body)

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str) -> None:
        """Answer a task that waits for a person.

        :param option: one of the task's options, such as ``Approve``
        """
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails"
        self._checked("PATCH", path, json={"chosen_options": [option]})

    def test_connection(self, connection: Mapping[str, Any]) -> tuple[bool, str]:
        """Press the Test button of the connection form: whether it works, and what the page shows.

        :param connection: the form's content
        """
        answer = self._checked("POST", "connections/test", json=dict(connection)).json()
        return answer["status"], answer["message"]

    def add_connection(self, conn_id: str, fields: Mapping[str, Any]) -> None:
        """Store a connection.

        :param conn_id: its id
        :param fields: as in the JSON form of a connection; ``extra`` may be an object
        """
        extra = fields.get("extra") or {}
        body = {"connection_id": conn_id, **fields, "extra": json.dumps(extra)}
        self._checked("POST", "connections", json=body)

    def _get(self, path: str) -> dict[str, Any]:
        result: dict[str, Any] = self._checked("GET", path).json()
        return result

    def _checked(self, method: str, path: str, **arguments: Any) -> requests.Response:
        answer = self._send(method, path, **arguments)
        if not answer.ok:
            raise RuntimeError(f"Airflow refused {method} {path}: {answer.status_code} {answer.text[:500]}")
        return answer

    def _send(self, method: str, path: str, **arguments: Any) -> requests.Response:
        if not self._authorized:
            self._log_in()
        url = f"{self._url}/{self.base_path}/{path}"
        # On SQLite one write at a time: see AirflowProcesses.
        with nullcontext() if method == "GET" else self._writing:
            return self._session.request(method, url, timeout=TIMEOUT_SECONDS, **arguments)

    def _run_fields(self) -> dict[str, Any]:
        """What a new run needs beside its id."""
        return {"logical_date": None}

    def _log_in(self) -> None:
        body = {"username": self._user, "password": self._password()}
        answer = self._session.post(f"{self._url}/auth/token", json=body, timeout=TIMEOUT_SECONDS)
        answer.raise_for_status()
        self._session.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
        self._authorized = True


def _log_lines(entry: Any) -> list[str]:
    if not isinstance(entry, dict):
        return [str(entry)]
    errors = [f"{error['exc_type']}: {error['exc_value']}" for error in entry.get("error_detail") or ()]
    return [entry["event"], *errors]
