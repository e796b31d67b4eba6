"""What the tests of this folder share in each process: Spark and a broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.spark_in_process import shared_spark, spark

if TYPE_CHECKING:
    from tests.noida_broker import NoidaBroker

__all__ = ["shared_spark", "spark"]


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
    from tests.noida_broker import NoidaBroker

    with NoidaBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running
