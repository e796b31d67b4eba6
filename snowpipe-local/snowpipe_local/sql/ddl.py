# ruff: noqa: S608 - names go through tables.quote, values are bound.
"""CREATE, DROP and TRUNCATE of databases, schemas and tables."""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Collection, Mapping

import duckdb
from sqlglot import exp

from snowpipe_local.access.model import Securable
from snowpipe_local.engine.database import Database
from snowpipe_local.engine.store import TABLE_OPTIONS, VIEW, SchemaObject, column_key
from snowpipe_local.engine.tables import Noted
from snowpipe_local.errors import (
    SqlError,
    another_kind,
    compilation_error,
    exists_as,
    invalid_identifier,
    object_exists,
    object_missing,
    unsupported,
)
from snowpipe_local.sql import (
    assignments,
    checks,
    functions,
    history,
    iceberg,
    show,
    sources,
    translate,
    views,
)
from snowpipe_local.sql import query as lengths
from snowpipe_local.sql.reader import RESERVED, Reader, Target
from snowpipe_local.sql.results import Bindings, Result, done, status
from snowpipe_local.sql.session import Session, use_schema
from snowpipe_local.sql.stages import with_settings
from snowpipe_local.stages.definition import Setting, StageDefinition, invalid_value
from snowpipe_local.tables import (
    IDENTITY,
    MAX_VARCHAR,
    PRIMARY,
    UNIQUE,
    ClusteringKey,
    Column,
    ColumnType,
    Table,
    literal,
    new_folder,
)

# -- Options of tables at CREATE TABLE and by ALTER TABLE SET: errors, evolution, stage options, comment --
#
# Options of time travel and change tracking are accepted without effect.

_FIELDS = {"ERROR_LOGGING": "error_logging", "ENABLE_SCHEMA_EVOLUTION": "schema_evolution"}
_WITHOUT_EFFECT = frozenset(
    {"DATA_RETENTION_TIME_IN_DAYS", "MAX_DATA_EXTENSION_TIME_IN_DAYS", "CHANGE_TRACKING",
     "DEFAULT_DDL_COLLATION"}
)  # fmt: skip
_STAGE = ("STAGE_FILE_FORMAT", "STAGE_COPY_OPTIONS")
# What sqlglot makes of words around a table that have their own reader, or no effect here.
_OTHERS = (
    exp.TemporaryProperty, exp.TransientProperty, exp.Tags,
    exp.CopyGrantsProperty, exp.SchemaCommentProperty, exp.VolatileProperty, exp.IcebergProperty,
)  # fmt: skip


def _properties(tree: exp.Create) -> list[exp.Expr]:
    found = tree.args.get("properties")
    return list(found.expressions) if found else []


def take_stage_options(reader: Reader) -> tuple[str, dict[str, Setting]]:
    """Take STAGE_FILE_FORMAT and STAGE_COPY_OPTIONS out of a CREATE TABLE statement.

    :returns: the statement without them, and the options.
    """
    found: dict[str, Setting] = {}
    text, kept, position = reader.text, [], 0
    reader.seek(0)
    while True:
        reader.until(*_STAGE)
        kept.append(text[position : reader.position])
        if reader.is_at_end:
            return "".join(kept), found
        settings = reader.settings(needed=True, only=_STAGE)
        if set(settings) & set(found):
            raise compilation_error(f"syntax error in {', '.join(settings)}.")
        found |= settings
        position = reader.position


def created_with(tree: exp.Create, table: Table, others: Collection[str] = ()) -> Table:
    """Return a table with the options of its CREATE TABLE statement.

    :param others: names of further options, which are read elsewhere.

    :raises SqlError: for a value that is not TRUE or FALSE, 000002 for an option that is not known.
    """
    chosen: dict[str, bool] = {}
    for setting in _properties(tree):
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
    comment = next((part for part in _properties(tree) if isinstance(part, exp.SchemaCommentProperty)), None)
    if comment is not None:
        database.objects.set_comment("TABLE", table.schema, table.name, comment.this.name)
    for definition in tree.this.expressions if isinstance(tree.this, exp.Schema) else ():
        for constraint in definition.find_all(exp.CommentColumnConstraint):
            key = column_key(table.name, definition.name)
            database.objects.set_comment("COLUMN", table.schema, key, constraint.this.name)
    if staged:
        _set_stage(session, database, table, staged)


