"""A worker of its own process that runs the stream operator, so that a test can kill it."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


class FileState:
    """As much of Airflow's task state as the operator uses, in a file that survives a killed worker."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> Any:
        return self.values().get(key)

    def set(self, key: str, value: Any) -> None:
        self._write({**self.values(), key: value})

    def delete(self, key: str) -> None:
        self._write({name: value for name, value in self.values().items() if name != key})

    def values(self) -> dict[str, Any]:
        return json.loads(self._path.read_text()) if self._path.is_file() else {}

    def _write(self, values: dict[str, Any]) -> None:
        whole = self._path.with_suffix(".new")
        whole.write_text(json.dumps(values))
        whole.replace(self._path)


class TaskInstance:
    """As much of a running task instance as operators ask for; ``before`` is what the run before has left."""

    def __init__(self, before: dict[str, Any] | None = None, **fields: Any) -> None:
        self.dag_id, self.task_id, self.run_id, self.map_index = "d", "load", "manual__1", -1
        self.xcoms: dict[str, Any] = {}
        self.before, self.asked = before or {}, dict[str, Any]()
        vars(self).update(fields)

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = json.loads(json.dumps(value))

    def xcom_pull(self, **asked: Any) -> Any:
        self.asked = asked
        return (self.before if asked.get("include_prior_dates") else self.xcoms).get(asked["key"])

    def get_first_reschedule_date(self, _context: Any) -> None:
        """A sensor that reschedules asks for it."""


def execute(options: dict[str, Any], state: FileState | None) -> dict[str, Any]:
    """Run one try in this process."""
    from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator

    stops = options.pop("stop_on_signal", False)
    operator = SnowpipeStreamOperator(task_id="load", **options)

    def stop(*_: object) -> None:
        operator.on_kill()
        sys.exit(1)

    if stops:
        signal.signal(signal.SIGTERM, stop)
    context: Any = {"ti": TaskInstance(), "task_state_store": state}
    return operator.execute(context)


def start_worker(options: dict[str, Any], state: Path, output: Path) -> subprocess.Popen[bytes]:
    """Run one try in a process of its own."""
    command = [sys.executable, "-m", "tests.stream_worker", str(state), json.dumps(options)]
    with output.open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


if __name__ == "__main__":
    import tests.airflow_connections  # noqa: F401  a home for Airflow

    execute(json.loads(sys.argv[2]), FileState(Path(sys.argv[1])))
