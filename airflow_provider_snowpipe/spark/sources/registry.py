"""The registry of sources: each by the ``kind`` of its spec, imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Any

from airflow_provider_snowpipe.spark.source import OnDataLoss, Source, SourceSecrets, SourceSpec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

_NO_SECRETS = SourceSecrets()
DEFAULT_KIND = "files"
ENTRY_POINTS = "airflow_provider_snowpipe.sources"
"""The group of entry points by which other packages add sources: a kind, and the class of its spec."""
_SOURCES = {
    "delta": "tables.spec:DeltaSource",
    "files": "files.spec:FileSource",
    "iceberg": "iceberg.spec:IcebergSource",
    "kafka": "kafka.spec:KafkaSource",
    "table": "tables.spec:TableSource",
}
_SCHEMES = {"kafka://": "kafka"}


def source_spec(values: Any) -> SourceSpec:
    """Build a source's spec from its JSON object, whose ``kind`` names the source."""
    found = spec_class(values).from_mapping(values)
    found.check_streamable()
    return found


def spec_class(values: Any) -> type[SourceSpec]:
    """The class of a source's spec, by the ``kind`` of its JSON object."""
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"plan source is {values!r}: it must be an object with keys")
    kind = values.get("kind", DEFAULT_KIND)
    if isinstance(kind, str):
        if kind in _SOURCES:
            return _own_spec(kind)
        for added in entry_points(group=ENTRY_POINTS, name=kind):
            try:
                found: type[SourceSpec] = added.load()
            except (ImportError, AttributeError) as error:
                raise ConfigurationError(
                    f"source kind is {kind!r}, and {added.value!r}, which the entry point of an installed "
                    f"package names for it, cannot be imported ({error}): correct or reinstall that package"
                ) from None
            return found
    known = sorted({*_SOURCES, *entry_points(group=ENTRY_POINTS).names})
    raise ConfigurationError(f"source kind is {kind!r}: it must be one of {known}")


def spec_of_address(address: str) -> type[SourceSpec] | None:
    """The class of the spec whose addresses begin so, None where there is none."""
    kind = next((kind for scheme, kind in _SCHEMES.items() if address.startswith(scheme)), None)
    return None if kind is None else _own_spec(kind)


def open_source(spec: SourceSpec, on_data_loss: OnDataLoss, secrets: SourceSecrets = _NO_SECRETS) -> Source:
    """Make the source that a spec describes; nothing is read yet."""
    source: Source = resolve_name(spec.source_class)(spec, on_data_loss)
    source.take_secrets(secrets)
    return source


def _own_spec(kind: str) -> type[SourceSpec]:
    spec: type[SourceSpec] = resolve_name(f"{__package__}.{_SOURCES[kind]}")
    return spec
