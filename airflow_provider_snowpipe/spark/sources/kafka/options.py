"""Which settings of librdkafka a source may carry, and which of them are secrets.

The names are those of librdkafka's page "Configuration properties". A list of what is allowed, not of what
is refused: an unknown name may be a secret, or something that breaks the order of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

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
        "broker.address.family",
        "broker.address.ttl",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "check.crcs",
        "connections.max.idle.ms",
        "enable.ssl.certificate.verification",
        "fetch.error.backoff.ms",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "max.partition.fetch.bytes",
        "message.max.bytes",
        "metadata.max.age.ms",
        "queued.max.messages.kbytes",
        "queued.min.messages",
        "receive.message.max.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "sasl.kerberos.keytab",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.principal",
        "sasl.kerberos.service.name",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.extensions",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.username",
        "security.protocol",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.timeout.ms",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.keystore.location",
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
"""Settings that the source makes itself, and the key that has a say in each."""


def checked_options(options: Any) -> dict[str, str | int | float | bool]:
    """Check the settings of a source.

    :param options: settings of librdkafka by name
    :raises ConfigurationError: if one is a secret, is the source's to set, or is not on the list
    """
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"source options is {options!r}: it must be an object with keys")
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
    return dict(options)
