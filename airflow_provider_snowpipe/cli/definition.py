"""The commands below ``airflow snowpipe``, with their arguments, and what they do."""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError

if TYPE_CHECKING:
    from airflow.cli.cli_config import CLICommand, GroupCommand

    from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
    from airflow_provider_snowpipe.operators.audit import PipeAudit

_PACKAGE = "airflow_provider_snowpipe.cli"


def get_cli_commands() -> list[CLICommand]:
    """The command group, as Airflow asks every provider for it."""
    from airflow.cli.cli_config import ARG_OUTPUT, GroupCommand

    conn_id = "snowflake_default"
    names = (
        _arg("--table", help="the default pipe of this table"),
        _arg("--pipe", help="this pipe; not together with --table"),
        _arg("--database", help="the pipe's database, the connection's if not given"),
        _arg("--schema", help="the pipe's schema, the connection's if not given"),
    )
    pipe = (_arg("--conn-id", help="connection id", default=conn_id), *names)
    offset_format = _arg("--offset-format", help="format of the offset tokens, such as integer")
    file = (
        _arg("path", help="the backup file: a path, or a URL of an object store"),
        _arg("--path-conn-id", help="connection id for the object store"),
        _arg("--channel", dest="channels", action="append", help="only this channel; may be repeated"),
        offset_format,
        _arg("--dry-run", action="store_true", help="show what would be done, change nothing"),
    )
    commands = (
        _command(
            "doctor",
            "Check connection, key, grants, pipe, network and Spark, and show what to do",
            _arg("--snowflake-conn-id", "--conn-id", dest="conn_id", help="connection id", default=conn_id),
            _arg("--spark-conn-id", help="Spark connection id, spark_default if not given"),
            *names,
            _arg("--json", action="store_true", help="print JSON"),
            description="Ends with the status 1 when a check failed, 0 otherwise; warnings are not failures.",
            module=f"{_PACKAGE}.doctor",
        ),
        _command(
            "plan",
            "Report whether data should be streamed, copied or piped, and what each would cost",
            *_plan_arguments(),
            ARG_OUTPUT,
        ),
        _command("channels", "List the channels of a pipe with their committed tokens", *pipe, ARG_OUTPUT),
        _command(
            "lag",
            "Show how far channels are, and whether they have committed target tokens",
            *pipe,
            _arg("--targets", help="JSON object of channel to target token; without it, all channels"),
            offset_format,
            ARG_OUTPUT,
            description="Ends with the status 1 when a target is not committed.",
        ),
        _command(
            "files",
            "List the units of a path's source log, or make a lost log again",
            _arg("action", nargs="?", choices=("list", "rebuild"), default="list", help="list if not given"),
            _arg("path", help="the source's path: a folder, or a URL of an object store"),
            _arg("--path-conn-id", help="with list, connection id for the object store"),
            _arg("--log-path", help="with list, the source's log_path, if it has one"),
            _arg(
                "--unchanged",
                action="store_true",
                help="with rebuild: since the last commit no file was replaced or renamed, or changed but by "
                "growing",
            ),
            _arg("-y", "--yes", action="store_true", help="with rebuild, do not ask"),
            *pipe,
            ARG_OUTPUT,
            description="rebuild reads the files to count their rows, and changes nothing where these do not "
            "show what is committed.",
            module=f"{_PACKAGE}.files",
        ),
        _command(
            "letters",
            "Print dead letters as NDJSON, to be corrected and loaded again",
            _arg("path", help="the load's dead_letter_path: a folder, or a URL of an object store"),
            _arg("--run", help="only rows of this run, as the column application names it"),
            module=f"{_PACKAGE}.files",
        ),
        _command(
            "audit",
            "Compare what sources hold, what channels count and what tables have",
            _arg("--dag-id", dest="dag_ids", action="append", help="sources of this DAG; may be repeated"),
            _arg(
                "--depth",
                choices=("balance", "counts", "rows"),
                default="balance",
                help="counts reads the sources again and counts the tables' rows, which takes a warehouse; "
                "rows also finds missing and doubled rows by the columns of metadata",
            ),
            _arg("--other-rows", type=int, default=0, help="rows of the table that others have inserted"),
            _arg("--json", action="store_true", help="print JSON"),
            *pipe,
            description="Without --table, --pipe and --dag-id, audits all sources that this Airflow has "
            "loaded through channels. Ends with the status 1 when anything differs.",
        ),
        GroupCommand(
            name="offsets",
            help="Read offset tokens, and give a channel to another source",
            subcommands=(
                _command(
                    "decode",
                    "Explain an offset token",
                    _arg("token", help="as a channel has committed it"),
                    _arg("--json", action="store_true", help="print JSON"),
                ),
                _command(
                    "rebind",
                    "Give a channel to another source, as the argument rebind of operators does",
                    _arg("channel", help="the channel's name"),
                    _arg("rebind", choices=("continue", "restart"), help="keep its position, or begin again"),
                    _arg(
                        "--binding",
                        help="with continue, the binding of the other source, from the error's text",
                    ),
                    _arg("-y", "--yes", action="store_true", help="do not ask"),
                    *pipe,
                ),
            ),
        ),
        _command(
            "backup",
            "Write the offset tokens of a pipe's channels to a file",
            *file,
            _arg(
                "--on-lost",
                choices=("fail", "keep"),
                default="fail",
                help="when a channel has lost the token that the file holds",
            ),
            *pipe,
        ),
        _command(
            "restore",
            "Bring channels back to the offset tokens of a backup",
            *file,
            _arg("--allow-older-tokens", action="store_true", help="set a token back, too"),
            _arg("--allow-active-writer", action="store_true", help="in spite of a writer"),
            _arg("-y", "--yes", action="store_true", help="do not ask"),
            *pipe,
        ),
        _command(
            "local",
            "Run the local service's own command line (serve, env, sql, status, campaign, admin, rotate-key)",
            _arg("arguments", nargs=argparse.REMAINDER, help="after --, what snowpipe-local takes"),
            description="For example: airflow snowpipe local -- serve --data-dir ~/snowpipe",
        ),
    )
    return [
        GroupCommand(
            name="snowpipe", help="Snowpipe Streaming channels and their tokens", subcommands=commands
        )
    ]


