"""What a load does about its table before it starts: make it, widen it, learn its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.streaming.choice import check_one_of
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourceMissingError, SqlError
from airflow_provider_snowpipe.streaming.unknown_columns import UNKNOWN_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
    from airflow_provider_snowpipe.spark.source import SourceSpec
    from airflow_provider_snowpipe.spark.source_secrets import SourceSecrets
    from airflow_provider_snowpipe.streaming.table_columns import TableColumn

ON_ERROR = ("abort", "continue", "dead_letter")


@dataclass(frozen=True, slots=True)
class TableRoom:
    """An author's wishes about a table and rows that do not fit it.

    :param on_error: ``abort``, ``continue`` or ``dead_letter``
    :param check_rows: True checks rows before they are sent with ``abort``, too
    :param dead_letter_path: where rows go that do not fit
    :param create_table: ``if_missing`` makes the table from the source's first rows, None does not
    :param evolve_columns: True adds the columns that the source has and the table lacks, False refuses such a
        source, None leaves it to the service, which passes unknown keys over
    :param unknown_columns: ``warn`` counts keys of rows that match no column, and refuses rows of which none
        does; ``fail`` refuses the first one; ``ignore`` does not look
    """

    on_error: str
    check_rows: bool
    dead_letter_path: str | None
    create_table: str | None
    evolve_columns: bool | None
    unknown_columns: str = "warn"

    def check(self) -> None:
        """Refuse wishes that no template could mend.

        :raises ConfigurationError: if a value is unknown or lacks another
        """
        check_one_of("on_error", self.on_error, ON_ERROR)
        if self.on_error == "dead_letter" and self.dead_letter_path is None:
            raise ConfigurationError(
                "on_error is 'dead_letter', but dead_letter_path is not given: name a directory or a URL "
                "that all executors reach"
            )
        check_one_of("unknown_columns", self.unknown_columns, UNKNOWN_COLUMNS)
        if self.create_table not in (None, "if_missing"):
            raise ConfigurationError(
                f"create_table is {self.create_table!r}: it must be 'if_missing' or None"
            )
        if self.evolve_columns not in (None, True, False):
            raise ConfigurationError(
                f"evolve_columns is {self.evolve_columns!r}: it must be True, False or None"
            )

    def prepare(
        self,
        hook: SnowpipeHook,
        source: SourceSpec,
        say: Callable[..., None],
        secrets: SourceSecrets | None = None,
    ) -> dict[str, Any]:
        """Make room in the table, and say what the plan must know of rows.

        :param hook: for the pipe and its account
        :param source: what is to be loaded
        :param say: writes a line to the task's log
        :param secrets: the source's passwords and keys
        :returns: values of the plan
        :raises ConfigurationError: if the table lacks columns and must not get them
        :raises SqlError: if a statement fails
        """
        if self.makes_room:
            from airflow_provider_snowpipe.spark.source_rows import first_rows

            rows = first_rows(source, secrets)
            if rows.lines:
                self.make_room(hook, rows.lines, source.address, say, rows.types)
            elif self.create_table is not None:
                raise SourceMissingError(
                    f"source {source.address!r} has no row yet from which columns could be inferred: make "
                    "the table first, or run when there are rows"
                )
        return self.rules(hook, say)

    @property
    def makes_room(self) -> bool:
        """True if the table is made or widened by the rows."""
        return self.create_table is not None or self.evolve_columns is not None

    def rules(self, hook: SnowpipeHook, say: Callable[..., None]) -> dict[str, Any]:
        """What the plan must know of rows, of the table as it is now.

        :param hook: for the pipe and its account
        :param say: writes a line to the task's log
        :raises SqlError: if the table cannot be described
        """
        checked = self.on_error == "dead_letter" or self.check_rows
        known = self.known_columns(hook, say)
        return {
            "on_error": self.on_error,
            "check_rows": self.check_rows,
            "dead_letter_path": self.dead_letter_path or None,
            "columns": hook.table_columns() if checked else known,
            "unknown_columns": self.unknown_columns if known else "ignore",
        }

    def known_columns(self, hook: SnowpipeHook, say: Callable[..., None]) -> tuple[TableColumn, ...]:
        """The columns that keys of rows have to match; none where they need not, or nobody can tell.

        :param hook: for the pipe and its account
        :param say: writes a line to the task's log
        :raises SqlError: if the table cannot be described, and unknown keys are to fail the task
        """
        if self.unknown_columns == "ignore":
            return ()
        try:
            return hook.columns_for_keys()
        except SqlError as error:
            if self.unknown_columns == "fail":
                raise
            say("keys of rows are not held against the table's columns: %s", error)
            return ()

    def make_room(
        self,
        hook: SnowpipeHook,
        rows: Sequence[bytes],
        address: str,
        say: Callable[..., None],
        types: Mapping[str, str] | None = None,
    ) -> None:
        """Make the table, or widen it, for the keys of some rows.

        :param hook: for the pipe and its account
        :param rows: the rows as NDJSON
        :param address: where they come from, in words
        :param say: writes a line to the task's log
        :param types: types of columns, by name, where the rows' own schema says them
        :raises ConfigurationError: if the table lacks columns and must not get them
        :raises SqlError: if a statement fails
        """
        from airflow_provider_snowpipe.streaming.table_ddl import (
            add_columns,
            columns_of_rows,
            create_table_if_missing,
            missing_columns,
            table_of,
        )

        table = table_of(hook.pipe_name())
        wanted = columns_of_rows(rows, types)
        if self.create_table is not None:
            hook.run_sql(create_table_if_missing(table, wanted))
        if self.evolve_columns is None:
            return
        missing = missing_columns(wanted, hook.table_columns())
        if not missing:
            return
        named = ", ".join(column.ddl for column in missing)
        if not self.evolve_columns:
            raise ConfigurationError(
                f"table {table} lacks {len(missing)} column(s) that source {address!r} has: {named}. "
                "Nothing was sent, since their values would be passed over: set evolve_columns=True to add "
                "them, or evolve_columns=None to load without them"
            )
        hook.run_sql(add_columns(table, missing))
        say("table %s: added %s", table, named)
