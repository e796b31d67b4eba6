"""Rows from Spark to channels: our paths against the official SDK, raw sockets and compression, in one run.

Both sides send the same rows to the same counting receiver, in turns, and every row is counted after each
turn. Medians are compared. Only the ratios mean something: receiver, Spark and clients share one machine.

    python benchmarks/spark_to_channel.py --rows 600000 --rounds 5
    python benchmarks/spark_to_channel.py --quick
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measuring import Cost, Stopwatch, Target, interleaved, report
from benchmarks.receiver_process import Receiver
from benchmarks.rows import SCHEMA, batches
from benchmarks.sender_rates import FileSenders, ReadyRows, Senders
from benchmarks.spark_loads import FILE_KINDS, Loads, local_spark, write_sources

_QUICK_ROWS, _QUICK_ROUNDS = 30_000, 1
_ANSWER_SECONDS = 0.05
_COMMIT_SECONDS = 0.05
"""The local service commits about as long after an append."""
_COPIES = 5
_JVM_WARM_UP = 4
"""Rounds until Spark's JVM has compiled what it runs for each row; before, that is a third of its time."""
_METADATA = {"SRC_FILE": "filename", "SRC_ROW": "file_row_number"}
_OF_SDK = {"ndjson": 9.0, "parquet": 12.0, "csv": 5.0, "avro": 5.0}
"""How many times our processor time the SDK takes, at least."""
_PARTS = ("files", "frames", "sender", "wire", "distance", "exactly-once")


@dataclass
class Benchmark:
    """One run.

    :param receiver: where all rows go
    :param rows: rows of each round
    :param rounds: rounds that count
    :param folder: for files
    """

    receiver: Receiver
    rows: int
    rounds: int
    folder: Path

    def __post_init__(self) -> None:
        self._watch = Stopwatch(frozenset({self.receiver.pid}))

    def compare(
        self,
        works: Mapping[str, Callable[[], object]],
        *,
        prepare: Callable[[], object] = lambda: None,
        settle: Callable[[], object] | None = None,
        warm_up: int = 1,
    ) -> dict[str, Cost]:
        """Medians of works whose rows are counted after each."""
        check = partial(self.receiver.require, self.rows)
        return interleaved(
            self.rounds, self._watch, works, prepare=prepare, settle=settle or check, warm_up=warm_up
        )

    def in_spark(self, loads: Loads, chosen_ways: list[str]) -> list[Target]:
        """Files and DataFrames, one task at a time."""
        found: list[Target] = []
        if "files" in chosen_ways:
            for kind in FILE_KINDS:
                works = {"ours": partial(loads.job_of_files, kind), "SDK": partial(loads.sdk_of_files, kind)}
                if kind == "ndjson":
                    works["columns"] = partial(loads.job_of_files, kind, metadata=_METADATA)
                costs = self.compare(works)
                found += self._against(f"{kind} files", costs, "ours", cpu=_OF_SDK[kind])
                if kind == "ndjson":
                    what = "file and row as columns / without, CPU"
                    found.append(self._ratio(what, costs, "columns", "ours", 1.3, at_most=True, cpu=True))
        if "frames" in chosen_ways:
            works = {"frame": loads.frame, "table": loads.job_of_table, "SDK": loads.sdk_of_frame}
            costs = self.compare(works, warm_up=_JVM_WARM_UP)
            found += self._against("DataFrame, df.write", costs, "frame", cpu=5.0)
            found += self._against("DataFrame, table source with its sort", costs, "table")
        return found

    def of_sender(self, senders: Senders, chosen_ways: list[str]) -> list[Target]:
        """The sender in this process."""
        compare = partial(self.compare, prepare=senders.prepare)
        found: list[Target] = []
        if "sender" in chosen_ways:
            costs = compare({"ours": senders.lines, "SDK": senders.official})
            found += self._against("sender alone", costs, "ours", cpu=12.0)
        if "wire" in chosen_ways:
            costs = compare({"ours": senders.ready_bodies, "raw": senders.raw_socket})
            found.append(self._ratio("ready bodies / raw TLS socket, wall", costs, "raw", "ours", 0.9))
            works = {"ours": senders.compressed_and_sent, "alone": senders.compressed}
            costs = compare(works, settle=self.receiver.forget)
            found.append(self._ratio("compress and send / compress, wall", costs, "alone", "ours", 0.97))
        if "distance" in chosen_ways:
            self.receiver.delays(append=_ANSWER_SECONDS)
            costs = compare({"ours": senders.compressed_and_sent, "serial": senders.serial})
            self.receiver.delays()
            found.append(
                self._ratio("50 ms an answer / 1 MB bodies in series, wall", costs, "serial", "ours", 14.0)
            )
        return found

    def of_exactly_once(self) -> list[Target]:
        """A group of files exactly once against fire-and-forget."""
        senders = FileSenders(self.receiver, self.folder / "ndjson", _COPIES)
        self.receiver.delays(commit=_COMMIT_SECONDS)
        works = {"once": senders.exactly_once, "forgotten": senders.forgotten}
        costs = self.compare(works, settle=self._require_copies)
        self.receiver.delays()
        return [
            self._ratio(
                "exactly once / fire-and-forget, wall", costs, "once", "forgotten", 1.05, at_most=True
            ),
            self._ratio(
                "exactly once / fire-and-forget, CPU",
                costs,
                "once",
                "forgotten",
                1.05,
                at_most=True,
                cpu=True,
            ),
        ]

    def _require_copies(self) -> None:
        found = self.receiver.count()
        if (found.rows, found.distinct) != (_COPIES * self.rows, self.rows):
            raise SystemExit(f"{_COPIES} times {self.rows} rows were sent, {found} arrived: no result")

    def _against(
        self,
        what: str,
        costs: dict[str, Cost],
        ours: str,
        *,
        cpu: float | None = None,
        wall: float | None = None,
    ) -> list[Target]:
        """Two lines, the SDK's cost over ours."""
        return [
            self._ratio(f"{what}: SDK / ours, CPU", costs, "SDK", ours, cpu, cpu=True),
            self._ratio(f"{what}: SDK / ours, wall", costs, "SDK", ours, wall),
        ]

    def _ratio(
        self,
        what: str,
        costs: dict[str, Cost],
        over: str,
        under: str,
        chosen_ways: float | None,
        *,
        cpu: bool = False,
        at_most: bool = False,
    ) -> Target:
        one, other = (costs[name].cpu if cpu else costs[name].wall for name in (over, under))
        unit = "CPU-s" if cpu else "s"
        detail = f"{over} {one:.2f} {unit}, {under} {other:.2f} {unit}"
        return Target(what, one / other, chosen_ways, detail, at_most)


