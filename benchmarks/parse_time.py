"""What our imports add to the reading of a DAG file, against a file with nothing in it but Airflow.

Each measurement is a fresh interpreter. Both kinds of files are read in turn in one run, so that other work
on the machine meets both. The DAG processor has imported Airflow before it reads a file; that part is left
out.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from benchmarks.measuring import Target, report  # noqa: E402
from tests.example_dags import DAGS_FOLDER, FILES_FOR_THIS_AIRFLOW  # noqa: E402
from tests.import_times import BARE_DAG, READ_DAG, airflow_environment, imports_of  # noqa: E402

MORE_SECONDS, OUR_SECONDS = 1.0, 0.35
OURS = "airflow_provider_snowpipe"
TIMED = """
import sys, time
import airflow.models
try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # Airflow before 3.2
    from airflow.models.dagbag import DagBag
used = time.process_time()
bag = DagBag(sys.argv[1])
assert bag.dags and not bag.import_errors, bag.import_errors
print(time.process_time() - used)
"""


def main() -> int:
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
        measured: dict[Path, list[float]] = {file: [] for file in (bare, *files)}
        for _ in range(rounds):
            for file, readings in measured.items():
                readings.append(read(file, env))
        whole = {file: statistics.median(found) for file, found in measured.items()}
        worst = max(files, key=whole.__getitem__)
        imported = {file: imports_of(READ_DAG, str(file), env=env).seconds(OURS) for file in files}
        slowest = max(files, key=imported.__getitem__)
    detail = f"{worst.stem}: {whole[worst]:.2f} CPU-s, an empty one {whole[bare]:.2f}"
    more, ours = whole[worst] - whole[bare], imported[slowest]
    what = "reading an example DAG, more than an empty one, CPU-s"
    results = [Target(what, more, MORE_SECONDS, detail, at_most=True)]
    detail = f"{slowest.stem}, traced, which is slower"
    results.append(Target("our own imports for it, seconds", ours, OUR_SECONDS, detail, at_most=True))
    return report(results, rounds=rounds)


def read(file: Path, env: Mapping[str, str]) -> float:
    """Read one file in a fresh interpreter; its processor seconds from when Airflow was imported."""
    command = [sys.executable, "-c", TIMED, str(file)]
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=300, check=True)
    return float(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
