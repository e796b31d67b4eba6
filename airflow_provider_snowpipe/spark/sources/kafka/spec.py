"""The specification of a Kafka source."""

from __future__ import annotations

import re
import string
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal
from urllib.parse import unquote

from airflow_provider_snowpipe.spark.source import SourceSecrets, SourceSpec
from airflow_provider_snowpipe.streaming.arguments import UnknownTypes, without_secrets
from airflow_provider_snowpipe.streaming.checked_values import is_task_output, is_template, refuse_secret
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import check_channel_name
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset

METADATA_FIELDS = ("topic", "partition", "offset", "timestamp", "key", "headers", "run_id")
_CONNECTION_KEYS = {"bootstrap.servers": "bootstrap_servers", "schema.registry.url": "schema_registry_url"}
_REGISTERED = ("avro", "protobuf")
_NEEDS_COLUMN = ("text", "bytes")
_IDENTIFIER = re.compile(r"[_a-zA-Z][_$a-zA-Z0-9]+")
_FIRST, _LATER = frozenset(string.ascii_letters + "_"), frozenset(string.ascii_letters + string.digits + "_$")


@dataclass(frozen=True, slots=True, repr=False)
class KafkaSource(SourceSpec):
    """Topics of a Kafka cluster; each topic-partition is a partition of the source.

    :param bootstrap_servers: brokers to ask first, ``host:port`` separated by commas; those of the connection
        where it is empty
    :param topics: the topics' names
    :param topic_pattern: regular expression for the whole name of a topic, instead of ``topics``;
        topics that begin with ``__`` are Kafka's own and never match
    :param start: where a partition begins whose channel has no token and whose group has no offset
    :param start_timestamp: with ``start="timestamp"``, the first record is the first that is not older; ISO
        8601 with a zone
    :param value_format: ``json``: an object in UTF-8 whose keys are columns, or any JSON value for
        ``value_column``; ``text`` and ``bytes``: the value of ``value_column``; ``avro`` and ``protobuf``:
        records in the schema registry's wire format, whose fields are columns
    :param value_column: the column that takes the whole value; None where its fields are columns
    :param connect_envelope: True loads the payload of Kafka Connect's JSON (``schema`` and ``payload``, from
        ``schemas.enable``), False loads such objects as they are; None refuses a first record that is one
    :param metadata: columns that show where rows are from, each with one of ``topic``, ``partition``,
        ``offset``, ``timestamp``, ``key``, ``headers`` and ``run_id``; as a list of these, the columns are
        ``KAFKA_TOPIC`` and so on
    :param record_metadata: a VARIANT column that takes all of it as one object, as the connector's column
        ``RECORD_METADATA`` does
    :param key_format: ``text``: keys are UTF-8; ``bytes``: they are written as BASE64
    :param tombstones: what to do with a record without a value: ``drop`` it, load a row of ``null``
        values, or ``fail``
    :param isolation: ``read_committed`` leaves out the records of aborted and open transactions
    :param group_id: the consumer group whose offsets show others how far the table is; they move after the
        tokens are committed, never before
    :param connector_name: the name of a Snowflake Kafka connector whose channels the job takes over, as its
        configuration has it: it makes the channels' prefix, and the group where ``group_id`` is None
    :param schema_registry_url: the schema registry, for ``avro``, ``protobuf`` and ``json`` with JSON Schema;
        None for the connection's
    :param unknown_types: logical types of a schema that are not known, such as a connector's own: ``fail``
        refuses their records, ``ignore`` loads the values as they are
    :param timeout_seconds: seconds that a broker may send nothing at all
    :param options: further settings of librdkafka, none of them a secret
    :param conn_id: the Airflow connection with the brokers' addresses and credentials, of the type ``kafka``;
        what the source itself sets goes before it
    :param kind: always ``kafka``
    """

    bootstrap_servers: str = ""
    topics: Sequence[str] = ()
    topic_pattern: str | None = None
    start: Literal["earliest", "latest", "timestamp"] = "earliest"
    start_timestamp: str | None = None
    value_format: Literal["json", "avro", "protobuf", "text", "bytes"] = "json"
    value_column: str | None = None
    connect_envelope: bool | None = None
    metadata: Mapping[str, str] | Sequence[str] = field(default_factory=dict)
    record_metadata: str | None = None
    key_format: Literal["text", "bytes"] = "text"
    tombstones: Literal["drop", "null", "fail"] = "fail"
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    group_id: str | None = None
    connector_name: str | None = None
    schema_registry_url: str | None = None
    unknown_types: UnknownTypes = "fail"
    timeout_seconds: float = 60.0
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    conn_id: str | None = None
    kind: Literal["kafka"] = "kafka"
    source_class: ClassVar[str] = "airflow_provider_snowpipe.spark.sources.kafka.reader:KafkaSource"
    offset_format = IntegerOffset.format_name
    takes_connection: ClassVar[bool] = True
    backlog_shape: ClassVar[str | None] = "airflow_provider_snowpipe.spark.sources.kafka.reader:topics_shape"

    @staticmethod
    def from_address(address: str) -> dict[str, Any]:
        """Read ``kafka://host:port[,host:port]/topic[,topic]``."""
        refuse_secret("source", address)
        brokers, _, topics = address.partition("://")[2].partition("/")
        named = [one for one in topics.split(",") if one]
        if not brokers or not named:
            raise ConfigurationError(f"source is {address!r}: give kafka://<host>:<port>/<topic>[,<topic>]")
        return {"kind": "kafka", "bootstrap_servers": brokers, "topics": named}

    @staticmethod
    def with_connection(values: Mapping[str, Any], connection: Any) -> tuple[dict[str, Any], SourceSecrets]:
        """Complete the source from a connection.

        Its type may be ``kafka``, of the Apache Kafka provider, which keeps librdkafka's settings in the
        extra; host, port, login and password are taken where the extra lacks them. What the source sets by
        itself, such as ``group.id`` and ``enable.auto.commit``, is not taken from the connection.
        """
        settings: dict[str, Any] = dict(connection.extra_dejson)
        if connection.host:
            address = f"{connection.host}:{connection.port}" if connection.port else str(connection.host)
            settings.setdefault("bootstrap.servers", address)
        for name, value in (("sasl.username", connection.login), ("sasl.password", connection.password)):
            if value:
                settings.setdefault(name, value)
        registry = settings.get("schema.registry.url")
        if isinstance(registry, str):
            settings["schema.registry.url"], user_info = _registry_without_user(registry)
            if user_info:
                settings.setdefault(REGISTRY_USER_INFO, user_info)
        secrets = {name: str(settings.pop(name)) for name in sorted(SECRETS & set(settings))}
        completed = dict(values)
        for name, key in _CONNECTION_KEYS.items():
            if name in settings:
                completed.setdefault(key, settings[name])
        options = {name: value for name, value in settings.items() if name not in SET_BY_SOURCE}
        completed["options"] = {**options, **(values.get("options") or {})}
        return completed, SourceSecrets(secrets)

    def __post_init__(self) -> None:
        object.__setattr__(self, "topics", _topics(self.topics))
        object.__setattr__(self, "metadata", _metadata(self.metadata))
        if not self._check_fields():
            return
        if not self.bootstrap_servers and not self.conn_id:
            raise ConfigurationError(
                "source bootstrap_servers is empty: give host:port, or a Kafka connection's id as conn_id"
            )
        if bool(self.topics) == bool(self.topic_pattern):
            raise ConfigurationError(
                f"source topics is {list(self.topics)} and topic_pattern is {self.topic_pattern!r}: give one "
                "of the two"
            )
        if not self.timeout_seconds > 0:
            raise ConfigurationError(
                f"source timeout_seconds is {self.timeout_seconds}: give seconds above 0"
            )
        if self.connector_name is not None:
            check_channel_name(connector_prefix(self.connector_name))
            if self.group_id is None:
                object.__setattr__(self, "group_id", f"connect-{self.connector_name}")
        if len(set(self.topics)) < len(self.topics):
            raise ConfigurationError(f"source topics is {list(self.topics)}: name each topic once")
        try:
            re.compile("" if is_template(self.topic_pattern) else self.topic_pattern or "")
        except re.error as error:
            raise ConfigurationError(
                f"source topic_pattern {self.topic_pattern!r} is not a regular expression ({error})"
            ) from None
        self._check_start()
        self._check_columns()
        _check_options(self.options)

    def _check_start(self) -> None:
        if (self.start == "timestamp") != (self.start_timestamp is not None):
            raise ConfigurationError(
                f"source start is {self.start!r} and start_timestamp is {self.start_timestamp!r}: give a "
                "start_timestamp with start='timestamp', and only then"
            )
        if self.start_timestamp is not None and not is_template(self.start_timestamp):
            _ = self.start_milliseconds
        if self.start == "latest" and not self.group_id:
            raise ConfigurationError(
                "source start='latest' needs a group_id: a run that finds nothing new leaves no token, and "
                "without the group's offset the next one would skip all that came meanwhile"
            )

    def _check_columns(self) -> None:
        if self.value_format in _NEEDS_COLUMN and not self.value_column:
            raise ConfigurationError(
                f"source value_format={self.value_format!r} needs value_column, the column for the value"
            )
        registry = self.schema_registry_url or self.conn_id
        if self.value_format in _REGISTERED and (self.value_column or not registry):
            raise ConfigurationError(
                f"source value_format={self.value_format!r} needs schema_registry_url and no value_column: "
                "its fields are the columns"
            )
        if self.connect_envelope is not None and self.value_format != "json":
            raise ConfigurationError(
                f"source connect_envelope is {self.connect_envelope} and value_format is "
                f"{self.value_format!r}: the envelope is JSON's, leave connect_envelope out"
            )
        unknown = sorted(set(self.metadata_columns.values()) - set(METADATA_FIELDS))
        if unknown:
            raise ConfigurationError(
                f"source metadata names {unknown[0]!r}: give a column one of {', '.join(METADATA_FIELDS)}"
            )
        columns = [*self.metadata_columns, *filter(None, (self.record_metadata, self.value_column))]
        if not all(columns) or len({name.upper() for name in columns}) < len(columns):
            raise ConfigurationError(f"source columns are {columns}: give each one its own name")

    @property
    def metadata_columns(self) -> Mapping[str, str]:
        """What each column gets."""
        return self.metadata if isinstance(self.metadata, Mapping) else _metadata(self.metadata)

    @property
    def row_columns(self) -> tuple[tuple[str, ...], str] | None:
        """The columns with topic, partition and offset, where ``metadata`` has them."""
        columns = {field: name for name, field in self.metadata_columns.items()}
        if not {"topic", "partition", "offset"} <= columns.keys():
            return None
        return (columns["topic"], columns["partition"]), columns["offset"]

    @property
    def start_milliseconds(self) -> int:
        """The start's time since 1970-01-01 UTC."""
        text = self.start_timestamp or ""
        try:
            timestamp = datetime.fromisoformat(text)
        except ValueError:
            timestamp = None
        if timestamp is None or timestamp.tzinfo is None:
            raise ConfigurationError(
                f"source start_timestamp is {text!r}: give ISO 8601 with a zone, as 2026-01-31T06:00:00+00:00"
            )
        return round(timestamp.timestamp() * 1000)

    @property
    def default_name(self) -> str:
        """The topics; each channel has its own topic in its name."""
        return ",".join(self.topics) or str(self.topic_pattern)

    @property
    def address(self) -> str:
        """The topics at the first broker."""
        return f"kafka://{self.bootstrap_servers.split(',')[0].strip()}/{self.default_name}"

    def check_dead_letter_topic(self, topic: str) -> None:
        """Refuse a topic that is read by the same source: its dead letters would come back as rows."""
        if topic in self.topics or (self.topic_pattern and re.fullmatch(self.topic_pattern, topic)):
            raise ConfigurationError(
                f"dead_letter_path names the topic {topic!r}, which the source reads itself: the letters "
                "would be its next rows. Name another topic"
            )

    @property
    def channel_prefix(self) -> str | None:
        """The prefix of the connector's channels, None where the job takes over from none."""
        return None if self.connector_name is None else connector_prefix(self.connector_name)

    @property
    def has_bare_tokens(self) -> bool:
        """True where the channels are those of a Snowflake Kafka connector."""
        return self.connector_name is not None

    def other_spellings(self, prefix: str, partition: str) -> tuple[str, ...]:
        """The partition's channels under the same prefix in capital and small letters, and as the connector.

        Topics stay as they are: two that differ in case are two topics.
        """
        names = {prefix, self.connector_name or prefix}
        found = {one for name in names for one in (name, name.upper(), name.lower(), _sanitised(name))}
        return tuple(f"{one}_{partition}" for one in sorted(found - {prefix, None}, key=str))

    def channel(self, prefix: str, source_name: str, partition: str) -> str:
        """Name a channel ``<prefix>_<topic>_<partition>``, as the Kafka connector v4 does."""
        if self.channel_prefix not in (None, prefix):
            raise ConfigurationError(
                f"channel_prefix is {prefix!r}, and the connector {self.connector_name!r} names its channels "
                f"{self.channel_prefix}_<topic>_<partition>: leave channel_prefix out"
            )
        if source_name != self.default_name:
            raise ConfigurationError(
                f"plan source_name is {source_name!r}: channels of a Kafka source are named by their "
                "topic, as the Kafka connector names them; leave source_name out and use channel_prefix"
            )
        return check_channel_name(f"{prefix}_{partition}")


