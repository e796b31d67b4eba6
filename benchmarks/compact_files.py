"""Many tiny files combined by ``compact=True`` and copied: seconds of each step, and the most memory it took.

Files of one to twenty lines of JSON, 70 bytes to 1.5 KB, lie below a hundred folders of this disk. The stage
operator has Spark combine them and puts what comes of it, another run finds that in the stage, and COPY loads
it. A row that is missing or doubled makes the run end without a result.

    python benchmarks/compact_files.py --files 100000
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.airflow_connections import PASSPHRASE  # isort: skip  # noqa: F401  a home for Airflow

import psutil

from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.operators.stage_files import SnowpipeStageFilesOperator
from benchmarks.measuring import peak_bytes
from tests.file_pipes import task_context
from tests.local_connection import connect
from tests.local_service import LocalService

_FOLDERS = 100
_MOST_LINES = 20
_POLL_SECONDS = 0.1
_KINDS = {"pyspark.daemon": "Python worker", "org.apache.spark.deploy": "JVM", "job.py": "driver's Python"}


class PeakMemory(threading.Thread):
    """The most memory that this process and the processes of Spark have had, by kind.

    :param strangers: processes that do not count
    """

    def __init__(self, *strangers: int) -> None:
        super().__init__(daemon=True)
        self._strangers = frozenset(strangers)
        self._ended = threading.Event()
        self.bytes: dict[str, int] = {}

    def run(self) -> None:
        """Check until :meth:`stop`."""
        own = psutil.Process()
        while not self._ended.wait(_POLL_SECONDS):
            self._take("worker", own.pid)
            for process in own.children(recursive=True):
                if process.pid not in self._strangers:
                    self._check(process)

    def stop(self) -> None:
        """End the checks."""
        self._ended.set()
        self.join()

    def _check(self, process: psutil.Process) -> None:
        try:
            command = " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            return
        kind = next((kind for word, kind in _KINDS.items() if word in command), None)
        if kind is not None:
            self._take(kind, process.pid)

    def _take(self, kind: str, pid: int) -> None:
        self.bytes[kind] = max(self.bytes.get(kind, 0), peak_bytes(pid))


def write(folder: Path, files: int) -> tuple[int, int]:
    """Write the files; their rows and bytes."""
    rows = size = 0
    for number in range(files):
        below = folder / f"{number % _FOLDERS:02}"
        if number < _FOLDERS:
            below.mkdir(parents=True)
        lines = 1 + number * 7 % _MOST_LINES
        names = (hashlib.sha256(b"%d" % one).hexdigest()[:45] for one in range(rows, rows + lines))
        text = "".join(f'{{"ID":{rows + one},"NAME":"{name}"}}\n' for one, name in enumerate(names))
        (below / f"{number:07}.ndjson").write_text(text)
        rows, size = rows + lines, size + len(text)
    return rows, size


def measure(files: int, folder: Path) -> dict[str, Any]:
    """Write, combine, find again and copy."""
    rows, size = write(folder / "in", files)
    service = LocalService(folder / "service", limits="off")
    service.start()
    os.environ["REQUESTS_CA_BUNDLE"] = str(service.ca_file)
    _define("spark_default", conn_type="spark", host="local[2]")
    conn_id = connect(service, _define)
    service.sql("CREATE TABLE TINY (ID NUMBER, NAME VARCHAR)")
    service.sql("CREATE STAGE TINY_FILES")

    def stage(run: str) -> dict[str, Any]:
        return SnowpipeStageFilesOperator(
            task_id="stage",
            source=str(folder / "in"),
            stage="@TINY_FILES/in",
            compact=True,
            snowflake_conn_id=conn_id,
            spark_options={"driver_memory": "1g", "conf": {"spark.ui.enabled": "false"}},
        ).execute(task_context(run))

    def copy(names: list[str]) -> dict[str, Any]:
        return SnowpipeCopyOperator(
            task_id="copy",
            table="TINY",
            stage="@TINY_FILES/in",
            files=names,
            options={"file_format": {"type": "JSON"}, "match_by_column_name": "CASE_INSENSITIVE"},
            deferrable=False,
            snowflake_conn_id=conn_id,
        ).execute(task_context())

    memory = PeakMemory(service.pid)
    memory.start()
    try:
        combined, staged = _timed(lambda: stage("r1"))
        again, found = _timed(lambda: stage("r2"))
        copied, done = _timed(lambda: copy(staged["files"]))
        memory.stop()
        sql = "SELECT COUNT(*) AS N, COUNT(DISTINCT ID) AS D, MAX(ID) AS M FROM TINY"
        counted = [int(value) for value in service.sql(sql)[0].values()]
    finally:
        service.stop()
    if counted != [rows, rows, rows - 1] or done["rows_loaded"] != rows or found["uploaded"]:
        raise SystemExit(f"{counted} rows (all, distinct, last) are in the table, not {rows}: no result")
    return {
        "files": files,
        "rows": rows,
        "bytes": size,
        "combined_to": len(staged["files"]),
        "combine_seconds": round(combined, 1),
        "find_again_seconds": round(again, 1),
        "copy_seconds": round(copied, 1),
        "peak_mib": {kind: round(peak / 2**20) for kind, peak in sorted(memory.bytes.items())},
        "load": os.getloadavg()[0],
    }


def _define(conn_id: str, **fields: Any) -> str:
    os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(fields)
    return conn_id


def _timed(work: Callable[[], dict[str, Any]]) -> tuple[float, dict[str, Any]]:
    began = time.perf_counter()
    value = work()
    return time.perf_counter() - began, value


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="snowpipe-bench-") as scratch:
        print(json.dumps(measure(options.files, Path(scratch)), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
