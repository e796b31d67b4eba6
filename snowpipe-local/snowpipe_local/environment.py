"""Clients of a running local service: ``snowpipe-local env``, ``sql`` and ``status``."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import requests

from snowpipe_local.accounts import sign_key_pair_jwt
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.errors import DataDirectoryError, SqlError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


STATUS_PATH = ("local", "status")
"""Path of the call that answers the status, for the service's own user."""
_SPARK_HERE = json.dumps({"conn_type": "spark", "host": "local[*]"})
_TIMEOUT = (2.0, 5.0)


def service_url(home: DataDirectory) -> str:
    """Return the URL of the service on a data directory.

    :raises DataDirectoryError: when none was ever started there.
    """
    home.read_account()
    port = home.remembered_port()
    if port is None:
        raise DataDirectoryError(f"no local service was ever started on {home.root}")
    return f"https://127.0.0.1:{port}"


def client_session(home: DataDirectory) -> requests.Session:
    """Return an HTTP session that trusts this service only, whatever the environment sets."""
    session = requests.Session()
    # REQUESTS_CA_BUNDLE and proxies of the machine must not apply to a loopback service.
    session.trust_env = False
    session.verify = str(home.authority_file)
    return session


def ask(
    home: DataDirectory, method: str, path: str, timeout: tuple[float, float], body: Any = None
) -> tuple[int, Any]:
    """Send one call to the running service as its own user; return status and JSON of the answer.

    :param timeout: seconds to connect, and to wait for the answer.
    :raises DataDirectoryError: when the service does not answer.
    """
    url = service_url(home)
    headers = {
        "Authorization": f"Bearer {sign_key_pair_jwt(home)}",
        "X-Snowflake-Authorization-Token-Type": "KEYPAIR_JWT",
    }
    try:
        with client_session(home) as session:
            answer = session.request(method, f"{url}{path}", json=body, headers=headers, timeout=timeout)
            return answer.status_code, answer.json()
    except (requests.RequestException, ValueError, OSError) as error:
        raise DataDirectoryError(f"the local service at {url} does not answer: {error}") from error


def check_ready(home: DataDirectory) -> None:
    """Ask the service whether it answers.

    :raises DataDirectoryError: when it does not, or another data directory's service has the port.
    """
    url = service_url(home)
    try:
        with client_session(home) as session:
            answer = session.get(f"{url}/health", timeout=_TIMEOUT).json()
    except (requests.RequestException, ValueError, OSError) as error:
        raise DataDirectoryError(f"the local service at {url} does not answer yet: {error}") from error
    if answer.get("instance") != home.read_account()["instance"]:
        raise DataDirectoryError(f"{url} is answered by a service on another data directory")


def variables(home: DataDirectory) -> dict[str, str]:
    """Return the variables; none of them holds a secret, only the paths of the files that do."""
    stored, url = home.read_account(), service_url(home)
    connection = {
        "conn_type": "snowflake",
        "login": stored["user"],
        "schema": "PUBLIC",
        "extra": {
            "account": stored["account"],
            "database": "LOCAL",
            "warehouse": "LOCAL",
            "role": "ACCOUNTADMIN",
            "host": "127.0.0.1",
            "port": home.remembered_port(),
            "private_key_file": str(home.key_file),
        },
    }
    return {
        "SNOWPIPE_LOCAL_URL": url,
        "SNOWPIPE_LOCAL_ACCOUNT": stored["account"],
        "SNOWPIPE_LOCAL_USER": stored["user"],
        "SNOWPIPE_LOCAL_PRIVATE_KEY_FILE": str(home.key_file),
        "SNOWPIPE_LOCAL_PROXY": f"http://127.0.0.1:{home.remembered_proxy_port()}",
        "SNOWPIPE_LOCAL_PASSWORD_FILE": str(home.password_file),
        "SSL_CERT_FILE": str(home.bundle_file),
        "REQUESTS_CA_BUNDLE": str(home.bundle_file),
        "AIRFLOW_CONN_SNOWFLAKE_DEFAULT": json.dumps(connection),
        # A Spark of the user's own stays: without any, Airflow would search for YARN.
        "AIRFLOW_CONN_SPARK_DEFAULT": os.environ.get("AIRFLOW_CONN_SPARK_DEFAULT", _SPARK_HERE),
    }