def connector_prefix(name: str) -> str:
    """The first part of the channels' names of a Snowflake Kafka connector 4.

    The connector uses its own name in capitals if that is an identifier, and otherwise replaces what no
    identifier may hold and adds the absolute hash that Java gives the name. That hash is negative for the one
    number that has no positive counterpart.
    """
    found = _sanitised(name)
    if found is None:
        raise ConfigurationError(f"source connector_name is {name!r}: give the connector's own name")
    return found


def _sanitised(name: str) -> str | None:
    if _IDENTIFIER.fullmatch(name):
        return name.upper()
    kept = _utf16(name.replace(".*", ""))
    if not kept:
        return None
    first = "" if chr(kept[0]) in _FIRST else "_"
    rest = "".join(chr(unit) if chr(unit) in _LATER else "_" for unit in kept)
    hashed = 0
    for unit in _utf16(name):
        hashed = (hashed * 31 + unit) & 0xFFFFFFFF
    positive = hashed if hashed < 1 << 31 else (1 << 32) - hashed
    return f"{first}{rest}_{-positive if positive == 1 << 31 else positive}".upper()


def _utf16(text: str) -> tuple[int, ...]:
    """The units that Java counts as a text's characters."""
    data = text.encode("utf-16-be", "surrogatepass")
    return struct.unpack(f">{len(data) // 2}H", data)


