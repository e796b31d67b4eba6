"""An Airflow connection as part of a source: what everybody may read, and what is secret."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.exceptions import AirflowProviderDeprecationWarning
from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.sources.source import SourceSecrets, SourceSpec

_KAFKA_KEYS = {"bootstrap.servers": "bootstrap_servers", "schema.registry.url": "schema_registry_url"}


def warn_of_conn_ids(kafka_conn_id: str | None, iceberg_conn_id: str | None = None) -> None:
    """Warn of operator arguments in whose place a source names its connection.

    :param kafka_conn_id: the operator's argument
    :param iceberg_conn_id: the operator's argument
    """
    for name, kind, conn_id in (
        ("kafka_conn_id", "KafkaSource", kafka_conn_id),
        ("iceberg_conn_id", "IcebergSource", iceberg_conn_id),
    ):
        if conn_id is not None:
            warnings.warn(
                f"{name}={conn_id!r} is deprecated: give source={kind}(conn_id={conn_id!r}, …), or the key "
                "'conn_id' in the source's dictionary",
                AirflowProviderDeprecationWarning,
                stacklevel=4,  # the DAG file, behind the operator's __init__ as Airflow wraps it
            )


def connected_source(
    source: Any, kafka_conn_id: str | None = None, iceberg_conn_id: str | None = None
) -> tuple[SourceSpec, SourceSecrets]:
    """Build a source from its rendered dictionary, and complete it from the connection that it names.

    :param source: the dictionary
    :param kafka_conn_id: the operator's deprecated argument
    :param iceberg_conn_id: the operator's deprecated argument
    :returns: the source without a secret, and the secrets
    :raises ConfigurationError: if the source is wrong, or an argument names a connection of another kind
    """
    from airflow_provider_snowpipe.spark.sources.registry import source_spec
    from airflow_provider_snowpipe.spark.sources.source import SourceSecrets

    if not isinstance(source, Mapping):
        return source_spec(source), SourceSecrets()
    given, own = kafka_conn_id or iceberg_conn_id, source.get("conn_id")
    if given and own and given != own:
        raise ConfigurationError(
            f"source conn_id is {own!r}, and {'kafka_conn_id' if kafka_conn_id else 'iceberg_conn_id'} is "
            f"{given!r}: drop the latter"
        )
    kind = source.get("kind") if not given else "kafka" if kafka_conn_id else "iceberg"
    complete = {"kafka": with_connection, "iceberg": with_catalog}.get(str(kind))
    conn_id = given or own
    if complete is None or not conn_id:
        return source_spec(source), SourceSecrets()
    values, secrets = complete({key: one for key, one in source.items() if key != "conn_id"}, conn_id)
    return source_spec(values), secrets


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
    from airflow_provider_snowpipe.spark.sources.kafka.spec import SECRETS, SET_BY_SOURCE
    from airflow_provider_snowpipe.spark.sources.source import SourceSecrets

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
    for name, key in _KAFKA_KEYS.items():
        if name in settings:
            values.setdefault(key, settings[name])
    options = {name: value for name, value in settings.items() if name not in SET_BY_SOURCE}
    values["options"] = {**options, **(source.get("options") or {})}
    return values, SourceSecrets(secrets)


def with_catalog(source: Mapping[str, Any], conn_id: str) -> tuple[dict[str, Any], SourceSecrets]:
    """Complete an Iceberg source from an Airflow connection to its catalog.

    The connection's type may be ``iceberg``, of the Apache Iceberg provider: its host is the catalog's URI,
    login and password are client id and client secret, and the extra holds further properties of PyIceberg's
    catalog. An option of the source wins.

    :param source: the source as the author gives it
    :param conn_id: the connection
    :returns: the source without a secret, and the secrets
    :raises ConfigurationError: if the source is of another kind
    """
    from airflow_provider_snowpipe.spark.sources.source import SourceSecrets

    if source.get("kind") != "iceberg":
        raise ConfigurationError(
            f"iceberg_conn_id is {conn_id!r} and the source's kind is {source.get('kind')!r}: a connection "
            "to an Iceberg catalog is for the kind 'iceberg'"
        )
    connection = BaseHook.get_connection(conn_id)
    properties = {name: _text(value) for name, value in connection.extra_dejson.items()}
    if connection.host:
        properties.setdefault("uri", _uri(connection))
    if connection.password and connection.login:
        properties.setdefault("credential", f"{connection.login}:{connection.password}")
    elif connection.password:
        properties.setdefault("token", connection.password)
    given = source.get("options") or {}
    secrets = {
        name: value for name, value in properties.items() if name not in given and _is_secret(name, value)
    }
    options = {name: value for name, value in properties.items() if name not in secrets}
    return {**source, "options": {**options, **given}}, SourceSecrets(secrets)


def _uri(connection: Any) -> str:
    if "://" in connection.host:
        return str(connection.host)
    port = f":{connection.port}" if connection.port else ""
    return f"{connection.schema or 'https'}://{connection.host}{port}"


def _text(value: Any) -> str:
    """PyIceberg's properties are texts; JSON's ``true`` is ``true``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_secret(name: str, value: str) -> bool:
    """True for passwords and keys, and for an address with a password in it."""
    from airflow_provider_snowpipe.spark.sources.tables.spec import looks_secret

    return looks_secret(name) or (name == "uri" and "@" in value)
