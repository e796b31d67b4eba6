"""Results of statements, and their encoding as text values for the wire."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_snowpipe.local.stages.transfer import Transfer
from airflow_provider_snowpipe.local.types import NUMBER, TEXT, TIMESTAMP_LTZ, ColumnType

_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICRO = dt.timedelta(microseconds=1)

# Statement type ids of the connector protocol (snowflake.connector.constants, STATEMENT_TYPE_ID_*).
SELECT, DML, INSERT, UPDATE, DELETE, MERGE, OTHER = 0x1000, 0x3000, 0x3100, 0x3200, 0x3300, 0x3400, 0x6000
MULTI_TABLE_INSERT = 0x3500
USE = 0x4300
# DuckDB's Python gives such a date as text.
_FAR = re.compile(r"(\d{5,6})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?)?(?:\+00)?\Z")
_DATED = frozenset({"DATE", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ"})


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
    :param rows: one sequence of Python values per row.
    :param statement_type: type id of the connector protocol.
    :param transfer: files that the client is to move, for PUT and GET.
    :param changed: numbers of rows ``inserted``, ``updated`` and ``deleted``; None where no rows are changed.
    """

    columns: tuple[ResultColumn, ...]
    rows: list[Sequence[Any]] = field(repr=False)
    statement_type: int = SELECT
    transfer: Transfer | None = None
    changed: Mapping[str, int] | None = None


def status(message: str) -> Result:
    """Return the one-cell result of a statement that only reports success."""
    return Result((ResultColumn("status"),), [(message,)], OTHER)


def already_dropped(name: str) -> Result:
    """Return the result of DROP .. IF EXISTS for what does not exist."""
    return status(f"Drop statement executed successfully ({name} already dropped).")


def listing(names: Sequence[str], rows: Sequence[Sequence[Any]], numbers: Sequence[str] = ()) -> Result:
    """Return the result of a SHOW or DESCRIBE statement: text, but for ``created_on`` and some numbers.

    :param rows: one sequence per row; ``created_on`` as epoch milliseconds, or None when it is not known.
    :param numbers: names of the columns that hold whole numbers.
    """
    columns = tuple(
        ResultColumn(name, TIMESTAMP_LTZ if name == "created_on" else NUMBER if name in numbers else TEXT)
        for name in names
    )
    if "created_on" in names:
        at = list(names).index("created_on")
        rows = [(*row[:at], None if row[at] is None else timestamp(row[at]), *row[at + 1 :]) for row in rows]
    return Result(columns, list(rows), OTHER)


def timestamp(epoch_ms: int) -> dt.datetime:
    """Return a time of the catalog as a value of TIMESTAMP_LTZ."""
    return dt.datetime.fromtimestamp(epoch_ms / 1000, dt.UTC)


def row_counts(statement_type: int, **counts: int) -> Result:
    """Return the result of a DML statement.

    :param counts: column name with ``_`` for blanks, and number of rows.
    """
    columns = tuple(ResultColumn(name.replace("_", " "), NUMBER, nullable=False) for name in counts)
    changed = {name.rpartition("_")[2]: count for name, count in counts.items() if "joined" not in name}
    return Result(columns, [tuple(counts.values())], statement_type, changed=changed)


def encode(value: Any, kind: str) -> str | None:
    """Encode one value as the connector's JSON rowset and the SQL API's jsonv2 expect it.

    DATE is days since the epoch; TIME and TIMESTAMP are seconds with nine decimals; TIMESTAMP_TZ adds the
    offset in minutes plus 1440; BINARY is hexadecimal (protocol observed with connector 4.8.1).

    :param value: Python value from DuckDB.
    :param kind: Snowflake type word.
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
    far = _FAR.match(value) if isinstance(value, str) and kind in _DATED else None
    return json_text(value) if far is None else _far(far, kind)


def _far(written: re.Match[str], kind: str) -> str:
    """Encode a date of the year 10000 or later, which Python has no value for."""
    year, month, day = (int(part) for part in written.groups()[:3])
    # The calendar repeats itself every 400 years, which are 146,097 days.
    cycles, rest = divmod(year - 2000, 400)
    days = (dt.date(2000 + rest, month, day) - _EPOCH.date()).days + cycles * 146_097
    if kind == "DATE":
        return str(days)
    hour, minute, second = (int(part or 0) for part in written.groups()[3:6])
    seconds = days * 86_400 + hour * 3600 + minute * 60 + second
    return f"{seconds}.{(written[7] or '').ljust(9, '0')}" + (" 1440" if kind == "TIMESTAMP_TZ" else "")


def json_text(value: Any) -> str:
    """Return a text value as it is, and a nested value of DuckDB (list, struct, map) as JSON."""
    if isinstance(value, (list, dict)):
        return json.dumps(value, default=_json_value, ensure_ascii=False, separators=(",", ":"))
    return str(value)


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
