"""Options of tables at CREATE TABLE and by ALTER TABLE SET: errors, evolution, stage options, comment.

Options of time travel and change tracking are accepted without effect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from sqlglot import TokenType, exp

from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.schema_objects import TABLE_OPTIONS, SchemaObject, column_key
from airflow_provider_snowpipe.local.errors import compilation_error, unsupported
from airflow_provider_snowpipe.local.sql import translate
from airflow_provider_snowpipe.local.sql.results import Result, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.stage_settings import with_settings
from airflow_provider_snowpipe.local.stages.definition import StageDefinition
from airflow_provider_snowpipe.local.stages.settings import Setting, invalid_value, read_settings
from airflow_provider_snowpipe.local.tables import Table

_FIELDS = {"ERROR_LOGGING": "error_logging", "ENABLE_SCHEMA_EVOLUTION": "schema_evolution"}
_WITHOUT_EFFECT = frozenset(
    {
        "DATA_RETENTION_TIME_IN_DAYS",
        "MAX_DATA_EXTENSION_TIME_IN_DAYS",
        "CHANGE_TRACKING",
        "DEFAULT_DDL_COLLATION",
    }
)
_STAGE = ("STAGE_FILE_FORMAT", "STAGE_COPY_OPTIONS")
# What sqlglot makes of words around a table that have their own reader, or no effect here.
_OTHERS = (
    exp.TemporaryProperty, exp.TransientProperty, exp.ClusterProperty, exp.Cluster, exp.Tags,
    exp.CopyGrantsProperty, exp.SchemaCommentProperty, exp.VolatileProperty, exp.IcebergProperty,
)  # fmt: skip
_DONE = "Statement executed successfully."


def take_stage_options(text: str) -> tuple[str, dict[str, Setting]]:
    """Take STAGE_FILE_FORMAT and STAGE_COPY_OPTIONS out of a CREATE TABLE statement.

    :returns: the statement without them, and the options.
    """
    found: dict[str, Setting] = {}
    kept, position, depth, begin, name = [], 0, 0, -1, ""
    for token in translate.tokens(text):
        if depth == 0 and token.text.upper() in _STAGE and token.token_type == TokenType.VAR:
            begin, name = token.start, token.text.upper()
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if begin >= 0 and depth == 0 and token.token_type == TokenType.R_PAREN:
            settings, rest = read_settings(text[begin : token.end + 1])
            if rest or name in found or list(settings) != [name]:
                raise compilation_error(f"syntax error in {name}.")
            found |= settings
            kept.append(text[position:begin])
            position, begin = token.end + 1, -1
    return "".join([*kept, text[position:]]), found


def created_with(tree: exp.Create, table: Table, others: Collection[str] = ()) -> Table:
    """Return a table with the options of its CREATE TABLE statement.

    :param others: names of further options, which are read elsewhere.

    :raises SqlError: for a value that is not TRUE or FALSE, 000002 for an option that is not known.
    """
    properties = tree.args.get("properties")
    chosen: dict[str, bool] = {}
    for setting in properties.expressions if properties else ():
        if isinstance(setting, _OTHERS):
            continue
        name = setting.name.upper() if isinstance(setting, exp.Property) else ""
        if name in _WITHOUT_EFFECT or name in others:
            continue
        if name not in _FIELDS:
            raise unsupported(f"table option {name or setting.sql(dialect='snowflake')}")
        value = setting.args["value"]
        if not isinstance(value, exp.Boolean):
            raise compilation_error(f"{name} must be TRUE or FALSE.")
        chosen[_FIELDS[name]] = bool(value.this)
    return dataclasses.replace(table, **chosen)  # type: ignore[arg-type]


def keep_created(
    session: Session, database: Database, table: Table, tree: exp.Create, staged: Mapping[str, Setting]
) -> None:
    """Keep the comments and the stage options of a table that was just created."""
    now_ms = database.clock.now_ms()
    comment = (
        next(tree.args["properties"].find_all(exp.SchemaCommentProperty), None)
        if tree.args.get("properties")
        else None
    )
    if comment is not None:
        database.objects.set_comment("TABLE", table.schema, table.name, comment.this.name, now_ms)
    for definition in tree.this.expressions if isinstance(tree.this, exp.Schema) else ():
        for constraint in definition.find_all(exp.CommentColumnConstraint):
            key = column_key(table.name, definition.name)
            database.objects.set_comment("COLUMN", table.schema, key, constraint.this.name, now_ms)
    if staged:
        _set_stage(session, database, table, staged)


def alter_table(session: Session, database: Database, table: Table, verb: str, text: str) -> Result:
    """ALTER TABLE name SET option = value .. and UNSET option, ..

    :param verb: SET or UNSET.
    :param text: what follows it.
    """
    settings = read_all(text) if verb == "SET" else {name.strip().upper(): None for name in text.split(",")}
    chosen: dict[str, bool] = {}
    staged: dict[str, Setting] = {}
    for name, value in settings.items():
        if name in _FIELDS:
            if not isinstance(value, bool) and value is not None:
                raise compilation_error(f"{name} must be TRUE or FALSE.")
            chosen[_FIELDS[name]] = bool(value)
        elif name in _STAGE and value is not None:
            staged[name] = value
        elif name == "COMMENT":
            if not isinstance(value, str) and value is not None:
                raise invalid_value("COMMENT", value, "a string")
            now_ms = database.clock.now_ms()
            database.objects.set_comment("TABLE", table.schema, table.name, str(value or ""), now_ms)
        elif name not in _WITHOUT_EFFECT:
            raise unsupported(f"table option {name}")
    with database.write_lock:
        if chosen:
            database.tables.change(dataclasses.replace(table, **chosen))  # type: ignore[arg-type]
        if staged:
            _set_stage(session, database, table, staged)
    return status(_DONE)


def read_all(text: str) -> dict[str, Setting]:
    """Read settings to the end of a text.

    :raises SqlError: 001003 for anything that is no setting.
    """
    settings, rest = read_settings(text)
    if rest or not settings:
        raise compilation_error(f"syntax error: unexpected '{rest[:40]}', expected NAME = value.")
    return settings


def _set_stage(session: Session, database: Database, table: Table, staged: Mapping[str, Setting]) -> None:
    known = database.objects.find(TABLE_OPTIONS, table.schema, table.name)
    place = (database.name, table.schema, table.name, 0)
    old = (
        StageDefinition.from_json(*place, "", str(known.definition["stage"]))
        if known is not None and "stage" in known.definition
        else StageDefinition(*place)
    )
    stage = with_settings(session, old, staged)
    definition = {**(known.definition if known else {}), "stage": stage.to_json()}
    now_ms = database.clock.now_ms()
    database.objects.put(SchemaObject(TABLE_OPTIONS, table.schema, table.name, now_ms, definition))
