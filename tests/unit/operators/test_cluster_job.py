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
from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
from airflow_provider_snowpipe.operators.cluster_delivery import Submission, hadoop_address
from airflow_provider_snowpipe.operators.cluster_job import ClusterRun, is_cluster_mode
from airflow_provider_snowpipe.spark import job_file, write_job_file
from airflow_provider_snowpipe.spark.driver.credentials import read_credentials_variable
from airflow_provider_snowpipe.spark.driver.plan import RowsToWrite, WritePlan, WriteReport
from airflow_provider_snowpipe.spark.driver.report import ChannelStart, start_text
from airflow_provider_snowpipe.streaming.auth import ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, RetriesExhaustedError
from tests.airflow_version import AIRFLOW
from tests.fake_snowpipe import PAT
from tests.stream_worker import TaskInstance
from tests.unit.operators.cluster_lab import (
    CHANNEL,
    LASTING,
    PASSING,
    REPORT,
    SUCCEEDED,
    TARGET,
    keeps_state,
    lab,
    yarn,
)

__all__ = ["lab", "yarn"]

UNREADABLE = [
    pytest.param("", id="empty"),
    pytest.param(REPORT.to_json()[:100], id="half"),
    pytest.param(REPORT.to_json().replace('"report_version": ', '"report_version": 9'), id="version"),
    pytest.param('{"report_version": 7, "channels": [{}]}', id="foreign"),
]
"""What may lie where a driver's report is expected."""


def test_a_load_is_submitted_followed_and_reported(lab, capsys):
    lab.yarn.play("ACCEPTED", "RUNNING", "RUNNING", lab.leave, SUCCEEDED)

    value = lab.execute()

    assert value["rows"] == 2
    assert value["channels"][CHANNEL]["to"] == TARGET
    assert len(lab.yarn.submissions) == 1
    assert lab.kept() == {}
    assert lab.leftovers() == []
    assert "(RUNNING), http://rm:8088/proxy/" in capsys.readouterr().out.replace("(ACCEPTED)", "(RUNNING)")


def test_what_is_submitted(lab):
    lab.yarn.play(lab.leave, SUCCEEDED)
    lab.execute(conf={"spark.yarn.tags": "mine", "spark.x": "y"}, files="/x/a.txt", yarn_queue="loads")

    (one,) = lab.yarn.submissions
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


def test_the_driver_runs_the_python_that_the_author_names(lab):
    lab.yarn.play(lab.leave, SUCCEEDED)
    lab.execute(env_vars={"PYSPARK_PYTHON": "/opt/python"})

    (one,) = lab.yarn.submissions
    assert one.environment["PYSPARK_DRIVER_PYTHON"] == "/opt/python"
    assert one.settings["spark.yarn.appMasterEnv.PYSPARK_PYTHON"] == "/opt/python"


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


@pytest.mark.parametrize("own", ["file:/etc/snowpipe.json", "python:company.vault:ask"])
def test_no_secret_is_submitted_where_the_driver_gets_its_own(lab, own):
    lab.yarn.play(lab.leave, SUCCEEDED)
    lab.execute(driver_secret=own)

    (one,) = lab.yarn.submissions
    assert one.job == job_file().read_text()
    assert one.plan["credentials_from"] == own
    assert not one.plan.get("credentials_variable")


@pytest.mark.parametrize(
    ("secret", "message"),
    [("snowflake:credentials", "YARN has no such secrets: drop it"), ("file:c.json", "'file:/path'")],
)
def test_a_secret_that_yarn_does_not_know_is_refused_before_submission(lab, secret, message):
    with pytest.raises(AirflowFailException, match=message):
        lab.execute(driver_secret=secret)
    assert lab.yarn.submissions == []