def export_lines(home: DataDirectory) -> list[str]:
    """Return the variables as lines for a POSIX shell.

    :raises DataDirectoryError: until the service answers.
    """
    check_ready(home)
    return [f"export {name}={shlex.quote(value)}" for name, value in variables(home).items()]


# -- ``snowpipe-local sql``: one statement through the SQL API, printed as table, JSON or CSV ------------

_STATEMENT_TIMEOUT = (5.0, 600.0)
_EPOCH = dt.datetime(1970, 1, 1)


def run_statement(home: DataDirectory, statement: str, form: str) -> str:
    """Run a statement against the running service and format its result.

    :param form: ``table``, ``json`` (a list of objects) or ``csv``.
    :raises SqlError: when the statement fails.
    :raises DataDirectoryError: when the service does not answer.
    """
    names, rows = fetch(home, statement)
    if form == "json":
        return json.dumps(
            [{name: _json(value) for name, value in zip(names, row, strict=True)} for row in rows],
            ensure_ascii=False,
            allow_nan=False,
        )
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
    status, content = ask(home, "POST", "/api/v2/statements", _STATEMENT_TIMEOUT, body)
    if status != 200:
        raise SqlError(
            content["code"], content.get("sqlState", "XX000"), f"{content['code']}: {content['message']}"
        )
    types = content["resultSetMetaData"]["rowType"]
    found = content["data"]
    for partition in range(1, len(content["resultSetMetaData"]["partitionInfo"])):
        path = f"/api/v2/statements/{content['statementHandle']}?partition={partition}"
        found += ask(home, "GET", path, _STATEMENT_TIMEOUT)[1]["data"]
    rows = [[_native(value, kind) for value, kind in zip(row, types, strict=True)] for row in found]
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
        return str(np.datetime64(int(text), "D"))
    if kind == "time":
        return (_EPOCH + _span(text)).time().isoformat()
    if kind.startswith("timestamp"):
        seconds, _, minutes = text.partition(" ")
        offset = dt.timedelta(minutes=int(minutes) - 1440 if minutes else 0)
        zone = None if kind == "timestamp_ntz" else dt.timezone(offset)
        try:
            return (_EPOCH + _span(seconds) + offset).replace(tzinfo=zone).isoformat()
        except OverflowError:
            # A query may compute years that Python does not have.
            return f"{np.datetime64(int(Decimal(seconds)), 's')}{'' if zone is None else '+00:00'}"
    return text


def _span(seconds: str) -> dt.timedelta:
    return dt.timedelta(microseconds=int(Decimal(seconds) * 1_000_000))


