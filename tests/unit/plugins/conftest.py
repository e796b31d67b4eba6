"""Airflow's own tables for the pages, and the pages as a user sees them."""

import pytest

from tests.airflow_tables import airflow_tables, empty_tables, signed_in
from tests.airflow_version import AIRFLOW

__all__ = ["airflow_tables", "empty_tables", "signed_in"]

# Airflow 2 has no such pages.
collect_ignore = (
    [] if AIRFLOW >= (3, 1) else [f"test_{one}.py" for one in ("channel_pages", "charts", "history", "pages")]
)


@pytest.fixture
def client(signed_in):
    """Sign a role in and give its client; only here is imported what the API server does."""
    from fastapi.testclient import TestClient

    from airflow_provider_snowpipe.plugins import pages

    def of(role="admin"):
        signed_in(role)
        return TestClient(pages.app, raise_server_exceptions=False)

    return of
