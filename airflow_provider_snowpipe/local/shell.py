"""``snowpipe-local sql``: one statement through the SQL API, printed as table, JSON or CSV."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from airflow_provider_snowpipe.local.datadir import DataDirectory
from airflow_provider_snowpipe.local.environment import ask
from airflow_provider_snowpipe.local.errors import SqlError

_TIMEOUT = (5.0, 600.0)
_EPOCH = dt.datetime(1970, 1, 1)


def run_statement(home: DataDirectory, statement: str, form: str) -> str:
    """Run a statement against the running service and format its result.

    :param form: ``table``, ``json`` (a list of objects) or ``csv``.
    :raises SqlError: when the statement fails.
    :raises DataDirectoryError: when the service does not answer.
    """
    names, rows = fetch(home, statement)
    if form == "json":
        return json.dumps([dict(zip(names, row, strict=True)) for row in rows], ensure_ascii=False)
    if form == "csv":
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([["" if value is None else _plain(value) for value in row] for row in rows])
        return buffer.getvalue().rstrip("\n")
    return _table(names, [[_plain(value) for value in row] for row in rows])


def fetch(home: DataDirectory, statement: str) -> tuple[list[str], list[list[Any]]]:
    """Run a statement and return column names and rows as JSON-able values.

    NUMBER without a fraction becomes int, other numbers float; times become ISO 8601 text, VARIANT
    native JSON.
    """
    body = {"statement": statement, "database": "LOCAL", "schema": "PUBLIC"}
    status, content = ask(home, "POST", "/api/v2/statements", _TIMEOUT, body)
    if status != 200:
        raise SqlError(
            content["code"], content.get("sqlState", "XX000"), f"{content['code']}: {content['message']}"
        )
    types = content["resultSetMetaData"]["rowType"]
    rows = [[_native(value, kind) for value, kind in zip(row, types, strict=True)] for row in content["data"]]
    return [kind["name"] for kind in types], rows


def _native(text: str | None, described: dict[str, Any]) -> Any:
    if text is None:
        return None
    kind = described["type"]
    if kind == "fixed":
        return int(text) if not described.get("scale") else float(text)
    if kind == "real":
        return float(text)
    if kind == "boolean":
        return text == "true"
    if kind in {"variant", "object", "array"}:
        return json.loads(text)
    if kind == "date":
        return (_EPOCH + dt.timedelta(days=int(text))).date().isoformat()
    if kind == "time":
        return (_EPOCH + _span(text)).time().isoformat()
    if kind.startswith("timestamp"):
        seconds, _, minutes = text.partition(" ")
        offset = dt.timedelta(minutes=int(minutes) - 1440 if minutes else 0)
        timestamp = _EPOCH + _span(seconds) + offset
        zone = None if kind == "timestamp_ntz" else dt.timezone(offset)
        return timestamp.replace(tzinfo=zone).isoformat()
    return text


def _span(seconds: str) -> dt.timedelta:
    return dt.timedelta(microseconds=int(Decimal(seconds) * 1_000_000))


def _plain(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, (dict, list, bool)):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max([len(name), *(len(row[i]) for row in rows)]) for i, name in enumerate(names)]
    lines = [
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in (names, *rows)
    ]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    count = f"({len(rows)} row{'' if len(rows) == 1 else 's'})"
    return "\n".join([*(line.rstrip() for line in lines), count])
