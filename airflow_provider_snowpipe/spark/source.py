"""What a source is to the job: ordered partitions with a fixed end, each read from just after a token.

A new source is one folder in ``sources/``, or in another package, with three classes: its
:class:`SourceSpec`, which is in the plan and which the registry or an entry point names; its
:class:`Source`, which the driver asks for ``partitions()``; and its :class:`SourcePartition`,
which travels to an executor and answers ``resume(token)`` and ``read()`` there.
Channels, tokens, batches, retries and commits are the sink's, never a source's.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from airflow_provider_snowpipe.streaming.checked_values import TypedArgument
from airflow_provider_snowpipe.streaming.checkpoint import Binding, Rebind
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import channel_name
from airflow_provider_snowpipe.streaming.offsets import Offset

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_snowpipe.streaming.batch import Part
    from airflow_provider_snowpipe.streaming.lag import FileBehind
    from airflow_provider_snowpipe.streaming.row_gate import DeadLetterStore


OnDataLoss = Literal["fail", "skip"]
PositionT = TypeVar("PositionT")


class SourceSpec(TypedArgument, ABC):
    """The specification of a source: a frozen dataclass of JSON values without a secret in it.

    A subclass has a field ``kind``, by which the registry of sources finds it, and checks its values in
    ``__post_init__``. With a field ``conn_id`` an Airflow connection completes it before it is in a plan.
    """

    __slots__ = ()

    _argument = "source"
    kind: str
    source_class: ClassVar[str]
    """``module:name`` of the :class:`Source`, or of what makes it, from the spec and ``on_data_loss``."""
    takes_connection: ClassVar[bool] = False
    backlog_shape: ClassVar[str | None] = None
    """``module:name`` of the function that gives a router the shape of what is beyond the committed tokens.

    It takes the spec, the secrets, the first part of the channels' names, a function that gives the committed
    tokens of channels by their names, and what else is known of the data. None where that is not known.
    """

    @staticmethod
    def from_address(address: str) -> dict[str, Any]:
        """Read an address of the source, for those that the registry knows by a scheme.

        :param address: a URL
        :raises ConfigurationError: if it lacks a part
        """
        raise NotImplementedError

    @staticmethod
    def with_connection(values: Mapping[str, Any], connection: Any) -> tuple[dict[str, Any], SourceSecrets]:
        """Complete a source's values from a connection; for those with ``takes_connection``.

        :param values: the source as the author gives it, whose keys win over the connection's
        :param connection: an Airflow connection: this package needs its host, port, schema, login,
            password and ``extra_dejson``
        :returns: the values without a secret, and the secrets
        """
        raise NotImplementedError

    @property
    @abstractmethod
    def offset_format(self) -> str:
        """Format of the offset tokens, a name that ``offset_class`` knows."""

    @property
    @abstractmethod
    def default_name(self) -> str:
        """Second part of the channels' names where the author gives none; stable over runs."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where the rows come from, for people and for lineage: a path or a URI, without credentials."""

    def check_streamable(self) -> None:
        """Refuse a source whose rows have no positions: one for a bulk load.

        :raises ConfigurationError: naming what it lacks
        """

    def check_dead_letter_topic(self, topic: str) -> None:
        """Refuse a topic for rows that do not fit the table, where the source cannot write to it.

        :raises ConfigurationError: if it cannot
        """
        raise ConfigurationError(
            f"dead_letter_path names the topic {topic!r}, and a source of the kind {self.kind!r} knows no "
            "brokers: give a directory or a URL that all executors reach"
        )

    @property
    def split(self) -> str:
        """How it is split into partitions, in words; split otherwise, its rows have other channels."""
        named = ((name, getattr(self, name, None)) for name in ("partition_by", "ranges"))
        return ", ".join(f"{name} {value!r}" for name, value in named if value)

    @property
    def row_columns(self) -> tuple[tuple[str, ...], str] | None:
        """The columns that show which file or partition a row is from, and its number there."""
        return None

    @property
    def channel_prefix(self) -> str | None:
        """The first part of the channels' names where the source itself sets it, None where it does not."""
        return None

    @property
    def has_bare_tokens(self) -> bool:
        """True where the channels are a connector's, which writes and reads bare positions."""
        return False

    def other_spellings(self, prefix: str, partition: str) -> tuple[str, ...]:
        """Names under which somebody else may have loaded a partition, to be refused when its own is new."""
        return ()

    def channel(self, prefix: str, source_name: str, partition: str) -> str:
        """Name the channel of a partition."""
        return channel_name(prefix, source_name, partition)


