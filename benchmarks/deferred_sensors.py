"""Many deferred commit sensors on one pipe: status requests, triggerer CPU and memory, time to the end.

Starts a real Airflow (SQLite, LocalExecutor) and a local service behind a counting proxy, all on 127.0.0.1.
The sensors start and end in the triggerer, so that no worker competes with what is measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from benchmarks.counting_proxy import counting_proxy  # noqa: E402
from benchmarks.waiting_sensors import POLL_SECONDS, RUN_ID, Waiting, worst_count  # noqa: E402
from demo.airflow_processes import AirflowProcesses  # noqa: E402
from tests.local_service import LocalService  # noqa: E402
from tests.python_workers import children_of  # noqa: E402

INTERVALS = 12
GROUPS = 10


@dataclass(frozen=True)
class Usage:
    """What the triggerer took over a while.

    :param cpu: processor seconds per second, all its processes
    :param resident: resident bytes, all its processes
    """

    cpu: float
    resident: int


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sensors", type=int, default=1_000, help="two for each channel")
    parser.add_argument("--dags", type=int, default=40, help="spread over this many DAGs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="snowpipe-sensors-") as name:
        folder = Path(name)
        service = LocalService(folder / "service").start()
        dags = folder / "dags"
        dags.mkdir()
        (dags / "waiting_sensors.py").symlink_to(REPOSITORY / "benchmarks/dags/waiting_sensors.py")
        airflow = AirflowProcesses(folder / "airflow", dags)
        try:
            airflow.prepare()
            airflow.start(
                {
                    **service.env,
                    "WAITING_SENSORS": str(arguments.sensors),
                    "WAITING_DAGS": str(arguments.dags),
                }
            )
            airflow.wait_until_healthy()
            with counting_proxy(service, folder / "proxy") as proxy:
                measure(Waiting(airflow, proxy, arguments.dags, arguments.sensors))
        finally:
            airflow.stop()
            service.kill()


def measure(waiting: Waiting) -> None:
    """Run the sensors and print what they cost.

    :param waiting: not started yet
    """
    waiting.prepare()
    idle = usage_over(waiting.airflow, INTERVALS)
    report("triggerer, nobody waits", idle)
    waiting.start()
    began = time.time()
    usage = usage_over(waiting.airflow, INTERVALS)
    requests = waiting.proxy.since(began)
    channels = len(waiting.channels)
    print(f"{waiting.sensors} sensors, {channels} channels, a poll every {POLL_SECONDS:g} s")
    print(
        f"status requests in {INTERVALS} intervals: {len(requests)}; a poll is {waiting.requests_per_round}; "
        f"no interval is off by more than {worst_count(requests, INTERVALS, waiting.requests_per_round)}"
    )
    report("triggerer, all wait", usage)
    report("difference", Usage(usage.cpu - idle.cpu, usage.resident - idle.resident))
    seconds: list[float] = []
    size = -(-channels // GROUPS)
    for start in range(0, channels, size):
        group = waiting.channels[start : start + size]
        committed = waiting.commit(group, 1)
        seconds += [end - committed for end in waiting.ended(waiting.sensors_of(group, 1), 120).values()]
    print(
        f"from commit to the sensor's end: median {statistics.median(seconds):.1f} s, "
        f"longest {max(seconds):.1f} s"
    )
    committed = waiting.commit(waiting.channels, 2)
    ended = waiting.ended(waiting.sensors_of(waiting.channels, 2), 300)
    print(f"all other {len(ended)} at once: longest {max(ended.values()) - committed:.1f} s")
    states = {waiting.airflow.api.wait_for_run(dag_id, RUN_ID, 120) for dag_id in waiting.dags}
    print(f"runs: {', '.join(sorted(states))}; lines of trouble in the triggerer's log:")
    log = Path(waiting.airflow.log_file("triggerer")).read_text(errors="replace").splitlines()
    for line in [one for one in log if "Traceback" in one or "blocked for" in one][:20]:
        print(f"  {line[:160]}")


def usage_over(airflow: AirflowProcesses, intervals: int) -> Usage:
    """What the triggerer takes over a number of poll intervals."""
    leaders = [one for one in airflow.members() if "triggerer" in _command_line(one)]
    processes = [*leaders, *(child for one in leaders for child in children_of(one, recursive=True))]
    began, before = time.monotonic(), _cpu(processes)
    time.sleep(intervals * POLL_SECONDS)
    cpu = (_cpu(processes) - before) / (time.monotonic() - began)
    return Usage(cpu, sum(one.memory_info().rss for one in processes))


def _command_line(process: psutil.Process) -> list[str]:
    try:
        line: list[str] = process.cmdline()
    except psutil.NoSuchProcess:
        return []
    return line


def _cpu(processes: Sequence[psutil.Process]) -> float:
    return sum(one.cpu_times().user + one.cpu_times().system for one in processes)


def report(what: str, usage: Usage) -> None:
    """Print processor and memory.

    :param usage: of the triggerer's processes
    """
    print(f"{what}: {usage.cpu * 100:.1f} % of a core, {usage.resident / 2**20:.0f} MiB resident")


if __name__ == "__main__":
    main()
