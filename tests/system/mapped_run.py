"""A run of the DAG ``many_channels``, whose channels the pages show as well."""

from __future__ import annotations

from conftest import Stack


def mapped_run(stack: Stack) -> None:
    """Begin a run with three stations, which are three channels of the table ``STATIONS``."""
    stack.unpause("many_channels")
    stack.airflow.api.trigger("many_channels", "mapped", {"table": "STATIONS", "stations": 3})
