"""Fixtures shared by all tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.local_service import LocalService

# A busy machine takes its time for an example, and a run that decides tries the same ones every time; a
# number of cases that is asked for (see tests/fuzz/budget.py) means new ones.
settings.register_profile(
    "tests",
    deadline=None,
    derandomize="SNOWPIPE_FUZZ_CASES" not in os.environ,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# The mutation run asks whether a test fails, not for the smallest example.
settings.register_profile(
    "mutants", settings.get_profile("tests"), phases=(Phase.explicit, Phase.generate), max_examples=50
)
settings.load_profile("tests")

# py4j logs from destructors, after pytest has closed its streams.
logging.getLogger("py4j").setLevel(logging.WARNING)

ServiceFactory = Callable[..., LocalService]


@pytest.fixture(scope="module")
def local_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """A running local service with a fresh data directory, shared by the tests of a module."""
    service = LocalService.start(tmp_path_factory.mktemp("service"))
    yield service
    service.stop()


@pytest.fixture
def service_factory(tmp_path: Path) -> Iterator[ServiceFactory]:
    """``(faults, data_dir, limits, *, config, admin, options) -> LocalService``; they end with the test."""
    started: list[LocalService] = []

    def start(
        faults: str | None = None,
        data_dir: Path | None = None,
        limits: str | None = None,
        *,
        config: Path | None = None,
        admin: bool = False,
        options: Sequence[str] = (),
    ) -> LocalService:
        folder = data_dir or tmp_path / f"service{len(started)}"
        service = LocalService(folder, faults, limits, config=config, admin=admin, options=options)
        started.append(service)
        service.launch()
        return service

    yield start
    for service in started:
        service.kill()


@pytest.fixture(scope="module")
def admin_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """A service of the module's own with the admin socket."""
    service = LocalService(tmp_path_factory.mktemp("service"), admin=True)
    service.launch()
    yield service
    service.stop()
