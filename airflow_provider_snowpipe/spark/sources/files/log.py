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
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal

from arro3.core import Array, DataType, Field, Schema, Table

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError

Event = Literal["unit", "channel", "committed", "archived", "deleted", "given up", "replaces", "table"]
_END_BYTES = 4096
NO_ROWS = -1
_MOST_CHANGED = 5
_NUMBERS = re.compile(r"([0-9]+)")


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
        for name, kind in {"event": "str", "at_ns": "int", "run": "str", **_UNIT_COLUMNS}.items()
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


@dataclass(frozen=True, slots=True)
class Found:
    """A file of a listing that belongs to a load.

    :param partition: the partition that the load's split gives it
    :param file: its name within the partition
    :param name: its name below the source's path
    """

    partition: str
    file: str
    name: str
    size: int
    modified_ns: int
    version: str = ""
    node: int = 0


class Contents(ABC):
    """What a planner asks of the files themselves, only of those that are new or have changed."""

    @property
    @abstractmethod
    def renames(self) -> bool:
        """True where a renamed file keeps its time and its version, False where it is a new one."""

    @abstractmethod
    def ends(self, found: Found, size: int) -> str:
        """Digest of the first and the last bytes up to a size; empty for an object that cannot grow."""

    @abstractmethod
    def may_grow(self, found: Found) -> bool:
        """True where rows may be appended to the file."""

    @abstractmethod
    def whole(self, found: Found, start: int, after_line: int, *, is_last: bool) -> int:
        """The byte behind the last line that is complete; ``start`` where none is yet.

        :param is_last: True for the last file of its partition, to which something may append
        """

    @abstractmethod
    def goes_on(self, found: Found, unit: Unit) -> tuple[int, int] | None:
        """Where a file goes on behind its last unit: first byte, and lines before it.

        :return: None where the unit's last line was taken before it was complete
        """

    @abstractmethod
    def is_blank(self, found: Found, start: int, end: int) -> bool:
        """True where a short piece of a file holds nothing but white space."""


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
        return self._named("replaces", owner)

    def _named(self, event: Event, owner: str) -> list[str]:
        rows = self._rows("event", "owner", "name")
        return [name for kind, whose, name in rows if (kind, whose) == (event, owner)]

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

    def described(self) -> list[dict[str, Any]]:
        """What became of each unit, for people, by number."""
        taken_at, taken_by = self.times("unit"), self.runs()
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


# -- What is new in a listing: a pure function of the listing and the log --------------------------------


@dataclass(frozen=True, slots=True)
class Changed:
    """A file whose content is not that of its units any more.

    :param before: its last unit
    :param text: what has changed, in words
    """

    found: Found
    before: Unit
    text: str


def plan(
    found: Sequence[Found],
    log: SourceLog,
    owner: str,
    contents: Contents,
    reload: Callable[[Changed], bool] = lambda _: False,
) -> tuple[list[Unit], list[Changed]]:
    """Find the units that a listing has beyond a log.

    :param found: the files of one load
    :param owner: the load, as its units name it
    :param reload: True for a changed file that becomes a unit as a whole
    :return: the new units, by number; and the files that have changed and do not become one
    """
    units = log.live_units
    fresh, last = _fresh(found, units, owner)
    renamed = _renamed(found, fresh, last, units, contents)
    vacated = {one.name for one in renamed.values() if last.get(one.name) == one}
    last_in = last_files(found, {one.partition for one in fresh})
    new: list[tuple[tuple[Any, ...], Unit]] = []
    changed: list[Changed] = []
    for one in fresh:
        before = renamed.get(one.name) or (None if one.name in vacated else last.get(one.name))
        if before is not None and (before.owner, before.partition) != (owner, one.partition):
            raise ConfigurationError(
                f"file {one.name!r} is loaded into this table as one of partition {before.partition!r} of "
                f"{before.owner}, and would be loaded again as one of partition {one.partition!r} of "
                f"{owner}: put pattern, partitions and file back. Nothing was sent"
            )
        is_last = last_in[one.partition] == one.file
        if before is not None and one.name in renamed:
            before = _renamed_unit(one, before, contents)
            # A new name is known before a new file takes the old one.
            new.append(((False, one.partition, natural_order(one.file)), before))
        if before is None:
            made: Unit | str | None = _whole_unit(one, owner, contents, is_last=is_last)
        else:
            made = _next_unit(one, before, owner, contents, is_last=is_last)
        if before is not None and isinstance(made, str):
            change = Changed(one, before, made)
            if not reload(change):
                changed.append(change)
                continue
            made = _whole_unit(one, owner, contents, is_last=is_last)
        if isinstance(made, Unit):
            new.append(((True, one.partition, natural_order(one.file)), made))
    first = log.last_unit + 1
    ordered = sorted(new, key=lambda one: one[0])
    return [replace(unit, number=first + index) for index, (_, unit) in enumerate(ordered)], changed


