"""A load of one file through a driver on a cluster, which a script stands in for: YARN, or another kind."""

from dataclasses import replace
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_snowpipe.operators.cluster_job import ClusterRun
from airflow_provider_snowpipe.spark.driver.report import ChannelReport, RunReport
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource
from tests.airflow_version import AIRFLOW
from tests.fake_snowpipe import PIPE, URL, KilledError
from tests.scripted_yarn import scripted_yarn, write_submit
from tests.source_log import unit_token
from tests.unit.operators.conftest import StreamLab

CHANNEL, TARGET, POSITION = "p_src_a", "1/1.ndjson:2", "1.ndjson:2"
REPORT = RunReport(
    "app", (ChannelReport(CHANNEL, "a", None, TARGET, TARGET, 0, True, rows=2, bytes=50),), 1.5
)
PASSING = replace(REPORT, error="service away", error_type="RetriesExhaustedError")
LASTING = replace(REPORT, error="3 rows skipped", error_type="RowsRejectedError")
SUCCEEDED = ("FINISHED", "SUCCEEDED")
"""How YARN calls the end of an application that went well."""
keeps_state = pytest.mark.skipif(AIRFLOW < (3, 3), reason="Airflow keeps a task's state since 3.3")


class ClusterLab(StreamLab):
    """A load of one file through a driver on a cluster, whose kind has its own connection."""

    host, running = "", "RUNNING"

    def __init__(self, folder, make, snowpipe, cluster, set_connection, temporary_files):
        self.shared, self.temporary = folder / "shared", temporary_files
        where = {"source": {"path": str(folder / "src")}, "work_path": str(self.shared)}
        super().__init__(folder, make, spark_conn_id="cluster", status_poll_interval=0, **where)
        self.shared.mkdir()
        (folder / "src" / "a").mkdir(parents=True)
        (folder / "src" / "a" / "1.ndjson").write_text('{"ID": 1}\n{"ID": 2}\n')
        write_submit(self.program, cluster)
        self.channel, self.cluster = snowpipe.channel(CHANNEL), cluster
        self._set_connection = set_connection

    def connect(self, host="", **extra):
        self._set_connection(
            "cluster", conn_type="spark", host=host or self.host, extra={"deploy-mode": "cluster", **extra}
        )

    def folders(self):
        return list(self.shared.iterdir())

    def leave(self, report=REPORT, *, committed=POSITION):
        """The position that the driver commits, and the last that it writes."""
        source = FileSource(path=self.options["source"]["path"])
        self.channel.committed = committed and unit_token(source, PIPE.address(URL), "a", committed, 2)
        self.channel.rows_inserted = 2 if committed else 0
        if report is not None:
            self.report_path().write_text(report.to_json())

    def report_path(self):
        return Path(self.cluster.submissions[-1].plan["report_path"])

    def leftovers(self):
        return [*self.folders(), *self.temporary.glob("snowpipe-*")]

    def dies(self, monkeypatch, what, *, after=False):
        """One try whose worker dies before a method of its run, or after it, and does no more."""
        original = getattr(ClusterRun, what)

        def died(*arguments, **named):
            if after:
                original(*arguments, **named)
            raise KilledError

        with monkeypatch.context() as dying:
            dying.setattr(ClusterRun, what, died)
            dying.setattr(ClusterRun, "remove", lambda _: None)
            with pytest.raises(KilledError):
                self.execute()

    def killed(self, monkeypatch, **options):
        """A task that is killed while its application runs."""
        operator = self.operator(**options)
        self.cluster.play(self.running, self.running)
        followed = ClusterRun.follow

        def follow(run):
            operator.on_kill()
            followed(run)

        monkeypatch.setattr(ClusterRun, "follow", follow)
        with pytest.raises(AirflowException, match="killed"):
            operator.execute(self.context())
        assert self.kept() == {}
        assert self.leftovers() == []

    def succeeds(self, submissions=1, **options):
        """The load ends well after so many submissions, and leaves nothing."""
        assert self.execute(**options)["rows"] == 2
        assert len(self.cluster.submissions) == submissions
        assert self.leftovers() == []


class YarnLab(ClusterLab):
    """The same on YARN, whose fixture is ``lab``."""

    host = "yarn"

    @property
    def yarn(self):
        return self.cluster


@pytest.fixture
def yarn():
    with scripted_yarn() as yarn:
        yield yarn


@pytest.fixture
def lab(tmp_path, temporary_files, make, snowpipe, yarn, set_connection):
    lab = YarnLab(tmp_path, make, snowpipe, yarn, set_connection, temporary_files)
    lab.connect(yarn_resourcemanager_webapp_address=yarn.url)
    return lab
