"""A driver on YARN: submitted once whatever dies, followed, stopped, and judged by what is committed.

A scripted ResourceManager stands in for YARN; what its driver leaves and commits, each test sets.
"""

from __future__ import annotations

import base64
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from requests.auth import HTTPBasicAuth

from airflow_provider_snowpipe.hooks.cluster import ResourceManager
from airflow_provider_snowpipe.links.snowpipe import SPARK_UI_KEY
from airflow_provider_snowpipe.operators import cluster_job
from airflow_provider_snowpipe.operators.cluster_delivery import Submission, hadoop_address
from airflow_provider_snowpipe.operators.cluster_job import ClusterRun, is_cluster_mode
from airflow_provider_snowpipe.spark import job_file
from airflow_provider_snowpipe.spark.driver.credentials import read_credentials_variable
from airflow_provider_snowpipe.streaming.auth import ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, RetriesExhaustedError
from tests.airflow_version import AIRFLOW
from tests.checkpoints import shown
from tests.fake_snowpipe import PAT
from tests.stream_worker import TaskInstance
from tests.unit.operators.cluster_lab import (
    CHANNEL,
    LASTING,
    PASSING,
    POSITION,
    REPORT,
    SUCCEEDED,
    TARGET,
    keeps_state,
    lab,
    yarn,
)

__all__ = ["lab", "yarn"]

UNREADABLE = [
    "",
    REPORT.to_json()[:100],
    REPORT.to_json().replace('"report_version": ', '"report_version": 9'),
    '{"report_version": 7, "channels": [{}]}',
]
"""What may lie where a driver's report is expected."""


def test_a_load_is_submitted_followed_and_reported(lab, capsys):
    lab.yarn.play("ACCEPTED", "RUNNING", "RUNNING", lab.leave, SUCCEEDED)

    value = lab.execute()

    assert value["rows"] == 2
    assert shown(value["channels"][CHANNEL]["to"]) == POSITION
    assert len(lab.yarn.submissions) == 1
    assert lab.kept() == {}
    assert lab.leftovers() == []
    assert "(RUNNING), http://rm:8088/proxy/" in capsys.readouterr().out.replace("(ACCEPTED)", "(RUNNING)")


def test_what_is_submitted(lab):
    lab.yarn.play(lab.leave, SUCCEEDED)
    conf = {"spark.yarn.tags": "mine", "spark.x": "y"}
    python = {"PYSPARK_PYTHON": "/opt/python"}
    lab.execute(conf=conf, files="/x/a.txt", yarn_queue="loads", driver_secret="file:/etc/s.json")
    lab.channel.committed = None
    lab.yarn.play(lab.leave, SUCCEEDED)
    lab.execute(env_vars=python, driver_secret="python:company.vault:ask")

    one, other = lab.yarn.submissions
    assert (one.option("--master"), one.option("--deploy-mode")) == ("yarn", "cluster")
    assert one.option("--queue") == "loads"
    assert one.option("--py-files").endswith("/airflow_provider_snowpipe.zip")
    assert one.option("--files").startswith("/x/a.txt,")
    assert one.argv[-1] == Path(one.option("--files")).name
    assert one.settings["spark.yarn.submit.waitAppCompletion"] == "false"
    mine, task, run = one.settings["spark.yarn.tags"].split(",")
    assert mine == "mine"
    assert run.startswith(f"{task}-")
    assert one.plan["report_path"] == str(lab.shared / run / "report.json")
    assert one.environment["PYSPARK_PYTHON"] == one.environment["PYSPARK_DRIVER_PYTHON"] == "python3"
    # The driver gets its credentials by itself.
    assert one.job == job_file().read_text()
    assert one.plan["credentials_from"] == "file:/etc/s.json"
    assert not one.plan.get("credentials_variable")
    assert other.plan["credentials_from"] == "python:company.vault:ask"
    assert other.environment["PYSPARK_DRIVER_PYTHON"] == "/opt/python"
    assert other.settings["spark.yarn.appMasterEnv.PYSPARK_PYTHON"] == "/opt/python"


def test_credentials_are_in_the_applications_private_file_and_nowhere_else(lab, capsys):
    """What else is submitted comes to executors, too, or is shown by YARN."""
    lab.yarn.play("RUNNING", lab.leave, SUCCEEDED)
    lab.execute(verbose=True)

    (one,) = lab.yarn.submissions
    secret = _secret_in(one.job)
    assert json.loads(base64.b64decode(secret))["token"] == PAT
    assert one.mode == 0o600
    assert one.plan["credentials_variable"] == "SNOWPIPE_SECRET"
    environment = {name: one.environment[name] for name in one.environment if "AIRFLOW_CONN" not in name}
    shown = json.dumps([one.argv, environment, one.plan]) + "".join(capsys.readouterr())
    assert PAT not in shown
    assert secret not in shown
    assert "--properties-file" not in one.argv


