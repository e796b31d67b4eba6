"""A Kafka connection as part of a Kafka source: what everybody may read, and what is secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_snowpipe.spark.kafka.options import SECRETS, SET_BY_SOURCE
from airflow_provider_snowpipe.spark.source_secrets import SourceSecrets
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

_KEYS = {"bootstrap.servers": "bootstrap_servers", "schema.registry.url": "schema_registry_url"}


def with_connection(source: Mapping[str, Any], conn_id: str) -> tuple[dict[str, Any], SourceSecrets]:
    """Complete a Kafka source from an Airflow connection.

    The connection's type may be ``kafka``, of the Apache Kafka provider, which keeps librdkafka's settings in
    the extra; host, port, login and password are taken where the extra lacks them. What the source sets by
    itself, such as ``group.id`` and ``enable.auto.commit``, is not taken from the connection; a key of the
    source wins.

    :param source: the source as the author gives it
    :param conn_id: the connection
    :returns: the source without a secret, and the secrets
    :raises ConfigurationError: if the source is of another kind
    """
    if source.get("kind") != "kafka":
        raise ConfigurationError(
            f"kafka_conn_id is {conn_id!r} and the source's kind is {source.get('kind')!r}: a Kafka "
            "connection is for the kind 'kafka'"
        )
    connection = BaseHook.get_connection(conn_id)
    settings: dict[str, Any] = dict(connection.extra_dejson)
    if connection.host:
        address = f"{connection.host}:{connection.port}" if connection.port else str(connection.host)
        settings.setdefault("bootstrap.servers", address)
    for name, value in (("sasl.username", connection.login), ("sasl.password", connection.password)):
        if value:
            settings.setdefault(name, value)
    secrets = {name: str(settings.pop(name)) for name in sorted(SECRETS & set(settings))}
    values = dict(source)
    for name, key in _KEYS.items():
        if name in settings:
            values.setdefault(key, settings[name])
    options = {name: value for name, value in settings.items() if name not in SET_BY_SOURCE}
    values["options"] = {**options, **(source.get("options") or {})}
    return values, SourceSecrets(secrets)
