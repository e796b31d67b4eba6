"""Opening what Spark is to read, with Spark's refusals in our words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_T = TypeVar("_T")
_GONE = ("TABLE_OR_VIEW_NOT_FOUND", "PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST")


def open_rows(
    session: SparkSession,
    address: str,
    *,
    table: str | None,
    query: str | None,
    path: str | None,
    format: str,
    options: Mapping[str, str],
) -> DataFrame:
    """Open a table, a query or files; nothing is read but what Spark needs to know the columns.

    :param session: the session
    :param address: what it is, for errors
    :param table: a table's name, or None
    :param query: a query, or None
    :param path: a path, or None
    :param format: the path's format
    :param options: options of the reader
    :raises SourcePositionError: if it is not there
    :raises ConfigurationError: if Spark refuses it
    """

    def read() -> DataFrame:
        if query is not None:
            return session.sql(query)
        reader = session.read.options(**dict(options))
        return reader.table(table) if table is not None else reader.format(format).load(path)

    return asked_of_spark(read, address)


def asked_of_spark(ask: Callable[[], _T], address: str) -> _T:
    """Ask Spark about a source; its refusal becomes an error in one line.

    :param ask: the question
    :param address: the source, for errors
    :raises SourcePositionError: if it is not there
    :raises ConfigurationError: if Spark refuses it
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return ask()
    except (PySparkException, Py4JJavaError) as error:
        text = in_one_line(error)
    if any(gone in text for gone in _GONE):
        raise SourcePositionError(f"source {address!r} is not there: {text}. Nothing was read or sent")
    remedy = "; give the format's package with packages=…" if "DATA_SOURCE_NOT_FOUND" in text else ""
    raise ConfigurationError(f"Spark cannot read source {address!r}: {text}{remedy}")


def in_one_line(error: Any) -> str:
    """What Spark says, without the Java stack.

    :param error: its exception
    """
    java = getattr(error, "java_exception", None)
    text = str(error) if java is None else str(java.toString())
    return " ".join(text.partition("JVM stacktrace")[0].partition("\n\tat ")[0].split())[:600]
