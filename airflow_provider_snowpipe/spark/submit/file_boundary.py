"""Files of one source that are streamed in one run and copied in another: what each may take, and the token.

The order of things makes every crash harmless. The channels are opened, which shuts writers out and waits
for their commit; the files are staged under paths that name their units; each channel's token becomes that
of the last row with a hold, if it still is the one that was planned on; COPY loads, or a pipe; each hold is
taken off. A crash before the hold leaves staged files and nothing else. A crash after it leaves a hold, which
stops every stream. The next load asks the ledger, under the work that the hold names, whether the COPY was
committed: then it takes the hold off, otherwise it finishes the COPY or puts the token back. What a pipe was
given it gives to the pipe again, which loads no path twice.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol, cast
from uuid import uuid4

from airflow_provider_snowpipe.bulk.stage import plain_name
from airflow_provider_snowpipe.routing.probes import DataShape, ListedFile, listing_shape
from airflow_provider_snowpipe.spark.sources.files.formats import compression_of, reader_of
from airflow_provider_snowpipe.spark.sources.files.reader import FilePartition, resume_after
from airflow_provider_snowpipe.spark.sources.files.reader import FileSource as OpenedFiles
from airflow_provider_snowpipe.spark.sources.files.spec import FileGroup, SourceFile
from airflow_provider_snowpipe.spark.submit.copy_rows import why_not_copy_file
from airflow_provider_snowpipe.streaming.admin import TokenChange, compare_and_set, fence, open_when_committed
from airflow_provider_snowpipe.streaming.checkpoint import (
    ChannelSource,
    Checkpoint,
    Hold,
    OnImbalance,
    Rebind,
    check_balance,
    held,
    held_apart,
)
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    PartlyStreamedError,
    PipeNotFoundError,
    SourceChangedError,
    SourceUnavailableError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import UnitOffset
from airflow_provider_snowpipe.streaming.ownership import EarlierChannels, LastCheckpoints, OwnChannel
from airflow_provider_snowpipe.streaming.progress import ChannelStatus, ListedChannel

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from airflow_provider_snowpipe.spark.source import OnDataLoss
    from airflow_provider_snowpipe.spark.sources.files.spec import FileSource
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient
    from airflow_provider_snowpipe.streaming.names import PipeName


# -- Where streaming ends and COPY begins in a partition, a series of units by their numbers -------------
#
# Its channel's committed offset token shows up to which row it is in the table. COPY takes whole files: only
# those of which no row is committed, in their order, and only when the token's own file has no row left.


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """How far a partition's rows are in the table.

    :param files: its units that have rows, by number
    :param committed: the last row that is in, None for none; under a hold, the last one before the COPY
    :param has_rest: True where the file of that row has more rows
    :param hold: the load of files that has begun and is not known to have ended
    :param token: the channel's committed offset token as it is stored, None for NULL
    :param rows_inserted: rows that were streamed into the channel and are visible
    :param rows: rows that the channel counts, rejected ones among them
    :param errors: its rejected rows that have been reported
    """

    partition: str
    channel: str
    files: tuple[SourceFile, ...]
    committed: UnitOffset | None = None
    has_rest: bool = False
    hold: Hold | None = None
    token: str | None = None
    rows_inserted: int = 0
    rows: int = 0
    errors: int = 0

    @property
    def untouched(self) -> tuple[SourceFile, ...]:
        """The files of which no row is committed."""
        return tuple(one for one in self.files if _is_behind(one, self.committed))

    @property
    def is_done(self) -> bool:
        """True when no row is left."""
        return not (self.untouched or self.has_rest or self.hold)


def share_of_copy(position: PartitionPosition, *, growing: bool = False) -> tuple[SourceFile, ...]:
    """The files that COPY may take: all that no stream has begun, but for a last one that grows."""
    committed = position.committed
    if committed is not None and position.has_rest:
        raise PartlyStreamedError(
            f"channel {position.channel!r}: file {committed.file!r} of partition {position.partition!r} is "
            f"streamed up to row {committed.line}, and has more: COPY takes whole files, so that its first "
            f"{committed.line} rows would be loaded twice. Finish it with path='stream'; nothing was loaded"
        )
    free = position.untouched
    if growing and free and free[-1] == position.files[-1]:
        free = free[:-1]
    piece = next((one for one in free if one.start), None)
    if piece is not None:
        raise PartlyStreamedError(
            f"channel {position.channel!r}: file {piece.name!r} of partition {position.partition!r} has "
            f"grown, and its first {piece.after_line} lines are taken: COPY takes whole files, so that these "
            "would be loaded twice. Load it with path='stream'; nothing was loaded"
        )
    return free


class TableAccount(Protocol):
    """What the boundary asks of the hook of a table and its default pipe."""

    table: Any

    def account_url(self) -> str:
        """The account's address."""

    def pipe_name(self) -> PipeName:
        """The table's default pipe."""

    def channel_statuses(self, channels: Sequence[str], /) -> dict[str, ChannelStatus]:
        """The status of channels, by name."""

    def get_client(self) -> SnowpipeClient:
        """A client of the pipe."""

    def list_channels(self) -> Sequence[ListedChannel]:
        """The channels of the pipe."""

    def offset_tokens(self) -> AbstractContextManager[Callable[[str, str], None]]:
        """Sets tokens of channels, unconditionally."""


