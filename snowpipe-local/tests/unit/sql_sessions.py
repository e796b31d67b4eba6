"""Sessions on a catalog of their own, without a server around."""

from pathlib import Path
from typing import Any

import pytest
from snowpipe_local.access.access import Access
from snowpipe_local.catalog import Catalog
from snowpipe_local.errors import SqlError
from snowpipe_local.faults import Faults
from snowpipe_local.sql import front
from snowpipe_local.sql.session import Session
from tests.local_catalog import emptied


def listed(text: str) -> list[str]:
    """Return the statements of a text, which has one on a line, or several between semicolons."""
    return [one.strip() for line in text.strip().splitlines() for one in line.split("; ")]


def pairs(text: str) -> list[tuple[str, str]]:
    """Return what stands before and behind the arrow of each entry of such a text."""
    return [(left, right) for left, right in (one.split(" -> ") for one in listed(text))]


class SqlSessions:
    """A catalog with one session per user and role; all of them start in LOCAL.PUBLIC."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.catalog = Catalog(folder, Faults(), access=Access(folder / "access.json"))
        self._sessions: dict[tuple[str, str], Session] = {}

    def session(self, user: str = "DEMO", role: str = "") -> Session:
        return self._sessions.setdefault(
            (user, role), Session(self.catalog, user, "LOCAL", "PUBLIC", role=role)
        )

    def run(self, *statements: str, user: str = "DEMO", role: str = "") -> list[dict[str, Any]]:
        """Run statements and return the rows of the last one, by column name."""
        rows: list[dict[str, Any]] = []
        for statement in statements:
            result = front.execute(self.session(user, role), statement)
            names = [column.name for column in result.columns]
            rows = [dict(zip(names, row, strict=True)) for row in result.rows]
        return rows

    def values(self, statement: str, user: str = "DEMO", role: str = "") -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        return [tuple(row) for row in front.execute(self.session(user, role), statement).rows]

    def refused(self, statement: str, user: str = "DEMO", role: str = "") -> SqlError:
        """Run a statement that must fail, and return its error."""
        with pytest.raises(SqlError) as error:
            front.execute(self.session(user, role), statement)
        return error.value

    def restart(self) -> None:
        """Stop, and start again on the same files."""
        self.close()
        self.__init__(self.folder)  # type: ignore[misc]

    def empty(self) -> None:
        """Begin again, for the next test."""
        self._close_sessions()
        self.folder.joinpath("access.json").unlink(missing_ok=True)
        emptied(self.catalog).access = Access(self.folder / "access.json", self.catalog.clock)

    def close(self) -> None:
        self._close_sessions()
        self.catalog.close()

    def _close_sessions(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()
