"""Airflow's own tables for the pages."""

from tests.airflow_tables import airflow_tables, empty_tables, signed_in

__all__ = ["airflow_tables", "empty_tables", "signed_in"]
