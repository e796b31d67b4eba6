"""State of one SQL session: current names, parameters, transaction; USE of another one."""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
import zoneinfo
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb
import pyarrow as pa

from snowpipe_local.access import access as check
from snowpipe_local.access.model import Securable
from snowpipe_local.catalog import Catalog
from snowpipe_local.engine.database import Database
from snowpipe_local.engine.store import SchemaObject
from snowpipe_local.engine.transactions import Transaction
from snowpipe_local.errors import (
    SqlError,
    compilation_error,
    missing_account_object,
    object_missing,
    unsupported,
)
from snowpipe_local.names import Rename
from snowpipe_local.sql.results import Result
from snowpipe_local.stages.storage import TemporaryObjects
from snowpipe_local.tables import TEMPORARY, Table, literal

if TYPE_CHECKING:
    from snowpipe_local.loading.staging import CopyPlan
    from snowpipe_local.sql.reader import Target
    from snowpipe_local.stages.files import StagedFile

T = TypeVar("T")

_REMEMBERED_RESULTS = 16
_REMEMBERED_COPIES = 256
_INTERRUPT_SECONDS = 0.05
_LOCK_SECONDS = 43_200
_TIMEOUT, _MOST_ROWS = "STATEMENT_TIMEOUT_IN_SECONDS", "ROWS_PER_RESULTSET"
_WHOLE = re.compile(r"\d{1,18}", re.ASCII)
SESSION_GONE = "Session no longer exists. New login required to access the service."
_NO_DATABASE = (
    "Cannot perform operation. This session does not have a current database. "
    "Call 'USE DATABASE', or use a qualified name."
)


# Values of parameters that the service knows, where another one would give statements another result.
_ONLY: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ("DATE_INPUT_FORMAT", "TIME_INPUT_FORMAT", "TIMESTAMP_INPUT_FORMAT"), frozenset({"AUTO", ""})
    ),
    **dict.fromkeys(("BINARY_INPUT_FORMAT", "BINARY_OUTPUT_FORMAT"), frozenset({"HEX"})),
    **dict.fromkeys(("WEEK_START", "WEEK_OF_YEAR_POLICY"), frozenset({"0"})),
    **dict.fromkeys(("QUOTED_IDENTIFIERS_IGNORE_CASE", "TRANSACTION_ABORT_ON_ERROR"), frozenset({"FALSE"})),
    "TIMESTAMP_TYPE_MAPPING": frozenset({"TIMESTAMP_NTZ"}),
    "TWO_DIGIT_CENTURY_START": frozenset({"1970"}),
    "DEFAULT_NULL_ORDERING": frozenset({"LAST"}),
}


