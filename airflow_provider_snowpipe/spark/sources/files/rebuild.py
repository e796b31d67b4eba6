"""Makes a lost source log again: finds the committed files by the listing and by what channels have counted.

A checkpoint shows a file, a line, and how many rows of its partition were loaded up to there. The lost log
had the units in the order in which they came, and those that came together in the order of their names. So
the committed files are those that sort before the checkpoint's file and came until one time, and those that
sort behind it and came until an earlier time. The choice that has as many rows as were loaded is taken. Where
none has, or more than one, nothing is known. A table that shows the file and the number of each row decides
without that.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.files.formats import FileReader, reader_of
from airflow_provider_snowpipe.spark.sources.files.listing import (
    FileContents,
    binding_of,
    found_files,
    log_store,
)
from airflow_provider_snowpipe.spark.sources.files.log import SourceLog, Unit, event_table
from airflow_provider_snowpipe.spark.sources.files.log_plan import Found, natural_order, plan
from airflow_provider_snowpipe.spark.sources.files.spec import ByDirectory, FileSource, SourceFile, values_of
from airflow_provider_snowpipe.spark.sources.files.storage import LocalStorage, Storage, storage_of
from airflow_provider_snowpipe.streaming.checkpoint import Binding
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import UnitOffset

RUN = "rebuild"
_LIMITS = BatchLimits()
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class LastCommit:
    """What is known of the channel of one partition.

    :param position: of its last committed row, as the lost log numbered it
    :param rows: rows of the partition up to there, those that were put aside among them
    :param seen_ns: when a run has seen that, nanoseconds since 1970; None where it was later
    :param unchanged: True where no file has changed since the last commit, whenever that was, but by growing
    """

    channel: str
    position: UnitOffset
    rows: int
    seen_ns: int | None = None
    unchanged: bool = False


@dataclass(frozen=True, slots=True)
class CopiedUnits:
    """What COPY and pipes have loaded by lost logs.

    :param units: in their order
    :param logs: the ids of these logs
    :param table: when the table was created, empty for not known
    """

    units: Sequence[Unit]
    logs: Collection[str]
    table: str


@dataclass(frozen=True, slots=True)
class RebuiltLog:
    """A log that was made again.

    :param positions: for each partition the position that its channel is to have, and what it means
    """

    root: str
    units: Sequence[Unit]
    positions: Mapping[str, tuple[UnitOffset, Binding]]


def rebuild(
    spec: FileSource,
    target: str,
    secrets: SourceSecrets,
    commits: Mapping[str, LastCommit],
    in_table: Mapping[str, int] | None,
    copied: CopiedUnits,
) -> RebuiltLog:
    """Write a new log with all that is committed; the channels then have to get their new positions.

    A log that this has written before, and nobody else since, is taken as it is.

    :param commits: by partition, those that have committed a row
    :param copied: what COPY and pipes have loaded
    :param in_table: the last row that the table has of each file, by name; None where it does not show that
    :raises SourcePositionError: if it is not known which files are committed; nothing is written
    """
    store, storage = log_store(spec, target, secrets), storage_of(spec.address, secrets)
    log = store.read()
    if not log.number:
        named = [("replaces", one) for one in copied.logs] + [("table", copied.table)] * bool(copied.table)
        rows: list[dict[str, Any]] = [
            {"event": event, "number": 0, "owner": "", "name": name} for event, name in named
        ]
        for number, unit in enumerate(copied.units, 1):
            rows.append({"event": "unit", **asdict(replace(unit, number=number, entry=1, renamed_from=0))})
            rows.append({"event": "committed", "number": number, "after_line": 0})
        rows = _entry(spec, storage, commits, in_table, rows)
        log = store.append(log, rows, RUN) or store.read()
    if log.number != 1 or set(log.events["run"].to_pylist()) != {RUN}:
        raise ConfigurationError(
            f"the log of source path {spec.path!r} is in {store.storage.root!r}, and has {log.last_unit} "
            "units: it is not lost. Move it away first if it is another source's, or an earlier state of it"
        )
    units = [one for one in log.units if one.owner == spec.owner]
    last = {one.partition: one for one in units}
    positions = {}
    for partition, commit in commits.items():
        unit, line = last[partition], commit.position.line
        if unit.file != commit.position.file:
            why = f"the new log in {store.storage.root!r} ends with {unit.file!r}; remove it"
            raise _unknown(commit, why)
        position = UnitOffset(unit.number, unit.file, line)
        positions[partition] = position, binding_of(spec, log.log_id, partition)
    return RebuiltLog(store.storage.root, units, positions)


def _entry(
    spec: FileSource,
    storage: Storage,
    commits: Mapping[str, LastCommit],
    in_table: Mapping[str, int] | None,
    rows: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """The events of the new log: the units, the checkpoint's file last in each partition; and commits.

    :param rows: the events of what COPY and pipes have loaded
    """
    found = [one for one in found_files(spec, storage)[0] if one.partition in commits]
    reader = reader_of(spec.form)
    known = replace(SourceLog.empty(), events=event_table(rows))
    planned, _ = plan(found, known, spec.owner, FileContents(spec, storage))
    units = [one for one in planned if not one.renamed_from]
    if in_table is not None:  # no channel has sent what COPY and pipes have loaded
        others = {one.name for one in known.units} - {one.name for one in units}
        in_table = {name: last for name, last in in_table.items() if name not in others}
    counts = _Counts(spec, storage, reader)
    for partition, commit in sorted(commits.items()):
        own = [one for one in units if one.partition == partition]
        if piece := next((one.name for one in own if one.start), None):
            raise _unknown(commit, f"{piece!r} has grown since COPY or a pipe has loaded it")
        came = {one.name: _came_ns(one, storage) for one in found if one.partition == partition}
        committed, end = _committed(own, came, commit, counts, in_table)
        for unit in (*committed, end or _gone(spec, partition, commit)):
            number = 1 + sum(row["event"] == "unit" for row in rows)
            rows.append({"event": "unit", **asdict(replace(unit, number=number))})
            is_end = unit.file == commit.position.file
            if is_end and end is not None and counts.behind(end, commit.position.line):
                continue
            line = commit.position.line if is_end else 0
            rows.append({"event": "committed", "number": number, "after_line": line})
            if end is None and is_end and spec.after_commit != "keep":
                rows.append({"event": "deleted", "number": number})
    return rows


def _committed(
    units: Sequence[Unit],
    came: Mapping[str, int],
    commit: LastCommit,
    counts: _Counts,
    in_table: Mapping[str, int] | None,
) -> tuple[Sequence[Unit], Unit | None]:
    """The committed units of a partition, and that of the checkpoint's file, None where that is gone."""
    if commit.seen_ns is None and not commit.unchanged:
        why = "no run has recorded that commit, and nothing shows whether files have changed since"
        raise _unknown(commit, f"{why}; --unchanged says that none was changed, replaced or renamed")
    latest = commit.seen_ns or max(came.values(), default=0)
    end = next((one for one in units if one.file == commit.position.file), None)
    early = [one for one in units if one != end and came[one.name] <= latest]
    late = [one.name for one in units if came[one.name] > latest]
    may_have_grown = counts.spec.form.growing
    if end is not None and end.name in late and not (may_have_grown and commit.unchanged):
        remedy = "; --unchanged says that it has only grown" if may_have_grown else ""
        why = f"{end.name!r} was written or moved after that, and may have other rows{remedy}"
        raise _unknown(commit, why)
    if in_table is not None:
        return _in_table([one for one in units if one != end], late, commit, counts, in_table), end
    if end is None:
        names = _named([one.name for one in early])
        raise _unknown(commit, f"that file is gone, and nothing shows whether {names} are committed")
    within = counts.rows(end) - counts.behind(end, commit.position.line)
    rows = {one.number: counts.rows(one) for one in early}
    ordered = sorted((one for one in early if rows[one.number]), key=lambda one: came[one.name])
    order = natural_order(end.file)
    lows = [(one, came[one.name], rows[one.number]) for one in ordered if natural_order(one.file) < order]
    highs = [(one, came[one.name], rows[one.number]) for one in ordered if natural_order(one.file) > order]
    choices = list(_choices(lows, highs, commit.rows - within))
    if len(choices) == 1:
        return choices[0], end
    what = f"{len(choices)} choices of the files before it have the {commit.rows:,} rows that were loaded"
    if not choices:
        since, have = f", such as {_named(late)}" if late else "", sum(rows.values()) + within
        what = (
            f"{commit.rows:,} rows were loaded, and the files that were there have {have:,} in all: files "
            f"are gone, or have changed since{since}"
        )
    raise _unknown(commit, what)


