"""What the tests of this folder share: connections, and in each process Spark and a broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.airflow_connections import SetConnection, pem, private_key, set_connection
from tests.file_pipes import make_target, target
from tests.local_connection import connect
from tests.local_service import LocalService
from tests.spark_in_process import shared_spark, spark

if TYPE_CHECKING:
    from tests.kafka_broker import NoidaBroker

__all__ = ["make_target", "pem", "private_key", "set_connection", "shared_spark", "spark", "target"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test with the process's Spark runs where all of those share one, marked or not."""
    for item in items:
        if "shared_spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def small_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NoidaBroker]:
    """A broker without Java."""
    pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")
    from tests.kafka_broker import NoidaBroker

    with NoidaBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def conn_id(
    local_service: LocalService, set_connection: SetConnection, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A connection to the shared service, which Snowflake's connector trusts, beside one to Spark."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(local_service.ca_file))
    set_connection("spark_default", conn_type="spark", host="local[2]")
    return connect(local_service, set_connection)