def changed_error(channel: str, changed: Sequence[str]) -> SourcePositionError:
    """Build the error of files that have changed."""
    more = f" and {len(changed) - _MOST_CHANGED} more" if len(changed) > _MOST_CHANGED else ""
    return SourcePositionError(
        f"channel {channel!r}: files that have changed since they were taken: {len(changed):,}: "
        f"{', '.join(changed[:_MOST_CHANGED])}{more}. Nothing was sent. Bring them back, and put other rows "
        "into files of their own; or set on_changed_files='reload' to load the new content, too, or 'ignore'"
    )


def _fresh(found: Sequence[Found], units: Sequence[Unit], owner: str) -> tuple[list[Found], dict[str, Unit]]:
    """The files that are new or may have changed, and the last unit of each name that a file has.

    A file that was renamed has left its name.
    """
    last = {one.name: one for one in units}
    if any(one.renamed_from for one in units):
        files = FilesOfUnits.of(units)
        last = {name: files.last[file] for name, file in files.held.items()}

    def is_same(one: Found) -> bool:
        unit = last.get(one.name)
        return unit is not None and (
            unit.end == one.size
            and unit.modified_ns == one.modified_ns
            and unit.version == one.version
            and unit.partition == one.partition
            and unit.owner == owner
        )

    return [one for one in found if not is_same(one)], last


def _renamed(
    found: Sequence[Found],
    fresh: Sequence[Found],
    last: Mapping[str, Unit],
    units: Sequence[Unit],
    contents: Contents,
) -> dict[str, Unit]:
    """The last units of files that have a new name, by that name.

    They have the same size, time, version and ends; or have grown since and have the same node and ends; or
    are a copy of a file that was cut. In an object store a renamed object is a copy, and is a new file.
    """
    new = [one for one in fresh if contents.renames and one.size]
    if not new:
        return {}
    by_content: dict[tuple[int, int, str], list[Found]] = {}
    for one in new:
        by_content.setdefault((one.size, one.modified_ns, one.version), []).append(one)
    by_node = {one.node: one for one in new if one.node}
    listed = {one.name: one for one in found}
    times = {time for _, time, _ in by_content}
    likely = [one for one in units if one.modified_ns in times or one.node in by_node]
    known = [last[one.name] for one in fresh if one.name in last]
    cut = [unit for unit in known if unit.ends and listed[unit.name].size < unit.end]
    if not likely and not cut:
        return {}
    files = FilesOfUnits.of(units)
    renamed: dict[str, Unit] = {}
    for number in dict.fromkeys(files.first[piece.number] for piece in likely):
        unit = files.last[number]
        there = listed.get(unit.name)
        content = (unit.end, unit.modified_ns, unit.version)
        is_held = files.held.get(unit.name) == number  # another file may have its name now
        is_there = is_held and there and (there.size, there.modified_ns, there.version) == content
        if is_there or number in files.replaced:
            continue
        same, grown = by_content.get(content, []), by_node.get(unit.node)
        if grown is not None and grown.size > unit.end and unit.ends:
            is_other = there is None or there.node != unit.node
            same = [*same, grown] if is_other else same
        _find_again(unit, same, contents, renamed)
    taken = {unit.number for unit in renamed.values()}
    for unit in cut:
        # Rotation by a copy: the file goes on empty under its name, and its content under the new one.
        copies = (one for one in new if one.name not in renamed and one.name not in last)
        copy = next((one for one in copies if contents.ends(one, unit.end) == unit.ends), None)
        if copy is not None and unit.number not in taken:
            renamed[copy.name] = unit
    return renamed