def _in_table(
    units: Sequence[Unit],
    late: Sequence[str],
    commit: LastCommit,
    counts: _Counts,
    in_table: Mapping[str, int],
) -> list[Unit]:
    """The units of a partition that the table has; ``late`` are files that came after the checkpoint."""
    committed = [one for one in units if in_table.get(one.name)]
    is_known = commit.seen_ns is not None
    other = [
        one.name
        for one in units
        if one not in committed
        and (not is_known or (one.name in late and one.modified_ns <= (commit.seen_ns or 0)))
    ]
    gone = in_table.keys() - {one.name for one in units} - {commit.position.file}
    if other and gone:
        raise _unknown(commit, f"{_named(other)} may be files of the table that were renamed")
    for one in committed:
        if one.name in late:
            raise _unknown(
                commit, f"the table has rows of {one.name!r}, which was written or moved after that"
            )
        if counts.behind(one, in_table[one.name]):
            raise _unknown(commit, f"the table has {one.name!r} up to row {in_table[one.name]} only")
    return committed


_Came = Sequence[tuple[Unit, int, int]]
"""Units, each with the time when it came and its rows, in the order of these times."""


def _choices(lows: _Came, highs: _Came, rows: int) -> Iterator[list[Unit]]:
    """The choices of units with so many rows in all.

    :param lows: the units that sort before the checkpoint's file
    :param highs: those that sort behind it
    """
    ends = list(accumulate((count for _, _, count in highs), initial=0))
    for at, total in enumerate(accumulate((count for _, _, count in lows), initial=0)):
        number = bisect_left(ends, rows - total)
        if number == len(ends) or ends[number] != rows - total:
            continue
        bounds = [
            (one[at - 1][1], one[at][1]) for one, at in ((lows, at), (highs, number)) if 0 < at < len(one)
        ]
        if number and at < len(lows):
            bounds.append((highs[number - 1][1], lows[at][1]))
        if all(before < behind for before, behind in bounds):
            yield [unit for unit, _, _ in (*lows[:at], *highs[:number])]


