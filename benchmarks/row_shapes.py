"""Bytes of JSON a second for rows of several shapes, by each path that writes them, to find cliffs.

The usual rows have twelve columns and some 365 bytes, tiny ones two columns, wide ones 500, long ones a text
of a megabyte. ``to_json`` and ``arro3`` only write: in Spark's JVM, as the table source does, and in the
Python worker, as ``df.write`` and the file formats of columns do. The others load into the counting receiver,
and their rows are counted. Only the ratios mean something.

    python benchmarks/row_shapes.py --megabytes 100 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measuring import Stopwatch, interleaved
from benchmarks.receiver_process import Receiver
from benchmarks.rows import SHAPES
from benchmarks.spark_loads import Loads, local_spark, source_file, write_sources

PATHS = ("ndjson files", "parquet files", "df.write", "table source", "to_json", "arro3")


def works_of(loads: Loads) -> dict[str, Callable[[], object]]:
    """What is measured, by the names of :data:`PATHS`."""
    return dict(
        zip(
            PATHS,
            (
                partial(loads.job_of_files, "ndjson"),
                partial(loads.job_of_files, "parquet"),
                loads.frame,
                loads.job_of_table,
                loads.written_by_jvm,
                loads.written_by_worker,
            ),
            strict=True,
        )
    )


def measure(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """MB of JSON per second and per processor second, by shape and path."""
    receiver = Receiver(folder / "receiver")
    os.environ["SSL_CERT_FILE"] = str(receiver.ca_file)
    found: dict[str, dict[str, dict[str, float]]] = {}
    spark = local_spark(folder / "java")
    try:
        for name in options.shapes:
            shape, target = SHAPES[name], folder / name
            rows = max(int(options.megabytes * 1e6 / shape.row_bytes), 2)
            write_sources(target, shape.make(rows), shape.schema)
            megabytes = source_file(target, "ndjson").stat().st_size / 1e6
            found[name] = {}
            watch, loads = Stopwatch(frozenset({receiver.pid})), Loads(spark, receiver, target)
            for path, work in works_of(loads).items():
                sends = path not in ("to_json", "arro3")
                settle = partial(receiver.require, rows) if sends else receiver.forget
                costs = interleaved(options.rounds, watch, {path: work}, settle=settle)
                cost = costs[path]
                found[name][path] = {"wall": megabytes / cost.wall, "cpu": megabytes / cost.cpu}
    finally:
        spark.stop()
        receiver.stop()
    return found


def main() -> int:
    """Measure, and print MB of JSON per processor second and per second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100.0, help="of JSON, for each shape")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=list(SHAPES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="snowpipe-bench-") as scratch:
        found = measure(options, Path(scratch))
    for unit, words in (("cpu", "MB per processor second"), ("wall", "MB per second")):
        print(f"{words:<24}" + "".join(f"{path:>15}" for path in PATHS))
        for name, paths in found.items():
            print(f"{name:<24}" + "".join(f"{paths[path][unit]:>15.0f}" for path in PATHS))
    print(json.dumps({"rounds": options.rounds, "load": os.getloadavg()[0], "shapes": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
