"""The commands below ``airflow snowpipe``, with their arguments."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.cli.cli_config import CLICommand

_PACKAGE = "airflow_provider_snowpipe.cli"
_COMMANDS = f"{_PACKAGE}.commands"


def get_cli_commands() -> list[CLICommand]:
    """The command group, as Airflow asks every provider for it."""
    from airflow.cli.cli_config import ARG_OUTPUT, ActionCommand, GroupCommand, lazy_load_command

    pipe_arguments = (
        _arg("--conn-id", help="connection id", default="snowflake_default"),
        _arg("--table", help="the default pipe of this table"),
        _arg("--pipe", help="this pipe; not together with --table"),
        _arg("--database", help="the pipe's database, the connection's if not given"),
        _arg("--schema", help="the pipe's schema, the connection's if not given"),
    )
    offset_format = _arg("--offset-format", help="format of the offset tokens, such as file:line")
    file = (
        _arg("path", help="the backup file: a path, or a URL of an object store"),
        _arg("--path-conn-id", help="connection id for the object store"),
        _arg("--channel", dest="channels", action="append", help="only this channel; may be repeated"),
        offset_format,
        _arg("--dry-run", action="store_true", help="say what would be done, change nothing"),
    )
    commands = (
        ActionCommand(
            name="doctor",
            help="Check connection, key, grants, pipe, network and Spark, and say what to do",
            description="Ends with the status 1 when a check failed, 0 otherwise; warnings are no failures.",
            func=lazy_load_command(f"{_PACKAGE}.doctor.doctor"),
            args=(
                _arg(
                    "--snowflake-conn-id",
                    "--conn-id",
                    dest="conn_id",
                    help="connection id",
                    default="snowflake_default",
                ),
                _arg("--spark-conn-id", help="Spark connection id, spark_default if not given"),
                *pipe_arguments[1:],
                _arg("--source", help="a path that the Spark executors have to see; may start Spark"),
                _arg("--json", action="store_true", help="print JSON"),
            ),
        ),
        ActionCommand(
            name="plan",
            help="Say whether data should be streamed, copied or piped, and what each would cost",
            func=lazy_load_command(f"{_COMMANDS}.plan"),
            args=(*_plan_arguments(), ARG_OUTPUT),
        ),
        ActionCommand(
            name="channels",
            help="List the channels of a pipe with their committed tokens",
            func=lazy_load_command(f"{_COMMANDS}.channels"),
            args=(*pipe_arguments, ARG_OUTPUT),
        ),
        ActionCommand(
            name="lag",
            help="Show how far channels are, and whether they have committed target tokens",
            description="Ends with the status 1 when a target is not committed.",
            func=lazy_load_command(f"{_COMMANDS}.lag"),
            args=(
                *pipe_arguments,
                _arg("--targets", help="JSON object of channel to target token; without it, all channels"),
                offset_format,
                ARG_OUTPUT,
            ),
        ),
        ActionCommand(
            name="backup",
            help="Write the offset tokens of a pipe's channels to a file",
            func=lazy_load_command(f"{_COMMANDS}.backup"),
            args=(
                *file,
                _arg(
                    "--on-lost",
                    choices=("fail", "keep"),
                    default="fail",
                    help="when a channel has lost the token that the file holds",
                ),
                *pipe_arguments,
            ),
        ),
        ActionCommand(
            name="restore",
            help="Bring channels back to the offset tokens of a backup",
            func=lazy_load_command(f"{_COMMANDS}.restore"),
            args=(
                *file,
                _arg("--allow-older-tokens", action="store_true", help="set a token back, too"),
                _arg("--allow-active-writer", action="store_true", help="in spite of a writer"),
                _arg("-y", "--yes", action="store_true", help="do not ask"),
                *pipe_arguments,
            ),
        ),
        ActionCommand(
            name="local",
            help="Run the local service's own command line (serve, env, sql, admin)",
            description="For example: airflow snowpipe local -- serve --data-dir ~/snowpipe",
            func=lazy_load_command(f"{_COMMANDS}.local"),
            args=(_arg("arguments", nargs=argparse.REMAINDER, help="after --, what snowpipe-local takes"),),
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
        _arg("--kafka-conn-id", help="connection id for Kafka topics"),
        _arg("--table", help="table of Kafka topics, whose channels say how far each partition is in it"),
        _arg("--channel-prefix", help="with --table, the first part of these channels' names"),
    )


def parser() -> argparse.ArgumentParser:
    """The commands without Airflow's command line, for an Airflow that asks no provider for commands.

    Airflow does since 3.2.
    """
    made = argparse.ArgumentParser(prog="python -m airflow_provider_snowpipe.cli")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    (group,) = get_cli_commands()
    for command in group.subcommands:  # type: ignore[union-attr]
        one = commands.add_parser(command.name, help=command.help, description=command.description)
        for argument in command.args:
            argument.add_to_parser(one)
        one.set_defaults(func=command.func)
    return made


def _arg(*flags: str, **options: Any) -> Any:
    from airflow.cli.cli_config import Arg

    return Arg(flags, **options)  # type: ignore[no-untyped-call]
