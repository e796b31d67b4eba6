"""Values on the wire: results of statements as text and as Arrow, and the bound values of a statement."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from snowpipe_local.errors import SqlError
from snowpipe_local.stages.files import Transfer
from snowpipe_local.tables import NUMBER, TEXT, TIMESTAMP_LTZ, ColumnType

_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICRO = dt.timedelta(microseconds=1)

# Statement type ids of the connector protocol (snowflake.connector.constants, STATEMENT_TYPE_ID_*).
SELECT, DML, INSERT, UPDATE, DELETE, MERGE, OTHER = 0x1000, 0x3000, 0x3100, 0x3200, 0x3300, 0x3400, 0x6000
MULTI_TABLE_INSERT = 0x3500
USE = 0x4300
# DuckDB's Python gives such a date as text.
_FAR = re.compile(r"(\d{4,6})-(\d\d)-(\d\d)( \(BC\))?(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?)?(?:\+00)?\Z")
_DATED = frozenset({"DATE", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ"})
_SEMI_STRUCTURED = frozenset({"VARIANT", "OBJECT", "ARRAY"})
_JSON_PART = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|\[\s*\]|\{\s*\}|[\[\]{},:]|[^\s"\[\]{},:]+', re.DOTALL)


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """One column of a result."""

    name: str
    type: ColumnType = TEXT
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    """Rows that a statement returned, as Python values.

    :param columns: in order.
    :param transfer: files that the client is to move, for PUT and GET.
    :param changed: numbers of rows ``inserted``, ``updated``, ``deleted`` and ``unloaded``, and of matches of
        an UPDATE that were ``duplicated``; None where no rows are changed.
    :param held_bytes: about what the rows of a query take in memory; 0 for those of other statements.
    :param has_expired: True once the service has forgotten the rows.
    """

    columns: tuple[ResultColumn, ...]
    rows: list[Sequence[Any]] = field(repr=False)
    statement_type: int = SELECT
    transfer: Transfer | None = None
    changed: Mapping[str, int] | None = None
    held_bytes: int = 0
    has_expired: bool = False


def status(message: str) -> Result:
    """Return the one-cell result of a statement that only reports success."""
    return Result((ResultColumn("status"),), [(message,)], OTHER)


def done() -> Result:
    """Return the result of a statement that has no other result."""
    return status("Statement executed successfully.")


def already_dropped(name: str) -> Result:
    """Return the result of DROP .. IF EXISTS for what does not exist."""
    return status(f"Drop statement executed successfully ({name} already dropped).")


def texts(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Result:
    """Return the result of a statement that lists texts."""
    return Result(tuple(map(ResultColumn, names)), list(rows), OTHER)


_TYPES = {"N": NUMBER, "T": TIMESTAMP_LTZ}
_TRUTHS = {"Y": ("N", "Y"), "YES": ("NO", "YES"), "TRUE": ("false", "true")}
# What Snowflake documents that each SHOW or DESCRIBE statement and each view of INFORMATION_SCHEMA has, in
# that order: a name, behind a colon N for numbers, T for times, or the word for what is true, and the value
# where there is no other here.
_DOCUMENTED = {
    statement: [re.fullmatch("(.*?)(?::([A-Z]+))?(?:=(.*))?", text) for text in columns]
    for statement, *columns in csv.reader(
        Path(__file__).with_name("columns.csv").read_text(encoding="utf-8").splitlines()
    )
}
DOCUMENTED = {
    statement: {
        column[1]: (_TYPES.get(column[2], TEXT), column[2], column[3]) for column in columns if column
    }
    for statement, columns in _DOCUMENTED.items()
}
"""By statement or view the type of each documented column, its letter or word, and its usual value."""


def listing(statement: str, rows: Iterable[Mapping[str, Any]]) -> Result:
    """Return the result of a SHOW or DESCRIBE statement, or the rows of a view of INFORMATION_SCHEMA.

    :param statement: its line in the table of documented columns.
    :param rows: values by column, times as epoch milliseconds; a column that is left out has its usual value.
    """
    documented = DOCUMENTED[statement]
    listed = list(rows)
    if unknown := sorted({name for row in listed for name in row} - documented.keys()):
        raise ValueError(f"{statement} has no columns {unknown}")
    made: list[Sequence[Any]] = [
        tuple(_shown(row.get(name, usual), form) for name, (_, form, usual) in documented.items())
        for row in listed
    ]
    return Result(tuple(ResultColumn(name, kind) for name, (kind, *_) in documented.items()), made, OTHER)


def _shown(value: Any, form: str | None) -> Any:
    if isinstance(value, bool):
        return _TRUTHS[str(form)][value]
    if form == "N" and isinstance(value, str):
        return int(value)
    return value if form != "T" or value is None else timestamp(value)


def timestamp(epoch_ms: int) -> dt.datetime:
    """Return a time of the catalog as a value of TIMESTAMP_LTZ."""
    return dt.datetime.fromtimestamp(epoch_ms / 1000, dt.UTC)


def row_counts(statement_type: int, counts: Mapping[str, int], changed: Mapping[str, int]) -> Result:
    """Return the result of a DML statement.

    :param counts: column name with ``_`` for blanks, and number of rows.
    """
    columns = tuple(ResultColumn(name.replace("_", " "), NUMBER, nullable=False) for name in counts)
    return Result(columns, [tuple(counts.values())], statement_type, changed=changed)


def encode(value: Any, kind: str) -> str | None:
    """Encode one value as the connector's JSON rowset and the SQL API's jsonv2 expect it.

    DATE is days since the epoch; TIME and TIMESTAMP are seconds with nine decimals; TIMESTAMP_TZ adds the
    offset in minutes plus 1440; BINARY is hexadecimal (protocol observed with connector 4.8.1).

    """
    if value is None:
        return None
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (bytes, bytearray)):
        return value.hex().upper()
    if isinstance(value, dt.datetime):
        return _timestamp(value, kind)
    if isinstance(value, dt.date):
        return str((value - _EPOCH.date()).days)
    if isinstance(value, dt.time):
        seconds = value.hour * 3600 + value.minute * 60 + value.second
        return f"{seconds}.{value.microsecond:06d}000"
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if kind in _SEMI_STRUCTURED:
        return _indented(json_text(value))
    far = _FAR.match(value) if isinstance(value, str) and kind in _DATED else None
    return json_text(value) if far is None else _far(far, kind)


def _far(written: re.Match[str], kind: str) -> str:
    """Encode a date before the year 1 or after 9999, which Python has no value for."""
    year, month, day = (int(part) for part in written.groups()[:3])
    year = 1 - year if written[4] else year
    # The calendar repeats itself every 400 years, which are 146,097 days.
    cycles, rest = divmod(year - 2000, 400)
    days = (dt.date(2000 + rest, month, day) - _EPOCH.date()).days + cycles * 146_097
    if kind == "DATE":
        return str(days)
    hour, minute, second = (int(part or 0) for part in written.groups()[4:7])
    seconds = days * 86_400 + hour * 3600 + minute * 60 + second
    return f"{seconds}.{(written[8] or '').ljust(9, '0')}" + (" 1440" if kind == "TIMESTAMP_TZ" else "")


def json_text(value: Any) -> str:
    """Return a text value as it is, and a nested value of DuckDB (list, struct, map) as JSON."""
    if isinstance(value, (list, dict)):
        return json.dumps(value, default=_json_value, ensure_ascii=False, separators=(",", ":"))
    return str(value)


def _indented(text: str) -> str:
    """Return JSON with two blanks a level ("Parameters", JSON_INDENT); numbers stay as written."""
    if not text.startswith(("{", "[")):
        return text
    parts: list[str] = []
    line = "\n"
    for part in _JSON_PART.findall(text):
        if part in ("{", "["):
            line += "  "
            parts += part, line
        elif part in ("}", "]"):
            line = line[:-2]
            parts += line, part
        elif part == ",":
            parts += part, line
        elif part == ":":
            parts.append(": ")
        else:
            parts.append(part[0] + part[-1] if part[0] in "[{" else part)
    return "".join(parts)


def _json_value(value: Any) -> Any:
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


def _timestamp(value: dt.datetime, kind: str) -> str:
    epoch = _EPOCH if value.tzinfo is None else _EPOCH_UTC
    seconds, micros = divmod((value - epoch) // _MICRO, 1_000_000)
    if seconds < 0 and micros:
        # The connector reads sign and fraction together, so -0.25 s is "-0.25", not "-1.75".
        text = f"{decimal.Decimal(seconds) + decimal.Decimal(micros) / 1_000_000:.9f}"
    else:
        text = f"{seconds}.{micros:06d}000"
    return f"{text} {offset_minutes(value)}" if kind == "TIMESTAMP_TZ" else text


def offset_minutes(value: dt.datetime) -> int:
    """Return the offset of a TIMESTAMP_TZ as the protocols carry it: minutes east of UTC, plus 1440."""
    return 1440 + (value.utcoffset() or dt.timedelta()) // dt.timedelta(minutes=1)


# -- Results as Arrow, in the form that the Python connectors read for SELECT ----------------------------
#
# Field metadata and physical types were observed with connectors 4.8.1 and 5.2.0: a timestamp is a struct
# of ``epoch`` (seconds) and ``fraction`` (nanoseconds), plus ``timezone`` (minutes + 1440) for
# TIMESTAMP_TZ; a NUMBER is a 64-bit integer without its decimal point where that fits. A ``byteLength``
# that disagrees with the number of fields crashes connector 5.2.0.

_BATCH_ROWS = 65_536
_IPC_OPTIONS = pa.ipc.IpcWriteOptions()
_INT64_DIGITS = 18
_MICROS = 1_000_000
_UTC_MINUTES = 1440


def encode_streams(result: Result, counts: Sequence[int]) -> list[bytes]:
    """Encode a result as several Arrow IPC streams of one schema.

    Numbers and times are encoded at once, because their values choose the type. Texts are encoded for each
    stream, because they may be large.

    :raises pyarrow.ArrowException: when a value does not fit, for example an integer of 39 digits.
    """
    encoders, fields = [], []
    for position, column in enumerate(result.columns):
        encode_texts = functools.partial(_texts_of, result, position)
        array = encode_texts(0, 0)
        if column.type.kind not in _OF_ANY_LENGTH:
            array = _ENCODERS[column.type.kind]([row[position] for row in result.rows], column.type)
        encoders.append(encode_texts if column.type.kind in _OF_ANY_LENGTH else array.slice)
        metadata = _metadata(column.type, array.type)
        # Always nullable: connector 5.2.0 refuses a mask on a field that declares none.
        fields.append(pa.field(column.name, array.type, nullable=True, metadata=metadata))
    schema = pa.schema(fields)
    streams, start = [], 0
    for count in counts:
        sink = pa.BufferOutputStream()
        with pa.RecordBatchStreamWriter(sink, schema, options=_IPC_OPTIONS) as writer:
            for at in range(start, start + count, _BATCH_ROWS):
                size = min(_BATCH_ROWS, start + count - at)
                arrays = [encoder(at, size) for encoder in encoders]
                writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        streams.append(sink.getvalue().to_pybytes())
        start += count
    return streams


def _texts_of(result: Result, position: int, start: int, count: int) -> pa.Array:
    column = result.columns[position].type
    return _ENCODERS[column.kind]([row[position] for row in result.rows[start : start + count]], column)


def _metadata(kind: ColumnType, arrow: pa.DataType) -> dict[str, str]:
    scale, precision = kind.scale or 0, kind.precision or 0
    if kind.kind.startswith("TIME"):
        scale, precision = 9, 0
    elif kind.kind == "NUMBER":
        precision = kind.precision or 38
    length = kind.length or 0
    width = length
    if pa.types.is_struct(arrow):
        width = 16 if arrow.num_fields == 3 else 8
    return {
        "logicalType": kind.wire,
        "precision": str(precision),
        "scale": str(scale),
        "charLength": str(length),
        "byteLength": str(width),
        "finalType": "T",
    }


def _number(values: Sequence[Any], kind: ColumnType) -> pa.Array:
    scale = kind.scale or 0
    if scale == 0 and all(v is None or (type(v) is int and abs(v) < 10**_INT64_DIGITS) for v in values):
        return pa.array(values, pa.int64())
    decimals = pa.array(values, pa.decimal128(38, scale))
    # The same 128-bit integers without the decimal point; the scale travels in the metadata.
    unscaled = pa.Array.from_buffers(pa.decimal128(38, 0), len(decimals), decimals.buffers())
    limits = pc.min_max(pc.abs(unscaled)).as_py()
    if limits["max"] is None or limits["max"] < 10**_INT64_DIGITS:
        return unscaled.cast(pa.int64())
    return decimals


def _arrow_results_timestamp(values: Sequence[Any], kind: ColumnType) -> pa.Array:
    zone = None if kind.kind == "TIMESTAMP_NTZ" else "UTC"
    micros = pa.array(values, pa.timestamp("us", tz=zone)).cast(pa.int64())
    missing = micros.is_null()
    filled = micros.fill_null(0)
    whole = pc.divide(filled, _MICROS)
    rest = pc.subtract(filled, pc.multiply(whole, _MICROS))
    # Integer division rounds toward zero; the fraction must not be negative.
    borrow = pc.less(rest, 0).cast(pa.int64())
    epoch = pc.subtract(whole, borrow)
    fraction = pc.multiply(pc.add(rest, pc.multiply(borrow, _MICROS)), 1000).cast(pa.int32())
    children, names = [epoch, fraction], ["epoch", "fraction"]
    if kind.kind == "TIMESTAMP_TZ":
        minutes = [_UTC_MINUTES if value is None else offset_minutes(value) for value in values]
        children.append(pa.array(minutes, pa.int32()))
        names.append("timezone")
    return pa.StructArray.from_arrays(children, names=names, mask=missing)


def _time(values: Sequence[Any], _kind: ColumnType) -> pa.Array:
    # TIME_NS and TIME both arrive as datetime.time.
    return pc.multiply(pa.array(values, pa.time64("us")).cast(pa.int64()), 1000)


def _text(values: Sequence[Any], _kind: ColumnType) -> pa.Array:
    return pa.array([None if value is None else json_text(value) for value in values], pa.string())


def _json(values: Sequence[Any], _kind: ColumnType) -> pa.Array:
    return pa.array([None if value is None else _indented(json_text(value)) for value in values], pa.string())


def _plain(arrow: pa.DataType) -> Callable[[Sequence[Any], ColumnType], pa.Array]:
    return lambda values, _kind: pa.array(values, arrow)


def _date(values: Sequence[Any], _kind: ColumnType) -> pa.Array:
    return pa.array([v.date() if isinstance(v, dt.datetime) else v for v in values], pa.date32())


_ENCODERS: dict[str, Callable[[Sequence[Any], ColumnType], pa.Array]] = {
    "NUMBER": _number,
    "FLOAT": _plain(pa.float64()),
    "BOOLEAN": _plain(pa.bool_()),
    "BINARY": _plain(pa.binary()),
    "DATE": _date,
    "TIME": _time,
    "TIMESTAMP_NTZ": _arrow_results_timestamp,
    "TIMESTAMP_LTZ": _arrow_results_timestamp,
    "TIMESTAMP_TZ": _arrow_results_timestamp,
    "VARCHAR": _text,
    **dict.fromkeys(_SEMI_STRUCTURED, _json),
}


_OF_ANY_LENGTH = frozenset({"BINARY", "VARCHAR", *_SEMI_STRUCTURED})

# -- Bound values of a statement, as connector protocol and SQL API send them ----------------------------


@dataclass(frozen=True, slots=True)
class Bindings:
    """Values for the placeholders of one statement.

    :param sent: position, counting from ``"1"``, to ``{"type": .., "value": ..}``; a list of values repeats
        the statement (``executemany`` of the connector).
    """

    sent: Mapping[str, Mapping[str, Any]]

    def __bool__(self) -> bool:
        """True when there is any value."""
        return bool(self.sent)

    @property
    def names(self) -> list[str]:
        """Keys of the values in their order; the .NET driver sends names instead of numbers."""
        return sorted(self.sent, key=int) if all(map(str.isdecimal, self.sent)) else list(self.sent)

    @property
    def times(self) -> dict[int, str]:
        """The type words of the values that are dates and times, by their numbers from 0."""
        given = enumerate(self.sent[name] for name in self.names)
        kinds = {n: str(one.get("type")).upper() for n, one in given if isinstance(one, Mapping)}
        return {number: kind for number, kind in kinds.items() if kind in _TIMES}

    def each(self) -> list[Bindings]:
        """Return the values of each repetition by themselves.

        :raises SqlError: for what is not a bound value.
        """
        if not all(isinstance(e, Mapping) and "value" in e for e in self.sent.values()):
            raise SqlError("100038", "22018", "a bound value needs a type and a value")
        sizes = {len(e["value"]) if isinstance(e["value"], list) else 1 for e in self.sent.values()}
        if len(sizes) != 1 or sizes == {1}:
            return [self]
        return [
            Bindings({key: {**e, "value": e["value"][row]} for key, e in self.sent.items()})
            for row in range(sizes.pop())
        ]

    def rows(self, targets: Mapping[int, str] = MappingProxyType({})) -> list[list[Any]]:
        """Return the values of each repetition, in the order of positions.

        :param targets: type word of the column that a value is for, by its number from 0. Connector 4.8.1
            sends a list of timestamps with a None in it as text that holds epoch numbers (observed).
        :returns: a TIMESTAMP_TZ as the engine keeps it where it is for one, elsewhere at its own offset.
        :raises SqlError: for a value that does not fit its type.
        """
        columns = []
        for number, key in enumerate(self.names):
            entry, target = self.sent[key], targets.get(number)
            try:
                values = entry["value"] if isinstance(entry["value"], list) else [entry["value"]]
                columns.append([_value(_kind(entry, value, target), value, target) for value in values])
            except (ValueError, ArithmeticError, TypeError, LookupError):
                # Without the value, and without a cause that has it: bound values are kept nowhere.
                raise SqlError("100038", "22018", f"Bind variable {key} is no {_type_of(entry)}.") from None
        if len({len(values) for values in columns}) > 1:
            raise SqlError("100038", "22018", "the bind variables have different numbers of values")
        return [list(row) for row in zip(*columns, strict=True)]


def _type_of(entry: Any) -> str:
    kind = entry.get("type") if isinstance(entry, Mapping) else None
    return kind.upper() if isinstance(kind, str) and kind.upper() in _READERS else "bound value"


def _kind(entry: Mapping[str, Any], value: Any, target: str | None) -> str:
    kind = str(entry["type"]).upper()
    if target == "BINARY" and kind == "TEXT":
        return target
    is_number = isinstance(value, str) and value.lstrip("-").split(" ")[0].isdigit()
    if target == "DATE" and kind == "TEXT":
        return "DATE_AS_NUMBER" if is_number else kind
    return target if target in _TIMES and kind not in _READERS and is_number else kind


def _value(kind: str, text: Any, target: str | None) -> Any:
    if text is None:
        return None
    text = str(text)
    if kind == target == "TIMESTAMP_TZ":
        return _timestamp_tz(text)
    if kind in _READERS:
        return _READERS[kind](text)
    return text


def _nanos(text: str) -> dt.timedelta:
    return dt.timedelta(microseconds=int(text.split()[0]) // 1000)


def _timestamp_ntz(text: str) -> dt.datetime:
    return _EPOCH + _nanos(text) if text.lstrip("-").isdigit() else dt.datetime.fromisoformat(text)


def _timestamp_utc(text: str) -> dt.datetime:
    if text.lstrip("-").split()[0].isdigit():
        return _EPOCH_UTC + _nanos(text)
    timestamp = dt.datetime.fromisoformat(text)
    return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=dt.UTC)


def _timestamp_tz(text: str) -> Any:
    """Return instant and offset of a time that was sent with its minutes east of UTC, plus 1440."""
    parts = text.split()
    if len(parts) == 2 and parts[0].lstrip("-").isdigit():
        return {"t": _timestamp_utc(text), "o": int(parts[1]) - 1440}
    return text


def _at_own_offset(text: str) -> dt.datetime:
    given = _timestamp_tz(text)
    if isinstance(given, str):
        return _timestamp_utc(given)
    at: dt.datetime = given["t"]
    return at.astimezone(dt.timezone(dt.timedelta(minutes=given["o"])))


def _bound_date(text: str) -> dt.date:
    if text.lstrip("-").isdigit():
        return (_EPOCH + dt.timedelta(milliseconds=int(text))).date()
    return dt.date.fromisoformat(text)


def _date_as_number(text: str) -> dt.date:
    # Text of a number is seconds up to nanoseconds, by its size ("TO_DATE", "Usage notes").
    number, unit = int(text), 1
    while abs(number) >= 31_536_000_000 * unit and unit < 10**9:
        unit *= 1000
    return (_EPOCH + dt.timedelta(seconds=number // unit)).date()


def _fixed(text: str) -> int | decimal.Decimal:
    if "_" in text:
        raise ValueError
    if "." in text or "e" in text.lower():
        exact = decimal.Decimal(text)
        if not exact.is_finite() or exact.adjusted() >= 38:
            raise ValueError
        return exact
    whole = int(text)
    if abs(whole) >= 10**38:
        raise ValueError
    return whole


def _real(text: str) -> float:
    if "_" in text:
        raise ValueError
    return float(text)


_BOOLEANS = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}


def _boolean(text: str) -> bool:
    return _BOOLEANS[text.lower()]


_TIMES = frozenset({"DATE", "TIME", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ"})
_READERS: dict[str, Callable[[str], Any]] = {
    "FIXED": _fixed,
    "REAL": _real,
    "BOOLEAN": _boolean,
    "BINARY": bytes.fromhex,
    "DATE": _bound_date,
    "DATE_AS_NUMBER": _date_as_number,
    "TIME": lambda text: (_EPOCH + _nanos(text)).time() if text.isdigit() else dt.time.fromisoformat(text),
    "TIMESTAMP_NTZ": _timestamp_ntz,
    "TIMESTAMP_LTZ": _timestamp_utc,
    "TIMESTAMP_TZ": _at_own_offset,
}
