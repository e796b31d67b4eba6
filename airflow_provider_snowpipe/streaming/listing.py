"""The channels of a pipe as ``SHOW CHANNELS`` lists them, and the SQL about channels."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_snowpipe.streaming.names import PipeName, quote_identifier

UPDATE_OFFSET_TOKEN = "SELECT SYSTEM$SNOWPIPE_STREAMING_UPDATE_CHANNEL_OFFSET_TOKEN(%s, %s, %s)"  # noqa: S105
"""Sets a channel's token; takes the table's full name, the channel and the token (needs INSERT)."""


@dataclass(frozen=True, slots=True)
class ListedChannel:
    """One row of ``SHOW CHANNELS``.

    :param name: the channel's name
    :param database: of the pipe
    :param schema: of the pipe
    :param table: the table that the channel writes to
    :param pipe: the pipe, None for a channel whose parent is no pipe
    :param offset_token: the committed offset token, None for NULL
    :param client_sequencer: grows with every opening of the channel
    :param row_sequencer: grows with every append that is committed
    :param created_on: when the channel was made
    """

    name: str
    database: str
    schema: str
    table: str
    pipe: str | None = None
    offset_token: str | None = None
    client_sequencer: int | None = None
    row_sequencer: int | None = None
    created_on: dt.datetime | None = None

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read a row, whose keys are the columns' names in small letters."""
        created = row.get("created_on")
        return cls(
            name=str(row["name"]),
            database=str(row["database_name"]),
            schema=str(row["schema_name"]),
            table=str(row["table_name"]),
            pipe=str(row["parent_name"]) if row.get("parent_domain") == "PIPE" else None,
            offset_token=None if row.get("offset_token") is None else str(row["offset_token"]),
            client_sequencer=_integer(row.get("client_sequencer")),
            row_sequencer=_integer(row.get("row_sequencer")),
            created_on=created if isinstance(created, dt.datetime) else None,
        )


def show_channels(pipe: PipeName) -> str:
    """The statement that lists the channels of a pipe."""
    return f"SHOW CHANNELS IN PIPE {full_name(pipe.database, pipe.schema, pipe.pipe)}"


def full_name(*parts: str) -> str:
    """Write a full name, each part quoted so that it is taken letter by letter."""
    return ".".join(map(quote_identifier, parts))


def _integer(value: object) -> int | None:
    return None if value is None or value == "" else int(str(value))
