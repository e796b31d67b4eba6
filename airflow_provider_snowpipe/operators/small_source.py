"""Where the rows of an append without Spark come from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.operators.storage import read_bytes, storage_path
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_provider_snowpipe.streaming.rows import RowLimits

_ORDERED = re.compile(r"\border\s+by\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SmallSource:
    """Rows at hand, an NDJSON file, or the result of a query; exactly one of the three.

    :param rows: a list of mappings or its JSON text
    :param file: the file's address
    :param file_conn_id: the connection for it
    :param sql: the query
    :param sql_conn_id: its connection
    :param parameters: values that it binds
    """

    rows: Any = None
    file: str | None = None
    file_conn_id: str | None = None
    sql: str | None = None
    sql_conn_id: str | None = None
    parameters: Any = None

    def read(self, limits: RowLimits, *, ordered_by_token: bool) -> Sequence[bytes]:
        """Read the rows as NDJSON lines.

        :param limits: how much is taken
        :param ordered_by_token: True when a column numbers the rows, so that their order is checked later
        :raises ConfigurationError: if there is no source or more than one, too much of it, or a query whose
            rows come in any order
        """
        from airflow_provider_snowpipe.streaming.rows import lines_of_ndjson, lines_of_rows

        given = [name for name in ("rows", "file", "sql") if getattr(self, name) not in (None, "")]
        if len(given) != 1:
            raise ConfigurationError(
                f"the rows come from {' and '.join(given) or 'nowhere'}: give exactly one of rows, file and "
                "sql"
            )
        if self.sql:
            return self._of_query(limits, ordered_by_token)
        if self.file:
            body = read_bytes(storage_path(self.file, self.file_conn_id), limits.raw_bytes)
            return lines_of_ndjson(body, limits, f"file {self.file}")
        return lines_of_rows(rows_from_text(self.rows), limits)

    def _of_query(self, limits: RowLimits, ordered_by_token: bool) -> Sequence[bytes]:
        from airflow.providers.common.compat.sdk import BaseHook

        from airflow_provider_snowpipe.streaming.rows import lines_of_columns

        if not self.sql_conn_id:
            raise ConfigurationError("sql is given without sql_conn_id: name the connection of the query")
        if not ordered_by_token and not _ORDERED.search(self.sql or ""):
            raise ConfigurationError(
                "the query does not say ORDER BY: a retry that gets its rows in another order would load "
                "some "
                "twice and others never. Order it by a unique key, or give token_column=…"
            )
        hook: Any = BaseHook.get_hook(self.sql_conn_id)
        with closing(hook.get_conn()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(self.sql, self.parameters) if self.parameters else cursor.execute(self.sql)
            names = [column[0] for column in cursor.description]
            found = cursor.fetchmany(limits.rows + 1)
        return lines_of_columns(names, found, limits, "the query")


def rows_from_text(rows: Any) -> list[Any]:
    """Take rows as given, or from the JSON text that a template renders.

    :param rows: a list of mappings, one mapping, or JSON text
    :raises ConfigurationError: if it is something else
    """
    if isinstance(rows, str):
        try:
            rows = json.loads(rows)
        except ValueError:
            raise ConfigurationError(
                f"rows is the text {rows[:80]!r}, which is no JSON list: give a list of mappings, an XCom of "
                "one, "
                'or a template that ends in "| tojson"'
            ) from None
    if isinstance(rows, Mapping):
        return [rows]
    if not hasattr(rows, "__iter__") or isinstance(rows, (bytes, bytearray)):
        raise ConfigurationError(f"rows is {type(rows).__name__}: give a list of mappings of column to value")
    return list(rows)