def test_an_application_without_secrets_is_submitted_as_it_is(lab):
    options = {name: lab.options[name] for name in ("spark_binary", "spark_conn_id", "work_path")}
    operator = SnowpipeBulkLoadOperator(
        task_id="bulk", source={"table": "t"}, table="T", stage="@S", status_poll_interval=0, **options
    )

    def leave() -> None:
        plan = lab.yarn.submissions[-1].plan
        lab.leave(WriteReport(plan["application"], plan["folder"], plan["attempt"]), committed=None)

    lab.yarn.play("RUNNING", leave, SUCCEEDED)
    with operator.writing(
        lab.context(), lambda *submission: WritePlan(*submission, rows=RowsToWrite(table="t"))
    ):
        (one,) = lab.yarn.submissions
    assert one.job == write_job_file().read_text()
    assert lab.leftovers() == []


def _secret_in(job: str) -> str:
    (found,) = (line for line in job.splitlines() if "SNOWPIPE_SECRET" in line)
    return found.split("'")[3]


class TestRefusedBeforeSubmission:
    @pytest.mark.parametrize(
        ("change", "options", "message"),
        [
            ({}, {}, "yarn_resourcemanager_webapp_address"),
            ({"host": "spark://master:7077"}, {}, "only YARN and Kubernetes"),
            ({"host": "local[2]"}, {}, "only YARN and Kubernetes"),
            (None, {"work_path": None}, "work_path"),
            (None, {"work_path": "/no/such/folder"}, "work_path"),
            (None, {"conf": {"spark.yarn.submit.waitAppCompletion": "true"}}, "drop it"),
            (None, {"yarn_rm_auth": HTTPBasicAuth("u", "p"), "deferrable": True}, "yarn_rm_auth"),
            (None, {"deploy_mode": "client", "conf": {"spark.submit.deployMode": "cluster"}}, "deploy_mode="),
        ],
    )
    def test_what_would_fail_later(self, lab, change, options, message):
        if change is not None:
            lab.connect(**change)

        with pytest.raises(AirflowFailException, match=message):
            lab.execute(**options)
        assert lab.yarn.submissions == []
        assert lab.leftovers() == []

    @pytest.mark.parametrize("mode", ["elsewhere", "CLUSTERS"])
    def test_a_mode_that_does_not_exist(self, mode):
        with pytest.raises(ConfigurationError, match=mode):
            is_cluster_mode(mode, None)

    def test_a_resource_manager_that_does_not_answer(self, lab):
        lab.connect(yarn_resourcemanager_webapp_address="127.0.0.1:1")

        with pytest.raises(RetriesExhaustedError, match=r"127\.0\.0\.1:1"):
            lab.execute()
        assert lab.yarn.submissions == []

    @pytest.mark.parametrize(
        "address", ["http://", "http://:8088", "rm:abc", "ftp://rm:8088", "rm1:8088,rm2:8088", "http://[::1"]
    )
    def test_an_address_of_the_resource_manager_that_is_none(self, lab, address):
        lab.connect(yarn_resourcemanager_webapp_address=address)

        with pytest.raises(AirflowFailException, match=re.escape(f"is {address!r}")):
            lab.execute()
        assert lab.yarn.submissions == []

    def test_a_password_in_the_address_is_sent_and_shown_nowhere(self, lab):
        lab.connect(yarn_resourcemanager_webapp_address="http://me:p%40ss@127.0.0.1:1")

        with pytest.raises(RetriesExhaustedError, match=r"http://127\.0\.0\.1:1 ") as refused:
            lab.execute()
        assert "ss@" not in repr(refused.value) + repr(refused.value.__cause__)
        assert ResourceManager("http://me:p%40ss@rm:8088")._auth == HTTPBasicAuth("me", "p@ss")

    def test_the_mode_of_the_operator_wins(self, lab):
        lab.connect("local[2]")
        lab.yarn.submit_code = 1

        with pytest.raises(AirflowException):
            lab.execute(deploy_mode="client")
        assert is_cluster_mode("Cluster", {"spark.submit.deployMode": "cluster"})