def _topics(values: Any) -> Any:
    if is_task_output(values):
        return values
    named = (values,) if isinstance(values, str) else values
    if not isinstance(named, list | tuple) or not all(isinstance(one, str) and one for one in named):
        raise ConfigurationError(f"source topics is {values!r}: it must be a list of names")
    return tuple(named)


def _metadata(values: Any) -> Any:
    if is_task_output(values):
        return values
    if isinstance(values, list | tuple):
        values = {f"KAFKA_{str(name).upper()}": str(name) for name in values}
    if not isinstance(values, Mapping) or not all(isinstance(one, str) for one in values.values()):
        raise ConfigurationError(
            f"source metadata is {values!r}: it must be a list of fields, or give each column its field"
        )
    return dict(values)


# -- Which settings of librdkafka a source may carry, and which of them are secrets ----------------------
#
# The names are those of librdkafka's page "Configuration properties". A list of what is allowed, not of
# what is refused: an unknown name may be a secret, or something that breaks the order of rows.

REGISTRY_USER_INFO = "schema.registry.basic.auth.user.info"
REGISTRY_TOKEN = "schema.registry.bearer.auth.token"  # noqa: S105  the name of a setting

SECRETS = frozenset(
    {
        "sasl.password",
        "sasl.oauthbearer.client.secret",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
        REGISTRY_USER_INFO,
        REGISTRY_TOKEN,
    }
)
"""Settings that go the way of the credentials and are in no plan."""

