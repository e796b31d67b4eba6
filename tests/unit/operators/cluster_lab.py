"""A load of one file through a driver on a cluster, which a script stands in for: YARN, or another kind."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.operators.cluster_job import ClusterRun
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.spark.driver.plan import WriteReport
from airflow_provider_snowpipe.spark.driver.report import ChannelReport, RunReport
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource
from tests.airflow_version import AIRFLOW
from tests.fake_snowpipe import PIPE, URL, FakeSnowpipe, KilledError
from tests.scripted_yarn import ScriptedYarn, scripted_yarn, write_submit
from tests.source_log import unit_token
from tests.stream_worker import FileState, TaskInstance

CHANNEL, TARGET, POSITION = "p_src_a", "1/1.ndjson:2", "1.ndjson:2"
REPORT = RunReport(
    "app", (ChannelReport(CHANNEL, "a", None, TARGET, TARGET, 0, True, rows=2, bytes=50),), 1.5
)
PASSING = replace(REPORT, error="service away", error_type="RetriesExhaustedError")
LASTING = replace(REPORT, error="3 rows skipped", error_type="RowsRejectedError")
SUCCEEDED = ("FINISHED", "SUCCEEDED")
"""How YARN calls the end of an application that went well."""
keeps_state = pytest.mark.skipif(AIRFLOW < (3, 3), reason="Airflow keeps a task's state since 3.3")


class ClusterLab:
    """A load of one file through a driver on a cluster.

    What differs by the kind of cluster: its connection, and options of the operator.
    """

    host = ""

    def __init__(
        self,
        folder: Path,
        make: Any,
        snowpipe: FakeSnowpipe,
        cluster: Any,
        set_connection: Any,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.make, self.channel, self.cluster = make, snowpipe.channel(CHANNEL), cluster
        self.shared, self.temporary = folder / "shared", folder / "tmp"
        self.shared.mkdir()
        self.temporary.mkdir()
        (folder / "src" / "a").mkdir(parents=True)
        (folder / "src" / "a" / "1.ndjson").write_text('{"ID": 1}\n{"ID": 2}\n')
        monkeypatch.setattr(tempfile, "tempdir", str(self.temporary))
        self._set_connection = set_connection
        self.state: FileState | None = FileState(folder / "state.json")
        self.options: dict[str, Any] = {
            "task_id": "load",
            "source": {"path": str(folder / "src")},
            "channel_prefix": "p",
            "spark_binary": str(write_submit(folder / "fake-spark-submit", cluster)),
            "spark_conn_id": "cluster",
            "work_path": str(self.shared),
            "status_poll_interval": 0,
        }

    def connect(self, host: str = "", **extra: Any) -> None:
        self._set_connection(
            "cluster", conn_type="spark", host=host or self.host, extra={"deploy-mode": "cluster", **extra}
        )

    def operator(self, **options: Any) -> SnowpipeStreamOperator:
        operator: SnowpipeStreamOperator = self.make(SnowpipeStreamOperator, **{**self.options, **options})
        return operator

    def context(self) -> Any:
        return {"ti": TaskInstance(), "task_state_store": self.state}

    def execute(self, **options: Any) -> dict[str, Any]:
        return self.operator(**options).execute(self.context())

    def folders(self) -> list[Path]:
        return list(self.shared.iterdir())

    def leave(
        self, report: RunReport | WriteReport | None = REPORT, *, committed: str | None = POSITION
    ) -> None:
        """The position that the driver commits, and the last that it writes."""
        source = FileSource(path=self.options["source"]["path"])
        self.channel.committed = committed and unit_token(source, PIPE.address(URL), "a", committed, 2)
        self.channel.rows_inserted = 2 if committed else 0
        if report is not None:
            self.report_path().write_text(report.to_json())

    def report_path(self) -> Path:
        return Path(self.cluster.submissions[-1].plan["report_path"])

    def kept(self) -> dict[str, Any]:
        assert self.state is not None
        return self.state.values()

    def leftovers(self) -> list[Path]:
        return [*self.folders(), *self.temporary.glob("snowpipe-*")]

    def dies(self, monkeypatch: pytest.MonkeyPatch, what: str, *, after: bool = False) -> None:
        """One try whose worker dies before a method of its run, or after it, and does no more."""
        original = getattr(ClusterRun, what)

        def died(*arguments: Any, **named: Any) -> Any:
            if after:
                original(*arguments, **named)
            raise KilledError

        with monkeypatch.context() as dying:
            dying.setattr(ClusterRun, what, died)
            dying.setattr(ClusterRun, "remove", lambda _: None)
            with pytest.raises(KilledError):
                self.execute()


class YarnLab(ClusterLab):
    """The same on YARN, whose fixture is ``lab``."""

    host = "yarn"

    @property
    def yarn(self) -> ScriptedYarn:
        found: ScriptedYarn = self.cluster
        return found


@pytest.fixture
def yarn() -> Iterator[ScriptedYarn]:
    with scripted_yarn() as yarn:
        yield yarn


@pytest.fixture
def lab(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Any,
    snowpipe: FakeSnowpipe,
    yarn: ScriptedYarn,
    set_connection: Any,
) -> YarnLab:
    lab = YarnLab(tmp_path, make, snowpipe, yarn, set_connection, monkeypatch)
    lab.connect(yarn_resourcemanager_webapp_address=yarn.url)
    return lab
