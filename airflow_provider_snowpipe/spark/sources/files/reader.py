"""Reads files: from the source log to units, from a committed position to the rows behind it."""

from __future__ import annotations

import datetime as dt
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar
from uuid import uuid4

from airflow_provider_snowpipe.spark.source import (
    Behind,
    OnDataLoss,
    Partition,
    Source,
    SourcePartition,
    SourceSecrets,
)
from airflow_provider_snowpipe.spark.sources.files.formats import RowBlock, may_grow, reader_of
from airflow_provider_snowpipe.spark.sources.files.listing import (
    FileContents,
    binding_of,
    found_files,
    given_to_channels,
    log_store,
    paths_above,
    refuse_replaced,
)
from airflow_provider_snowpipe.spark.sources.files.log import (
    NO_ROWS,
    Changed,
    FilesOfUnits,
    Found,
    SourceLog,
    Unit,
    changed_error,
    event_rows,
    plan,
)
from airflow_provider_snowpipe.spark.sources.files.log_store import LogStore
from airflow_provider_snowpipe.spark.sources.files.remote_storage import read_ahead
from airflow_provider_snowpipe.spark.sources.files.spec import (
    ROW_NUMBER,
    ByDirectory,
    ColumnFormat,
    FileFormat,
    FileGroup,
    SourceFile,
    values_of,
)
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource as FileSourceSpec
from airflow_provider_snowpipe.spark.sources.files.storage import Storage, is_url, storage_of
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.checkpoint import Binding
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    SnowpipeError,
    SourceChangedError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.lag import FileBacklog, FileBehind
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import Offset, UnitOffset

log = logging.getLogger(__name__)

# -- Where a partition goes on: its committed offset token, and the units that the log has ---------------


@dataclass(frozen=True, slots=True)
class Resume:
    """The position in a group of files just after what is committed.

    :param file_index: number of the first unit to read, from 0; the number of units if there is none left
    :param after_line: last row of its file that is skipped, 0 for none
    :param offset: where its reader goes on, a ``FilePosition`` of the format
    :param done: True if that unit holds nothing behind it
    """

    file_index: int
    after_line: int
    offset: int
    done: bool = False


def resume_after(group: FileGroup, form: FileFormat, committed: UnitOffset | None) -> Resume:
    """Find the position just after the committed position, reading the committed unit up to there."""
    if committed is None:
        return _begin_of(group, 0)
    index = bisect_left(group.files, committed.unit, key=_number)
    if index == len(group.files) or group.files[index].unit != committed.unit:
        return _begin_of(group, index)
    file = group.files[index]
    is_there = committed.unit not in group.gone | group.replaced
    if group.is_complete(committed) or (not is_there and committed.line > file.after_line):
        return Resume(index, committed.line, file.size, done=True)
    if committed.line <= file.after_line:
        return _begin_of(group, index)
    resume_at = reader_of(form).position_after(file, committed.line)
    return Resume(index, committed.line, resume_at.offset, resume_at.done)


def _begin_of(group: FileGroup, index: int) -> Resume:
    if index == len(group.files):
        return Resume(index, 0, 0)
    return Resume(index, group.files[index].after_line, group.files[index].start)


def _number(file: SourceFile) -> int:
    return file.unit


def files_to_read(group: FileGroup, resume: Resume) -> Iterator[tuple[SourceFile, Resume]]:
    """The units that may hold rows after a position, each with where to begin in it."""
    for index in range(resume.file_index, len(group.files)):
        resume_at = resume if index == resume.file_index else _begin_of(group, index)
        file = group.files[index]
        is_there = file.unit not in group.gone and file.unit not in group.replaced
        if file.size > file.start and not resume_at.done and is_there:
            yield file, resume_at


# -- The source and its partitions -----------------------------------------------------------------------

_LISTS_AT_ONCE = 16
_BYTES_A_SECOND = 256 << 20
"""Searching for a row takes about a second in so large a file, and in a compressed one of an eighth of it."""


