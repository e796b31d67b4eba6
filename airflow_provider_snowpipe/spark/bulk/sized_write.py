"""Rows written as files of about one size, without an estimate and without a row on the driver.

The rows are computed once and written as they come, one file for each task. What these files weigh is then
known, and where they are too many or too large Spark reads them back in packs of the right weight: it packs
and splits files by their bytes when it plans a scan, so that each task of the second pass makes one file.
That takes no shuffle, and no memory but a row group's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.bulk.compaction import block_bytes, is_well_cut, packed_bytes
from airflow_provider_snowpipe.spark.bulk.write_plan import Form, WrittenFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SESSION: Mapping[str, str] = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
"""Timestamps with their microseconds and their logical type, days before 1582 as they are."""
_PACKS = ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")
_PACKS_AT_LEAST = "spark.sql.files.minPartitionNum"
_BLOCKS = {"parquet": "parquet.block.size", "orc": "orc.stripe.size"}


def write_sized(rows: DataFrame, folder: str, form: Form, target: int) -> list[WrittenFile]:
    """Write rows into a new folder, in files of about a size; no row makes no file.

    :param rows: the rows, which are computed once
    :param folder: URL of the folder
    :param form: the files' format
    :param target: bytes of a file
    :return: the files, by their paths below the folder
    """
    session = rows.sparkSession
    for name, value in _SESSION.items():
        session.conf.set(name, value)
    _write(rows, f"{folder}/written", form, target)
    sizes = _sizes(session, f"{folder}/written")
    below = "written"
    if not is_well_cut(list(sizes.values()), target):
        total = sum(sizes.values())
        with _packed(session, packed_bytes(total, target)):
            _write(session.read.format(form).load(f"{folder}/written"), f"{folder}/cut", form, target)
        _remove(session, f"{folder}/written")
        below, sizes = "cut", _sizes(session, f"{folder}/cut")
    counts = _rows(session, f"{folder}/{below}", form) if sizes else {}
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


@contextmanager
def _packed(session: Any, full: int) -> Iterator[None]:
    """Let each task of a scan read as many bytes of files as make one file."""
    before = {name: session.conf.get(name, None) for name in (*_PACKS, _PACKS_AT_LEAST)}
    session.conf.set(_PACKS[0], str(full))
    session.conf.set(_PACKS[1], "0")
    session.conf.set(_PACKS_AT_LEAST, "1")
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, value)


def _rows(session: Any, folder: str, form: Form) -> dict[str, int]:
    """Rows of each file, of which the formats that have a footer read nothing else."""
    counted = session.read.format(form).load(folder).groupBy("_metadata.file_name").count()
    return {str(name): int(count) for name, count in counted.collect()}


def _sizes(session: Any, folder: str) -> dict[str, int]:
    """Bytes of each file of a folder, by name, whatever file system it is in."""
    path, files = _hadoop(session, folder)
    return {
        str(one.getPath().getName()): int(one.getLen())
        for one in files.listStatus(path)
        if one.isFile() and not str(one.getPath().getName()).startswith(("_", "."))
    }


def _remove(session: Any, folder: str) -> None:
    path, files = _hadoop(session, folder)
    files.delete(path, True)


def _hadoop(session: Any, folder: str) -> tuple[Any, Any]:
    path = session._jvm.org.apache.hadoop.fs.Path(folder)
    return path, path.getFileSystem(session._jsc.hadoopConfiguration())
