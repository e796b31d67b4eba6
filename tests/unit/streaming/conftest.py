"""A service in this process, and a client of it."""

from collections.abc import Iterator

import pytest

from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from tests.fake_snowpipe import FakeSnowpipe, snowpipe

__all__ = ["snowpipe"]


@pytest.fixture
def client(snowpipe: FakeSnowpipe) -> Iterator[SnowpipeClient]:
    with snowpipe.client() as client:
        yield client
