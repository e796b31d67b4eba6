"""A scripted service and a client for it; and one that needs no socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.streaming.auth import ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.fake_snowpipe import snowpipe
from tests.scripted_service import ScriptedService

__all__ = ["client", "make_client", "service", "snowpipe"]

PIPE = PipeName("DB", "S", "T-STREAMING")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ScriptedService]:
    with ScriptedService(tmp_path) as running:
        yield running


@pytest.fixture
def make_client(service: ScriptedService) -> Iterator[Callable[..., SnowpipeClient]]:
    made: list[SnowpipeClient] = []

    def make(credentials: Any = None, **options: Any) -> SnowpipeClient:
        options.setdefault("retry", RetryPolicy(budget_seconds=30, initial_seconds=0.02, cap_seconds=0.1))
        options.setdefault("timeouts", (30.0, 30.0))
        options.setdefault("ca_bundle", service.ca_bundle)
        client = SnowpipeClient(
            service.url, credentials or ProgrammaticAccessToken("pat-secret"), PIPE, **options
        )
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(make_client: Callable[..., SnowpipeClient]) -> SnowpipeClient:
    return make_client()
