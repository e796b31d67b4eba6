"""A batch that an earlier run has begun is judged as a whole, over all its channels, before a row is sent.

Each channel's token shows which rows of the batch it has. Whether they are the first rows of the channel's
share now is seen for one channel only by whoever reads its share; a channel that has nothing yet would take
rows that lie committed in another one. So the driver asks for the tokens of all channels, tasks of a job of
its own compare, and rows move only if none has found a difference. A new batch costs no such job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from airflow_provider_snowpipe.bulk.statement_client import statement_rows
from airflow_provider_snowpipe.spark.credentials import standing_credentials
from airflow_provider_snowpipe.spark.data_source.gates import driver_client, fenced
from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.data_source.parts import (
    BatchIdentity,
    DigestedShare,
    RowEncoder,
    channel_shares,
    refuse_other_writer,
    without_empty,
)
from airflow_provider_snowpipe.spark.driver.failures import final_error
from airflow_provider_snowpipe.streaming.errors import (
    ContinuityError,
    OffsetTokenError,
    SnowpipeError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.names import full_name
from airflow_provider_snowpipe.streaming.offsets import BatchDigestOffset
from airflow_provider_snowpipe.streaming.progress import ListedChannel, show_channels

if TYPE_CHECKING:
    import pyarrow as pa

FINDING_SCHEMA = "partition int, channel string, error_type string, error string"
"""What a task gives, as Spark writes a schema."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a task found out about one channel's share of a partition.

    :param partition: the partition's number
    :param channel: the channel's name, empty where the error belongs to none
    :param error_type: class name of the error, None if the committed rows are the share's first ones
    :param error: its text
    """

    partition: int
    channel: str
    error_type: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class BegunBatch:
    """A batch with rows that an earlier run has committed.

    :param options: the options of the write
    :param identity: the batch
    :param committed: the tokens of its channels that have rows of it
    :param variants: the DataFrame's VARIANT columns
    """

    options: WriteOptions
    identity: BatchIdentity
    committed: Mapping[str, BatchDigestOffset]
    variants: frozenset[str] = frozenset()

    @classmethod
    def find(
        cls, options: WriteOptions, identity: BatchIdentity, variants: frozenset[str] = frozenset()
    ) -> BegunBatch | None:
        """Ask all channels what they have of a batch; older writers of them are shut out.

        Channels that a column names are found by ``SHOW CHANNELS``, over the SQL API.

        :param options: the options of the write
        :param identity: the batch
        :param variants: the DataFrame's VARIANT columns
        :return: None where there is nothing to compare: the batch is new, or has one channel, which its own
            task compares, or nothing of it can be sent any more
        :raises SourcePositionError: if it was begun over other partitions, or by another way to name channels
        :raises SqlError: if the channels cannot be listed
        """
        if options.partitions == 1:
            return None
        names = _channels(options)
        with driver_client(options) as client:
            statuses = client.channel_statuses(names)
            found = {name: _token(status.committed) for name, status in statuses.items() if status.exists}
            for name, token in found.items():
                if token and (token.batch, token.writer) == (identity.batch, identity.writer):
                    refuse_other_writer(name, token, identity)
            open_ones = [
                name
                for name, token in found.items()
                if options.partitions is not None
                or statuses[name].committed is None
                or (token is not None and _is_of(token, identity))
            ]
            now = fenced(client, open_ones)
        tokens = {name: _token(status.committed) for name, status in now.items()}
        begun = {name: token for name, token in tokens.items() if token and _is_of(token, identity)}
        if not begun or (len(begun) == options.partitions and all(one.final for one in begun.values())):
            return None
        return cls(options, identity, begun, variants)

    def compare(self, partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[Finding]:
        """Hold one partition's rows against what is committed; runs in a Spark task, and sends nothing.

        Shares of which nothing is committed are not read.

        :param partition: the partition's number
        :param batches: its rows
        """
        options = self.options
        try:
            for part, rows in channel_shares(options, partition, without_empty(batches)):
                first = next(rows, None)
                if first is None:
                    continue
                channel = options.channel(part)
                position = self.committed.get(channel)
                try:
                    if position is not None:
                        encoder = RowEncoder(
                            options.ndjson, options.omit_columns, options.limits, self.variants
                        )
                        share = DigestedShare(channel, self.identity, encoder, 0)
                        next(share.parts(chain([first], rows), position), None)
                except SourcePositionError as error:
                    yield Finding(partition, channel, type(error).__name__, str(error))
                else:
                    yield Finding(partition, channel)
        except SnowpipeError as error:
            yield Finding(partition, "", type(error).__name__, str(error))

    def refuse_differences(self, findings: Iterable[Finding]) -> None:
        """Refuse the batch unless every channel's committed rows are the first ones of its share.

        :param findings: those of all partitions
        :raises SourcePositionError: if they are not
        :raises SnowpipeError: what a task met; nothing was sent in either case
        """
        found = list(findings)
        where: dict[str, int] = {}
        for one in found:
            if one.channel and where.setdefault(one.channel, one.partition) != one.partition:
                raise ContinuityError(
                    f"rows of channel {one.channel!r} lie in the partitions {where[one.channel]} and "
                    f"{one.partition}. Nothing was sent: repartition by the channelColumn before the write"
                )
        wrong = [(one.error_type, one.error or "") for one in found if one.error_type is not None]
        gone = sorted(self.committed.keys() - where.keys())
        if gone and not wrong:
            wrong = [
                (
                    SourcePositionError.__name__,
                    f"channel {name!r}: batch {self.identity.batch} has no row for it now, but "
                    f"{str(self.committed[name])!r} is committed: the replay brings other rows",
                )
                for name in gone
            ]
        if wrong:
            more = f" ({len(wrong) - 1} more differ)" if len(wrong) > 1 else ""
            raise final_error(
                wrong[0][0] or "",
                f"batch {self.identity.batch} is refused as a whole, and nothing was sent: "
                f"{wrong[0][1]}{more}. The rows that it was begun with, in the partitions that they lay in, "
                "are accepted at any time",
            )


def _channels(options: WriteOptions) -> list[str]:
    if options.partitions is not None:
        return [options.channel(number) for number in range(options.partitions)]
    pipe = options.pipe
    listed = _listed(options, show_channels(pipe))
    if not listed:  # the pipe is new, or the streaming API takes its name in characters that SQL does not
        in_schema = _listed(options, f"SHOW CHANNELS IN SCHEMA {full_name(pipe.database, pipe.schema)}")
        listed = [one for one in in_schema if one.pipe and one.pipe.casefold() == pipe.pipe.casefold()]
    return [one.name for one in listed if one.name.startswith(f"{options.channel_prefix}_")]


def _listed(options: WriteOptions, statement: str) -> list[ListedChannel]:
    credentials = standing_credentials(options.credentials_file)
    rows = statement_rows(options.account_url, credentials, statement, ca_bundle=options.ca_bundle)
    return [ListedChannel.from_row(row) for row in rows]


def _token(committed: str | None) -> BatchDigestOffset | None:
    """A channel's token; None where it is of another format, which the task of a channel refuses."""
    try:
        return None if committed is None else BatchDigestOffset.parse(committed)
    except OffsetTokenError:
        return None


def _is_of(token: BatchDigestOffset, batch: BatchIdentity) -> bool:
    return (token.batch, token.writer, token.partitions) == (batch.batch, batch.writer, batch.partitions)
