"""An operator's row policy: its arguments, and what a load does about its table by it before it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import conf

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.operators.account_operator import PipeArguments, check_arguments
from airflow_provider_snowpipe.operators.submission import application_name
from airflow_provider_snowpipe.streaming.arguments import OnUnknown, check_one_of, named
from airflow_provider_snowpipe.streaming.checked_values import OnError, RowPolicy
from airflow_provider_snowpipe.streaming.checkpoint import OnImbalance, Rebind, run_mark
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    PipeNotFoundError,
    SnowpipeError,
    SourceMissingError,
    SqlError,
    UnknownColumnsError,
)
from airflow_provider_snowpipe.streaming.names import counted, first_few
from airflow_provider_snowpipe.streaming.table_schema import (
    TableColumn,
    add_columns,
    create_table_if_missing,
    missing_columns,
    table_of,
    with_exact,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.spark.source import OnDataLoss, SourceSecrets, SourceSpec
    from airflow_provider_snowpipe.streaming.names import PipeName


class RowPolicyOperator(PipeArguments):
    """The arguments of operators that load rows through channels.

    :param wait_for_commit: False ends the task when the rows are received, committed or not
    :param commit_timeout: seconds to wait for a channel's commit
    :param on_error: ``abort`` fails the task when the service has skipped a row, ``continue`` reports how
        many; ``dead_letter`` writes rows that do not fit to ``dead_letter_path`` before the others are sent,
        and fails the task when the service skips one of those
    :param check_rows: with ``abort``, True fails the task before a row is sent that does not fit
    :param dead_letter_path: an absolute directory or a URL without credentials, which all executors reach, or
        ``kafka:<topic>`` for a topic of a Kafka source's cluster (templated)
    :param create_table: ``if_missing`` makes the table from the first rows that the run loads; None does not
    :param evolve_columns: True adds the columns of those rows that the table lacks, False refuses them, None
        leaves them to the service, which ignores unknown keys
    :param unknown_columns: keys of rows that match no column: ``fail`` fails the task at the first one;
        ``warn`` counts them, and fails it where no key of a row matches; ``ignore`` does not check. None for
        ``fail`` where rows are streamed; COPY and pipes do not check
    :param rebind: what to do about a channel whose checkpoint is another source's, or of rows that were
        numbered in another way: ``continue`` takes its position, ``restart`` loads the source from its first
        row, None fails the task with both sources
    :param on_imbalance: ``fail`` fails the task where a channel counts other rows than its checkpoint,
        ``warn`` logs it; None for ``on_imbalance`` of the section ``snowpipe`` of Airflow's configuration
    :param kwargs: arguments of the operator
    :raises ConfigurationError: if a value is wrong, or two do not go together
    """

    template_fields: Sequence[str] = ("dead_letter_path", *PipeArguments.template_fields)

    def __init__(
        self,
        *,
        wait_for_commit: bool = True,
        commit_timeout: float = 600.0,
        on_error: OnError = "abort",
        check_rows: bool = False,
        dead_letter_path: str | None = None,
        create_table: Literal["if_missing"] | None = None,
        evolve_columns: bool | None = None,
        unknown_columns: OnUnknown | None = None,
        rebind: Rebind | None = None,
        on_imbalance: OnImbalance | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.wait_for_commit = wait_for_commit
        self.commit_timeout = commit_timeout
        check_arguments(self, seconds=["commit_timeout"], switches=["wait_for_commit"])
        self.on_error = on_error
        self.check_rows = check_rows
        self.dead_letter_path = dead_letter_path
        self.create_table = create_table
        self.evolve_columns = evolve_columns
        self.requires_all_columns = unknown_columns == "fail"
        self.unknown_columns: OnUnknown = "fail" if unknown_columns is None else unknown_columns
        check_one_of("rebind", rebind, (None, "continue", "restart"))
        self.rebind = rebind
        self.on_imbalance = on_imbalance or conf.get("snowpipe", "on_imbalance", fallback="warn")
        check_one_of("on_imbalance", self.on_imbalance, ("warn", "fail"))
        self._schema_policy()  # which checks them

    def _name_run(self, context: Context) -> str:
        """Name the run as checkpoints do: the same on every try, and for people when it was due."""
        values: Any = context
        ti, run = values["ti"], values.get("dag_run")
        due = getattr(run, "run_after", None) or getattr(run, "logical_date", None)
        return run_mark(application_name(ti), "" if due is None else due.strftime("%Y%m%dT%H%MZ"))

    def _warn_of_unknown(self, columns: Mapping[str, int], pipe: PipeName) -> None:
        """Name the keys of rows that match no column, with the rows that have them."""
        if columns:
            self.log.warning(
                "the table of pipe %s has no column for these keys, whose values were skipped: %s",
                pipe,
                named(columns),
            )

    def _refuse_lost_columns(self, hook: SnowpipeHook, matched: Sequence[str], rows: int) -> None:
        """Fail the task where the table has lost a column while rows were sent.

        :param matched: the columns that keys of the rows have matched, in capital letters
        :param rows: rows that were sent
        :raises UnknownColumnsError: naming the columns
        """
        if not matched:
            return
        now = {column.name.upper() for column in self._schema_policy().known_columns(hook, self.log.info)}
        lost = [name for name in matched if now and name not in now]
        if lost:
            names = first_few([repr(one) for one in lost])
            raise UnknownColumnsError(
                f"the table of pipe {hook.pipe_name()} has lost {names} while "
                f"this run loaded {rows} rows: the values of those that came after the change were skipped. "
                "Bring the columns back or rename the keys, and load those rows again"
            )

    def _schema_policy(self) -> SchemaPolicy:
        return SchemaPolicy(RowPolicy(**{one.name: getattr(self, one.name) for one in fields(RowPolicy)}))


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """What an author's policy does about a table."""

    policy: RowPolicy

    def prepare(
        self,
        hook: SnowpipeHook,
        source: SourceSpec,
        log: Callable[..., None],
        secrets: SourceSecrets | None = None,
        *,
        channel_of: Callable[[str], str] | None = None,
        on_data_loss: OnDataLoss = "fail",
    ) -> dict[str, Any]:
        """Make or widen the table for the first rows that the run loads; return what the plan must know."""
        if self.changes_table:
            from airflow_provider_snowpipe.spark.submit.source import first_rows

            committed = partial(_committed, hook, channel_of)
            target = "" if channel_of is None else hook.pipe_name().address(hook.account_url())
            rows = first_rows(source, secrets, committed=committed, on_data_loss=on_data_loss, target=target)
            if rows.lines:
                required = self.change_table(hook, rows.lines, source.address, log, rows.types)
                return self.rules(hook, log, required)
            if self.policy.create_table is not None and not rows.is_begun:
                raise SourceMissingError(
                    f"source {source.address!r} has no row yet from which columns could be inferred: make "
                    "the table first, or run when there are rows"
                )
        return self.rules(hook, log)

    @property
    def changes_table(self) -> bool:
        """True if the table is made or widened by the rows."""
        return self.policy.create_table is not None or self.policy.evolve_columns is not None

    @property
    def makes_columns(self) -> bool:
        """True if the types of columns may come from rows."""
        return self.policy.create_table is not None or self.policy.evolve_columns is True

    def rules(
        self, hook: SnowpipeHook, log: Callable[..., None], required: Sequence[TableColumn] = ()
    ) -> dict[str, Any]:
        """What the plan must know of rows, of the table as it is now."""
        known = self.known_columns(hook, log)
        columns = hook.table_columns() if self.policy.checks_rows or (required and not known) else known
        if self.makes_columns:
            columns = with_exact(columns, required)
        return {
            "on_error": self.policy.on_error,
            "check_rows": self.policy.check_rows,
            "dead_letter_path": self.policy.dead_letter_path or None,
            "columns": columns,
            "unknown_columns": self.policy.unknown_columns if known else "ignore",
        }

    def known_columns(self, hook: SnowpipeHook, log: Callable[..., None]) -> tuple[TableColumn, ...]:
        """The columns that keys of rows have to match; none where they need not, or that is not known."""
        if self.policy.unknown_columns == "ignore":
            return ()
        try:
            return hook.columns_for_keys()
        except SnowpipeError as error:
            if self.policy.unknown_columns == "fail":
                raise
            log("keys of rows are not compared with the table's columns: %s", error)
            return ()

    def change_table(
        self,
        hook: SnowpipeHook,
        rows: Sequence[bytes],
        address: str,
        log: Callable[..., None],
        types: Mapping[str, str] | None = None,
    ) -> Sequence[TableColumn]:
        """Make the table, or widen it, for the keys of some rows; the columns that they require."""
        from airflow_provider_snowpipe.streaming.row_values import columns_of_rows

        table = table_of(hook.pipe_name())
        required = columns_of_rows(rows, types)
        declared = {name.upper() for name in types or {}}
        inferred = [one.name for one in required if one.name.upper() not in declared]
        reason = f"types of {', '.join(inferred)} are inferred from {len(rows)} rows" if inferred else ""
        reason = reason or "types are those of the source's schema"
        if self.policy.create_table is not None:
            statement = create_table_if_missing(table, required)
            hook.run_sql(statement)
            log("%s; %s", statement, reason)
        if self.policy.evolve_columns is None:
            return required
        before: Sequence[TableColumn] = ()
        while missing := missing_columns(required, hook.table_columns()):
            named = ", ".join(column.ddl for column in missing)
            if not self.policy.evolve_columns:
                raise ConfigurationError(
                    f"table {table} lacks {counted(len(missing), 'column')} that source {address!r} has: "
                    f"{named}. Nothing was sent, since their values would be skipped: set "
                    "evolve_columns=True to add them, or evolve_columns=None to load without them"
                )
            try:
                hook.run_sql(add_columns(table, missing))
            except SqlError:
                # Another task may have added one in the meantime; then none of the others is added.
                if missing == before:
                    raise
                before = missing
                continue
            log("table %s: added %s; %s", table, named, reason)
            break
        return required


def _committed(
    hook: SnowpipeHook, channel_of: Callable[[str], str] | None, partitions: Sequence[str]
) -> dict[str, str]:
    """The committed offset tokens of those partitions that have one; none where there is no table yet."""
    if channel_of is None:
        return {}
    channels = {channel_of(partition): partition for partition in partitions}
    try:
        found = hook.channel_statuses(list(channels))
    except PipeNotFoundError:
        return {}
    return {
        channels[name]: status.committed for name, status in found.items() if status.committed is not None
    }
