"""A worker of its own process that runs the bulk load operator, so that a test can kill it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.stream_worker import FileState


def execute(options: dict[str, Any], state: FileState | None, try_number: int) -> dict[str, Any]:
    from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
    from tests.file_pipes import task_context

    operator = SnowpipeBulkLoadOperator(task_id="bulk", deferrable=False, **options)
    return operator.execute({**task_context(try_number=try_number), "task_state_store": state})


def start_worker(options: dict[str, Any], state: Path | None, output: Path) -> subprocess.Popen[bytes]:
    """Run the first try in a process of its own, with a file for the task's state since Airflow 3.3."""
    command = [sys.executable, "-m", "tests.bulk_worker", str(state or ""), json.dumps(options)]
    with output.open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


if __name__ == "__main__":
    import tests.airflow_connections  # noqa: F401  a home for Airflow

    execute(json.loads(sys.argv[2]), FileState(Path(sys.argv[1])) if sys.argv[1] else None, 1)
