"""The table source: rows ordered by a unique, growing column, a channel for each partition of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import pyarrow as pa

from airflow_provider_snowpipe.spark.source import CHANNEL, FramePartition, FrameSource, FrameWork, OnDataLoss
from airflow_provider_snowpipe.spark.sources.tables.plan_order import (
    free_layout,
    pin_layout,
    refuse_changing_rows,
    refuse_unordered_rows,
)
from airflow_provider_snowpipe.spark.sources.tables.rows import (
    POSITION,
    ZONED,
    ZONELESS,
    RowColumns,
    check_row_types,
    column_of,
    is_written_by_jvm,
    keyed_parts,
    written,
)
from airflow_provider_snowpipe.spark.sources.tables.spec import TableSource as TableSourceSpec
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.checkpoint import Binding
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import counted
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset, LexicographicOffset, Offset

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType


# -- The column that orders a table's rows: what types it may have, and its values as offset tokens ------

_INTEGERS = frozenset({"byte", "short", "integer", "long"})
_PARTITION_TYPES = _INTEGERS | {"string", "char", "varchar", "boolean", "date"}
_FIRST_DAY, _LAST_DAY = "0000-01-01", "+10000-01-01"
"""From the one up to the other, times as texts have the order that they have as times."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column whose values order the rows, with the expression for their positions."""

    name: str
    kind: DataType
    offset_type: Literal["integer", "text"]

    @classmethod
    def of(cls, df: DataFrame, name: str, offset_type: Literal["integer", "text"]) -> KeyColumn:
        """Find the column."""
        field = field_of(df, name, "offset_column")
        kind = field.dataType
        required = _offset_type(kind)
        if required is None:
            raise ConfigurationError(
                f"source offset_column {name!r} has type {kind.simpleString()}: use a column of whole "
                "numbers, strings with the collation UTF8_BINARY, dates or timestamps; a query can make one"
            )
        if required != offset_type:
            raise ConfigurationError(
                f"source offset_column {name!r} has type {kind.simpleString()}, but offset_type is "
                f"{offset_type!r}: set offset_type={required!r}"
            )
        return cls(field.name, kind, offset_type)

    @property
    def column(self) -> Column:
        """The column itself."""
        return column_of(self.name)

    @property
    def position(self) -> Column:
        """Its values as positions: a long, or a text whose order by code points is that of the values."""
        from pyspark.sql import functions as sf

        if self.offset_type == "integer":
            return self.column.cast("long")
        form = {"timestamp": ZONED, "timestamp_ntz": ZONELESS}.get(self.kind.typeName())
        return self.column.cast("string") if form is None else sf.date_format(self.column, form)

    @property
    def is_no_position(self) -> Column:
        """True for NULL, and for times whose texts begin with a sign, so that they sort before all others."""
        missing = self.column.isNull()
        if not self.or_years:
            return missing
        return missing | (self.column < self.literal(_FIRST_DAY)) | (self.column >= self.literal(_LAST_DAY))

    @property
    def or_years(self) -> str:
        """What beside NULL is not a position, in words for people; empty for columns of another kind."""
        is_time = self.kind.typeName() in ("date", "timestamp", "timestamp_ntz")
        return ", or a year before 0 or after 9999," if is_time else ""

    def literal(self, position: int | str) -> Column:
        """A position as a value of the column, for conditions that scans can use."""
        from pyspark.sql import functions as sf

        return sf.lit(position).cast(self.kind)


def partition_column(df: DataFrame, name: str) -> Any:
    """Find the column whose values are partitions."""
    field = field_of(df, name, "partition_by")
    if field.dataType.typeName() not in _PARTITION_TYPES or not _is_binary(field.dataType):
        raise ConfigurationError(
            f"source partition_by {name!r} has type {field.dataType.simpleString()}: channels are named by "
            "whole numbers, strings, dates or booleans"
        )
    return field


def field_of(df: DataFrame, name: str, what: str) -> Any:
    """Find a column by name, as Spark does: whatever the case."""
    found = [field for field in df.schema.fields if field.name.upper() == name.upper()]
    if len(found) != 1:
        raise ConfigurationError(
            f"source {what} is {name!r}, but the rows have {counted(len(found), 'such column')}: use one of "
            f"{[field.name for field in df.schema.fields][:50]}"
        )
    return found[0]


def _offset_type(kind: Any) -> Literal["integer", "text"] | None:
    name = kind.typeName()
    if name in _INTEGERS or (name == "decimal" and kind.scale == 0):
        return "integer"
    if name in ("date", "timestamp", "timestamp_ntz"):
        return "text"
    return "text" if name in ("string", "char", "varchar") and _is_binary(kind) else None