@dataclass(slots=True, weakref_slot=True)
class Session:
    """One session; statements of it run one after the other.

    :param role: primary role; empty for the user's default role.
    :param secondary_roles: True when all other roles of the user are active too.
    :param moves_files: the client knows the file transfer of PUT and GET.
    :param client: the program at the other end, ``PYTHON``, ``JDBC``, ``OLD_JDBC``, ``GO`` or empty.
    :param used_at: monotonic time of the last request, of a connector's session.
    :param credential: mark of the key or access token that opened the session; None for any other way.
    :param only_role: the role that this credential is restricted to: no other one is ever used; None for all.
    """

    catalog: Catalog
    user: str
    database: str | None = None
    schema: str | None = None
    role: str = ""
    secondary_roles: bool = False
    warehouse: str | None = None
    parameters: dict[str, object] = field(default_factory=dict)
    session_id: int = field(default_factory=lambda: uuid.uuid4().int >> 76)
    query_id: str = ""
    last_copy_id: str = ""
    moves_files: bool = False
    client: str = ""
    credential: str | None = None
    only_role: str | None = None
    temporary: TemporaryObjects = field(default_factory=TemporaryObjects)
    results: OrderedDict[str, Result] = field(default_factory=OrderedDict, repr=False)
    temporary_tables: dict[tuple[str, str, str], str] = field(default_factory=dict)
    temporary_views: list[tuple[str, str, str]] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    is_busy: bool = False
    used_at: float = 0.0
    has_ended: bool = False
    registered: dict[str, pa.Table] = field(default_factory=dict, repr=False)
    _cursor: duckdb.DuckDBPyConnection | None = None
    user_since_ms: int = field(init=False)
    transaction: Transaction = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.transaction = Transaction(lambda: self.cursor, self.registered, self.catalog.locks, self.lock)
        access = self.catalog.access
        self.role = self.only_role or self.role or access.default_role(self.user)
        known = access.state.users.get(self.user)
        self.user_since_ms = known.created_on_ms if known else 0
        self.secondary_roles = self.secondary_roles or bool(known and known.default_secondary_roles)
        self.secondary_roles = self.secondary_roles and self.only_role is None
        self.catalog.sessions[self.session_id] = self

    @property
    def opened_by(self) -> tuple[str, int, str | None]:
        """The user, when it was created in epoch milliseconds, and the credential."""
        return self.user, self.user_since_ms, self.credential

    @property
    def roles(self) -> frozenset[str]:
        """Active roles with all that they inherit."""
        access = self.catalog.access
        if self.only_role is not None:
            return access.closure({self.only_role})
        others = access.roles_of(self.user) if self.secondary_roles else ()
        return access.closure({self.role, *others})

    def may_read_results_of(self, other: Session) -> bool:
        """Return True for a session of this user, which another role than a restriction's did not open."""
        # Another user of the same name is not the one that ran it.
        is_own = self.opened_by[:2] == other.opened_by[:2]
        return is_own and self.only_role in {None, other.only_role}

    def require(self, privilege: str, kind: str, *path: str) -> None:
        """Raise unless the session's roles hold a privilege on an object and USAGE on what contains it.

        The owner of an object holds every privilege on it. An object on which the roles hold nothing at all
        stays hidden.

        :param privilege: ``SELECT``, ``CREATE TABLE``, ``OWNERSHIP``, ...
        :param kind: ``TABLE``, ``FILE FORMAT``, ``SCHEMA``, ``ACCOUNT``, ...
        :param path: exact names from the database down; of a warehouse, its name.
        :raises SqlError: 003001 when the object shows but may not be used that way, 002003 when it is hidden.
        """
        check.require(self.catalog.access, self.roles, privilege, Securable(kind, path))

    def can_see(self, kind: str, *path: str) -> bool:
        """Return True when SHOW and INFORMATION_SCHEMA list an object for the session's roles."""
        return self.catalog.access.can_see(self.roles, Securable(kind, path))

    def owner(self, kind: str, *path: str) -> str:
        """Return the role that owns an object."""
        return self.catalog.access.owner(Securable(kind, path))

    def view_text(self, view: SchemaObject, *path: str) -> str | None:
        """Return the text of a view; None for a secure one whose owner is none of the session's roles."""
        is_hidden = view.definition["is_secure"] and self.owner("VIEW", *path) not in self.roles
        return None if is_hidden else str(view.definition["text"])

    def created(self, kind: str, *path: str, grants_of: Securable | None = None) -> None:
        """Make the session's role the owner of a new or replaced object, and give out future grants.

        :param grants_of: whose grants it gets instead (COPY GRANTS).
        """
        self.catalog.access.created(Securable(kind, path), self.role, grants_of)

    def dropped(self, kind: str, *path: str) -> None:
        """Forget the grants on a dropped object and on everything that was inside it."""
        self.catalog.access.dropped(Securable(kind, path))

    @property
    def cursor(self) -> duckdb.DuckDBPyConnection:
        """DuckDB cursor of this session."""
        if self._cursor is None:
            self._cursor = self.catalog.cursor()
            # Snowflake refuses a division by zero; IEEE arithmetic would answer infinity.
            self._cursor.execute("SET SESSION ieee_floating_point_ops = false")
        return self._cursor

    def set_parameter(self, name: str, value: object) -> None:
        """Set a parameter of the session, or, with None, give it its default again.

        :raises SqlError: 001006 for a time zone that does not exist ("Parameters", TIMEZONE) and a limit of
            rows that is not a number, 000002 for a value that would change what statements return, which it
            does not here.
        """
        if value is not None and str(value).upper() not in _ONLY.get(name, {str(value).upper()}):
            raise unsupported(f"{name} = {value}")
        if name == _MOST_ROWS and value is not None and not _WHOLE.fullmatch(str(value)):
            raise _invalid(name, value)
        if name == "TIMEZONE":
            zone = "UTC" if value is None else str(value)
            try:
                zoneinfo.ZoneInfo(zone)
            except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError) as error:
                raise _invalid(name, zone) from error
            self.cursor.execute(f"SET SESSION TimeZone = {literal(zone)}")
        if value is None:
            self.parameters.pop(name, None)
        else:
            self.parameters[name] = value

    @property
    def autocommit(self) -> bool:
        """False after ``ALTER SESSION SET AUTOCOMMIT = FALSE``: DML opens a transaction by itself."""
        return str(self.parameters.get("AUTOCOMMIT", "true")).lower() != "false"

    @contextlib.contextmanager
    def given(self, parameters: Mapping[str, object]) -> Iterator[None]:
        """Give parameters the values that one statement came with, as long as it runs.

        :raises SqlError: 390111 in a session that has ended; as :meth:`set_parameter`.
        """
        if self.has_ended:
            raise SqlError("390111", "08001", SESSION_GONE)
        before = {name: self.parameters.get(name) for name in parameters}
        try:
            for name, value in parameters.items():
                self.set_parameter(name, value)
            yield
        finally:
            for name, value in before.items():
                # What the statement itself has set stays.
                if self.parameters.get(name) == parameters[name]:
                    self.set_parameter(name, value)

    @property
    def most_rows(self) -> int | None:
        """``ROWS_PER_RESULTSET``: most rows of a result; JDBC sets it by ``setMaxRows``."""
        return int(str(self.parameters.get(_MOST_ROWS, 0))) or None

    def seconds_of(self, own: Mapping[str, object] = MappingProxyType({})) -> float:
        """Time after which a statement is stopped, 0 for no limit: the lowest of what has one.

        ``STATEMENT_TIMEOUT_IN_SECONDS`` is the session's own or its user's, and the warehouse's; 0 stands for
        the longest ("Parameters").

        """
        state = self.catalog.access.state
        of_user, of_warehouse = (
            dict(known.properties).get(_TIMEOUT) if known is not None else None
            for known in (state.users.get(self.user), state.warehouses.get(self.warehouse or ""))
        )
        requested = own.get(_TIMEOUT, self.parameters.get(_TIMEOUT, of_user))
        found = map(_seconds, (self.catalog.limits.statement_seconds, requested, of_warehouse))
        return min((seconds for seconds in found if seconds > 0), default=0.0)

    def remember(self, query_id: str, result: Result) -> None:
        """Keep a result for RESULT_SCAN; the oldest ones are forgotten, the sooner the larger they are."""
        self.results[query_id] = result
        held = sum(each.held_bytes for each in self.results.values())
        while len(self.results) > _REMEMBERED_RESULTS or (
            held > self.catalog.limits.result_bytes and len(self.results) > 1
        ):
            held -= self.results.popitem(last=False)[1].held_bytes

    def remember_copy(self, plan: CopyPlan, files: tuple[StagedFile, ...] | None = None) -> None:
        """Keep a COPY for VALIDATE; the oldest ones of the service are forgotten.

        :param files: those that it read; None as long as it has not ended well.
        """
        known = self.catalog.copies
        self.last_copy_id = self.query_id
        known[self.user, self.query_id] = plan, files
        while len(known) > _REMEMBERED_COPIES:
            known.popitem(last=False)

    def register(self, table: pa.Table | pa.RecordBatchReader) -> str:
        """Make Arrow rows readable under the returned name until the end of the statement."""
        name = f"_rows_{uuid.uuid4().hex}"
        # The engine registers nothing while rows of an earlier statement are not fetched.
        self.cursor.execute("SELECT 1").fetchall()
        self.cursor.register(name, table)
        self.registered[name] = table
        return name

    def unregister(self) -> None:
        """Remove the relations that the statement registered, unless a transaction may repeat it."""
        if self._cursor is None or not self.registered or self.transaction.has_changes:
            return
        self._cursor.execute("SELECT 1").fetchall()
        while self.registered:
            self._cursor.unregister(self.registered.popitem()[0])

    def close(self) -> None:
        """Roll back an open transaction, drop temporary objects and release the cursor."""
        with self.lock:
            self.temporary.clear(self.catalog.storage)
            self._drop_temporary()
            self.results.clear()
            if self._cursor is not None:
                self.transaction.rollback()
                self._cursor.close()
                self._cursor = None

    def end(self) -> None:
        """Stop what runs, refuse what comes, and close: the session's user or its time is over."""
        self.has_ended = True
        while not self.lock.acquire(timeout=_INTERRUPT_SECONDS):
            # An interrupt between two engine calls is lost, so it is repeated until the statement has ended.
            self.interrupt()
        try:
            self.close()
        finally:
            self.lock.release()

    def _drop_temporary(self) -> None:
        for (name, schema, _), hidden in self.temporary_tables.items():
            database = self.catalog.find(name)
            if database is not None and database.tables.find(schema, hidden) is not None:
                self.transaction.rollback()
                database.tables.drop(schema, hidden)
                self.dropped("TABLE", name, schema, hidden)
        self.temporary_tables.clear()
        for name, schema, view in self.temporary_views:
            database = self.catalog.find(name)
            if database is not None and database.objects.find("VIEW", schema, view) is not None:
                database.objects.remove("VIEW", schema, view)
                self.dropped("VIEW", name, schema, view)
        self.temporary_views.clear()

    def follow(self, change: Rename) -> None:
        """Keep the current names and the temporary objects when a database or schema gets another name."""
        if self.database is not None:
            current = change.moved((self.database, *filter(None, [self.schema])))
            self.database, self.schema = (*current, None)[:2]
        self.temporary_tables = {change.moved_object(path): n for path, n in self.temporary_tables.items()}
        self.temporary.follow(change)

    def interrupt(self) -> None:
        """Stop the statement that another thread runs in this session; harmless when there is none."""
        cursor = self._cursor
        self.catalog.locks.interrupt(self.transaction)
        # What an earlier interrupt or failure took from an open transaction is just being brought back.
        if cursor is not None and not self.transaction.is_restoring:
            # The session may just be closed; then there is nothing left to stop.
            with contextlib.suppress(duckdb.Error):
                cursor.interrupt()

    def lender(self, role: str, database: str, schema: str) -> Session:
        """Return a session that shares this one's cursor and acts with another role, to expand a view."""
        inner = Session(self.catalog, self.user, database, schema, role=role, warehouse=self.warehouse)
        inner.secondary_roles = False
        inner._cursor = self.cursor
        inner.registered = self.registered
        inner.results = self.results
        inner.temporary_tables = self.temporary_tables
        return inner

    def holding(self, table: Table | None) -> AbstractContextManager[None]:
        """Wait for the lock of a table as long as ``LOCK_TIMEOUT`` says, as :meth:`Transaction.holding`."""
        return self.transaction.holding(table, _seconds(self.parameters.get("LOCK_TIMEOUT", _LOCK_SECONDS)))

    def change(self, work: Callable[[], T]) -> T:
        """Change rows: in the open transaction, in one that AUTOCOMMIT = FALSE opens, or in one of its own.

        :param work: as :meth:`Transaction.change` takes it.
        """
        if not self.autocommit:
            self.transaction.begin()
        return self.transaction.change(work)

    def changed(self, database: Database, table: Table) -> None:
        """Let LAST_ALTERED of a table be the time of the commit of what has changed it."""
        self.transaction.after_commit(lambda: database.touch(table))

    def together(self) -> AbstractContextManager[None]:
        """Let several changes stand or fall together, where each would be committed by itself."""
        if not self.autocommit:
            self.transaction.begin()
        return self.transaction.whole()

    def current_database(self) -> str:
        """Return the current database.

        :raises SqlError: when there is none.
        """
        if self.database is None:
            raise SqlError("090105", "22000", _NO_DATABASE)
        return self.database

    def visible_database(self, name: str) -> Database:
        """Return a database by its exact name.

        :raises SqlError: when it does not exist, or the session's roles have no USAGE on it.
        """
        database = self.catalog.database(name)
        self.require("USAGE", "DATABASE", name)
        return database

    def listed_database(self, name: str) -> Database:
        """Return a database that USE or the IN of SHOW names.

        :raises SqlError: 002043 when it does not exist, or the session's roles have no USAGE on it.
        """
        try:
            return self.visible_database(name)
        except SqlError as error:
            raise missing_account_object() if error.code == "002003" else error from error

    def resolve_schema(self, path: tuple[str, ...], *, listed: bool = False) -> tuple[Database, str]:
        """Resolve ``[database.]schema`` against the session; USAGE on the database is checked.

        :param listed: USE or the IN of SHOW names it, for which a missing one is 002043.
        """
        if len(path) > 2:
            raise compilation_error(f"'{'.'.join(path)}' is not a schema name.")
        name = path[0] if len(path) == 2 else self.current_database()
        database = self.listed_database(name) if listed else self.visible_database(name)
        if listed and path[-1] not in database.schemas:
            raise missing_account_object()
        return database, path[-1]

    def resolve(self, path: tuple[str, ...]) -> tuple[Database, str, str]:
        """Resolve ``[[database.]schema.]object`` against the session.

        USAGE on database and schema is checked; privileges on the object are for the caller to require.

        :returns: database, exact schema, object name.
        :raises SqlError: when database or schema does not exist or stays hidden, or none is current.
        """
        if len(path) <= 3:
            # Before the schema is searched: a hidden database does not show which schemas it has.
            self.visible_database(path[0] if len(path) == 3 else self.current_database())
        database, schema, name = self.locate(path)
        self.require("USAGE", "SCHEMA", database.name, schema)
        # A temporary table hides a table of the same name.
        return database, schema, self.temporary_tables.get((database.name, schema, name), name)

    def table(self, path: tuple[str, ...], privilege: str) -> tuple[Database, Table]:
        """Return the database and the table that a name stands for.

        :raises SqlError: when it does not exist, or the session's roles do not hold the privilege on it.
        """
        database, schema, name = self.resolve(path)
        table = database.tables.find(schema, name)
        if table is None:
            raise object_missing("Table", f"{database.name}.{schema}.{name}")
        self.require(privilege, "TABLE", database.name, schema, name)
        return database, table

    def defined(
        self, kind: str, path: tuple[str, ...], *, listed: bool = False
    ) -> tuple[Database, SchemaObject]:
        """Return the database and the sequence or view that a name stands for.

        :param listed: only one that the session's roles may see.
        :raises SqlError: 002003 when there is none.
        """
        database, schema, name = self.resolve(path)
        known = database.objects.find(kind, schema, name)
        if known is None or (listed and not self.can_see(kind, database.name, schema, name)):
            raise object_missing(kind.capitalize(), f"{database.name}.{schema}.{name}")
        return database, known

    def table_if_exists(self, head: Target, privilege: str) -> tuple[Database, Table | None]:
        """Return what :meth:`table` does, and None for a table that need not exist."""
        database, schema, name = self.resolve(head.path)
        if head.is_tolerant and database.tables.find(schema, name) is None:
            return database, None
        return self.table(head.path, privilege)

    def resolve_new_table(self, path: tuple[str, ...], *, temporary: bool) -> tuple[Database, str, str]:
        """Resolve the name of a table to be created.

        A temporary one gets a name that only this session knows.
        """
        database, schema, _ = self.resolve(path)
        if not temporary:
            return database, schema, path[-1]
        return database, schema, f"{path[-1]}{TEMPORARY}{self.session_id}"

    def creates_table(
        self, database: str, schema: str, name: str, grants_of: Securable | None = None
    ) -> AbstractContextManager[str]:
        """Give a new table its owner, in the step that commits it.

        :param grants_of: as for :meth:`created`.
        """
        target = Securable("TABLE", (database, schema, name))
        return self.catalog.access.table_created(target, self.role, grants_of)

    def created_table(self, database: str, schema: str, name: str) -> None:
        """Let a new temporary table hide another table of its name from now on."""
        shown, sign, _ = name.partition(TEMPORARY)
        if sign:
            self.temporary_tables[database, schema, shown] = name

    def locate(self, path: tuple[str, ...]) -> tuple[Database, str, str]:
        """Resolve ``[[database.]schema.]object`` without checking privileges, for GRANT and REVOKE."""
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


