"""Airflow's processes as forks of one that has imported Airflow: the import takes each two processor seconds.

``python -m demo.airflow_forks`` imports, and then reads from its standard input what to start, as JSON:
``{"environment": {..}, "commands": {"name": {"arguments": [..], "log": path}}}``, with variables that it was
not started with, and the arguments of ``airflow`` for each process. One that has a file ``done`` besides runs
to its end before those after it start, and makes that file. The program ends when one of the others ends;
what else it started goes on in its session.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

# What the scheduler, the triggerer and the DAG processor import, and with them the runner of tasks; and what
# the tasks of the demo's DAG import.
_MODULES = (
    "airflow.__main__",
    "airflow.jobs.scheduler_job_runner",
    "airflow.jobs.triggerer_job_runner",
    "airflow.dag_processing.manager",
    "airflow.sdk.execution_time.task_runner",
    "airflow.providers.snowflake.hooks.snowflake",
    "airflow_provider_snowpipe.operators.stream",
    "airflow_provider_snowpipe.sensors.commit",
)
_YOUNG_OBJECTS = 200_000
"""How many new objects Python's search for cycles waits for: of the processor time of an API server's start,
which makes more than a million that stay, a fifth went into that search with Python's own 700."""


def main() -> int:
    """Start every process and return the exit code of the first that ends, 1 where that is 0."""
    gc.disable()
    for module in _MODULES:
        import_module(module)
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)
    gc.enable()
    message = json.load(sys.stdin)
    os.environ.update(message["environment"])
    return _start(message["commands"])


def _start(commands: Mapping[str, Mapping[str, Any]]) -> int:
    names = {}
    for name, command in commands.items():
        process = _fork(command["arguments"], command["log"])
        names[process] = name
        if "done" not in command:
            continue
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code:
            return _ended(name, code, command["log"])
        Path(command["done"]).touch()
    process, status = os.wait()
    name = names[process]
    return _ended(name, os.waitstatus_to_exitcode(status), commands[name]["log"])


def _ended(name: str, code: int, log: str) -> int:
    print(f"airflow {name} ended with exit code {code}; its log: {log}", flush=True)
    return code or 1


def _fork(arguments: list[str], log: str) -> int:
    process = os.fork()
    if process:
        return process
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = ["airflow", *arguments]
    import_module("airflow.__main__").main()
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
