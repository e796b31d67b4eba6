"""The specifications of tables that Spark reads: ordered by a column, or version by version."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_provider_snowpipe.spark.source import SourceSpec
from airflow_provider_snowpipe.streaming.arguments import (
    BinaryFormat,
    NonFinite,
    is_named_like_a_secret,
    without_secrets,
)
from airflow_provider_snowpipe.streaming.checked_values import is_template
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset, IntegerOffset, LexicographicOffset

if TYPE_CHECKING:
    from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions


_NOT_WHICH = frozenset(
    {"batch-size", "columnpruning", "driver", "fetchsize", "file-open-cost", "hint", "lookback", "lowerbound"}
    | {"mergeschema", "numpartitions", "partitioncolumn", "pushdownaggregate", "pushdownlimit"}
    | {"pushdownoffset", "pushdownpredicate", "pushdowntablesample", "querytimeout", "split-size"}
    | {"upperbound", "vectorization-enabled"}
)
"""Options of Spark's readers, in small letters, that decide how rows are read, and not which."""
METADATA = ("run_id", "version", "row")
"""What columns can be given of rows: the run, and the position of a row within a table's history."""


class TypedRowsSource(SourceSpec):
    """A source of rows with typed columns, some of whose values JSON has no form for."""

    __slots__ = ()

    has_versions: ClassVar[bool] = True
    metadata: Mapping[str, str] | None
    binary: BinaryFormat
    non_finite: NonFinite
    explicit_nulls: bool

    @property
    def row_options(self) -> NdjsonOptions:
        """Forms of the values that JSON has none for."""
        from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions

        return NdjsonOptions(self.binary, self.non_finite, self.explicit_nulls)

    def _check_metadata(self) -> None:
        known = METADATA if self.has_versions else METADATA[:1]
        for name, value in (self.metadata or {}).items():
            if not name or value not in known:
                raise ConfigurationError(
                    f"source metadata has {name!r}: {value!r}: give a column one of {', '.join(known)}"
                )


def check_one_address(path: str | None, table: str | None) -> None:
    """Refuse a source with both a path and a table, or with none."""
    if bool(path) == bool(table):
        raise ConfigurationError(f"source has path {path!r} and table {table!r}: give exactly one of the two")


@dataclass(frozen=True, slots=True, repr=False)
class TableSource(TypedRowsSource):
    """The rows of a table, a query or files that Spark reads, ordered by a column.

    The column's values are unique and only grow: a row that is added later has a larger one than all rows
    that are there. The position of a row is its value.

    :param offset_column: that column; only a bulk load does without
    :param table: a table of Spark's catalog, ``[catalog.][schema.]table``
    :param query: a SQL query of Spark instead
    :param path: files or a table directory instead, in any format that Spark reads
    :param format: for ``path``, Spark's name of the format
    :param options: for ``path``, options of Spark's reader that are known to hold no secret
    :param name: with ``query``, what its rows are called: second part of the channels' names, so it must stay
    :param offset_type: ``integer``: whole numbers from 0; ``text``: strings, dates and timestamps
    :param partition_by: a column whose values are the partitions, each with a channel; without, one channel
    :param ranges: instead, growing bounds of the offset column: values below the first bound go to channel
        ``0``, those from it on to channel ``1``, and so on
    :param binary: the pipe's ``BINARY_INPUT_FORMAT``; a default pipe takes BASE64
    :param non_finite: ``refuse`` or ``null`` for NaN, infinities, years outside 0 to 9999, times beyond a day
    :param explicit_nulls: True writes nulls, which store NULL; False leaves them out, so that a column's
        DEFAULT applies
    :param metadata: columns that show where rows are from, each with ``run_id``
    :param kind: always ``table``
    """

    offset_column: str = ""
    table: str | None = None
    query: str | None = None
    path: str | None = None
    format: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    offset_type: Literal["integer", "text"] = "integer"
    partition_by: str | None = None
    ranges: Sequence[int] = ()
    binary: BinaryFormat = "BASE64"
    non_finite: NonFinite = "refuse"
    explicit_nulls: bool = True
    metadata: Mapping[str, str] | None = None
    has_versions = False
    kind: Literal["table"] = "table"
    source_class: ClassVar[str] = "airflow_provider_snowpipe.spark.sources.tables.reader:TableSource"

    def _check(self) -> None:
        check_one_input(self, ("table", "query", "path"))
        self._check_metadata()
        if self.query and self.offset_column and not self.name:
            raise ConfigurationError(
                "source has a query and no name: give one that stays, since the channels are named by it"
            )
        check_reader_options(self.options, self.format)
        bounds = self.ranges
        if any(low >= high for low, high in pairwise([-1, *bounds])):
            raise ConfigurationError(f"source ranges is {list(bounds)}: give growing numbers from 0")
        if bounds and (self.partition_by or self.offset_type != "integer"):
            raise ConfigurationError(
                f"source ranges {list(bounds)} cut an offset column of whole numbers into channels: drop "
                "them, or drop partition_by and offset_type"
            )

    def check_streamable(self) -> None:
        """Refuse rows without an order."""
        if not self.offset_column:
            raise ConfigurationError("source offset_column is empty: name the column that orders the rows")

    @property
    def offset_format(self) -> str:
        """``integer`` or ``lexicographic``."""
        return (IntegerOffset if self.offset_type == "integer" else LexicographicOffset).format_name

    @property
    def default_name(self) -> str:
        """The table's name, the query's name, or the last part of the path."""
        if self.table:
            return self.table.rpartition(".")[2].strip("`")
        return self.name or Path(self.path or "").name

    @property
    def address(self) -> str:
        """The table, the path, or the query's name."""
        return self.table or self.path or f"query {self.name}"

    @property
    def identity(self) -> str:
        """What is read, the same in every run: the table, the query's text, or the path with its format."""
        if self.query is not None:
            return f"query {query_on_one_line(self.query)!r}"
        given = sorted((name.lower(), value) for name, value in self.options.items())
        options = "".join(f", {name} {value!r}" for name, value in given if name not in _NOT_WHICH)
        what = f"table {self.table}" if self.table is not None else f"{self.format} files in {self.path}"
        return f"{what}{options}"


