"""The application that writes files for COPY: ``spark-submit job.py PLAN.json``.

It needs no credentials of Snowflake: it reads, writes a folder, and leaves a report of the files there. Exit
code 0 means that every file is whole; 1 an error, reported in one line on standard error; 2 that
the command line is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow_provider_snowpipe.bulk.run_files import WrittenFile, block_bytes, is_well_cut, packed_bytes
from airflow_provider_snowpipe.spark.driver.combine_lines import (
    LineFile,
    LineSlice,
    combine,
    cut_lines,
    header_of,
    sampled_ratio,
)
from airflow_provider_snowpipe.spark.driver.outcome import error_of_task, error_type_of
from airflow_provider_snowpipe.spark.driver.plan import (
    Form,
    LinesToCombine,
    RowsToWrite,
    WritePlan,
    WriteReport,
)
from airflow_provider_snowpipe.spark.driver.run import elapsed
from airflow_provider_snowpipe.spark.driver.session import (
    JobSession,
    check_versions,
    clear_report,
    report_error,
    write_beside_report,
)
from airflow_provider_snowpipe.spark.source import is_connect
from airflow_provider_snowpipe.spark.sources.files.formats import compression_of
from airflow_provider_snowpipe.spark.sources.files.spec import SourceFile
from airflow_provider_snowpipe.spark.sources.tables.plan_order import changed_settings
from airflow_provider_snowpipe.spark.sources.tables.reader import asked_of_spark, in_one_line, open_rows
from airflow_provider_snowpipe.spark.sources.tables.rows import check_row_types, column_of, value_text
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError
from airflow_provider_snowpipe.streaming.names import first_few
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# -- The columns of rows in the form in which COPY reads every value of them back from Parquet -----------
#
# Plain types stay: Parquet has them with their precision. What is nested becomes JSON as text, written by
# the same code as for a channel, since Snowflake reads Parquet's lists and maps in one form or another by
# the scanner it takes (page "CREATE FILE FORMAT", USE_VECTORIZED_SCANNER), and Parquet has no VARIANT of
# Spark's.

_NESTED = frozenset({"struct", "array", "map", "variant"})
_SEMI_STRUCTURED = frozenset({"VARIANT", "OBJECT", "ARRAY", "MAP"})


def _columns_for_copy(
    rows: DataFrame, table: Sequence[TableColumn]
) -> tuple[DataFrame, tuple[str, ...], tuple[str, ...]]:
    """Give the rows the table's names, and every value a form that COPY reads back.

    :returns: the rows, their columns, and those of them that COPY has to parse as JSON
    """
    check_row_types(rows.schema)
    names = _names(rows.columns, table)
    kinds = {column.name: column.column_type.kind for column in table}
    selected, parsed = [], []
    for field in rows.schema.fields:
        name, kind = names[field.name], field.dataType.typeName()
        column = column_of(field.name)
        if kind in _NESTED:
            column = value_text(field.name, column, field.dataType, NdjsonOptions())
            if kinds[name] in _SEMI_STRUCTURED:
                parsed.append(name)
        elif kind == "void":
            column = column.cast("string")
        selected.append(column.alias(name))
    return rows.select(*selected), tuple(names[field.name] for field in rows.schema.fields), tuple(parsed)


def _names(columns: Sequence[str], table: Sequence[TableColumn]) -> dict[str, str]:
    """The table's name of each column: the same letters, or the same but for their case."""
    exact = {column.name for column in table}
    folded = {column.name.upper(): column.name for column in table}
    found = {name: name if name in exact else folded.get(name.upper()) for name in columns}
    missing = [name for name, known in found.items() if known is None]
    if missing:
        shown = first_few([repr(one) for one in missing])
        raise ConfigurationError(
            f"the table lacks {len(missing):,} of the {len(columns):,} columns that the rows have: {shown}. "
            "Nothing was written, since COPY would pass their values over: add them to the table, or select "
            "the others by a query"
        )
    return {name: known for name, known in found.items() if known is not None}


# -- Rows written as files of about one size, without an estimate and without a row on the driver --------
#
# The rows are computed once and written as they come, one file for each task. What these files weigh is
# then known, and where they are too many or too large Spark reads them back in packs of the right weight:
# it packs and splits files by their bytes when it plans a scan, so that each task of the second pass makes
# one file. That takes no shuffle, and no memory but a row group's.

_SESSION: Mapping[str, str] = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
"""Timestamps with their microseconds and their logical type, days before 1582 as they are."""
_PACKS = {"spark.sql.files.openCostInBytes": "0", "spark.sql.files.minPartitionNum": "1"}
_BLOCKS = {"parquet": "parquet.block.size", "orc": "orc.stripe.size"}