class FileSource(Source):
    """Partitions of files, by the source log of one target."""

    def __init__(self, spec: FileSourceSpec, on_data_loss: OnDataLoss) -> None:
        self._spec = spec
        self._on_data_loss = on_data_loss
        self._secrets = SourceSecrets()
        self._target, self._writes = "", False
        self._log = SourceLog.empty()
        self._found: list[Found] = []
        self._new: list[Unit] = []
        self._changed: list[Changed] = []
        self._held: dict[str, int] = {}
        """The first unit of each file, by name."""
        self._ignored: set[str] = set()
        self._planned: dict[str, int] = {}
        """The last unit of each partition that this run reads."""

    def take_secrets(self, secrets: SourceSecrets) -> None:
        """Take the options of the object store's client."""
        if secrets and not is_url(self._spec.path):
            Source.take_secrets(self, secrets)
        self._secrets = secrets

    def for_target(self, target: str, *, writes: bool = True, run: str = "") -> Source:
        """Take the pipe: each has a log of its own."""
        self._target, self._writes = target, writes
        return super().for_target(target, writes=writes, run=run)

    @cached_property
    def _storage(self) -> Storage:
        return storage_of(self._spec.path, self._secrets)

    def _store(self, path: str | None = None) -> LogStore:
        return log_store(self._spec, self._target, self._secrets, path)

    def partitions(self) -> tuple[FilePartition, ...]:
        """List the files, and plan what is new behind the units of the log; nothing is written."""
        if self._target:
            self._read_lists(self._store())
        else:
            self._found, _ = found_files(self._spec, self._storage)
        self._at = dt.datetime.now(dt.UTC)
        if not self._log.log_id:
            self._log = replace(self._log, log_id=uuid4().hex[:16])
        reloads = self._spec.on_changed_files == "reload"
        self._new, self._changed = self._plan(lambda _: reloads)
        return tuple(self._partitions())

    def _plan(self, reload: Callable[[Changed], bool]) -> tuple[list[Unit], list[Changed]]:
        contents = FileContents(self._spec, self._storage)
        return plan(self._found, self._log, self._spec.owner, contents, reload)

    @property
    def log(self) -> SourceLog:
        """The log, as it was read or written last."""
        return self._log

    @property
    def changed_units(self) -> frozenset[int]:
        """The last units of the files that have other content now, and no new unit yet."""
        return frozenset(one.before.number for one in self._changed)

    def _read_lists(self, store: LogStore) -> None:
        """List the files, read the log, and look for other logs, at once: a store takes its time for each.

        The log may have been moved with its folder, and may not have been copied with it.
        """
        path = store.source
        with ThreadPoolExecutor(_LISTS_AT_ONCE if is_url(path) else 1) as lists:
            reading = lists.submit(store.read)
            above = lists.map(self._other_log, (path, *paths_above(path)))
            self._found, below = found_files(self._spec, self._storage)
            others = [*above, *lists.map(self._other_log, (f"{path}/{one}" for one in below))]
        self._log = found = reading.result()
        for other in filter(None, others):
            own, root = {f"{path}/{one.name}" for one in self._found}, other.source.rstrip("/")
            if not own.isdisjoint(f"{root}/{one.name}" for one in other.read().live_units):
                raise SourceChangedError(
                    f"files of source path {path!r} are in the source log {other.storage.root!r} of this "
                    f"pipe, and would be loaded again by the log in {store.storage.root!r}: load them by the "
                    "path and the log_path of before. Nothing was sent"
                )
        if found.source not in ("", path) and self._spec.log_path is None:
            origin = self._store(found.source)
            if not is_url(found.source) and origin.read().log_id == found.log_id:
                raise SourceChangedError(
                    f"source path {path!r} is a copy of {found.source!r} with its source log: nobody "
                    f"knows which of the two the channels have loaded. Remove {origin.storage.root!r} where "
                    f"that folder is not loaded any more, or {store.storage.root!r} for a source of its own. "
                    "Nothing was sent"
                )

    def _other_log(self, root: str) -> LogStore | None:
        """Another log of the same pipe in a folder: in the path, above it or below it."""
        other = log_store(replace(self._spec, log_path=None), self._target, self._secrets, root)
        if other.storage.root == self._store().storage.root:
            return None
        try:
            return other if other.storage.names() else None
        except ConfigurationError as error:
            log.info("whether %r has a source log is not known: %s", other.source, error)
            return None

    def _partitions(self) -> Iterator[FilePartition]:
        spec, storage = self._spec, self._storage
        listed = {one.name: one for one in self._found}
        changed = {one.found.name for one in self._changed}
        units = [one for one in self._log.units if one.owner == spec.owner] + self._new
        files_of_units = FilesOfUnits.of(units)
        self._held = files_of_units.held
        done = self._log.committed()
        if spec.on_changed_files == "ignore":
            # What is not committed of a changed file cannot be left out: nobody has its rows any more.
            partly = {files_of_units.name_of(one) for one in units if one.number not in done}
            self._ignored = {one.found.name for one in self._changed} - partly
        groups: dict[str, list[SourceFile]] = {one.partition: [] for one in self._found}
        gone: dict[str, set[int]] = {}
        replaced: dict[str, set[int]] = {}
        for one in units:
            name = files_of_units.name_of(one)
            if files_of_units.first[one.number] in files_of_units.replaced:
                replaced.setdefault(one.partition, set()).add(one.number)
            elif name not in listed or name in self._ignored:
                gone.setdefault(one.partition, set()).add(one.number)
            # The same content may have another time now; it is read as it was listed.
            seen = one if name is None or name in changed else listed.get(name, one)
            path = storage.path(name or one.name)
            file = SourceFile(
                one.file, path, one.end, values_of(spec, one.name), seen.modified_ns, seen.version, storage,
                one.number, one.start, one.after_line, one.ends,
            )  # fmt: skip
            groups.setdefault(one.partition, []).append(file)
        last, why_lost = self._log.last_unit, ""
        if self._target and not self._log.number:
            why_lost = (
                f"The source log in {self._store().storage.root!r} has no entry; if it was lost, `airflow "
                f"snowpipe files rebuild {spec.path}` makes it again. "
            )
        self._planned = {name: files[-1].unit for name, files in groups.items() if files}
        for partition, files in sorted(groups.items()):
            lost, other = frozenset(gone.get(partition, ())), frozenset(replaced.get(partition, ()))
            own = {file.unit: done[file.unit] for file in files if file.unit in done}
            if files and all(file.unit in lost | other and file.unit in own for file in files):
                continue
            group = FileGroup(partition, tuple(files), lost, other, own)
            binding = binding_of(spec, self._log.log_id, partition, why_lost)
            yield FilePartition(partition, group, spec, self._on_data_loss, binding, last, self.run, self._at)

    def claim(
        self,
        partitions: Mapping[str, Partition],
        committed: Mapping[str, Offset | None],
        *,
        rebinds: bool = False,
    ) -> bool:
        """Write the new units and their channels into the log; refuse files that have changed.

        A file of which no row is committed may be corrected: it becomes a unit again.
        """
        if self._ignored:
            names = ", ".join(sorted(self._ignored))
            log.warning("source path %r: changed files are ignored: %s", self._spec.path, names)
        reached = {partition.name: _begun_unit(committed[name]) for name, partition in partitions.items()}
        changed = [one for one in self._changed if one.found.name not in self._ignored]
        is_free = [self._held[one.found.name] > reached.get(one.found.partition, 0) for one in changed]
        for channel, partition in partitions.items():
            texts = [
                f"{one.found.name!r} ({one.text})"
                for one, free in zip(changed, is_free, strict=True)
                if one.found.partition == partition.name and not (free and self._writes)
            ]
            if texts:
                raise changed_error(channel, texts)
        if not self._writes:
            return True
        given = given_to_channels(self._log, self._spec, partitions, committed, rebinds=rebinds)
        corrected = {one.found.name for one, free in zip(changed, is_free, strict=True) if free}
        if corrected:
            self._new, _ = self._plan(lambda one: one.found.name in corrected)
            self._append(event_rows(self._new))
            return False
        rows = [*given, *event_rows(self._new)]
        return not rows or self._append(rows)

    def _append(self, rows: Sequence[dict[str, object]]) -> bool:
        added = self._store().append(self._log, rows, self.run)
        if added is None:
            return False
        self._log, self._new = added, []
        return True

    def mark_complete(self, ends: Mapping[str, Offset | None], *, is_all: bool = True) -> None:
        """Write into the log which units are committed, for whoever cleans up, or finds their files gone.

        :param is_all: True where all units of these partitions that were planned are committed, also those
            without a row behind the last position; False where only those up to it are
        """
        planned = {name: self._planned.get(name, 0) for name in ends}
        reached = {name: min(_committed_unit(ends[name]), unit) for name, unit in planned.items()}
        lasts = planned if is_all else reached
        self._record(lambda: self._newly_committed(ends, lasts))
        if self._writes and self._spec.after_commit != "keep":
            cleaned = self._clean(lasts)
            self._record(lambda: cleaned)

    def _record(self, rows: Callable[[], list[dict[str, object]]]) -> None:
        """Add events to the log, behind whatever others add at the same time."""
        while self._writes:
            new = rows()
            if not new or self._append(new):
                return
            self._log = self._store().read()

    def _clean(self, lasts: Mapping[str, int]) -> list[dict[str, object]]:
        """Archive or delete the files of which every unit is committed; what has happened to which unit.

        A file that cannot be moved or deleted is tried again by the next run.

        :param lasts: the last unit of each partition that is committed now, as this run has seen it
        """
        units = [one for one in self._log.units if one.owner == self._spec.owner]
        files, at = FilesOfUnits.of(units), self._log.times("committed")
        latest = time.time_ns() - int(self._spec.retention * 1e9)
        of_file: dict[str, list[Unit]] = {}
        for one in units:
            if (name := files.name_of(one)) is not None:
                of_file.setdefault(name, []).append(one)
        rows: list[dict[str, object]] = []
        changed = {one.found.name for one in self._changed}
        for found in self._found:
            pieces = of_file.get(found.name, [])
            if not pieces or found.name in changed or found.size != pieces[-1].end:
                continue
            if pieces[-1].number > lasts.get(found.partition, 0):
                continue
            if all(at.get(one.number, latest + 1) <= latest for one in pieces) and self._dispose(
                found, pieces
            ):
                event = "deleted" if self._spec.after_commit == "delete" else "archived"
                rows += [{"event": event, "number": one.number} for one in pieces]
        return rows

    def _dispose(self, found: Found, pieces: Sequence[Unit]) -> bool:
        """Archive or delete one file, unless it is another one than was listed."""
        path = self._storage.path(found.name)
        try:
            now = self._storage.stat(path)
            if (now.size, now.modified_ns, now.version) != (found.size, found.modified_ns, found.version):
                return False
            if self._spec.archive_path is None:
                self._storage.delete(found.name)
            else:
                archive = self._spec.archive_path.rstrip("/")
                target = f"{archive}/{found.name}"
                try:
                    self._storage.move(path, target)
                except FileExistsError:
                    self._storage.move(path, f"{target}.{pieces[-1].number}")
        except (OSError, SnowpipeError) as error:
            log.warning("committed file %r stays where it is: %s", path, error)
            return False
        return True

    def _newly_committed(
        self, ends: Mapping[str, Offset | None], lasts: Mapping[str, int]
    ) -> list[dict[str, object]]:
        marked = self._log.committed()
        rows: list[dict[str, object]] = []
        for one in self._log.units:
            end = _unit_of(ends.get(one.partition))
            if one.owner != self._spec.owner or one.number in marked:
                continue
            if one.number <= lasts.get(one.partition, 0):
                line = NO_ROWS if end is None or one.number > end.unit else 0
                line = end.line if end is not None and one.number == end.unit else line
                rows.append({"event": "committed", "number": one.number, "after_line": line})
        return rows


