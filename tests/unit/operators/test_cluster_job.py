"""A driver on YARN: submitted once whatever dies, followed, stopped, and judged by what is committed.

A scripted ResourceManager stands in for YARN; what its driver leaves and commits, each test sets.
"""

import base64
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from requests.auth import HTTPBasicAuth

from airflow_provider_snowpipe.hooks.cluster import ResourceManager
from airflow_provider_snowpipe.links.snowpipe import SPARK_UI_KEY
from airflow_provider_snowpipe.operators import cluster_job
from airflow_provider_snowpipe.operators.cluster_delivery import Submission
from airflow_provider_snowpipe.spark import job_file
from airflow_provider_snowpipe.spark.driver.credentials import read_credentials_variable
from airflow_provider_snowpipe.streaming.auth import ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.errors import RetriesExhaustedError
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
    keeps_state,
    lab,
    yarn,
)

__all__ = ["lab", "yarn"]

VERSION = '"report_version": '
UNREADABLE = [
    "",
    REPORT.to_json()[:100],
    REPORT.to_json().replace(VERSION, f"{VERSION}9"),
    f'{{{VERSION}7, "channels": [{{}}]}}',
]
"""What may lie where a driver's report is expected."""


def test_what_is_submitted(lab):
    lab.yarn.play(lab.leave, SUCCEEDED)
    conf = {"spark.yarn.tags": "mine", "spark.x": "y"}
    lab.execute(conf=conf, files="/x/a.txt", yarn_queue="loads", driver_secret="file:/etc/s.json")
    lab.channel.committed = None
    lab.yarn.play(lab.leave, SUCCEEDED)
    lab.execute(env_vars={"PYSPARK_PYTHON": "/opt/python"}, driver_secret="python:company.vault:ask")

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
    (line,) = (line for line in one.job.splitlines() if "SNOWPIPE_SECRET" in line)
    secret = line.split("'")[3]
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

    def main(argv):
        taken.extend([*argv, read_credentials_variable("SNOWPIPE_SECRET")[0]])
        return 3

    monkeypatch.setattr("airflow_provider_snowpipe.spark.driver.job.main", main)
    monkeypatch.setattr(sys, "argv", [str(link), "plan.json"])
    with pytest.raises(SystemExit, match="3"):
        runpy.run_path(str(link), run_name="__main__")
    assert taken == ["plan.json", ProgrammaticAccessToken(PAT)]
    assert not job.exists()


class TestRefusedBeforeSubmission:
    @pytest.mark.parametrize(
        ("change", "options", "word"),
        [
            ({}, {}, "yarn_resourcemanager_webapp_address"),
            ({"host": "local[2]"}, {}, "Kubernetes"),
            (None, {"work_path": None}, "work_path"),
            (None, {"conf": {"spark.yarn.submit.waitAppCompletion": "true"}}, "waitAppCompletion"),
            (None, {"yarn_rm_auth": HTTPBasicAuth("u", "p"), "deferrable": True}, "yarn_rm_auth"),
            (None, {"deploy_mode": "client", "conf": {"spark.submit.deployMode": "cluster"}}, "deploy_mode="),
            (None, {"driver_secret": "snowflake:credentials"}, "secrets"),
            (None, {"driver_secret": "file:c.json"}, "'file:/path'"),
            *(
                ({"yarn_resourcemanager_webapp_address": address}, {}, re.escape(address))
                for address in ("http://", "ftp://rm:8088", "rm1:8088,rm2:8088")
            ),
        ],
    )
    def test_what_would_fail_later(self, lab, change, options, word):
        if change is not None:
            lab.connect(**change)
        with pytest.raises(AirflowFailException, match=word):
            lab.execute(**options)
        assert [*lab.yarn.submissions, *lab.leftovers()] == []

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
        lab.succeeds()
        assert ("which counts" in capsys.readouterr().out) == (end != SUCCEEDED)

    @pytest.mark.parametrize(("report", "word"), [(None, "no report"), (UNREADABLE[1], "cannot be read")])
    def test_all_committed_without_a_report_is_a_success_with_a_notice(self, lab, capsys, report, word):
        lab.yarn.play("RUNNING", lambda: _leave_text(lab, report, POSITION), ("FAILED", "FAILED"))
        assert shown(lab.execute()["channels"][CHANNEL]["to"]) == POSITION
        assert word in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("report", "committed", "end", "word", "is_permanent"),
        [
            (PASSING.to_json(), None, "FAILED", "RetriesExhaustedError: service away", False),
            (LASTING.to_json(), None, "FAILED", "RowsRejectedError: 3 row", True),
            (REPORT.to_json(), "1.ndjson:1", "SUCCEEDED", "CommitTimeoutError", False),
            *((text, "1.ndjson:1", "SUCCEEDED", "yarn logs", False) for text in UNREADABLE),
            (None, "1.ndjson:1", "SUCCEEDED", "application_1700000000000_0001", False),
            (None, "1.ndjson:1", "forgotten", "application_1700000000000_0001", False),
        ],
    )
    def test_rows_that_are_missing_are_a_failure(self, lab, report, committed, end, word, is_permanent):
        ends = [lab.yarn.applications.clear, 404] if end == "forgotten" else [("FINISHED", end)]
        lab.yarn.play("RUNNING", lambda: _leave_text(lab, report, committed), *ends)
        with pytest.raises(AirflowException, match=word) as failed:
            lab.execute()
        assert isinstance(failed.value, AirflowFailException) == is_permanent
        assert lab.kept() == {}
        assert lab.leftovers() == []