def _keep_option(
    database: Database, table: Table, reader: Reader, lake: Mapping[str, str] | None = None
) -> None:
    option = {"iceberg": lake} if lake is not None else {"transient": True}
    if lake is not None or "TRANSIENT" in reader.modifiers:
        now_ms = table.created_on_ms
        database.objects.put(SchemaObject(TABLE_OPTIONS, table.schema, table.name, now_ms, option))


def alter_table(
    session: Session, database: Database, table: Table, settings: Mapping[str, Setting | None]
) -> Result:
    """ALTER TABLE name SET option = value .. and UNSET option, ..

    :param settings: None for an option that is unset.
    """
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
            database.objects.set_comment("TABLE", table.schema, table.name, str(value or ""))
        elif name not in _WITHOUT_EFFECT:
            raise unsupported(f"table option {name}")
    with database.write_lock:
        if chosen:
            database.tables.change(dataclasses.replace(table, **chosen))  # type: ignore[arg-type]
        if staged:
            _set_stage(session, database, table, staged)
    return done()


def _set_stage(session: Session, database: Database, table: Table, staged: Mapping[str, Setting]) -> None:
    known = database.objects.find(TABLE_OPTIONS, table.schema, table.name)
    key = (database.name, table.schema, table.name, 0)
    old = (
        StageDefinition.from_row(*key, str(known.definition["stage"]))
        if known is not None and "stage" in known.definition
        else StageDefinition(*key)
    )
    stage = with_settings(session, old, staged)
    definition = {**(known.definition if known else {}), "stage": stage.to_row()[-1]}
    now_ms = database.clock.now_ms()
    database.objects.put(SchemaObject(TABLE_OPTIONS, table.schema, table.name, now_ms, definition))


# -- CLUSTER BY: the clustering key of a table, checked against its columns and translated for the ingest --


# A column is shown by its name, another expression as it is written.
_ALONE = re.compile(r"(?:^|,)\s*[A-Za-z_]\w*\s*(?=,|$)")


def take_clustering(text: str) -> tuple[str, str]:
    """Return a CREATE TABLE statement without CLUSTER BY, which sqlglot reads in part, and what that has."""
    reader = Reader.of(text, Bindings({}))
    start = -1
    while not reader.is_at_end and start < 0:
        reader.until("CLUSTER")
        at = reader.position
        if reader.accept("CLUSTER BY"):
            start = at
        else:
            reader.accept("CLUSTER")
    if start < 0:
        return text, ""
    reader.accept("LINEAR")
    opened = reader.position + 1
    if not reader.parenthesized():
        raise compilation_error("CLUSTER BY needs a column or an expression.")
    rest = reader.text[reader.position :]
    inner = reader.text[opened : len(reader.text) - len(rest)].rstrip().removesuffix(")")
    return f"{reader.text[:start]} {rest}", inner


def key_of(session: Session, table: Table, written: str) -> ClusteringKey:
    """Check the expressions of CLUSTER BY and return the key.

    :param table: the table with the columns that they may name.
    :param written: one expression or more, as the statement has them between parentheses.
    :raises SqlError: for an unknown column, or an expression that has no one value a row.
    """
    expressions = []
    for tree in [part.unalias() for part in translate.parse(f"SELECT {written}").expressions]:
        if tree.find(exp.Subquery, exp.AggFunc, exp.Window):
            raise compilation_error("CLUSTER BY takes columns and expressions over them.")
        translate.normalize_identifiers(tree)
        _check_columns(table, tree)
        expressions.append(translate.to_duckdb(translate.prepare(session, tree)))
    shown = _ALONE.sub(lambda name: name[0].upper(), written)
    key = ClusteringKey(f"LINEAR({shown})", tuple(expressions))
    # Compiled once here, so that no commit can fail for it.
    session.cursor.execute(key.check(table.columns))
    return key


