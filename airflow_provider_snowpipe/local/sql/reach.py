"""What a statement may reach: its tables and Snowflake's functions, nothing of the engine beneath."""

from __future__ import annotations

import functools
import re

import duckdb
from sqlglot import exp

from airflow_provider_snowpipe.local.errors import SqlError, unsupported

# Functions of the engine that tell about it, wait, log, read its sequences, or make texts of any width.
_INTERNAL = re.compile(
    r"_|duckdb_|pg_|pragma_|has_\w+_privilege\Z|json_(?:de)?serialize_|"
    r"(?:current_setting|current_query|current_query_id|current_connection_id|current_transaction_id|"
    r"current_catalog|txid_current|getvariable|write_log|sleep_ms|nextval|currval|"
    r"format|printf|in_search_path|get_block_size|index_key|create_sort_key|error|"
    r"parse_duckdb_log_message|format_pg_type|map_to_pg_oid)\Z",
    re.IGNORECASE,
)
# Table functions of the engine that read no more than their arguments.
_HARMLESS = frozenset({"repeat", "unnest", "range", "generate_series", "histogram", "json_each"})
_CHANGES = (exp.DML, exp.Create, exp.Drop, exp.Alter, exp.Command, exp.Describe, exp.Show, exp.Pragma)


def check(tree: exp.Expr) -> None:
    """Refuse what no Snowflake query has; call it on the tree as parsed, before anything is translated.

    :raises SqlError: 002140 for a function of the engine, 000002 for a change inside a query.
    """
    for call in tree.find_all(exp.Func):
        name = call.name if isinstance(call, exp.Anonymous) else call.sql_name()
        if _is_of_the_engine(name.lower()):
            raise unknown_function(name)
    for part in tree.walk():
        # The INSERT, UPDATE and DELETE of a MERGE are branches of it.
        if part is not tree and isinstance(part, _CHANGES) and not isinstance(part.parent, exp.When):
            raise unsupported(f"{part.key.upper()} inside of another statement")


def unknown_function(name: str) -> SqlError:
    """Return the error for a function that does not exist (002140)."""
    return SqlError("002140", "42601", f"SQL compilation error:\nUnknown function {name.upper()}")


def is_common(table: exp.Table) -> bool:
    """Return True when a table's name is that of a WITH clause that it can see.

    A name that only some other part of the statement defines must not reach the engine: it has views of its
    own that would answer to it.
    """
    changes = isinstance(table.parent, (exp.DML, exp.Schema)) and table.arg_key == "this"
    if table.args.get("db") or changes:
        return False
    way: list[exp.Expr] = [table]
    while (parent := way[-1].parent) is not None:
        clause = parent.args.get("with_")
        if clause is not None and table.name in _visible(clause, way):
            return True
        way.append(parent)
    return False


def _visible(clause: exp.With, way: list[exp.Expr]) -> set[str]:
    """Return the names that the bottom of a way up sees of a WITH clause: inside it, those before."""
    names: set[str] = set()
    for common in clause.expressions:
        is_inside = any(part is common for part in way)
        if is_inside and not clause.args.get("recursive"):
            break
        names.add(common.alias)
        if is_inside:
            break
    return names


def _is_of_the_engine(name: str) -> bool:
    return _INTERNAL.match(name) is not None or name in _table_functions()


@functools.cache
def _table_functions() -> frozenset[str]:
    with duckdb.connect(":memory:") as engine:
        found = engine.execute(
            "SELECT DISTINCT lower(function_name) FROM duckdb_functions() "
            "WHERE function_type IN ('table', 'pragma', 'table_macro')"
        ).fetchall()
    return frozenset(str(name) for (name,) in found) - _HARMLESS
