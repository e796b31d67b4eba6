"""The units of a source of files that COPY and pipes load, beside those that are streamed.

The source log gives each unit to one loader, in the entry that makes it. COPY takes all new files in one
entry, which is one piece of work for any task; a stream never reads these units. What the log does not have
as loaded is asked of the load ledger, under the work that the entry names, by whoever comes next.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from airflow_provider_snowpipe.bulk.ledger_entry import GONE, LOADED
from airflow_provider_snowpipe.bulk.other_loaders import Account
from airflow_provider_snowpipe.bulk.source_loads import SourceLoads
from airflow_provider_snowpipe.routing.probes import DataShape, ListedFile, listing_shape
from airflow_provider_snowpipe.spark.sources.files.formats import compression_of
from airflow_provider_snowpipe.spark.sources.files.given_load import GivenLoad
from airflow_provider_snowpipe.spark.sources.files.log import Loader
from airflow_provider_snowpipe.spark.sources.files.partition import FilePartition, committed_unit
from airflow_provider_snowpipe.spark.sources.files.reader import FileSource as OpenedFiles
from airflow_provider_snowpipe.spark.sources.files.spec import SourceFile
from airflow_provider_snowpipe.spark.submit.copy_rows import why_not_copy_file, why_rows_are_staged
from airflow_provider_snowpipe.streaming.checkpoint import ChannelSource, OnImbalance, Rebind, check_balance
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    PartlyStreamedError,
    PipeNotFoundError,
    SourceUnavailableError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import UnitOffset
from airflow_provider_snowpipe.streaming.ownership import LastCheckpoints, OwnChannel, refuse_lost
from airflow_provider_snowpipe.streaming.progress import ChannelStatus

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.source import OnDataLoss
    from airflow_provider_snowpipe.spark.sources.files.spec import FileSource
    from airflow_provider_snowpipe.streaming.names import PipeName

__all__ = ["FileUnits", "GivenLoad", "PartitionPosition", "SourceFile", "TableAccount"]


class TableAccount(Account, Protocol):
    """What is asked of the hook of a table and its default pipe."""

    table: Any

    def account_url(self) -> str:
        """The account's address."""

    def pipe_name(self) -> PipeName:
        """The table's default pipe."""

    def channel_statuses(self, channels: Sequence[str], /) -> dict[str, ChannelStatus]:
        """The status of channels, by name."""

    def table_created(self, table: str, /) -> str | None:
        """When a table was created, None for one that is not seen."""


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """How far a partition's rows are in the table.

    :param left: its files, whole or pieces, that are not in the table; nobody was given them, or the stream
    :param committed: the last row that was streamed, None for none
    :param has_rest: True where the file of that row has more rows
    :param waits: what the last file of it has got while it grows, which only a stream takes
    :param given: its files that COPY or a pipe was given, and is not known to have loaded
    :param rows_inserted: rows that were streamed into the channel and are visible
    :param taken: the number of the last unit in the log
    """

    partition: str
    channel: str
    left: tuple[SourceFile, ...] = ()
    committed: UnitOffset | None = None
    has_rest: bool = False
    waits: tuple[SourceFile, ...] = ()
    given: tuple[SourceFile, ...] = ()
    rows_inserted: int = 0
    taken: int = 0

    @property
    def is_done(self) -> bool:
        """True when no row is left."""
        return not (self.left or self.has_rest or self.waits or self.given)

    def require_whole_files(self) -> None:
        """Refuse to give files to COPY or a pipe, which take whole ones that no stream was given.

        :raises PartlyStreamedError: if there is another one
        """
        streamed = next((one for one in self.left if one.unit <= self.taken), None)
        piece = next((one for one in self.left if one.start), None)
        if self.has_rest and self.committed is not None:
            what = f"{self.committed.file!r} is streamed up to row {self.committed.line}, and has more"
        elif streamed is not None:
            what = f"{streamed.name!r} was given to the stream, which has not loaded it"
        elif piece is not None:
            what = f"{piece.name!r} has grown, and its first {piece.after_line} lines are taken"
        else:
            return
        raise PartlyStreamedError(
            f"channel {self.channel!r}: file {what}: COPY and pipes take whole files, so that rows would be "
            "loaded twice. Load it with path='stream'; nothing was loaded"
        )


_MOST_PLANS = 50


