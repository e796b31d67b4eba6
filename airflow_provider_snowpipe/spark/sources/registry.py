"""The sources that the job knows, by the ``kind`` of their spec; each is imported when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_snowpipe.spark.sources.source import OnDataLoss, Source, SourceSpec
from airflow_provider_snowpipe.spark.sources.source_secrets import SourceSecrets
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

_NO_SECRETS = SourceSecrets()
DEFAULT_KIND = "files"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a source's classes are: module and name of the spec, module and name of the source."""

    spec: tuple[str, str]
    source: tuple[str, str]


_ROOM = "airflow_provider_snowpipe.spark.sources"
_SOURCES: dict[str, _Place] = {
    "files": _Place(
        spec=(f"{_ROOM}.files.spec", "FileSourceSpec"), source=(f"{_ROOM}.files.reader", "FileSource")
    ),
    "kafka": _Place(
        spec=(f"{_ROOM}.kafka.spec", "KafkaSourceSpec"),
        source=(f"{_ROOM}.kafka.spark_reader", "kafka_source"),
    ),
    "delta": _Place(
        spec=(f"{_ROOM}.delta.spec", "DeltaSourceSpec"),
        source=(f"{_ROOM}.delta.reader", "DeltaSource"),
    ),
    "iceberg": _Place(
        spec=(f"{_ROOM}.iceberg.spec", "IcebergSourceSpec"),
        source=(f"{_ROOM}.iceberg.reader", "IcebergSource"),
    ),
    "table": _Place(
        spec=(f"{_ROOM}.tables.spec", "TableSourceSpec"), source=(f"{_ROOM}.tables.reader", "TableSource")
    ),
}


def source_spec(values: Any) -> SourceSpec:
    """Build a source's spec from its JSON object.

    :param values: the object; its ``kind`` says which source it is, ``files`` where there is none
    :raises ConfigurationError: if there is no such source, or a key or value is wrong
    """
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"plan source is {values!r}: it must be an object with keys")
    kind = values.get("kind", DEFAULT_KIND)
    place = _SOURCES.get(kind) if isinstance(kind, str) else None
    if place is None:
        raise ConfigurationError(f"source kind is {kind!r}: it must be one of {sorted(_SOURCES)}")
    spec: type[SourceSpec] = _found(place.spec)
    found = spec.from_mapping(values)
    found.check_streamable()
    return found


def open_source(spec: SourceSpec, on_data_loss: OnDataLoss, secrets: SourceSecrets = _NO_SECRETS) -> Source:
    """Make the source that a spec describes; nothing is read yet.

    :param spec: the spec
    :param on_data_loss: what to do if a committed position is not in the source any more
    :param secrets: the source's passwords and keys, which no plan holds
    """
    source: Source = _found(_SOURCES[spec.kind].source)(spec, on_data_loss)
    source.take_secrets(secrets)
    return source


def _found(place: tuple[str, str]) -> Any:
    return getattr(importlib.import_module(place[0]), place[1])