def _is_binary(kind: Any) -> bool:
    """True unless strings compare by a collation other than their bytes."""
    return getattr(kind, "collation", "UTF8_BINARY") == "UTF8_BINARY"


# -- Opening what Spark is to read, with errors that name the source -------------------------------------

_T = TypeVar("_T")
_GONE = ("TABLE_OR_VIEW_NOT_FOUND", "PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST")


_OF_EVERY_FILE = {
    "parquet": {"mergeschema": "true"},
    "orc": {"mergeschema": "true"},
    "csv": {"enforceschema": "false"},
}
"""Options with which the columns are those of all files: by default one file has them for all others."""


def open_rows(
    session: SparkSession,
    address: str,
    *,
    table: str | None,
    path: str | None,
    format: str,
    query: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Open a table, a query or files; nothing is read but what Spark needs to know the columns."""

    def read() -> DataFrame:
        if query is not None:
            return session.sql(query)
        given = {name.lower() for name in options or {}}
        every = {
            name: one for name, one in _OF_EVERY_FILE.get(format.lower(), {}).items() if name not in given
        }
        reader = session.read.options(**every, **dict(options or {}))
        return reader.table(table) if table is not None else reader.format(format).load(path)

    return asked_of_spark(read, address)


def asked_of_spark(ask: Callable[[], _T], address: str) -> _T:
    """Ask Spark about a source; its refusal becomes an error in one line."""
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
    """Spark's error, without the Java stack."""
    java = getattr(error, "java_exception", None)
    text = str(error) if java is None else str(java.toString())
    return " ".join(text.partition("JVM stacktrace")[0].partition("\n\tat ")[0].split())[:600]


# -- The partitions of a frame source: one, one for each value of a column, or one for each range of the key -

ONLY = "all"
"""Name of the partition of a source that has only one."""


def partition_names(rows: DataFrame, column: str, address: str) -> tuple[str, ...]:
    """List the values of a column as names of partitions."""
    values = rows.select(column_of(column).cast("string")).distinct()
    found = [row[0] for row in asked_of_spark(values.collect, address)]
    if None in found or "" in found:
        empty = "NULL" if None in found else "an empty text"
        raise ConfigurationError(
            f"source {address!r} has rows with {empty} in {column!r}, which names their channel: give them a "
            "value, or leave them out in a query. Nothing was sent"
        )
    if not found:
        raise SourcePositionError(
            f"source {address!r} has no rows, so that {column!r} gives no partition: run again when it has"
        )
    return tuple(sorted(found))


def with_facts(
    rows: DataFrame, column: str | None, facts: dict[str, dict[str, Any]], schema: pa.Schema
) -> DataFrame:
    """Give each row of the required partitions what belongs to its partition; others are left out.

    The facts are sent to every task, so that no row moves.

    :param column: the column whose value is the partition, None where there is one partition
    :param facts: further columns by partition
    """
    from pyspark.sql import functions as sf

    if column is None:
        (only,) = facts.values()
        for field in schema:
            kind = "string" if pa.types.is_string(field.type) else str(field.type).replace("int64", "long")
            rows = rows.withColumn(field.name, sf.lit(only[field.name]).cast(kind.replace("int32", "int")))
        return rows

    session = rows.sparkSession
    name = "snowpipe_partition"
    columns = {name: pa.array(list(facts), pa.string())} | {
        field.name: pa.array([values[field.name] for values in facts.values()], field.type)
        for field in schema
    }
    small = session.createDataFrame(pa.table(columns))
    mine = rows.where(column_of(column).isin(list(facts))) if len(facts) <= _MOST_LISTED else rows
    same = column_of(column).cast("string") == sf.col(name)
    return mine.join(sf.broadcast(small), same).drop(name)


_MOST_LISTED = 200
"""So many values in a condition are quickly compared, and let a scan leave out directories."""


# -- The source ------------------------------------------------------------------------------------------

_AFTER, _END = "snowpipe_after", "snowpipe_end"


@dataclass(frozen=True, slots=True)
class OrderedPartition(FramePartition):
    """Rows that a column orders.

    :param ndjson: how tasks write the rows, None where Spark's JVM has
    :param extra: columns that are put into each row
    """

    name: str
    binding: Binding
    key: str
    ndjson: NdjsonOptions | None = None
    extra: RowColumns = field(default_factory=RowColumns)
    rows: int = 0
    end: Offset | None = None


class OrderedSource(FrameSource):
    """Rows that a column orders, with a partition for each value of another one, or one partition."""

    def __init__(self, spec: Any, on_data_loss: OnDataLoss) -> None:
        self._spec = spec
        self._on_data_loss = on_data_loss
        self._rows: DataFrame
        self._key: KeyColumn
        self._by: str | None = None

    def _open(self, session: SparkSession, key: str, **how: Any) -> DataFrame:
        """Open the rows, and find the columns that order and divide them."""
        pin_layout(session)
        spec = self._spec
        self._rows = open_rows(session, spec.address, table=spec.table, path=spec.path, **how)
        check_row_types(self._rows.schema)
        self._key = KeyColumn.of(self._rows, key, spec.offset_type)
        if spec.partition_by is not None:
            self._by = partition_column(self._rows, spec.partition_by).name
        return self._rows

    def _names(self) -> tuple[str, ...]:
        if self._by is None:
            return (ONLY,)
        with free_layout(self._rows.sparkSession):
            return partition_names(self._rows, self._by, self._spec.address)

    def _where(self, name: str) -> str:
        return "" if self._by is None else f", {self._by} = {name!r}"

    def _written(self) -> tuple[str, NdjsonOptions | None, RowColumns]:
        """What all partitions have in common."""
        ndjson = None if is_written_by_jvm(self._rows.schema) else self._spec.row_options
        return self._key.name, ndjson, RowColumns(self._spec.metadata or {}, self.run)

    def _asked(self, question: Callable[[], _T]) -> _T:
        """Ask Spark what does not depend on the layout."""
        with free_layout(self._rows.sparkSession):
            return asked_of_spark(question, self._spec.address)

    def _ordered(self, rows: DataFrame, works: Sequence[FrameWork], *by: str) -> DataFrame:
        from pyspark.sql import functions as sf

        ready = rows.select(CHANNEL, *by, *written(self._rows.schema, self._spec.row_options))
        ordered = ready.repartitionById(len(works), sf.col(CHANNEL)).sortWithinPartitions(*by)
        refuse_unordered_rows(ordered, f"source {self._spec.address!r}")
        return ordered


@dataclass(frozen=True, slots=True)
class TablePartition(OrderedPartition):
    """The rows of one value, of one numbered range, or all of them."""

    offset_type: str = "integer"
    number: int = 0
    gaps_legal = True

    @property
    def offset_class(self) -> type[Offset]:  # type: ignore[override]
        """The format of its tokens."""
        return IntegerOffset if self.offset_type == "integer" else LexicographicOffset

    def offset(self, value: Any) -> Offset:
        """The position of a row."""
        return IntegerOffset(value) if self.offset_type == "integer" else LexicographicOffset(value)

    def value(self, position: Offset) -> Any:
        """The key of a position; what :meth:`offset` took."""
        return position.sort_key()[0]

    def parts(
        self, batches: Iterator[pa.RecordBatch], committed: Offset | None, limits: BatchLimits
    ) -> Iterator[Part]:
        """Cut the rows after a position into parts; their keys have to grow."""
        return keyed_parts(
            batches,
            committed,
            limits,
            column=self.key,
            value=self.value,
            offset=self.offset,
            ndjson=self.ndjson,
            extra=self.extra,
        )


class TableSource(OrderedSource):
    """A table, a query or files that Spark reads, ordered by a column."""

    _spec: TableSourceSpec

    def use(self, session: SparkSession) -> None:
        """Open the rows and refuse what cannot be loaded in order."""
        spec = self._spec
        how = {"query": spec.query, "format": spec.format, "options": spec.options}
        refuse_changing_rows(self._open(session, spec.offset_column, **how), f"source {spec.address!r}")

    def partitions(self) -> tuple[TablePartition, ...]:
        """List the column's values, the ranges, or the one partition that there is."""
        spec, key = self._spec, self._key
        bad = self._asked(self._rows.where(key.is_no_position).count)
        if bad:
            raise ConfigurationError(
                f"source {spec.address!r} has {counted(bad, 'row')} with NULL{key.or_years} in offset_column "
                f"{key.name!r}: a row's position is its value; give them one, or leave them out in a query. "
                "Nothing was sent"
            )

        def make(name: str, where: str = "", number: int = 0) -> TablePartition:
            reading = f"positions are values of {key.name!r} as {key.offset_type}"
            binding = Binding(f"{spec.identity}{where}", reading)
            return TablePartition(name, binding, *self._written(), offset_type=key.offset_type, number=number)

        if self._by is not None or not spec.ranges:
            return tuple(make(name, self._where(name)) for name in self._names())
        bounds = list(spec.ranges)
        return tuple(
            make(str(number), f", range {number} of {bounds}", number) for number in range(len(bounds) + 1)
        )

    def locate(self, works: Sequence[FrameWork]) -> list[FrameWork]:
        """Ask for each channel's last row, the rows to load, and whether the committed one is there."""
        from pyspark.sql import functions as sf

        position, after = sf.col(POSITION), sf.col(_AFTER)
        counts = (
            self._numbered(works, from_committed=True)
            .groupBy(CHANNEL)
            .agg(
                sf.max(position),
                sf.min(position),
                sf.count_if(after.isNull() | (position > after)),
                sf.count_if(position == after),
            )
        )
        found = {row[0]: row for row in self._asked(counts.collect)}
        located = []
        for number, work in enumerate(works):
            row = found.get(number)
            self._refuse_changed_past(work, 0 if row is None else row[4])
            if row is None or not row[3]:
                continue
            partition = _partition(work)
            if self._key.offset_type == "integer" and row[2] < 0:
                raise ConfigurationError(
                    f"source offset_column {self._key.name!r} has the value {row[2]}: positions are whole "
                    "numbers from 0; add a constant in a query. Nothing was sent"
                )
            end = partition.offset(row[1])
            located.append(replace(work, partition=replace(partition, rows=row[3], end=end), end=end))
        return located

    def frame(self, works: Sequence[FrameWork]) -> DataFrame:
        """One Spark partition for each channel, its rows ordered by the key."""
        return self._ordered(self._numbered(works, from_committed=False), works, POSITION)

    def _numbered(self, works: Sequence[FrameWork], *, from_committed: bool) -> DataFrame:
        """The rows of the works with channel and position, from or behind the committed one to the end."""
        from pyspark.sql import functions as sf

        facts = {
            work.partition.name: {
                CHANNEL: number,
                _AFTER: None if work.committed is None else _partition(work).value(work.committed),
                _END: None if work.end is None else _partition(work).value(work.end),
            }
            for number, work in enumerate(works)
        }
        rows = self._pruned(works)
        if self._spec.ranges:
            for name in (CHANNEL, _AFTER, _END):
                values = [one[name] for one in facts.values()]
                rows = rows.withColumn(name, self._by_range(works, values, name))
        else:
            kind = pa.int64() if self._key.offset_type == "integer" else pa.string()
            schema = pa.schema([(CHANNEL, pa.int32()), (_AFTER, kind), (_END, kind)])
            rows = with_facts(rows, self._by, facts, schema)
        position, after, end = sf.col(POSITION), sf.col(_AFTER), sf.col(_END)
        lower = position >= after if from_committed else position > after
        return rows.withColumn(POSITION, self._key.position).where(
            sf.col(CHANNEL).isNotNull() & (after.isNull() | lower) & (end.isNull() | (position <= end))
        )

    def _by_range(self, works: Sequence[FrameWork], values: list[Any], name: str) -> Column:
        """A value for each range, by a row's key."""
        from pyspark.sql import functions as sf

        bounds, key = self._spec.ranges, self._key.position
        chosen: Any = sf
        for work, value in zip(works, values, strict=True):
            number = _partition(work).number
            inside = sf.lit(True)
            if number > 0:
                inside = inside & (key >= bounds[number - 1])
            if number < len(bounds):
                inside = inside & (key < bounds[number])
            chosen = chosen.when(inside, sf.lit(value).cast("int" if name == CHANNEL else "long"))
        result: Column = chosen
        return result

    def _pruned(self, works: Sequence[FrameWork]) -> DataFrame:
        """The rows from the least committed position to the last end, as conditions that a scan can use."""
        rows, key = self._rows, self._key
        committed = [work.committed for work in works if work.committed is not None]
        ends = [work.end for work in works if work.end is not None]
        if len(committed) == len(works):
            least = min(_partition(works[0]).value(position) for position in committed)
            rows = rows.where(key.column >= key.literal(least))
        if len(ends) == len(works):
            last = max(_partition(works[0]).value(position) for position in ends)
            rows = rows.where(key.column <= key.literal(last))
        return rows

    def _refuse_changed_past(self, work: FrameWork, found: int) -> None:
        if work.committed is None or found == 1:
            return
        key, token = self._key.name, str(work.committed)
        if found > 1:
            raise SourcePositionError(
                f"channel {work.channel!r}: {token!r} is committed, and {found} rows have that {key} now: a "
                f"row that came later would never be loaded. Give {key} values that only grow. Nothing was "
                "sent"
            )
        if self._on_data_loss == "fail":
            raise SourcePositionError(
                f"channel {work.channel!r}: {token!r} is committed, but no row of source "
                f"{self._spec.address!r} has that {key} any more: rows behind it may be missing, too; "
                f"on_data_loss='skip' goes on with the next larger {key}. Nothing was sent"
            )


def _partition(work: FrameWork) -> TablePartition:
    return cast("TablePartition", work.partition)