@dataclass(frozen=True, slots=True, repr=False)
class DeltaSource(TypedRowsSource):
    """The rows that were inserted into a Delta table, version by version, from its change data feed.

    The position of a row is the version that inserted it and its number in that version, ordered by a column
    whose values are unique within a version. The table's property ``delta.enableChangeDataFeed`` is set.

    :param order_by: that column
    :param path: the table's directory
    :param table: the table's name in Spark's catalog instead
    :param offset_type: ``integer``: ``order_by`` has whole numbers; ``text``: strings, dates or timestamps
    :param partition_by: a column whose values are the partitions, each with a channel; without, one channel
    :param starting_version: the first version that is read where nothing is committed
    :param binary: the pipe's ``BINARY_INPUT_FORMAT``; a default pipe takes BASE64
    :param non_finite: ``refuse`` or ``null`` for NaN, infinities, years outside 0 to 9999, times beyond a day
    :param explicit_nulls: True writes nulls, which store NULL; False leaves them out, so that a column's
        DEFAULT applies
    :param metadata: columns that show where rows are from, each with ``run_id``, ``version`` or ``row``
    :param kind: always ``delta``
    """

    order_by: str
    path: str | None = None
    table: str | None = None
    offset_type: Literal["integer", "text"] = "integer"
    partition_by: str | None = None
    starting_version: int = 0
    binary: BinaryFormat = "BASE64"
    non_finite: NonFinite = "refuse"
    explicit_nulls: bool = True
    metadata: Mapping[str, str] | None = None
    kind: Literal["delta"] = "delta"
    source_class: ClassVar[str] = "airflow_provider_snowpipe.spark.sources.tables.delta:DeltaSource"
    offset_format = BatchRowOffset.format_name

    def _check(self) -> None:
        if not self.order_by:
            raise ConfigurationError("source order_by is empty: name the column that orders a version's rows")
        check_one_address(self.path, self.table)
        self._check_metadata()
        if self.starting_version < 0:
            raise ConfigurationError(f"source starting_version is {self.starting_version}: give 0 or more")

    @property
    def default_name(self) -> str:
        """The table's name, or the last part of the path."""
        return self.table.rpartition(".")[2].strip("`") if self.table else Path(self.path or "").name

    @property
    def address(self) -> str:
        """The table or its directory."""
        return self.table or self.path or ""


