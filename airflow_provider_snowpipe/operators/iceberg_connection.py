"""An Iceberg connection as part of an Iceberg source: what everybody may read, and what is secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_snowpipe.spark.source_secrets import SourceSecrets
from airflow_provider_snowpipe.spark.tables.spec import looks_secret
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


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
    return looks_secret(name) or (name == "uri" and "@" in value)
