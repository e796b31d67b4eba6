"""The options of ``readStream.format("snowpipe_kafka")``: topics, and the channels that their rows go to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_snowpipe.spark.data_source.option_values import one_of
from airflow_provider_snowpipe.spark.data_source.options import OPTIONS as WRITE_OPTIONS
from airflow_provider_snowpipe.spark.sources.kafka.options import SECRETS
from airflow_provider_snowpipe.spark.sources.kafka.spec import KafkaSourceSpec
from airflow_provider_snowpipe.spark.sources.source import OnDataLoss
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName, check_channel_name

_CLIENT = "kafka."
"""How options begin whose rest is a setting of librdkafka."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What the options of one stream say; holds no credential.

    :param spec: the topics
    :param on_data_loss: what to do if retention has taken the record after the committed one
    :param max_offsets: offsets of one micro-batch over all partitions, None for all that is there
    :param account_url: the account's address
    :param pipe: the pipe that the sink writes to
    :param channel_prefix: first part of the sink's channels
    :param credentials_file: path of the credentials file on the driver, None for the environment's
    :param ca_bundle: PEM file of trusted roots
    """

    spec: KafkaSourceSpec
    on_data_loss: OnDataLoss
    max_offsets: int | None
    account_url: str
    pipe: PipeName
    channel_prefix: str
    credentials_file: str | None
    ca_bundle: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Read the options as Spark gives them; their names have no case.

        :param options: names and texts
        :raises ConfigurationError: for an option that is unknown, missing, wrong, or at odds with another
        """
        values, client = _checked(options)
        table, pipe = values["table"], values["pipe"]
        if (table is None) == (pipe is None):
            raise ConfigurationError("give exactly one of the options table and pipe, as for the sink")
        place = values["database"], values["schema"]
        check_channel_name(f"{values['channelPrefix']}_0")
        keys = {key: values[name] for name, key in _OF_SOURCE.items() if values[name] is not None}
        return cls(
            spec=KafkaSourceSpec.from_mapping({**keys, "options": client}),
            on_data_loss=values["onDataLoss"] or "fail",
            max_offsets=values["maxOffsetsPerTrigger"],
            account_url=values["accountUrl"],
            pipe=PipeName(*place, pipe) if pipe is not None else PipeName.default_for_table(*place, table),
            channel_prefix=values["channelPrefix"],
            credentials_file=values["credentialsFile"],
            ca_bundle=values["caBundle"],
        )

    def channel(self, partition: str) -> str:
        """Name the channel of a topic-partition, as the job and the connector do."""
        return self.spec.channel(self.channel_prefix, self.spec.default_name, partition)


def _text(name: str, value: str) -> str:
    if not value.strip():
        raise ConfigurationError(f"option {name} is empty: give it a value, or leave it out")
    return value


def _names(name: str, value: str) -> list[str]:
    return [_text(name, one).strip() for one in value.split(",")]


def _seconds(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigurationError(f"option {name} is {value!r}: it must be seconds above 0") from None


def _count(name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise ConfigurationError(f"option {name} is {value!r}: it must be a whole number, 1 or more")
    return int(value)


_OF_SOURCE = {
    "bootstrapServers": "bootstrap_servers",
    "topics": "topics",
    "topicPattern": "topic_pattern",
    "start": "start",
    "startTimestamp": "start_timestamp",
    "isolation": "isolation",
    "groupId": "group_id",
    "timeoutSeconds": "timeout_seconds",
}
"""Options that are keys of a Kafka source, whose own checks they pass."""
_OF_SINK = (
    "accountUrl",
    "credentialsFile",
    "caBundle",
    "database",
    "schema",
    "table",
    "pipe",
    "channelPrefix",
)
"""Options that the sink has, too, and that have to say the same on both sides."""
_READ: dict[str, Callable[[str, str], Any]] = {
    **dict.fromkeys(_OF_SOURCE, _text),
    "topics": _names,
    "timeoutSeconds": _seconds,
    "onDataLoss": one_of("fail", "skip"),
    "maxOffsetsPerTrigger": _count,
    **{name: WRITE_OPTIONS[name].read for name in _OF_SINK},
}
_REQUIRED = ("bootstrapServers", *(name for name in _OF_SINK if WRITE_OPTIONS[name].required))
_BY_LOWER = {name.lower(): name for name in _READ}


def _checked(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    given: dict[str, str] = {}
    client: dict[str, str] = {}
    for name, value in options.items():
        known = _BY_LOWER.get(name.lower())
        if known is not None:
            given[known] = value
        elif name.lower().startswith(_CLIENT):
            client[name.lower().removeprefix(_CLIENT)] = value
        else:
            raise ConfigurationError(
                f"option {name!r} is unknown: use {', '.join(sorted(_READ))}, or {_CLIENT}<setting of "
                "librdkafka>; no credential is an option"
            )
    for name in sorted(SECRETS & set(client)):
        raise ConfigurationError(
            f"option {_CLIENT}{name} is a secret, and options are shown in plans and logs: write it into the "
            "credentials file with write_credentials(..., secrets=SourceSecrets(...)), and replace what was "
            "given here if others may have seen it"
        )
    for name in _REQUIRED:
        if name not in given:
            raise ConfigurationError(f"option {name} is missing: add .option({name!r}, ...) to the read")
    return {name: read(name, given[name]) if name in given else None for name, read in _READ.items()}, client
