"""Airflow connections for the unit tests: to a scripted service, and to the module's local one."""

import importlib
import itertools
from types import SimpleNamespace

import pytest

from tests.airflow_connections import (
    encrypted_pem,
    pem,
    private_key,
    service,
    service_connection,
    set_connection,
)
from tests.airflow_version import AIRFLOW
from tests.jumping_time import jumping_loop
from tests.local_connection import connect, make_table

__all__ = [
    "encrypted_pem",
    "jumping_loop",
    "pem",
    "private_key",
    "service",
    "service_connection",
    "set_connection",
]

_numbers = itertools.count(1)

if AIRFLOW < (3, 0):
    variables = importlib.import_module("tests.loaded_folder").variables

    @pytest.fixture(autouse=True)
    def airflow_2(variables, monkeypatch):
        """A process without a task has the database there, and not here; its operators know one thread."""
        safeguard = importlib.import_module("airflow.models.baseoperator").ExecutorSafeguard
        monkeypatch.setattr(safeguard, "_sentinel", SimpleNamespace(callers={}))


@pytest.fixture
def conn_id(local_service, set_connection):
    """A connection to the module's local service; its id."""
    return connect(local_service, set_connection)


@pytest.fixture
def table(local_service):
    return make_table(local_service, f"T{next(_numbers)}")
