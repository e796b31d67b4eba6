"""Options of tables: ERROR_LOGGING and ENABLE_SCHEMA_EVOLUTION, at CREATE TABLE and by ALTER TABLE SET.

Options of time travel and change tracking are accepted without effect, as at CREATE TABLE.
"""

from __future__ import annotations

import dataclasses
import re

from sqlglot import exp

from airflow_provider_snowpipe.local.errors import compilation_error, object_missing, unsupported
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.results import Result, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.tables import Table

_FIELDS = {"ERROR_LOGGING": "error_logging", "ENABLE_SCHEMA_EVOLUTION": "schema_evolution"}
_WITHOUT_EFFECT = {"DATA_RETENTION_TIME_IN_DAYS", "MAX_DATA_EXTENSION_TIME_IN_DAYS", "CHANGE_TRACKING"}
_ALTER = re.compile(r"ALTER\s+TABLE\s+(?P<exists>IF\s+EXISTS\s+)?(?P<name>.*)", re.IGNORECASE | re.DOTALL)
_SETTING = re.compile(r"(\w+)\s*=\s*(TRUE|FALSE|\d+)\s*,?\s*", re.IGNORECASE)
_DONE = "Statement executed successfully."


def created_with(tree: exp.Create, table: Table) -> Table:
    """Return a table with the options of its CREATE TABLE statement.

    :raises SqlError: for a value that is not TRUE or FALSE.
    """
    properties = tree.args.get("properties")
    chosen: dict[str, bool] = {}
    for setting in properties.expressions if properties else ():
        name = setting.name.upper() if isinstance(setting, exp.Property) else ""
        if name not in _FIELDS:
            continue
        value = setting.args["value"]
        if not isinstance(value, exp.Boolean):
            raise compilation_error(f"{name} must be TRUE or FALSE.")
        chosen[_FIELDS[name]] = bool(value.this)
    return dataclasses.replace(table, **chosen)  # type: ignore[arg-type]


def alter_table(session: Session, text: str, _bindings: Bindings) -> Result:
    """ALTER TABLE [IF EXISTS] name SET option = TRUE | FALSE, .. and UNSET option, .."""
    session.commit()
    match = _ALTER.match(text)
    if match is None:
        raise compilation_error("syntax error in ALTER TABLE.")
    path, rest = read_path(match["name"])
    verb, _, settings = rest.partition(" ")
    if verb.upper() not in ("SET", "UNSET"):
        raise unsupported(f"ALTER TABLE .. {verb.upper()}")
    chosen = _set(settings) if verb.upper() == "SET" else _unset(settings)
    database, schema, name = session.resolve(path)
    with database.write_lock:
        table = database.tables.find(schema, name)
        if table is None and match["exists"]:
            return status(_DONE)
        if table is None:
            raise object_missing("Table", f"{database.name}.{schema}.{name}")
        session.require("OWNERSHIP", "TABLE", database.name, schema, name)
        database.tables.change(dataclasses.replace(table, **chosen))  # type: ignore[arg-type]
    return status(_DONE)


def _set(text: str) -> dict[str, bool]:
    chosen: dict[str, bool] = {}
    position = 0
    while position < len(text.rstrip()):
        match = _SETTING.match(text, position)
        if match is None:
            raise unsupported(f"ALTER TABLE .. SET {' '.join(text[position:].split()[:3])}")
        position = match.end()
        if match[1].upper() in _WITHOUT_EFFECT:
            continue
        field = _field(match[1])
        if match[2].isdigit():
            raise compilation_error(f"{match[1].upper()} must be TRUE or FALSE.")
        chosen[field] = match[2].upper() == "TRUE"
    return chosen


def _unset(text: str) -> dict[str, bool]:
    names = [name for name in text.split(",") if name.strip().upper() not in _WITHOUT_EFFECT]
    return {_field(name): False for name in names}


def _field(name: str) -> str:
    try:
        return _FIELDS[name.strip().upper()]
    except KeyError as error:
        raise unsupported(f"table option {name.strip()}") from error
