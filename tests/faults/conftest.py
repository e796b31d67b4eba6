"""One local service for all tests of a worker process, and a job on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local_service import LocalService
from tests.spark_groups import grouped_job
from tests.spark_job import SparkJob


@pytest.fixture(scope="session")
def running_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """A service with the admin socket, which a test may kill if it starts it again."""
    service = LocalService(tmp_path_factory.mktemp("service"), admin=True)
    service.start()
    yield service
    service.kill()


@pytest.fixture
def admin_service(running_service: LocalService) -> Iterator[LocalService]:
    """The service, which forgets its faults after the test."""
    yield running_service
    running_service.admin("faults", clear=True)


@pytest.fixture
def job(admin_service: LocalService, tmp_path: Path) -> SparkJob:
    return grouped_job(admin_service, tmp_path)