def _check_columns(table: Table, tree: exp.Expr) -> None:
    known = {column.name for column in table.columns}
    for column in tree.find_all(exp.Column):
        if column.name not in known or column.table:
            raise invalid_identifier(column.name)


# -- CREATE TABLE .. LIKE and CREATE TABLE .. CLONE ------------------------------------------------------


def refuse_view(database: Database, schema: str, name: str) -> None:
    """Refuse the name of a view for a table, with OR REPLACE and IF NOT EXISTS too.

    :raises SqlError: 001998.
    """
    if database.objects.find(VIEW, schema, name) is not None:
        raise exists_as(VIEW, name)


def _claim(
    session: Session, path: tuple[str, ...], kind: str, *, temporary: bool, replace: bool
) -> tuple[Database, str, str, Table | None]:
    """Require what a new table needs: CREATE TABLE, or for a temporary one OWNERSHIP of the table it hides.

    Sources: Snowflake's documentation, "CREATE TABLE", "Access control requirements"; behaviour change 427.

    :returns: where it is to be, and the table that is there.
    :raises SqlError: 003001 or 002003 without the privilege, 001998 for the name of a view.
    """
    database, schema, name = session.resolve_new_table(path, temporary=temporary)
    known = database.tables.find(schema, name)
    if not temporary:
        session.require(f"CREATE {kind}", "SCHEMA", database.name, schema)
        refuse_view(database, schema, name)
    elif database.tables.find(schema, path[-1]) is not None:
        session.require("OWNERSHIP", "TABLE", database.name, schema, path[-1])
    if known is not None and replace:
        session.require("OWNERSHIP", "TABLE", database.name, schema, name)
    return database, schema, name, known


def _copy_table(session: Session, head: Target, reader: Reader) -> Result:
    """CREATE [OR REPLACE] TABLE [IF NOT EXISTS] name LIKE | CLONE source; a clone has its rows too."""
    word = reader.expect("LIKE", "CLONE")
    source_path = reader.path()
    if reader.word in {"AT", "BEFORE"}:
        raise unsupported(f"CREATE TABLE .. {word} .. {reader.word}")
    keeps_grants = bool(reader.accept("COPY GRANTS"))
    reader.end()
    session.transaction.commit()
    origin, source = session.table(source_path, "SELECT")
    database, schema, name, known = _claim(
        session, head.path, "TABLE", temporary=reader.is_temporary, replace=reader.is_replacing
    )
    if known is not None and head.is_tolerant:
        return status(f"{head.name} already exists, statement succeeded.")
    counted = (each for each in source.columns if not IDENTITY.match(each.default_text or ""))
    if database is not origin and any("nextval" in (column.default or "") for column in counted):
        raise unsupported("a copy of a table with sequences in another database")
    made = dataclasses.replace(
        source,
        database=database.name,
        schema=schema,
        name=name,
        created_on_ms=database.clock.now_ms(),
        home=database.names.home(schema),
        engine_name=database.tables.engine_name(schema, name),
        folder=new_folder(),
    )
    made, statements = _with_own_identities(session, database, made, goes_on=word == "CLONE")
    statements.append(f"CREATE TABLE {made.path} ({', '.join(column.ddl() for column in made.columns)})")
    if word == "CLONE":
        statements.append(f"INSERT INTO {made.path} SELECT * FROM {source.path}")
    granted = known or source
    grants_of = Securable("TABLE", (granted.database, granted.schema, granted.name)) if keeps_grants else None
    noted = session.creates_table(database.name, schema, name, grants_of)
    database.tables.create(made, statements, replace=reader.is_replacing, cursor=session.cursor, noted=noted)
    session.created_table(database.name, schema, name)
    _keep_option(database, made, reader)
    return status(f"Table {head.name} successfully created.")


