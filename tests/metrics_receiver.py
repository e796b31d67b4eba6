"""A receiver instead of statsd, for what tasks report to Airflow's metrics."""

import os
from collections.abc import Iterator

import pytest

import tests.airflow_connections  # noqa: F401  gives Airflow a home before it is imported
from tests.airflow_version import AIRFLOW


class Receiver:
    """Keeps what it is sent, as a metrics backend of Airflow."""

    def __init__(self) -> None:
        self.sent: dict[str, tuple[float | None, dict[str, str]]] = {}

    def _keep(self, stat: str, value: float | None = None, **options: object) -> None:
        tags = options.get("tags")
        assert isinstance(tags, dict)
        self.sent[stat] = (options.get("count", value), tags)  # type: ignore[assignment]

    incr = gauge = timing = _keep


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    made = Receiver()
    if AIRFLOW < (3, 3):
        from airflow.providers.common.compat.sdk import Stats

        monkeypatch.setattr(Stats, "instance", made, raising=False)
        monkeypatch.setattr(Stats, "_instance_pid", os.getpid(), raising=False)
        yield made
        return
    from airflow.sdk._shared.observability.metrics import stats

    before = (stats._factory, stats._export_legacy_names)
    stats.initialize(factory=lambda: made, export_legacy_names=False)  # type: ignore[arg-type,return-value]
    yield made
    stats.initialize(factory=before[0] or stats.NoStatsLogger, export_legacy_names=before[1])
