"""What our imports add to the reading of a DAG file, against a file with nothing in it but Airflow.

Each measurement is a fresh interpreter. Both kinds of files are read in turn in one run, so that other work
on the machine meets both. The DAG processor has imported Airflow before it reads a file; that part is left
out of the time of reading and kept in the time of the whole process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from tests.example_dags import DAGS_FOLDER, FILES_FOR_THIS_AIRFLOW  # noqa: E402
from tests.import_times import BARE_DAG, READ_DAG, airflow_environment, imports_of  # noqa: E402

TARGET_SECONDS = 1.0
OURS = "airflow_provider_snowpipe"
TIMED = """
import json, sys, time
began, used = time.perf_counter(), time.process_time()
import airflow.models
try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # Airflow before 3.2
    from airflow.models.dagbag import DagBag
read, read_used = time.perf_counter(), time.process_time()
bag = DagBag(sys.argv[1])
assert bag.dags and not bag.import_errors, bag.import_errors
ended, ended_used = time.perf_counter(), time.process_time()
print(json.dumps({"reading": ended_used - read_used, "whole": ended_used - used, "wall": ended - read}))
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of one file, in seconds.

    :param reading: processor time from when Airflow was imported
    :param whole: processor time with Airflow's own imports
    :param wall: time by the clock from when Airflow was imported
    """

    reading: float
    whole: float
    wall: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="readings of each file; the median counts")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="snowpipe-parse-") as folder:
        bare = Path(folder, "bare.py")
        bare.write_text(BARE_DAG)
        env = airflow_environment(Path(folder, "airflow"))
        read(bare, env)  # the first one writes Airflow's configuration and the bytecode
        files = [DAGS_FOLDER / f"{name}.py" for name in FILES_FOR_THIS_AIRFLOW]
        measured: dict[Path, list[Reading]] = {file: [] for file in (bare, *files)}
        for _ in range(rounds):
            for file, readings in measured.items():
                readings.append(read(file, env))
        report(measured, bare)
        for file in files:
            whose(file, env)


def read(file: Path, env: Mapping[str, str]) -> Reading:
    """Read one file in a fresh interpreter."""
    command = [sys.executable, "-c", TIMED, str(file)]
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=300, check=True)
    return Reading(**json.loads(done.stdout.splitlines()[-1]))


def report(measured: Mapping[Path, list[Reading]], bare: Path) -> None:
    """Print the medians, and how much more each file takes than the bare one."""

    def median(file: Path, what: str) -> float:
        return statistics.median(getattr(one, what) for one in measured[file])

    print("DAG                         reading    more   by the clock    whole process  of bare")
    for file in measured:
        reading, whole = median(file, "reading"), median(file, "whole")
        more = reading - median(bare, "reading")
        verdict = "" if file == bare else ("ok" if more < TARGET_SECONDS else "OVER")
        print(
            f"{file.stem:26} {reading:7.2f} s {more:6.2f} s {median(file, 'wall'):10.2f} s {whole:14.2f} s"
            f" {whole / median(bare, 'whole'):8.2f}  {verdict}"
        )
    print(f"target: less than {TARGET_SECONDS:.0f} s more than the bare DAG; medians of processor time\n")


def whose(file: Path, env: Mapping[str, str]) -> None:
    """Print whose code the reading of a file runs at import."""
    found = imports_of(READ_DAG, str(file), env=env)
    ours, spark, sql = (
        found.seconds(package)
        for package in (OURS, "airflow.providers.apache.spark", "airflow.providers.common.sql")
    )
    print(
        f"{file.stem}: our own modules {ours * 1000:.0f} ms, Airflow's Spark provider {spark * 1000:.0f} ms, "
        f"its SQL provider {sql * 1000:.0f} ms, of {found.seconds():.1f} s in all (traced, so slower)"
    )


if __name__ == "__main__":
    main()
