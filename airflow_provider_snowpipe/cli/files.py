"""``airflow snowpipe files`` and ``letters``: the source log of a path, and rows that were put aside."""

from __future__ import annotations

import argparse
import json
import sys
from typing import cast

from airflow.providers.common.compat.sdk import BaseHook, conf

from airflow_provider_snowpipe.bulk.source_loads import SourceLoads
from airflow_provider_snowpipe.cli.definition import agrees, pipe_hook, print_lines, reported
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.operators.source_record import KnownChannel, LoadedSource, SourceRecord
from airflow_provider_snowpipe.spark.sources.files.listing import log_store
from airflow_provider_snowpipe.spark.sources.files.log import Unit
from airflow_provider_snowpipe.spark.sources.files.rebuild import CopiedUnits, LastCommit
from airflow_provider_snowpipe.spark.sources.files.rebuild import rebuild as rebuild_log
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource
from airflow_provider_snowpipe.spark.submit.audit import TableRows, positions_query
from airflow_provider_snowpipe.spark.submit.source import connected_source
from airflow_provider_snowpipe.streaming.admin import TokenChange, compare_and_set, open_when_committed
from airflow_provider_snowpipe.streaming.checkpoint import Checkpoint, same_position
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.names import full_name
from airflow_provider_snowpipe.streaming.offsets import UnitOffset
from airflow_provider_snowpipe.streaming.progress import ChannelStatus
from airflow_provider_snowpipe.streaming.row_gate import DeadLetterFolder, read_letters

_COMMIT_SECONDS = 120.0


@reported
def files(args: argparse.Namespace) -> None:
    """List the units of a source log, or make a lost log again."""
    if args.action == "rebuild":
        _rebuild(args)
    else:
        _list(args)


@reported
def letters(args: argparse.Namespace) -> None:
    """Print dead letters as they would have been sent."""
    for row in read_letters(args.path, args.run):
        sys.stdout.buffer.write(row.rstrip(b"\n") + b"\n")


def _list(args: argparse.Namespace) -> None:
    """Print the units of a source log."""
    log_path = args.log_path or conf.get("snowpipe", "log_path", fallback="") or None
    values = {"path": args.path, "conn_id": args.path_conn_id, "log_path": log_path}
    spec, secrets = connected_source(
        {key: one for key, one in values.items() if one}, BaseHook.get_connection
    )
    hook = pipe_hook(args)
    target = hook.pipe_name().address(hook.account_url())
    store = log_store(cast(FileSource, spec), target, secrets)
    lines = store.read().described()
    if not lines:
        raise ConfigurationError(
            f"no log of source path {args.path!r} for pipe {hook.pipe_name()} is in {store.storage.root!r}: "
            "nothing was loaded yet; or name the pipe, the path or --log-path of the load"
        )
    print_lines(args, lines)


def _rebuild(args: argparse.Namespace) -> None:
    """Make a lost source log again, and give the channels their positions in it."""
    hook = pipe_hook(args)
    target = hook.pipe_name().address(hook.account_url())
    path = FileSource(path=args.path)
    record = SourceRecord.read(target, path)
    loaded = record.loaded
    if loaded is None:
        raise ConfigurationError(
            f"this Airflow has no record of a load of source path {args.path!r} through pipe "
            f"{hook.pipe_name()}: give path and pipe as the load has them, where it runs"
        )
    spec, secrets = connected_source(loaded.source, BaseHook.get_connection)
    known = {one.channel: one for one in sorted(record.channels.values(), key=lambda one: one.since)}
    print(f"would read {args.path!r}, and write a new log of it and new tokens of {len(known)} channels")
    if not args.yes and not agrees():
        raise SystemExit("snowpipe: nothing was changed; -y does it without a question")
    copied = _copied(hook, path.address, loaded)
    with hook.get_client() as client:
        for name, status in client.channel_statuses([*known]).items():
            if status.committed is not None:
                open_when_committed(client, name, _COMMIT_SECONDS)
        statuses = client.channel_statuses([*known])
        commits = {
            name.removeprefix(loaded.channels): _last_commit(
                known[name], status, loaded, unchanged=args.unchanged
            )
            for name, status in statuses.items()
            if name.startswith(loaded.channels) or status.committed is not None
        }
        in_table = _rows_in_table(hook, spec.row_columns)
        found = rebuild_log(cast(FileSource, spec), target, secrets, commits, in_table, copied)
        tokens = {}
        for partition, (position, binding) in found.positions.items():
            status = statuses[commits[partition].channel]
            before = Checkpoint.parse(str(status.committed), UnitOffset, channel=status.channel)
            after = Checkpoint(position, binding.digest, before.rows, before.run, before.errors)
            tokens[status.channel] = str(after)
            if before.binding != after.binding:
                compare_and_set(client, TokenChange.after(status, str(after)))
            print(f"channel {status.channel!r}: {before.position} -> {position}")
    record.rebound(tokens)
    print(f"wrote {len(found.units)} units to {found.root}")


