"""Polls that begin at once."""

import pytest


@pytest.fixture(autouse=True)
def gather_seconds(monkeypatch):
    """Gather nobody else before the first round, or for as long as a test asks for."""

    def gather(seconds):
        for poll in ("streaming.polling", "bulk.files_watch"):
            monkeypatch.setattr(f"airflow_provider_snowpipe.{poll}.GATHER_SECONDS", seconds)

    gather(0.01)
    return gather
