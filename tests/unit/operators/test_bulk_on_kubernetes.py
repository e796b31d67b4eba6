"""A bulk load whose driver is a pod; the test writes its files and report into the folder that all see."""

import datetime as dt
from importlib.util import find_spec
from pathlib import Path

import pytest

from airflow_provider_snowpipe.bulk.run_files import WrittenFile
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
from airflow_provider_snowpipe.operators.cluster_job import ClusterRun
from airflow_provider_snowpipe.spark.driver.plan import WriteReport
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.fake_account import FakeAccount
from tests.fake_snowpipe import KilledError
from tests.scripted_kubernetes import CONF, scripted_kubernetes, use_kubernetes
from tests.scripted_yarn import write_submit
from tests.stream_worker import FileState
from tests.unit.operators.account_in_task import install, task_context
from tests.unit.operators.cluster_lab import keeps_state

if find_spec("kubernetes") is None:
    pytest.skip("the client of Kubernetes is not installed", allow_module_level=True)

ROWS = (("r1", "r2"), ("r3",))


class BulkLab:
    """A bulk load of three rows in two files into the table of the fake account."""

    def __init__(self, folder, cluster, set_connection, patch):
        self.kubernetes, self.account = cluster, FakeAccount()
        install(self.account, patch)
        columns = (TableColumn("ID", "VARCHAR(9)"),)
        patch.setattr(SnowpipeBulkHook, "table_columns", lambda _: columns)
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.state = FileState(folder / "state.json")
        self.began = dt.datetime.now(dt.UTC)
        extra = {"deploy-mode": "cluster", "namespace": "loads"}
        set_connection("cluster", conn_type="spark", host="k8s://https://10.0.0.1:6443", extra=extra)
        self.options = {
            "source": {"query": "SELECT 1 AS ID"},
            "table": "T",
            "stage": "@S/in",
            "snowflake_conn_id": "account",
            "spark_conn_id": "cluster",
            "spark_binary": str(write_submit(folder / "fake-spark-submit", cluster)),
            "work_path": self.shared.as_uri(),
            "status_poll_interval": 0,
            "conf": CONF,
        }

    def execute(self, try_number=1):
        operator = SnowpipeBulkLoadOperator(task_id="load", **self.options)
        context = task_context("r1", try_number, self.began)
        return operator.execute({**context, "task_state_store": self.state})

    def write(self):
        """What the driver writes: the files, and its report as the last."""
        plan = self.kubernetes.submissions[-1].plan
        folder = Path(plan["folder"].removeprefix("file://"))
        folder.mkdir(parents=True)
        files = []
        for number, rows in enumerate(ROWS):
            file = folder / f"part-{number}.parquet"
            file.write_text("".join(f"{row}\n" for row in rows))
            files.append(WrittenFile(file.name, file.stat().st_size, len(rows)))
        known = (plan["application"], plan["folder"], plan["attempt"])
        report = WriteReport(*known, files=tuple(files), columns=("ID",))
        Path(plan["report_path"].removeprefix("file://")).write_text(report.to_json())


@pytest.fixture
def lab(tmp_path, monkeypatch, set_connection):
    monkeypatch.setattr("time.sleep", lambda _: None)
    with scripted_kubernetes() as cluster:
        lab = BulkLab(tmp_path, cluster, set_connection, monkeypatch)
        use_kubernetes(cluster, tmp_path, monkeypatch)
        yield lab


@keeps_state
def test_the_pod_of_a_dead_worker_is_followed_and_its_files_loaded_once(lab, monkeypatch):
    def died(*_):
        raise KilledError

    with monkeypatch.context() as dying:
        dying.setattr(ClusterRun, "follow", died)
        dying.setattr(ClusterRun, "remove", lambda _: None)
        with pytest.raises(KilledError):
            lab.execute()
    lab.kubernetes.play("Pending", "Running", lab.write, "Succeeded")

    value = lab.execute(try_number=2)

    assert sorted(lab.account.rows) == ["r1", "r2", "r3"]
    assert (value["rows"], value["rows_loaded"], value["rejected"], len(value["files"])) == (3, 3, 0, 2)
    assert [path for path in lab.account.stages["S"] if path.endswith(".parquet")] == []
    assert (len(lab.kubernetes.submissions), lab.kubernetes.pods) == (1, {})
    assert list(lab.shared.iterdir()) == []
    assert (lab.kubernetes.secrets, lab.state.values()) == ({}, {})
