"""A streaming pipe: its name, the table it fills, and the key of its files."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_snowpipe.local.engine.definition import PipeDefinition

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
