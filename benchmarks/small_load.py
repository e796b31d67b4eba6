"""What one run of the stream operator costs where few rows are new, or none, on a local master.

Each run is a task's process of its own, which loads the rows of one new file into the local service; what is
timed is the operator's ``execute``, with the processor time of everything that it starts. ``rows`` are loaded
without Spark, ``spark`` by it (``[snowpipe] local_rows_without_spark = False``), and their ratio counts;
``nothing new`` is a run that finds none; ``spark connect`` is a load over a server that runs already, whose
own processor time does not count, and ``topic`` the same with new rows of a Kafka topic, of librdkafka's mock
cluster, in place of a file. The kinds take turns.

    python benchmarks/small_load.py --rows 1000 --rounds 5 --only rows "nothing new"
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measuring import Cost, Target, report
from tests.kafka_topics import MockCluster, numbered, produce
from tests.local_service import LocalService
from tests.spark_connect import ConnectServer
from tests.spark_job import new_table, write_rows

_KINDS = ("spark", "rows", "nothing new", "spark connect", "topic")
_MOST: dict[str, tuple[float | None, float | None]] = {"rows": (1.5, 1.3), "nothing new": (0.15, None)}
"""Seconds and processor seconds of a run with 1,000 rows at most."""
_WARM_UP = 1


def main() -> int:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=_KINDS, default=_KINDS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="small-load-") as folder:
        costs = _costs(Path(folder), given.rows, given.rounds, given.only)
    results: list[Target] = []
    for kind, found in costs.items():
        wall, cpu = (statistics.median(getattr(one, name) for one in found) for name in ("wall", "cpu"))
        each = " ".join(f"{one.wall:.1f}/{one.cpu:.1f}" for one in found)
        detail = f"{wall:.2f} s, {cpu:.2f} CPU-s (median of {len(found)}: {each})"
        seconds, processor = _MOST.get(kind, (None, None)) if given.rows <= 1000 else (None, None)
        results.append(Target(f"{kind}, seconds", wall, seconds, detail, at_most=True))
        results.append(Target(f"{kind}, CPU-s", cpu, processor, detail, at_most=True))
    if {"spark", "rows"} <= costs.keys():
        pairs = list(zip(costs["spark"], costs["rows"], strict=True))
        wall, cpu = (
            statistics.median(getattr(a, n) / getattr(b, n) for a, b in pairs) for n in ("wall", "cpu")
        )
        results.append(Target("by Spark / without, seconds", wall, 1.0, "medians of the rounds' ratios"))
        results.append(Target("by Spark / without, CPU", cpu, 1.0, "medians of the rounds' ratios"))
    return report(results, rows=given.rows, rounds=given.rounds)


def _costs(folder: Path, rows: int, rounds: int, kinds: Sequence[str]) -> dict[str, list[Cost]]:
    service = LocalService(folder / "service").start()
    try:
        with ExitStack() as stack:
            works = _works(folder, service, rows, kinds, stack)
            costs: dict[str, list[Cost]] = {kind: [] for kind in works}
            for _ in range(rounds):
                for kind, work in works.items():
                    costs[kind].append(work())
            return costs
    finally:
        service.stop()


def _works(
    folder: Path, service: LocalService, rows: int, kinds: Sequence[str], stack: ExitStack
) -> dict[str, Callable[[], Cost]]:
    """What each kind measures, warm."""
    works: dict[str, Callable[[], Cost]] = {}
    if set(kinds) - {"spark connect", "topic"}:
        load = _Load(folder / "local", service, rows, {"conn_type": "spark", "host": "local[2]"})
        load.new_rows()
        for _ in range(_WARM_UP if "spark" in kinds else 0):
            load.new_rows(by_spark=True)
        works = {
            "spark": lambda: load.new_rows(by_spark=True),
            "rows": load.new_rows,
            "nothing new": lambda: load.run(expected=0),
        }
    if {"spark connect", "topic"} & set(kinds):
        (folder / "server").mkdir()
        server = ConnectServer(
            folder / "server", Path(sys.executable), {"REQUESTS_CA_BUNDLE": str(service.ca_file)}
        )
        stack.callback(server.stop)
        connection = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": server.start().port}
        loads = {"spark connect": _Load, "topic": _TopicLoad}
        for kind in sorted(set(loads) & set(kinds)):
            connected = loads[kind](folder / kind.split()[-1], service, rows, connection)
            for _ in range(_WARM_UP):
                connected.new_rows()
            works[kind] = connected.new_rows
    return {kind: work for kind, work in works.items() if kind in kinds}


class _Load:
    """A growing folder of files, and runs that load what is new."""

    def __init__(self, folder: Path, service: LocalService, rows: int, connection: dict[str, Any]) -> None:
        self._folder, self._rows, self._files = folder / "src", rows, 0
        self.table = new_table(service, f"SMALL_{folder.name.upper()}")
        self.source: dict[str, Any] = {"path": str(self._folder)}
        # pip compiles what it installs; without that, a run would compile what it imports.
        without = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "SPARK_SUBMIT_OPTS", "PYTHONDONTWRITEBYTECODE")
        self._environment = {
            **{name: value for name, value in os.environ.items() if name not in without},
            **service.env,
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(connection),
            "AIRFLOW_HOME": str(folder / "airflow"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def new_rows(self, *, by_spark: bool = False) -> Cost:
        first, self._files = self._files * self._rows, self._files + 1
        self.write(range(first, first + self._rows))
        return self.run(by_spark=by_spark, expected=self._rows)

    def write(self, ids: range) -> None:
        write_rows(self._folder / "all" / f"{self._files:06}.ndjson", ids)

    def run(self, *, by_spark: bool = False, expected: int) -> Cost:
        options = {"source": self.source, "table": self.table}
        variables = {"AIRFLOW__SNOWPIPE__LOCAL_ROWS_WITHOUT_SPARK": str(not by_spark)}
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.stream_run", json.dumps(options)],
            cwd=Path(__file__).resolve().parents[1],
            env={**self._environment, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(done.stdout[-3000:] + done.stderr[-3000:])
        found = json.loads(done.stdout.splitlines()[-1])
        if found["rows"] != expected:
            raise SystemExit(f"{found['rows']} rows instead of {expected}")
        return Cost(found["wall"], found["cpu"])


class _TopicLoad(_Load):
    """A topic, of which one partition gets rows."""

    def __init__(self, folder: Path, service: LocalService, rows: int, connection: dict[str, Any]) -> None:
        super().__init__(folder, service, rows, connection)
        self._cluster, topic = MockCluster(), self.table.lower()
        self._cluster.make_topic(topic)
        self.source = {"kind": "kafka", "bootstrap_servers": self._cluster.address, "topics": [topic]}

    def write(self, ids: range) -> None:
        produce(self._cluster.address, self.source["topics"][0], numbered(ids))


if __name__ == "__main__":
    sys.exit(main())
