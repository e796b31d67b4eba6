"""Opens an Iceberg table by its name in a catalog, or by the place of its metadata."""

from __future__ import annotations

from typing import Any

from airflow_provider_snowpipe.spark.sources.iceberg.library import require_pyiceberg
from airflow_provider_snowpipe.spark.sources.iceberg.spec import IcebergSourceSpec
from airflow_provider_snowpipe.spark.sources.source import SourceSecrets
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    SourcePositionError,
    SourceUnavailableError,
)


def open_table(spec: IcebergSourceSpec, secrets: SourceSecrets) -> Any:
    """Open the table as it is now.

    :param spec: the source
    :param secrets: secret properties of the catalog, next to those that PyIceberg's own configuration has
    :return: PyIceberg's ``Table``
    :raises SourcePositionError: if it is not there
    :raises SourceUnavailableError: if the catalog does not answer
    :raises ConfigurationError: if PyIceberg refuses it
    """
    require_pyiceberg()
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, RESTError
    from pyiceberg.table import StaticTable

    properties = {**spec.options, **secrets.values}
    try:
        if spec.path is not None:
            return StaticTable.from_metadata(spec.path, properties)
        return load_catalog(spec.catalog, **properties).load_table(str(spec.table))
    except (NoSuchTableError, NoSuchNamespaceError, FileNotFoundError) as error:
        raise SourcePositionError(
            f"source {spec.address!r} is not there: {_said(error, secrets)}. Nothing was read or sent"
        ) from None
    except (RESTError, OSError) as error:
        raise SourceUnavailableError(
            f"the catalog of source {spec.address!r} does not answer: {_said(error, secrets)}"
        ) from None
    except Exception as error:  # noqa: BLE001  each catalog raises what its client raises
        raise ConfigurationError(
            f"PyIceberg cannot open source {spec.address!r}: {_said(error, secrets)}; the catalog "
            f"{spec.catalog!r} is configured in .pyiceberg.yaml, by PYICEBERG_CATALOG__… in the driver's "
            "environment, or by the source's options"
        ) from None


def _said(error: Exception, secrets: SourceSecrets) -> str:
    """What a catalog's client says, in one line and without a secret."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    for value in sorted(secrets.values.values(), key=len, reverse=True):
        text = text.replace(value, "***") if value else text
    return text[:400]
