"""Files of one source that are streamed in one run and copied in another: what each may take, and the token.

The order of things makes every crash harmless. The channels are opened, which shuts writers out and waits
for their commit; the files are staged under paths that name their content; each channel's token becomes an
intent, if it still is the one that was planned on; COPY loads, or a pipe; each intent becomes the position
of the last loaded row. A crash before the intent leaves staged files and nothing else. A crash after it
leaves an intent, which stops every stream, and with which the next load asks load history, has the same
loader load what is not in, and sets the token.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from airflow_provider_snowpipe.bulk.load_history import OVERLAP
from airflow_provider_snowpipe.bulk.stage import ContentPath, loaded_contents
from airflow_provider_snowpipe.bulk.staged_files import FINAL, FileLoad
from airflow_provider_snowpipe.routing.probes import DataShape, ListedFile, listing_shape
from airflow_provider_snowpipe.spark.sources.files.formats import (
    compression_of,
    reader_of,
)
from airflow_provider_snowpipe.spark.sources.files.reader import FilePartition, resume_after
from airflow_provider_snowpipe.spark.sources.files.reader import FileSource as OpenedFiles
from airflow_provider_snowpipe.spark.sources.files.spec import (
    SourceFile,
)
from airflow_provider_snowpipe.spark.submit.copy_rows import why_not_copy_file
from airflow_provider_snowpipe.streaming.admin import TokenChange, compare_and_set, fence, open_when_committed
from airflow_provider_snowpipe.streaming.checkpoint import (
    ChannelSource,
    OnImbalance,
    Rebind,
    check_balance,
)
from airflow_provider_snowpipe.streaming.copy_intent import CopyIntent
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    FilesGivenTwiceError,
    PartlyStreamedError,
    PipeNotFoundError,
    SourceChangedError,
    SourcePositionError,
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
    :param committed: the last row that is in, None for none; under an intent, the last one before the COPY
    :param has_rest: True where the file of that row has more rows
    :param intent: the load of files that has begun and is not known to have ended
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
    intent: CopyIntent | None = None
    token: str | None = None
    rows_inserted: int = 0
    rows: int = 0
    errors: int = 0

    @property
    def untouched(self) -> tuple[SourceFile, ...]:
        """The files of which no row is committed."""
        after = self.committed
        if after is None:
            return self.files
        return tuple(
            one
            for one in self.files
            if one.unit > after.unit or (one.unit == after.unit and after.line <= one.after_line)
        )

    @property
    def is_done(self) -> bool:
        """True when no row is left."""
        return not (self.untouched or self.has_rest or self.intent)


def share_of_copy(position: PartitionPosition, *, growing: bool = False) -> tuple[SourceFile, ...]:
    """The files that COPY may take: all that no stream has begun.

    :param growing: True while something appends to the last file, which is left to the stream
    :raises PartlyStreamedError: if a file is streamed in part
    :raises SourcePositionError: if a file has changed since a COPY began, or is gone
    """
    committed = position.committed
    if committed is not None and position.has_rest and position.intent is not None:
        raise SourcePositionError(
            f"channel {position.channel!r}: file {committed.file!r} of partition {position.partition!r} has "
            f"got rows after row {committed.line} since a COPY of the files after it began: those would be "
            "skipped. Cut them off, or move them to a file of their own after the others"
        )
    if committed is not None and position.has_rest:
        raise PartlyStreamedError(
            f"channel {position.channel!r}: file {committed.file!r} of partition {position.partition!r} is "
            f"streamed up to row {committed.line}, and has more: COPY takes whole files, so that its first "
            f"{committed.line} rows would be loaded twice. Finish it with path='stream'; nothing was loaded"
        )
    promised = promised_files(position)
    free = position.untouched[len(promised) :]
    if growing and free and free[-1] == position.files[-1]:
        free = free[:-1]
    piece = next((one for one in free if one.start), None)
    if piece is not None:
        raise PartlyStreamedError(
            f"channel {position.channel!r}: file {piece.name!r} of partition {position.partition!r} has "
            f"grown, and its first {piece.after_line} lines are taken: COPY takes whole files, so that these "
            "would be loaded twice. Load it with path='stream'; nothing was loaded"
        )
    return promised + free


def promised_files(position: PartitionPosition) -> tuple[SourceFile, ...]:
    """The files of a COPY that has begun, which has to be finished before anything else is loaded.

    :raises SourcePositionError: if the last of them is not there any more
    """
    if position.intent is None:
        return ()
    files, last = position.untouched, position.intent.last_file
    number, _, name = last.partition("/")
    # A file that was corrected meanwhile has a later number.
    at = next(
        (index for index, one in enumerate(files) if one.name == name and one.unit >= int(number)), None
    )
    if at is None:
        raise SourcePositionError(
            f"channel {position.channel!r}: a COPY of the files up to {last!r} of partition "
            f"{position.partition!r} began at {position.intent.since:%Y-%m-%d %H:%M:%S %Z} and is not known "
            "to have ended, and that file is not in the source any more: bring it back, or reset the "
            f"channel's offset token on purpose, to {position.intent.after or 'the first row'!r} if the "
            "files are not in the table. Nothing was loaded"
        )
    return files[: at + 1]


def _copied_name(file: SourceFile) -> str:
    """A file as an intent names it."""
    return f"{file.unit}/{file.name}"


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


# -- What COPY or a pipe takes of one partition, and what load history reports of it ---------------------


@dataclass(frozen=True, slots=True)
class CopyShare:
    """What COPY or a pipe takes of one partition.

    :param position: how far the partition is in the table
    :param files: the files, in order; at least one
    :param paths: where each is staged
    :param end: the channel's token when they are loaded
    :param last: its position
    :param intent: the channel's token until then
    """

    position: PartitionPosition
    files: tuple[SourceFile, ...]
    paths: tuple[ContentPath, ...]
    end: str
    last: UnitOffset
    intent: CopyIntent


def loaded_since(share: CopyShare, history: Sequence[FileLoad]) -> dict[str, FileLoad]:
    """The loads of a share's files since its load began, by path.

    :param history: loads from the oldest
    :raises SourcePositionError: if a file has changed after it was loaded
    """
    earliest = share.intent.since - OVERLAP
    lately = [load for load in history if load.loaded_at is None or load.loaded_at >= earliest]
    return loaded_contents(share.paths, lately)


def refuse_loaded(share: CopyShare, loads: Mapping[str, FileLoad]) -> None:
    """Refuse files that are loaded although the channel's token shows that they are not in the table.

    :raises FilesGivenTwiceError: if there are any
    """
    if not loads:
        return
    first = next(iter(loads.values()))
    when = f" at {first.loaded_at:%Y-%m-%d %H:%M:%S %Z}" if first.loaded_at else ""
    raise FilesGivenTwiceError(
        f"channel {share.position.channel!r}: its committed token {share.position.committed or 'NULL'!s} "
        f"shows that file {share.files[0].name!r} and later ones are not in the table, and "
        f"{'COPY' if first.pipe is None else f'pipe {first.pipe}'} has loaded {len(loads):,} of these "
        f"{len(share.files):,} files, the first one{when}. Where the token was set back to load them again, "
        "take path='stream', since a staged file is loaded once; where their rows are in the table, set the "
        f"token to {share.end!r}. Nothing was loaded",
        files=tuple(loads),
    )


def refuse_waiting(share: CopyShare, staged: Sequence[str], loads: Sequence[FileLoad], pipe: str) -> None:
    """Refuse files whose former content may wait in a pipe's queue.

    :param share: what the pipe was given before
    :param staged: files of the channel in the pipe's stage, as ``LIST`` names them
    :param loads: loads into the table, from the oldest
    :raises SourcePositionError: if there is one that the pipe has neither loaded nor failed to load
    """
    now = {path.name: path.digest for path in share.paths}
    ended = {
        ContentPath.read(f"{load.location.rstrip('/')}/{load.path}") for load in loads if load.status in FINAL
    }
    for name in staged:
        content = ContentPath.read(name)
        if content is None or content in ended:
            continue
        if now.get(content.name, content.digest) != content.digest:
            raise SourcePositionError(
                f"file {content.name!r} of channel {share.position.channel!r} has changed, and pipe {pipe!r} "
                f"may have its former content, staged as {name!r}, in its queue: bring that content back; or "
                "see that SYSTEM$PIPE_STATUS reports no pending file, and REMOVE the staged one. Nothing "
                "was loaded"
            )


_COMMIT_SECONDS = 600.0
_MOST_PLANS = 50


class FileBoundary:
    """The files of a source, as they are now, and their channels.

    :param channel_of: names the channel of a partition
    :param hook: for the table's default pipe
    :param on_data_loss: ``skip`` allows that the committed file is gone
    :param run: the run, as checkpoints name it
    :param rebind: what to do about a channel whose checkpoint is another source's, None to refuse it
    :param last: what earlier runs have seen of the source's channels
    :param on_imbalance: ``fail`` refuses a channel that counts other rows than its checkpoint
    :param accepts_rejected: True where rejected rows are counted and do not fail the load
    :raises SourcePositionError: if there are no files
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
        self.rows_before: Mapping[str, int] = {}

    def positions(self, *, may_lack_table: bool = False) -> list[PartitionPosition]:
        """How far each partition is in the table, by its channel's committed token.

        :param may_lack_table: True where the stream makes the table
        """
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
        """The shape of what is not in the table yet; a file that is streamed in part counts as a whole.

        :param known: what else is known of the data: parameters of :class:`DataShape`
        """
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
        """Why COPY would make other rows than the stream of a file that is not in the table yet.

        :return: None where it makes the same of all
        """
        files = (file for position in positions for file in position.untouched if position.intent is None)
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
        """Shut every writer out, and wait until what they have sent is committed.

        :raises SourceChangedError: if another channel of the pipe has loaded a partition
        :raises SourcePositionError: if a channel has lost its token
        """
        sources = {self._channel_of(one.name): self._channel_source(one) for one in self._files}
        with self._hook.get_client() as client:
            for channel in sources:
                open_when_committed(client, channel, _COMMIT_SECONDS)
            found = client.channel_statuses(list(sources))
            for name, status in found.items():
                intent = CopyIntent.parse(status.committed)
                before = intent.after if intent else status.committed
                start = sources[name].start(replace(status, committed=before))
                check_balance(name, start.excess, self._on_imbalance)
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

    def shares(self, pipe: str | None = None, *, promised_only: bool = False) -> list[CopyShare]:
        """What COPY or a pipe takes of each partition; the channels are open.

        :param pipe: the pipe that is to take what nobody has begun to load, None for COPY
        :param promised_only: True for what an interrupted load was to take, and no more
        :raises PartlyStreamedError: if a file is streamed in part
        :raises ConfigurationError: if COPY would make other rows of a file than the stream
        :raises SourcePositionError: if a file before the committed one has changed since the last run
        """
        now = dt.datetime.now(dt.UTC)
        # To the millisecond, as it comes back from an intent's text.
        now = now.replace(microsecond=now.microsecond // 1000 * 1000)
        positions = self.positions()
        for _ in range(_MOST_PLANS):
            own = {self._channel_of(one.name): one for one in self._files}
            committed = {one.channel: one.committed for one in positions}
            if self._source.claim(own, committed, rebinds=self._rebind is not None):
                self._files = tuple(replace(one, last_unit=self._source.last_unit) for one in self._files)
                break
            self._files = self._source.partitions()
            positions = self.positions()
        else:
            raise SourceUnavailableError(
                f"source {self._spec.address!r}: other loads have written the source log {_MOST_PLANS} times "
                "meanwhile. Nothing was loaded; run again"
            )
        found = []
        for one, position in zip(self._files, positions, strict=True):
            files = share_of_copy(position, growing=self._spec.form.growing)
            if promised_only:
                files = promised_files(position)
            if files:
                found.append(self._share(one, position, files, now, pipe))
        return found

    def promise(self, shares: Sequence[CopyShare]) -> None:
        """Replace the tokens by the intents, and make sure that nobody has written meanwhile.

        All channels are compared with what was planned before any token is set, so that a stream that has
        committed while files were staged leaves everything as it is.

        :raises OffsetTokenMovedError: if somebody has written; nothing is loaded
        """
        changes = [
            TokenChange(
                share.position.channel,
                str(share.intent),
                share.position.token,
                share.intent.rows_inserted,
            )
            for share in shares
        ]
        with self._hook.get_client() as client:
            fresh = [change for change in changes if change.token != change.expected]
            for change in changes if len(fresh) > 1 else [one for one in changes if one not in fresh]:
                fence(client, change)
            self._set(client, fresh)
            # Where there are many, the first of them were set a while ago.
            self._require(client, shares)

    def settle(self, shares: Sequence[CopyShare]) -> dict[str, str]:
        """Replace each intent by the position of the last loaded row; the channels' tokens.

        :raises OffsetTokenMovedError: if somebody has written meanwhile
        """
        with self._hook.get_client() as client:
            if len(shares) > 1:
                self._require(client, shares)
            self._set(client, [_under_intent(share, share.end) for share in shares])
        ends = {share.position.partition: share.last for share in shares}
        self._source.mark_complete(ends, is_all=False)
        return {share.position.channel: share.end for share in shares}

    def _set(self, client: SnowpipeClient, changes: Sequence[TokenChange]) -> None:
        if not changes:
            return
        with self._hook.offset_tokens() as set_token:
            for change in changes:
                compare_and_set(client, change, set_token=set_token)

    def _require(self, client: SnowpipeClient, shares: Sequence[CopyShare]) -> None:
        """Make sure that each channel holds its intent, and as many rows as before it."""
        found = client.channel_statuses([share.position.channel for share in shares])
        for share in shares:
            _under_intent(share, share.end).require(found[share.position.channel])

    def _position(self, partition: FilePartition, status: ChannelStatus) -> PartitionPosition:
        channel, token = status.channel, status.committed
        intent = CopyIntent.parse(token)
        before = intent.after if intent else token
        group, source = partition.group, self._channel_source(partition)
        if intent is not None and intent.binding != source.binding.digest:
            raise SourceChangedError(
                f"channel {channel!r} holds a load of files of another source, or numbered in another way, "
                f"that has begun and is not known to have ended ({token}); {source.binding} is asked for. "
                "Nothing was loaded. Run the task that began it, which finishes it, or give this one a "
                "channel_prefix of its own"
            )
        start = source.start(replace(status, committed=before))
        committed = None if start.position is None else cast(UnitOffset, start.position)
        partition.check(committed)
        resume_at = resume_after(group, self._spec.form, committed)
        has_rest = False
        begun = group.files[resume_at.file_index] if resume_at.file_index < len(group.files) else None
        if begun is not None and resume_at.after_line > begun.after_line and not resume_at.done:
            rest = reader_of(self._spec.form).blocks(
                begun,
                after_line=resume_at.after_line,
                offset=resume_at.offset,
                keep_tail=True,
                limits=BatchLimits(),
            )
            has_rest = any(block.rows for block in rest)
        files = tuple(
            file
            for file in group.files
            if file.size > file.start and file.unit not in group.gone | group.replaced
        )
        return PartitionPosition(
            group.partition,
            channel,
            files,
            committed,
            has_rest,
            intent,
            token,
            status.rows_inserted,
            status.rows_inserted + status.rows_error_count,
            start.errors,
        )

    def _channel_source(self, partition: FilePartition) -> ChannelSource:
        """Whose rows the channel of a partition gets."""
        return ChannelSource(UnitOffset, partition.binding, self._run, self._rebind)

    def _share(
        self,
        partition: FilePartition,
        position: PartitionPosition,
        files: tuple[SourceFile, ...],
        now: dt.datetime,
        pipe: str | None,
    ) -> CopyShare:
        if position.intent is None and (why := self._why_not_copy(files)) is not None:
            raise ConfigurationError(f"{why}. Nothing was loaded: correct the file, or take path='stream'")
        paths = tuple(
            ContentPath.of(position.channel, file.name, Path(file.path), file.size) for file in files
        )
        before = position.intent
        after = before.after if before else position.token
        since, loader = (before.since, before.pipe) if before else (now, pipe)
        rows = before.rows_inserted if before else position.rows_inserted
        intent = CopyIntent(after, _copied_name(files[-1]), since, rows, partition.binding.digest, loader)
        reader, line = reader_of(self._spec.form), 0
        for block in reader.blocks(files[-1], after_line=0, offset=0, keep_tail=True, limits=BatchLimits()):
            line = block.last_line
        last = UnitOffset(files[-1].unit, files[-1].name, line)
        end = self._channel_source(partition).token(last, position.rows, position.errors)
        return CopyShare(position, files, paths, end, last, intent)


def _under_intent(share: CopyShare, token: str) -> TokenChange:
    """A change of a token that expects the share's intent."""
    return TokenChange(share.position.channel, token, str(share.intent), share.intent.rows_inserted)
