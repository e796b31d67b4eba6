"""From where a file pipe loads, and into which table: read from its own COPY statement."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from airflow_provider_snowpipe.bulk.literals import STRING_LITERAL, read_string_literal
from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName

_PART = r'(?:"(?:[^"]|"")+"|[A-Za-z_][A-Za-z0-9_$]*)'
_TABLE = re.compile(rf"\s*COPY\s+INTO\s+(?P<table>(?:{_PART}\.){{0,2}}{_PART})(?=[\s(])", re.IGNORECASE)
_FROM = re.compile(
    rf"""\bFROM\s+(?:(?P<quoted>{STRING_LITERAL})|(?P<plain>@[^\s();,]+))|{STRING_LITERAL}""",
    re.IGNORECASE | re.DOTALL,
)
"""A location, or a text, in which there is none."""


@dataclass(frozen=True, slots=True)
class PipeTarget:
    """What a file pipe moves where.

    :param table: database, schema and name of the table
    :param stage: the pipe's location: the stage, with its database and schema, and a path in it
    :param is_told: True where events of new files feed the pipe (``AUTO_INGEST``)
    """

    table: tuple[str, str, str]
    stage: StageReference
    is_told: bool = False

    @classmethod
    def of(cls, pipe: PipeName, definition: str, *, is_told: bool = False) -> Self:
        """Read a pipe's COPY statement; names without a database or a schema are those of the pipe's own.

        :param pipe: the pipe
        :param definition: the statement, as ``DESCRIBE PIPE`` shows it
        :param is_told: True where events of new files feed the pipe
        :raises ConfigurationError: if it shows none, or one that names no table or no stage
        """
        table, location = _TABLE.match(definition), _location(definition)
        if table is None or location is None:
            raise ConfigurationError(
                f"pipe {pipe}: DESCRIBE PIPE shows the statement {definition[:80]!r}, which does not tell "
                "table and stage: give the role MONITOR on the pipe, and make it a pipe of the form COPY "
                "INTO … FROM @…"
            )
        names = [_spelled(part) for part in re.findall(_PART, table["table"])]
        database, schema, name = [pipe.database, pipe.schema][: 3 - len(names)] + names
        whole = StageReference.parse(location).location("", database=pipe.database, schema=pipe.schema)
        return cls((database, schema, name), StageReference.parse(whole), is_told)

    def below(self, staged: StageReference, pipe: PipeName) -> str:
        """The start of the paths below the pipe's location of what lies at a place in a stage.

        :param staged: the place
        :param pipe: the pipe, for its database and schema, and for the error's text
        :return: empty, or a path that ends in ``/``
        :raises ConfigurationError: if the place is not below the pipe's location
        """
        given = StageReference.parse(staged.location("", database=pipe.database, schema=pipe.schema))
        inside = f"{given.path}/".removeprefix("/")
        root = f"{self.stage.path}/".removeprefix("/")
        if _place(given) != _place(self.stage) or not inside.startswith(root):
            raise ConfigurationError(
                f"pipe {pipe} loads from {written(self.stage)}, and the files are at {written(given)}: stage "
                "them below the pipe's location, or name the pipe of that stage"
            )
        return inside.removeprefix(root)


def written(stage: StageReference) -> str:
    """A stage and a path as text.

    :param stage: with its database and schema
    """
    return f"@{stage.owner}{stage.name}" + (f"/{stage.path}" if stage.path else "")


def _location(statement: str) -> str | None:
    for found in _FROM.finditer(statement):
        if found["plain"]:
            return str(found["plain"])
        if found["quoted"] and (location := read_string_literal(found["quoted"])).startswith("@"):
            return location
    return None


def _place(stage: StageReference) -> tuple[str, ...]:
    mark = "%" if stage.name.startswith("%") else ""
    owner = [_spelled(part) for part in re.findall(_PART, stage.owner)]
    return (*owner, mark + _spelled(stage.name.removeprefix("%")))


def _spelled(part: str) -> str:
    """A name as Snowflake keeps it: in capitals unless it is quoted."""
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.upper()
