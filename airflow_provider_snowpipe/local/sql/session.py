"""State of one SQL session: current names, parameters, transaction."""

from __future__ import annotations

import contextlib
import threading
import uuid
from dataclasses import dataclass, field

import duckdb

from airflow_provider_snowpipe.local.catalog import Catalog
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.errors import SqlError, compilation_error, object_missing
from airflow_provider_snowpipe.local.stages.registry import TemporaryObjects

_NO_DATABASE = (
    "Cannot perform operation. This session does not have a current database. "
    "Call 'USE DATABASE', or use a qualified name."
)


@dataclass(slots=True)
class Session:
    """One session; statements of it run one after the other.

    :param catalog: databases of the service.
    :param user: authenticated user.
    :param database: current database, exact name, or None.
    :param schema: current schema, exact name, or None.
    :param moves_files: the client knows the file transfer of PUT and GET.
    """

    catalog: Catalog
    user: str
    database: str | None = None
    schema: str | None = None
    role: str = "ACCOUNTADMIN"
    warehouse: str | None = None
    parameters: dict[str, object] = field(default_factory=dict)
    session_id: int = field(default_factory=lambda: uuid.uuid4().int >> 76)
    last_query_id: str | None = None
    in_transaction: bool = False
    moves_files: bool = False
    temporary: TemporaryObjects = field(default_factory=TemporaryObjects)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _cursor: duckdb.DuckDBPyConnection | None = None

    @property
    def cursor(self) -> duckdb.DuckDBPyConnection:
        """DuckDB cursor of this session."""
        if self._cursor is None:
            self._cursor = self.catalog.cursor()
        return self._cursor

    @property
    def autocommit(self) -> bool:
        """False after ``ALTER SESSION SET AUTOCOMMIT = FALSE``: DML opens a transaction by itself."""
        return str(self.parameters.get("AUTOCOMMIT", "true")).lower() != "false"

    def close(self) -> None:
        """Roll back an open transaction, drop temporary objects and release the cursor."""
        with self.lock:
            self.temporary.clear(self.catalog.storage)
            if self._cursor is not None:
                self.rollback()
                self._cursor.close()
                self._cursor = None

    def interrupt(self) -> None:
        """Stop the statement that another thread runs in this session; harmless when there is none."""
        cursor = self._cursor
        if cursor is not None:
            # The session may be closed at this very moment; then there is nothing left to stop.
            with contextlib.suppress(duckdb.Error):
                cursor.interrupt()

    def begin(self) -> None:
        """Start a transaction; one that is open stays open, as in Snowflake."""
        if not self.in_transaction:
            self.cursor.execute("BEGIN")
            self.in_transaction = True

    def commit(self) -> None:
        """Commit the open transaction; harmless without one."""
        if self.in_transaction:
            self.in_transaction = False
            self.cursor.execute("COMMIT")

    def rollback(self) -> None:
        """Roll back the open transaction; harmless without one."""
        if self.in_transaction:
            self.in_transaction = False
            self.cursor.execute("ROLLBACK")

    def use(self, database: str | None, schema: str | None) -> None:
        """Make a database or schema current.

        :param database: exact name, or None for the current one.
        :param schema: exact name; None takes PUBLIC of a new database.
        :raises SqlError: when either does not exist.
        """
        target = self.catalog.database(database or self.current_database())
        if schema is not None and schema not in target.schemas:
            raise object_missing("Schema", f"{target.name}.{schema}")
        self.database = target.name
        self.schema = schema or ("PUBLIC" if "PUBLIC" in target.schemas else None)

    def current_database(self) -> str:
        """Return the current database.

        :raises SqlError: when there is none.
        """
        if self.database is None:
            raise SqlError("090105", "22000", _NO_DATABASE)
        return self.database

    def resolve_schema(self, path: tuple[str, ...]) -> tuple[Database, str]:
        """Resolve ``[database.]schema`` against the session."""
        if len(path) > 2:
            raise compilation_error(f"'{'.'.join(path)}' is not a schema name.")
        database = path[0] if len(path) == 2 else self.current_database()
        return self.catalog.database(database), path[-1]

    def resolve(self, path: tuple[str, ...]) -> tuple[Database, str, str]:
        """Resolve ``[[database.]schema.]object`` against the session.

        :returns: database, exact schema, object name.
        :raises SqlError: when database or schema does not exist, or none is current.
        """
        if len(path) > 3:
            raise compilation_error(f"'{'.'.join(path)}' has too many parts.")
        database = self.catalog.database(path[0] if len(path) == 3 else self.current_database())
        schema = path[-2] if len(path) >= 2 else self.schema
        if schema is None:
            raise SqlError(
                "090106", "22000", _NO_DATABASE.replace("database", "schema").replace("DATABASE", "SCHEMA")
            )
        if schema not in database.schemas:
            raise object_missing("Schema", f"{database.name}.{schema}")
        return database, schema, path[-1]
