"""Every way of loading under seeded faults: nothing is lost, doubled, early or silent.

``SNOWPIPE_CAMPAIGN_RUNS`` sets how many runs, ``SNOWPIPE_CAMPAIGN_SEED`` from which seed on,
``SNOWPIPE_CAMPAIGN_PATHS`` of which paths, and ``SNOWPIPE_CAMPAIGN_EVENTS`` with which events after the first
success: a failure names its seed.
"""

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.airflow_connections import SetConnection, set_connection
from tests.faults import lifecycle
from tests.faults.campaign import PATHS, Run, judged, path_of
from tests.faults.faulty_store import faulty_store
from tests.local_connection import connect
from tests.local_service import LocalService

__all__ = ["set_connection"]

RUNS = int(os.environ.get("SNOWPIPE_CAMPAIGN_RUNS", len(PATHS)))
SEED = int(os.environ.get("SNOWPIPE_CAMPAIGN_SEED", "0"))
NAMES = os.environ.get("SNOWPIPE_CAMPAIGN_PATHS", ",".join(PATHS)).split(",")
EVENTS = os.environ.get("SNOWPIPE_CAMPAIGN_EVENTS", ",".join(lifecycle.EVENTS)).split(",")
KINDS = ("lost", "doubled", "early", "silent", "broken")
SHARE = 5
"""One of so many runs of a path succeeds at least: the others meet bad rows, or somebody else's loader."""


def report(runs: Sequence[Run]) -> str:
    """One page: runs and tries by path and by fault, and what went wrong."""
    lines = [f"{'path or fault':<26}" + "".join(f"{name:>8}" for name in ("runs", "tries", *KINDS))]
    for name in [*PATHS, *sorted({fault for run in runs for fault in run.faults}), "all"]:
        some = [run for run in runs if name in (run.path, *run.faults, "all")]
        counts = [len(some), sum(run.tries for run in some)]
        counts += [sum(run.wrong[kind] for run in some) for kind in KINDS]
        lines.append(f"{name:<26}" + "".join(f"{count:>8}" for count in counts))
    for run in runs:
        failed = f"FAILED with {dict(+run.wrong)} under {', '.join(run.faults)}"
        notes = [*run.notes, *([failed] if any(run.wrong.values()) else [])]
        lines += [f"seed {run.seed} ({run.path}): {note.splitlines()[0][:200]}" for note in notes]
    return "\n".join(lines)


def test_no_row_is_lost_doubled_early_or_silent(
    admin_service: LocalService,
    set_connection: SetConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(admin_service.ca_file))
    set_connection("spark_default", conn_type="spark", host="local[2,4]")
    conn_id = connect(admin_service, set_connection)
    seeds = (seed for seed in itertools.count(SEED) if path_of(seed) in NAMES)
    with faulty_store() as store:
        runs = [
            judged(Run(seed, admin_service, store, tmp_path / str(seed), conn_id, EVENTS))
            for seed in itertools.islice(seeds, RUNS)
        ]

    page = report(runs)
    with capsys.disabled():
        print(f"\n{page}")
    assert [run.seed for run in runs if any(run.wrong.values())] == [], page
    # Where no run succeeds none can lose a row, either.
    done, green = (Counter(run.path for run in some) for some in (runs, [run for run in runs if run.green]))
    assert [path for path in done if green[path] < done[path] // SHARE] == [], page
