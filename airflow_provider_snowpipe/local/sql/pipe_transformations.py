"""The SELECT of a streaming pipe, compiled to one DuckDB expression a column."""

from __future__ import annotations

from sqlglot import exp

from airflow_provider_snowpipe.local.engine import conversions
from airflow_provider_snowpipe.local.errors import SqlError, compilation_error, unsupported
from airflow_provider_snowpipe.local.sql import timestamps, translate
from airflow_provider_snowpipe.local.sql.names import read_list
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.timestamps import named_type
from airflow_provider_snowpipe.local.tables import Column, Table
from airflow_provider_snowpipe.local.types import ColumnType


def compile_select(
    session: Session, table: Table, listed: str | None, select: str, matching: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Compile the SELECT of a streaming pipe.

    :param table: the table that the pipe fills.
    :param listed: columns after the table's name, as written, or None.
    :param select: what is between SELECT and FROM.
    :param matching: ``CASE_SENSITIVE`` or ``CASE_INSENSITIVE`` of MATCH_BY_COLUMN_NAME, or None.
    :returns: columns to fill, and a DuckDB expression over the row ``j`` for each.
    :raises SqlError: for what a pipe cannot do, and for columns that the table does not have.
    """
    tree = translate.parse(f"SELECT {select}")
    if not isinstance(tree, exp.Select) or set(_used(tree)) - {"expressions", "kind"}:
        raise unsupported("anything but expressions in the transformation of a pipe")
    if tree.find(exp.Subquery, exp.AggFunc, exp.Window):
        raise unsupported("subqueries and aggregates in the transformation of a pipe")
    projections = list(tree.expressions)
    if matching is not None:
        names = _named(projections)
    elif listed is not None:
        names = read_list(listed)
    else:
        names = [column.name for column in table.columns]
    if len(names) != len(projections):
        raise SqlError(
            "002020",
            "21S01",
            f"SQL compilation error:\nInsert value list does not match column list expecting {len(names)} "
            f"but got {len(projections)}",
        )
    columns = [_column(table, name, matching == "CASE_INSENSITIVE") for name in names]
    if len({column.name for column in columns}) != len(columns):
        raise compilation_error("a column is filled twice.")
    expressions = tuple(
        _expression(session, column, projection.unalias())
        for column, projection in zip(columns, projections, strict=True)
    )
    for expression in expressions:
        session.cursor.execute(f"DESCRIBE SELECT {expression} FROM (SELECT CAST(NULL AS JSON) AS j)")  # noqa: S608
    return tuple(column.name for column in columns), expressions


def _used(tree: exp.Expr) -> list[str]:
    return [name for name, value in tree.args.items() if value]


def _named(projections: list[exp.Expr]) -> list[str]:
    names: list[str] = []
    for projection in projections:
        if not isinstance(projection, exp.Alias):
            raise compilation_error("MATCH_BY_COLUMN_NAME needs AS and a name for every expression.")
        translate.normalize_identifiers(projection.args["alias"])
        names.append(projection.alias)
    return names


def _column(table: Table, name: str, ignore_case: bool) -> Column:
    for column in table.columns:
        if column.name == name or (ignore_case and column.name.upper() == name.upper()):
            return column
    raise SqlError("000904", "42000", f"SQL compilation error:\ninvalid identifier '{name}'")


def _expression(session: Session, column: Column, tree: exp.Expr) -> str:
    if tree.find(exp.Column):
        name = next(iter(tree.find_all(exp.Column))).sql(dialect="snowflake")
        raise SqlError("000904", "42000", f"SQL compilation error:\ninvalid identifier '{name}'")
    if isinstance(tree, exp.Cast) and _is_path(tree.this):
        written = Column(column.name, ColumnType.from_sqlglot(tree.to))
        first = _converted(written, tree.this)
        return first if str(written.type) == str(column.type) else _between(written, column, first)
    if _is_path(tree):
        return _converted(column, tree)
    holder: exp.Expr = exp.Select(expressions=[tree.copy()])
    holder = holder.transform(timestamps.at_start).transform(_inner_cast).transform(_row)
    sql = translate.to_duckdb(translate.prepare(session, holder.expressions[0]))
    if column.type.is_semi_structured:
        return f"to_json({sql})"
    return conversions.cast(column, sql)


def _is_path(tree: exp.Expr) -> bool:
    return isinstance(tree, (exp.JSONExtract, exp.Parameter)) and (
        isinstance(tree, exp.Parameter) or _is_path(tree.this)
    )


def _path_sql(tree: exp.Expr) -> str:
    return translate.to_duckdb(tree.copy().transform(_row))


def _converted(column: Column, path: exp.Expr) -> str:
    raw = f"({_path_sql(path)})"
    if column.type.is_semi_structured:
        return conversions.convert(column, f"CASE WHEN json_type({raw}) <> 'NULL' THEN {raw} END")
    return conversions.convert(column, f"({raw} ->> '$')")


def _between(written: Column, column: Column, sql: str) -> str:
    if column.type.is_semi_structured:
        return sql if written.type.is_semi_structured else f"to_json({sql})"
    return conversions.cast(column, sql)


def _row(node: exp.Expr) -> exp.Expr:
    if not isinstance(node, exp.Parameter):
        return node
    if node.name != "1":
        raise unsupported(f"column ${node.name} of a streaming source; the row is $1")
    return exp.column(exp.to_identifier("j", quoted=True))


def _inner_cast(node: exp.Expr) -> exp.Expr:
    """A path inside a function: its text for every type but the semi-structured ones."""
    if isinstance(node, exp.ParseJSON) and _is_path(node.this):
        return exp.Cast(this=_text_of(node.this), to=exp.DataType.build("JSON"))
    if not isinstance(node, exp.Cast) or isinstance(node, exp.TryCast):
        return node
    kind = ColumnType.from_sqlglot(node.to)
    inner = node.this if kind.is_semi_structured or not _is_path(node.this) else _text_of(node.this)
    return exp.Cast(this=inner, to=named_type(kind, node.to))


def _text_of(path: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this="json_extract_string", expressions=[path, exp.Literal.string("$")])