_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class FilePartition(SourcePartition[Resume]):
    """One group of files."""

    name: str
    group: FileGroup
    spec: FileSourceSpec
    on_data_loss: OnDataLoss
    binding: Binding
    last_unit: int = 0
    run: str = ""
    listed_at: dt.datetime = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    offset_class: ClassVar[type[Offset]] = UnitOffset

    def is_whole(self) -> bool:
        """False where files are gone, archived or deleted ones among them."""
        return not (self.group.gone or self.group.replaced)

    def check(self, committed: Offset | None) -> None:
        """Make sure that the log has the committed unit, and that every file behind it is there."""
        position = _unit_of(committed)
        if position is not None:
            self._check_unit(position)
        lost = [
            file.name
            for file in self.group.files
            if file.unit in self.group.gone
            and self.group.committed.get(file.unit) != NO_ROWS
            and (
                position is None
                or file.unit > position.unit
                or (file.unit == position.unit and not self.group.is_complete(position))
            )
        ]
        if lost and self.on_data_loss != "skip":
            more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
            raise SourcePositionError(
                f"{str(committed or 'nothing')!r} is committed, and files of partition {self.name!r} that "
                f"were taken and are not all committed are gone: {', '.join(lost[:_MOST_NAMED])}{more}. "
                "Nothing was sent. Bring them back, or set on_data_loss='skip' to go on without their rows"
            )

    def _check_unit(self, position: UnitOffset) -> None:
        numbers = {file.unit: file.name for file in self.group.files}
        if position.unit > self.last_unit and position.unit not in numbers:
            raise SourcePositionError(
                f"{str(position)!r} is committed, and the source log ends at unit {self.last_unit}: an "
                "earlier state of the log was brought back. Bring back the last one. Nothing was sent"
            )
        self._refuse_replaced(position)
        if position.unit > self.last_unit or numbers.get(position.unit) != position.file:
            there = numbers.get(position.unit, "none of this partition")
            raise SourcePositionError(
                f"{str(position)!r} is committed, and unit {position.unit} of the source log is {there!r}: "
                "the log is another one, or an earlier state of it was brought back. Nothing was sent"
            )

    def _refuse_replaced(self, position: UnitOffset) -> None:
        """Refuse a position in the middle of content that was replaced by other content."""
        if position.unit not in self.group.replaced or self.group.is_complete(position):
            return
        file = self.group.files[bisect_left(self.group.files, position.unit, key=_number)]
        if position.line > file.after_line and self.on_data_loss != "skip":
            raise SourcePositionError(
                f"{str(position)!r} is committed, and other content has replaced that file before all of it "
                "was known as committed: its last rows may be missing, and its first ones be loaded twice. "
                "Nothing was sent. Compare table and file; on_data_loss='skip' goes on, or a reset token"
            )

    def resume(self, committed: Offset | None) -> Resume | None:
        """Find the position just after a row, reading the committed file up to there."""
        position = _unit_of(committed)
        if position is not None:
            self._refuse_replaced(position)
        resume = resume_after(self.group, self.spec.form, position)
        return None if next(files_to_read(self.group, resume), None) is None else resume

    def is_done(self, committed: Offset | None) -> bool:
        """Search for a file behind the committed one, and then for a row in that one unless it is large."""
        unit = _committed_unit(committed)
        rest = [
            file
            for file in self.group.files
            if file.unit >= unit and file.unit not in self.group.gone | self.group.replaced
        ]
        if any(file.size > file.start for file in rest if file.unit > unit):
            return False
        if not self._is_within(_BYTES_A_SECOND, rest):
            return False
        resume_at = self.resume(committed)
        return resume_at is None or next(self.blocks(resume_at, BatchLimits()), None) is None

    def is_quick(self, committed: Offset | None) -> bool:
        """True where the committed file is small: it is read up to the row."""
        unit = _committed_unit(committed)
        return self._is_within(_BYTES_A_SECOND // 32, [one for one in self.group.files if one.unit == unit])

    def _is_within(self, most: int, files: Sequence[SourceFile]) -> bool:
        """True if none of the files is larger, or than an eighth of it where it is compressed."""
        form = self.spec.form
        is_plain = isinstance(form, ColumnFormat)
        return all(
            file.size - file.start <= (most if is_plain or may_grow(file, form) else most // 8)
            for file in files
        )

    def read(self, resume_at: Resume, limits: BatchLimits) -> Iterator[Part]:
        """Read the rows as blocks of NDJSON, unit after unit."""
        for file, block in self.blocks(resume_at, limits):
            yield Part(
                block.body,
                UnitOffset(file.unit, file.name, block.first_line),
                UnitOffset(file.unit, file.name, block.last_line),
                block.rows,
                types=block.types,
            )

    def blocks(self, resume_at: Resume, limits: BatchLimits) -> Iterator[tuple[SourceFile, RowBlock]]:
        """Read the rows from a position to the partition's end.

        :return: blocks, each with the file that it is from
        """
        # It brings PyArrow, which a run without new rows need not wait for, as the reader does.
        from airflow_provider_snowpipe.spark.sources.files.metadata import constants_of, with_metadata

        reader, columns = reader_of(self.spec.form), self.spec.metadata or {}
        numbered = next((name for name, value in columns.items() if value == ROW_NUMBER), None)
        files, has_footer = files_to_read(self.group, resume_at), isinstance(self.spec.form, ColumnFormat)
        for file, start in read_ahead(files, has_footer=has_footer):
            constants = constants_of(file, columns, self.run, self.listed_at)
            for block in reader.blocks(
                file, after_line=start.after_line, offset=start.offset, keep_tail=True, limits=limits
            ):
                body = with_metadata(block, constants, numbered) if columns else block.body
                yield file, replace(block, body=body)
            refuse_replaced(file)

    def behind(self, committed: Offset | None) -> Behind:
        """Count the files that are not committed; the one that the position is in counts with its size."""
        return Behind(FileBacklog.of(self.files_behind(committed)).bytes)

    def recorded(self) -> UnitOffset | None:
        """Return the last row of the last unit that the log has as committed."""
        lines = ((one, self.group.committed.get(one.unit, 0)) for one in self.group.files)
        return max((UnitOffset(one.unit, one.name, line) for one, line in lines if line > 0), default=None)

    def row_keys(self) -> Sequence[tuple[str, ...]]:
        """The names of its files, those of before among them; of replaced ones nobody knows which rows."""
        replaced = {one.name_below for one in self.group.files if one.unit in self.group.replaced}
        below = f"{self.name}/" if isinstance(self.spec.grouping, ByDirectory) else ""
        names = {name for one in self.group.files for name in (one.name_below, f"{below}{one.name}")}
        return [(name,) for name in sorted(names - replaced)]

    def files_behind(self, committed: Offset | None) -> Sequence[FileBehind]:
        """List the same units, the one that the position is in among them until it is known as complete."""
        position, unit = _unit_of(committed), _committed_unit(committed)
        first = unit + 1 if position is not None and self.group.is_complete(position) else unit
        return [
            FileBehind(file.unit, file.size - file.start, file.modified_ns // 1_000_000)
            for file in self.group.files
            if file.unit >= first and file.unit not in self.group.gone | self.group.replaced
        ]


def _unit_of(position: Offset | None) -> UnitOffset | None:
    if position is None or isinstance(position, UnitOffset):
        return position
    raise SourcePositionError(f"{position!r} is no position of a unit, which a file source needs")


def _begun_unit(committed: Offset | None) -> int:
    """The last unit of which a row is committed: line 0 is the position before the first one."""
    position = _unit_of(committed)
    return 0 if position is None else position.unit - (position.line == 0)


def _committed_unit(committed: Offset | None) -> int:
    position = _unit_of(committed)
    return 0 if position is None else position.unit
