"""Airflow connections for the unit tests: to a scripted service, and to the module's local one."""

from __future__ import annotations

import itertools

import pytest

from tests.airflow_connections import (
    SetConnection,
    encrypted_pem,
    pem,
    private_key,
    service,
    service_connection,
    set_connection,
)
from tests.local_connection import connect, make_table
from tests.local_service import LocalService

__all__ = ["encrypted_pem", "pem", "private_key", "service", "service_connection", "set_connection"]

_numbers = itertools.count(1)


@pytest.fixture
def conn_id(local_service: LocalService, set_connection: SetConnection) -> str:
    """A connection to the module's local service; its id."""
    return connect(local_service, set_connection)


@pytest.fixture
def table(local_service: LocalService) -> str:
    """A new table of two columns for each test."""
    return make_table(local_service, f"T{next(_numbers)}")