def _leave_text(lab, report, committed):
    lab.leave(None, committed=committed)
    if report is not None:
        lab.report_path().write_text(report)


class TestAnotherTry:
    """Nothing is submitted twice, wherever a worker died."""

    @keeps_state
    @pytest.mark.parametrize("step", ["submit", "_keep"])
    def test_before_anything_was_submitted_or_its_id_was_kept(self, lab, monkeypatch, step):
        lab.dies(monkeypatch, step)
        assert lab.kept()["snowpipe_application"]["application_id"] is None
        lab.yarn.play(*(["RUNNING"] if step == "_keep" else []), lab.leave, SUCCEEDED)
        lab.succeeds()

    @pytest.mark.parametrize("how", ["runs", "ended", "runs, and Airflow keeps no state"])
    def test_while_it_ran(self, lab, monkeypatch, capsys, how):
        if "no state" in how:
            lab.state = None
        lab.dies(monkeypatch, "follow")
        lab.yarn.play(*([] if how == "ended" else ["RUNNING"]), lab.leave, SUCCEEDED)
        lab.succeeds()
        assert "nothing is submitted" in capsys.readouterr().out

    @keeps_state
    @pytest.mark.parametrize("report", [None, PASSING.to_json(), UNREADABLE[1]])
    def test_a_new_one_resumes_after_one_that_failed(self, lab, monkeypatch, report):
        lab.yarn.play(lambda: _leave_text(lab, report, None), ("FAILED", "FAILED"))
        lab.dies(monkeypatch, "follow", after=True)
        lab.yarn.play(lab.leave, SUCCEEDED)
        lab.succeeds(submissions=2)

    @keeps_state
    def test_when_its_task_lost_airflow_while_it_ran(self, lab, monkeypatch):
        """When a task's supervisor is killed, whatever the task sends to it next is an error."""

        def push(_, key, value):
            if key == SPARK_UI_KEY:
                raise BrokenPipeError("the supervisor is gone")

        lab.yarn.play("RUNNING")
        with monkeypatch.context() as orphaned:
            orphaned.setattr(TaskInstance, "xcom_push", push)
            with pytest.raises(BrokenPipeError):
                lab.execute()
        assert len(lab.folders()) == 1
        lab.yarn.play(lab.leave, SUCCEEDED)

        lab.succeeds()

    @keeps_state
    def test_a_submission_that_still_runs_on_this_machine_is_stopped_first(self, lab, monkeypatch):
        lab.dies(monkeypatch, "submit")
        job = str(Path(lab.kept()["snowpipe_application"]["directory"], "snowpipe-job.py"))
        orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", job])
        try:
            lab.yarn.play(lab.leave, SUCCEEDED)
            lab.succeeds()
            assert orphan.poll() is not None
        finally:
            orphan.kill()
            orphan.wait()

    def test_a_state_that_is_no_submission_is_not_followed(self):
        tag = "snowpipe-0123456789abcdef-01234567"
        good = {"tag": tag, "host": "h", "directory": "/", "application_id": None}
        assert Submission.of(good) is not None
        for wrong in ({"tag": "../../etc"}, {"host": 5}, {"application_id": "../x"}):
            assert Submission.of({**good, **wrong}) is None
        assert Submission.of("x") is None


@pytest.mark.parametrize(("code", "word"), [(1, "nothing was taken"), (0, "HADOOP_CONF_DIR")])
def test_a_submission_that_fails_or_goes_to_another_cluster_is_reported(lab, code, word):
    lab.yarn.takes, lab.yarn.submit_code = False, code
    with pytest.raises(AirflowException, match=word):
        lab.execute()
    assert lab.kept() == {}
    assert lab.leftovers() == []


class TestResourceManagerIsAway:
    def test_while_it_reads_after_a_restart_what_it_knew(self, lab):
        """Its web page is there before its applications are."""
        lab.yarn.play("RUNNING", lambda: setattr(lab.yarn, "recovering", 2), 503, lab.leave, SUCCEEDED)
        lab.succeeds()

    @keeps_state
    def test_while_it_does_nothing_is_submitted_anew(self, lab, monkeypatch):
        lab.dies(monkeypatch, "_keep")
        lab.yarn.recovering = 2
        with pytest.raises(RetriesExhaustedError, match="INITIALIZING"):
            lab.execute()
        lab.yarn.recovering = 0
        lab.yarn.play(lab.leave, SUCCEEDED)
        lab.succeeds()

    def test_for_long_ends_the_try_and_not_the_application(self, lab, monkeypatch):
        with monkeypatch.context() as shortened:
            shortened.setattr(cluster_job, "UNREACHABLE_SECONDS", 0.0)
            lab.yarn.play("RUNNING", 503)
            with pytest.raises(RetriesExhaustedError, match="503"):
                lab.execute()
        assert lab.yarn.killed == []
        lab.yarn.play(lab.leave, SUCCEEDED)
        lab.succeeds()


def test_kill_stops_the_application(lab, monkeypatch):
    lab.killed(monkeypatch)
    assert lab.yarn.killed == list(lab.yarn.applications)
