"""Schemas by their number in a schema registry, and the wire format that carries the number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from airflow_provider_snowpipe.spark.sources.kafka.objects import SCHEMA_ID_BYTES, without_head
from airflow_provider_snowpipe.spark.sources.kafka.options import REGISTRY_TOKEN, REGISTRY_USER_INFO
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    ConfigurationError,
    EncodingError,
    SnowpipeError,
    SourceUnavailableError,
)

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.sources.source import SourceSecrets

_REFUSED = (401, 403)
_MISSING = 404


class SchemaRegistry:
    """A registry; its client keeps what it has read.

    :param url: its address
    :param secrets: of the source, with those of the registry among them
    """

    def __init__(self, url: str, secrets: SourceSecrets) -> None:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            raise ConfigurationError(
                f"a schema registry needs the client for it ({error}): install "
                f"airflow-provider-snowpipe[kafka] "
                "where Spark runs, on the driver's and the executors' Python"
            ) from None
        config: dict[str, Any] = {"url": url}
        if REGISTRY_USER_INFO in secrets.values:
            config["basic.auth.user.info"] = secrets.values[REGISTRY_USER_INFO]
        if REGISTRY_TOKEN in secrets.values:
            config["bearer.auth.credentials.source"] = "STATIC_TOKEN"
            config["bearer.auth.token"] = secrets.values[REGISTRY_TOKEN]
        self._url = url
        self._client = SchemaRegistryClient(config)

    def schema(self, number: int, form: str | None = None) -> Any:
        """Read a schema.

        :param number: its number
        :param form: ``serialized`` for Protobuf's descriptors, None for the text
        :raises SourceUnavailableError: if the registry does not answer
        """
        try:
            return self._client.get_schema(number, fmt=form)
        except Exception as error:  # noqa: BLE001  of the HTTP client beneath, which is the library's affair
            raise self._error(f"schema {number}", error) from None

    def referenced(self, subject: str, version: int, form: str | None = None) -> Any:
        """Read a schema that another one refers to.

        :param subject: its subject
        :param version: its version
        :param form: as for :meth:`schema`
        """
        try:
            return self._client.get_version(subject, version, fmt=form).schema
        except Exception as error:  # noqa: BLE001
            raise self._error(f"version {version} of subject {subject!r}", error) from None

    def _error(self, what: str, error: Exception) -> SnowpipeError:
        status = getattr(error, "http_status_code", None)
        where = f"schema registry {self._url}: {what}"
        if status in _REFUSED:
            return AuthenticationError(
                f"{where}: refused (HTTP {status}): put {REGISTRY_USER_INFO!r} or {REGISTRY_TOKEN!r} into "
                "the Kafka connection"
            )
        if status == _MISSING:
            return EncodingError(f"{where}: not there (HTTP 404): records name a schema of another registry")
        return SourceUnavailableError(f"{where}: {type(error).__name__}: check that it runs")


def schema_numbers(values: pa.LargeBinaryArray) -> tuple[np.ndarray, pa.LargeBinaryArray]:
    """Read the numbers that stand ahead of the values, and take their heads off.

    :param values: values in the wire format, none null
    :return: for each value its schema's number, -1 where it has no head; and those that have one, without it
    """
    data = np.frombuffer(memoryview(values.buffers()[2] or b""), np.uint8)
    ends = np.frombuffer(values.buffers()[1], np.int64, len(values) + 1, values.offset * 8)
    starts = ends[:-1]
    numbers = np.full(len(values), -1, np.int64)
    whole = np.flatnonzero(np.diff(ends) >= SCHEMA_ID_BYTES)
    whole = whole[data[starts[whole]] == 0]
    places = starts[whole]
    numbers[whole] = sum(data[places + byte].astype(np.int64) << (8 * (4 - byte)) for byte in range(1, 5))
    headed = values if len(whole) == len(values) else values.take(pa.array(whole))
    return numbers, without_head(headed, SCHEMA_ID_BYTES)
