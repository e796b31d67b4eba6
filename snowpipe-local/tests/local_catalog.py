"""The local service's catalog and SQL front inside the test process: no port, no client."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from snowpipe_local.access.access import Access
from snowpipe_local.catalog import Catalog
from snowpipe_local.errors import SqlError
from snowpipe_local.faults import Faults
from snowpipe_local.query_history import QueryHistory
from snowpipe_local.sql import front
from snowpipe_local.sql.session import Session
from snowpipe_local.stages.definition import StageDefinition
from snowpipe_local.stages.storage import Outside, Storage, user_identity


def emptied(catalog: Catalog) -> Catalog:
    """Return a catalog as it is when it was just made, without the time that this takes."""
    for database in catalog.databases:
        if database.name != "LOCAL":
            catalog.drop_database(database.name)
    local = catalog.database("LOCAL") if catalog.find("LOCAL") else None
    if local is None:
        catalog.create_database("LOCAL")
    else:
        for schema in sorted(local.schemas):
            local.drop_schema(schema)
        local.create_schema("PUBLIC")
        local.objects.set_comment("DATABASE", "", "LOCAL", "")
        local.cursor.execute(f"DELETE FROM {local.history.of_former_tables}")
    catalog.storage.remove_all_but(())
    catalog.storage.remove([user_identity("DEMO")])
    catalog.copies.clear()
    catalog.pipe_failures.clear()
    catalog.access, catalog.queries = Access(clock=catalog.clock), QueryHistory()
    return catalog


class LocalCatalog:
    """A catalog on a folder, one session in LOCAL.PUBLIC, and the internal stage S."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outside = folder / "outside"
        databases = folder / "data" / "databases"
        for path in (databases, self.outside):
            path.mkdir(parents=True, exist_ok=True)
        storage = Storage(folder / "data" / "staged", folder / "data", Outside((self.outside,)))
        self.catalog = Catalog(databases, Faults(), storage=storage)
        self._begin()

    def _begin(self) -> None:
        self._sessions: list[Session] = []
        self.database = self.catalog.database("LOCAL")
        if self.database.stages.stages.find("PUBLIC", "S") is None:
            self.database.stages.put(StageDefinition("LOCAL", "PUBLIC", "S", 0), replace=False)
        self.session = self.new_session()

    def new_session(self) -> Session:
        self._sessions.append(Session(self.catalog, "DEMO", "LOCAL", "PUBLIC"))
        return self._sessions[-1]

    def empty(self) -> None:
        """Begin again, for the next test."""
        for session in self._sessions:
            session.close()
        for path in self.outside.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if self.catalog.clock.moved_seconds:
            # A clock does not go back.
            self.catalog.close()
            self.__init__(self.folder / "again")  # type: ignore[misc]
        else:
            emptied(self.catalog)
            self._begin()

    def sql(self, statement: str, *values: str, session: Session | None = None) -> list[dict[str, Any]]:
        """Run a statement; values are bound as text. Rows come by lower-case column name."""
        bindings = {str(n): {"type": "TEXT", "value": value} for n, value in enumerate(values, 1)}
        result = front.execute(session or self.session, statement, bindings)
        names = [column.name.lower() for column in result.columns]
        return [dict(zip(names, row, strict=True)) for row in result.rows]

    def values(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows without their names."""
        return [tuple(row) for row in front.execute(self.session, statement).rows]

    def refused(self, statement: str, session: Session | None = None) -> SqlError:
        """Run a statement that must fail, and return its error."""
        try:
            self.sql(statement, session=session)
        except SqlError as error:
            return error
        raise AssertionError(f"not refused: {statement}")

    def put(self, path: str, content: bytes, stage: str = "S") -> Path:
        """Write a file into an internal stage, without PUT."""
        definition = self.database.stages.stages.find("PUBLIC", stage)
        return self._write(definition.identity, path, content)

    def put_table(self, table: str, path: str, content: bytes) -> Path:
        """Write a file into the stage of a table of LOCAL.PUBLIC, without PUT."""
        known = self.database.tables.find("PUBLIC", table)
        return self._write(known.folder, path, content)

    def _write(self, identity: str, path: str, content: bytes) -> Path:
        target = self.catalog.storage.internal(identity).path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        return target

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        self.catalog.close()


@contextmanager
def local_catalog(folder: Path) -> Iterator[LocalCatalog]:
    """Open a catalog on a folder, and close it at the end."""
    made = LocalCatalog(folder)
    yield made
    made.close()
