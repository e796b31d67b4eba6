"""The operator that appends a few rows without Spark."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_snowpipe.assets.events import LoadedChannel, describe_outlets
from airflow_provider_snowpipe.hooks.storage import read_bytes, storage_path
from airflow_provider_snowpipe.lineage import ReportsLineage, TaskLineage
from airflow_provider_snowpipe.links.snowpipe import (
    channel_page,
    leave_channel_page,
    leave_observed,
    shown_error,
    unloaded_value,
)
from airflow_provider_snowpipe.metrics import count_load
from airflow_provider_snowpipe.operators.account_operator import PipeOperator, require_name
from airflow_provider_snowpipe.operators.row_policy import RowPolicyOperator
from airflow_provider_snowpipe.operators.source_record import APPENDS, LoadedSource, SeenChannel, SourceRecord
from airflow_provider_snowpipe.operators.submission import application_name
from airflow_provider_snowpipe.streaming.arguments import check_one_of
from airflow_provider_snowpipe.streaming.checked_values import RowRules
from airflow_provider_snowpipe.streaming.checkpoint import Binding, ChannelSource, position_of
from airflow_provider_snowpipe.streaming.errors import (
    CommitTimeoutError,
    ConfigurationError,
    RowsRejectedError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import BatchDigestOffset, Offset, offset_class
from airflow_provider_snowpipe.streaming.ownership import EarlierChannels, OwnChannel, refuse_lost
from airflow_provider_snowpipe.streaming.progress import ChannelStatus, ChannelTarget

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.streaming.append import AppendRules, NumberedRows, RowLimits, SmallLoad
    from airflow_provider_snowpipe.streaming.row_gate import Admission


TARGETS_KEY = "targets"


class SnowpipeAppendRowsOperator(ReportsLineage, RowPolicyOperator, PipeOperator):
    """Append a few rows to one channel, each exactly once: rows at hand, a file, or the result of a query.

    Every row has a position, ``batch:row/digest`` or what ``token_column`` holds. A retry reads the committed
    token and sends only what lies after it, so the rows must be the same, in the same order, on every try.
    For more than fits a task's memory there is :class:`SnowpipeStreamOperator`.

    :param channel: the channel's name; None for ``<dag>_<task>[_<map index>]`` (templated)
    :param rows: a list of mappings, its JSON text, or an XCom of one (templated)
    :param file: an NDJSON file, any address that ``ObjectStoragePath`` takes (templated)
    :param file_conn_id: the connection for that address (templated)
    :param sql: a query; it must have ``ORDER BY``, or ``token_column`` is given (templated)
    :param sql_conn_id: the connection of the query (templated)
    :param parameters: values that the query binds (templated)
    :param batch: the same on every try, greater in every later run; None for the run's due time (templated)
    :param token_column: the column whose values, growing from row to row, are the positions (templated)
    :param offset_format: with ``token_column``, the format of its values; ``integer`` unless given
    :param on_older_batch: for a channel with a later batch: ``fail``, or ``skip`` rows known to be loaded
    :param max_rows: most rows
    :param max_bytes: most bytes of NDJSON
    :param kwargs: arguments of :class:`RowPolicyOperator` and :class:`PipeOperator`
    """

    template_fields: Sequence[str] = (
        "channel",
        "rows",
        "file",
        "file_conn_id",
        "sql",
        "sql_conn_id",
        "parameters",
        "batch",
        "token_column",
        *RowPolicyOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"sql": "sql", "rows": "json", "parameters": "json"}

    def __init__(
        self,
        *,
        channel: str | None = None,
        rows: Any = None,
        file: str | None = None,
        file_conn_id: str | None = None,
        sql: str | None = None,
        sql_conn_id: str | None = None,
        parameters: Any = None,
        batch: int | str | None = None,
        token_column: str | None = None,
        offset_format: str | None = None,
        on_older_batch: str = "fail",
        max_rows: int = 100_000,
        max_bytes: int = 64 * 1024 * 1024,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.channel = channel
        self.rows = rows
        self.file = file
        self.file_conn_id = file_conn_id
        self.sql = sql
        self.sql_conn_id = sql_conn_id
        self.parameters = parameters
        self.batch = batch
        self.token_column = token_column
        self.offset_format = offset_format
        self.on_older_batch = on_older_batch
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self._admissions: list[Admission] = []
        self._check_arguments()

    def perform(self, context: Context) -> dict[str, Any]:
        """Append the rows; the XCom ``targets`` is what :class:`SnowpipeCommitSensor` takes.

        :return: channel, pipe, offset format, batch, tokens from and to, and counts of rows and bytes
        """
        from airflow_provider_snowpipe.streaming.append import append_to_channel

        ti = context["ti"]
        channel = self._channel(ti)
        rules = self._rules(self._batch(context))
        rows = self._numbered(channel, rules)
        admission = self._admission(ti, channel, rows) if rows.lines else None
        source = self._channel_source(context)
        record = SourceRecord.of_appends(self.hook.pipe_name().address(self.hook.account_url()), channel)
        last = _last_of(record, source, rules.batch)

        def begins(status: ChannelStatus, end: Offset) -> None:
            # It may have been dropped since it was looked at.
            refuse_lost([OwnChannel(replace(source, rebind=None), status)], last)
            self._keep(record, source, channel, source.begun(status, end), sends=True)

        try:
            with self.hook.get_client() as client:
                if last:
                    own = OwnChannel(source, client.channel_statuses([channel])[channel])
                    EarlierChannels(client, tuple, last, rules.on_imbalance).hand_over([own])
                load = append_to_channel(client, channel, rows, source, rules, admission, begins)
        except RowsRejectedError as error:
            if error.load is not None:
                self._keep(record, source, channel, error.load.target_token)
                value = self._value(error.load, rules)
                leave_observed(ti, type(error).__name__, {channel: value}, self._unloaded(ti))
            raise
        except CommitTimeoutError as error:
            seen = {"committed": error.committed, "target": error.target}
            leave_observed(ti, type(error).__name__, {channel: seen}, self._unloaded(ti))
            raise
        self._keep(record, source, channel, load.target_token if load.committed else None)
        target = ChannelTarget(
            load.target_token,
            self.offset_format or self._format().format_name,
            None if self.on_error == "continue" else load.errors,
            load.rows,
        )
        ti.xcom_push(key=TARGETS_KEY, value={channel: target.to_json()})
        if load.target_token is not None:
            leave_channel_page(ti, self._page(context, load.target_token))
        self.log.info(
            "channel %r: %d rows appended, %d were committed before, %d rejected; token %s -> %s",
            channel,
            load.rows,
            load.skipped,
            load.rejected,
            load.from_token or "NULL",
            load.target_token or "NULL",
        )
        self._warn_of_unknown(load.unknown_columns, self.hook.pipe_name())
        count_load([load], self.hook.pipe_name(), type(self).__name__, waited=load.committed)
        loaded = LoadedChannel(
            channel,
            load.target_token or load.from_token,
            load.committed,
            load.rows,
            unknown_columns=load.unknown_columns,
            found=load.from_token,
            rejected=load.rejected,
        )
        describe_outlets(self, context, self.hook, [loaded])
        self.task_lineage = TaskLineage(
            self.hook,
            self._format().format_name,
            (loaded,),
            sources=(self.file,) if self.file else (),
            sql=self.sql or None,
            rows=load.rows,
            size=load.bytes,
        )
        matched = {name for one in self._admissions for name in one.columns}
        self._refuse_lost_columns(self.hook, sorted(matched), load.rows)
        return {**self._value(load, rules), "unloaded": self._unloaded(ti)}

    def preview(self) -> list[str]:
        """Report which rows would be sent; outside of a DAG run ``batch`` and ``channel`` are required."""
        from airflow_provider_snowpipe.streaming.append import rows_to_send

        if self.channel is None or (self.batch is None and self.token_column is None):
            return ["channel and batch come from the DAG run; give both to see which rows would be sent"]
        rules = self._rules(None if self.token_column else _number(self.batch))
        rows = self._numbered(self.channel, rules)
        status = self.hook.channel_statuses([self.channel])[self.channel]
        known = status.committed
        committed = None if known is None else position_of(known, self._format(), channel=self.channel)
        sent = rows_to_send(rows, committed, rules, channel=self.channel)
        return [
            f"would append {len(sent.lines)} of {len(rows.lines)} rows to channel {self.channel!r} of pipe "
            f"{self.hook.pipe_name()}, after the committed token {known or 'NULL'}"
        ]

    def _page(self, context: Context, target: str | None = None) -> str:
        channel = self._channel(context["ti"])
        return channel_page(
            self.hook, channel, target=target, offset_format=self._format().format_name if target else None
        )

    def _channel(self, ti: Any) -> str:
        if self.channel is None or self.channel == "":
            return "_".join((ti.dag_id, ti.task_id, *_instance(ti)))
        return require_name("channel", self.channel)

    def _channel_source(self, context: Context) -> ChannelSource:
        """Whose rows the channel gets: this task's; where it names no channel, this instance's."""
        ti = context["ti"]
        mapped = "" if self.channel else "".join(f", map index {index}" for index in _instance(ti))
        binding = Binding(
            f"appends of task {ti.task_id!r} of DAG {ti.dag_id!r}{mapped}",
            f"positions in column {self.token_column!r}" if self.token_column else "batch:row/digest",
        )
        return ChannelSource(self._format(), binding, self._name_run(context), self.rebind)

    def _keep(
        self,
        record: SourceRecord,
        source: ChannelSource,
        channel: str,
        token: str | None,
        *,
        sends: bool = False,
    ) -> None:
        pipe = self.hook.pipe_name()
        loaded = LoadedSource(
            {"kind": APPENDS},
            source.binding.reading,
            "",
            channel,
            (pipe.database, pipe.schema, pipe.pipe),
            self.snowflake_conn_id,
            self.dag_id,
            self.task_id,
            self.on_error,
        )
        record.write([SeenChannel(channel, token)], (), dt.datetime.now(dt.UTC), loaded, sends=sends)

    def _batch(self, context: Context) -> int | None:
        if self.token_column:
            return None
        if self.batch is not None and self.batch != "":
            return _number(self.batch)
        run = context["dag_run"]
        due = getattr(run, "run_after", None) or run.logical_date
        if due is None:
            raise ConfigurationError("the DAG run has no timestamp to number the batch by: give batch=…")
        return int(due.timestamp() * 1_000_000)

    def _numbered(self, channel: str, rules: AppendRules) -> NumberedRows:
        from airflow_provider_snowpipe.streaming import append

        lines = self._lines(append.RowLimits(self.max_rows, self.max_bytes))
        if rules.batch is not None:
            return append.numbered_by_batch(lines, rules.batch)
        return append.numbered_by_column(lines, self.token_column or "", self._format(), channel=channel)

    def _lines(self, limits: RowLimits) -> Sequence[bytes]:
        """Read the rows as NDJSON: those at hand, of a file, or of a query; exactly one of the three."""
        from airflow_provider_snowpipe.streaming import append

        three = {"rows": self.rows, "file": self.file, "sql": self.sql}
        given = [
            n for n, value in three.items() if value is not None and (not isinstance(value, str) or value)
        ]
        if len(given) != 1:
            raise ConfigurationError(
                f"the rows come from {' and '.join(given) or 'nowhere'}: give one of rows, file and sql"
            )
        if self.sql:
            names, rows = self._of_query(self.sql, limits)
            return append.lines_of_columns(names, rows, limits, "the query")
        if self.file:
            body = read_bytes(storage_path(self.file, self.file_conn_id), limits.raw_bytes)
            return append.lines_of_ndjson(body, limits, f"file {self.file}")
        lines = append.lines_of_rows(rows_from_text(self.rows), limits)
        return append.lines_as_written(self.rows, len(lines)) if isinstance(self.rows, str) else lines

    def _of_query(self, sql: str, limits: RowLimits) -> tuple[list[str], Sequence[Sequence[Any]]]:
        from airflow.providers.common.compat.sdk import BaseHook

        if not self.sql_conn_id:
            raise ConfigurationError("sql is given without sql_conn_id: name the connection of the query")
        if not self.token_column and not _is_ordered(sql):
            raise ConfigurationError(
                "the query has no ORDER BY of its own: a retry that gets its rows in another order would "
                "load some twice and others never. Order it by a unique key, or give token_column=…"
            )
        hook: Any = BaseHook.get_hook(self.sql_conn_id)
        with closing(hook.get_conn()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(sql, self.parameters) if self.parameters else cursor.execute(sql)
            return [column[0] for column in cursor.description], cursor.fetchmany(limits.rows + 1)

    def _format(self) -> type[Offset]:
        return offset_class(self.offset_format or "integer") if self.token_column else BatchDigestOffset

    def _admission(
        self, ti: Any, channel: str, rows: NumberedRows
    ) -> Callable[[Offset | None], Admission] | None:
        """Make or widen the table, and make the check that rows pass before they are sent; None for none."""
        policy = self._schema_policy()
        if policy.changes_table:
            policy.change_table(self.hook, rows.lines, f"channel {channel!r}", self.log.info)
        values = policy.rules(self.hook, self.log.info)
        if not values["columns"]:
            return None
        from airflow_provider_snowpipe.streaming.row_gate import Admission

        rules = RowRules.of(
            self.on_error,
            self.check_rows,
            values["dead_letter_path"],
            values["columns"],
            application_name(ti),
            str(self.hook.pipe_name()),
        )

        def admission(committed: Offset | None) -> Admission:
            made = Admission(
                rules,
                values["columns"],
                values["unknown_columns"],
                channel,
                self._format(),
                committed,
                skips_undecoded=self.on_error == "continue",
                limits=BatchLimits(),
            )
            self._admissions = [made]
            return made

        return admission

    def _rules(self, batch: int | None) -> AppendRules:
        from airflow_provider_snowpipe.streaming.append import AppendRules

        names = ("on_error", "on_older_batch", "wait_for_commit", "commit_timeout", "on_imbalance")
        given = {name: getattr(self, name) for name in names}
        return AppendRules(batch, is_batch_of_run=batch is not None and self.batch in (None, ""), **given)

    def _value(self, load: SmallLoad, rules: AppendRules) -> dict[str, Any]:
        names = ("channel", "rows", "skipped", "bytes", "rejected", "dead_lettered", "committed")
        return {
            **{name: getattr(load, name) for name in names},
            "pipe": str(self.hook.pipe_name()),
            "offset_format": self._format().format_name,
            "batch": rules.batch,
            "from": load.from_token,
            "to": load.target_token,
            "unknown_columns": dict(load.unknown_columns),
            "last_error": shown_error(load.last_error),
        }

    def _unloaded(self, ti: Any) -> dict[str, Any] | None:
        rows = [row for one in self._admissions for row in one.unloaded]
        return unloaded_value(rows, self.dead_letter_path, application_name(ti))

    def _check_arguments(self) -> None:
        if str(self.dead_letter_path or "").startswith("kafka:"):
            raise ConfigurationError(
                f"dead_letter_path is {self.dead_letter_path!r}: without Kafka give a directory or URL"
            )
        check_one_of("on_older_batch", self.on_older_batch, ("fail", "skip"))
        if self.token_column is None and self.offset_format not in (None, BatchDigestOffset.format_name):
            raise ConfigurationError(
                f"offset_format is {self.offset_format!r}: name the column with such tokens, token_column=…"
            )
        if self.token_column is not None and self.batch is not None:
            raise ConfigurationError(
                f"token_column {self.token_column!r} and batch {self.batch!r} both number the rows: drop one"
            )
        for name in ("max_rows", "max_bytes"):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{name} is {value!r}: give a whole number of 1 or more")


def _last_of(record: SourceRecord, source: ChannelSource, batch: int | None) -> dict[str, tuple[str, str]]:
    """The last checkpoints of a channel; none for a later batch, which is new, and for a restart."""
    last = record.last_checkpoints() or {}
    channel, token = last.get(source.binding.source_digest, ("", ""))
    if source.rebind == "restart":
        return {}
    if not token or batch is None:
        return last
    position = position_of(token, BatchDigestOffset, channel=channel)
    return {} if isinstance(position, BatchDigestOffset) and position.batch < batch else last


def _instance(ti: Any) -> list[str]:
    """The map index of a mapped task instance; nothing for another one."""
    return [str(ti.map_index)] if ti.map_index is not None and ti.map_index >= 0 else []


def _number(value: Any) -> int:
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise ConfigurationError(
            f"batch is {value!r}: give a number, greater in every later run, such as a date 20260131"
        )
    return int(text)


# -- Where the rows of an append without Spark come from -------------------------------------------------

_ORDERED = re.compile(r"\border\s+by\b", re.IGNORECASE)
_TEXTS_AND_COMMENTS = [
    re.compile(rf"'(?:{char})*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
    for char in (r"[^']", r"[^'\\]|\\.")
]
"""Without and with a backslash before a quote that ends no text, which differs between databases."""
_INNERMOST = re.compile(r"\([^()]*\)")


def _is_ordered(sql: str) -> bool:
    """True for a query with an ORDER BY of its own, not of a window or of a query within."""
    for text in _TEXTS_AND_COMMENTS:
        left = text.sub(" ", sql).strip().rstrip(";")
        while (outside := _INNERMOST.sub(" ", left)) != left and outside.strip():
            left = outside
        if _ORDERED.search(left):
            return True
    return False


def rows_from_text(rows: Any) -> list[Any]:
    """Take rows as given, or from the JSON text that a template renders."""
    if isinstance(rows, str):
        try:
            rows = json.loads(rows)
        except ValueError:
            raise ConfigurationError(
                f"rows is the text {rows[:80]!r}, not a JSON list: give a list of mappings, an XCom of "
                'one, or a template that ends in "| tojson"'
            ) from None
    if isinstance(rows, Mapping):
        return [rows]
    # A data frame's iterator gives its columns.
    if not hasattr(rows, "__iter__") or isinstance(rows, (bytes, bytearray)) or hasattr(rows, "columns"):
        raise ConfigurationError(
            f"rows is {type(rows).__name__}: give mappings, such as frame.to_dict('records') of pandas"
        )
    return list(rows)