def _plan_arguments() -> tuple[Any, ...]:
    return (
        _arg(
            "--from",
            dest="source",
            required=True,
            help="@stage/path, table:NAME (its past loads), a path, a URL, kafka://host:port/topic, or, as "
            "JSON, a Kafka source or the shape",
        ),
        _arg("--freshness", type=float, help="seconds after which a row has to be queryable"),
        _arg("--endless", action="store_true", help="more keeps arriving, as the files that are there did"),
        _arg("--arrival-rate", type=float, help="with --endless, uncompressed bytes per second"),
        _arg("--backfill", action="store_true", help="data of the past that nobody waits for"),
        _arg("--live-into-files", action="store_true", help="live rows, written to files only to be loaded"),
        _arg("--given-to", choices=("copy", "pipe"), help="who loads these very files already"),
        _arg("--partitions", type=int, help="ordered units of the source, each with a channel"),
        _arg("--path", choices=("auto", "stream", "copy", "pipe"), default="auto", help="force a path"),
        _arg("--previous", choices=("stream", "copy", "pipe"), help="the path of the run before"),
        _arg("--warehouse", default="X-SMALL", help="size of the warehouse that COPY runs in"),
        _arg("--warehouse-is-running", action="store_true", help="it runs anyway, no minimum is billed"),
        _arg("--has-pipe", action="store_true", help="a file pipe for these files exists"),
        _arg("--cost", action="append", metavar="NAME=NUMBER", help="replace a figure; may be repeated"),
        _arg("--conn-id", help="connection id for stages and tables", default="snowflake_default"),
        _arg("--database", help="the stage's or table's database, the connection's if not given"),
        _arg("--schema", help="its schema, the connection's if not given"),
        _arg("--storage-conn-id", help="connection id for a URL"),
        _arg("--table", help="table of Kafka topics, whose channels show how far each partition is in it"),
        _arg("--channel-prefix", help="with --table, the first part of these channels' names"),
    )


