"""Rows of a partition taken apart by the column that names their channel."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, ContinuityError


def channel_shares(
    options: WriteOptions, partition: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[str | int, Iterator[pa.RecordBatch]]]:
    """The channels of a partition, by what follows the prefix in their names, each with its rows.

    :param options: what names the channels
    :param partition: the partition's number
    :param batches: its rows, none of the batches empty
    :raises ContinuityError: as :class:`ChannelRuns` does
    :raises ConfigurationError: if there are more partitions than the options say
    """
    if options.channel_column is not None:
        yield from ChannelRuns(batches, options.channel_column)
        return
    partitions = options.partitions or 0
    if partition >= partitions:
        raise ConfigurationError(
            f"the plan has a partition {partition}, option partitions is {partitions}: fix the "
            f"plan's number by repartition({partitions}, column) or coalesce({partitions}), or, for "
            "channels that hold nothing yet, give the number that the plan has"
        )
    yield partition, batches


class ChannelRuns:
    """The channels of a partition, one after the other, each with its rows.

    A channel's rows must lie together, so that each channel is opened once. Like ``itertools.groupby``, it
    reads on when the caller does, and a run is over once the next one is asked for.

    :param batches: the partition's rows, none of the batches empty
    :param column: the column that names the channel
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], column: str) -> None:
        self._batches = batches
        self._column = column
        self._waiting: list[tuple[str, pa.RecordBatch]] = []
        self._seen: set[str] = set()

    def __iter__(self) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
        """Give each channel's value as text, with its rows.

        :raises ContinuityError: if a value is missing, or comes again after another one
        """
        while self._fill():
            value = self._waiting[-1][0]
            if value in self._seen:
                raise ContinuityError(
                    f"channelColumn {self._column!r}: rows of {value!r} come again after those of another "
                    "channel, so they were not sent: add sortWithinPartitions(channelColumn, a unique key), "
                    "in a stream within foreachBatch"
                )
            self._seen.add(value)
            rows = self._rows_of(value)
            yield value, rows
            for _ in rows:
                """What the caller left."""

    def _rows_of(self, value: str) -> Iterator[pa.RecordBatch]:
        while self._fill() and self._waiting[-1][0] == value:
            yield self._waiting.pop()[1]

    def _fill(self) -> bool:
        """Have at least one piece of a batch waiting, the next one last; False at the end."""
        if not self._waiting:
            batch = next(self._batches, None)
            if batch is None:
                return False
            self._waiting = self._pieces(batch)[::-1]
        return True

    def _pieces(self, batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        values = batch.column(self._column).cast(pa.string())
        if values.null_count:
            raise ContinuityError(
                f"channelColumn {self._column!r} holds NULL: each row needs a channel; filter such rows or "
                "give them a value with coalesce"
            )
        changes = pc.indices_nonzero(pc.not_equal(values[1:], values[:-1])).to_pylist()
        cuts = [0, *(index + 1 for index in changes), batch.num_rows]
        return [(values[low].as_py(), batch.slice(low, high - low)) for low, high in pairwise(cuts)]
