"""Polls that begin at once."""

import pytest

from tests.unit.triggers.running import payloads, payloads_of_shared_streams


@pytest.fixture(autouse=True)
def gather_seconds(monkeypatch):
    """Gather nobody else before the first round, or for as long as a test asks for."""

    def gather(seconds):
        for poll in ("streaming.polling", "bulk.files_watch"):
            monkeypatch.setattr(f"airflow_provider_snowpipe.{poll}.GATHER_SECONDS", seconds)

    gather(0.01)
    return gather


@pytest.fixture(params=[payloads, payloads_of_shared_streams], ids=["run", "shared streams"])
def run_all(request):
    """Run triggers of one event each: before Airflow 3.3 they share the poll of an event loop."""
    if request.param is payloads_of_shared_streams:
        pytest.importorskip("airflow.triggers.shared_stream", reason="Airflow has it since 3.3")
    return request.param
