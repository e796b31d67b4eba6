"""Airflow connections for the unit tests: to a scripted service, and to the module's local one."""

import itertools

import pytest

from tests.airflow_connections import (
    encrypted_pem,
    pem,
    private_key,
    service,
    service_connection,
    set_connection,
)
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


@pytest.fixture
def conn_id(local_service, set_connection):
    """A connection to the module's local service; its id."""
    return connect(local_service, set_connection)


@pytest.fixture
def table(local_service):
    return make_table(local_service, f"T{next(_numbers)}")
