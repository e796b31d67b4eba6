"""``snowpipe-local admin``: one command for the admin socket of a running service."""

from __future__ import annotations

import argparse
import json
from typing import Any

from airflow_provider_snowpipe.local.datadir import DataDirectory
from airflow_provider_snowpipe.local.errors import DataDirectoryError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(text: str) -> float:
    """Read a time such as ``90``, ``90s``, ``15m``, ``2h`` or ``31d``.

    :raises ValueError: for anything else.
    """
    unit = _UNITS.get(text[-1:])
    return float(text) if unit is None else float(text[:-1]) * unit


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands of the admin socket to a parser."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    clock = commands.add_parser("clock", help="show the service's clock, or move it forward")
    clock.add_argument("--move", type=seconds, metavar="TIME", help="for example 90s, 15m, 2h or 31d")
    faults = commands.add_parser("faults", help="show the faults that wait, add some, or clear them all")
    faults.add_argument("--set", metavar="FAULTS", help="as for serve --faults; N counts from now")
    faults.add_argument("--clear", action="store_true", help="forget all, before --set")
    failover = commands.add_parser("failover", help="answer every call to a pipe with 410")
    failover.add_argument("pipe", help="DATABASE.SCHEMA.PIPE")
    failover.add_argument("--back", action="store_true", help="let the pipe answer again")
    invalidate = commands.add_parser("invalidate", help="make a channel invalid until it is opened again")
    invalidate.add_argument("pipe", help="DATABASE.SCHEMA.PIPE")
    invalidate.add_argument("channel", help="exact name")
    commands.add_parser("checkpoint", help="move committed rows into the database files now")
    commands.add_parser("requests", help="count the requests so far, and those that a fault holds up")
    commands.add_parser("rotate-key", help="use a new key for bodies on disk")
    commands.add_parser("status", help="print what snowpipe-local status --json prints")


def rotate_key(_arguments: argparse.Namespace, home: DataDirectory) -> int:
    """Use a new key for bodies on disk, in the running service or, when it is stopped, in its files."""
    from airflow_provider_snowpipe.local.admin.listener import ask
    from airflow_provider_snowpipe.local.engine.spool import Spool

    home.read_account()
    try:
        lock = home.lock()
    except DataDirectoryError:
        answer = ask(home.admin_socket, "rotate-key", {})
    else:
        with lock:
            home.create()
            spool = Spool(home.spool_dir, home.stage_dir, home.spool_keys_file)
            spool.rotate()
            answer = {"keys": len(spool.key_ids), "bodies": spool.files}
    print(json.dumps(answer))
    return 0


def run(arguments: argparse.Namespace, home: DataDirectory) -> int:
    """Send the command and print the answer as JSON."""
    from airflow_provider_snowpipe.local.admin.listener import ask

    given: dict[str, Any] = {
        name: value
        for name, value in vars(arguments).items()
        if name not in ("command", "run", "data_dir") and value not in (None, False)
    }
    print(json.dumps(ask(home.admin_socket, arguments.command, given), indent=1))
    return 0