@dataclass(frozen=True, slots=True)
class Behind:
    """What of a partition is not committed yet, at most.

    :param bytes: bytes in the source, None where the source does not know
    :param rows: rows, or offsets that may be rows, None where the source does not know
    """

    bytes: int | None
    rows: int | None = None


class Partition(ABC):
    """One ordered unit of a source, loaded through one channel by one task at a time.

    Made on the driver with a fixed end, so that a run ends however the source grows meanwhile. It is pickled
    to an executor; secrets that it needs there must not show in its ``repr``.
    """

    __slots__ = ()

    offset_class: ClassVar[type[Offset]]
    gaps_legal: ClassVar[bool] = False

    name: str
    binding: Binding
    """What its positions mean: which source partition this is, and what decides how its rows are numbered."""

    @abstractmethod
    def check(self, committed: Offset | None) -> None:
        """Refuse a committed position that the source cannot go on from, as far as that is quickly seen.

        Called on the driver for every partition before any channel is opened.

        :param committed: the channel's committed position, None for NULL
        :raises SourcePositionError: if the position is not in the source any more
        """

    @abstractmethod
    def behind(self, committed: Offset | None) -> Behind:
        """Estimate how much of the partition is not committed, for progress only.

        :param committed: the channel's committed position, None for NULL
        """

    def files_behind(self, committed: Offset | None) -> Sequence[FileBehind] | None:
        """List the units of files that are not committed, in order; None where tokens name none.

        :param committed: the channel's committed position, None for NULL
        """
        return None

    def recorded(self) -> Offset | None:
        """Return the last position that the source's own record shows as committed, None without one."""
        return None

    def row_keys(self) -> Sequence[tuple[str, ...]]:
        """What its rows have in the first columns of :attr:`SourceSpec.row_columns`, as texts."""
        return ()

    def open_dead_letters(
        self, path: str, channel: str, offset_class: type[Offset], after: Offset | None
    ) -> DeadLetterStore:
        """Open the store of rows that do not fit the table; called in the task.

        :param path: the plan's ``dead_letter_path``
        :param offset_class: the format of its positions
        :param after: the committed position, None for NULL
        :raises DeadLetterError: if it cannot be reached
        """
        from airflow_provider_snowpipe.streaming.row_gate import DeadLetterFolder

        return DeadLetterFolder(path, channel, offset_class, after)


class SourcePartition(Partition, Generic[PositionT]):
    """A partition whose rows the task itself reads."""

    __slots__ = ()

    def is_whole(self) -> bool:
        """Return whether its rows from the first one on are still there to be counted."""
        return True

    @abstractmethod
    def resume(self, committed: Offset | None) -> PositionT | None:
        """Find the position just after a committed position; nothing has been sent when this is called.

        Called on the driver where that :meth:`is_quick`, in a task elsewhere, and again in the task that
        sends if the channel has moved on meanwhile.

        :param committed: the channel's committed position, None for NULL
        :return: the position, None if the partition holds no row behind it
        :raises SourcePositionError: if the position is not in the source any more
        """

    def is_quick(self, committed: Offset | None) -> bool:
        """Return whether :meth:`resume` reads so little that starting a task for it would take longer.

        :param committed: the channel's committed position, None for NULL
        """
        return committed is None

    def is_done(self, committed: Offset | None) -> bool:
        """Return whether no row lies behind a committed position, where that costs little.

        :param committed: the channel's committed position, None for NULL
        :return: False also where the check would take long
        :raises SourcePositionError: if the position is not in the source any more
        """
        return self.resume(committed) is None

    @abstractmethod
    def read(self, resume_at: PositionT, limits: BatchLimits) -> Iterator[Part]:
        """Read the rows from a position to the partition's end, the same rows in the same order each time.

        A call comes before the channel is opened: it may ask for rows, and waits for none.

        :param resume_at: from :meth:`resume`
        :param limits: what a batch takes; a part is no larger than :func:`part_bytes` unless one row is
        :return: NDJSON with the positions of the first and the last row, none overlapping, in order
        :raises SourcePositionError: if the source changed since the run began
        :raises EncodingError: if a row has no form as JSON
        """


