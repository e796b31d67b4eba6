"""A streaming pipe: its name, the table it fills, and the key of its files."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field

# -- What a custom streaming pipe does with a row: transformations, or columns matched by name -----------


@dataclass(frozen=True, slots=True)
class PipeDefinition:
    """The COPY statement of a custom pipe, compiled.

    :param text: the statement as it was written.
    :param columns: columns that the expressions fill, in order; empty for a pipe that matches names.
    :param expressions: one DuckDB expression a column, over the row ``j`` as JSON.
    :param case_sensitive: a matching pipe compares names with their case.
    :param cluster_at_ingest_time: rows of a commit are sorted by the clustering key of the table.
    """

    text: str
    columns: tuple[str, ...] = ()
    expressions: tuple[str, ...] = ()
    case_sensitive: bool = False
    cluster_at_ingest_time: bool = False

    def to_json(self) -> str:
        """Return the form that the hidden table keeps."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PipeDefinition:
        """Read the form that :meth:`to_json` writes."""
        stored = json.loads(text)
        return cls(
            stored["text"],
            tuple(stored["columns"]),
            tuple(stored["expressions"]),
            stored["case_sensitive"],
            stored.get("cluster_at_ingest_time", False),
        )


DEFAULT_PIPE_SUFFIX = "-STREAMING"


@dataclass(frozen=True, slots=True)
class PipeKey:
    """Exact schema and name of a pipe inside one database."""

    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Pipe:
    """A pipe and the table it fills.

    :param key: schema and name.
    :param table: exact name of the table, in the same schema.
    :param encryption_key: base64 of the 32-byte AES key for file mode.
    :param created_on_ms: creation time, epoch milliseconds.
    :param definition: what a custom pipe does; None for a default pipe.
    """

    key: PipeKey
    table: str
    encryption_key: str = field(repr=False)
    created_on_ms: int
    definition: PipeDefinition | None = None
