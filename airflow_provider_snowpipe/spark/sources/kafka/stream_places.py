"""Where a stream of topics begins and ends its micro-batches; knows nothing of PySpark.

An offset of the stream is an object of topics, each an object of partitions, with the next offset to read.
Spark keeps it in its checkpoint. The bookmark is the channels' committed tokens all the same: whenever a
query starts, with or without a checkpoint, its first micro-batch begins just behind them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_snowpipe.spark.credentials import standing_secrets
from airflow_provider_snowpipe.spark.sources.kafka.cluster import Bounds, TopicAndNumber
from airflow_provider_snowpipe.spark.sources.kafka.reader import KafkaPartition, KafkaSource
from airflow_provider_snowpipe.spark.sources.kafka.stream_options import StreamOptions
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset

StreamOffset = dict[str, dict[str, int]]
_Places = dict[TopicAndNumber, int]


class StreamPlaces:
    """The places of one query, kept on the driver while it runs.

    :param options: what the stream's options say
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._known: dict[TopicAndNumber, KafkaPartition] = {}
        self._source = KafkaSource(options.spec, options.on_data_loss)
        self._started = False
        self._last: _Places | None = None

    def initial(self) -> StreamOffset:
        """Where a query without a checkpoint begins: behind the tokens, else as the options say.

        :raises SnowpipeError: if the cluster or the service cannot be asked
        """
        known = self._look()
        committed = self._committed(known, checked=True)
        self._keep_start(committed)
        return _offset({one: committed.get(one, partition.first - 1) + 1 for one, partition in known.items()})

    def fix_end(self) -> None:
        """Let the query end at what is there now."""
        self._last = {one: partition.bounds.end for one, partition in self._look().items()}

    def latest(self, start: StreamOffset, limit: int | None) -> StreamOffset:
        """Where the next micro-batch ends.

        :param start: where it begins
        :param limit: offsets over all partitions, None for all that is there
        :raises SourcePositionError: if a topic is not the one that the query has read before
        """
        begins, ends = _places(start), self._ends()
        for one, begin in begins.items():
            if one in self._known:
                _refuse_beyond(self._known[one], begin)
        first = {one: begins.get(one, self._known[one].bounds.earliest) for one in ends}
        left = {one: max(end - first[one], 0) for one, end in ends.items()}
        if limit is not None and sum(left.values()) > limit:
            left = _shares(left, limit)
        return _offset({one: first[one] + left[one] for one in ends})

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[KafkaPartition]:
        """What the tasks of a micro-batch read, one range for each topic-partition that has some.

        :param start: where the micro-batch begins by Spark's checkpoint
        :param end: where it ends
        :raises SourcePositionError: if a range is not in its topic any more
        """
        begins, ends = _places(start), _places(end)
        known = self._known
        if not self._started or not set(ends) <= set(known):
            known = self._look()
        begins = {one: begins.get(one, known[one].bounds.earliest) for one in ends if one in known}
        if not self._started:
            committed = self._committed(known, checked=True)
            begins |= {one: offset + 1 for one, offset in committed.items() if one in begins}
            self._keep_start(committed)
        ranges = [
            _between(self._of(known, one), begins.get(one, 0), stop) for one, stop in sorted(ends.items())
        ]
        return [one for one in ranges if one.resume(_before(one.first)) is not None]

    def keep(self) -> None:
        """Move the group's offsets behind the committed tokens; called when a micro-batch is done."""
        if self._options.spec.group_id is not None:
            self._finish(self._committed(self._known or self._look()))

    def _keep_start(self, committed: Mapping[TopicAndNumber, int]) -> None:
        self._started = True
        if self._options.spec.group_id is not None:
            self._finish(committed)

    def _finish(self, committed: Mapping[TopicAndNumber, int]) -> None:
        self._source.finish({self._known[one].name: IntegerOffset(at) for one, at in committed.items()})

    def _ends(self) -> _Places:
        """How far partitions reach, at most to where the query is to end."""
        ends = {one: partition.bounds.end for one, partition in self._look().items()}
        if self._last is None:
            return ends
        return {one: min(ends.get(one, last), last) for one, last in self._last.items()}

    def _look(self) -> dict[TopicAndNumber, KafkaPartition]:
        """Ask the cluster, with the secrets that the credentials file holds now."""
        secrets = standing_secrets(self._options.credentials_file)[1]
        self._source.take_secrets(secrets)
        self._known = {(one.topic, one.number): one for one in self._source.partitions()}
        return self._known

    def _committed(self, known: Mapping[TopicAndNumber, KafkaPartition], *, checked: bool = False) -> _Places:
        """The offsets that channels have committed; others have none.

        :param known: the topic-partitions
        :param checked: True makes sure that the offsets are of these topics
        """
        options = self._options
        names = {options.channel(partition.name): one for one, partition in known.items()}
        credentials = standing_secrets(options.credentials_file)[0]
        with SnowpipeClient(
            options.account_url, credentials, options.pipe, ca_bundle=options.ca_bundle
        ) as client:
            offsets = {
                name: None
                if status.committed is None
                else IntegerOffset.parse(status.committed, channel=name)
                for name, status in client.channel_statuses(list(names)).items()
            }
            if checked:
                own = {name: known[one] for name, one in names.items()}
                self._source.check_identity(client, own, offsets)
        return {names[name]: offset.value for name, offset in offsets.items() if offset is not None}

    def _of(self, known: Mapping[TopicAndNumber, KafkaPartition], one: TopicAndNumber) -> KafkaPartition:
        if one not in known:
            raise SourcePositionError(
                f"the checkpoint has partition {one[1]} of topic {one[0]!r}, which is not there now: bring "
                "it back, or begin with a new checkpointLocation; the committed tokens say where"
            )
        return known[one]


def _between(partition: KafkaPartition, begin: int, end: int) -> KafkaPartition:
    """The part of a partition that one micro-batch reads."""
    _refuse_beyond(partition, end)
    bounds = partition.bounds
    return replace(partition, first=begin, bounds=Bounds(bounds.earliest, end, bounds.high))


def _refuse_beyond(partition: KafkaPartition, offset: int) -> None:
    if offset > partition.bounds.high:
        raise SourcePositionError(
            f"by the checkpoint or the channel's token, offset {offset} is the next one of partition "
            f"{partition.number} of topic {partition.topic!r}, which ends before {partition.bounds.high}: it "
            "is another topic of that name, or the brokers have lost records. Begin with a new "
            "checkpointLocation; where channels have tokens of the old topic, with another channelPrefix, too"
        )


def _before(begin: int) -> IntegerOffset | None:
    return IntegerOffset(begin - 1) if begin else None


def _shares(left: Mapping[TopicAndNumber, int], limit: int) -> _Places:
    """Divide a limit by what is left of each partition; one that has some gets at least one."""
    total = sum(left.values())
    return {one: min(count, max(1, limit * count // total)) if count else 0 for one, count in left.items()}


def _offset(places: Mapping[TopicAndNumber, int]) -> StreamOffset:
    found: StreamOffset = {}
    for (topic, number), offset in sorted(places.items()):
        found.setdefault(topic, {})[str(number)] = offset
    return found


def _places(offset: Mapping[str, Mapping[str, Any]]) -> _Places:
    return {
        (topic, int(number)): int(at) for topic, numbers in offset.items() for number, at in numbers.items()
    }
