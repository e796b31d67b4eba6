"""From what an author names to the shape of the data there: a stage, a table's past, an address, a shape."""

from __future__ import annotations

import datetime as dt
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow.exceptions import AirflowProviderDeprecationWarning
from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.storage import storage_path
from airflow_provider_snowpipe.routing.probes import (
    DataShape,
    ListedFile,
    folder_shape,
    listing_shape,
    past_loads_shape,
)
from airflow_provider_snowpipe.spark.submit.source import (
    SourceBacklog,
    addressed_source,
    connected_source,
    has_backlog,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

_PAST = "table:"


@dataclass(frozen=True, slots=True)
class ShapeSource:
    """Something that has a shape.

    :param source: ``@stage/path``; ``table:NAME`` for what its past loads say; a folder, a file or a URL such
        as ``s3://bucket/path``; ``kafka://host:port/topic``, or the mapping of a source from Kafka; or the
        shape itself; these two as a mapping or its JSON text
    :param hook: asks the account about stages, past loads and, where it has a table, the table's channels
    :param storage_conn_id: the connection of a URL, None for none
    :param kafka_conn_id: the connection of a Kafka source, None for none
    :param channel_prefix: the first part of the names of a Kafka source's channels
    """

    source: Any
    hook: SnowpipeBulkHook
    storage_conn_id: str | None = None
    kafka_conn_id: str | None = None
    channel_prefix: str | None = None

    def shape(self, known: Mapping[str, Any]) -> DataShape:
        """Look, and say what shape the data has.

        :param known: what the author knows of it: parameters of :class:`DataShape`, which go before what is
            found
        :raises ConfigurationError: if the source is nothing of the kind, or there is nothing to list
        :raises SqlError: if the account cannot be asked
        """
        source, now = self.source, dt.datetime.now(dt.UTC)
        if isinstance(source, DataShape):
            source = source.as_json()
        if isinstance(source, str) and source.lstrip().startswith("{"):
            source = _json(source)
        source = addressed_source(source)
        if has_backlog(source):
            return self._backlog(source).shape(known)
        if isinstance(source, Mapping):
            return DataShape.from_json({**source, **known})
        if not isinstance(source, str) or not source:
            raise ConfigurationError(
                f"source is {source!r}: give a stage (@…), table:NAME, a path, a URL, kafka://…, or the "
                "shape as JSON"
            )
        if source.startswith("@"):
            files = map(ListedFile.from_list_row, self.hook.list_files(source))
            return listing_shape(files, now, staged=True, **known)
        if source.startswith(_PAST):
            return past_loads_shape(self.hook.past_loads(source.removeprefix(_PAST)), **_endless(known))
        if "://" in source:
            return listing_shape(self._objects(source), now, **known)
        return folder_shape(source, now, **known)

    def _backlog(self, source: Mapping[str, Any]) -> SourceBacklog:
        return SourceBacklog(
            lambda: connected_source(source, BaseHook.get_connection, {"kafka": self.kafka_conn_id}),
            None if self.hook.table is None else self.hook.channel_statuses,
            self.channel_prefix,
        )

    def _objects(self, address: str) -> Iterator[ListedFile]:
        path = storage_path(address, self.storage_conn_id)
        for name, entry in path.fs.find(path.path, detail=True).items():
            yield ListedFile(str(name), int(entry.get("size") or 0), _modified(entry))


def _json(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise ConfigurationError(f"source is {text[:80]!r}: it begins like JSON and is none") from None
    return found if isinstance(found, dict) else {}


def _endless(known: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in known.items() if name != "bounded"}


def _modified(entry: Mapping[str, Any]) -> dt.datetime | None:
    """When an object was written, under whichever name its file system says it."""
    for name in ("LastModified", "last_modified", "updated", "mtime"):
        value = entry.get(name)
        if isinstance(value, dt.datetime):
            return value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        if isinstance(value, int | float):
            return dt.datetime.fromtimestamp(value, dt.UTC)
        if isinstance(value, str) and value:
            return dt.datetime.fromisoformat(value)
    return None


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