def run(options: argparse.Namespace, folder: Path) -> list[Target]:
    """Measure what is chosen."""
    receiver = Receiver(folder / "receiver")
    os.environ["SSL_CERT_FILE"] = str(receiver.ca_file)
    bench = Benchmark(receiver, options.rows, options.rounds, folder)
    found: list[Target] = []
    try:
        if {"files", "frames", "exactly-once"} & set(options.only):
            sizes = write_sources(folder, batches(options.rows), SCHEMA, kinds=FILE_KINDS)
            print(f"{options.rows} rows, bytes of the sources: {sizes}", file=sys.stderr)
        if {"files", "frames"} & set(options.only):
            spark = local_spark(folder / "java")
            try:
                found += bench.in_spark(Loads(spark, receiver, folder), options.only)
            finally:
                spark.stop()
        if {"sender", "wire", "distance"} & set(options.only):
            senders = Senders(receiver, ReadyRows.make(options.rows))
            found += bench.of_sender(senders, options.only)
            senders.close()
        if "exactly-once" in options.only:
            found += bench.of_exactly_once()
    finally:
        receiver.stop()
    return found


def main() -> int:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few rows and one round: does it run at all?")
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=list(_PARTS))
    options = parser.parse_args()
    if options.quick:
        options.rows, options.rounds = _QUICK_ROWS, _QUICK_ROUNDS
    with tempfile.TemporaryDirectory(prefix="snowpipe-bench-") as scratch:
        found = run(options, Path(scratch))
    return report(found, rows=options.rows, rounds=options.rounds)


if __name__ == "__main__":
    sys.exit(main())