def _find_again(unit: Unit, same: Sequence[Found], contents: Contents, renamed: dict[str, Unit]) -> None:
    """Find the file of a unit among those with its size and time, by its node first, and by its ends."""
    for one in sorted(same, key=lambda one: one.node != unit.node):
        is_free = one.name != unit.name and one.name not in renamed
        if is_free and (not unit.ends or contents.ends(one, unit.end) == unit.ends):
            renamed[one.name] = unit
            return


def _renamed_unit(found: Found, before: Unit, contents: Contents) -> Unit:
    """A unit without rows, behind which the file may grow."""
    begin = contents.goes_on(found, before) if before.ends else None
    after_line = 0 if begin is None else begin[1]
    own = replace(before, loader="", entry=0, renamed_from=before.number)
    named = replace(own, file=found.file, name=found.name)
    return replace(named, start=before.end, after_line=after_line)


def last_files(found: Sequence[Found], partitions: set[str]) -> dict[str, str]:
    """The file of each of some partitions to which something may append."""
    files: dict[str, list[str]] = {one: [] for one in partitions}
    for one in found:
        if one.partition in partitions:
            files[one.partition].append(one.file)
    return {partition: max(names, key=natural_order) for partition, names in files.items()}


def _next_unit(
    found: Found, before: Unit, owner: str, contents: Contents, *, is_last: bool
) -> Unit | str | None:
    """The unit that a file has beyond its last one; None for nothing; a text for a change."""
    is_same = found.version == before.version and (found.version or found.modified_ns == before.modified_ns)
    if found.size == 0 or (found.size == before.end and is_same):
        return None
    if found.size == before.end:
        # Of a small file the digest of its ends is that of all it holds.
        is_whole = before.end <= 2 * _END_BYTES and before.ends
        return None if is_whole and contents.ends(found, found.size) == before.ends else "written again"
    is_begin = found.size > before.end and before.ends and contents.may_grow(found)
    if not is_begin or contents.ends(found, before.end) != before.ends:
        return f"overwritten, {before.end:,} bytes before and {found.size:,} now"
    begin = contents.goes_on(found, before)
    if begin is None:
        return f"its last line was taken before it was complete, at byte {before.end:,}"
    start, after_line = begin
    end = contents.whole(found, start, after_line, is_last=is_last)
    if contents.is_blank(found, start, end):
        return None
    return _made(found, owner, start, end, after_line, contents.ends(found, end))


def _whole_unit(found: Found, owner: str, contents: Contents, *, is_last: bool) -> Unit | None:
    end = contents.whole(found, 0, 0, is_last=is_last) if found.size else 0
    return _made(found, owner, 0, end, 0, contents.ends(found, end)) if end else None


def _made(found: Found, owner: str, start: int, end: int, after_line: int, ends: str) -> Unit:
    return Unit(
        0, owner, found.partition, found.file, found.name, start, end, after_line,
        found.modified_ns, found.version, ends, node=found.node,
    )  # fmt: skip


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


def natural_order(name: str) -> tuple[Any, ...]:
    """Order names as people do: ``log_9`` before ``log_10``."""
    parts = _NUMBERS.split(name)
    return tuple((int(one), one) if index % 2 else one for index, one in enumerate(parts))


def ends_digest(read: Callable[[int, int], bytes], size: int) -> str:
    """Digest of the first and the last bytes up to a size, which stay the same when rows are added."""
    found = blake2b(read(0, min(size, _END_BYTES)), digest_size=8)
    found.update(read(max(0, size - _END_BYTES), size))
    return found.hexdigest()


def event_rows(units: Sequence[Unit]) -> list[dict[str, Any]]:
    """The rows of an entry that makes units."""
    return [{"event": "unit", **asdict(one)} for one in units]


def event_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The events of an entry, each with some of the columns, as a table."""
    columns = [Array([row.get(one) for row in rows], type=EVENTS.field(one).type) for one in EVENTS.names]
    return Table.from_arrays(columns, schema=EVENTS)
