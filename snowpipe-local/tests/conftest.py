"""Settings and service processes that all tests of the service share."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from snowpipe_local.testing import LocalService

# A busy machine takes its time for an example. A run that decides tries the same examples every time; a
# number of cases that is asked for (tests/fuzz/conftest.py) means new ones.
settings.register_profile(
    "tests",
    deadline=None,
    derandomize="SNOWPIPE_FUZZ_CASES" not in os.environ,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "mutants", settings.get_profile("tests"), phases=(Phase.explicit, Phase.generate), max_examples=50
)
settings.load_profile("tests")

ServiceFactory = Callable[..., LocalService]


@pytest.fixture(scope="session")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """The service of this process of tests, with the admin socket and a folder for external stages."""
    folder = tmp_path_factory.mktemp("lake")
    with LocalService(tmp_path_factory.mktemp("service"), admin=True, allowed_folder=folder) as service:
        yield service


@pytest.fixture(scope="module")
def local_service(shared_service: LocalService) -> LocalService:
    """The shared service, empty at the start of each module.

    A test that stops or kills a service takes ``crash_service``; one that needs other options takes
    ``service_factory``.
    """
    shared_service.drop_everything()
    return shared_service


@pytest.fixture(scope="session")
def _crash_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    folder = tmp_path_factory.mktemp("lake")
    service = LocalService(tmp_path_factory.mktemp("crash"), limits="off", admin=True, allowed_folder=folder)
    yield service
    service.kill()


@pytest.fixture
def crash_service(_crash_process: LocalService) -> LocalService:
    """A running, empty service that a test may kill and start again."""
    if not _crash_process.is_running:
        _crash_process.kill()
        _crash_process.start()
    _crash_process.drop_everything()
    return _crash_process


@pytest.fixture
def service_factory(tmp_path: Path) -> Iterator[ServiceFactory]:
    """Start services with the options of ``LocalService``; they end with the test."""
    started: list[LocalService] = []

    def start(data_dir: Path | None = None, **options: Any) -> LocalService:
        started.append(LocalService(data_dir or tmp_path / f"service{len(started)}", **options))
        return started[-1].start()

    yield start
    for service in started:
        service.kill()