class FileUnits:
    """The files of a source, as they are now, and who loads them.

    :param on_data_loss: ``skip`` allows that files are gone
    :param last: what earlier runs have seen of the source's channels
    :param ledger: the task's own load ledger, None for the default
    :param source_logs: the logs that have given files to COPY and pipes, as Airflow knows, with last entries
    :param ledgers: the ledgers of these loads
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
        ledger: str | None = None,
        source_logs: Mapping[str, int] | None = None,
        ledgers: Sequence[tuple[str, ...]] = (),
    ) -> None:
        self._spec = spec
        self._on_imbalance = on_imbalance
        self._run, self._rebind, self._last = run, rebind, last
        self._channel_of = channel_of
        self._hook = hook
        self._ledger, self._ledgers, self._known = ledger, ledgers, source_logs or {}
        self.may_lose = on_data_loss == "skip"
        self.source = OpenedFiles(spec, on_data_loss)
        self.source.for_target(hook.pipe_name().address(hook.account_url()), run=run)
        self._partitions = self.source.partitions()
        self.table = str(hook.table)

    def positions(self, *, may_lack_table: bool = False) -> list[PartitionPosition]:
        """How far each partition is in the table, by its channel's token; there may be no table yet."""
        channels = self._channels()
        try:
            statuses = self._hook.channel_statuses(list(channels))
        except PipeNotFoundError:
            if not may_lack_table:
                raise
            statuses = {}
        own = [
            OwnChannel(self._channel_source(one), statuses[name], one.recorded())
            for name, one in channels.items()
            if name in statuses
        ]
        if not self.loaders():  # COPY and pipes need no channel, and know the table
            refuse_lost(own, self._last)
        return [
            self._position(one, statuses.get(channel) or ChannelStatus.missing(channel))
            for channel, one in channels.items()
        ]

    def _channels(self) -> dict[str, FilePartition]:
        """The partitions by the channels that the log gives them to, or by this task's own names."""
        known = self.source.log.channels(self._spec.owner)
        return {known.get(one.name) or self._channel_of(one.name): one for one in self._partitions}

    def shape(self, positions: Sequence[PartitionPosition], known: Mapping[str, Any]) -> DataShape:
        """The shape of what is not in the table yet; a file that is streamed in part counts as a whole."""
        left = []
        for one, position in zip(self._partitions, positions, strict=True):
            rest = position.committed.unit if position.has_rest and position.committed else 0
            begun = (file for file in one.group.files if file.unit == rest)
            left += [
                ListedFile(file.path, file.size, dt.datetime.fromtimestamp(file.modified_ns / 1e9, dt.UTC))
                for file in (*position.given, *begun, *position.left, *position.waits)
            ]
        partitions = max(1, sum(not position.is_done for position in positions))
        return listing_shape(left, dt.datetime.now(dt.UTC), **{"partitions": partitions, **known})

    def why_not_copy(self, positions: Sequence[PartitionPosition]) -> str | None:
        """Why COPY would make other rows than the stream of what is not in the table, None for the same."""
        files = (file for position in positions for file in position.left)
        reasons = (why_not_copy_file(self._spec, file) for file in files)
        return next((why for why in reasons if why is not None), None)

    @property
    def takes_rows(self) -> bool:
        """True where COPY and pipes are given the stream's rows, since it would make others of the files."""
        return why_rows_are_staged(self._spec) is not None

    def compressions(self) -> set[str]:
        """How what is staged is compressed, as COPY names it."""
        if self.takes_rows:
            return {"GZIP"}
        return {
            compression_of(file, self._spec.form.compression).upper()
            for one in self._partitions
            for file in (*one.group.files, *one.group.given)
        }

    @property
    def is_new(self) -> bool:
        """True where the log has no unit of this load, so that another one may be lost."""
        return not any(one.owner == self._spec.owner for one in self.source.log.units)

    @property
    def kept(self) -> dict[str, Any] | None:
        """What Airflow is to keep: logs and ledgers of loads by COPY and pipes; None for no such load."""
        if not self.loaders():
            return None
        log = self.source.log
        return {"source_logs": {**self._known, log.log_id: log.number}, "ledgers": self._recorded}

    def loaders(self) -> set[str | None]:
        """The pipes that have loaded files of the source, or are to; None among them for COPY."""
        units = (one for one in self.source.log.units if one.owner == self._spec.owner and one.entry)
        return {Loader.read(one.loader).pipe for one in units}

    def list_again(self) -> None:
        """List the files again, after a load that had begun has ended."""
        self._partitions = self.source.partitions()

    def give(self, pipe: str | None, stage: str) -> GivenLoad | None:
        """Give all new files to COPY or a pipe; no load has begun.

        :param stage: from where it loads
        :return: None where there is none
        :raises PartlyStreamedError: if the stream has begun one
        :raises ConfigurationError: if COPY would make other rows of one
        :raises SourceChangedError: if another log of the source has given files to COPY or a pipe
        """
        for _ in range(_MOST_PLANS):
            positions = self.positions()
            for position in positions:
                position.require_whole_files()
            if (why := self.why_not_copy(positions)) is not None:
                raise ConfigurationError(
                    f"{why}. Nothing was loaded: correct the file, or take path='stream'"
                )
            table, ledger = "", tuple[str, ...]()
            if any(one.left for one in positions):
                ledger, table = self.require_log(), self.require_table()
            committed = {one.channel: one.committed for one in positions}
            loader = Loader(pipe, stage, ledger, self.takes_rows)
            loads = self.source.give(self._channels(), committed, loader, table)
            if loads is not None:
                return next(iter(loads), None)
            self.list_again()
            if self.source.given():
                break
        raise SourceUnavailableError(
            f"source {self._spec.address!r}: other loads have written the source log meanwhile. Nothing was "
            "loaded; run again"
        )

    def require_known(self) -> None:
        """Refuse another log or another table than COPY or a pipe has loaded files of the source by.

        :raises SourceChangedError: as :meth:`require_log`
        :raises SourcePositionError: as :meth:`require_table`
        """
        is_unknown = self.loaders() and self.source.log.log_id not in self._known
        if is_unknown or self.source.other_logs(self._known):
            self.require_log()
        if self._known or self.loaders():
            self.require_table()

    def require_log(self) -> tuple[str, ...]:
        """Refuse a log that has replaced another one, by which COPY or pipes were given files.

        :return: database, schema and name of the task's ledger
        :raises SourceChangedError: if there is one, unless all is to be loaded again
        :raises FilesGivenTwiceError: if a pipe may still load files of it
        """
        log, loads = self.source.log.log_id, self._loads()
        own, known = loads.logs(log, self._known)
        if lost := self.source.lost_logs(known, "the ledger", self._rebind):
            loads.end(log)
            self.source.replace_logs(lost)
            self.list_again()
        return own

    @property
    def _recorded(self) -> tuple[tuple[str, ...], ...]:
        """The ledgers of loads that Airflow knows or the log names."""
        given = (Loader.read(one.loader).ledger for one in self.source.log.units if one.entry)
        return tuple(dict.fromkeys((*self._ledgers, *given)))

    def _loads(self) -> SourceLoads:
        return SourceLoads(self._hook, self.table, self._spec.address, (self._ledger, *self._recorded))

    def require_table(self) -> str:
        """Refuse another table than that of earlier loads by COPY and pipes.

        :return: when it was created, empty for not known
        :raises SourcePositionError: if there is another one, without ``rebind``
        """
        now = self._hook.table_created(self.table) or ""
        if not self.source.is_in_another(now, self._rebind):
            return now
        lost = None
        if self._rebind == "restart":
            channels = self._channels()
            tokens = self._hook.channel_statuses(list(channels))
            lost = [one.name for name, one in channels.items() if tokens[name].committed is None]
        for ledger in self._loads().each():
            ledger.replace_table(self.source.log.log_id, LOADED if lost is None else GONE)
        self.source.replace_table(now, lost)
        self.list_again()
        return now

    def end(self, given: GivenLoad, loaded: Mapping[str, int], given_up: Collection[str] = ()) -> None:
        """Write into the log which files of a load are in the table, and which ones never will be.

        :param loaded: the rows of each, by path
        """
        numbers = {path: one.number for (one, _), path in zip(given.units, given.paths, strict=True)}
        self.source.end(
            {numbers[path]: rows for path, rows in loaded.items()}, {numbers[one] for one in given_up}
        )

    def _channel_source(self, partition: FilePartition) -> ChannelSource:
        return ChannelSource(UnitOffset, partition.binding, self._run, self._rebind)

    def _position(self, partition: FilePartition, status: ChannelStatus) -> PartitionPosition:
        group = partition.group
        start = self._channel_source(partition).start(status)
        check_balance(status.channel, start.excess, self._on_imbalance)
        committed = None if start.position is None else cast(UnitOffset, start.position)
        partition.check(committed)
        done, taken = {*group.gone, *group.replaced, *group.committed}, self.source.log.last_unit
        left = [file for file in group.files if _is_behind(file, committed) and file.unit not in done]
        resume_at = None if committed is None else partition.resume(committed)
        begun = None if resume_at is None else next(partition.blocks(resume_at, BatchLimits()), None)
        has_rest = begun is not None and begun[0].unit == committed_unit(committed) and begun[0] not in left
        grows = self.source.last_growing.get(group.partition)
        waits = [one for one in left if one.name == grows and one.unit > taken]
        return PartitionPosition(
            group.partition,
            status.channel,
            tuple(one for one in left if one not in waits),
            committed,
            has_rest,
            tuple(waits),
            group.given,
            status.rows_inserted,
            taken,
        )


def _is_behind(file: SourceFile, committed: UnitOffset | None) -> bool:
    """True for a file with rows, but without a committed one."""
    if file.size <= file.start:
        return False
    if committed is None or file.unit > committed.unit:
        return True
    return file.unit == committed.unit and committed.line <= file.after_line
