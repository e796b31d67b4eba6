"""The audit: whether channels, table and source agree on which rows were loaded.

What the service reports of a channel is compared with its checkpoint and with what earlier runs have seen;
that takes no warehouse. Then the source is read again up to each checkpoint, and its rows are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, TypeVar

from airflow_provider_snowpipe.spark.source import (
    Partition,
    Source,
    SourcePartition,
    SourceSecrets,
    SourceSpec,
)
from airflow_provider_snowpipe.spark.sources.registry import open_source
from airflow_provider_snowpipe.streaming.checkpoint import (
    Checkpoint,
    excess_of,
    is_begun,
    is_checkpoint,
    source_of_token,
)
from airflow_provider_snowpipe.streaming.errors import OffsetTokenError, SnowpipeError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import counted, first_few, plain_or_quoted
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.progress import ChannelStatus

_LIMITS = BatchLimits()
_AuditT = TypeVar("_AuditT", bound="ChannelAudit")
_BY_HAND = "the token was set by hand"


@dataclass(frozen=True, slots=True)
class LastSeen:
    """What the last run has seen of a channel.

    :param rows_before: rows of the source that an earlier channel inserted
    :param rejected: rows that an earlier channel rejected
    :param channels: it and the earlier ones
    """

    channel: str
    token: str
    rows_before: int = 0
    rejected: int = 0
    channels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChannelAudit:
    """What is known of one channel.

    :param rows: rows that its checkpoint counts, None where its token is not a checkpoint
    :param source_rows: rows of the source up to the checkpoint, None where they were not counted
    :param dead_lettered: of these, rows that were put aside
    :param sent_again: rows that were sent and that the source has not, such as those sent again after a reset
    """

    channel: str
    committed: str | None
    rows: int | None
    inserted: int
    rejected: int
    source_rows: int | None = None
    dead_lettered: int = 0
    sent_again: int = 0
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def compared(self, table: TableAudit | None) -> Self:
        """Judge the rows that it has sent and that the source has not.

        A reset sets a token back to load rows again that were deleted: the table has each of them once then.
        """
        rows, sent = self.source_rows or 0, self.sent_again
        if not sent:
            return self
        if table is not None and table.has_rows_once:
            return _noted(self, f"{counted(sent, 'row')} that were sent again are in the table once")
        loaded = f"the source has {rows:,} rows up to {self.committed}, and {rows + sent:,} were loaded"
        return _differing(self, f"{loaded} or put aside: a file has changed since, or {_BY_HAND}")


def audit_channel(status: ChannelStatus, seen: LastSeen | None = None) -> ChannelAudit:
    """Compare what the service reports of a channel with its checkpoint, and with what a run saw last."""
    token = status.committed
    found: Checkpoint | None = None
    notes: tuple[str, ...] = ()
    if token is not None and is_checkpoint(token):
        try:
            found = Checkpoint.parse(token)
        except OffsetTokenError as error:
            notes = (f"not compared: {error}",)
    return ChannelAudit(
        status.channel,
        token,
        None if found is None else found.rows,
        status.rows_inserted,
        status.rows_error_count,
        differences=tuple(_differences(status, found, seen)),
        notes=notes,
    )


def _differences(status: ChannelStatus, found: Checkpoint | None, seen: LastSeen | None) -> Iterable[str]:
    token = status.committed
    if token is None:
        if seen is not None and not is_begun(seen.token, status):
            yield f"it has no token, and {seen.token} was known: it was dropped, recreated or has expired"
    elif not is_checkpoint(token):
        if seen is None or is_checkpoint(seen.token):
            yield f"its token {token[:100]!r} is not a checkpoint: another program has set it"
    elif found is not None:
        if excess := excess_of(status):
            more = "more" if excess > 0 else "fewer"
            yield (
                f"it counts {abs(excess):,} {more} rows than its checkpoint: it had another writer, was "
                "recreated, or its token was set by hand"
            )
        if seen is not None and is_checkpoint(seen.token) and not is_begun(seen.token):
            yield from _moves(found, seen.token)


def _moves(found: Checkpoint, before: str) -> Iterable[str]:
    """What a checkpoint that the last run has seen shows of how the token has moved since."""
    if found.source != source_of_token(before):
        yield "it has committed rows of another source than the last run's"
        return
    last = Checkpoint.parse(before, type(found.position))
    if found.position < last.position:
        yield f"its token was set back from position {last.position} to {found.position}"
    elif found.position != last.position and (found.rows, found.run) == (last.rows, last.run):
        yield f"its token was set from position {last.position} to {found.position} without a row"


# -- The rows of the source, counted again ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceAudit:
    """A source whose rows are counted again.

    :param seen: what the last run has seen, by the digits that stand for the source partition
    :param dead_letter_path: where rows that do not fit were put aside, None where they were not
    """

    spec: SourceSpec
    secrets: SourceSecrets
    target: str
    seen: Mapping[str, LastSeen]
    dead_letter_path: str | None = None

    def count(self, audits: Mapping[str, ChannelAudit]) -> list[ChannelAudit]:
        """Count the rows of each partition up to its channel's checkpoint, and compare."""
        by_channel = {one.channel: digits for digits, one in self.seen.items()}
        try:
            source = open_source(self.spec, "fail", self.secrets).for_target(self.target, writes=False)
            listed = source.without_spark()
            partitions = (
                {} if listed is None else {one.binding.source_digest: one for one in listed.partitions()}
            )
        except (SnowpipeError, OSError, ImportError) as error:
            return [_noted(one, f"the source was not read: {error}") for one in audits.values()]
        mine = {
            name: partitions[by_channel[name]]
            for name, one in audits.items()
            if by_channel.get(name) in partitions and one.rows is not None
        }
        committed = {
            name: Checkpoint.parse(str(audits[name].committed), one.offset_class).position
            for name, one in mine.items()
        }
        checked = None if listed is None else _changes(listed, mine, committed)
        found = []
        for name, one in audits.items():
            partition = partitions.get(by_channel.get(name, ""))
            if one.rows is None or one.committed is None:
                found.append(one)
            elif partition is None:
                found.append(_noted(one, "the source has no such partition any more: not counted"))
            else:
                found.append(self._counted(one, partition, self.seen[by_channel[name]], checked))
        return found

    def row_keys(self) -> tuple[dict[str, Sequence[tuple[str, ...]]], Mapping[str, int]]:
        """What the rows of each channel have in the columns that show where they are from.

        :return: that, and how many rows COPY and pipes have loaded of each file
        """
        listed = open_source(self.spec, "fail", self.secrets).for_target(self.target, writes=False)
        source = listed.without_spark()
        partitions = () if source is None else source.partitions()
        seen = ((self.seen.get(one.binding.source_digest), one) for one in partitions)
        keys = {known.channel: one.row_keys() for known, one in seen if known is not None}
        return keys, {} if source is None else source.copied_rows()

    def _counted(
        self, one: ChannelAudit, partition: Partition, seen: LastSeen, changed: str | None
    ) -> ChannelAudit:
        if not isinstance(partition, SourcePartition):
            return _noted(one, "its rows are read by Spark alone: not counted")
        if not partition.is_whole():
            return _noted(one, "files of it are archived or gone: not counted")
        position = Checkpoint.parse(str(one.committed), partition.offset_class, channel=one.channel).position
        try:
            partition.check(position)
            (all_rows, undecoded), (rest, rest_undecoded) = _rows(partition, None), _rows(partition, position)
        except SourcePositionError as error:
            return _differing(one, f"the source has changed: {error}")
        except (SnowpipeError, OSError) as error:
            return _noted(one, f"not counted: {error}")
        rows = all_rows - rest
        aside = 0
        if self.dead_letter_path is not None:
            rows += undecoded - rest_undecoded
            letters, kind = partition.open_dead_letters, partition.offset_class
            opened = (letters(self.dead_letter_path, name, kind, None) for name in seen.channels)
            aside = sum(store.count(position) for store in opened)
        sent = (one.rows or 0) + seen.rows_before + seen.rejected
        whose = f"channel {one.channel!r}: "
        more = sent + aside - rows
        audited = replace(one, source_rows=rows, dead_lettered=aside, sent_again=max(more, 0))
        if changed is not None and changed.startswith(whose):
            audited = _differing(audited, changed.removeprefix(whose))
        if more < 0:
            audited = _differing(
                audited,
                f"the source has {rows:,} rows up to {position}, and {sent:,} were loaded"
                + (f" and {aside:,} put aside" if aside else "")
                + f": a file has changed since, or {_BY_HAND}",
            )
        return audited