OPTIONS = frozenset(
    {
        *("broker.address.family", "broker.address.ttl", "client.dns.lookup", "client.id", "client.rack"),
        *("check.crcs", "connections.max.idle.ms", "enable.ssl.certificate.verification"),
        *("fetch.error.backoff.ms", "fetch.max.bytes", "fetch.message.max.bytes", "fetch.min.bytes"),
        *("fetch.queue.backoff.ms", "fetch.wait.max.ms", "max.partition.fetch.bytes", "message.max.bytes"),
        *("metadata.max.age.ms", "queued.max.messages.kbytes", "queued.min.messages"),
        *("receive.message.max.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms"),
        *("sasl.kerberos.keytab", "sasl.kerberos.min.time.before.relogin", "sasl.kerberos.principal"),
        *("sasl.kerberos.service.name", "sasl.mechanism", "sasl.mechanisms", "sasl.oauthbearer.client.id"),
        *("sasl.oauthbearer.extensions", "sasl.oauthbearer.method", "sasl.oauthbearer.scope"),
        *("sasl.oauthbearer.token.endpoint.url", "sasl.username", "security.protocol"),
        *("socket.connection.setup.timeout.ms", "socket.keepalive.enable", "socket.nagle.disable"),
        *("socket.receive.buffer.bytes", "socket.timeout.ms", "ssl.ca.location", "ssl.ca.pem"),
        *("ssl.certificate.location", "ssl.certificate.pem", "ssl.cipher.suites"),
        *("ssl.endpoint.identification.algorithm", "ssl.key.location", "ssl.keystore.location"),
    }
)
"""Settings that may stand in a plan for everybody to read."""