_BLANKS = re.compile(
    r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*\n?|/\*.*?\*/)|\s+""", re.DOTALL
)


def query_on_one_line(query: str) -> str:
    """A query with one blank for several; those in texts, names and comments mean something, and stay."""
    return _BLANKS.sub(lambda found: found[1] or " ", query.strip())


def check_one_input(source: Any, keys: Sequence[str]) -> None:
    """Refuse a source with no input, or more than one."""
    given = [key for key in keys if getattr(source, key)]
    if len(given) != 1:
        raise ConfigurationError(
            f"source has {' and '.join(given) or 'no table, query or path'}: give exactly one of table, "
            "query and path"
        )


_FILES = """ ignoreCorruptFiles ignoreMissingFiles modifiedAfter modifiedBefore pathGlobFilter
    recursiveFileLookup """
_TEXTS = f"""{_FILES} columnNameOfCorruptRecord dateFormat enableDateTimeParsingFallback encoding locale mode
    multiLine samplingRatio singleVariantColumn timeFormat timestampFormat timestampNTZFormat timeZone """
_FORMATS = {
    "avro": f"""{_FILES} avroSchema datetimeRebaseMode enableStableIdentifiersForUnionType ignoreExtension
        mode positionalFieldMatching recursiveFieldMaxDepth stableIdentifierPrefixForUnionType""",
    "binaryfile": _FILES,
    "csv": f"""{_TEXTS} charset charToEscapeQuoteEscaping columnPruning comment delimiter emptyValue
        enforceSchema escape header ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace inferSchema lineSep
        maxCharsPerColumn maxColumns nanValue negativeInf nullValue positiveInf preferDate quote sep
        unescapedQuoteHandling""",
    "delta": """endingTimestamp endingVersion ignoreChanges ignoreDeletes readChangeFeed startingTimestamp
        startingVersion timestampAsOf versionAsOf""",
    "hudi": """as.of.instant hoodie.datasource.query.type hoodie.datasource.read.begin.instanttime
        hoodie.datasource.read.end.instanttime""",
    "iceberg": """as-of-timestamp batch-size branch end-snapshot-id file-open-cost lookback snapshot-id
        split-size start-snapshot-id tag vectorization-enabled""",
    "jdbc": """customSchema dbtable driver fetchsize hint isolationLevel lowerBound numPartitions
        partitionColumn preferTimestampNTZ pushDownAggregate pushDownLimit pushDownOffset pushDownPredicate
        pushDownTableSample query queryTimeout upperBound url user""",
    "json": f"""{_TEXTS} allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers
        allowNumericLeadingZeros allowSingleQuotes allowUnquotedControlChars allowUnquotedFieldNames
        dropFieldIfAllNull inferTimestamp lineSep prefersDecimal primitivesAsString""",
    "orc": f"{_FILES} mergeSchema",
    "parquet": f"{_FILES} datetimeRebaseMode int96RebaseMode mergeSchema",
    "text": f"{_FILES} encoding lineSep wholetext",
    "xml": f"""{_TEXTS} arrayElementName attributePrefix charset excludeAttribute ignoreNamespace
        ignoreSurroundingSpaces inferSchema nullValue rowTag valueTag wildcardColName""",
}
"""Options of Spark's readers that may stand in a plan, by format; what others hold is not known here."""
_IN_SPARK = "define the table in Spark's catalog, or let Spark's own configuration give it"


def check_reader_options(options: Any, format_name: str) -> None:
    """Refuse options of Spark's reader that are not texts, that hold a secret, or that may.

    :param format_name: Spark's name of the format
    :raises ConfigurationError: naming the option, never its value
    """
    known = frozenset(_FORMATS.get(format_name.lower(), "").lower().split())
    check_options(options, None if is_template(format_name) else known, f"format {format_name!r}", _IN_SPARK)


def check_options(options: Any, known: Set[str] | None, reader: str, remedy: str) -> None:
    """Refuse options that are not texts or not known, or that hold a secret: a plan is a file."""
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"source options is not an object: give options of {reader} by name")
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigurationError(f"source option {name!r} is not text: give name and value as texts")
        if is_named_like_a_secret(name) or without_secrets(value) != value:
            raise ConfigurationError(
                f"source option {name!r} looks like a secret or has one in its value, and a plan holds none: "
                f"{remedy}"
            )
        if known is not None and name.lower() not in known:
            raise ConfigurationError(
                f"source option {name!r} is none of those of {reader} that are known to hold no secret, as a "
                f"plan requires: {remedy}"
            )