# -- What COPY or a pipe takes of one partition -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopyShare:
    """What COPY or a pipe takes of one partition.

    :param files: the files, in order; at least one
    :param before: the channel's token before, without a hold; None for NULL
    :param token: its token until they are loaded: the last row's, with a hold
    :param replaced: those of the files that have other content now
    """

    position: PartitionPosition
    files: tuple[SourceFile, ...]
    paths: tuple[str, ...]
    before: str | None
    token: str
    replaced: frozenset[int] = frozenset()

    @property
    def end(self) -> str:
        """The channel's token when they are loaded."""
        return str(held_apart(self.token)[0])

    @property
    def hold(self) -> Hold:
        """Who loads them."""
        return cast(Hold, held_apart(self.token)[1])


_COMMIT_SECONDS = 600.0
_MOST_PLANS = 50


class FileBoundary:
    """The files of a source, as they are now, and their channels.

    :param on_data_loss: ``skip`` allows that the committed file is gone
    :param last: what earlier runs have seen of the source's channels
    :param accepts_rejected: True where rejected rows are counted and do not fail the load
    """

    def __init__(
        self,
        spec: FileSource,
        channel_of: Callable[[str], str],
        hook: TableAccount,
        on_data_loss: OnDataLoss = "fail",
        *,
        run: str = "0",
        rebind: Rebind | None = None,
        last: LastCheckpoints | None = None,
        on_imbalance: OnImbalance = "warn",
        accepts_rejected: bool = False,
    ) -> None:
        self._spec = spec
        self._accepts_rejected = accepts_rejected
        self._last, self._on_imbalance = last, on_imbalance
        self._run, self._rebind = run, rebind
        self._channel_of = channel_of
        self._hook = hook
        self._source = OpenedFiles(spec, on_data_loss)
        self._source.for_target(hook.pipe_name().address(hook.account_url()), run=run)
        self._files = self._source.partitions()
        self.table = str(hook.table)
        self.rows_before: Mapping[str, tuple[int, int]] = {}

    def positions(self, *, may_lack_table: bool = False) -> list[PartitionPosition]:
        """How far each partition is in the table, by its channel's token; there may be no table yet."""
        channels = [self._channel_of(one.name) for one in self._files]
        try:
            statuses = self._hook.channel_statuses(channels)
        except PipeNotFoundError:
            if not may_lack_table:
                raise
            statuses = {}
        return [
            self._position(one, statuses.get(channel) or ChannelStatus.missing(channel))
            for one, channel in zip(self._files, channels, strict=True)
        ]

    def shape(self, positions: Sequence[PartitionPosition], known: Mapping[str, Any]) -> DataShape:
        """The shape of what is not in the table yet; a file that is streamed in part counts as a whole."""
        left = []
        for one, position in zip(self._files, positions, strict=True):
            units = {file.unit for file in position.untouched}
            if position.has_rest and position.committed is not None:
                units.add(position.committed.unit)
            left += [
                ListedFile(file.path, file.size, dt.datetime.fromtimestamp(file.modified_ns / 1e9, dt.UTC))
                for file in one.group.files
                if file.unit in units
            ]
        partitions = max(1, sum(not position.is_done for position in positions))
        return listing_shape(left, dt.datetime.now(dt.UTC), **{"partitions": partitions, **known})

    def why_not_copy(self, positions: Sequence[PartitionPosition]) -> str | None:
        """Why COPY would make other rows than the stream of what is not in the table, None for the same."""
        files = (file for position in positions for file in position.untouched if position.hold is None)
        return self._why_not_copy(files)

    def compressions(self) -> set[str]:
        """How the files are compressed, as COPY names it."""
        return {
            compression_of(file, self._spec.form.compression).upper()
            for one in self._files
            for file in one.group.files
        }

    def _why_not_copy(self, files: Iterable[SourceFile]) -> str | None:
        reasons = (why_not_copy_file(self._spec, file) for file in files)
        return next((why for why in reasons if why is not None), None)

    def open_channels(self) -> None:
        """Shut every writer out, and wait until what they have sent is committed."""
        sources = {self._channel_of(one.name): self._channel_source(one) for one in self._files}
        with self._hook.get_client() as client:
            for channel in sources:
                open_when_committed(client, channel, _COMMIT_SECONDS)
            found = client.channel_statuses(list(sources))
            for name, status in found.items():
                plain, hold = held_apart(status.committed)
                start = sources[name].start(replace(status, committed=plain))
                # Who has written in spite of a hold has sent what is being loaded.
                check_balance(name, start.excess, self._on_imbalance if hold is None else "fail")
            earlier = EarlierChannels(
                client,
                self._hook.list_channels,
                self._last,
                self._on_imbalance,
                accepts_rejected=self._accepts_rejected,
            )
            recorded = {self._channel_of(one.name): one.recorded() for one in self._files}
            self.rows_before = earlier.hand_over(
                [OwnChannel(sources[name], found[name], recorded[name]) for name in sources]
            )

    def begun(self) -> list[CopyShare]:
        """What loads that have begun were to take, and are not known to have loaded."""
        found = []
        for one, position in zip(self._files, self.positions(), strict=True):
            if position.hold is None or position.token is None:
                continue
            after, last = position.committed, _position_of(position.token).unit
            files = tuple(file for file in one.group.files if _is_behind(file, after) and file.unit <= last)
            paths = tuple(self._path(position.channel, file) for file in files)
            source = self._channel_source(one)
            before = None if after is None else source.token(after, position.rows, position.errors)
            replaced = (one.group.replaced | self._source.changed_units) & {file.unit for file in files}
            found.append(CopyShare(position, files, paths, before, position.token, replaced))
        return found

    def list_again(self) -> None:
        """List the files again, after a load that had begun has ended."""
        self._files = self._source.partitions()

    def shares(self, pipe: str | None = None) -> list[CopyShare]:
        """What COPY, or a pipe, takes of each partition; the channels are open, and no load has begun."""
        positions = self._claimed(self.positions())
        today, work = dt.datetime.now(dt.UTC).date(), uuid4().hex[:12]
        found = []
        for one, position in zip(self._files, positions, strict=True):
            if position.hold is not None:
                Checkpoint.parse(str(position.token), UnitOffset, channel=position.channel)
            if files := share_of_copy(position, growing=self._spec.form.growing):
                after = position.committed
                unit, line = (0, 0) if after is None else (after.unit, after.line)
                found.append(self._share(one, position, files, Hold(unit, line, today, work, pipe)))
        return found

    def _claimed(self, positions: list[PartitionPosition]) -> list[PartitionPosition]:
        """Have the source log take what is new; the positions among the files as they are then."""
        for _ in range(_MOST_PLANS):
            own = {self._channel_of(one.name): one for one in self._files}
            committed = {one.channel: one.committed for one in positions}
            if self._source.claim(own, committed, rebinds=self._rebind is not None):
                self._files = tuple(replace(one, last_unit=self._source.log.last_unit) for one in self._files)
                return positions
            self._files = self._source.partitions()
            positions = self.positions()
        raise SourceUnavailableError(
            f"source {self._spec.address!r}: other loads have written the source log {_MOST_PLANS} times "
            "meanwhile. Nothing was loaded; run again"
        )

    def promise(self, shares: Sequence[CopyShare]) -> None:
        """Replace the tokens by those with a hold, and make sure that nobody has written meanwhile.

        All channels are compared with what was planned before any token is set, so that a stream that has
        committed while files were staged leaves everything as it is.

        :raises OffsetTokenMovedError: if somebody has written; nothing is loaded
        """
        changes = [
            TokenChange(one.position.channel, one.token, one.position.token, one.position.rows_inserted)
            for one in shares
        ]
        with self._hook.get_client() as client:
            if len(changes) > 1:
                for change in changes:
                    fence(client, change)
            self._set(client, changes)
            # Where there are many, the first of them were set a while ago.
            self._require(client, shares)

    def settle(self, shares: Sequence[CopyShare], loaded: Container[str]) -> dict[str, str]:
        """Move each channel's token behind the files that are loaded, and take its hold off."""
        if any(share.replaced for share in shares):
            self._claimed(self.positions())  # while no row of them counts as committed
        ends: dict[str, str] = {}
        lasts: dict[str, UnitOffset | None] = {}
        for share in shares:
            done = sum(1 for _ in takewhile(loaded.__contains__, share.paths))
            ends[share.position.channel] = self._reached(share, done)
            if done:
                lasts[share.position.partition] = _position_of(ends[share.position.channel])
        with self._hook.get_client() as client:
            if len(shares) > 1:
                self._require(client, shares)
            self._set(client, [_under_hold(share, ends[share.position.channel]) for share in shares])
        self._source.mark_complete(lasts, is_all=False)
        return ends

    def _reached(self, share: CopyShare, done: int) -> str:
        """The token of a channel with the first files of a share loaded.

        A channel that had none keeps one before its first row: NULL cannot be set.
        """
        position, first = share.position, share.files[0]
        if done == len(share.files):
            return share.end
        if not done and share.before is not None:
            return share.before
        last = self._last_row(share.files[done - 1]) if done else UnitOffset(first.unit, first.name, 0)
        partition = next(one for one in self._files if one.name == position.partition)
        return self._channel_source(partition).token(last, position.rows, position.errors)

    def _set(self, client: SnowpipeClient, changes: Sequence[TokenChange]) -> None:
        if not changes:
            return
        with self._hook.offset_tokens() as set_token:
            for change in changes:
                compare_and_set(client, change, set_token=set_token)

    def _require(self, client: SnowpipeClient, shares: Sequence[CopyShare]) -> None:
        """Make sure that each channel holds its token with a hold, and as many rows as before it."""
        found = client.channel_statuses([share.position.channel for share in shares])
        for share in shares:
            _under_hold(share, share.end).require(found[share.position.channel])

    def _position(self, partition: FilePartition, status: ChannelStatus) -> PartitionPosition:
        channel, token = status.channel, status.committed
        plain, hold = held_apart(token)
        group, source = partition.group, self._channel_source(partition)
        if plain is not None and hold and not source.is_own(plain):
            raise SourceChangedError(
                f"channel {channel!r} holds a load of files of another source, or numbered in another way, "
                f"that has begun and is not known to have ended ({token}); {source.binding} is asked for. "
                "Nothing was loaded. Run the task that began it, which finishes it, or give this one a "
                "channel_prefix of its own"
            )
        start = source.start(replace(status, committed=plain))
        committed = None if start.position is None else cast(UnitOffset, start.position)
        has_rest = False
        if hold is not None:
            committed = hold.before(next((one.name for one in group.files if one.unit == hold.unit), "?"))
        else:
            partition.check(committed)
            has_rest = self._has_rest(group, committed)
        files = tuple(
            file
            for file in group.files
            if file.size > file.start and file.unit not in group.gone | group.replaced
        )
        rows = status.rows_inserted + status.rows_error_count
        return PartitionPosition(
            group.partition, channel, files, committed, has_rest, hold, token, status.rows_inserted, rows,
            start.errors,
        )  # fmt: skip

    def _has_rest(self, group: FileGroup, committed: UnitOffset | None) -> bool:
        """True where the file of a row has more rows."""
        resume_at = resume_after(group, self._spec.form, committed)
        begun = group.files[resume_at.file_index] if resume_at.file_index < len(group.files) else None
        if begun is None or resume_at.after_line <= begun.after_line or resume_at.done:
            return False
        blocks = reader_of(self._spec.form).blocks(
            begun,
            after_line=resume_at.after_line,
            offset=resume_at.offset,
            keep_tail=True,
            limits=BatchLimits(),
        )
        return any(block.rows for block in blocks)

    def _channel_source(self, partition: FilePartition) -> ChannelSource:
        return ChannelSource(UnitOffset, partition.binding, self._run, self._rebind)

    def _share(
        self, partition: FilePartition, position: PartitionPosition, files: tuple[SourceFile, ...], hold: Hold
    ) -> CopyShare:
        if (why := self._why_not_copy(files)) is not None:
            raise ConfigurationError(f"{why}. Nothing was loaded: correct the file, or take path='stream'")
        paths = tuple(self._path(position.channel, file) for file in files)
        source = self._channel_source(partition)
        end = source.token(self._last_row(files[-1]), position.rows, position.errors)
        return CopyShare(position, files, paths, position.token, held(end, hold))

    def _path(self, channel: str, file: SourceFile) -> str:
        """Where a file is staged: a unit never changes, so its path always has the same content."""
        return f"{plain_name(channel)}/{self._source.log.log_id}/{file.unit}/{plain_name(file.name)}"

    def _last_row(self, file: SourceFile) -> UnitOffset:
        reader, line = reader_of(self._spec.form), 0
        for block in reader.blocks(file, after_line=0, offset=0, keep_tail=True, limits=BatchLimits()):
            line = block.last_line
        return UnitOffset(file.unit, file.name, line)


def _position_of(token: str) -> UnitOffset:
    return cast(UnitOffset, Checkpoint.parse(str(held_apart(token)[0]), UnitOffset).position)


def _is_behind(file: SourceFile, committed: UnitOffset | None) -> bool:
    """True for a file of which no row is committed, and which has rows."""
    if file.size <= file.start:
        return False
    if committed is None or file.unit > committed.unit:
        return True
    return file.unit == committed.unit and committed.line <= file.after_line


def _under_hold(share: CopyShare, token: str) -> TokenChange:
    """A change of a token that expects the one with the hold."""
    return TokenChange(share.position.channel, token, share.token, share.position.rows_inserted)
