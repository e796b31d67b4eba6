"""The operator that compares channels, tables and sources, and fails where they do not agree."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.links.snowpipe import AUDIT_KEY
from airflow_provider_snowpipe.operators.account_operator import (
    AccountOperator,
    PipeArguments,
    failing_at_once,
)
from airflow_provider_snowpipe.operators.source_record import APPENDS, SourceRecord, known_records
from airflow_provider_snowpipe.streaming.arguments import FAIL_OR_REPORT, check_one_of
from airflow_provider_snowpipe.streaming.errors import AuditError, ConfigurationError, SnowpipeError, SqlError
from airflow_provider_snowpipe.streaming.names import PipeName, counted, full_name

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.spark.submit.audit import ChannelAudit, SourceAudit, TableAudit

AuditDepth = Literal["balance", "counts", "rows"]
DEPTHS: tuple[AuditDepth, ...] = ("balance", "counts", "rows")
_HISTORY = dt.timedelta(days=14)
"""How far back the load history of a table goes ("COPY_HISTORY")."""
_LEAST_SHOWN, _MOST_SHOWN = 5, 100


@dataclass(frozen=True, slots=True)
class PipeAudit:
    """What an audit has found of one pipe.

    :param files: what differs of files that COPY and pipes have loaded
    """

    pipe: PipeName
    channels: tuple[ChannelAudit, ...]
    table: TableAudit | None = None
    notes: tuple[str, ...] = ()
    connection: str = ""
    files: tuple[str, ...] = ()

    @property
    def differences(self) -> tuple[str, ...]:
        """What does not agree, in words."""
        of_channels = (
            f"channel {one.channel!r}: {text}" for one in self.channels for text in one.differences
        )
        return (*of_channels, *self.files, *(() if self.table is None else self.table.differences))

    def as_json(self, most: int | None = None) -> dict[str, Any]:
        """The audit as JSON values, of at most so many channels, those first that differ."""
        first = sorted(self.channels, key=lambda one: (not one.differences, not one.notes, one.channel))
        value = {
            "connection": self.connection,
            "pipe": str(self.pipe),
            "names": asdict(self.pipe),
            "channels": len(self.channels),
            "differences": list(self.differences)[:most],
            "notes": list(self.notes),
            "table": None if self.table is None else self.table.as_json(),
            "found": [asdict(one) for one in first[:most]],
        }
        found: dict[str, Any] = json.loads(json.dumps(value))  # of tuples Airflow makes objects
        return found


def audit_pipe(
    hook: SnowpipeHook, records: Sequence[SourceRecord], depth: AuditDepth, other_rows: int = 0
) -> PipeAudit:
    """Audit the channels of one pipe.

    :param depth: ``balance`` asks for the status of channels only; ``counts`` reads the sources again up to
        the checkpoints, and counts the rows of the table, which takes a warehouse; ``rows`` also finds rows
        that are missing or doubled, by the columns that show where rows are from
    """
    from airflow_provider_snowpipe.spark.submit.audit import LastSeen, SourceAudit, TableAudit, audit_channel
    from airflow_provider_snowpipe.spark.submit.source import connected_source

    seen = {
        digits: LastSeen(one.channel, one.token, one.rows_before, one.rejected, one.channels)
        for record in records
        for digits, one in record.channels.items()
    }
    by_name = {one.channel: one for one in seen.values()}
    notes: list[str] = []
    try:
        listed = {one.name: one for one in hook.list_channels()}
    except SqlError as error:
        if not by_name:
            raise
        listed = {}
        notes.append(f"channels without a record are not known: {error}")
    statuses = hook.channel_statuses(list(dict.fromkeys([*listed, *by_name])))
    audits = {name: audit_channel(status, by_name.get(name)) for name, status in statuses.items()}
    pipe = hook.pipe_name()
    if depth == "balance":
        return PipeAudit(pipe, tuple(audits.values()), notes=tuple(notes))
    sources: list[SourceAudit] = []
    for record in records:
        loaded = record.loaded
        if loaded is None or loaded.source.get("kind") == APPENDS:
            continue
        spec, secrets = connected_source(loaded.source, BaseHook.get_connection)
        aside = loaded.dead_letter_path if loaded.on_error == "dead_letter" else None
        source = SourceAudit(spec, secrets, pipe.address(hook.account_url()), seen, aside)
        sources.append(source)
        own = {one.channel: audits[one.channel] for one in record.channels.values() if one.channel in audits}
        audits |= {one.channel: one for one in source.count(own)}
    name = pipe.default_table or next((one.table for one in listed.values()), None)
    if name is None:
        known = tuple(one.compared(None) for one in audits.values())
        return PipeAudit(pipe, known, notes=(*notes, "the table of the pipe is not known"))
    moved = [one.rows_before for record in records for one in record.channels.values()]
    before = sum(max(rows, 0) for rows in moved)
    inserted = sum(one.inserted for one in audits.values())
    table = (pipe.database, pipe.schema, name)
    again = sum(one.sent_again for one in audits.values())
    rows = _rows_of(hook, table, inserted + before)
    counted = TableAudit(name, *rows, other_rows, again, before - sum(moved))
    audits = {name: one.compared(counted) for name, one in audits.items()}
    files: tuple[str, ...] = ()
    if depth == "rows":
        of_channels, files = _compared(hook, table, sources, audits, notes)
        audits |= of_channels
    return PipeAudit(pipe, tuple(audits.values()), counted, tuple(notes), files=files)


def _rows_of(hook: SnowpipeHook, table: tuple[str, str, str], streamed: int) -> tuple[int, int, int]:
    """Rows of a table, those that channels have inserted, and those that COPY and file pipes have."""
    from airflow_provider_snowpipe.bulk.staged_files import copy_history

    since = dt.datetime.now(dt.UTC) - _HISTORY
    with hook.sql_session("count the rows of a table") as run:
        (row,) = run(f"SELECT COUNT(*) AS ROWS_NOW FROM {full_name(*table)}")  # noqa: S608  quoted
        copies = run(*copy_history(table, since))
    return int(row["rows_now"]), streamed, sum(int(one["row_count"] or 0) for one in copies)


def _compared(
    hook: SnowpipeHook,
    table: tuple[str, str, str],
    sources: Sequence[SourceAudit],
    audits: Mapping[str, ChannelAudit],
    notes: list[str],
) -> tuple[dict[str, ChannelAudit], tuple[str, ...]]:
    """Compare the rows of the table with what was loaded, by the columns that show where rows are from.

    :param notes: gets the sources whose rows have no such columns, or that could not be listed
    :return: the channels, and what differs of files that COPY and pipes have loaded
    """
    from airflow_provider_snowpipe.spark.submit.audit import TableRows, positions_query

    found: dict[str, ChannelAudit] = {}
    asked: dict[tuple[tuple[str, ...], str], TableRows] = {}
    listed: list[Any] = []
    files: list[str] = []
    for source in sources:
        columns = source.spec.row_columns
        if columns is None:
            notes.append(
                f"{source.spec.address}: metadata has no columns that show where a row is from: not compared"
            )
            continue
        try:
            listed.append((source, columns, *source.row_keys()))
        except (SnowpipeError, OSError, ImportError) as error:
            notes.append(f"{source.spec.address}: not compared: {error}")
    owners = Counter(
        (columns, key)
        for _, columns, keys, copied in listed
        for own in (*keys.values(), [(name,) for name in copied])
        for key in own
    )
    for source, columns, keys, copied in listed:
        if columns not in asked:
            with hook.sql_session("compare the rows of a table") as run:
                asked[columns] = TableRows.of(run(positions_query(full_name(*table), columns)), columns[0])
        known = {one.channel: one for one in source.seen.values()}
        for name in keys.keys() & audits.keys():
            own = {key: owners[columns, key] for key in keys[name]}
            found[name] = asked[columns].compared(audits[name], own, known[name].rows_before)
        own_files = {name: rows for name, rows in copied.items() if owners[columns, (name,)] == 1}
        files += asked[columns].compared_copied(own_files)
    return found, tuple(files)


class SnowpipeAuditOperator(PipeArguments, AccountOperator):
    """Compare what sources hold, what channels count and what tables have; fail where they do not agree.

    Without ``table``, ``pipe`` and ``dag_ids`` every source that this Airflow has loaded is audited.

    :param dag_ids: audit the sources that these DAGs load, a DAG's id or a list of ids (templated)
    :param depth: ``balance`` compares the channels' counters with their checkpoints, and takes no warehouse;
        ``counts`` also reads the sources again up to the checkpoints on this worker, and counts the rows of
        the tables; ``rows`` also finds missing and doubled rows by the columns of the sources' ``metadata``
        with file and row number, or topic, partition and offset (templated)
    :param other_rows: with ``counts`` or ``rows`` and one pipe, rows that neither channels nor COPY inserted
    :param on_difference: ``fail`` fails the task, ``report`` leaves it to the task's value
    :raises ConfigurationError: if an argument is wrong
    """

    template_fields: Sequence[str] = ("dag_ids", "depth", *PipeArguments.template_fields)

    def __init__(
        self,
        *,
        dag_ids: Sequence[str] | str | None = None,
        depth: str = "balance",
        other_rows: int = 0,
        on_difference: str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.dag_ids = dag_ids
        self.depth = depth
        self.other_rows = other_rows
        self.on_difference = on_difference
        check_one_of("on_difference", on_difference, FAIL_OR_REPORT)
        if isinstance(other_rows, bool) or not isinstance(other_rows, int) or other_rows < 0:
            raise ConfigurationError(f"other_rows is {other_rows!r}: give a number of rows, 0 or more")

    def execute(self, context: Context) -> dict[str, Any]:
        """Audit, and leave the result for the page of the provider.

        :return: depth, whether anything differs, and for each pipe its channels and its table
        :raises AirflowFailException: if anything differs, unless that is only to be reported
        """
        with failing_at_once():
            found = self.audit()
            value = self.value_of(found)
            context["ti"].xcom_push(key=AUDIT_KEY, value=value)
            for pipe in found:
                of_channels = (
                    f"channel {one.channel!r}: {note}" for one in pipe.channels for note in one.notes
                )
                for note in (*pipe.notes, *islice(of_channels, _MOST_SHOWN)):
                    self.log.warning("pipe %s: %s", pipe.pipe, note)
                for text in pipe.differences:
                    self.log.error("pipe %s: %s", pipe.pipe, text)
                self.log.info(
                    "pipe %s: %d channels, %d differences",
                    pipe.pipe,
                    len(pipe.channels),
                    len(pipe.differences),
                )
            if value["differs"] and self.on_difference == "fail":
                first = next(text for pipe in found for text in pipe.differences)
                count = sum(len(pipe.differences) for pipe in found)
                raise AuditError(
                    f"the audit has found {counted(count, 'difference')}; the first one: {first}"
                )
        return value

    def preview(self) -> list[str]:
        """Report what would be audited."""
        return [
            f"would audit {counted(len(records), 'source')} of pipe {hook.pipe_name()}"
            for hook, records in self._pipes()
        ]

    def audit(self) -> list[PipeAudit]:
        """Audit each pipe.

        :raises ConfigurationError: if no load is known of what is to be audited
        """
        check_one_of("depth", self.depth, DEPTHS)
        depth = next(one for one in DEPTHS if one == self.depth)
        pipes = self._pipes()
        if self.other_rows and len(pipes) != 1:
            raise ConfigurationError(
                f"other_rows is {self.other_rows} and {len(pipes)} pipes are audited: name one table"
            )
        return [
            replace(audit_pipe(hook, records, depth, self.other_rows), connection=hook.snowflake_conn_id)
            for hook, records in pipes
        ]

    def value_of(self, found: Sequence[PipeAudit]) -> dict[str, Any]:
        """The task's value; channels beyond the first 100 of a pipe, fewer of many, are only counted."""
        most = max(_LEAST_SHOWN, _MOST_SHOWN // max(1, len(found)))
        return {
            "depth": self.depth,
            "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "differs": any(pipe.differences for pipe in found),
            "pipes": [pipe.as_json(most) for pipe in found],
        }

    def _pipes(self) -> list[tuple[SnowpipeHook, list[SourceRecord]]]:
        """The hook of each pipe with the records of the sources that were loaded through it."""
        named = self._pipe_hook() if self.table or self.pipe else None
        asked = {self.dag_ids} if isinstance(self.dag_ids, str) else set(self.dag_ids or ())
        found: dict[tuple[str, ...], list[SourceRecord]] = {}
        for record in known_records():
            if record.loaded is not None and (not asked or record.loaded.dag_id in asked):
                key = (record.loaded.snowflake_conn_id, *record.loaded.pipe)
                found.setdefault(key, []).append(record)
        if named is not None:
            own = tuple(asdict(named.pipe_name()).values())
            return [(named, [one for (_, *pipe), of in found.items() if tuple(pipe) == own for one in of])]
        if not found:
            raise ConfigurationError(
                f"no load through channels is known of {sorted(asked) or 'this Airflow'}: name the table or "
                "the pipe, or check the ids of the DAGs"
            )
        return [
            (SnowpipeHook(conn_id, pipe=pipe, database=database, schema=schema), records)
            for (conn_id, database, schema, pipe), records in found.items()
        ]