def _with_own_identities(
    session: Session, database: Database, table: Table, *, goes_on: bool
) -> tuple[Table, list[str]]:
    """Return a copied table whose IDENTITY columns count by themselves, and the statements for that.

    :param goes_on: a clone continues where its source is; an empty copy starts as that did.
    """
    statements: list[str] = []
    columns = []
    for column in table.columns:
        counted = IDENTITY.match(column.default_text or "")
        if counted is not None:
            first, by = int(counted[1]), int(counted[2])
            if goes_on:
                first = _next_identity(session, str(column.default), first, by)
            column = dataclasses.replace(column, default=_counting(database, first, by, statements))
        columns.append(column)
    return dataclasses.replace(table, columns=tuple(columns)), statements


def _next_identity(session: Session, default: str, first: int, by: int) -> int:
    found = session.cursor.execute(
        "SELECT last_value FROM duckdb_sequences() WHERE contains(?, sequence_name)", [default]
    ).fetchone()
    return first if found is None or found[0] is None else int(found[0]) + by


# -- CREATE, DROP and TRUNCATE of databases, schemas and tables ------------------------------------------

_NAME = r'(?:"(?:[^"]|"")+"|[\w$]+)'
# Snowpark writes the condition behind the name.
_EXISTS = re.compile(
    rf"(\bTABLE\s+)({_NAME}(?:\s*\.\s*{_NAME})*\s+)(IF\s+NOT\s+EXISTS\s+)(?=\()", re.IGNORECASE
)
# Snowflake's other words for TEMPORARY, which sqlglot does not read before TABLE.
_TEMPORARY = re.compile(
    r"(?<=\s)(?:LOCAL|GLOBAL)\s+(?:TEMP|TEMPORARY|VOLATILE)(?=\s+(?:TRANSIENT\s+)?TABLE\b)", re.IGNORECASE
)
_COUNTED = (exp.AutoIncrementColumnConstraint, exp.GeneratedAsIdentityColumnConstraint)
# Accepted because they change nothing about the rows; kept out of the stored table.
_IGNORED_CONSTRAINTS = (
    exp.CommentColumnConstraint, exp.PrimaryKeyColumnConstraint, exp.UniqueColumnConstraint,
    exp.Reference, exp.NotNullColumnConstraint,
)  # fmt: skip
_KEYS = {exp.PrimaryKeyColumnConstraint: PRIMARY, exp.UniqueColumnConstraint: UNIQUE}


# Text is always compared by its bytes.
_BINARY_COLLATIONS = frozenset({"", "utf8"})
# Taken without effect, but for COMMENT.
_CONTAINER_OPTIONS = frozenset(
    {"COMMENT", "DATA_RETENTION_TIME_IN_DAYS", "MAX_DATA_EXTENSION_TIME_IN_DAYS", "DEFAULT_DDL_COLLATION",
     "LOG_LEVEL", "TRACE_LEVEL", "LOG_EVENT_LEVEL"}
)  # fmt: skip


def create_database(session: Session, reader: Reader) -> Result:
    """CREATE [OR REPLACE] DATABASE [IF NOT EXISTS] name."""
    head = reader.target(1)
    name, comment = head.name, _container_comment(reader)
    session.transaction.commit()
    exists = session.catalog.find(name) is not None
    session.require("CREATE DATABASE", "ACCOUNT")
    if exists and head.is_tolerant:
        use_schema(session, name, None)
        return status(f"{name} already exists, statement succeeded.")
    if exists and reader.is_replacing:
        session.require("OWNERSHIP", "DATABASE", name)
        session.catalog.drop_database(name)
    session.catalog.create_database(name)
    made = session.catalog.database(name)
    if comment:
        made.objects.set_comment("DATABASE", "", name, comment)
    session.created("DATABASE", name)
    session.created("SCHEMA", name, "PUBLIC")
    use_schema(session, name, None)
    return status(f"Database {name} successfully created.")


