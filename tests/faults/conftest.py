"""A service of each module that forgets its faults after each test, and a job on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local_service import LocalService
from tests.spark_groups import grouped_job
from tests.spark_job import SparkJob


@pytest.fixture
def admin_service(admin_service: LocalService) -> Iterator[LocalService]:
    yield admin_service
    admin_service.admin("faults", clear=True)


@pytest.fixture
def job(admin_service: LocalService, tmp_path: Path) -> SparkJob:
    return grouped_job(admin_service, tmp_path)