def _invalid(name: str, value: object) -> SqlError:
    message = f"SQL compilation error:\ninvalid value [{value}] for parameter '{name}'"
    return SqlError("001006", "22023", message)


def _seconds(value: object) -> float:
    try:
        return float(str(value or 0))
    except ValueError:
        return 0.0


# -- What is current in a session: its database and schema, role and warehouse ---------------------------


def use_schema(session: Session, database: str | None, schema: str | None) -> None:
    """Make a database or schema current.

    :param schema: exact name; None takes PUBLIC of a new database.
    :raises SqlError: when either does not exist.
    """
    target = session.listed_database(database or session.current_database())
    # Every database has an INFORMATION_SCHEMA, which is not a schema of its own here.
    if schema is not None and schema != "INFORMATION_SCHEMA":
        if schema not in target.schemas:
            raise missing_account_object()
        session.require("USAGE", "SCHEMA", target.name, schema)
    session.database = target.name
    session.schema = schema or ("PUBLIC" if "PUBLIC" in target.schemas else None)


def use_role(session: Session, role: str) -> None:
    """Make a role the primary one.

    :raises SqlError: 003013 when the user may not use it, 002043 when it does not exist.
    """
    access = session.catalog.access
    if role not in access.state.roles:
        raise missing_account_object()
    if not access.may_use(session.user, role):
        raise _not_assigned(role)
    require_unrestricted(session, role)
    session.role = role


def require_unrestricted(session: Session, role: str | None) -> None:
    """Raise where the credential of a session is restricted to another role.

    :param role: the role that is to be used; None for any.
    :raises SqlError: 003013.
    """
    if session.only_role not in {None, role}:
        raise _not_assigned(role or "ALL")


def _not_assigned(role: str) -> SqlError:
    why = f"Requested role '{role}' is not assigned to the executing user. Specify another role to activate."
    return SqlError("003013", "42501", f"SQL access control error:\n{why}")


def use_warehouse(session: Session, warehouse: str) -> None:
    """Make a warehouse current.

    :raises SqlError: when it does not exist or the session's roles have no USAGE on it.
    """
    access = session.catalog.access
    if warehouse not in access.state.warehouses or not access.allows(
        session.roles, "USAGE", Securable("WAREHOUSE", (warehouse,))
    ):
        raise missing_account_object()
    session.warehouse = warehouse
