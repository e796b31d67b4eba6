"""The application that writes files for COPY: ``spark-submit job.py PLAN.json``.

It needs no credentials of Snowflake: it reads, writes a folder, and leaves a report of the files there. Exit
code 0 means that every file is whole; 1 that something is wrong, said in one line on standard error; 2 that
the command line is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from airflow_provider_snowpipe.spark.bulk.combine_lines import combine, header_of
from airflow_provider_snowpipe.spark.bulk.line_cut import LineFile, LineSlice, cut_lines, sampled_ratio
from airflow_provider_snowpipe.spark.bulk.row_columns import columns_for_copy
from airflow_provider_snowpipe.spark.bulk.sized_write import write_sized
from airflow_provider_snowpipe.spark.bulk.write_plan import (
    LinesToCombine,
    RowsToWrite,
    WritePlan,
    WriteReport,
    WrittenFile,
)
from airflow_provider_snowpipe.spark.connect import is_connect
from airflow_provider_snowpipe.spark.driver import elapsed
from airflow_provider_snowpipe.spark.failures import error_of_task, error_type_of
from airflow_provider_snowpipe.spark.files.groups import SourceFile
from airflow_provider_snowpipe.spark.files.stored_bytes import compression_of
from airflow_provider_snowpipe.spark.jvm import check_versions
from airflow_provider_snowpipe.spark.submitted import JobSession, clear_report, complain, leave
from airflow_provider_snowpipe.spark.tables.reading import asked_of_spark, in_one_line, open_rows
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError

_LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_LISTING_TASKS = "64"
"""Spark would look at each of ten thousand files by a task of its own."""


def main(argv: Sequence[str]) -> int:
    """Run the job.

    :param argv: the path of the plan, and nothing else
    :return: the exit code
    """
    if len(argv) != 1:
        print("usage: spark-submit job.py PLAN.json", file=sys.stderr)
        return 2
    try:
        plan = WritePlan.read(argv[0])
        clear_report(plan)
    except SnowpipeError as error:
        return complain(error)
    began = time.monotonic()
    with JobSession(plan) as session:
        try:
            check_versions()
            report = write(plan, session.start())
        except SnowpipeError as error:
            failed = WriteReport(
                plan.application,
                plan.folder,
                plan.attempt,
                seconds=elapsed(began),
                error=str(error),
                error_type=error_type_of(error),
            )
            leave(plan, Path(plan.report_path).name, failed.to_json())
            return complain(error)
    leave(plan, Path(plan.report_path).name, report.to_json())
    print(
        f"snowpipe wrote files={len(report.files)} rows={report.rows} bytes={report.bytes} "
        f"seconds={report.seconds:g}",
        flush=True,
    )
    return 0


def write(plan: WritePlan, session: Any) -> WriteReport:
    """Write what a plan says.

    :param plan: the plan
    :param session: the Spark session
    :raises SnowpipeError: if it cannot be read or written
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    if is_connect(session):
        raise ConfigurationError(
            "Spark Connect shows neither the sizes of files nor their plan: submit this job to the cluster "
            "with spark-submit"
        )
    began = time.monotonic()
    try:
        report = _rows(plan, plan.rows, session) if plan.rows is not None else _lines(plan, session)
    except (PySparkException, Py4JJavaError) as error:
        raise error_of_task(str(error)) or SnowpipeError(
            f"Spark could not write {plan.address}: {in_one_line(error)}. Nothing was staged"
        ) from None
    files, columns, parsed = report
    return WriteReport(
        plan.application, plan.folder, plan.attempt, tuple(files), columns, parsed, elapsed(began)
    )


_Done = tuple[list[WrittenFile], tuple[str, ...], tuple[str, ...]]


def _rows(plan: WritePlan, source: RowsToWrite, session: Any) -> _Done:
    if source.paths:
        session.conf.set(_LISTING, _LISTING_TASKS)
        reader = session.read.format(source.format).options(**dict(source.options))
        rows = asked_of_spark(lambda: reader.load(list(source.paths)), source.address)
    else:
        rows = open_rows(
            session,
            source.address,
            table=source.table,
            query=source.query,
            path=source.path,
            format=source.format,
            options=source.options,
        )
    columns: tuple[str, ...] = ()
    parsed: tuple[str, ...] = ()
    if plan.columns:
        rows, columns, parsed = columns_for_copy(rows, plan.columns)
    return write_sized(rows, plan.folder, plan.form, plan.target_file_bytes), columns, parsed


def _lines(plan: WritePlan, session: Any) -> _Done:
    """Let each task make one new file."""
    lines = plan.lines or LinesToCombine((), "")
    files = [one for path in lines.paths if (one := _line_file(path, splits=lines.splits)).size]
    if not files:
        return [], (), ()
    cuts = cut_lines(files, plan.target_file_bytes, sampled_ratio(files))
    header = header_of(files[0]) if lines.header else None
    folder = Path(unquote(urlsplit(plan.folder).path))
    folder.mkdir(parents=True)
    work = [(f"{number:05}{lines.ending}.gz", slices) for number, slices in enumerate(cuts)]
    task = partial(_combined, str(folder), header)
    written = session.sparkContext.parallelize(work, len(work)).map(task).collect()
    return [one for one in written if one.rows], (), ()


def _combined(folder: str, header: bytes | None, work: tuple[str, tuple[LineSlice, ...]]) -> WrittenFile:
    name, slices = work
    return combine(slices, Path(folder, name), header)


def _line_file(path: str, *, splits: bool) -> LineFile:
    size = Path(path).stat().st_size
    compression = compression_of(SourceFile(Path(path).name, path, size), "auto")
    return LineFile(path, size, compression, splits and compression == "none")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
