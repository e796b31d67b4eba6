"""Session variables: SET, UNSET, SHOW VARIABLES and ``$name`` in queries."""

from __future__ import annotations

import re

from airflow_provider_snowpipe.local.errors import SqlError, compilation_error
from airflow_provider_snowpipe.local.sql import translate
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.results import Result, listing, status
from airflow_provider_snowpipe.local.sql.session import Session

_DONE = "Statement executed successfully."
_SET = re.compile(
    r"SET\s+(?:(?P<one>\w+)|\((?P<many>[\w\s,]+)\))\s*=\s*(?P<value>.*)", re.IGNORECASE | re.DOTALL
)
_MOST = 256


def set_variables(session: Session, text: str, _bindings: Bindings) -> Result:
    """SET name = expression, SET (a, b) = (x, y)."""
    match = _SET.match(text)
    if match is None:
        raise compilation_error("syntax error: expected SET name = expression.")
    names = [name.strip().upper() for name in (match["one"] or match["many"]).split(",")]
    value = match["value"].strip()
    if match["many"] and value.startswith("(") and value.endswith(")"):
        value = value[1:-1]
    sql = translate.to_duckdb(translate.prepare(session, translate.parse(f"SELECT {value}")))
    row = session.cursor.execute(sql).fetchone()
    if row is None or len(row) != len(names):
        raise compilation_error(f"SET of {len(names)} variables needs as many values.")
    if len({*session.variables, *names}) > _MOST:
        raise SqlError("000002", "0A000", f"a session has {_MOST} variables at most.")
    session.variables.update(zip(names, row, strict=True))
    return status(_DONE)


def unset_variables(session: Session, text: str, _bindings: Bindings) -> Result:
    """UNSET name, UNSET (a, b)."""
    for name in re.sub(r"^UNSET\s+", "", text, flags=re.IGNORECASE).strip("() ").split(","):
        session.variables.pop(name.strip().upper(), None)
    return status(_DONE)


def show_variables(session: Session, _text: str, _bindings: Bindings) -> Result:
    """SHOW VARIABLES."""
    rows = [(name, str(value)) for name, value in sorted(session.variables.items())]
    return listing(("name", "value"), rows)
