"""Description of a statement without running it: ``describeOnly`` of the connector protocol.

Connector 5.2.0 asks for it before an ``executemany``, and ``cursor.describe`` of both generations uses it.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlglot.errors
from sqlglot import exp

from airflow_provider_snowpipe.local.errors import SqlError
from airflow_provider_snowpipe.local.sql import front, query, results, translate
from airflow_provider_snowpipe.local.sql.results import Result, ResultColumn
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.split import strip_comments
from airflow_provider_snowpipe.local.types import ColumnType

_ROW_STATEMENTS = (exp.Query, exp.Insert, exp.Update, exp.Delete, exp.Merge)


@dataclass(frozen=True, slots=True)
class Description:
    """What a statement would return.

    :param result: columns and no rows.
    :param binds: number of placeholders.
    """

    result: Result
    binds: int


def describe(session: Session, statement: str) -> Description:
    """Describe a statement.

    :raises SqlError: when it does not compile.
    """
    text = strip_comments(statement).rstrip().rstrip(";")
    with session.lock, front.snowflake_errors(session):
        try:
            tree = translate.parse(text) if text[:1].upper() in {"S", "W", "V", "I", "U", "D", "M"} else None
        except (sqlglot.errors.SqlglotError, SqlError):
            # SHOW and other statements that only the front itself can read.
            tree = None
        if not isinstance(tree, _ROW_STATEMENTS):
            return Description(Result(results.status("").columns, [], results.OTHER), 0)
        translate.number_placeholders(tree)
        binds = len({node.name for node in tree.find_all(exp.Parameter) if node.name.isdigit()})
        if isinstance(tree, exp.Query):
            return Description(_columns(session, tree, binds), binds)
        counted = query.counts(translate.prepare(session, tree))
        return Description(Result(counted.columns, [], counted.statement_type), binds)


def _columns(session: Session, tree: exp.Query, binds: int) -> Result:
    sql = translate.to_duckdb(translate.prepare(session, tree))
    found = session.cursor.execute(f"DESCRIBE {sql}", [None] * binds).fetchall()
    return Result(tuple(ResultColumn(row[0], ColumnType.from_duckdb(str(row[1]))) for row in found), [])
