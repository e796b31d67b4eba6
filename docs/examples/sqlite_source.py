"""A source of one's own: the rows of an SQLite table, in the order of their row ids."""

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from airflow_provider_snowpipe.spark.source import Behind, Source, SourcePartition, SourceSpec
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.checkpoint import Binding
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset, Offset


@dataclass(frozen=True, slots=True, repr=False)
class SqliteSource(SourceSpec):
    """The specification in a plan: fields are JSON values, none of them a secret."""

    database: str
    table: str
    kind: Literal["sqlite"] = "sqlite"
    source_class: ClassVar[str] = "sqlite_source:SqliteReader"
    offset_format: ClassVar[str] = "integer"

    def __post_init__(self) -> None:
        self._check_fields()

    @property
    def default_name(self) -> str:
        return self.table

    @property
    def address(self) -> str:
        return f"sqlite:{self.database}#{self.table}"


class SqliteReader(Source):
    """What the driver asks: the partitions, each with the end that it has now."""

    def __init__(self, spec: SqliteSource, on_data_loss: str) -> None:
        self._spec = spec

    def partitions(self) -> tuple["SqliteRows", ...]:
        with sqlite3.connect(self._spec.database) as database:
            (last,) = database.execute(f'SELECT COALESCE(MAX(rowid), 0) FROM "{self._spec.table}"').fetchone()
        binding = Binding(self._spec.address, "row ids")
        return (SqliteRows("all", binding, self._spec.database, self._spec.table, last),)


@dataclass(frozen=True)
class SqliteRows(SourcePartition[int]):
    """What a task reads: rows behind a committed row id, to the end that the driver has fixed."""

    name: str
    binding: Binding  # what the positions mean: their table
    database: str
    table: str
    last: int
    offset_class = IntegerOffset
    gaps_legal = True  # deleted rows leave gaps

    def check(self, committed: Offset | None) -> None:
        if isinstance(committed, IntegerOffset) and committed.value > self.last:
            raise SourcePositionError(
                f"row {committed} is committed, and {self.table!r} ends at {self.last}: it was recreated"
            )

    def behind(self, committed: Offset | None) -> Behind:
        rows = self.last - (committed.value if isinstance(committed, IntegerOffset) else 0)
        return Behind(None, rows)

    def resume(self, committed: Offset | None) -> int | None:
        self.check(committed)
        done = committed.value if isinstance(committed, IntegerOffset) else 0
        return done if done < self.last else None

    def read(self, resume_at: int, limits: BatchLimits) -> Iterator[Part]:
        with sqlite3.connect(self.database) as database:
            database.row_factory = sqlite3.Row
            query = f'SELECT rowid AS "_row", * FROM "{self.table}" WHERE rowid > ? AND rowid <= ? ORDER BY 1'
            for row in database.execute(query, (resume_at, self.last)):
                position = IntegerOffset(row["_row"])
                values = {name: row[name] for name in row.keys()[1:]}
                yield Part(json.dumps(values).encode() + b"\n", position, position, 1)
