"""The source log: which pieces of files a source has had, in which order, and what became of each.

A *unit* is a file, or the piece by which a text file has grown. It has a number, and is immutable: the
position of a row is the number of its unit and its line. What is new in a listing gets the next numbers,
whenever it comes and whatever its name is. The log is a series of numbered entries. Each is created where
there is none, before any row of its units is sent: of two planners, one creates it, and the other reads it
and plans again. Every so often a snapshot replaces the entries before it. Entries and snapshots are
Parquet files. They are read without PyArrow, whose import takes longer than a run without new rows.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

from arro3.core import Array, DataType, Field, Schema, Table

Event = Literal[
    "unit", "channel", "committed", "archived", "deleted", "given up", "replaces", "restarts", "table"
]
NO_ROWS = -1


@dataclass(frozen=True, slots=True)
class Unit:
    """A file, or a piece of one, that is read as a whole.

    :param number: its position among all units of the log, from 1
    :param owner: the load that has it: pattern and split, in words
    :param partition: the partition of that load
    :param file: the file's name within the partition, as offset tokens show it
    :param name: the file's name below the source's path
    :param start: the piece's first byte, 0 for a file from its begin
    :param end: the byte behind its last one; the size that the file had
    :param after_line: lines before it in the file
    :param modified_ns: when the file was written last, nanoseconds since 1970
    :param version: the version of its content, an object's ETag; empty for local files
    :param ends: digest of the first and the last bytes up to ``end``; empty for an object that cannot grow
    :param renamed_from: for a unit without rows that records a new name of its file, the unit before it
    :param node: the number that a directory's file keeps when it is renamed, 0 where there is none
    :param loader: who loads it: empty for the stream, or the text of a :class:`Loader`
    :param entry: of COPY or a pipe, the number of the log's entry, whose units are one load
    """

    number: int
    owner: str
    partition: str
    file: str
    name: str
    start: int
    end: int
    after_line: int
    modified_ns: int
    version: str = ""
    ends: str = ""
    renamed_from: int = 0
    node: int = 0
    loader: str = ""
    entry: int = 0


_UNIT_COLUMNS = {one.name: one.type for one in fields(Unit)}
_ARROW = {"str": DataType.utf8(), "int": DataType.int64()}
EVENTS = Schema(
    [
        Field(name, _ARROW[str(kind)])
        for name, kind in {
            "event": "str",
            "at_ns": "int",
            "run": "str",
            "rows": "int",
            **_UNIT_COLUMNS,
        }.items()
    ]
)


@dataclass(frozen=True, slots=True)
class Loader:
    """COPY or a pipe, as the log has it.

    :param pipe: the pipe, None for COPY
    :param stage: where it finds the files that it is given
    :param ledger: database, schema and name of the ledger that shows which of them it has loaded
    :param takes_rows: True where it is given the stream's rows, False for the files themselves
    """

    pipe: str | None
    stage: str
    ledger: tuple[str, ...]
    takes_rows: bool

    def __str__(self) -> str:
        return "COPY" if self.pipe is None else f"pipe {self.pipe}"

    def written(self) -> str:
        """The text that :meth:`read` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Loader:
        """Read the loader of a unit."""
        values = json.loads(text)
        return cls(**{**values, "ledger": tuple(values["ledger"])})