def parser() -> argparse.ArgumentParser:
    """The commands without Airflow's command line, for one that asks no provider for them (before 3.2)."""
    made = argparse.ArgumentParser(prog="python -m airflow_provider_snowpipe.cli")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    _add(commands, cast("GroupCommand", get_cli_commands()[0]).subcommands)
    return made


def _add(parsers: Any, commands: Any) -> None:
    for command in commands:
        one = parsers.add_parser(command.name, help=command.help, description=command.description)
        if hasattr(command, "subcommands"):
            _add(one.add_subparsers(required=True, metavar="COMMAND"), command.subcommands)
            continue
        for argument in command.args:
            argument.add_to_parser(one)
        one.set_defaults(func=command.func)


def _command(
    name: str, help: str, *args: Any, description: str | None = None, module: str = f"{_PACKAGE}.definition"
) -> Any:
    """A command; what does it is the function of its name in a module, imported when it is run."""
    from airflow.cli.cli_config import ActionCommand, lazy_load_command

    func = lazy_load_command(f"{module}.{name}")
    return ActionCommand(name=name, help=help, description=description, func=func, args=args)


def _arg(*flags: str, **options: Any) -> Any:
    from airflow.cli.cli_config import Arg

    return Arg(flags, **options)  # type: ignore[no-untyped-call]


# -- What the commands do --------------------------------------------------------------------------------

Command = Callable[[argparse.Namespace], None]


def reported(command: Command) -> Command:
    """End with one line instead of a traceback, and find connections where Airflow's servers do.

    What is logged meanwhile is not shown: Airflow 2 logs to where the answer goes.
    """

    @functools.wraps(command)
    def run(args: argparse.Namespace) -> None:
        from airflow.providers.common.compat.sdk import AirflowException

        # Outside of a task, connections of the metadata database are found in this context only; Airflow's
        # own command "connections test" does the same.
        os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
        logging.disable(logging.WARNING)
        try:
            command(args)
        except (SnowpipeError, AirflowException, OSError) as error:
            raise SystemExit(f"snowpipe: {error}") from None
        finally:
            logging.disable(logging.NOTSET)

    return run


@reported
def channels(args: argparse.Namespace) -> None:
    """Print the channels of a pipe."""
    print_lines(
        args,
        [
            {
                "channel": one.name,
                "table": one.table,
                "committed": one.offset_token,
                "created": None if one.created_on is None else one.created_on.isoformat(),
                "openings": one.client_sequencer,
            }
            for one in pipe_hook(args).list_channels()
        ],
    )


@reported
def lag(args: argparse.Namespace) -> None:
    """Print how far channels are; end with status 1 when a target is not committed."""
    from airflow_provider_snowpipe.operators.source_record import file_backlogs
    from airflow_provider_snowpipe.streaming.lag import ChannelLag
    from airflow_provider_snowpipe.streaming.progress import ChannelStatus, CommitTargets

    hook = pipe_hook(args)
    targets = _targets(args.targets)
    expected = CommitTargets.parse(targets, args.offset_format) if targets else None
    names = list(targets) or [one.name for one in hook.list_channels()]
    statuses = hook.channel_statuses(names) if names else {}
    backlogs, notes = file_backlogs(hook, statuses)
    new = {} if targets else {name: ChannelStatus.missing(name) for name in backlogs if name not in statuses}
    every = {**statuses, **new}
    found = [ChannelLag.of(one, expected, backlogs.get(name)) for name, one in every.items()]
    print_lines(args, [channel.row() for channel in found])
    for note in notes:
        print(f"not known: {note}", file=sys.stderr)
    if any(channel.is_late for channel in found):
        raise SystemExit(1)


@reported
def audit(args: argparse.Namespace) -> None:
    """Print what the audit finds; end with status 1 when anything differs."""
    from airflow_provider_snowpipe.hooks.snowpipe import names_of
    from airflow_provider_snowpipe.operators.audit import SnowpipeAuditOperator

    operator = SnowpipeAuditOperator(
        task_id="cli",
        dag_ids=args.dag_ids,
        depth=args.depth,
        other_rows=args.other_rows,
        snowflake_conn_id=args.conn_id,
        **names_of(args),
    )
    found = operator.audit()
    differs = any(pipe.differences for pipe in found)
    if args.json:
        pipes = [pipe.as_json() for pipe in found]
        print(json.dumps({"depth": args.depth, "differs": differs, "pipes": pipes}))
    else:
        for pipe in found:
            _print_audit(pipe)
    if differs:
        raise SystemExit(1)