class Source(ABC):
    """A source as the driver sees it.

    Its partitions are :class:`SourcePartition`, except where Spark reads the rows: see :class:`FrameSource`.
    """

    run: str = ""
    """The run, as checkpoints name it; empty where nothing is loaded."""

    def take_secrets(self, secrets: SourceSecrets) -> None:
        """Take the secrets that the submitter gave for this source, before anything else is asked.

        :param secrets: passwords and keys by name
        :raises ConfigurationError: if the source has no use for them
        """
        if secrets:
            raise ConfigurationError(
                f"the source takes no secrets, but was given {secrets!r}: leave them out"
            )

    def with_spark(self, session: Callable[[], Any]) -> Source:
        """Take Spark where the source is read by it; called once, after the secrets and before all else.

        :param session: starts the job's session or gives the running one
        :return: the source that the run goes on with, for most this one, and Spark is not asked for
        :raises ConfigurationError: if Spark lacks what the source needs
        """
        return self

    def without_spark(self) -> Source | None:
        """Give the source that lists the same partitions without Spark; None where only Spark lists them."""
        return self

    def for_target(self, target: str, *, writes: bool = True, run: str = "") -> Source:
        """Take the pipe that the rows go to, before anything else is asked; a source may keep a log for each.

        :param target: the account and the pipe
        :param writes: False for who looks at the source and loads nothing
        :param run: the run, as checkpoints name it
        """
        self.run = run
        return self

    def copied_rows(self) -> Mapping[str, int]:
        """How many rows COPY and pipes have loaded of each file, by name, as far as that is known."""
        return {}

    def finish(self, committed: Mapping[str, Offset]) -> None:  # noqa: B027  most sources have no bookmark
        """Move the source's own bookmark, where it has one; called when the tokens are known as committed.

        :param committed: the committed position of each partition that has one, by partition name
        """

    def mark_complete(  # noqa: B027  most sources keep no log
        self, ends: Mapping[str, Offset | None], pieces: Mapping[str, Sequence[tuple[Offset, int]]]
    ) -> None:
        """Write down that every row of partitions up to their ends is committed; called after :meth:`finish`.

        :param ends: their committed positions, by partition name; None for one without a row
        :param pieces: the first position and the number of rows that this run has sent of each piece, by
            partition name
        """

    def claim(
        self,
        partitions: Mapping[str, Partition],
        committed: Mapping[str, Offset | None],
        *,
        rebind: Rebind | None = None,
        logs: Mapping[str, int] | None = None,
        table: str = "",
    ) -> bool:
        """Write down what the run is to load, and refuse what has changed; before any channel is opened.

        :param partitions: the partitions by channel
        :param committed: the committed position of each channel, None for NULL
        :param rebind: where it is given, a new channel may have a partition that was given to another one
        :param logs: the source logs by which COPY and pipes have loaded files, each with its last entry; None
            where nobody keeps them
        :param table: when the table was created, as the account writes it; empty for not known
        :return: False where they are others now: list the partitions again
        :raises SourcePositionError: if rows that were taken have changed
        :raises SourceChangedError: if the rows were given to another channel, or that log is lost
        """
        return True

    @abstractmethod
    def partitions(self) -> tuple[Partition, ...]:
        """List the partitions with their present ends, ordered by name; none where there is nothing to load.

        :raises SourcePositionError: if the source is not there
        :raises ConfigurationError: if it is not what the spec describes
        """


# -- Sources that Spark itself reads: one query, whose tasks each get one channel's rows in order --------

CHANNEL = "snowpipe_channel"
"""Column of a query's rows: number of their channel among the works of the round, from 0."""
LINE = "snowpipe_line"
"""Column of a query's rows: the row as JSON with a newline."""


class FramePartition(Partition):
    """A partition whose rows arrive in the task as Arrow batches.

    :param rows: rows that this run is to load, as far as they are counted
    :param end: the last position of this run, None until it is known
    """

    __slots__ = ()

    rows: int
    end: Offset | None

    def check(self, committed: Offset | None) -> None:
        """Nothing is seen before Spark has counted the rows."""

    def behind(self, committed: Offset | None) -> Behind:
        """Count how many rows the run has to load; how many bytes they are nobody knows before."""
        done = committed is not None and self.end is not None and committed >= self.end
        rows = 0 if done else self.rows
        return Behind(0 if done else None, rows)

    @abstractmethod
    def parts(
        self, batches: Iterator[pa.RecordBatch], committed: Offset | None, limits: BatchLimits
    ) -> Iterator[Part]:
        """Cut the rows that come after a committed position into parts.

        :param batches: the partition's rows in order, with the columns of its source's query
        :raises ContinuityError: if two rows are not in order, or have the same position
        :raises SourcePositionError: if the rows are not those that the committed position came from
        """