def create_schema(session: Session, reader: Reader) -> Result:
    """CREATE [OR REPLACE] SCHEMA [IF NOT EXISTS] [database.]name."""
    head = reader.target(2)
    comment = _container_comment(reader)
    session.transaction.commit()
    database, name = session.resolve_schema(head.path)
    session.require("CREATE SCHEMA", "DATABASE", database.name)
    if name == "INFORMATION_SCHEMA":
        raise object_exists(name)
    if name in database.schemas:
        if head.is_tolerant:
            return status(f"{name} already exists, statement succeeded.")
        if reader.is_replacing:
            session.require("OWNERSHIP", "SCHEMA", database.name, name)
            database.drop_schema(name)
    database.create_schema(name)
    if comment:
        database.objects.set_comment("SCHEMA", name, name, comment)
    session.created("SCHEMA", database.name, name)
    use_schema(session, database.name, name)
    return status(f"Schema {name} successfully created.")


def drop_database(session: Session, reader: Reader) -> Result:
    """DROP DATABASE [IF EXISTS] name."""
    path = reader.last_target(1).path
    session.transaction.commit()
    session.catalog.database(path[0])
    session.require("OWNERSHIP", "DATABASE", path[0])
    session.catalog.drop_database(path[0])
    session.dropped("DATABASE", path[0])
    if session.database == path[0]:
        session.database = session.schema = None
    return status(f"{path[0]} successfully dropped.")


def drop_schema(session: Session, reader: Reader) -> Result:
    """DROP SCHEMA [IF EXISTS] [database.]name."""
    path = reader.last_target(2).path
    session.transaction.commit()
    database, name = session.resolve_schema(path)
    if name not in database.schemas:
        raise object_missing("Schema", f"{database.name}.{name}")
    session.require("OWNERSHIP", "SCHEMA", database.name, name)
    database.drop_schema(name)
    session.dropped("SCHEMA", database.name, name)
    if (session.database, session.schema) == (database.name, name):
        session.schema = None
    return status(f"{name} successfully dropped.")


def drop_table(session: Session, reader: Reader) -> Result:
    """DROP TABLE [IF EXISTS] name; its default pipe and channels go with it."""
    path = reader.last_target(3).path
    session.transaction.commit()
    database, schema, name = session.resolve(path)
    table = database.tables.find(schema, name)
    if table is not None:
        session.require("OWNERSHIP", "TABLE", database.name, schema, name)
    elif database.objects.find(VIEW, schema, name) is not None:
        raise another_kind(VIEW, "TABLE")
    with session.holding(table):
        _drop(session, database, schema, name)
    session.temporary_tables.pop((database.name, schema, path[-1]), None)
    return status(f"{path[-1]} successfully dropped.")


def _drop(session: Session, database: Database, schema: str, name: str) -> None:
    pipes = [pipe.key for pipe in database.pipes if (pipe.key.schema, pipe.table) == (schema, name)]
    database.tables.drop(schema, name)
    session.dropped("TABLE", database.name, schema, name)
    for pipe in pipes:
        session.dropped("PIPE", database.name, pipe.schema, pipe.name)


def truncate_table(session: Session, reader: Reader) -> Result:
    """TRUNCATE TABLE [IF EXISTS] name: DML ("Transactions", "Terminology"); channels keep their tokens."""
    if reader.word == "ERROR_TABLE" and reader.is_sign("(", ahead=1):
        return history.truncate(session, reader)
    head = reader.last_target()
    database, table = session.table_if_exists(head, "TRUNCATE")
    if table is None:
        return done()

    def empty() -> int:
        [(count,)] = session.cursor.execute(f"DELETE FROM {table.path}").fetchall()
        database.history.forget_table(session.cursor, table.schema, table.name)
        return int(count)

    with session.holding(table), database.altering():
        deleted = session.change(empty)
        session.changed(database, table)
    return dataclasses.replace(done(), changed={"deleted": deleted})


