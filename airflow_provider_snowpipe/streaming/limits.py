"""The limits of a channel, as the writer keeps them.

Light to import: DAG files and job plans are checked against these before anything else is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

WIRE_LIMIT_BYTES = 4_000_000
"""Largest body that the service takes, as sent ("Limitations and considerations", REST payload)."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch closes (whichever comes first), and how fast batches may follow each other.

    :param wire_bytes: bytes of a body as sent, at most 4,000,000
    :param raw_bytes: bytes of NDJSON in a batch
    :param rows: rows in a batch
    :param age_seconds: age of the first row in a batch
    :param requests_per_second: appends to one channel
    :param bytes_per_second: NDJSON bytes to one channel, None for no limit
    :param compression: ``zstd``, ``gzip`` or ``none``
    """

    wire_bytes: int = WIRE_LIMIT_BYTES
    raw_bytes: int = 16 * 1024 * 1024
    rows: int = 1_000_000
    age_seconds: float = 1.0
    requests_per_second: float = 10.0
    bytes_per_second: float | None = 20_000_000.0
    compression: str = "zstd"

    def __post_init__(self) -> None:
        for name in ("wire_bytes", "raw_bytes", "rows", "age_seconds", "requests_per_second"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"batch limit {name} is {getattr(self, name)}: it must be above 0")
        if self.wire_bytes > WIRE_LIMIT_BYTES:
            raise ConfigurationError(
                f"batch limit wire_bytes is {self.wire_bytes}: the service takes {WIRE_LIMIT_BYTES} at most"
            )
        if self.bytes_per_second is not None and self.bytes_per_second <= 0:
            raise ConfigurationError(
                f"batch limit bytes_per_second is {self.bytes_per_second}: it must be above 0, or None"
            )
        if self.compression not in ("zstd", "gzip", "none"):
            raise ConfigurationError(
                f"compression {self.compression!r} is unknown: use 'zstd', 'gzip' or 'none'"
            )
