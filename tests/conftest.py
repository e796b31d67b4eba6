"""Fixtures shared by all tests."""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.java_options import use_quick_java
from tests.local_service import LocalService

# A busy machine takes its time for an example, and a run that decides tries the same ones every time; a
# number of cases that is asked for means new ones.
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

use_quick_java()

# py4j logs from destructors, after pytest has closed its streams.
logging.getLogger("py4j").setLevel(logging.WARNING)

pytest_plugins = ["tests.report_plugin"]


@pytest.fixture(scope="session")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """The local service of this process of tests, with the admin socket and a folder for external stages."""
    folder = tmp_path_factory.mktemp("lake")
    service = LocalService(tmp_path_factory.mktemp("service"), admin=True, allowed_folder=folder)
    service.start()
    yield service
    service.stop()


@pytest.fixture(scope="module")
def local_service(shared_service: LocalService) -> LocalService:
    """The shared service, empty at the start of each module.

    A test that kills a service or moves its clock, which never goes back, takes ``admin_service``.
    """
    shared_service.drop_everything()
    return shared_service


@pytest.fixture(scope="module")
def admin_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """A service of the module's own, whose clock its tests may move."""
    service = LocalService(tmp_path_factory.mktemp("service"), admin=True)
    service.start()
    yield service
    service.stop()
