"""The source log: which pieces of files a source has had, in which order, and what became of each.

A *unit* is a file, or the piece by which a text file has grown. It has a number, and is immutable: the
position of a row is the number of its unit and its line. What is new in a listing gets the next numbers,
whenever it comes and whatever its name is. The log is a series of numbered entries. Each is created where
there is none, before any row of its units is sent: of two planners, one creates it, and the other reads it
and plans again. Every so often a snapshot replaces the entries before it. Entries and snapshots are
Parquet files, and are compared with a listing as Arrow tables.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

Event = Literal["unit", "committed", "archived", "deleted"]

_END_BYTES = 4096
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
    :param ends: digest of the first and the last bytes up to ``end``; empty where the file cannot grow
    :param renamed_from: the name that the file had before, for a unit without rows that records a new name
    :param node: the number that a directory's file keeps when it is renamed, 0 where there is none
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
    renamed_from: str = ""
    node: int = 0


_UNIT_SCHEMA = pa.schema(
    [
        ("number", pa.int64()), ("owner", pa.string()), ("partition", pa.string()), ("file", pa.string()),
        ("name", pa.string()), ("start", pa.int64()), ("end", pa.int64()), ("after_line", pa.int64()),
        ("modified_ns", pa.int64()), ("version", pa.string()), ("ends", pa.string()),
        ("renamed_from", pa.string()), ("node", pa.int64()),
    ]
)  # fmt: skip
EVENTS = pa.schema([("event", pa.string()), ("at_ns", pa.int64()), ("run", pa.string()), *_UNIT_SCHEMA])


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


class Contents:
    """What a planner asks of the files themselves, only of those that are new or have changed."""

    def ends(self, found: Found, size: int) -> str:
        """Digest of the first and the last bytes up to a size; empty where the file cannot grow."""
        raise NotImplementedError

    def whole(self, found: Found, start: int, after_line: int, *, is_last: bool) -> int:
        """The byte behind the last line that is complete; ``start`` where none is yet.

        :param is_last: True for the last file of its partition, to which something may append
        """
        raise NotImplementedError

    def goes_on(self, found: Found, unit: Unit) -> tuple[int, int] | None:
        """Where a file goes on behind its last unit: first byte, and lines before it.

        :return: None where the unit's last line was taken before it was complete
        """
        raise NotImplementedError

    def is_blank(self, found: Found, start: int, end: int) -> bool:
        """True where a short piece of a file holds nothing but white space."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
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
    events: pa.Table = field(repr=False)

    @classmethod
    def empty(cls) -> SourceLog:
        """One without an id and without entries."""
        return cls("", "", 0, EVENTS.empty_table())

    def all_units(self) -> list[Unit]:
        """The units, by number."""
        return [_unit(row) for row in self.units.to_pylist()]

    @property
    def units(self) -> pa.Table:
        """The units, by number."""
        return self.events.filter(pc.equal(self.events["event"], "unit"))

    @property
    def last_unit(self) -> int:
        """The number of the last unit, 0 for none."""
        return int(pc.max(self.units["number"]).as_py() or 0)

    def times(self, event: Event) -> dict[int, int]:
        """When something happened to units, nanoseconds since 1970, by number."""
        chosen = self.events.filter(pc.equal(self.events["event"], event))
        return dict(zip(chosen["number"].to_pylist(), chosen["at_ns"].to_pylist(), strict=True))

    def committed(self) -> dict[int, int]:
        """The units of which every row was seen as committed, with their last lines; 0 where nobody knows."""
        chosen = self.events.filter(pc.equal(self.events["event"], "committed"))
        return dict(zip(chosen["number"].to_pylist(), chosen["after_line"].to_pylist(), strict=True))

    def described(self) -> list[dict[str, Any]]:
        """What became of each unit, for people, by number."""
        ends: dict[int, dict[str, Any]] = {}
        for row in self.events.filter(pc.not_equal(self.events["event"], "unit")).to_pylist():
            ends.setdefault(row["number"], {})[row["event"]] = row
        lines = []
        for row in self.units.to_pylist():
            end = ends.get(row["number"], {})
            state = next((one for one in ("deleted", "archived", "committed") if one in end), "taken")
            lines.append(
                {
                    "unit": row["number"],
                    "partition": row["partition"],
                    "file": row["name"],
                    "bytes": row["end"] - row["start"],
                    "lines_before": row["after_line"],
                    "state": state,
                    "taken_at": _text_of_time(row["at_ns"]),
                    "taken_by": row["run"],
                    "committed_at": _text_of_time(end["committed"]["at_ns"]) if "committed" in end else None,
                }
            )
        return lines