def test_the_application_takes_its_credentials_along_and_leaves_no_file(lab, tmp_path, monkeypatch):
    """YARN's container has a link to the file."""
    lab.yarn.play(lab.leave, SUCCEEDED)
    lab.execute()
    job, link = tmp_path / "cache.py", tmp_path / "snowpipe-job.py"
    job.write_text(lab.yarn.submissions[0].job)
    link.symlink_to(job)
    taken = []

    def main(argv: list[str]) -> int:
        taken.extend([*argv, read_credentials_variable("SNOWPIPE_SECRET")[0]])
        return 3

    monkeypatch.setattr("airflow_provider_snowpipe.spark.driver.job.main", main)
    monkeypatch.setattr(sys, "argv", [str(link), "plan.json"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(link), run_name="__main__")

    assert ended.value.code == 3
    assert taken == ["plan.json", ProgrammaticAccessToken(PAT)]
    assert not job.exists()


def _secret_in(job: str) -> str:
    (found,) = (line for line in job.splitlines() if "SNOWPIPE_SECRET" in line)
    return found.split("'")[3]


class TestRefusedBeforeSubmission:
    @pytest.mark.parametrize(
        ("change", "options", "word"),
        [
            ({}, {}, "yarn_resourcemanager_webapp_address"),
            ({"host": "local[2]"}, {}, "Kubernetes"),
            (None, {"work_path": None}, "work_path"),
            (None, {"work_path": "/no/such/folder"}, "work_path"),
            (None, {"conf": {"spark.yarn.submit.waitAppCompletion": "true"}}, "waitAppCompletion"),
            (None, {"yarn_rm_auth": HTTPBasicAuth("u", "p"), "deferrable": True}, "yarn_rm_auth"),
            (None, {"deploy_mode": "client", "conf": {"spark.submit.deployMode": "cluster"}}, "deploy_mode="),
            (None, {"driver_secret": "snowflake:credentials"}, "secrets"),
            (None, {"driver_secret": "file:c.json"}, "'file:/path'"),
        ],
    )
    def test_what_would_fail_later(self, lab, change, options, word):
        if change is not None:
            lab.connect(**change)

        with pytest.raises(AirflowFailException, match=word):
            lab.execute(**options)
        assert lab.yarn.submissions == []
        assert lab.leftovers() == []

    def test_an_address_of_the_resource_manager_that_is_none(self, lab):
        for address in (
            "http://",
            "http://:8088",
            "rm:abc",
            "ftp://rm:8088",
            "rm1:8088,rm2:8088",
            "http://[::1",
        ):
            lab.connect(yarn_resourcemanager_webapp_address=address)
            with pytest.raises(AirflowFailException, match=re.escape(address)):
                lab.execute()
        assert lab.yarn.submissions == []
        with pytest.raises(ConfigurationError, match="elsewhere"):
            is_cluster_mode("elsewhere", None)

    def test_a_password_in_the_address_is_sent_and_shown_nowhere(self, lab):
        lab.connect(yarn_resourcemanager_webapp_address="http://me:p%40ss@127.0.0.1:1")

        with pytest.raises(RetriesExhaustedError, match=r"http://127\.0\.0\.1:1 ") as refused:
            lab.execute()
        assert "ss@" not in repr(refused.value) + repr(refused.value.__cause__)
        assert ResourceManager("http://me:p%40ss@rm:8088")._auth == HTTPBasicAuth("me", "p@ss")


class TestEnds:
    """What YARN reports of the end, the driver's report, and what is committed; the latter two decide."""

    @pytest.mark.parametrize("end", [SUCCEEDED, ("KILLED", "KILLED")])
    def test_a_good_report_of_committed_rows_is_a_success(self, lab, capsys, end):
        lab.yarn.play("RUNNING", 503, 500, lab.leave, end)

        assert lab.execute()["rows"] == 2
        assert ("which counts" in capsys.readouterr().out) == (end != SUCCEEDED)
        assert lab.leftovers() == []

    @pytest.mark.parametrize(
        ("report", "kind", "permanent"),
        [
            (PASSING, "RetriesExhaustedError: service away", False),
            (LASTING, "RowsRejectedError: 3 row", True),
        ],
    )
    def test_a_driver_that_failed_reports_why(self, lab, report, kind, permanent):
        lab.yarn.play("RUNNING", lambda: lab.leave(report, committed=None), ("FINISHED", "FAILED"))

        with pytest.raises(AirflowException, match=kind) as failed:
            lab.execute()
        assert isinstance(failed.value, AirflowFailException) == permanent
        assert lab.kept() == {}
        assert lab.leftovers() == []

    @pytest.mark.parametrize(("report", "word"), [(None, "no report"), (UNREADABLE[1], "cannot be read")])
    def test_everything_committed_without_a_report_is_a_success_with_a_notice(
        self, lab, capsys, report, word
    ):
        def leave() -> None:
            lab.leave(None)
            if report is not None:
                lab.report_path().write_text(report)

        lab.yarn.play("RUNNING", leave, ("FAILED", "FAILED"))

        assert shown(lab.execute()["channels"][CHANNEL]["to"]) == POSITION
        assert word in capsys.readouterr().out

    @pytest.mark.parametrize("report", UNREADABLE, ids=["empty", "half", "version", "foreign"])
    def test_rows_that_are_missing_with_a_report_that_cannot_be_read_are_a_failure(self, lab, report):
        def leave() -> None:
            lab.leave(None, committed="1.ndjson:1")
            lab.report_path().write_text(report)

        lab.yarn.play("RUNNING", leave, SUCCEEDED)

        with pytest.raises(AirflowException, match="yarn logs") as failed:
            lab.execute()
        assert not isinstance(failed.value, AirflowFailException)
        assert lab.leftovers() == []

    @pytest.mark.parametrize("end", [SUCCEEDED, ("FAILED", "FAILED"), "forgotten"])
    def test_rows_that_are_missing_without_a_report_are_a_failure(self, lab, end):
        ends = [lab.yarn.applications.clear, 404] if end == "forgotten" else [end]
        lab.yarn.play("RUNNING", lambda: lab.leave(None, committed="1.ndjson:1"), *ends)

        with pytest.raises(AirflowException, match="application_1700000000000_0001"):
            lab.execute()
        assert lab.kept() == {}

    def test_a_success_with_a_channel_behind_is_a_failure(self, lab):
        lab.yarn.play("RUNNING", lambda: lab.leave(committed="1.ndjson:1"), SUCCEEDED)

        with pytest.raises(AirflowException, match="CommitTimeoutError"):
            lab.execute()
        assert lab.leftovers() == []


class TestAnotherTry:
    """Nothing is submitted twice, wherever a worker died."""

    @keeps_state
    @pytest.mark.parametrize("step", ["submit", "_keep"])
    def test_before_anything_was_submitted_or_its_id_was_kept(self, lab, monkeypatch, step):
        lab.dies(monkeypatch, step)
        assert lab.kept()["snowpipe_application"]["application_id"] is None
        lab.yarn.play(*(["RUNNING"] if step == "_keep" else []), lab.leave, SUCCEEDED)

        assert lab.execute()["rows"] == 2
        assert len(lab.yarn.submissions) == 1
        assert lab.leftovers() == []

    @pytest.mark.parametrize("how", ["runs", "ended", "runs, and Airflow keeps no state"])
    def test_while_it_ran(self, lab, monkeypatch, capsys, how):
        if "no state" in how:
            lab.state = None
        lab.dies(monkeypatch, "follow", after=False)
        lab.yarn.play(*([] if how == "ended" else ["RUNNING"]), lab.leave, SUCCEEDED)

        assert lab.execute()["rows"] == 2
        assert len(lab.yarn.submissions) == 1
        assert "nothing is submitted" in capsys.readouterr().out
        assert lab.leftovers() == []

    @keeps_state
    @pytest.mark.parametrize("report", [None, PASSING, "unreadable"])
    def test_a_new_one_resumes_after_one_that_failed(self, lab, monkeypatch, report):
        def start_and_fail() -> None:
            lab.leave(None if report == "unreadable" else report, committed=None)
            if report == "unreadable":
                lab.report_path().write_text(UNREADABLE[1])

        lab.yarn.play(start_and_fail, ("FAILED", "FAILED"))
        lab.dies(monkeypatch, "follow", after=True)
        lab.yarn.play(lab.leave, SUCCEEDED)

        assert lab.execute()["rows"] == 2
        assert len(lab.yarn.submissions) == 2
        assert lab.leftovers() == []

    @keeps_state
    def test_when_its_task_lost_airflow_while_it_ran(self, lab):
        """When a task's supervisor is killed, whatever the task sends to it next is an error."""

        class Orphan(TaskInstance):
            def xcom_push(self, key: str, value: Any) -> None:
                if key == SPARK_UI_KEY:
                    raise BrokenPipeError("the supervisor is gone")

        lab.yarn.play("RUNNING")
        with pytest.raises(BrokenPipeError):
            lab.operator().execute({**lab.context(), "ti": Orphan()})
        assert len(lab.folders()) == 1
        lab.yarn.play(lab.leave, SUCCEEDED)

        assert lab.execute()["rows"] == 2
        assert len(lab.yarn.submissions) == 1
        assert lab.leftovers() == []

    @keeps_state
    def test_a_submission_that_still_runs_on_this_machine_is_stopped_first(self, lab, monkeypatch, tmp_path):
        lab.dies(monkeypatch, "submit")
        submission = lab.kept()["snowpipe_application"]
        job = str(Path(submission["directory"], "snowpipe-job.py"))
        sleeper = "import time; time.sleep(600)"
        orphan = subprocess.Popen([sys.executable, "-c", sleeper, job])
        try:
            lab.yarn.play(lab.leave, SUCCEEDED)
            lab.execute()
            assert orphan.poll() is not None
        finally:
            orphan.kill()
            orphan.wait()
        assert len(lab.yarn.submissions) == 1

    def test_a_state_that_is_no_submission_is_not_followed(self):
        tag = "snowpipe-0123456789abcdef-01234567"
        good = {"tag": tag, "host": "h", "directory": "/", "application_id": None}
        assert Submission.of(good) is not None
        for wrong in ({"tag": "../../etc"}, {"host": 5}, {"application_id": "../x"}):
            assert Submission.of({**good, **wrong}) is None
        assert Submission.of("x") is None


class TestSubmission:
    def test_one_that_fails_reports_it_and_leaves_nothing(self, lab):
        lab.yarn.takes, lab.yarn.submit_code = False, 1

        with pytest.raises(AirflowException, match="nothing was taken"):
            lab.execute()
        assert lab.kept() == {}
        assert lab.leftovers() == []

    def test_one_that_went_to_another_cluster_is_reported(self, lab):
        lab.yarn.takes = False

        with pytest.raises(AirflowException, match="HADOOP_CONF_DIR"):
            lab.execute()


class TestResourceManagerIsAway:
    @pytest.mark.parametrize("polls", [1, 5])
    def test_while_it_reads_after_a_restart_what_it_knew(self, lab, polls):
        """Its web page is there before its applications are."""
        lab.yarn.play("RUNNING", lambda: setattr(lab.yarn, "recovering", polls), 503, lab.leave, SUCCEEDED)

        assert lab.execute()["rows"] == 2
        assert len(lab.yarn.submissions) == 1

    @keeps_state
    def test_while_it_does_nothing_is_submitted_anew(self, lab, monkeypatch):
        lab.dies(monkeypatch, "_keep")
        lab.yarn.recovering = 2
        with pytest.raises(RetriesExhaustedError, match="INITIALIZING"):
            lab.execute()
        lab.yarn.recovering = 0
        lab.yarn.play(lab.leave, SUCCEEDED)

        assert lab.execute()["rows"] == 2
        assert len(lab.yarn.submissions) == 1

    def test_for_long_ends_the_try_and_not_the_application(self, lab, monkeypatch):
        with monkeypatch.context() as shortened:
            shortened.setattr(cluster_job, "UNREACHABLE_SECONDS", 0.0)
            lab.yarn.play("RUNNING", 503)
            with pytest.raises(RetriesExhaustedError, match="503"):
                lab.execute()
        assert lab.yarn.killed == []
        lab.yarn.play(lab.leave, SUCCEEDED)

        assert lab.execute()["rows"] == 2
        assert len(lab.yarn.submissions) == 1
        assert lab.leftovers() == []


class TestKill:
    def test_while_it_runs(self, lab):
        operator = lab.operator()
        lab.yarn.play("RUNNING", "RUNNING")
        followed = ClusterRun.follow

        def killed(run: ClusterRun) -> None:
            operator.on_kill()
            followed(run)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ClusterRun, "follow", killed)
            with pytest.raises(AirflowException, match="killed"):
                operator.execute(lab.context())
        assert lab.yarn.killed == list(lab.yarn.applications)
        assert lab.kept() == {}
        assert lab.leftovers() == []


@pytest.mark.skipif(AIRFLOW < (3, 2), reason="Airflow has fsspec's memory:// since 3.2")
def test_an_object_store_is_a_work_path(lab):
    import fsspec

    store = fsspec.filesystem("memory")

    def leave() -> None:
        lab.channel.committed = TARGET
        store.pipe(f"/loads/{lab.report_path().parent.name}/report.json", REPORT.to_json().encode())

    lab.yarn.play("RUNNING", leave, SUCCEEDED)

    assert lab.execute(work_path="memory://loads/")["rows"] == 2
    assert store.find("/loads") == []


def test_hadoop_knows_an_address_by_its_own_scheme():
    assert hadoop_address("s3://conn@bucket/loads") == "s3a://bucket/loads"
    for given in ("/shared/loads", "file:///shared/loads", "gs://bucket/loads", "hdfs://name:8020/loads",
                  "abfss://box@account.dfs.core.windows.net/x"):  # fmt: skip
        assert hadoop_address(given) == given
