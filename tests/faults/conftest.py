"""A local service whose faults are set while a test runs, and a job on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local_service import LocalService
from tests.spark_groups import grouped_job
from tests.spark_job import SparkJob


@pytest.fixture
def job(admin_service: LocalService, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SparkJob]:
    """A job on three groups; the service forgets its faults afterwards."""
    yield grouped_job(admin_service, tmp_path, request.node.name)
    admin_service.admin("faults", clear=True)