class TestEnds:
    """What YARN reports of the end, the driver's report, and what is committed; the latter two decide."""

    @pytest.mark.parametrize(
        "end", [SUCCEEDED, ("FINISHED", "FAILED"), ("FAILED", "FAILED"), ("KILLED", "KILLED")]
    )
    def test_a_good_report_of_committed_rows_is_a_success(self, lab, capsys, end):
        lab.yarn.play("RUNNING", lab.leave, end)

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

    @pytest.mark.parametrize("end", [SUCCEEDED, ("FAILED", "FAILED"), ("KILLED", "KILLED")])
    def test_everything_committed_without_a_report_is_a_success_with_a_notice(self, lab, capsys, end):
        lab.yarn.play("RUNNING", lambda: lab.leave(None), end)

        assert lab.execute()["channels"][CHANNEL]["to"] == TARGET
        assert "left no report, and all of the source is committed" in capsys.readouterr().out

    @pytest.mark.parametrize("report", UNREADABLE)
    def test_a_report_that_cannot_be_read_is_none(self, lab, capsys, report):
        def leave() -> None:
            lab.leave(None)
            lab.report_path().write_text(report)

        lab.yarn.play("RUNNING", leave, ("FAILED", "FAILED"))

        assert lab.execute()["channels"][CHANNEL]["to"] == TARGET
        assert "a report that cannot be read (" in capsys.readouterr().out

    @pytest.mark.parametrize("report", UNREADABLE)
    def test_rows_that_are_missing_with_such_a_report_are_a_failure(self, lab, report):
        def leave() -> None:
            lab.leave(None, committed="1.ndjson:1")
            lab.report_path().write_text(report)

        lab.yarn.play("RUNNING", leave, SUCCEEDED)

        with pytest.raises(AirflowException, match=r"cannot be read \(.*yarn logs") as failed:
            lab.execute()
        assert not isinstance(failed.value, AirflowFailException)
        assert lab.leftovers() == []

    @pytest.mark.parametrize("end", [SUCCEEDED, ("FAILED", "FAILED"), ("KILLED", "KILLED")])
    def test_rows_that_are_missing_without_a_report_are_a_failure(self, lab, end):
        lab.yarn.play("RUNNING", lambda: lab.leave(None, committed="1.ndjson:1"), end)

        with pytest.raises(AirflowException, match="yarn logs -applicationId application_1700000000000_0001"):
            lab.execute()
        assert lab.kept() == {}

    def test_a_success_with_a_channel_behind_is_a_failure(self, lab):
        lab.yarn.play("RUNNING", lambda: lab.leave(committed="1.ndjson:1"), SUCCEEDED)

        with pytest.raises(AirflowException, match="CommitTimeoutError"):
            lab.execute()
        assert lab.leftovers() == []

    def test_a_load_that_does_not_wait_takes_a_channel_behind(self, lab):
        lab.yarn.play("RUNNING", lambda: lab.leave(committed="1.ndjson:1"), SUCCEEDED)

        assert lab.execute(wait_for_commit=False)["rows"] == 2

    def test_yarns_text_is_reported(self, lab):
        def end() -> None:
            (one,) = lab.yarn.applications.values()
            one.diagnostics = "Application was\nkilled: no memory"

        lab.yarn.play("RUNNING", end, ("FAILED", "FAILED"))

        with pytest.raises(AirflowException, match="killed: no memory"):
            lab.execute()

    def test_an_application_that_yarn_has_forgotten_has_ended(self, lab):
        lab.yarn.play("RUNNING", lab.yarn.applications.clear, 404)

        with pytest.raises(AirflowException, match="UNKNOWN"):
            lab.execute()
        assert lab.kept() == {}