def _json(value: Any) -> Any:
    """A value that JSON has; NaN and the infinities are texts."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else str(value)


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


# -- ``snowpipe-local status``: databases, pipes and channels in the terminal, live or once --------------

_STATUS_TIMEOUT = (2.0, 10.0)
_REFRESH_SECONDS = 1.0
# Lines of the terminal that are not channels: borders, header, title and the line about the rest.
_FRAME_LINES = 7


def fetch_status(home: DataDirectory) -> dict[str, Any]:
    """Ask the running service for its status, as its own user.

    :raises DataDirectoryError: when it does not answer.
    """
    code, content = ask(home, "GET", f"/{'/'.join(STATUS_PATH)}", _STATUS_TIMEOUT)
    if code != 200:
        raise DataDirectoryError(
            f"the local service refused: {content.get('code')}: {content.get('message')}"
        )
    return dict(content)


def show(home: DataDirectory, *, once: bool, as_json: bool) -> None:
    """Print the status; without ``once``, keep it up to date until Ctrl-C.

    :param as_json: print the service's answer, once.
    """
    # It takes a while to import, and nothing else needs it.
    from rich.console import Console

    first = fetch_status(home)
    console = Console()
    if as_json:
        json.dump(first, sys.stdout, indent=1)
        sys.stdout.write("\n")
    elif once or not console.is_terminal:
        console.width = max(console.width, 120) if not console.is_terminal else console.width
        console.print(render(first))
    else:
        _follow(console, home, first)


def _follow(console: Console, home: DataDirectory, earlier: dict[str, Any]) -> None:
    from rich.live import Live

    with Live(render(earlier, lines=console.height), console=console, auto_refresh=False) as live:
        seen_at = time.monotonic()
        while True:
            time.sleep(_REFRESH_SECONDS)
            now, status = time.monotonic(), fetch_status(home)
            rates = _rates(earlier, status, now - seen_at)
            live.update(render(status, rates, lines=console.height), refresh=True)
            earlier, seen_at = status, now


def render(
    status: dict[str, Any], rates: dict[tuple[str, ...], float] | None = None, lines: int | None = None
) -> Table:
    """Return the status as a table; the channels that lag most are kept when not all fit.

    :param rates: rows per second of channels, or None for bytes per second as the service measured them.
    :param lines: height of the terminal, None for any number of channels.
    """
    from rich.table import Table

    rows = list(_rows(status, rates))
    most = len(rows) if lines is None else max(lines - _FRAME_LINES, 1)
    shown = rows
    if len(rows) > most:
        busiest = sorted(range(len(rows)), key=lambda index: rows[index][0], reverse=True)[:most]
        shown = [rows[index] for index in sorted(busiest)]
    title = f"Local Snowpipe service, {status['now']}"
    if status["clock_moved_seconds"]:
        title += f" (clock moved by {status['clock_moved_seconds'] / 86_400:g} days)"
    table = Table(title=title, title_justify="left")
    for heading in ("database", "pipe", "channel", "status", "committed token"):
        table.add_column(heading, overflow="fold")
    for heading in ("rows", "errors", "waiting", "lag s", "rows/s" if rates is not None else "B/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for _, cells in shown:
        table.add_row(*cells)
    if len(rows) > most:
        table.caption = f"{len(rows) - most} more channels; --once shows all"
    return table


def _rows(
    status: dict[str, Any], rates: dict[tuple[str, ...], float] | None
) -> Iterator[tuple[float, tuple[str, ...]]]:
    for database in status["databases"]:
        if not database["pipes"]:
            yield 0.0, (database["name"], *("-",) * 9)
        for pipe in database["pipes"]:
            name = f"{pipe['schema']}.{pipe['name']}"
            state = "FAILED OVER" if pipe["failed_over"] else ""
            if not pipe["channels"]:
                yield 0.0, (database["name"], name, "-", state or "-", *("-",) * 6)
            for channel in pipe["channels"]:
                rate = channel["bytes_per_second"]
                if rates is not None:
                    rate = rates.get((database["name"], name, channel["name"]), 0.0)
                yield (
                    channel["lag_seconds"] + rate / 1e12,
                    (
                        database["name"],
                        name,
                        channel["name"] + (" *" if channel["own_commits"] else ""),
                        state or channel["status"],
                        "NULL" if channel["committed_token"] is None else channel["committed_token"],
                        f"{channel['rows_inserted']:,}",
                        f"{channel['rows_error_count']:,}",
                        f"{channel['uncommitted_appends']} ({_size(channel['uncommitted_bytes'])})",
                        f"{channel['lag_seconds']:.1f}",
                        f"{rate:,.0f}",
                    ),
                )


def _rates(earlier: dict[str, Any], later: dict[str, Any], seconds: float) -> dict[tuple[str, ...], float]:
    before, after = _inserted(earlier), _inserted(later)
    return {key: max(rows - before.get(key, rows), 0) / seconds for key, rows in after.items()}


def _inserted(status: dict[str, Any]) -> dict[tuple[str, ...], int]:
    return {
        (database["name"], f"{pipe['schema']}.{pipe['name']}", channel["name"]): channel["rows_inserted"]
        for database in status["databases"]
        for pipe in database["pipes"]
        for channel in pipe["channels"]
    }


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