def _came_ns(found: Found, storage: Storage) -> int:
    """When a file came: an object's time; of a local file that which moving and copying change as well."""
    if not isinstance(storage, LocalStorage):
        return found.modified_ns
    return max(found.modified_ns, os.stat(storage.path(found.name)).st_ctime_ns)


@dataclass(frozen=True, slots=True)
class _Counts:
    spec: FileSource
    storage: Storage
    reader: FileReader

    def rows(self, unit: Unit) -> int:
        """All of them."""
        return self._count(self._file(unit), 0, 0)

    def behind(self, unit: Unit, line: int) -> int:
        """Those behind a line."""
        file = self._file(unit)
        after = self.reader.position_after(file, line)
        return 0 if after.done else self._count(file, line, after.offset)

    def _count(self, file: SourceFile, line: int, offset: int) -> int:
        blocks = self.reader.blocks(file, after_line=line, offset=offset, keep_tail=True, limits=_LIMITS)
        return sum(block.rows for block in blocks)

    def _file(self, unit: Unit) -> SourceFile:
        return SourceFile(
            unit.file, self.storage.path(unit.name), unit.end, values_of(self.spec, unit.name),
            unit.modified_ns, unit.version, self.storage,
        )  # fmt: skip


def _gone(spec: FileSource, partition: str, commit: LastCommit) -> Unit:
    """The unit of a file that is gone, without which the position would mean nothing."""
    file = commit.position.file
    name = f"{partition}/{file}" if isinstance(spec.grouping, ByDirectory) else file
    return Unit(0, spec.owner, partition, file, name, 0, 0, 0, 0)


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED]) or 'other files'}{more}"


def _unknown(commit: LastCommit, what: str) -> SourcePositionError:
    return SourcePositionError(
        f"channel {commit.channel!r} stands at line {commit.position.line} of {commit.position.file!r} (unit "
        f"{commit.position.unit} of the lost log): {what}. Nothing was written. Bring the log or the files "
        "back; or compare table and files, and set rebind='restart' to load what the path then holds"
    )
