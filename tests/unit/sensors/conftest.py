"""Airflow connections for these tests."""

from __future__ import annotations

from tests.airflow_connections import (
    encrypted_pem,
    pem,
    private_key,
    service,
    service_connection,
    set_connection,
)
from tests.fake_snowpipe import snowpipe

__all__ = [
    "encrypted_pem",
    "pem",
    "private_key",
    "service",
    "service_connection",
    "set_connection",
    "snowpipe",
]
