"""Command line of the local service: ``snowpipe-local serve | env | sql | status | …``."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from snowpipe_local.datadir import DataDirectory
from snowpipe_local.errors import ConfigurationError, DataDirectoryError, ServiceError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    :param argv: arguments without the program name; None takes those of the process.
    """
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.run(arguments, DataDirectory(_data_dir(arguments.data_dir))))
    except ServiceError as error:
        print(f"snowpipe-local: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        from snowpipe_local.engine import spool

        if not spool.is_full(error):
            raise
        where = _data_dir(arguments.data_dir)
        print(
            f"snowpipe-local: the disk of {where} is full; free some space, then start again", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    """The commands with their arguments."""
    parser = argparse.ArgumentParser(
        prog="snowpipe-local", description="Embedded, Snowflake-compatible Snowpipe service on 127.0.0.1."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    data_dir = argparse.ArgumentParser(add_help=False)
    data_dir.add_argument("--data-dir", type=Path, required=True, help="directory of the service's state")

    serve = commands.add_parser("serve", parents=[data_dir], help="run the service until it is stopped")
    serve.add_argument(
        "--port", type=int, default=0, help="port on 127.0.0.1; 0 keeps the last port, or picks a free one"
    )
    serve.add_argument(
        "--faults",
        help="for tests, by commas, for example commit-delay=2,answer-append=429x3,kill-before-commit=2",
    )
    serve.add_argument(
        "--limits", help="by commas, for example requests-per-second=100,bytes-per-second=0; or the word off"
    )
    serve.add_argument(
        "--admin", action="store_true", help="open the socket of snowpipe-local admin, for tests"
    )
    serve.add_argument(
        "--allow-folder",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder that file:// stages may read and delete in; may be repeated",
    )
    serve.add_argument(
        "--s3-endpoint", metavar="URL", help="S3 service on this machine for s3:// stages without ENDPOINT"
    )
    serve.add_argument(
        "--init", type=Path, metavar="FILE.sql", help="statements to run at every start, before clients"
    )
    serve.set_defaults(run=_serve)

    env = commands.add_parser(
        "env", parents=[data_dir], help="print export lines for a shell; fails until the service answers"
    )
    env.set_defaults(run=_env)

    sql = commands.add_parser("sql", parents=[data_dir], help="run one statement against the running service")
    sql.add_argument("--format", choices=("table", "json", "csv"), default="table", help="form of the result")
    sql.add_argument("statement", help="one SQL statement")
    sql.set_defaults(run=_sql)

    status = commands.add_parser("status", help="show databases, pipes and channels of a running service")
    status.add_argument(
        "--data-dir",
        type=Path,
        help="directory of the service's state; taken from an evaluated env if absent",
    )
    status.add_argument("--once", action="store_true", help="print and end, instead of a live view")
    status.add_argument("--json", action="store_true", help="print JSON and end")
    status.set_defaults(run=_status)

    struck = commands.add_parser(
        "campaign", help="run a DAG or a program again and again under seeded faults; 1 if rows are wrong"
    )
    _add_campaign_arguments(struck)
    # Each of its services has a data directory of its own, below this one.
    struck.set_defaults(run=_campaign, data_dir=Path(tempfile.gettempdir()))

    admin = commands.add_parser("admin", parents=[data_dir], help="command a service that serves --admin")
    _add_admin_arguments(admin)
    admin.set_defaults(run=_admin)

    rotate = commands.add_parser(
        "rotate-key", parents=[data_dir], help="use a new key for bodies on disk; running service or not"
    )
    rotate.set_defaults(run=_rotate_key)
    return parser


def _add_campaign_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--dag", type=Path, metavar="FILE.py", help="run the DAG of this file by dag.test()")
    what.add_argument(
        "--plan",
        type=Path,
        metavar="FILE.json",
        help='run a program: {"command": ["python", "load.py"], "env": {..}, "init": "tables.sql"}',
    )
    parser.add_argument("--dag-id", help="which DAG, where the file has several")
    parser.add_argument("--conf", default="{}", metavar="JSON", help="the DAG run's conf, for its params")
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no round after them; 10")
    parser.add_argument("--rounds", type=int, help="end after so many rounds")
    parser.add_argument("--seed", type=int, default=0, help="of the first round, the next has one more; 0")
    parser.add_argument(
        "--init", type=Path, metavar="FILE.sql", help="statements that make tables and stages"
    )
    parser.add_argument(
        "--compare", action="append", default=[], metavar="SQL", help="rows to compare; all without it"
    )
    parser.add_argument(
        "--conn-id", action="append", default=[], help="another connection id that leads to the service"
    )
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="for the environment of the run"
    )


def _seconds(text: str) -> float:
    unit = _UNITS.get(text[-1:])
    try:
        return float(text) if unit is None else float(text[:-1]) * unit
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a time; write for example 90s, 15m, 2h or 31d"
        ) from error


def _add_admin_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    clock = commands.add_parser("clock", help="show the service's clock, or move it forward")
    clock.add_argument("--move", type=_seconds, metavar="TIME", help="for example 90s, 15m, 2h or 31d")
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


def _rotate_key(_arguments: argparse.Namespace, home: DataDirectory) -> int:
    from snowpipe_local.admin import ask
    from snowpipe_local.engine.spool import Spool

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


def _admin(arguments: argparse.Namespace, home: DataDirectory) -> int:
    from snowpipe_local.admin import ask

    given: dict[str, Any] = {
        name: value
        for name, value in vars(arguments).items()
        if name not in ("command", "run", "data_dir") and value not in (None, False)
    }
    print(json.dumps(ask(home.admin_socket, arguments.command, given), indent=1))
    return 0


def _campaign(arguments: argparse.Namespace, _home: DataDirectory) -> int:
    from snowpipe_local import campaign

    return campaign.run_command(arguments)


def _serve(arguments: argparse.Namespace, home: DataDirectory) -> int:
    from snowpipe_local.faults import parse_faults
    from snowpipe_local.limits import parse_limits
    from snowpipe_local.server import InitFile, serve
    from snowpipe_local.stages.storage import Outside

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Its warnings quote statements, with the secrets in them.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    serve(
        home,
        arguments.port,
        parse_faults(arguments.faults),
        parse_limits(arguments.limits),
        admin=arguments.admin,
        outside=Outside.from_options(arguments.allow_folder, arguments.s3_endpoint),
        init=InitFile.read(arguments.init.expanduser()) if arguments.init else None,
    )
    return 0


def _env(_arguments: argparse.Namespace, home: DataDirectory) -> int:
    from snowpipe_local import environment

    for line in environment.export_lines(home):
        print(line)
    return 0


def _sql(arguments: argparse.Namespace, home: DataDirectory) -> int:
    from snowpipe_local import environment

    print(environment.run_statement(home, arguments.statement, arguments.format))
    return 0


def _status(arguments: argparse.Namespace, home: DataDirectory) -> int:
    from snowpipe_local import environment

    environment.show(home, once=arguments.once, as_json=arguments.json)
    return 0


def _data_dir(given: Path | None) -> Path:
    """Return the directory as given, or that of the service whose ``env`` the shell evaluated."""
    key_file = os.environ.get("SNOWPIPE_LOCAL_PRIVATE_KEY_FILE")
    if given is None and not key_file:
        raise ConfigurationError("name the service: --data-dir D, or evaluate snowpipe-local env first")
    return (given or Path(str(key_file)).parent).expanduser().resolve()


if __name__ == "__main__":
    raise SystemExit(main())
