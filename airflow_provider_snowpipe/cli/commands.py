"""What the commands below ``airflow snowpipe`` do."""

from __future__ import annotations

import functools
import json
import logging
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError

Command = Callable[[Namespace], None]


def reported(command: Command) -> Command:
    """End with one line instead of a traceback, and find connections where Airflow's servers do.

    What is logged meanwhile is not shown: Airflow 2 logs to where the answer goes.

    :param command: what to do with the arguments
    """

    @functools.wraps(command)
    def run(args: Namespace) -> None:
        # Outside of a task, connections of the metadata database are found in this context only; Airflow's
        # own command "connections test" does the same.
        os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
        logging.disable(logging.WARNING)
        try:
            command(args)
        except SnowpipeError as error:
            raise SystemExit(f"snowpipe: {error}") from None
        finally:
            logging.disable(logging.NOTSET)

    return run


@reported
def channels(args: Namespace) -> None:
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
            for one in _hook(args).list_channels()
        ],
    )


@reported
def lag(args: Namespace) -> None:
    """Print how far channels are; end with status 1 when a target is not committed."""
    from airflow_provider_snowpipe.streaming.progress import ChannelLag, CommitTargets

    hook = _hook(args)
    targets = _targets(args.targets)
    expected = CommitTargets.parse(targets, args.offset_format) if targets else None
    names = list(targets) or [one.name for one in hook.list_channels()]
    statuses = hook.channel_statuses(names) if names else {}
    found = [ChannelLag.of(status, expected) for status in statuses.values()]
    print_lines(args, [channel.row() for channel in found])
    if any(channel.is_late for channel in found):
        raise SystemExit(1)


@reported
def backup(args: Namespace) -> None:
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
def restore(args: Namespace) -> None:
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
    if not args.yes and input("Do this? [y/N] ").strip().lower() not in ("y", "yes"):
        raise SystemExit("snowpipe: nothing was changed")
    done = operator.perform({})
    print(f"restored {len(done['channels'])} channels of pipe {done['pipe']} from {done['path']}")


def local(args: Namespace) -> None:
    """Hand over to the local service's command line."""
    if find_spec("duckdb") is None:
        raise SystemExit(
            "snowpipe: the local service is not installed: pip install 'airflow-provider-snowpipe[local]'"
        )
    given = args.arguments[1:] if args.arguments[:1] == ["--"] else args.arguments
    command = [sys.executable, "-m", "airflow_provider_snowpipe.local.cli", *(given or ["--help"])]
    raise SystemExit(subprocess.run(command, check=False).returncode)  # noqa: S603  the user's own words


def _hook(args: Namespace) -> SnowpipeHook:
    return SnowpipeHook(
        args.conn_id, table=args.table, pipe=args.pipe, database=args.database, schema=args.schema
    )


def _file_arguments(args: Namespace) -> dict[str, Any]:
    return {
        "task_id": "cli",
        "path": args.path,
        "path_conn_id": args.path_conn_id,
        "channels": args.channels,
        "offset_format": args.offset_format,
        "snowflake_conn_id": args.conn_id,
        "table": args.table,
        "pipe": args.pipe,
        "database": args.database,
        "schema": args.schema,
    }


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


def print_lines(args: Namespace, lines: list[dict[str, Any]]) -> None:
    """Print records in the form that ``--output`` asks for.

    :param args: the command's arguments
    :param lines: the records
    """
    from airflow.cli.simple_table import AirflowConsole

    if args.output == "json":  # Airflow's own would make every number and NULL a text
        print(json.dumps(lines))
        return
    AirflowConsole().print_as(data=lines, output=args.output)


@reported
def plan(args: Namespace) -> None:
    """Print the plan: a table of the paths, then reasons, advice and warnings; or all of it as JSON."""
    from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
    from airflow_provider_snowpipe.operators.load_choice import ShapeSource
    from airflow_provider_snowpipe.routing.cost_model import CostModel, LoadPolicy
    from airflow_provider_snowpipe.routing.planner import plan_load

    if (args.table is None) != (args.channel_prefix is None):
        raise ConfigurationError(
            f"--table is {args.table} and --channel-prefix is {args.channel_prefix}: the channels of a Kafka "
            "source are found by both; give both, or none"
        )
    hook = SnowpipeBulkHook(args.conn_id, table=args.table, database=args.database, schema=args.schema)
    source = ShapeSource(args.source, hook, args.storage_conn_id, args.kafka_conn_id, args.channel_prefix)
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


def _known(args: Namespace) -> dict[str, Any]:
    """What the arguments give of the data; the rest is left to the source."""
    known: dict[str, Any] = {
        "freshness": args.freshness,
        "given_to": args.given_to,
        "partitions": args.partitions,
        "arrival_rate": args.arrival_rate,
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
