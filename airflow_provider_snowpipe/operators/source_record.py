"""What loads have left of their sources, kept in Airflow variables: last checkpoints, and what to audit.

The service deletes a channel that takes no rows for 30 days, and its token with it. A channel without a token
looks like that of a new partition. So a load writes down the checkpoint of each of its channels, and the next
one compares: a channel that has lost its token is refused, and one that has been quiet for a week is opened
again at its own token. The audit finds here which sources this Airflow has loaded, and how. The record is a
safety net: the committed token decides, and a record that is lost makes nothing wrong while the channels are
there.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self

from airflow.providers.common.compat.sdk import AirflowException, BaseHook, Variable

from airflow_provider_snowpipe.streaming.checkpoint import is_begun, source_of_token
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    RecordUnavailableError,
    SnowpipeError,
    SourceChangedError,
)
from airflow_provider_snowpipe.streaming.limits import quiet_channels

if TYPE_CHECKING:
    from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
    from airflow_provider_snowpipe.spark.source import SourceSpec
    from airflow_provider_snowpipe.streaming.checkpoint import Rebind
    from airflow_provider_snowpipe.streaming.lag import FileBacklog
    from airflow_provider_snowpipe.streaming.progress import ChannelStatus

log = logging.getLogger(__name__)

APPENDS = "append"
"""The kind of a source that is rows in a task's memory."""
VARIABLE_PREFIX = "snowpipe_channels_"
INDEX_VARIABLE = "snowpipe_sources"
"""Holds the keys of all records, since a task cannot list variables; each load puts its own back."""
_BINDING = re.compile(r"(?<=binding )[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class KnownChannel:
    """The last checkpoint that a run has seen of a channel.

    :param token: the checkpoint
    :param since: when the channel took rows or was opened last, as far as runs have seen; with a time zone
    :param rows_before: rows of the source up to the checkpoint that came through an earlier channel; negative
        for rows of this channel that were sent again
    :param rejected: rows of the source up to the checkpoint that an earlier channel rejected
    :param earlier: the channels whose positions it has taken over, which have dead letters of their own
    """

    channel: str
    token: str
    since: dt.datetime
    rows_before: int = 0
    rejected: int = 0
    earlier: tuple[str, ...] = ()

    @property
    def channels(self) -> tuple[str, ...]:
        """All channels that rows of the source partition have come through."""
        return (*self.earlier, self.channel)


@dataclass(frozen=True, slots=True)
class SeenChannel:
    """What a run has left of one channel.

    :param token: its token, None where it is not known; empty where it is known to have none
    :param rows_before: rows of an earlier channel, as :class:`KnownChannel` counts them
    :param rejected: rows that an earlier channel rejected
    """

    channel: str
    token: str | None
    rows_before: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class LoadedSource:
    """How a source was loaded, without a secret.

    :param source: the operator's source as JSON
    :param reading: how its rows are numbered, in words
    :param split: how it was split into partitions, in words
    :param channels: what its channels' names begin with
    :param pipe: database, schema and name of the pipe
    :param source_logs: the logs by which COPY and pipes have loaded files of it, each with its last entry
    :param ledgers: database, schema and name of the load ledgers that have these loads
    """

    source: Mapping[str, Any]
    reading: str
    split: str
    channels: str
    pipe: tuple[str, str, str]
    snowflake_conn_id: str
    dag_id: str
    task_id: str
    on_error: str = "abort"
    dead_letter_path: str | None = None
    source_logs: Mapping[str, int] = field(default_factory=dict)
    ledgers: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """The channels that have loaded one source through one pipe.

    :param key: the variable's name
    :param address: the source, for people
    :param channels: by the digits of the checkpoint that stand for the source partition; one that has bare
        tokens by its name
    :param loaded: how it was loaded last, None where nothing was yet
    """

    key: str
    address: str
    channels: Mapping[str, KnownChannel] = field(default_factory=dict)
    loaded: LoadedSource | None = None

    @classmethod
    def read(cls, pipe: str, source: SourceSpec) -> Self:
        """Read the record of a source; an empty one where there is none.

        :param pipe: the pipe's name among those of all accounts
        :raises RecordUnavailableError: if Airflow does not answer
        """
        query = " ".join(str(getattr(source, "query", None) or "").split())
        return cls._of(source.address, pipe, source.kind, source.address, query)

    @classmethod
    def of_appends(cls, pipe: str, channel: str) -> Self:
        """Read the record of a channel whose rows come from tasks' memory.

        :raises RecordUnavailableError: if Airflow does not answer
        """
        return cls._of(f"appends to channel {channel!r}", pipe, APPENDS, channel)

    @classmethod
    def _of(cls, address: str, *identity: str) -> Self:
        digest = blake2b("\0".join(identity).encode(), digest_size=10).hexdigest()
        key = f"{VARIABLE_PREFIX}{digest}"
        return cls.of_key(key) or cls(key, address)

    @classmethod
    def of_key(cls, key: str) -> Self | None:
        """Read a record by the variable's name, None where there is none.

        :raises RecordUnavailableError: if Airflow does not answer
        :raises ConfigurationError: if the variable holds something else
        """
        text = _value_of(key)
        if text is None:
            return None
        try:
            found = json.loads(text)
            channels = {
                digits: KnownChannel(
                    name, token, dt.datetime.fromisoformat(since), int(rows), int(rejected), tuple(earlier)
                )
                for digits, (name, token, since, rows, rejected, earlier) in found["channels"].items()
            }
            how = found["loaded"]
            named = {"pipe": tuple(how["pipe"]), "ledgers": tuple(map(tuple, how["ledgers"]))}
            loaded = LoadedSource(**{**how, **named})
            return cls(key, str(found["source"]), channels, loaded)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ConfigurationError(
                f"Airflow's variable {key!r} is not a record of last checkpoints ({error!r}): put back what "
                "it held; or delete it, where no channel of this source has expired or was dropped since"
            ) from error

    def last_checkpoints(self) -> dict[str, tuple[str, str]] | None:
        """The channel and the checkpoint that each source partition had last; None without a record."""
        if self.loaded is None or not self.channels:
            return None
        return {digits: (one.channel, one.token) for digits, one in self.channels.items()}

    @property
    def copied(self) -> dict[str, Any]:
        """By which logs and ledgers COPY and pipes have loaded files of it; empty without a record."""
        loaded = self.loaded
        return {one: getattr(loaded, one) for one in ("source_logs", "ledgers")} if loaded else {}

    def require_split(self, split: str, rebind: Rebind | None) -> None:
        """Refuse a source that was loaded in other partitions, whose channels show nothing of these.

        :param split: how it is split now
        :raises SourceChangedError: unless it is to be loaded from its beginning
        """
        is_loaded = not all(is_begun(one.token) for one in self.channels.values())
        if self.loaded is None or not is_loaded or self.loaded.split == split or rebind == "restart":
            return
        raise SourceChangedError(
            f"{self.address} was loaded by task {self.loaded.task_id!r} of DAG {self.loaded.dag_id!r} with "
            f"other partitions ({self.loaded.split or 'one'}) than it has now ({split or 'one'}): the rows "
            "that are in the table would have new channels, and be loaded twice. Nothing was sent. Give the "
            "partitions of before, or set rebind='restart' to load everything again"
        )

    def quiet(self, now: dt.datetime) -> list[str]:
        """The channels to open again, those first that have been quiet the longest."""
        return quiet_channels(
            {one.channel: one.since for one in sorted(self.channels.values(), key=attrgetter("since"))}, now
        )

    def write(
        self,
        seen: Iterable[SeenChannel],
        renewed: Iterable[str],
        now: dt.datetime,
        loaded: LoadedSource,
        *,
        sends: bool = False,
    ) -> Self:
        """Write down what a run has left, or is about to send.

        :param seen: its channels
        :param renewed: the channels that it has opened again
        :param sends: True before rows are sent, which takes the record
        :return: the record as it is now
        :raises RecordUnavailableError: if it cannot be written and ``sends``
        """
        opened = set(renewed)
        left: dict[str, KnownChannel] = {}
        empty = set[str]()
        for one in seen:
            if not one.token:
                empty |= set() if one.token is None else {one.channel}
                continue
            digits = source_of_token(one.token) or one.channel
            before = left.get(digits) or self.channels.get(digits) or KnownChannel(one.channel, "", now)
            is_still = before.token == one.token and one.channel not in opened
            earlier = before.earlier
            if before.channel != one.channel:
                earlier = before.channels if one.rows_before > 0 else ()
            rows, rejected = before.rows_before + one.rows_before, before.rejected + one.rejected
            since = before.since if is_still else now
            left[digits] = KnownChannel(one.channel, one.token, since, rows, rejected, earlier)

        def replaced(before: Mapping[str, KnownChannel]) -> dict[str, KnownChannel]:
            both = {**before, **left}.items()
            return {n: one for n, one in both if one.channel not in empty or not is_begun(one.token)}

        channels = replaced(self.channels)
        is_same = loaded == self.loaded or not (channels or loaded.source_logs)
        if channels == self.channels and is_same:
            return self
        try:
            # Another task may have written meanwhile what it has left of other channels.
            others = self.of_key(self.key) or self
            channels = replaced(others.channels)
            self._keep(channels, loaded)
        except Exception as error:  # the rows are committed, and the tokens show it
            if sends and not isinstance(error, ImportError):  # in a process that no Airflow runs
                raise RecordUnavailableError(f"Airflow does not take {self.key!r}: {error}") from error
            log.warning("the last checkpoints of %s could not be kept: %s", self.address, error)
        return replace(self, channels=channels, loaded=loaded)

    def forget(self, channel: str) -> None:
        """Forget the last checkpoint of a channel, whose source partition is to be loaded again."""
        kept = {digits: one for digits, one in self.channels.items() if one.channel != channel}
        if self.loaded is not None and len(kept) < len(self.channels):
            self._keep(kept, self.loaded)

    def rebound(self, tokens: Mapping[str, str]) -> None:
        """Replace the checkpoints of channels whose source partitions have another binding now.

        :param tokens: the new ones, by channel
        """
        kept = {digits: one for digits, one in self.channels.items() if one.channel not in tokens}
        for one in sorted(self.channels.values(), key=attrgetter("since")):
            if one.channel in tokens:
                token = tokens[one.channel]
                kept = {digits: other for digits, other in kept.items() if other.channel != one.channel}
                kept[source_of_token(token)] = replace(one, token=token)
        if self.loaded is not None:
            self._keep(kept, self.loaded)

    def _keep(self, channels: Mapping[str, KnownChannel], loaded: LoadedSource) -> None:
        rows = {
            digits: (
                one.channel,
                one.token,
                one.since.isoformat(),
                one.rows_before,
                one.rejected,
                one.earlier,
            )
            for digits, one in channels.items()
        }
        value = {"source": self.address, "loaded": asdict(loaded), "channels": rows}
        what = f"Snowpipe: channels of {self.address}"[:250]
        Variable.set(self.key, json.dumps(value), description=what)
        keys = _keys()
        if self.key not in keys:
            Variable.set(INDEX_VARIABLE, json.dumps(sorted({*keys, self.key})))


def known_records() -> list[SourceRecord]:
    """The records of all sources that this Airflow has loaded."""
    found = [SourceRecord.of_key(key) for key in _keys()]
    return [one for one in found if one is not None]


def with_earlier_source(text: str) -> str:
    """Add to the text of a ``SourceChangedError`` whose binding the channel has, where a record knows it."""
    found = _BINDING.search(text)
    source = None if found is None else source_of_binding(found[0])
    return text if found is None or source is None else f"{text}. Binding {found[0]} is {source}"


def source_of_binding(binding: str) -> str | None:
    """The source of a binding in words, and who has loaded it; None where no record knows it."""
    try:
        records = known_records()
    except SnowpipeError as error:  # only the text is poorer
        log.debug("%s cannot be read: %s", INDEX_VARIABLE, error)
        return None
    for record in records:
        if record.loaded is not None and binding[:10] in record.channels:
            by = f"loaded by task {record.loaded.task_id!r} of DAG {record.loaded.dag_id!r}"
            return f"{record.address} ({record.loaded.reading}), {by}"
    return None


def _keys() -> list[str]:
    return [str(one) for one in json.loads(_value_of(INDEX_VARIABLE) or "[]")]


def _value_of(key: str) -> str | None:
    """The text of a variable, None where there is none, and in a process that no Airflow runs.

    ``Variable.get`` gives the default also where Airflow does not answer; ``Variable.keys`` (Airflow 3.3)
    does not. A record that is there and was not read would make an expired channel look like a new one.
    """
    try:
        text: str | None = Variable.get(key, None)  # Airflow 2 names it default_var
        if text is not None or not hasattr(Variable, "keys"):
            return text
        is_kept = key in list(Variable.keys(prefix=key))
    except ImportError:
        return None
    except Exception as error:
        raise RecordUnavailableError(f"Airflow does not show whether it has {key!r}: {error}") from error
    if is_kept:
        raise RecordUnavailableError(f"Airflow has variable {key!r}, and did not give its value")
    return None


def file_backlogs(
    hook: SnowpipeHook, statuses: Mapping[str, ChannelStatus]
) -> tuple[dict[str, FileBacklog], tuple[str, ...]]:
    """List the sources of files that this Airflow has loaded through a pipe, and compare them with commits.

    :param statuses: of the pipe's channels
    :return: the files of each channel, also of one that does not exist yet; and what could not be listed
    """
    from airflow_provider_snowpipe.spark.submit.source import channel_backlogs, connected_source

    found: dict[str, FileBacklog] = {}
    notes: list[str] = []
    committed = {name: one.committed for name, one in statuses.items() if one.committed is not None}
    pipe = hook.pipe_name()
    try:
        records = known_records()
    except SnowpipeError as error:
        return found, (str(error),)
    for record in records:
        loaded = record.loaded
        if loaded is None or loaded.pipe != (pipe.database, pipe.schema, pipe.pipe):
            continue
        if loaded.source.get("kind", "files") != "files":
            continue
        try:
            source = connected_source(loaded.source, BaseHook.get_connection)
            found |= channel_backlogs(*source, pipe.address(hook.account_url()), loaded.channels, committed)
        except (SnowpipeError, AirflowException, OSError, ImportError) as error:
            notes.append(f"files of {record.address}: {error}")
    return found, tuple(notes)
