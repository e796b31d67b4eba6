"""STARTS WITH and LIMIT of SHOW statements, the same for all of them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from airflow_provider_snowpipe.local.errors import compilation_error
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.properties import plain
from airflow_provider_snowpipe.local.sql.results import Result
from airflow_provider_snowpipe.local.sql.session import Session

_STRING = r"'(?:[^']|'')*'"
_CLAUSES = re.compile(
    rf"(?:\s+STARTS\s+WITH\s+(?P<start>{_STRING}))?(?:\s+LIMIT\s+(?P<limit>\d+|NULL)(?:\s+FROM\s+(?P<after>{_STRING}))?)?"
    r"\s*\Z",
    re.IGNORECASE,
)
_Handler = Callable[[Session, str, Bindings], Result]


def narrowed(show: _Handler) -> _Handler:
    """Return a SHOW handler that also takes ``[STARTS WITH 'x'] [LIMIT n [FROM 'name']]``.

    ``FROM`` takes the rows behind the first name that begins with the text, as Snowflake's paging does.
    """

    def handler(session: Session, text: str, bindings: Bindings) -> Result:
        clauses = _CLAUSES.search(text)
        if clauses is None or not clauses[0].strip():
            return show(session, text, bindings)
        result = show(session, text[: clauses.start()], bindings)
        names = [column.name for column in result.columns]
        if "name" not in names:
            raise compilation_error("this SHOW statement has no names; LIMIT and STARTS WITH do not apply.")
        at = names.index("name")
        rows = list(result.rows)
        if clauses["start"]:
            rows = [row for row in rows if str(row[at]).startswith(plain(clauses["start"]))]
        if clauses["after"]:
            rows = [row for row in rows if str(row[at]) > plain(clauses["after"])]
        if clauses["limit"] and clauses["limit"].upper() != "NULL":
            rows = rows[: int(clauses["limit"])]
        return dataclasses.replace(result, rows=rows)

    return handler
