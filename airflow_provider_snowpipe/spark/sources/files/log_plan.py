"""What is new in a listing beyond the source log: a pure function of the two."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from airflow_provider_snowpipe.spark.sources.files.log import FilesOfUnits, SourceLog, Unit
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError

_END_BYTES = 4096
_MOST_CHANGED = 5
_NUMBERS = re.compile(r"([0-9]+)")


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


def natural_order(name: str) -> tuple[Any, ...]:
    """Order names as people do: ``log_9`` before ``log_10``."""
    parts = _NUMBERS.split(name)
    return tuple((int(one), one) if index % 2 else one for index, one in enumerate(parts))


def ends_digest(read: Callable[[int, int], bytes], size: int) -> str:
    """Digest of the first and the last bytes up to a size, which stay the same when rows are added."""
    found = blake2b(read(0, min(size, _END_BYTES)), digest_size=8)
    found.update(read(max(0, size - _END_BYTES), size))
    return found.hexdigest()
