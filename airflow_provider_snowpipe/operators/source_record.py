"""The last checkpoints of a source's channels, kept in an Airflow variable in case the service deletes them.

The service deletes a channel that takes no rows for 30 days, and its token with it. A channel without a token
looks like that of a new partition. So a load writes down the checkpoint of each of its channels, and the next
one compares: a channel that has lost its token is refused, and one that has been quiet for a week is opened
again at its own token. The record is a safety net: the committed token decides, and a record that is lost
makes nothing wrong while the channels are there.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self

from airflow.providers.common.compat.sdk import Variable

from airflow_provider_snowpipe.streaming.checkpoint import source_of_token

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.driver.report import ChannelReport
    from airflow_provider_snowpipe.spark.source import SourceSpec

log = logging.getLogger(__name__)

VARIABLE_PREFIX = "snowpipe_channels_"
_QUIET = dt.timedelta(days=7)
_RENEWED_AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class KnownChannel:
    """The last checkpoint that a run has seen of a channel.

    :param token: the checkpoint
    :param since: when the channel took rows or was opened last, as far as runs have seen; with a time zone
    """

    channel: str
    token: str
    since: dt.datetime


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """The channels that have loaded one source through one pipe.

    :param key: the variable's name
    :param source: the source, for people
    :param channels: by the digits of the checkpoint that stand for the source partition
    """

    key: str
    source: str
    channels: Mapping[str, KnownChannel] = field(default_factory=dict)

    @classmethod
    def read(cls, pipe: str, source: SourceSpec) -> Self:
        """Read the record of a source; an empty one where there is none, or Airflow cannot be asked.

        :param pipe: the pipe's name among those of all accounts
        """
        query = " ".join(str(getattr(source, "query", None) or "").split())
        identity = "\0".join((pipe, source.kind, source.address, query))
        key = f"{VARIABLE_PREFIX}{blake2b(identity.encode(), digest_size=10).hexdigest()}"
        try:
            text = Variable.get(key, default=None)
            found = {} if text is None else json.loads(text)["channels"]
            channels = {
                digits: KnownChannel(name, token, dt.datetime.fromisoformat(since))
                for digits, (name, token, since) in found.items()
            }
        except Exception as error:  # noqa: BLE001  the tokens decide; the record only knows what is lost
            log.warning("the last checkpoints of %s are not known: %s", source.address, error)
            channels = {}
        return cls(key, source.address, channels)

    def last_checkpoints(self) -> dict[str, tuple[str, str]]:
        """The channel and the checkpoint that each source partition had last."""
        return {digits: (one.channel, one.token) for digits, one in self.channels.items()}

    def quiet(self, now: dt.datetime) -> list[str]:
        """The channels to open again, those first that have been quiet the longest; at most 20."""
        due = sorted((one for one in self.channels.values() if now - one.since >= _QUIET), key=_since)
        return [one.channel for one in due[:_RENEWED_AT_ONCE]]

    def write(self, reports: Iterable[ChannelReport], renewed: Iterable[str], now: dt.datetime) -> None:
        """Write down what a run has left.

        :param reports: of its channels
        :param renewed: the channels that it has opened again
        """
        opened = set(renewed)
        channels = dict(self.channels)
        for report in reports:
            digits = source_of_token(report.to_token or "")
            if not digits:
                continue
            before = channels.get(digits)
            is_still = before is not None and before.token == report.to_token and report.channel not in opened
            since = before.since if before is not None and is_still else now
            channels[digits] = KnownChannel(report.channel, str(report.to_token), since)
        if channels == self.channels:
            return
        value: dict[str, Any] = {
            "source": self.source,
            "channels": {
                digits: (one.channel, one.token, one.since.isoformat(timespec="seconds"))
                for digits, one in channels.items()
            },
        }
        try:
            Variable.set(
                self.key, json.dumps(value), description=f"Snowpipe: channels of {self.source}"[:250]
            )
        except Exception as error:  # noqa: BLE001  the rows are committed, and the tokens show it
            log.warning("the last checkpoints of %s could not be kept: %s", self.source, error)


def _since(one: KnownChannel) -> dt.datetime:
    return one.since
