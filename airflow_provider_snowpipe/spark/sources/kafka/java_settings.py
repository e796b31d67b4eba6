"""A source's settings in the words of Kafka's Java client, for Spark's own Kafka source."""

from __future__ import annotations

from airflow_provider_snowpipe.spark.sources.kafka.client import ClientSettings
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

_SAME = frozenset(
    {
        "client.rack",
        "connections.max.idle.ms",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "max.partition.fetch.bytes",
        "metadata.max.age.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "sasl.kerberos.service.name",
        "security.protocol",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
    }
)
_RENAMED = {
    "sasl.mechanism": "sasl.mechanism",
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
}
_PEM_STORES = {
    "ssl.truststore.location": "ssl.truststore.type",
    "ssl.truststore.certificates": "ssl.truststore.type",
    "ssl.keystore.key": "ssl.keystore.type",
}
_LOGINS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_LOGIN_KEYS = frozenset({"sasl.username", "sasl.password"})
_NOT_FOR_JAVA = frozenset({"client.id", "log_level", "bootstrap.servers"})


def java_settings(settings: ClientSettings) -> dict[str, str]:
    """Translate a source's settings.

    :param settings: in librdkafka's words
    :return: in the Java client's words, with secrets
    :raises ConfigurationError: for a setting that the Java client does not have in this form
    """
    given = {name: value for name, value in settings.config().items() if name not in _NOT_FOR_JAVA}
    found: dict[str, str] = {"bootstrap.servers": settings.bootstrap_servers}
    for name, value in given.items():
        if name in _LOGIN_KEYS:
            continue
        java = name if name in _SAME else _RENAMED.get(name)
        if java is None:
            raise ConfigurationError(
                f"source option {name!r} has no translation for Spark's own Kafka source: leave it out, or "
                "use reader='client'"
            )
        found[java] = str(value)
        if java in _PEM_STORES:
            found[_PEM_STORES[java]] = "PEM"
    if _LOGIN_KEYS & set(given):
        found["sasl.jaas.config"] = _login(
            found, str(given.get("sasl.username", "")), given.get("sasl.password")
        )
    return found


def _login(found: dict[str, str], user: str, password: object) -> str:
    mechanism = found.get("sasl.mechanism", "")
    if mechanism not in _LOGINS:
        raise ConfigurationError(
            f"source option 'sasl.mechanism' is {mechanism!r}: Spark's own Kafka source takes a user and a "
            f"password with one of {sorted(_LOGINS)}; use reader='client'"
        )
    quoted = [f'"{_escaped(text)}"' for text in (user, str(password or ""))]
    return f"{_LOGINS[mechanism]} required username={quoted[0]} password={quoted[1]};"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
