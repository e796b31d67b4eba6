"""CLUSTER BY: the clustering key of a table, checked against its columns and translated for the ingest."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from airflow_provider_snowpipe.local.errors import SqlError, compilation_error
from airflow_provider_snowpipe.local.sql import translate
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.tables import ClusteringKey, Table


def of_create(tree: exp.Create) -> list[exp.Expr]:
    """Return the expressions of CLUSTER BY in a CREATE TABLE; none without it."""
    properties = tree.args.get("properties")
    for setting in properties.expressions if properties else ():
        if isinstance(setting, exp.ClusterProperty):
            return list(setting.expressions)
    return []


def key_of(session: Session, table: Table, written: Sequence[exp.Expr]) -> ClusteringKey:
    """Check the expressions of CLUSTER BY and return the key.

    :param table: the table with the columns that they may name.
    :param written: one expression or more, as the statement has them.
    :raises SqlError: for an unknown column, or an expression that has no one value a row.
    """
    texts, expressions = [], []
    for each in written:
        tree = each.copy()
        if tree.find(exp.Subquery, exp.AggFunc, exp.Window):
            raise compilation_error("CLUSTER BY takes columns and expressions over them.")
        for name in tree.find_all(exp.Identifier):
            if not name.args.get("quoted"):
                name.set("this", name.this.upper())
        texts.append(tree.sql(dialect="snowflake"))
        translate.normalize_identifiers(tree)
        _check_columns(table, tree)
        expressions.append(translate.to_duckdb(translate.prepare(session, tree)))
    if not texts:
        raise compilation_error("CLUSTER BY needs a column or an expression.")
    key = ClusteringKey(f"LINEAR({', '.join(texts)})", tuple(expressions))
    # Compiled once here, so that no commit can fail for it.
    session.cursor.execute(key.check(table.columns))
    return key


def _check_columns(table: Table, tree: exp.Expr) -> None:
    known = {column.name for column in table.columns}
    for column in tree.find_all(exp.Column):
        if column.name not in known or column.table:
            raise SqlError("000904", "42000", f"SQL compilation error:\ninvalid identifier '{column.name}'")