def _changes(
    source: Source, partitions: Mapping[str, Partition], committed: Mapping[str, Offset]
) -> str | None:
    """What the source itself finds changed before the committed positions, in words; None for nothing."""
    try:
        source.claim(partitions, committed)
    except SourcePositionError as error:
        return str(error)
    return None


def _rows(partition: SourcePartition[Any], committed: Offset | None) -> tuple[int, int]:
    """Count the rows behind a position, and the records that cannot be decoded."""
    resume_at = partition.resume(committed)
    rows = undecoded = 0
    for part in () if resume_at is None else partition.read(resume_at, _LIMITS):
        rows += part.rows
        undecoded += len(part.undecoded)
    return rows, undecoded


def _differing(one: _AuditT, text: str) -> _AuditT:
    return replace(one, differences=(*one.differences, text))


def _noted(one: _AuditT, text: str) -> _AuditT:
    return replace(one, notes=(*one.notes, text))


# -- The rows of the table, by the columns that show where they are from ----------------------------------


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The rows of a table that are from one file or partition.

    :param rows: how many they are
    :param different: how many different numbers they have
    :param doubled: the first number that more than one row has, None for none
    :param gap: the first number missing between two others, None for none; that of a blank line is one
    """

    rows: int
    different: int
    last: int
    doubled: int | None = None
    gap: int | None = None


def positions_query(table: str, columns: tuple[tuple[str, ...], str]) -> str:
    """Write the query that counts the rows of each file or partition, and finds doubled and missing ones."""
    keys = ", ".join(map(plain_or_quoted, columns[0]))
    number = plain_or_quoted(columns[1])
    before = f"LAG({number}) OVER (PARTITION BY {keys} ORDER BY {number})"
    counted = f"SELECT {keys}, {number}, COUNT(*) AS TIMES FROM {table} GROUP BY {keys}, {number}"  # noqa: S608
    ordered = f"SELECT {keys}, {number} AS AT_ROW, TIMES, {before} AS BEFORE_ROW FROM COUNTED"  # noqa: S608
    found = (
        "SUM(TIMES) AS FOUND_ROWS, COUNT(AT_ROW) AS DIFFERENT_ROWS, MAX(AT_ROW) AS LAST_ROW, "
        "MIN(CASE WHEN TIMES > 1 THEN AT_ROW END) AS DOUBLED_ROW, "
        "MIN(CASE WHEN AT_ROW > BEFORE_ROW + 1 THEN BEFORE_ROW + 1 END) AS GAP_ROW"
    )
    parts = f"COUNTED AS ({counted}), ORDERED AS ({ordered})"
    return f"WITH {parts} SELECT {keys}, {found} FROM ORDERED GROUP BY {keys}"  # noqa: S608


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of a table by file or partition.

    :param found: by key, as texts
    :param unknown: rows that show no file or partition
    """

    found: Mapping[tuple[str, ...], FoundRows]
    unknown: int

    @classmethod
    def of(cls, answer: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> Self:
        """Read the answer to :func:`positions_query`."""
        found, unknown = {}, 0
        for row in answer:
            values = {name.upper(): value for name, value in row.items()}
            key = tuple(values[name.upper()] for name in keys)
            rows, different = int(values["FOUND_ROWS"]), int(values["DIFFERENT_ROWS"])
            if None in key:
                unknown += rows
                continue
            ends = (values["DOUBLED_ROW"], values["GAP_ROW"])
            doubled, gap = (None if one is None else int(one) for one in ends)
            last = int(values["LAST_ROW"] or 0)
            found[tuple(map(str, key))] = FoundRows(rows, different, last, doubled, gap)
        return cls(found, unknown)

    def compared(self, one: ChannelAudit, keys: Mapping[tuple[str, ...], int], before: int) -> ChannelAudit:
        """Compare the rows of a channel's files or partition with those that it has inserted.

        :param keys: how many sources have rows of each
        :param before: rows of these that came through an earlier channel; negative for rows sent again
        """
        if key := next((key for key, sources in keys.items() if sources > 1), None):
            return _noted(one, f"not compared: {' '.join(key)} is the name of rows of several sources")
        own = {" ".join(key): self.found[key] for key in keys if key in self.found}
        audited = one
        for text in _doubled(own):
            audited = _differing(audited, text)
        missing = one.inserted - one.sent_again + before - sum(rows.different for rows in own.values())
        if missing <= 0 or one.rows is None:
            return audited
        gaps = [f"number {rows.gap} of {name}" for name, rows in own.items() if rows.gap is not None]
        where = f", such as {first_few(gaps)}" if gaps else ""
        if self.unknown:
            unknown = f"{self.unknown:,} rows of the table do not show where they are from"
            return _noted(audited, f"whether rows are missing: {unknown}")
        return _differing(audited, f"{missing:,} of its rows are not in the table{where}")

    def compared_copied(self, files: Mapping[str, int]) -> Iterator[str]:
        """Compare the rows of files with those that COPY and pipes have loaded; what differs, in words.

        :param files: these rows of each file, by name
        """
        found = {name: self.found.get((name,), FoundRows(0, 0, 0)) for name in files}
        yield from _doubled(found)
        for name, rows in () if self.unknown else found.items():
            if missing := files[name] - rows.different:
                how = f"{missing:,} are not in the table" if missing > 0 else f"{-missing:,} more are there"
                yield f"COPY or a pipe has loaded {files[name]:,} rows of {name}: {how}"


def _doubled(found: Mapping[str, FoundRows]) -> Iterator[str]:
    for name, rows in found.items():
        if more := rows.rows - rows.different:
            where = f"{name}, the first one is number {rows.doubled}"
            yield f"in the table twice: {counted(more, 'row')} of {where}"


# -- The table ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableAudit:
    """The rows of a table, and those that its channels and COPY have inserted.

    :param streamed: rows that its channels have inserted, and earlier channels whose positions they took over
    :param copied: rows that COPY and file pipes have loaded, as far as load history knows
    :param others: rows that the caller says others have inserted
    :param sent_again: of the streamed ones, rows that the sources have not
    :param restarted: of the streamed ones, rows before a restart, which its author may have deleted
    """

    table: str
    rows: int
    streamed: int
    copied: int
    others: int = 0
    sent_again: int = 0
    restarted: int = 0

    @property
    def _more(self) -> int:
        return self.rows - self.streamed - self.copied - self.others

    @property
    def has_rows_once(self) -> bool:
        """True where it lacks as many rows as were sent again."""
        return -self._more in (self.sent_again, self.sent_again + self.restarted)

    @property
    def differences(self) -> tuple[str, ...]:
        """What does not agree, in words."""
        more = self._more
        if not more or self.has_rows_once:
            return ()
        how = "more" if more > 0 else "fewer"
        why = "inserted by others (other_rows)" if more > 0 else "deleted"
        return (
            f"table {self.table} has {self.rows:,} rows, {abs(more):,} {how} than its channels "
            f"({self.streamed:,}) and COPY ({self.copied:,}) have inserted: rows were {why}",
        )

    def as_json(self) -> dict[str, Any]:
        """The audit as JSON values."""
        return {**asdict(self), "differences": self.differences}