def create_table(session: Session, reader: Reader) -> Result:
    """CREATE [OR REPLACE] TABLE [IF NOT EXISTS], with columns or AS SELECT."""
    head = reader.target()
    if reader.kind == "TABLE" and reader.word in {"LIKE", "CLONE"}:
        return _copy_table(session, head, reader)
    text, staged = take_stage_options(reader)
    text, clustered = take_clustering(_TEMPORARY.sub("TEMPORARY", text, count=1))
    tree = translate.parse(_EXISTS.sub(r"\1\3\2", text, count=1))
    named = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    if not isinstance(tree, exp.Create) or not isinstance(named, exp.Table):
        raise unsupported("this form of CREATE TABLE")
    translate.normalize_identifiers(named)
    # The parser loses the schema of ``database..name``.
    path = head.path if len(head.path) == 3 else tuple(part.name for part in named.parts)
    properties = _properties(tree)
    lake = iceberg.read_options(tree, properties)
    kind = "TABLE" if lake is None else "ICEBERG TABLE"
    replace = bool(tree.args.get("replace"))
    database, schema, name, known = _claim(
        session, path, kind, temporary=reader.is_temporary, replace=replace
    )
    if lake is not None:
        iceberg.read_types(tree)
    if tree.args.get("exists") and known is not None:
        session.transaction.commit()
        return status(f"{path[-1]} already exists, statement succeeded.")
    table, statements, query = (
        _as_select(session, database, schema, name, tree)
        if tree.expression is not None
        else (*_with_columns(session, database, schema, name, tree.this), "")
    )
    table = created_with(tree, table, () if lake is None else iceberg.OPTIONS)
    if lake is not None:
        table = dataclasses.replace(table, columns=iceberg.columns(table.columns))
    if clustered:
        table = dataclasses.replace(table, clustering_key=key_of(session, table, clustered))
    session.transaction.commit()
    keeps_grants = any(isinstance(part, exp.CopyGrantsProperty) for part in properties)
    grants_of = Securable("TABLE", (database.name, schema, name)) if keeps_grants else None
    noted = session.creates_table(database.name, schema, name, grants_of)
    _create(session, database, table, (statements, query), replace=replace, noted=noted)
    session.created_table(database.name, schema, name)
    _keep_option(database, table, reader, lake)
    keep_created(session, database, table, tree, staged)
    counted = None if tree.expression is None else {"inserted": show.count_rows(session, table)}
    return dataclasses.replace(status(f"Table {path[-1]} successfully created."), changed=counted)


def _create(
    session: Session,
    database: Database,
    table: Table,
    made_by: tuple[list[str], str],
    *,
    replace: bool,
    noted: Noted,
) -> None:
    """Create a table; commits of channels wait for this, but not for the query that fills it.

    :param made_by: statements that create it, and the query, if any.
    :param noted: as :meth:`Tables.create` takes it.
    """
    statements, query = made_by
    if query and not replace and database.tables.find(table.schema, table.name) is not None:
        raise object_exists(str(table))
    if not query:
        database.tables.create(table, statements, replace=replace, cursor=session.cursor, noted=noted)
        return
    session.cursor.execute(f"CREATE OR REPLACE TEMPORARY TABLE _filled AS {query}")
    try:
        filled = [*statements, f"INSERT INTO {table.path} FROM temp._filled"]
        database.tables.create(table, filled, replace=replace, cursor=session.cursor, noted=noted)
    finally:
        session.cursor.execute("DROP TABLE temp._filled")


