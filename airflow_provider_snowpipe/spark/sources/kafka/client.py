"""Settings of librdkafka's clients, and what their errors mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.spark.sources.source import SourceSecrets
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    ConfigurationError,
    SnowpipeError,
    SourceUnavailableError,
    WriterActiveError,
)

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.sources.kafka.spec import KafkaSourceSpec


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What a client of the cluster is made from; pickled to executors, its repr shows no secret.

    :param bootstrap_servers: brokers to ask first
    :param group_id: the consumer group, for the brokers' access rules too; None for a name of ours, under
        which nothing is ever committed
    :param isolation: librdkafka's ``isolation.level``
    :param timeout_seconds: how long a broker may say nothing
    :param options: further settings
    :param secrets: settings that are secrets
    """

    bootstrap_servers: str
    group_id: str | None
    isolation: str
    timeout_seconds: float
    options: Mapping[str, str | int | float | bool]
    secrets: SourceSecrets = field(default_factory=SourceSecrets)

    @classmethod
    def of(cls, spec: KafkaSourceSpec, secrets: SourceSecrets) -> ClientSettings:
        """Take the settings from a spec and its secrets."""
        return cls(
            bootstrap_servers=spec.bootstrap_servers,
            group_id=spec.group_id,
            isolation=spec.isolation,
            timeout_seconds=spec.timeout_seconds,
            options=spec.options,
            secrets=secrets,
        )

    def config(self) -> dict[str, Any]:
        """Librdkafka's settings that all clients have in common."""
        secret = {
            name: value
            for name, value in self.secrets.values.items()
            if not name.startswith("schema.registry.")
        }
        return {
            "client.id": "airflow-provider-snowpipe",
            **self.options,
            **secret,
            "bootstrap.servers": self.bootstrap_servers,
            "log_level": 2,
        }

    def consumer_config(self) -> dict[str, Any]:
        """The settings of a consumer that commits nothing by itself."""
        return {
            "fetch.wait.max.ms": 100,
            "fetch.queue.backoff.ms": 20,
            "queued.max.messages.kbytes": 32 * 1024,
            **self.config(),
            "group.id": self.group_id or "airflow-provider-snowpipe",
            "isolation.level": self.isolation,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
        }


def require_client() -> None:
    """Make sure that the client library is there.

    :raises ConfigurationError: if it is not
    """
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"the Kafka source needs confluent-kafka ({error}): install airflow-provider-snowpipe[kafka] "
            "where Spark runs, on the driver's and the executors' Python"
        ) from None


class LastError:
    """Keeps what librdkafka last said about its connections, which no answer carries."""

    def __init__(self) -> None:
        self.text = ""
        self.refused = False

    def __call__(self, error: Any) -> None:
        """Take an error, as ``error_cb``."""
        from confluent_kafka import KafkaError

        self.text = error.str()
        self.refused = self.refused or error.code() == KafkaError._AUTHENTICATION


def refused_settings(error: Exception, settings: ClientSettings) -> ConfigurationError:
    """Word the client's refusal of its settings; the value may be a secret and is not repeated.

    :param error: what the client raised
    :param settings: what it was given
    """
    said = error.args[0].str() if error.args and hasattr(error.args[0], "str") else str(error)
    if any(secret and secret in said for secret in settings.secrets.values.values()):
        said = "a value that is a secret is not usable"
    return ConfigurationError(f"the Kafka client refuses its settings ({said}): mend the source's options")


def kafka_error(error: Any, what: str, settings: ClientSettings, said: str = "") -> SnowpipeError:
    """Find our error for one of librdkafka's.

    :param error: a ``KafkaError``
    :param what: the thing that was asked for
    :param settings: of the client
    :param said: what the client said of its connections
    """
    from confluent_kafka import KafkaError

    where = f"Kafka at {settings.bootstrap_servers}: {what}"
    reason = f"{error.str()}{f'; {said}' if said else ''}"
    code = error.code()
    if code in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED) or "uthentication" in said:
        return AuthenticationError(
            f"{where}: the brokers refuse the credentials ({reason}): mend the connection"
        )
    if code in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    ):
        return AuthenticationError(f"{where}: not allowed ({reason}): grant the user READ and DESCRIBE on it")
    if code in (
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
    ):
        return WriterActiveError(
            f"{where}: the group has members ({reason}), so another consumer, such as the connector, reads "
            "for it: stop that one, or use another group_id. Rows and tokens are committed; the next run "
            "moves the group's offsets"
        )
    return SourceUnavailableError(
        f"{where}: no answer to go on with ({reason}): check that the brokers run and can be reached from "
        "here"
    )
