"""All databases of one service, in one DuckDB instance with one file per database."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote as percent_encode
from urllib.parse import unquote
from weakref import WeakValueDictionary

import duckdb

from snowpipe_local.access.access import Access, insufficient
from snowpipe_local.access.model import SHARED, SHARED_DATABASE, Securable
from snowpipe_local.datadir import Clock
from snowpipe_local.engine import conversions
from snowpipe_local.engine.channel import PIPE_MISSING
from snowpipe_local.engine.database import Database
from snowpipe_local.engine.load_history import PipeFailure
from snowpipe_local.engine.spool import Spool, is_full
from snowpipe_local.engine.transactions import TableLocks
from snowpipe_local.errors import (
    DataDirectoryError,
    Refusal,
    compilation_error,
    object_exists,
    object_missing,
    unsupported,
)
from snowpipe_local.faults import Faults
from snowpipe_local.limits import DEFAULTS, Limits
from snowpipe_local.loading.staging import CopyPlan
from snowpipe_local.names import Rename, free_name
from snowpipe_local.query_history import QueryHistory
from snowpipe_local.stages.files import StagedFile
from snowpipe_local.stages.storage import Storage
from snowpipe_local.tables import UrlName, find_name, literal, quote

DEFAULT_DATABASE = "LOCAL"
DEFAULT_SCHEMA = "PUBLIC"
# A checkpoint blocks commits for its whole length, so it is rare, and done when the service is idle.
_CHECKPOINT_THRESHOLD = "192MB"
_MOST_BYTES_OF_A_FILE_NAME = 255
_RESERVED = frozenset({"MEMORY", "SYSTEM", "TEMP"})


class OpenSession(Protocol):
    """What others see of a session that is open."""

    user: str
    role: str

    def follow(self, change: Rename) -> None:
        """Keep what is current when a database or schema gets another name."""


class Catalog:
    """The databases of one service.

    :param folder: where the database files are; every ``*.duckdb`` file in it is attached.
    :param access: users, roles and grants; None keeps them in memory.
    :param storage: files of stages; None keeps them beside the databases.
    :param spool: bodies in flight on disk; None keeps them in memory.
    :param queries: statements and logins; None keeps them in memory.
    """

    def __init__(
        self,
        folder: Path,
        faults: Faults,
        limits: Limits = DEFAULTS,
        clock: Clock | None = None,
        access: Access | None = None,
        storage: Storage | None = None,
        spool: Spool | None = None,
        queries: QueryHistory | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.access = access or Access(clock=self.clock)
        self.storage = storage or Storage(folder / "staged_files", folder)
        self.storage.clock = self.clock
        self.spool = spool
        self.queries = queries or QueryHistory()
        # The newest COPY statements by user and query id, with the files that they read.
        self.copies: OrderedDict[tuple[str, str], tuple[CopyPlan, tuple[StagedFile, ...] | None]] = (
            OrderedDict()
        )
        self.limits = limits
        self._folder = folder
        self._faults = faults
        # Set when a file pipe may have something to load; and why pipes do not load, by full name.
        self.files_queued = threading.Event()
        self.file_pipes_changed = threading.Event()
        self.pipe_failures: dict[tuple[str, str, str], PipeFailure] = {}
        self.locks = TableLocks()
        self._lock = threading.Lock()
        self._instance = duckdb.connect(":memory:")
        conversions.define(self._instance)
        readable = (folder, *self.storage.readable_folders)
        for setting in (
            f"SET checkpoint_threshold = '{_CHECKPOINT_THRESHOLD}'",
            f"SET memory_limit = '{limits.engine_bytes}B'",
            "SET GLOBAL TimeZone = 'UTC'",
            "SET autoinstall_known_extensions = false",
            "SET autoload_known_extensions = false",
            f"SET temp_directory = {literal(str(folder / 'spill'))}",
            f"SET allowed_directories = [{', '.join(literal(str(f)) for f in readable)}]",
            # A statement must not reach files of the machine.
            "SET enable_external_access = false",
            # Nor variables of this process.
            "SET python_enable_replacements = false",
        ):
            self._instance.execute(setting)
        _respect_affinity(self._instance)
        # Of sessions that are open, by their ids: a rename changes what is current in them.
        self.sessions: WeakValueDictionary[int, OpenSession] = WeakValueDictionary()
        self._files: dict[Database, Path] = {}
        self._databases: dict[str, Database] = {}
        for file in sorted(folder.glob("*.duckdb")):
            try:
                self._attach(file)
            except (duckdb.IOException, duckdb.SerializationException) as error:
                if is_full(error):
                    raise
                raise DataDirectoryError(
                    f"{file} cannot be opened: it is damaged, or a newer version wrote it; bring it back "
                    f"from a copy, or remove it with its rows: {error}"
                ) from error
        for database in self.databases:
            self._finish_renames(database)
            for note in database.store.intents(database.cursor):
                self.access.restore(note)
            database.store.end_intents(database.cursor)
        self.storage.remove_all_but(name for known in self.databases for name in _identities(known))
        if DEFAULT_DATABASE not in self._databases:
            self.create_database(DEFAULT_DATABASE)
        elif DEFAULT_SCHEMA not in self._databases[DEFAULT_DATABASE].schemas:
            self._databases[DEFAULT_DATABASE].create_schema(DEFAULT_SCHEMA)
        self.access.keep_only(self._exists)

    def close(self) -> None:
        """Commit what is queued everywhere, checkpoint, and close the files."""
        with self._lock:
            for database in self._databases.values():
                database.close()
            self._instance.close()
        self.queries.close()

    def revive(self) -> None:
        """Attach again what the engine gave up when the disk was full."""
        for database in self.databases:
            database.revive()

    def watch_changed(self) -> None:
        """Report that file pipes were created, changed or dropped: queues and folders are read again."""
        self.files_queued.set()
        self.file_pipes_changed.set()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a new cursor on the instance, with its own transaction."""
        return self._instance.cursor()

    @property
    def databases(self) -> list[Database]:
        """All databases, by name."""
        return [database for _, database in sorted(self._databases.items())]

    def find(self, name: str) -> Database | None:
        """Return a database by its exact name, or None."""
        return self._databases.get(name)

    def database(self, name: str) -> Database:
        """Return a database by its exact name.

        :raises SqlError: when it does not exist; 003001 for SNOWFLAKE, which has no objects of its own.
        """
        if name == SHARED_DATABASE:
            raise insufficient(SHARED)
        database = self._databases.get(name)
        if database is None:
            raise object_missing("Database", name)
        return database

    def database_for_url(self, name: UrlName) -> Database:
        """Return a database as the streaming REST API names it.

        :raises Refusal: 404 when it does not exist.
        """
        exact = name.find(self._databases)
        if exact is None:
            raise Refusal(404, PIPE_MISSING, f"database {name.text} does not exist or not authorized")
        return self._databases[exact]

    def create_database(self, name: str) -> None:
        """Create a database with its schema PUBLIC.

        :raises SqlError: when it exists or the name is taken by the engine.
        """
        _check_reserved(name)
        with self._lock:
            if find_name(name, self._databases) is not None:
                raise object_exists(name)
            file = self._new_file(name)
            try:
                self._attach(file)
            except duckdb.Error:
                # A file without its head, because the disk is full, is not a database at the next start.
                file.unlink(missing_ok=True)
                raise
            self._databases[name].create_schema(DEFAULT_SCHEMA)

    def drop_database(self, name: str) -> None:
        """Drop a database and delete its file."""
        with self._lock:
            database = self._databases.get(name)
            if database is None:
                raise object_missing("Database", name)
            del self._databases[name]
            identities = list(_identities(database))
            # A load of files that still runs must end first; the engine cannot detach what it writes to.
            with database.load_lock:
                database.close()
                self._instance.execute(f"DETACH {quote(database.names.engine)}")
            file = self._files.pop(database)
            file.unlink()
            file.with_suffix(".duckdb.wal").unlink(missing_ok=True)
            self.storage.remove(identities)

    def rename(self, change: Rename) -> None:
        """Give a database or a schema another name; what is inside stays as it is, and so do open channels.

        One transaction in the database's file decides. Grants, and stages of other databases with a file
        format from here, follow it; after a crash between, they follow at the next start.

        :raises SqlError: 002002 when the name is taken, 002003 when there is nothing to rename.
        """
        with self._lock:
            database = self.database(change.old[0])
            if change.kind == "DATABASE":
                _check_reserved(change.new[0])
                others = self._databases.keys() - {change.old[0]}
                if change.new == change.old or find_name(change.new[0], others) is not None:
                    raise object_exists(change.new[0])
            # A load or a statement that runs, or a commit, ends under the old name.
            with database.load_lock, database.altering():
                database.rename(change)
                self._databases = {
                    change.moved((name,))[0] if known is database else name: known
                    for name, known in self._databases.items()
                }
                self._finish_renames(database)
                self.pipe_failures = {
                    change.moved_object(pipe): failure for pipe, failure in self.pipe_failures.items()
                }
                for reference in self.sessions.valuerefs():
                    session = reference()
                    if session is not None:
                        session.follow(change)
        self.watch_changed()

    def _finish_renames(self, database: Database) -> None:
        """Let what is outside of the database's file follow its renames."""
        renames = database.names.unfinished()
        for change in renames:
            old, new = Securable(change.kind, change.old), Securable(change.kind, change.new)
            if self.access.knows(old):
                self.access.renamed(old, new)
            for other in self.databases:
                if other is not database:
                    other.follow(change)
        if renames:
            database.names.finish()

    def _attach(self, file: Path) -> None:
        engine_name = unquote(file.stem)
        self._instance.execute(f"ATTACH {literal(str(file))} AS {quote(engine_name)}")
        name = unquote(file.stem.partition("+")[0])
        database = Database(
            file, engine_name, name, self.cursor, self._faults, self.limits, self.clock, self.storage,
            self.spool,
        )  # fmt: skip
        self._files[database] = file
        self._databases[database.name] = database

    def _exists(self, target: Securable) -> bool:
        if target.kind in {"ACCOUNT", "WAREHOUSE"} or SHARED.contains(target):
            return True
        database = self._databases.get(target.path[0])
        if database is None or (target.depth > 1 and target.path[1] not in database.schemas):
            return False
        stages = database.stages
        known: dict[str, Any] = {
            "TABLE": database.tables,
            "STAGE": stages.stages,
            "FILE FORMAT": stages.formats,
        }
        return target.kind not in known or known[target.kind].find(*target.path[1:]) is not None

    def _new_file(self, name: str) -> Path:
        """Return a file whose name, decoded, the engine can take: a renamed database may have it still.

        A ``+`` in the name of a database is encoded, so the one of :func:`free_name` stands out.
        """
        engine_name = free_name(name, [known.names.engine for known in self._databases.values()])
        file = self._folder / f"{percent_encode(name, safe='')}{engine_name[len(name) :]}.duckdb"
        if len(file.name) + len(".wal") > _MOST_BYTES_OF_A_FILE_NAME:
            raise unsupported(f"a database whose file has a name of {len(file.name)} bytes: '{name[:30]}..'")
        return file


def _identities(database: Database) -> Iterator[str]:
    """Return the folders of a database's internal stages and of its tables' stages."""
    for stage in database.stages.stages:
        yield stage.identity
    for table in database.tables:
        yield table.folder


def _check_reserved(name: str) -> None:
    if name == SHARED_DATABASE:
        raise object_exists(name)
    if name.upper() in _RESERVED:
        raise compilation_error(f"'{name}' is reserved by the local service.")


def _respect_affinity(instance: duckdb.DuckDBPyConnection) -> None:
    """Run no more engine threads than this process has cores: DuckDB counts those of the machine.

    On one core of two a query of one row takes twice as long with two threads (measured with DuckDB 2.0.0).
    """
    cores = len(os.sched_getaffinity(0))
    if cores < (os.cpu_count() or cores):
        instance.execute(f"SET threads = {cores}")
