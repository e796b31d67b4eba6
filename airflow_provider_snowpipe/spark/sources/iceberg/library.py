"""PyIceberg, which reads an Iceberg table's metadata on the driver and maps its columns on the executors."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from airflow_provider_snowpipe.spark.driver.session import release
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

_TESTED = "0.12"


def require_pyiceberg() -> None:
    """Make sure that the library is there, in the release whose projection of columns this room uses.

    :raises ConfigurationError: if it is not
    """
    try:
        found = version("pyiceberg")
    except PackageNotFoundError:
        found = "none"
    if release(found) != release(_TESTED):
        raise ConfigurationError(
            f"the Iceberg source needs pyiceberg {_TESTED}, and this Python has {found}: install "
            "airflow-provider-snowpipe[iceberg] where Spark runs, on the driver's and the executors' Python. "
            "Nothing was sent"
        )
