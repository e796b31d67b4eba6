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
    from airflow_provider_snowpipe.spark.sources.registry import source_spec, spec_class
    from airflow_provider_snowpipe.spark.sources.source import SourceSecrets

    if not isinstance(source, Mapping):
        return source_spec(source), SourceSecrets()
    given, own = kafka_conn_id or iceberg_conn_id, source.get("conn_id")
    if given:
        kind = "kafka" if kafka_conn_id else "iceberg"
        if own and given != own:
            raise ConfigurationError(
                f"source conn_id is {own!r}, and {kind}_conn_id is {given!r}: drop the latter"
            )
        if source.get("kind") != kind:
            raise ConfigurationError(
                f"{kind}_conn_id is {given!r} and the source's kind is {source.get('kind')!r}: the argument "
                f"is for the kind {kind!r}"
            )
    conn_id = given or own
    spec = spec_class(source)
    if not conn_id or not spec.takes_connection:
        return source_spec(source), SourceSecrets()
    values = {key: one for key, one in source.items() if key != "conn_id"}
    values, secrets = spec.with_connection(values, BaseHook.get_connection(conn_id))
    return source_spec(values), secrets
