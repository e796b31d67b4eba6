"""Rows of a DataFrame as text, one JSON object and a newline each, by whom it is quickest.

Rows without a VARIANT go to Python as they are, where Arrow writes them. Others the JVM writes with
``to_json``; their Arrow buffer is the body that goes to the channel, and no value is touched by Python. What
``to_json`` says differently from Snowflake's columns is changed before: timestamps get their microseconds,
binary the pipe's text form, NaN and the infinities the author's choice. Types that have no faithful form are
refused by column, before any row moves (each observed with Spark 4.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.spark.driver.frames import LINE
from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

_ZONED = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
_ZONELESS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_ERROR = f"\n{EncodingError.__module__}.{EncodingError.__name__}: "
"""At the start of a line this is how the driver finds a task's error in Spark's text (``failures``)."""
_PLAIN = frozenset(
    {
        *("boolean", "byte", "short", "integer", "long", "decimal", "date", "time"),
        *("string", "char", "varchar", "timestamp", "timestamp_ntz", "variant", "void"),
    }
)
_REMEDIES = {
    "interval": "cast it to a string, or to a number of seconds or months",
    "calendarinterval": "cast it to a string",
    "udt": "select its fields",
    "geometry": "write it as text with st_astext, or as binary with st_asbinary",
    "geography": "write it as text with st_astext, or as binary with st_asbinary",
}


def check_row_types(schema: StructType) -> None:
    """Refuse columns whose values have no faithful JSON form.

    :param schema: the columns
    :raises EncodingError: naming column, type and remedy
    """
    if not schema.fields:
        raise EncodingError("the rows have no columns: there is nothing to write")
    _refuse_same_names((field.name for field in schema.fields), "", fold=True)
    for field in schema.fields:
        _check(field.name, field.dataType)


def is_written_by_jvm(schema: StructType) -> bool:
    """True for rows that Spark's JVM writes, which are those with a VARIANT.

    A VARIANT comes to Python in Spark's own binary form, to be read one value at a time. All others Arrow
    writes as fast, and wide ones faster (``benchmarks/row_shapes.py``).

    :param schema: the columns
    """
    return any(_holds_variant(field.dataType) for field in schema.fields)


def _holds_variant(kind: Any) -> bool:
    name = kind.typeName()
    if name == "struct":
        return any(_holds_variant(field.dataType) for field in kind.fields)
    if name == "array":
        return _holds_variant(kind.elementType)
    return _holds_variant(kind.valueType) if name == "map" else bool(name == "variant")


def written(schema: StructType, options: NdjsonOptions) -> list[Column]:
    """What a query has of the rows: their text in one column, or their columns as they are.

    :param schema: the columns, checked by :func:`check_row_types`
    :param options: forms of the values that JSON has none for
    """
    from pyspark.sql import functions as sf

    if is_written_by_jvm(schema):
        return [row_text(schema, options).alias(LINE)]
    return [sf.col(quoted_column(field.name)) for field in schema.fields]


def row_text(
    schema: StructType, options: NdjsonOptions, *, leave_out: frozenset[str] = frozenset()
) -> Column:
    """The expression that writes a row: a JSON object and a newline.

    :param schema: the columns, checked by :func:`check_row_types`
    :param options: forms of the values that JSON has none for
    :param leave_out: columns that are not written
    """
    from pyspark.sql import functions as sf

    writer = _Writer(options)
    fields = [
        writer.value(field.name, sf.col(quoted_column(field.name)), field.dataType).alias(field.name)
        for field in schema.fields
        if field.name not in leave_out
    ]
    return sf.concat(sf.to_json(sf.struct(*fields), _form(options)), sf.lit("\n"))


def value_text(name: str, column: Column, kind: DataType, options: NdjsonOptions) -> Column:
    """The expression that writes one nested value as JSON; null stays null.

    :param name: the column's name, for errors
    :param column: the value
    :param kind: its type, checked by :func:`check_row_types`: a struct, an array, a map or a variant
    :param options: forms of the values that JSON has none for
    """
    from pyspark.sql import functions as sf

    return sf.to_json(_Writer(options).value(name, column, kind), _form(options))


def quoted_column(name: str) -> str:
    """A column's name as Spark's expressions take it.

    :param name: the name
    """
    return "`" + name.replace("`", "``") + "`"


def _form(options: NdjsonOptions) -> dict[str, str]:
    return {
        "timestampFormat": _ZONED,
        "timestampNTZFormat": _ZONELESS,
        "ignoreNullFields": str(not options.explicit_nulls).lower(),
    }


def _check(path: str, kind: DataType) -> None:
    name = kind.typeName()
    if name == "struct":
        fields = kind.fields  # type: ignore[attr-defined]
        if not fields:
            raise EncodingError(f"column {path!r} is a struct without fields: drop it")
        _refuse_same_names((field.name for field in fields), path, fold=False)
        for field in fields:
            _check(f"{path}.{field.name}", field.dataType)
    elif name == "array":
        _check(f"{path}.[]", kind.elementType)  # type: ignore[attr-defined]
    elif name == "map":
        _check_map(path, kind)
    elif name not in _PLAIN and name not in ("float", "double", "binary"):
        remedy = _REMEDIES.get("interval" if "interval" in name else name, "cast it to a string")
        raise EncodingError(
            f"column {path!r} has type {kind.simpleString()}, which has no JSON form: {remedy}"
        )


def _check_map(path: str, kind: Any) -> None:
    if kind.keyType.typeName() not in ("string", "char", "varchar"):
        raise EncodingError(
            f"column {path!r} is a map with keys of type {kind.keyType.simpleString()}, and JSON has text "
            f"keys only: use transform_keys({path.partition('.')[0]}, (k, v) -> cast(k as string))"
        )
    _check(f"{path}.{{}}", kind.valueType)


def _refuse_same_names(names: Iterable[str], path: str, *, fold: bool) -> None:
    seen: dict[str, str] = {}
    for name in names:
        key = name.upper() if fold else name
        if key in seen:
            where = f"column {path!r}: fields" if path else "columns"
            raise EncodingError(
                f"{where} {seen[key]!r} and {name!r} would go to the same place: rename or drop one"
            )
        seen[key] = name


@dataclass(frozen=True, slots=True)
class _Writer:
    """Changes values whose ``to_json`` is not what the table's column takes; leaves all others alone."""

    options: NdjsonOptions

    def value(self, path: str, column: Column, kind: DataType) -> Column:
        if not self._changes(kind):
            return column
        change: Callable[[str, Column, Any], Column] = getattr(self, f"_{kind.typeName()}")
        return change(path, column, kind)

    def _changes(self, kind: Any) -> bool:
        name = kind.typeName()
        if name == "struct":
            return any(self._changes(field.dataType) for field in kind.fields)
        if name == "array":
            return self._changes(kind.elementType)
        if name == "map":
            return self._changes(kind.valueType)
        return name in ("float", "double") or (name == "binary" and self.options.binary != "BASE64")

    def _double(self, path: str, column: Column, kind: Any) -> Column:
        from pyspark.sql import functions as sf

        bad = sf.isnan(column) | (sf.abs(column) == float("inf"))
        if self.options.non_finite == "null":
            return sf.when(~bad, column)
        message = (
            f"column {path!r} holds NaN or an infinity, which is no number that JSON holds: clean it, or "
            "choose non_finite='null'. Nothing was sent"
        )
        return sf.when(bad, sf.raise_error(sf.lit(_ERROR + message)).cast(kind)).otherwise(column)

    _float = _double

    def _binary(self, path: str, column: Column, kind: Any) -> Column:
        from pyspark.sql import functions as sf

        if self.options.binary == "HEX":
            return sf.hex(column)
        text = column.cast("string")
        message = (
            f"column {path!r} holds bytes that are not UTF-8: use a pipe with BASE64 or HEX. Nothing was sent"
        )
        wrong = ~sf.is_valid_utf8(text)
        return sf.when(wrong, sf.raise_error(sf.lit(_ERROR + message)).cast("string")).otherwise(text)

    def _struct(self, path: str, column: Column, kind: Any) -> Column:
        from pyspark.sql import functions as sf

        fields = [
            self.value(f"{path}.{field.name}", column.getField(field.name), field.dataType).alias(field.name)
            for field in kind.fields
        ]
        return sf.when(column.isNotNull(), sf.struct(*fields))

    def _array(self, path: str, column: Column, kind: Any) -> Column:
        from pyspark.sql import functions as sf

        return sf.transform(column, lambda item: self.value(f"{path}.[]", item, kind.elementType))

    def _map(self, path: str, column: Column, kind: Any) -> Column:
        from pyspark.sql import functions as sf

        return sf.transform_values(column, lambda _, value: self.value(f"{path}.{{}}", value, kind.valueType))
