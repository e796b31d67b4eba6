"""``snowpipe-local status``: databases, pipes and channels in the terminal, live or once."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.local.datadir import DataDirectory
from airflow_provider_snowpipe.local.environment import STATUS_PATH, ask
from airflow_provider_snowpipe.local.errors import DataDirectoryError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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
    room = len(rows) if lines is None else max(lines - _FRAME_LINES, 1)
    shown = rows
    if len(rows) > room:
        busiest = sorted(range(len(rows)), key=lambda index: rows[index][0], reverse=True)[:room]
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
    if len(rows) > room:
        table.caption = f"{len(rows) - room} more channels; --once shows all"
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
