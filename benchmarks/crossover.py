"""The same files of growing size through a channel and through COPY, against the router's choice.

Both begin with one Parquet file on this disk and nothing signed in. The stream opens a channel, sends the
rows as JSON and waits for the commit; COPY puts the file to a stage and runs COPY INTO. Rows are counted
after each. The router gets figures of this machine: what a GB takes, and what a COPY takes beside its rows,
both from the smallest and the largest size alone. Outside a band of 20 % its choice has to be the path that
was faster.

    python benchmarks/crossover.py --svg docs/reference/crossover.svg
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyarrow.parquet as pq
import snowflake.connector

from airflow_provider_snowpipe.bulk.copy import CopyInto, CopyOptions, RunIdentity
from airflow_provider_snowpipe.bulk.copy_run import CopyRun
from airflow_provider_snowpipe.bulk.ledger import Ledger
from airflow_provider_snowpipe.bulk.staged_files import StagedFile, StageReference
from airflow_provider_snowpipe.bulk.statement_client import StatementClient
from airflow_provider_snowpipe.routing.cost_model import GB, CostModel, LoadPolicy
from airflow_provider_snowpipe.routing.load_plan import LoadPath
from airflow_provider_snowpipe.routing.planner import plan_load
from airflow_provider_snowpipe.routing.probes import DataShape, FileSet
from airflow_provider_snowpipe.spark.sources.files.reader import FileSource
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource as FileSourceSpec
from airflow_provider_snowpipe.spark.task.sink import PartitionWork, SinkSettings, load_partition
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.errors import SqlError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.ndjson import encode_ndjson
from benchmarks.crossover_plot import plot
from benchmarks.measuring import Target, report
from benchmarks.rows import SCHEMA, batches
from tests.local_service import LocalService

BAND = 0.2
_HOUR = 3600.0
_NOTHING = 1e-9
"""A figure of the cost model is above 0."""
_COLUMNS = (
    "ID NUMBER, QUANTITY NUMBER, HOST VARCHAR, PATH VARCHAR, AGENT VARCHAR, NOTE VARCHAR, "
    "AMOUNT NUMBER(18, 4), SEEN_AT TIMESTAMP_TZ, IS_OPEN BOOLEAN, SCORE FLOAT, PLACE VARIANT, TAGS VARIANT"
)
_TABLE = "CROSSOVER"


@dataclass(frozen=True)
class Measured:
    """One size by both paths.

    :param rows: rows of the file
    :param bytes: bytes of the rows as JSON
    :param stored: bytes of the file
    :param stream: seconds through a channel until the rows are committed, the median
    :param copy: seconds by PUT and COPY INTO, the median
    """

    rows: int
    bytes: int
    stored: int
    stream: float
    copy: float

    @property
    def faster(self) -> LoadPath | None:
        """The faster path, None within the band."""
        if abs(self.stream - self.copy) <= BAND * min(self.stream, self.copy):
            return None
        return LoadPath.STREAM if self.stream < self.copy else LoadPath.COPY


@dataclass
class Paths:
    """Both paths into a table of the local service.

    :param service: the service
    :param folder: for the files
    """

    service: LocalService
    folder: Path

    def __post_init__(self) -> None:
        self._count = count()
        self.service.sql("CREATE STAGE LOCAL.PUBLIC.CROSSOVER_FILES")
        self._key = KeyPair(self.service.account, self.service.user, self.service.key_file.read_bytes())

    def write(self, rows: int) -> tuple[Path, int]:
        """Write a file; returns it, and the bytes of its rows as JSON."""
        file, size = self.folder / str(rows) / "g" / "rows.parquet", 0
        file.parent.mkdir(parents=True)
        with pq.ParquetWriter(file, SCHEMA, compression="zstd") as parquet:
            for batch in batches(rows):
                parquet.write_batch(batch)
                size += len(encode_ndjson(batch))
        return file, size

    def seconds(self, load: Callable[[Path], None], file: Path, rows: int) -> float:
        """Load a file into an empty table and count its rows afterwards."""
        self.service.sql(f"CREATE OR REPLACE TABLE LOCAL.PUBLIC.{_TABLE} ({_COLUMNS})")
        began = time.perf_counter()
        load(file)
        took = time.perf_counter() - began
        sql = f"SELECT COUNT(*) AS N, COUNT(DISTINCT ID) AS D FROM LOCAL.PUBLIC.{_TABLE}"  # noqa: S608
        found = [int(value) for value in self.service.sql(sql)[0].values()]
        if found != [rows, rows]:
            raise SystemExit(f"{found} rows (all, distinct) are in the table, not {rows}: no result")
        return took

    def stream(self, file: Path) -> None:
        """A task of the file source, from signing in to the commit."""
        (partition,) = FileSource(
            FileSourceSpec(str(file.parent.parent), format="parquet"), "fail"
        ).partitions()
        with self.service.client(_TABLE) as client:
            client.pipe_info()
            token, pipe = client.scoped_token(), client.pipe
        unpaced = BatchLimits(bytes_per_second=None)
        settings = SinkSettings(self.service.url, str(self.service.ca_file), pipe, True, 600.0, unpaced)
        work = PartitionWork(f"crossover{next(self._count)}", partition, None, partition.resume(None))
        result = load_partition(settings, token, work)
        if result.error_type or not result.complete:
            raise SystemExit(f"{result.error_type}: {result.error}: no result")

    def copy(self, file: Path) -> None:
        """PUT and COPY INTO, from signing in to the answer."""
        run = f"run{next(self._count)}"
        with snowflake.connector.connect(**self.service.connector_arguments) as connection:
            connection.cursor().execute(f"PUT 'file://{file}' @CROSSOVER_FILES/{run} AUTO_COMPRESS = FALSE")
        stage = StageReference.parse("@CROSSOVER_FILES", "LOCAL", "PUBLIC")
        options = CopyOptions(file_format={"TYPE": "PARQUET"}, match_by_column_name="CASE_SENSITIVE")
        statement = CopyInto(("LOCAL", "PUBLIC", _TABLE), str(stage), options)
        client = StatementClient(self.service.url, self._key, ca_bundle=str(self.service.ca_file))
        with snowflake.connector.connect(**self.service.connector_arguments) as connection, closing(client):
            ledger = Ledger.of(partial(_rows, connection), None, statement.table)
            identity = RunIdentity((run,), dt.datetime.now(dt.UTC))
            copy = CopyRun(statement, stage, client, ledger, lambda _: (), identity, run, run)
            path = f"{run}/{file.name}"
            staged = {path: StagedFile(path)}
            done = copy.load(copy.plan(staged, copy.entries()), staged)
            copy.judged(done).require("fail", _TABLE)


def _rows(connection: Any, statement: str, values: Any = None) -> list[dict[str, Any]]:
    cursor = connection.cursor()
    try:
        cursor.execute(statement, values)
    except snowflake.connector.ProgrammingError as error:
        raise SqlError(str(error), errno=error.errno) from error
    names = [column[0].lower() for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def policy_of(smallest: Measured, largest: Measured) -> LoadPolicy:
    """A policy with this machine's figures, in which a credit is an hour of it.

    :param smallest: measures what each path takes beside its rows
    :param largest: measures what the rows take
    """
    spread = (largest.bytes - smallest.bytes) / GB
    stream = (largest.stream - smallest.stream) / spread
    copy = (largest.copy - smallest.copy) / spread
    if min(stream, copy) <= 0:
        raise SystemExit(
            f"{largest} took no longer than {smallest}: the machine was too busy or the sizes are too close "
            "for a result"
        )
    figures = {
        "stream_credits_per_gb": stream / _HOUR,
        "copy_parquet_gb_per_credit": _HOUR / copy,
        "copy_statement_seconds": max(smallest.copy - smallest.stream, _NOTHING),
        "copy_file_seconds": _NOTHING,
        "warehouse_threads": 1,
    }
    return LoadPolicy(warehouse_is_running=True, costs=CostModel.with_figures(figures))


def choice(one: Measured, policy: LoadPolicy) -> LoadPath:
    """The path that the router takes for a file of that size."""
    files = FileSet(1, one.stored, format="PARQUET")
    return plan_load(DataShape(bytes=one.bytes, files=files), policy).path


def measure(sizes: list[int], rounds: int, folder: Path) -> list[Measured]:
    """Load every size by both paths in turns, after a round that warms up."""
    service = LocalService(folder / "service", limits="off")
    service.start()
    os.environ["REQUESTS_CA_BUNDLE"] = os.environ["SSL_CERT_FILE"] = str(service.ca_file)
    found = []
    try:
        paths = Paths(service, folder)
        for rows in sizes:
            file, size = paths.write(rows)
            times: dict[str, list[float]] = {"stream": [], "copy": []}
            for number in range(rounds + 1):
                for name, load in (("stream", paths.stream), ("copy", paths.copy)):
                    took = paths.seconds(load, file, rows)
                    if number:
                        times[name].append(took)
            stream, copy = (statistics.median(some) for some in times.values())
            found.append(Measured(rows, size, file.stat().st_size, stream, copy))
            file.unlink()
    finally:
        service.stop()
    return found


def main() -> int:
    """Measure, print, draw; 1 where the router disagrees with what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    sizes = [100, 1_000, 10_000, 30_000, 100_000, 300_000, 1_000_000]
    parser.add_argument("--rows", type=int, nargs="+", default=sizes, help="at least two sizes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--svg", type=Path, help="where to draw the plot")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="snowpipe-bench-") as scratch:
        found = measure(sorted(options.rows), options.rounds, Path(scratch))
    policy = policy_of(found[0], found[-1])
    disagreed = 0
    print(f"{'rows':>9} {'MB':>8} {'stream s':>9} {'copy s':>9} faster   router")
    chosen = [choice(one, policy) for one in found]
    for one, path in zip(found, chosen, strict=True):
        verdict = "" if one.faster in (None, path) else "  DISAGREES"
        disagreed += bool(verdict)
        print(
            f"{one.rows:>9} {one.bytes / 1e6:>8.1f} {one.stream:>9.2f} {one.copy:>9.2f} "
            f"{one.faster or 'equal':<8} {path}{verdict}"
        )
    if options.svg:
        options.svg.write_text(plot([(one.rows, one.stream, one.copy) for one in found], chosen))
    what, detail = "sizes where the router chooses the slower path", f"of {len(found)} sizes"
    target = Target(what, disagreed, 0, detail, at_most=True)
    return report([target], rounds=options.rounds, sizes=[vars(one) for one in found])


if __name__ == "__main__":
    sys.exit(main())