def _write_sized(rows: DataFrame, folder: str, form: Form, target: int) -> list[WrittenFile]:
    """Write rows into files of about a size in a new folder, and list them below it; no row makes no file."""
    session = rows.sparkSession
    for name, value in _SESSION.items():
        session.conf.set(name, value)
    _write(rows, f"{folder}/written", form, target)
    sizes = _sizes(session, f"{folder}/written")
    below = "written"
    if not is_well_cut(list(sizes.values()), target):
        # Each task of a scan then reads as many bytes of files as make one file.
        full = packed_bytes(sum(sizes.values()), target)
        with changed_settings(session, {**_PACKS, "spark.sql.files.maxPartitionBytes": str(full)}):
            _write(session.read.format(form).load(f"{folder}/written"), f"{folder}/cut", form, target)
        path, files = _hadoop(session, f"{folder}/written")
        files.delete(path, True)
        below, sizes = "cut", _sizes(session, f"{folder}/cut")
    counts: dict[str, int] = {}
    if sizes:  # formats that have a footer read nothing else of it
        counted = session.read.format(form).load(f"{folder}/{below}").groupBy("_metadata.file_name").count()
        counts = {str(name): int(count) for name, count in counted.collect()}
    return [
        WrittenFile(f"{below}/{name}", size, counts[name])
        for name, size in sorted(sizes.items())
        if counts.get(name)
    ]


def _write(rows: DataFrame, folder: str, form: Form, target: int) -> None:
    writer = rows.write.format(form).mode("errorifexists").option("compression", "snappy")
    if form in _BLOCKS:
        writer = writer.option(_BLOCKS[form], str(block_bytes(target)))
    writer.save(folder)


def _sizes(session: Any, folder: str) -> dict[str, int]:
    """Bytes of each file of a folder, by name, whatever file system it is in."""
    path, files = _hadoop(session, folder)
    return {
        str(one.getPath().getName()): int(one.getLen())
        for one in files.listStatus(path)
        if one.isFile() and not str(one.getPath().getName()).startswith(("_", "."))
    }


def _hadoop(session: Any, folder: str) -> tuple[Any, Any]:
    path = session._jvm.org.apache.hadoop.fs.Path(folder)
    return path, path.getFileSystem(session._jsc.hadoopConfiguration())


# -- The job ---------------------------------------------------------------------------------------------

_LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_LISTING_TASKS = "64"
"""Spark would list each of ten thousand files by a task of its own."""


def main(argv: Sequence[str]) -> int:
    """Run the job of a plan, which is given as a path."""
    if len(argv) != 1:
        print("usage: spark-submit job.py PLAN.json", file=sys.stderr)
        return 2
    try:
        plan = WritePlan.read(argv[0])
        clear_report(plan)
    except SnowpipeError as error:
        return report_error(error)
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
            write_beside_report(plan, Path(plan.report_path).name, failed.to_json())
            return report_error(error)
    write_beside_report(plan, Path(plan.report_path).name, report.to_json())
    print(
        f"snowpipe wrote files={len(report.files)} rows={report.rows} bytes={report.bytes} "
        f"seconds={report.seconds:g}",
        flush=True,
    )
    return 0


def write(plan: WritePlan, session: Any) -> WriteReport:
    """Write the files of a plan."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    if is_connect(session):
        raise ConfigurationError(
            "Spark Connect shows neither the sizes of files nor their plan: submit this job to the cluster "
            "with spark-submit"
        )
    began = time.monotonic()
    try:
        report = _job_rows(plan, plan.rows, session) if plan.rows is not None else _lines(plan, session)
    except (PySparkException, Py4JJavaError) as error:
        raise error_of_task(str(error)) or SnowpipeError(
            f"Spark could not write {plan.address}: {in_one_line(error)}. Nothing was staged"
        ) from None
    files, columns, parsed = report
    return WriteReport(
        plan.application, plan.folder, plan.attempt, tuple(files), columns, parsed, elapsed(began)
    )


_Done = tuple[list[WrittenFile], tuple[str, ...], tuple[str, ...]]


def _job_rows(plan: WritePlan, source: RowsToWrite, session: Any) -> _Done:
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
        rows, columns, parsed = _columns_for_copy(rows, plan.columns)
    return _write_sized(rows, plan.folder, plan.form, plan.target_file_bytes), columns, parsed


def _lines(plan: WritePlan, session: Any) -> _Done:
    """Let each task make one new file."""
    lines = plan.lines or LinesToCombine((), "")
    files = []
    for path in lines.paths:
        if size := Path(path).stat().st_size:
            compression = compression_of(SourceFile(Path(path).name, path, size), "auto")
            files.append(LineFile(path, size, compression, lines.splits and compression == "none"))
    if not files:
        return [], (), ()
    cuts = cut_lines(files, plan.target_file_bytes, sampled_ratio(files))
    header = header_of(files[0]) if lines.header else None
    folder = Path(unquote(urlsplit(plan.folder).path))
    folder.mkdir(parents=True)
    work = [(f"{number:05}{lines.ending}.gz", slices) for number, slices in enumerate(cuts)]

    def make(name: str, slices: tuple[LineSlice, ...]) -> WrittenFile:
        return combine(slices, folder / name, header)

    written = session.sparkContext.parallelize(work, len(work)).map(lambda one: make(*one)).collect()
    return [one for one in written if one.rows], (), ()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