def _text_of_time(nanoseconds: int) -> str:
    at = dt.datetime.fromtimestamp(nanoseconds // 1_000_000_000, dt.UTC)
    return at.isoformat().replace("+00:00", "Z")


def _unit(row: Mapping[str, Any]) -> Unit:
    return Unit(**{name: row[name] for name in _UNIT_SCHEMA.names})


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
    :raises ConfigurationError: if a file is another load's, or another partition's
    """
    last = _last_units(found, log.units)
    renamed = _renamed(found, last, log.units, contents)
    vacated = {one.name for one in renamed.values()}
    last_in = _last_files(found)
    new: list[tuple[tuple[Any, ...], Unit]] = []
    changed: list[Changed] = []
    for one in found:
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


def _last_units(found: Sequence[Found], units: pa.Table) -> dict[str, Unit]:
    """The last unit of each listed file that has one, by name; a file that was renamed has left its name."""
    names = units["name"].combine_chunks()
    if not len(names):
        return {}
    backwards = pc.take(names, pa.array(np.arange(len(names) - 1, -1, -1)))
    found_at = pc.index_in(pa.array([one.name for one in found], pa.string()), value_set=backwards)
    known = found_at.is_valid().to_numpy(zero_copy_only=False).nonzero()[0].tolist()
    at = pc.subtract(len(names) - 1, found_at.drop_null())
    rows = units.take(at).to_pylist()
    moved = units.filter(pc.not_equal(units["renamed_from"], ""))
    left = dict(zip(moved["renamed_from"].to_pylist(), moved["number"].to_pylist(), strict=True))
    last = {found[index].name: _unit(row) for index, row in zip(known, rows, strict=True)}
    return {name: unit for name, unit in last.items() if unit.number > left.get(name, 0)}


def _renamed(
    found: Sequence[Found], last: Mapping[str, Unit], units: pa.Table, contents: Contents
) -> dict[str, Unit]:
    """The last units of files that have a new name, by that name.

    They have the same size, time and ends; or have grown since and have the same node and ends; or are a copy
    of a file that was cut. In an object store a renamed object is a copy, and is a new file.
    """
    new = [one for one in found if one.name not in last and not one.version]
    if not new:
        return {}
    by_content = {(one.size, one.modified_ns): one for one in new}
    by_node = {one.node: one for one in new if one.node}
    listed = {one.name: one for one in found}
    likely = pc.or_(
        pc.is_in(units["modified_ns"], value_set=pa.array([time for _, time in by_content], pa.int64())),
        pc.is_in(units["node"], value_set=pa.array(by_node, pa.int64())),
    )
    renamed = {}
    for row in units.filter(likely).to_pylist():
        unit = _unit(row)
        there = listed.get(unit.name)
        one = by_content.get((unit.end, unit.modified_ns))
        if there is not None and (there.size, there.modified_ns) == (unit.end, unit.modified_ns):
            continue
        if one is None and unit.ends and (there is None or there.node != unit.node):
            one = by_node.get(unit.node)
            one = one if one is not None and one.size > unit.end else None
        if one is not None and (not unit.ends or contents.ends(one, unit.end) == unit.ends):
            renamed[one.name] = unit
    for unit in last.values():
        # Rotation by a copy: the file goes on empty under its name, and its content under the new one.
        if unit.ends and listed[unit.name].size < unit.end:
            copies = (one for one in new if one.size >= unit.end and one.name not in renamed)
            copy = next((one for one in copies if contents.ends(one, unit.end) == unit.ends), None)
            if copy is not None:
                renamed[copy.name] = unit
    return renamed


def _renamed_unit(found: Found, before: Unit, contents: Contents) -> Unit:
    """A unit without rows, behind which the file may grow."""
    begin = contents.goes_on(found, before) if before.ends else None
    after_line = 0 if begin is None else begin[1]
    named = replace(before, file=found.file, name=found.name, renamed_from=before.name)
    return replace(named, start=before.end, after_line=after_line)


def _last_files(found: Sequence[Found]) -> dict[str, str]:
    """The file of each partition to which something may append."""
    last: dict[str, str] = {}
    for one in found:
        known = last.get(one.partition)
        if known is None or natural_order(known) < natural_order(one.file):
            last[one.partition] = one.file
    return last


def _next_unit(
    found: Found, before: Unit, owner: str, contents: Contents, *, is_last: bool
) -> Unit | str | None:
    """The unit that a file has beyond its last one; None for nothing; a text for a change."""
    is_same = found.version == before.version and found.modified_ns == before.modified_ns
    if found.size == 0 or (found.size == before.end and is_same):
        return None
    if found.size == before.end:
        # Of a small file the digest of its ends is that of all it holds.
        is_whole = 0 < before.end <= 2 * _END_BYTES and before.ends
        return None if is_whole and contents.ends(found, found.size) == before.ends else "written again"
    if found.size < before.end or not before.ends or contents.ends(found, before.end) != before.ends:
        return f"overwritten, {before.end:,} bytes before and {found.size:,} now"
    begin = contents.goes_on(found, before)
    if begin is None:
        return f"its last line was taken before it was complete, at byte {before.end:,}"
    start, after_line = begin
    end = contents.whole(found, start, after_line, is_last=is_last)
    if end <= start or contents.is_blank(found, start, end):
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


def names_of(units: Sequence[Unit]) -> dict[int, str]:
    """The names that the files of units have now, by the units' numbers."""
    names = {one.number: one.name for one in units}
    of_name: dict[str, list[int]] = {}
    for one in units:
        if one.renamed_from:
            moved = of_name.pop(one.renamed_from, [])
            names.update(dict.fromkeys(moved, one.name))
            of_name[one.name] = [*moved, one.number]
        elif one.start == 0:
            of_name[one.name] = [one.number]
        else:
            of_name.setdefault(one.name, []).append(one.number)
    return names


def natural_order(name: str) -> tuple[Any, ...]:
    """Order names as people do: ``log_9`` before ``log_10``."""
    parts = _NUMBERS.split(name)
    return tuple((int(one), one) if index % 2 else one for index, one in enumerate(parts))


def ends_digest(read: Callable[[int, int], bytes], size: int) -> str:
    """Digest of the first and the last bytes up to a size, which stay the same when rows are added.

    :param read: gives the bytes between two found_at
    """
    found = blake2b(read(0, min(size, _END_BYTES)), digest_size=8)
    found.update(read(max(0, size - _END_BYTES), size))
    return found.hexdigest()


def event_rows(units: Sequence[Unit]) -> list[dict[str, Any]]:
    """The rows of an entry that makes units."""
    return [{"event": "unit", **asdict(one)} for one in units]