@dataclass(frozen=True, slots=True)
class FrameWork:
    """One partition with its channel.

    :param committed: what is committed as far as the driver knows, None for NULL
    :param end: the position of the last row of this run, None until it is located
    """

    channel: str
    partition: FramePartition
    committed: Offset | None
    end: Offset | None = None


class FrameSource(Source):
    """A source whose rows come from a query.

    The driver calls :meth:`use`, then :meth:`partitions`, :meth:`locate`, and :meth:`frame` for each round.
    """

    def with_spark(self, session: Callable[[], Any]) -> Source:
        """Start Spark, and :meth:`use` it.

        :raises ConfigurationError: if it is a session of Spark Connect, which shows no plans of its queries
        """
        started = session()
        if is_connect(started):
            raise ConfigurationError(
                "Spark Connect shows no plan of a query, so that the order of this source's rows cannot be "
                "checked: submit the job to the cluster with spark-submit. Over Spark Connect the job loads "
                "files"
            )
        self.use(started)
        return self

    def without_spark(self) -> Source | None:
        """Nobody but Spark lists the partitions."""
        return None

    @abstractmethod
    def use(self, session: SparkSession) -> None:
        """Take the session, pin its layout, and make sure that the source is there and can be written.

        :param session: the job's session, which nobody else uses
        :raises ConfigurationError: if the source is not what the spec describes
        :raises EncodingError: if a column's type has no faithful form
        """

    @abstractmethod
    def partitions(self) -> tuple[FramePartition, ...]:
        """List the partitions, ordered by name; at least one."""

    @abstractmethod
    def locate(self, works: Sequence[FrameWork]) -> list[FrameWork]:
        """Find what is to be loaded, and fix its end.

        :return: those that have rows behind it, with their ends
        :raises SourcePositionError: if a committed position is not in the source any more
        """

    @abstractmethod
    def frame(self, works: Sequence[FrameWork]) -> DataFrame:
        """Make the query for some channels: one Spark partition for each, ordered by position.

        :param works: the channels, each with where to begin and to end
        :return: the columns :data:`CHANNEL` and :data:`LINE`, and what the partitions need for positions
        """


# -- What readers share --------------------------------------------------------------------------------


def part_bytes(limits: BatchLimits, growth: int = 1) -> int:
    """Bytes of source data in one part; small parts fill a batch more evenly.

    :param limits: what a batch takes
    :param growth: how much a row may grow as JSON, times
    :return: bytes, at least 1
    """
    return max(1, min(PART_BYTES, limits.raw_bytes, limits.wire_bytes // 2) // growth)


PART_BYTES = 1 << 20


def row_ranges(ends: Any, most_bytes: int, most_rows: int) -> Iterator[tuple[int, int]]:
    """Cut rows into parts: number of the first row of each, and of the row after its last.

    :param ends: bytes up to the end of each row, a numpy array
    :param most_bytes: bytes of a part, unless one row has more
    :param most_rows: rows of a part
    """
    first = start = 0
    while first < len(ends):
        fitting = int(ends.searchsorted(start + most_bytes, side="right"))
        last = min(max(fitting, first + 1), first + most_rows, len(ends))
        yield first, last
        first, start = last, int(ends[last - 1])


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of seven bits a byte, as Protobuf and Avro write it; return it and what is behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def required_module(name: str, who: str, package: str, extra: str) -> Any:
    """Import the library that a source needs.

    :param who: what needs it, in words
    :param package: what it is installed by
    :param extra: the extra of this package that installs it
    :raises ConfigurationError: if it is not there
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            f"{who} needs {package} ({error}): install airflow-provider-snowpipe[{extra}] where Spark runs, "
            "on the driver's and the executors' Python"
        ) from None


def is_connect(spark: Any) -> bool:
    """True for a session of Spark Connect, False for another session or a context."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def release(version: str) -> tuple[str, ...]:
    """Major and minor number of a version, which vendors extend behind them."""
    return tuple(version.split(".")[:2])


# -- Secrets of a source on their way: from the credentials file to the driver, and on to its tasks ------


@dataclass(frozen=True, slots=True)
class SourceSecrets:
    """Passwords and keys by name. Pickled to executors inside the partitions; the repr shows names only."""

    values: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"SourceSecrets({', '.join(sorted(self.values))})"

    def __bool__(self) -> bool:
        return bool(self.values)
