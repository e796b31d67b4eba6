"""Airflow connections for these tests, whose polls begin at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.airflow_connections import (
    encrypted_pem,
    pem,
    private_key,
    service,
    service_connection,
    set_connection,
)

__all__ = ["encrypted_pem", "pem", "private_key", "service", "service_connection", "set_connection"]


@pytest.fixture(autouse=True)
def gather_seconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Gather nobody else before the first round, or for as long as a test asks for."""

    def gather(seconds: float) -> None:
        for poll in ("streaming.status_poll", "bulk.history_poll"):
            monkeypatch.setattr(f"airflow_provider_snowpipe.{poll}.GATHER_SECONDS", seconds)

    gather(0.01)
    return gather