def _print_audit(found: PipeAudit) -> None:
    from airflow.cli.simple_table import AirflowConsole

    print(f"pipe {found.pipe}")
    lines = [
        {
            "channel": one.channel,
            "checkpoint": one.rows,
            "inserted": one.inserted,
            "rejected": one.rejected,
            "source": one.source_rows,
            "agrees": "no" if one.differences else "yes",
        }
        for one in found.channels
    ]
    if lines:
        AirflowConsole().print_as(data=lines, output="table")
    if found.table is not None:
        table = found.table
        print(
            f"table {table.table}: {table.rows} rows; channels {table.streamed}, COPY {table.copied}, "
            f"others {table.others}"
        )
    notes = (f"channel {one.channel!r}: {note}" for one in found.channels for note in one.notes)
    for note in (*found.notes, *notes):
        print(f"not checked: {note}")
    for text in found.differences:
        print(f"DIFFERS: {text}")


@reported
def decode(args: argparse.Namespace) -> None:
    """Explain an offset token."""
    from airflow_provider_snowpipe.operators.source_record import source_of_binding
    from airflow_provider_snowpipe.streaming.checkpoint import described

    found = described(args.token)
    found["source"] = source_of_binding(str(found["binding"]))
    if args.json:
        print(json.dumps(found))
        return
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name.ljust(width)}  {'unknown to this Airflow' if value is None else value}")


@reported
def rebind(args: argparse.Namespace) -> None:
    """Give a channel to another source."""
    from airflow_provider_snowpipe.operators.source_record import known_records
    from airflow_provider_snowpipe.streaming.admin import TokenChange, compare_and_set, drop_channel
    from airflow_provider_snowpipe.streaming.checkpoint import rebound

    hook = pipe_hook(args)
    status = hook.channel_statuses([args.channel])[args.channel]
    if not status.exists:
        raise ConfigurationError(f"channel {args.channel!r} of pipe {hook.pipe_name()} does not exist")
    token = None
    if args.rebind == "continue":
        token = rebound(status, args.binding)
        print(f"would set the token of channel {args.channel!r}: {status.committed} -> {token}")
    else:
        print(
            f"would drop channel {args.channel!r} with its token {status.committed or 'NULL'}; the next load "
            "begins at the source's first row, and the rows in the table stay"
        )
    if not args.yes and not agrees():
        raise SystemExit("snowpipe: nothing was changed; -y does it without a question")
    with hook.get_client() as client:
        if token is not None:
            compare_and_set(client, TokenChange.after(status, token))
        else:
            drop_channel(client, args.channel)
            pipe = astuple(hook.pipe_name())
            for record in known_records():
                if record.loaded is not None and record.loaded.pipe == pipe:
                    record.forget(args.channel)
    print("done")


@reported
def backup(args: argparse.Namespace) -> None:
    """Write a backup, or report what would be written."""
    from airflow_provider_snowpipe.operators.offsets import SnowpipeBackupOffsetsOperator

    operator = SnowpipeBackupOffsetsOperator(on_lost=args.on_lost, **_file_arguments(args))
    if args.dry_run:
        print("\n".join(operator.preview()))
        return
    done = operator.perform({})
    print(f"wrote the tokens of {len(done['channels'])} channels of pipe {done['pipe']} to {done['path']}")
    for name, expires in done["expiring"].items():
        print(f"channel {name!r} is deleted with its token on {expires}, unless it takes rows before")


@reported
def restore(args: argparse.Namespace) -> None:
    """Restore a backup after showing what will be done."""
    from airflow_provider_snowpipe.operators.offsets import SnowpipeRestoreOffsetsOperator

    operator = SnowpipeRestoreOffsetsOperator(
        allow_older_tokens=args.allow_older_tokens,
        allow_active_writer=args.allow_active_writer,
        **_file_arguments(args),
    )
    print("\n".join(operator.preview()) or "nothing to restore")
    if args.dry_run:
        return
    if not args.yes and not agrees():
        raise SystemExit("snowpipe: nothing was changed; -y does it without a question")
    done = operator.perform({})
    print(f"restored {len(done['channels'])} channels of pipe {done['pipe']} from {done['path']}")