@dataclass(frozen=True)
class SourceLog:
    """What a log holds, as it was read.

    :param log_id: identifies it, empty for one that is not begun
    :param source: the source's path when its last entry was written
    :param number: of its last entry, 0 for none
    :param events: all events in order, with the columns of a unit for those that make one
    """

    log_id: str
    source: str
    number: int
    events: Table = field(repr=False)

    @classmethod
    def empty(cls) -> SourceLog:
        """One without an id and without entries."""
        return cls("", "", 0, event_table([]))

    @cached_property
    def units(self) -> list[Unit]:
        """The units, by number, without those whose load by COPY or a pipe was given up."""
        void = self._of_units("number", "given up")
        rows = self._rows("event", *_UNIT_COLUMNS)
        return [Unit(*row) for event, *row in rows if event == "unit" and row[0] not in void]

    def given(self, owner: str) -> dict[int, list[Unit]]:
        """The units of a load that COPY and pipes were given and are not known to have loaded, by entry."""
        done = self.committed()
        found: dict[int, list[Unit]] = {}
        for one in self.units:
            if one.entry and one.owner == owner and one.number not in done:
                found.setdefault(one.entry, []).append(one)
        return found

    def table(self, owner: str) -> str:
        """When the table was created into which COPY and pipes load files, as the account writes it."""
        return next(reversed(self._named("table", owner)), "")

    def replaced_logs(self, owner: str) -> list[str]:
        """The ids of lost logs that this one replaces."""
        return [*self._named("replaces", owner), *self.restarted_logs(owner)]

    def restarted_logs(self, owner: str) -> list[str]:
        """Those among them whose files were to be loaded again, so that their positions mean nothing."""
        return self._named("restarts", owner)

    def _named(self, event: Event, owner: str) -> list[str]:
        rows = self._rows("event", "owner", "name")
        return [name for kind, whose, name in rows if kind == event and whose in ("", owner)]

    def channels(self, owner: str) -> dict[str, str]:
        """The channel that each partition of a load was given to last."""
        rows = self._rows("event", "owner", "partition", "name")
        return {
            partition: name for event, whose, partition, name in rows if (event, whose) == ("channel", owner)
        }

    @property
    def live_units(self) -> list[Unit]:
        """The units whose files nobody has archived or deleted, which have their names no more."""
        cleaned = self._of_units("number", "archived", "deleted")
        return [one for one in self.units if one.number not in cleaned]

    @property
    def last_unit(self) -> int:
        """The number of the last unit, 0 for none."""
        return max(self._of_units("number", "unit"), default=0)

    def runs(self) -> dict[int, str]:
        """The run that made each unit, by number."""
        return self._of_units("run", "unit")

    def times(self, event: Event) -> dict[int, int]:
        """When something happened to units, nanoseconds since 1970, by number."""
        return self._of_units("at_ns", event)

    def committed(self) -> dict[int, int]:
        """The units that were seen as committed to their last row, with their last lines.

        A line of 0 is one that nobody knows; :data:`NO_ROWS` stands for a unit without a row.
        """
        return self._of_units("after_line", "committed")

    def _of_units(self, column: str, *events: Event) -> dict[int, Any]:
        """What events say of units in a column, by the units' numbers."""
        rows = self._rows("event", "number", column)
        return {number: value for event, number, value in rows if event in events}

    def _rows(self, *columns: str) -> Iterator[tuple[Any, ...]]:
        """The values of some columns, event by event."""
        return zip(*(self.events[name].to_pylist() for name in columns), strict=True)

    def copied_rows(self, owner: str) -> dict[str, int]:
        """Rows of the files that COPY and pipes have loaded, by name; not of names of several units."""
        rows = self._of_units("rows", "committed")
        known = [one for one in self.units if one.owner == owner]
        times = Counter(one.name for one in known)
        own = ((one.name, rows.get(one.number)) for one in known if one.entry and times[one.name] == 1)
        return {name: found for name, found in own if found is not None}

    def described(self) -> list[dict[str, Any]]:
        """What became of each unit, for people, by number."""
        taken_at, taken_by = self.times("unit"), self.runs()
        rows = self._of_units("rows", "committed")
        at = {event: self.times(event) for event in ("deleted", "archived", "committed")}
        lines = []
        for one in self.units:
            committed_at = at["committed"].get(one.number)
            lines.append(
                {
                    "unit": one.number,
                    "partition": one.partition,
                    "file": one.name,
                    "bytes": one.end - one.start,
                    "rows": rows.get(one.number),
                    "lines_before": one.after_line,
                    "loader": str(Loader.read(one.loader)) if one.loader else "stream",
                    "state": next((event for event in at if one.number in at[event]), "taken"),
                    "taken_at": _text_of_time(taken_at[one.number]),
                    "taken_by": taken_by[one.number],
                    "committed_at": None if committed_at is None else _text_of_time(committed_at),
                }
            )
        return lines


def _text_of_time(nanoseconds: int) -> str:
    at = dt.datetime.fromtimestamp(nanoseconds // 1_000_000_000, dt.UTC)
    return at.isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class FilesOfUnits:
    """Which file each unit is of: a file keeps its units when it gets another name.

    :param first: the first unit of the file of each unit, by number; it stands for the file
    :param last: the last unit of each file
    :param names: the name that each file has now, or had last
    :param held: the file that each name has
    :param replaced: the files that other content has replaced under their names
    """

    first: dict[int, int] = field(default_factory=dict)
    last: dict[int, Unit] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    replaced: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, units: Sequence[Unit]) -> FilesOfUnits:
        """Follow the files of one load by its units, in the order of their numbers."""
        files = cls()
        for one in units:
            if one.renamed_from:
                file = files.first[one.renamed_from]
                if files.held.get(files.names[file]) == file:
                    del files.held[files.names[file]]
            elif one.start == 0:
                file = one.number
                if one.name in files.held:
                    files.replaced.add(files.held[one.name])
            else:
                file = files.held[one.name]
            files.first[one.number], files.last[file] = file, one
            files.names[file] = one.name
            files.held[one.name] = file
        return files

    def name_of(self, unit: Unit) -> str | None:
        """The name that the file of a unit has now; None where another file has taken it."""
        file = self.first[unit.number]
        return self.names[file] if self.held.get(self.names[file]) == file else None


def event_rows(units: Sequence[Unit]) -> list[dict[str, Any]]:
    """The rows of an entry that makes units."""
    return [{"event": "unit", **asdict(one)} for one in units]


def event_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The events of an entry, each with some of the columns, as a table."""
    columns = [Array([row.get(one) for row in rows], type=EVENTS.field(one).type) for one in EVENTS.names]
    return Table.from_arrays(columns, schema=EVENTS)
