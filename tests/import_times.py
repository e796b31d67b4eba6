"""Who imports what in a fresh interpreter."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \| (\s*)(\S+)")

READ_DAG = """
import sys
try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # Airflow before 3.2
    from airflow.models.dagbag import DagBag
for file in sys.argv[1:]:
    bag = DagBag(file)
    assert not bag.import_errors, bag.import_errors
    assert bag.dags, file
"""
"""Reads DAG files as the DAG processor does."""
BARE_DAG = """
from airflow.providers.common.compat.sdk import BaseOperator, BaseSensorOperator, DAG, dag, task

with DAG("bare", schedule=None):
    BaseOperator(task_id="nothing")
"""
"""A DAG file with nothing in it but Airflow."""


class Imports:
    """All modules that a program imported, by ``python -X importtime``."""

    def __init__(self, printed: str) -> None:
        self._importers: dict[str, str | None] = {}
        self._seconds: dict[str, float] = {}
        above: list[tuple[int, str]] = []
        # From the end: there, a module comes before what it imported.
        for microseconds, indent, name in reversed(_LINE.findall(printed)):
            while above and above[-1][0] >= len(indent):
                above.pop()
            self._importers[name] = above[-1][1] if above else None
            self._seconds[name] = int(microseconds) / 1e6
            above.append((len(indent), name))

    @property
    def names(self) -> set[str]:
        return set(self._importers)

    @property
    def roots(self) -> set[str]:
        return {name.partition(".")[0] for name in self._importers}

    def seconds(self, package: str) -> float:
        """The time of the own code of a package's modules, without what these imported in turn."""
        return sum(time for name, time in self._seconds.items() if f"{name}.".startswith(f"{package}."))

    def way_to(self, root: str) -> str:
        """Who imported a package first: ``a > b > root``."""
        own = [name for name in self._importers if name.partition(".")[0] == root]
        way: list[str] = []
        name: str | None = own[-1]
        while name is not None and name not in way:
            way.append(name)
            name = self._importers.get(name)
        return " > ".join(reversed(way))


def airflow_environment(home: Path) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    repository = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, (repository, env.get("PYTHONPATH"))))
    return env | {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "PYTHONPATH": path}


def imports_of(code: str, *arguments: str, env: Mapping[str, str]) -> Imports:
    """Run a program in a fresh interpreter and see what it imports."""
    return Imports(_run(code, *arguments, env=env))


def _run(code: str, *arguments: str, env: Mapping[str, str]) -> str:
    command = [sys.executable, "-X", "importtime", "-c", code, *arguments]
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, "\n".join(
        line for line in done.stderr.splitlines() if not line.startswith("import time:")
    )
    return done.stderr


def imports_in_turn(*programs: tuple[str, list[str]], env: Mapping[str, str]) -> list[Imports]:
    """Run programs one after the other in one interpreter: what each has imported that none did before."""
    mark = "-- the next program --"
    run = f"""
import json, sys
for code, arguments in json.loads(sys.argv[1]):
    print({mark!r}, file=sys.stderr, flush=True)
    sys.argv[1:] = arguments
    exec(code, {{"__name__": "__main__"}})
"""
    texts = _run(run, json.dumps(programs), env=env).split(mark)[1:]
    assert len(texts) == len(programs)
    return [Imports(text) for text in texts]