def agrees() -> bool:
    """Ask the user; False where nobody can be asked."""
    try:
        return input("Do this? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # nobody can be asked, as in a job of cron
        print()
        return False


def local(args: argparse.Namespace) -> None:
    """Run ``snowpipe-local``, another distribution's command: the one beside this Python, or on the path."""
    folders = (os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath))
    command = shutil.which("snowpipe-local", path=os.pathsep.join(folders))
    if command is None:
        raise SystemExit(
            "snowpipe: the command snowpipe-local is not installed. Run: "
            'pip install "airflow-provider-snowpipe[local]"'
        )
    given = args.arguments[1:] if args.arguments[:1] == ["--"] else args.arguments
    done = subprocess.run([command, *(given or ["--help"])], check=False)  # noqa: S603  the user's own words
    raise SystemExit(done.returncode)


def pipe_hook(args: argparse.Namespace) -> SnowpipeHook:
    """The hook of the pipe that the arguments name."""
    from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook, names_of

    return SnowpipeHook(args.conn_id, **names_of(args))


def _file_arguments(args: argparse.Namespace) -> dict[str, Any]:
    from airflow_provider_snowpipe.hooks.snowpipe import names_of

    given = {name: getattr(args, name) for name in ("path", "path_conn_id", "channels", "offset_format")}
    return {"task_id": "cli", "snowflake_conn_id": args.conn_id, **given, **names_of(args)}


def _targets(text: str | None) -> dict[str, str]:
    if not text:
        return {}
    try:
        targets = json.loads(text)
    except ValueError:
        targets = None
    if not isinstance(targets, dict) or not targets:
        raise ConfigurationError(f"--targets is {text[:80]!r}: give a JSON object of channel to offset token")
    return targets


def print_lines(args: argparse.Namespace, lines: list[dict[str, Any]]) -> None:
    """Print records in the form that ``--output`` asks for."""
    from airflow.cli.simple_table import AirflowConsole

    if args.output == "json":  # Airflow's own would make every number and NULL a text
        print(json.dumps(lines))
        return
    AirflowConsole().print_as(data=lines, output=args.output)


@reported
def plan(args: argparse.Namespace) -> None:
    """Print the plan: a table of the paths, then reasons, advice and warnings; or all of it as JSON."""
    from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
    from airflow_provider_snowpipe.operators.load_planning import ShapeSource
    from airflow_provider_snowpipe.routing.cost_model import CostModel, LoadPolicy
    from airflow_provider_snowpipe.routing.planner import plan_load

    if (args.table is None) != (args.channel_prefix is None):
        raise ConfigurationError(
            f"--table is {args.table} and --channel-prefix is {args.channel_prefix}: the channels of a Kafka "
            "source are found by both; give both, or none"
        )
    hook = SnowpipeBulkHook(args.conn_id, table=args.table, database=args.database, schema=args.schema)
    source = ShapeSource(args.source, hook, args.storage_conn_id, args.channel_prefix)
    shape = source.shape(_known(args))
    policy = LoadPolicy(
        path=args.path,
        warehouse=args.warehouse.upper(),
        warehouse_is_running=args.warehouse_is_running,
        has_pipe=args.has_pipe,
        costs=CostModel.with_figures(_figures(args.cost or [])),
    )
    made = plan_load(shape, policy, args.previous)
    if args.output == "json":
        print(json.dumps({"shape": shape.as_json(), "plan": made.as_json()}))
        return
    print_lines(args, made.table())
    print("\n".join(made.lines()))


def _known(args: argparse.Namespace) -> dict[str, Any]:
    """What the arguments give of the data; the rest is left to the source."""
    known: dict[str, Any] = {
        **{name: getattr(args, name) for name in ("freshness", "given_to", "partitions", "arrival_rate")},
        "backfill": args.backfill or None,
        "live_into_files": args.live_into_files or None,
        "bounded": False if args.endless else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _figures(pairs: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigurationError(f"--cost is {pair!r}: give name=number, such as text_ratio=6")
        found[name] = value
    return found