def _copied(hook: SnowpipeHook, path: str, loaded: LoadedSource) -> CopiedUnits:
    """What COPY and pipes have loaded of a source into the pipe's table; other loads of it are ended.

    :raises SourcePositionError: if it is not known whether a file is in the table
    :raises FilesGivenTwiceError: if a pipe may still load one
    """
    table, logs = hook.pipe_name().default_table, set(loaded.source_logs)
    if table is None:
        return CopiedUnits([], logs, "")
    units, loads = list[Unit](), SourceLoads(hook, table, path, loaded.ledgers).end()
    for log, entry, left, created in sorted(loads, key=lambda one: (one[1].planned_at, one[1].part)):
        logs.add(log)
        if entry.created and created and entry.created != created:
            raise SourcePositionError(
                f"table {table!r} was replaced at {created}, and files of source log {log!r} were loaded "
                "into the one before: which rows are in this one is not known. Nothing was written. "
                "Set rebind='restart' to load all files again"
            )
        if entry.rows_rejected:
            print(f"{entry.loader or 'COPY'} has rejected {entry.rows_rejected:,} rows, {entry.loaded_at}")
        given = (Unit(**unit) for unit in json.loads(entry.details))
        units += [unit for unit in given if unit.number not in left]
    return CopiedUnits(units, logs, hook.table_created(table) or "")


def _rows_in_table(hook: SnowpipeHook, columns: tuple[tuple[str, ...], str] | None) -> dict[str, int] | None:
    """The last row that the pipe's table has of each file, by name; None where that is not known."""
    pipe = hook.pipe_name()
    if columns is None or pipe.default_table is None:
        return None
    query = positions_query(full_name(pipe.database, pipe.schema, pipe.default_table), columns)
    with hook.sql_session("look for the files of a table's rows") as run:
        rows = TableRows.of(run(query), columns[0])
    return None if rows.unknown else {name: one.last for (name,), one in rows.found.items()}


def _last_commit(
    known: KnownChannel, status: ChannelStatus, loaded: LoadedSource, *, unchanged: bool
) -> LastCommit:
    """What is known of the rows that a channel has loaded."""
    if status.committed is None:
        raise SourcePositionError(
            f"channel {known.channel!r} has no offset token, and had committed {known.token!r}: which rows "
            "are in the table is not known. Nothing was written. Compare table and files, and set "
            "rebind='restart' to load the path from its beginning"
        )
    if not known.channel.startswith(loaded.channels):
        raise ConfigurationError(
            f"channel {known.channel!r} is that of another load of this path than the channels "
            f"{loaded.channels}…, and it is not known how that reads it. Nothing was written. Drop the "
            "channel if its load is not used any more; or set rebind on both loads"
        )
    found = Checkpoint.parse(status.committed, UnitOffset, channel=known.channel)
    position, aside = cast(UnitOffset, found.position), 0
    if loaded.on_error == "dead_letter":
        path = str(loaded.dead_letter_path)
        stores = (DeadLetterFolder(path, name, UnitOffset, None) for name in known.channels)
        aside = sum(store.count(position) for store in stores)
    is_known = same_position(known.token, status.committed)
    seen = int(known.since.timestamp() * 1e9) if is_known else None
    rows = found.rows + known.rows_before + known.rejected + aside
    return LastCommit(known.channel, position, rows, seen, unchanged=unchanged)