class TestAnotherTry:
    """Nothing is submitted twice, wherever a worker died."""

    @keeps_state
    def test_before_anything_was_submitted(self, lab, monkeypatch):
        lab.dies(monkeypatch, "submit")
        lab.yarn.play(lab.leave, SUCCEEDED)

        assert lab.execute()["rows"] == 2
        assert len(lab.yarn.submissions) == 1
        assert lab.leftovers() == []

    @keeps_state
    def test_before_the_id_was_kept(self, lab, monkeypatch):
        lab.dies(monkeypatch, "_keep")
        assert lab.kept()["snowpipe_application"]["application_id"] is None
        lab.yarn.play("RUNNING", lab.leave, SUCCEEDED)

        assert lab.execute()["rows"] == 2
        assert len(lab.yarn.submissions) == 1
        assert lab.leftovers() == []

    @pytest.mark.parametrize("ended", [False, True])
    def test_while_it_ran(self, lab, monkeypatch, capsys, ended):
        lab.dies(monkeypatch, "follow")
        lab.yarn.play(*([] if ended else ["RUNNING"]), lab.leave, SUCCEEDED)

        assert lab.execute()["rows"] == 2
        assert len(lab.yarn.submissions) == 1
        assert "nothing is submitted" in capsys.readouterr().out
        assert lab.kept() == {}
        assert lab.leftovers() == []

    @keeps_state
    def test_after_it_had_ended_well(self, lab, monkeypatch):
        lab.yarn.play(lab.leave, SUCCEEDED)
        lab.dies(monkeypatch, "follow", after=True)

        assert lab.execute()["rows"] == 2
        assert len(lab.yarn.submissions) == 1

    @keeps_state
    @pytest.mark.parametrize("report", [None, PASSING])
    def test_a_new_one_resumes_after_one_that_failed(self, lab, monkeypatch, report):
        def start_and_fail() -> None:
            lab.leave(report, committed=None)
            lab.report_path().with_name("start.json").write_text(start_text({CHANNEL: ChannelStart(7, 0, 0)}))

        lab.yarn.play(start_and_fail, ("FAILED", "FAILED"))
        lab.dies(monkeypatch, "follow", after=True)
        lab.yarn.play(lab.leave, SUCCEEDED)

        assert lab.execute()["rows"] == 2
        befores = [one.plan["rejected_before"] for one in lab.yarn.submissions]
        assert befores == [{}, {CHANNEL: 7}]
        assert lab.leftovers() == []

    @keeps_state
    @pytest.mark.parametrize("report", UNREADABLE)
    def test_a_new_one_resumes_after_one_whose_report_cannot_be_read(self, lab, monkeypatch, report):
        def leave() -> None:
            lab.leave(None, committed=None)
            lab.report_path().write_text(report)

        lab.yarn.play(leave, ("FAILED", "FAILED"))
        lab.dies(monkeypatch, "follow", after=True)
        lab.yarn.play(lab.leave, SUCCEEDED)

        assert lab.execute()["rows"] == 2
        assert len(lab.yarn.submissions) == 2

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

    def test_where_airflow_keeps_no_state_the_running_one_is_found(self, lab, monkeypatch):
        lab.state = None
        lab.dies(monkeypatch, "follow")
        lab.yarn.play("RUNNING", lab.leave, SUCCEEDED)

        assert lab.execute()["rows"] == 2
        assert len(lab.yarn.submissions) == 1
        assert lab.folders() == []

    def test_where_airflow_keeps_no_state_an_ended_one_is_not_taken_for_this_run(self, lab, monkeypatch):
        lab.state = None
        lab.yarn.play(lambda: lab.leave(None, committed=None), ("FAILED", "FAILED"))
        lab.dies(monkeypatch, "follow", after=True)
        lab.yarn.play(lambda: lab.leave(), SUCCEEDED)

        assert lab.execute()["rows"] == 2
        assert len(lab.yarn.submissions) == 2
        assert lab.folders() == []

    def test_not_durable_submits_anew(self, lab, monkeypatch):
        pytest.importorskip("airflow.sdk.bases.resumablejobmixin", reason="durable is of Airflow 3.3")
        lab.dies(monkeypatch, "follow")
        lab.yarn.play(lambda: lab.leave(), SUCCEEDED)

        lab.execute(durable=False)
        assert len(lab.yarn.submissions) == 2

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

    def test_another_run_of_the_task_does_not_find_it(self, lab, monkeypatch):
        lab.state = None
        lab.dies(monkeypatch, "follow")
        context = lab.context()
        context["ti"].run_id = "manual__2"
        lab.yarn.play(lab.leave, SUCCEEDED)

        lab.operator().execute(context)
        assert len(lab.yarn.submissions) == 2

    @pytest.mark.parametrize(
        "kept",
        [
            "x",
            {"tag": "../../etc", "host": "h", "directory": "/", "application_id": None},
            {
                "tag": "snowpipe-0123456789abcdef-01234567",
                "host": 5,
                "directory": "/",
                "application_id": None,
            },
            {
                "tag": "snowpipe-0123456789abcdef-01234567",
                "host": "h",
                "directory": "/",
                "application_id": "../x",
            },
        ],
    )
    def test_a_state_that_is_no_submission_is_not_followed(self, kept):
        assert Submission.of(kept) is None