SET_BY_SOURCE = {
    "bootstrap.servers": "bootstrap_servers",
    "metadata.broker.list": "bootstrap_servers",
    "group.id": "group_id",
    "isolation.level": "isolation",
    "auto.offset.reset": "start",
    "schema.registry.url": "schema_registry_url",
    "enable.auto.commit": "group_id",
    "enable.auto.offset.store": "group_id",
    "enable.partition.eof": "start",
}
"""Settings that the source makes itself, and the key that decides each."""


def _registry_without_user(url: str) -> tuple[str, str]:
    """The registry's address, and user and password where it has them, decoded as the client does."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    user_info, _, host = host.rpartition("@")
    return f"{scheme}{separator}{host}{slash}{path}", unquote(user_info)


def _check_options(options: Any) -> None:
    """Refuse a setting that is a secret, that is the source's to set, or that is not on the list."""
    if not isinstance(options, Mapping):
        raise ConfigurationError("source options is not an object: give librdkafka's settings by name")
    for name, value in options.items():
        if name in SECRETS:
            raise ConfigurationError(
                f"source option {name!r} is a secret, and plans hold none: put it into the Kafka connection "
                "and give its id as conn_id"
            )
        if name in SET_BY_SOURCE:
            raise ConfigurationError(
                f"source option {name!r} is set by the source: use the key {SET_BY_SOURCE[name]!r}"
            )
        if name not in OPTIONS:
            raise ConfigurationError(
                f"source option {name!r} is none that a Kafka source takes: use one of {sorted(OPTIONS)}"
            )
        if not isinstance(value, str | int | float):
            raise ConfigurationError(
                f"source option {name!r} is {value!r}: give a text, a number or a boolean"
            )
        if isinstance(value, str) and without_secrets(value) != value:
            raise ConfigurationError(
                f"source option {name!r} has a secret in its value, and plans hold none: give user and "
                "password as settings of their own in the Kafka connection, and its id as conn_id"
            )