def _with_columns(
    session: Session, database: Database, schema: str, name: str, body: exp.Expr
) -> tuple[Table, list[str]]:
    if not isinstance(body, exp.Schema):
        raise compilation_error("CREATE TABLE needs a list of columns or AS SELECT.")
    name_columns(body)
    if body.find(exp.CheckColumnConstraint):
        raise unsupported("constraint CHECK")
    statements: list[str] = []
    columns = tuple(
        read_column(session, database, definition, statements)
        for definition in body.expressions
        if isinstance(definition, exp.ColumnDef)
    )
    if not columns:
        raise compilation_error("CREATE TABLE needs a column.")
    views.refuse_repeated([column.name for column in columns])
    columns = with_keys(body, columns)
    table = sources.new(database, schema, name, columns)
    statements.append(f"CREATE TABLE {table.path} ({', '.join(column.ddl() for column in columns)})")
    return table, statements


def with_keys(body: exp.Schema, columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return columns with the keys beside them; those of a PRIMARY KEY take no NULL ("Constraints").

    :raises SqlError: 000904 where a key names no column of the table.
    """
    for key in body.find_all(exp.PrimaryKey, exp.ForeignKey, exp.UniqueColumnConstraint):
        parts = key.expressions or (key.this.expressions if isinstance(key.this, exp.Schema) else [])
        named = {part.name for part in parts}
        if missing := sorted(named - {column.name for column in columns}):
            raise invalid_identifier(missing[0])
        word = PRIMARY if isinstance(key, exp.PrimaryKey) else _KEYS.get(type(key))
        columns = tuple(
            dataclasses.replace(one, keys=one.keys | {word}, nullable=one.nullable and word != PRIMARY)
            if word and one.name in named
            else one
            for one in columns
        )
    return columns


def name_columns(body: exp.Schema) -> None:
    """Write the names of new columns as they are kept.

    :raises SqlError: 001003 for a reserved word without quotes.
    """
    for definition in body.find_all(exp.ColumnDef):
        name = definition.this
        if not name.args.get("quoted") and name.name.upper() in RESERVED:
            raise compilation_error(f"syntax error: unexpected '{name.name}'.")
    translate.normalize_identifiers(body)


def read_column(
    session: Session, database: Database, definition: exp.ColumnDef, statements: list[str]
) -> Column:
    """Return a column of CREATE TABLE or ALTER TABLE .. ADD.

    :param statements: gets the DuckDB statements that have to run before, for an IDENTITY.
    """
    if definition.kind is None:
        raise compilation_error(f"column {definition.name} has no type.")
    default, written = None, None
    nulls = {bool(one.args.get("allow_null")) for one in definition.find_all(exp.NotNullColumnConstraint)}
    if len(nulls) > 1:
        raise compilation_error(f"column {definition.name} is both NULL and NOT NULL.")
    keys = [word for kind, word in _KEYS.items() if definition.find(kind)]
    for constraint in definition.constraints:
        kind = constraint.args.get("kind")  # IN, OUT, and a constraint's name alone have none
        if isinstance(kind, exp.DefaultColumnConstraint):
            counted = views.default_of(session, kind.this)
            default = counted or _default(kind.this)
            written = kind.this.sql(dialect="snowflake")
        elif isinstance(kind, _COUNTED) and not kind.args.get("expression"):
            default, written = _sequence(database, kind, statements)
        elif isinstance(kind, exp.CollateColumnConstraint) and kind.this.name.lower() in _BINARY_COLLATIONS:
            pass
        elif not isinstance(kind, _IGNORED_CONSTRAINTS):
            raise unsupported(f"column constraint {constraint.sql(dialect='snowflake')}")
    column_type = ColumnType.from_sqlglot(definition.kind)
    if default is not None:
        default = _fitting(session, definition.name, column_type, default)
    nullable = nulls != {False} and PRIMARY not in keys
    return Column(definition.name, column_type, nullable, default, written, frozenset(keys))


def _default(expression: exp.Expr) -> str:
    checks.check(expression)
    if isinstance(expression, (exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime)):
        return translate.to_duckdb(expression)
    return f"({translate.to_duckdb(functions.rewrite_all(expression.copy()))})"


def _fitting(session: Session, name: str, kind: ColumnType, default: str) -> str:
    """Return a default as its column takes it.

    :raises SqlError: 002023 for one of another type, 100078 for one that is too long.
    """
    if kind.kind == "TIMESTAMP_TZ":
        return f"_tz({default})"
    if "nextval" in default or kind.kind == "BINARY":
        return default
    try:
        found = session.cursor.execute(f"SELECT CAST({default} AS {kind.duckdb})").fetchone()
    except duckdb.ConversionException as error:
        why = f"Default value data type does not match data type for column {name}"
        raise compilation_error(why, "002023", "22000") from error
    value = found[0] if found is not None else None
    if isinstance(value, str) and len(value) > (kind.length or MAX_VARCHAR):
        raise SqlError("100078", "22000", f"String '{value}' is too long and would be truncated")
    return default


def _sequence(database: Database, kind: exp.Expr, statements: list[str]) -> tuple[str, str]:
    start = kind.args.get("start")
    step = kind.args.get("increment")
    first, by = _whole_number(start), _whole_number(step)
    return _counting(database, first, by, statements), f"IDENTITY START {first} INCREMENT {by} NOORDER"


def _counting(database: Database, first: int, by: int, statements: list[str]) -> str:
    name = database.names.hidden(f"identity_{uuid.uuid4().hex}")
    statements.append(views.counting(name, first, by))
    return f"nextval({literal(name)})"


def _whole_number(written: exp.Expr | None) -> int:
    try:
        return 1 if written is None else int(written.sql())
    except ValueError as error:
        raise compilation_error(f"IDENTITY needs whole numbers, not {written}.") from error


def _as_select(
    session: Session, database: Database, schema: str, name: str, tree: exp.Create
) -> tuple[Table, list[str], str]:
    """Return the table, the statements that create it, and the query that fills it."""
    query = translate.prepare(session, tree.expression.copy())
    sql = translate.to_duckdb(query)
    found = views.columns_of(session, query, sql)
    if not isinstance(tree.this, exp.Schema):
        views.refuse_repeated([column.name for column in found])
        table = sources.new(database, schema, name, tuple(found))
        create = f"CREATE TABLE {table.path} ({', '.join(column.ddl() for column in found)})"
        return table, [create], sql
    body = tree.this.copy()
    given = [part for part in body.expressions if isinstance(part, (exp.ColumnDef, exp.Identifier))]
    if len(given) != len(found):
        raise compilation_error("Invalid column definition list", "002026", "42601")
    # A type may be left out, then it is that of the query ("CREATE TABLE", "Variant syntax": AS SELECT).
    for part, column in zip(given, found, strict=True):
        definition = part if isinstance(part, exp.ColumnDef) else exp.ColumnDef(this=part.copy())
        if definition.kind is None:
            definition.set("kind", exp.DataType.build(str(column.type), dialect="snowflake"))
        if definition is not part:
            part.replace(definition)
    table, statements = _with_columns(session, database, schema, name, body)
    given_texts = assignments.assigned(session, query, table.columns)
    checked = translate.to_duckdb(lengths.checked(given_texts, table.columns))
    return table, statements, checked


def _container_comment(reader: Reader) -> str:
    """Read what CREATE DATABASE or SCHEMA has after the name, and return its COMMENT.

    :raises SqlError: 001003 for words that belong to nothing, 000002 for CLONE.
    """
    reader.accept("WITH MANAGED ACCESS")
    copied = reader.accept("CLONE", "FROM SHARE")
    if copied:
        raise unsupported(f"CREATE .. {copied}")
    properties = reader.properties()
    for name in properties:
        if name not in _CONTAINER_OPTIONS:
            raise unsupported(f"option {name} of a {reader.kind.lower()}")
    if str(properties.get("DEFAULT_DDL_COLLATION", "")).lower() not in _BINARY_COLLATIONS:
        raise unsupported(f"DEFAULT_DDL_COLLATION = '{properties['DEFAULT_DDL_COLLATION']}'")
    return properties.get("COMMENT", "")
