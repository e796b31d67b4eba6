"""Reads files: from the source log to units, from a committed position to the rows behind it."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from uuid import uuid4

from airflow_provider_snowpipe.spark.source import OnDataLoss, Partition, Source, SourceSecrets
from airflow_provider_snowpipe.spark.sources.files.given_load import GivenLoad
from airflow_provider_snowpipe.spark.sources.files.listing import (
    FileContents,
    binding_of,
    found_files,
    given_to_channels,
    log_store,
    paths_above,
)
from airflow_provider_snowpipe.spark.sources.files.log import (
    NO_ROWS,
    FilesOfUnits,
    Loader,
    SourceLog,
    Unit,
    event_rows,
)
from airflow_provider_snowpipe.spark.sources.files.log_plan import (
    Changed,
    Found,
    changed_error,
    last_files,
    plan,
)
from airflow_provider_snowpipe.spark.sources.files.log_store import LogStore
from airflow_provider_snowpipe.spark.sources.files.partition import FilePartition, begun_unit, unit_of
from airflow_provider_snowpipe.spark.sources.files.spec import FileGroup, SourceFile, values_of
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource as FileSourceSpec
from airflow_provider_snowpipe.spark.sources.files.storage import Storage, is_url, storage_of
from airflow_provider_snowpipe.streaming.checkpoint import Rebind
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    SnowpipeError,
    SourceChangedError,
    SourcePositionError,
    SourceUnavailableError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import Offset

log = logging.getLogger(__name__)
_LISTS_AT_ONCE = 16


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
        self._given: dict[int, tuple[SourceFile, bool, bool]] = {}
        """The files of units that COPY and pipes load, by number; whether they are gone, or as they were."""

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
        spec = self._spec
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
        given: dict[str, list[SourceFile]] = {}
        self._given = {}
        for one in units:
            name = files_of_units.name_of(one)
            # The same content may have another time now; it is read as it was listed.
            seen = one if name is None or name in changed else listed.get(name, one)
            file = self._file(one, name or one.name, seen)
            is_other = files_of_units.first[one.number] in files_of_units.replaced
            is_gone = not is_other and (name not in listed or name in self._ignored)
            if one.entry and one.number not in done:
                given.setdefault(one.partition, []).append(file)
                is_whole = isinstance(seen, Found) and seen.size == one.end
                is_same = is_whole and not (is_other or is_gone or name in changed)
                self._given[one.number] = file, is_gone, is_same
            elif not one.entry:
                groups.setdefault(one.partition, []).append(file)
                if is_other or is_gone:
                    (replaced if is_other else gone).setdefault(one.partition, set()).add(one.number)
        last, why_lost, restarted = self._log.last_unit, "", self._log.restarted_logs(spec.owner)
        if self._target and not self._log.number:
            why_lost = (
                f"The source log in {self._store().storage.root!r} has no entry; if it was lost, `airflow "
                f"snowpipe files rebuild {spec.path}` makes it again. "
            )
        self._planned = {name: files[-1].unit for name, files in groups.items() if files}
        for partition in given:
            groups.setdefault(partition, [])
        unread = {*given, *(one.found.partition for one in self._changed)}
        for partition, files in sorted(groups.items()):
            lost, other = frozenset(gone.get(partition, ())), frozenset(replaced.get(partition, ()))
            own = {file.unit: done[file.unit] for file in files if file.unit in done}
            is_over = all(file.unit in lost | other and file.unit in own for file in files)
            if files and is_over and partition not in unread:
                continue
            group = FileGroup(partition, tuple(files), lost, other, own, tuple(given.get(partition, ())))
            binding = binding_of(spec, self._log.log_id, partition, why_lost, restarted)
            yield FilePartition(partition, group, spec, self._on_data_loss, binding, last, self.run, self._at)

    def claim(
        self,
        partitions: Mapping[str, Partition],
        committed: Mapping[str, Offset | None],
        *,
        rebind: Rebind | None = None,
        logs: Mapping[str, int] | None = None,
        table: str = "",
    ) -> bool:
        """Write the new units and their channels into the log; refuse files that have changed.

        A file without a committed row may be corrected: it becomes a unit again.

        :raises SourceUnavailableError: if COPY or a pipe was given files and is not known to have loaded them
        """
        if self._writes and (given := self.given()):
            one, names = given[0], [one.name for one, _ in given[0].units]
            raise SourceUnavailableError(
                f"source path {self._spec.path!r}: {one.loader} was given {len(names):,} files at "
                f"{one.since:%Y-%m-%d %H:%M %Z}, such as {names[0]!r}, and is not known to have loaded them. "
                "Nothing was sent: run the SnowpipeLoadOperator task of this path, which ends that load first"
            )
        corrected = self._corrected(partitions, committed)
        if not self._writes:
            return True
        if logs is not None:
            self._require_recorded(logs)
            if lost := self.lost_logs(logs, "Airflow", rebind):
                return self.replace_logs(lost)
            if self.is_in_another(table, rebind):
                new = [one.name for channel, one in partitions.items() if committed[channel] is None]
                return self.replace_table(table, new if rebind == "restart" else None)
        if corrected:
            return self._correct(corrected)
        rows = given_to_channels(self._log, self._spec, partitions, committed, rebinds=rebind is not None)
        rows += event_rows(self._new)
        return not rows or self._append(rows)

    def _corrected(
        self, partitions: Mapping[str, Partition], committed: Mapping[str, Offset | None]
    ) -> set[str]:
        """The names of changed files without a committed row; others are refused."""
        if self._ignored:
            names = ", ".join(sorted(self._ignored))
            log.warning("source path %r: changed files are ignored: %s", self._spec.path, names)
        reached = {partition.name: begun_unit(committed[name]) for name, partition in partitions.items()}
        changed = [one for one in self._changed if one.found.name not in self._ignored]
        copied = {one.number for one in self._log.units if one.entry} if changed else set()
        firsts = [self._held[one.found.name] for one in changed]
        is_free = [
            first > reached.get(one.found.partition, 0) and first not in copied
            for one, first in zip(changed, firsts, strict=True)
        ]
        for channel, partition in partitions.items():
            texts = [
                f"{one.found.name!r} ({one.text})"
                for one, free in zip(changed, is_free, strict=True)
                if one.found.partition == partition.name and not (free and self._writes)
            ]
            if texts:
                raise changed_error(channel, texts)
        return {one.found.name for one, free in zip(changed, is_free, strict=True) if free}

    def _correct(self, names: Collection[str]) -> bool:
        """Make units of changed files; the source has to be listed again then."""
        self._new, _ = self._plan(lambda one: one.found.name in names)
        self._append(event_rows(self._new))
        return False

    def given(self) -> list[GivenLoad]:
        """The loads that COPY and pipes were given and are not known to have ended, as they were listed."""
        found = self._log.given(self._spec.owner)
        times, runs = (self._log.times("unit"), self._log.runs()) if found else ({}, {})
        loads = []
        for entry, units in found.items():
            own = [(one, *self._given[one.number]) for one in units if one.number in self._given]
            loads.append(
                GivenLoad(
                    self._spec.address,
                    self._log.log_id,
                    entry,
                    Loader.read(units[0].loader),
                    tuple((one, file) for one, file, _, _ in own),
                    dt.datetime.fromtimestamp(times[units[0].number] / 1e9, dt.UTC),
                    runs[units[0].number],
                    frozenset(one.number for one, _, is_gone, _ in own if is_gone),
                    frozenset(one.number for one, _, is_gone, is_same in own if not (is_gone or is_same)),
                )
            )
        return loads

    def rows(self, load: GivenLoad, file: SourceFile) -> Iterator[bytes | memoryview]:
        """Read the rows of one file of a load as the stream would send them, as blocks of NDJSON.

        Whoever reads them again reads the same bytes: run and time are those of the log's entry.
        """
        binding = binding_of(self._spec, load.log_id, "")
        group = FileGroup("", (file,))
        one = FilePartition("", group, self._spec, "fail", binding, run=load.run, listed_at=load.since)
        begin = one.resume(None)
        return (block.body for _, block in one.blocks(begin, BatchLimits())) if begin else iter(())

    def copied_rows(self) -> dict[str, int]:
        """The same, by the log."""
        return self._log.copied_rows(self._spec.owner)

    @property
    def last_growing(self) -> dict[str, str]:
        """The last file of each partition, which may grow; none where files do not grow."""
        partitions = {one.partition for one in self._new} if self._spec.form.growing else set()
        return last_files(self._found, partitions)

    def lost_logs(self, known: Mapping[str, int], whose: str, rebind: Rebind | None) -> list[str]:
        """The ids of other logs than this one by which COPY and pipes were given files of the source.

        :param known: the last entry of each that is known, by the ids
        :param whose: who knows them
        :raises SourceChangedError: if there is one, unless all files are to be loaded again; or if this one
            is an earlier state of itself
        """
        others, own = self.other_logs(known), self._log.log_id
        if not others or (rebind == "restart" and own not in others):
            return list(others)
        other = own if own in others else next(iter(others))
        what = f"an earlier state of it, of entry {self._log.number}," if other == own else "another log"
        root = self._store().storage.root
        raise SourceChangedError(
            f"{whose} has files of source path {self._spec.path!r} as given to COPY or a pipe up to entry "
            f"{others[other]} of the source log {other!r}, and {what} is in {root!r}: their rows would be "
            "loaded twice. Nothing was loaded. Bring the log back; or remove that folder, and make the log "
            f"again by `airflow snowpipe files rebuild {self._spec.path}`, or set rebind='restart' to load "
            "all files again"
        )

    def other_logs(self, known: Mapping[str, int]) -> dict[str, int]:
        """The last entries of known logs that this one is not, or is an earlier state of."""
        own, number, replaced = self._log.log_id, self._log.number, self._log.replaced_logs(self._spec.owner)
        if number < known.get(own, 0):
            number = self._store().read().number  # somebody may have written it meanwhile
        return {one: n for one, n in known.items() if (n > number if one == own else one not in replaced)}

    def replace_logs(self, lost: Iterable[str]) -> bool:
        """Write that this log is in the place of lost ones; False, since it has to be listed again then."""
        owner = self._spec.owner
        self._append([{"event": "restarts", "number": 0, "owner": owner, "name": one} for one in lost])
        return False

    def _require_recorded(self, known: Mapping[str, int]) -> None:
        """Refuse a log by which COPY or a pipe was given files, of which Airflow knows nothing."""
        own, units = self._log.log_id, self._log.units
        if own not in known and any(one.entry and one.owner == self._spec.owner for one in units):
            raise SourceChangedError(
                f"COPY or a pipe was given files of source path {self._spec.path!r} by source log {own!r}, "
                "and Airflow has no record of that: an earlier state of it would load rows twice. Nothing "
                "was loaded. Run SnowpipeLoadOperator for this path, which asks the load ledger"
            )

    def is_in_another(self, created: str, rebind: Rebind | None) -> bool:
        """True where COPY and pipes have loaded files into another table than there is now.

        :param created: when that was created, empty for not known
        :raises SourcePositionError: if it is so, without ``rebind``
        """
        before = self._log.table(self._spec.owner)
        if not before or created in ("", before):
            return False
        if rebind is None:
            raise SourcePositionError(
                f"the table was replaced, and COPY or a pipe has loaded files of {self._spec.address!r} into "
                "the one before. Nothing was loaded: set rebind='continue' if their rows are in this one, or "
                "rebind='restart' to load these files again"
            )
        return True

    def require_written(self) -> None:
        """Refuse a log in whose place another one was put after this one was read.

        :raises SourceChangedError: if there is one, or none
        """
        if self._store().read().log_id != self._log.log_id:
            path = self._spec.path
            raise SourceChangedError(
                f"the source log of path {path!r} was removed or replaced while this task ran. What it has "
                "loaded is in the table, and the log does not know it: bring it back; or remove its folder, "
                f"and make it again by `airflow snowpipe files rebuild {path}`"
            )

    def replace_table(self, created: str, lost: Collection[str] | None = None) -> bool:
        """Write that COPY and pipes load into another table from now on.

        :param created: when it was created
        :param lost: the partitions whose channels went with the table; what was loaded of them, and all that
            COPY and pipes have loaded, is given up then, and its content is new. None gives up nothing
        :return: False, since the files have to be listed again
        """

        def rows() -> list[dict[str, object]]:
            owner, done = self._spec.owner, self._log.committed()
            if self._log.table(owner) == created:
                return []
            units = [one for one in self._log.units if one.owner == owner]
            first = FilesOfUnits.of(units).first
            is_open = (one for one in units if one.number not in done and one.end > one.start)
            open_files = {first[one.number] for one in is_open}
            files = {first[one.number] for one in units if one.entry or one.partition in (lost or ())}
            files = set() if lost is None else files - open_files
            numbers = (one.number for one in units if first[one.number] in files)
            return [
                *({"event": "given up", "number": number, "after_line": 0} for number in numbers),
                {"event": "table", "number": 0, "owner": owner, "name": created},
            ]

        self._record(rows)
        return False

    def give(
        self,
        partitions: Mapping[str, Partition],
        committed: Mapping[str, Offset | None],
        loader: Loader,
        table: str,
    ) -> list[GivenLoad] | None:
        """Give all new units to COPY or a pipe, in one entry of the log.

        The last file of a partition whose files grow is left to the stream.

        :param table: when the table was created, empty for not known
        :return: the load, none without new units; None where somebody else has written the log: list again
        :raises SourcePositionError: if a file has changed, and its rows are loaded
        """
        if self._log.given(self._spec.owner):
            return None
        if corrected := self._corrected(partitions, committed):
            self._correct(corrected)
            return None
        entry, units = self._log.number + 1, list[Unit]()
        for one in self._new:
            unit = replace(one, number=self._log.last_unit + 1 + len(units))
            if one.end == one.start:
                units.append(unit)
            elif one.file != self.last_growing.get(one.partition):
                units.append(replace(unit, loader=loader.written(), entry=entry))
        given = [one for one in units if one.entry]
        rows = event_rows(units)
        if table and not self._log.table(self._spec.owner):
            rows.append({"event": "table", "number": 0, "owner": self._spec.owner, "name": table})
        if given and not self._append(rows):
            return None
        listed = {one.name: one for one in self._found}
        files = [self._file(one, one.name, listed[one.name]) for one in given]
        self._given = {one.number: (file, False, True) for one, file in zip(given, files, strict=True)}
        return self.given()

    def end(self, loaded: Mapping[int, int], given_up: Collection[int]) -> None:
        """Write into the log what has become of units that COPY or a pipe was given, and clean up.

        :param loaded: the numbers of those whose rows are in the table, and how many these are
        :param given_up: the numbers of those that are not, and never will be; their files are planned again
        """

        def rows() -> list[dict[str, object]]:
            left = {one.number for one in self._log.units} - self._log.committed().keys()
            what = [("committed", loaded), ("given up", dict.fromkeys(given_up))]
            return [
                {"event": event, "number": number, "after_line": 0, "rows": rows_of[number]}
                for event, rows_of in what
                for number in sorted(left.intersection(rows_of))
            ]

        self._record(rows)
        self._clean_up({})

    def _file(self, one: Unit, name: str, seen: Unit | Found) -> SourceFile:
        """The file of a unit, under the name that it has now."""
        return SourceFile(
            one.file, self._storage.path(name), one.end, values_of(self._spec, one.name), seen.modified_ns,
            seen.version, self._storage, one.number, one.start, one.after_line, one.ends,
        )  # fmt: skip

    def _append(self, rows: Sequence[dict[str, object]]) -> bool:
        added = self._store().append(self._log, rows, self.run)
        if added is None:
            return False
        self._log, self._new = added, []
        return True

    def mark_complete(
        self, ends: Mapping[str, Offset | None], pieces: Mapping[str, Sequence[tuple[Offset, int]]]
    ) -> None:
        """Write into the log which units are committed, for whoever cleans up, or finds their files gone.

        They are all that were planned, also those without a row behind the last position.
        """
        lasts = {name: self._planned.get(name, 0) for name in ends}
        sent: dict[int, tuple[int, int]] = {}
        for position, count in (one for found in pieces.values() for one in found):
            if (first := unit_of(position)) is not None:
                line, rows = sent.get(first.unit, (first.line, 0))
                sent[first.unit] = line, rows + count
        self._record(lambda: self._newly_committed(ends, lasts, sent))
        self._clean_up(lasts)

    def _clean_up(self, lasts: Mapping[str, int]) -> None:
        if self._writes and self._spec.after_commit != "keep":
            cleaned = self._clean(lasts)
            self._record(lambda: cleaned)

    def _record(self, rows: Callable[[], list[dict[str, object]]]) -> None:
        """Add events to the log, behind whatever others add at the same time."""
        while self._writes:
            new = rows()
            if not new or self._append(new):
                return
            if self._log.number:
                self.require_written()
            self._log = self._store().read()

    def _clean(self, lasts: Mapping[str, int]) -> list[dict[str, object]]:
        """Archive or delete the files that are committed as a whole; what has happened to which unit.

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
            if not pieces[-1].entry and pieces[-1].number > lasts.get(found.partition, 0):
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
        self, ends: Mapping[str, Offset | None], lasts: Mapping[str, int], sent: Mapping[int, tuple[int, int]]
    ) -> list[dict[str, object]]:
        marked = self._log.committed()
        rows: list[dict[str, object]] = []
        for one in self._log.units:
            end = unit_of(ends.get(one.partition))
            if one.owner != self._spec.owner or one.entry or one.number in marked:
                continue
            if one.number <= lasts.get(one.partition, 0):
                line = NO_ROWS if end is None or one.number > end.unit else 0
                line = end.line if end is not None and one.number == end.unit else line
                first, count = sent.get(one.number, (0, None))
                if line == NO_ROWS or first != one.after_line + 1:  # an earlier run has sent its begin
                    count = 0 if line == NO_ROWS else None
                rows.append({"event": "committed", "number": one.number, "after_line": line, "rows": count})
        return rows