class TestSubmission:
    def test_the_id_is_found_by_the_tag_where_spark_does_not_log_it(self, lab):
        lab.yarn.message = "WARN nothing to see"
        lab.yarn.play(lab.leave, SUCCEEDED)

        assert lab.execute()["rows"] == 2

    def test_one_that_fails_reports_it_and_leaves_nothing(self, lab):
        lab.yarn.takes, lab.yarn.submit_code = False, 1

        with pytest.raises(AirflowException, match="nothing was taken"):
            lab.execute()
        assert lab.kept() == {}
        assert lab.leftovers() == []

    def test_one_that_fails_after_yarn_took_it_is_followed(self, lab):
        lab.yarn.submit_code = 1
        lab.yarn.play("RUNNING", lab.leave, SUCCEEDED)

        assert lab.execute()["rows"] == 2
        assert len(lab.yarn.submissions) == 1

    def test_one_that_went_to_another_cluster_is_reported(self, lab):
        lab.yarn.takes = False

        with pytest.raises(AirflowException, match="HADOOP_CONF_DIR"):
            lab.execute()


class TestResourceManagerIsAway:
    def test_for_a_short_time(self, lab):
        lab.yarn.play("RUNNING", 503, 500, 503, lab.leave, SUCCEEDED)

        assert lab.execute()["rows"] == 2

    @pytest.mark.parametrize("polls", [1, 2, 5])
    def test_while_it_reads_after_a_restart_what_it_knew(self, lab, polls):
        """Its web page is there before its applications are."""
        lab.yarn.play("RUNNING", lambda: setattr(lab.yarn, "recovering", polls), 503, lab.leave, SUCCEEDED)

        assert lab.execute()["rows"] == 2
        assert len(lab.yarn.submissions) == 1
        assert lab.leftovers() == []

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

    def test_while_it_is_submitted(self, lab):
        """YARN has it, and nobody has read that yet."""
        operator = lab.operator()
        lab.yarn.message = "nothing yet"
        noticed = ClusterRun._noticed

        def killed(run: ClusterRun, lines: Any) -> Any:
            for line in noticed(run, lines):
                operator.on_kill()
                yield line

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ClusterRun, "_noticed", killed)
            with pytest.raises(AirflowException, match="killed"):
                operator.execute(lab.context())
        assert lab.yarn.killed == list(lab.yarn.applications)
        assert len(lab.yarn.killed) == 1
        assert lab.leftovers() == []

    @pytest.mark.parametrize("step", ["prepare", "submit"])
    def test_before_it_is_submitted(self, lab, monkeypatch, step):
        operator = lab.operator()
        original = getattr(ClusterRun, step)

        def killed(*arguments: Any, **named: Any) -> Any:
            operator.on_kill()
            return original(*arguments, **named)

        monkeypatch.setattr(ClusterRun, step, killed)
        with pytest.raises(AirflowException, match="killed"):
            operator.execute(lab.context())
        assert lab.yarn.submissions == []
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


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ("/shared/loads", "/shared/loads"),
        ("file:///shared/loads", "file:///shared/loads"),
        ("s3://conn@bucket/loads", "s3a://bucket/loads"),
        ("gs://bucket/loads", "gs://bucket/loads"),
        ("hdfs://name:8020/loads", "hdfs://name:8020/loads"),
        ("abfss://box@account.dfs.core.windows.net/x", "abfss://box@account.dfs.core.windows.net/x"),
    ],
)
def test_hadoop_knows_an_address_by_its_own_scheme(given, known):
    assert hadoop_address(given) == known
