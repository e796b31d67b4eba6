"""``serve --init FILE.sql``: statements that the service runs at every start, before clients get in."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_snowpipe.local.catalog import DEFAULT_DATABASE, DEFAULT_SCHEMA, Catalog
from airflow_provider_snowpipe.local.errors import ConfigurationError, SqlError
from airflow_provider_snowpipe.local.query_history import without_secrets
from airflow_provider_snowpipe.local.sql.execution import Execution
from airflow_provider_snowpipe.local.sql.reader import numbered_statements, strip_comments
from airflow_provider_snowpipe.local.sql.session import Session

log = logging.getLogger(__name__)

_EXISTS = "002002"
_SHOWN_CHARACTERS = 80
# What would do more at the second start than at the first, and what needs a client.
_REFUSED = (
    (
        re.compile(r"INSERT\s+(?!OVERWRITE\b)", re.IGNORECASE),
        "INSERT would add its rows at every start; use MERGE, INSERT OVERWRITE or COPY INTO",
    ),
    (re.compile(r"(?:PUT|GET)\s", re.IGNORECASE), "PUT and GET need a client that moves the files"),
)


@dataclass(frozen=True, slots=True)
class InitFile:
    """Statements of a file.

    :param path: the file, for messages.
    :param statements: line, counting from 1, and text of each.
    """

    path: Path
    statements: tuple[tuple[int, str], ...]

    @classmethod
    def read(cls, path: Path) -> InitFile:
        """Read a file of statements.

        :raises ConfigurationError: when it cannot be read, or holds what must not run at every start.
        """
        try:
            found = numbered_statements(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"--init {path}: cannot be read: {error}") from error
        except SqlError as error:
            raise ConfigurationError(f"--init {path}: {_words(error)}") from error
        for line, statement in found:
            for pattern, why in _REFUSED:
                if pattern.match(strip_comments(statement)):
                    raise ConfigurationError(f"--init {path}, line {line}: {why}")
        return cls(path, tuple(found))

    def run(self, catalog: Catalog, user: str) -> None:
        """Run the statements one after the other; what exists already is left as it is.

        :param user: who runs them, in LOCAL.PUBLIC and with the user's default role.
        :raises ConfigurationError: for the first statement that fails; those before it have run.
        """
        session = Session(catalog, user, DEFAULT_DATABASE, DEFAULT_SCHEMA)
        try:
            for line, statement in self.statements:
                execution = Execution(session, statement)
                execution.run()
                error = execution.error
                if error is not None and error.code == _EXISTS:
                    log.info("--init %s, line %d: %s", self.path, line, _words(error))
                elif error is not None:
                    shown = " ".join(without_secrets(statement).split())[:_SHOWN_CHARACTERS]
                    raise ConfigurationError(
                        f"--init {self.path}, line {line}: {error.code} {_words(error)} In: {shown}"
                    )
        finally:
            session.close()
        log.info("ran %d statements of %s", len(self.statements), self.path)


def _words(error: SqlError) -> str:
    return " ".join(error.message.split())
