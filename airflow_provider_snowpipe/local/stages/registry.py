"""Named stages and file formats of one database: hidden tables, and their picture in memory."""

# ruff: noqa: S608 - names go through identifiers.quote, values are bound.

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import duckdb

from airflow_provider_snowpipe.local.engine.names import Names, Rename
from airflow_provider_snowpipe.local.engine.store import transact
from airflow_provider_snowpipe.local.errors import object_exists, object_missing
from airflow_provider_snowpipe.local.stages.definition import FileFormatDefinition, StageDefinition
from airflow_provider_snowpipe.local.stages.storage import Storage, table_identity

_Definition: TypeAlias = StageDefinition | FileFormatDefinition
_DDL = """
CREATE TABLE IF NOT EXISTS {s}.stages (schema_name VARCHAR, stage_name VARCHAR, created_on_ms BIGINT,
    identity VARCHAR, definition VARCHAR);
CREATE TABLE IF NOT EXISTS {s}.file_formats (schema_name VARCHAR, format_name VARCHAR, created_on_ms BIGINT,
    definition VARCHAR);
"""


class Stages:
    """Stages and file formats of one database.

    Threading: writes hold the database's write lock; the dictionaries are replaced under it and read
    without it.

    :param storage: files of internal stages.
    """

    def __init__(
        self, names: Names, cursor: duckdb.DuckDBPyConnection, write_lock: threading.RLock, storage: Storage
    ) -> None:
        self.storage = storage
        self._names = names
        self._cursor = cursor
        self._lock = write_lock
        self._schema = names.hidden_schema
        database = names.database
        cursor.execute(_DDL.format(s=self._schema))
        self._stages = {
            (schema, name): StageDefinition.from_json(database, schema, name, *rest)
            for schema, name, *rest in cursor.execute(f"SELECT * FROM {self._schema}.stages").fetchall()
        }
        self._formats = {
            (schema, name): FileFormatDefinition.from_json(database, schema, name, *rest)
            for schema, name, *rest in cursor.execute(f"SELECT * FROM {self._schema}.file_formats").fetchall()
        }

    # -- stages ---------------------------------------------------------------------------------------------

    @property
    def stages(self) -> list[StageDefinition]:
        """All named stages that outlive their session, by schema and name."""
        return [stage for _, stage in sorted(self._stages.items())]

    def stage(self, schema: str, name: str) -> StageDefinition | None:
        """Return a stage by its exact name."""
        return self._stages.get((schema, name))

    def put_stage(self, stage: StageDefinition, *, replace: bool) -> None:
        """Create a stage; the files of an internal one that it replaces are deleted.

        :raises SqlError: when it exists and is not to be replaced.
        """
        with self._lock:
            self._names.require_schema(stage.schema)
            old = self._stages.get((stage.schema, stage.name))
            if old is not None and not replace:
                raise object_exists(stage.name)
            if not stage.is_external:
                self.storage.create(stage.identity)
            self._write(old, stage)
            if old is not None and old.identity != stage.identity:
                self.storage.remove([old.identity])

    def change_stage(self, old: StageDefinition, new: StageDefinition) -> None:
        """Change or rename a stage; its files stay.

        :raises SqlError: when the new name is taken, or the stage is gone.
        """
        with self._lock:
            if self._stages.get((old.schema, old.name)) is None:
                raise object_missing("Stage", str(old))
            if (old.schema, old.name) != (new.schema, new.name) and (new.schema, new.name) in self._stages:
                raise object_exists(new.name)
            self._write(old, new)

    def drop_stage(self, stage: StageDefinition) -> None:
        """Drop a stage with its internal files."""
        with self._lock:
            self._write(stage, None)
            self.storage.remove([stage.identity])

    def drop_schema(self, schema: str) -> None:
        """Drop the stages and file formats of a schema."""
        with self._lock:
            for stage in [stage for stage in self.stages if stage.schema == schema]:
                self.drop_stage(stage)
            for known in [known for known in self.formats if known.schema == schema]:
                self.drop_format(known)

    def drop_table(self, schema: str, table: str) -> None:
        """Delete the files of a table's stage."""
        self.storage.remove([table_identity(*self._names.home(schema), table)])

    def rename_table(self, old: tuple[str, str], new: tuple[str, str]) -> None:
        """Keep the files of a table's stage when the table gets another name in its schema.

        :param old: schema and name as they were.
        :param new: schema and name as they are now.
        """
        home = self._names.home(new[0])
        self.storage.rename(table_identity(*home, old[1]), table_identity(*home, new[1]))

    def follow(self, change: Rename) -> Callable[[], None]:
        """Write what a new name of a database or schema changes beside the schemas' names: file formats.

        :returns: makes the picture in memory follow, once the open transaction is committed.
        """
        stages = [stage.moved(change) for stage in self._stages.values()]
        formats = [known.moved(change) for known in self._formats.values()]
        for stage in stages:
            self._cursor.execute(
                f"UPDATE {self._schema}.stages SET definition = ? WHERE schema_name = ? AND stage_name = ?",
                [stage.to_json(), stage.schema, stage.name],
            )

        def follow() -> None:
            self._stages = {(stage.schema, stage.name): stage for stage in stages}
            self._formats = {(known.schema, known.name): known for known in formats}

        return follow

    # -- file formats ---------------------------------------------------------------------------------------

    @property
    def formats(self) -> list[FileFormatDefinition]:
        """All named file formats that outlive their session, by schema and name."""
        return [known for _, known in sorted(self._formats.items())]

    def format(self, schema: str, name: str) -> FileFormatDefinition | None:
        """Return a file format by its exact name."""
        return self._formats.get((schema, name))

    def put_format(self, new: FileFormatDefinition, *, replace: bool) -> None:
        """Create a file format.

        :raises SqlError: when it exists and is not to be replaced.
        """
        with self._lock:
            self._names.require_schema(new.schema)
            old = self._formats.get((new.schema, new.name))
            if old is not None and not replace:
                raise object_exists(str(new))
            self._write(old, new)

    def change_format(self, old: FileFormatDefinition, new: FileFormatDefinition) -> None:
        """Change or rename a file format.

        :raises SqlError: when the new name is taken.
        """
        with self._lock:
            if (old.schema, old.name) != (new.schema, new.name) and (new.schema, new.name) in self._formats:
                raise object_exists(str(new))
            self._write(old, new)

    def drop_format(self, known: FileFormatDefinition) -> None:
        """Drop a file format."""
        with self._lock:
            self._write(known, None)

    def _write(self, old: _Definition | None, new: _Definition | None) -> None:
        """Replace a definition in its hidden table and, when that is committed, in memory."""
        is_stage = isinstance(new or old, StageDefinition)
        relation, column = ("stages", "stage_name") if is_stage else ("file_formats", "format_name")

        def write() -> None:
            if old is not None:
                self._cursor.execute(
                    f"DELETE FROM {self._schema}.{relation} WHERE schema_name = ? AND {column} = ?",
                    [old.schema, old.name],
                )
            if new is not None:
                identity = [new.identity] if isinstance(new, StageDefinition) else []
                values = [new.schema, new.name, new.created_on_ms, *identity, new.to_json()]
                marks = ", ".join("?" * len(values))
                self._cursor.execute(f"INSERT INTO {self._schema}.{relation} VALUES ({marks})", values)

        transact(self._cursor, write)
        known: dict[tuple[str, str], Any] = dict(self._stages if is_stage else self._formats)
        if old is not None:
            known.pop((old.schema, old.name), None)
        if new is not None:
            known[new.schema, new.name] = new
        if is_stage:
            self._stages = known
        else:
            self._formats = known


class TemporaryObjects:
    """Temporary stages and file formats of one session; they hide permanent ones of the same name."""

    def __init__(self) -> None:
        self.stages: dict[tuple[str, str, str], StageDefinition] = {}
        self.formats: dict[tuple[str, str, str], FileFormatDefinition] = {}

    def follow(self, change: Rename) -> None:
        """Keep the objects when their database or schema, or that of a file format, gets another name."""
        stages = [stage.moved(change) for stage in self.stages.values()]
        formats = [known.moved(change) for known in self.formats.values()]
        self.stages = {(stage.database, stage.schema, stage.name): stage for stage in stages}
        self.formats = {(known.database, known.schema, known.name): known for known in formats}

    def clear(self, storage: Storage) -> None:
        """Drop everything, at the end of the session."""
        storage.remove([stage.identity for stage in self.stages.values()])
        self.stages.clear()
        self.formats.clear()
