"""A driver on Kubernetes: submitted once whatever dies, followed, stopped, and judged by what is committed.

A scripted API server stands in for Kubernetes, behind the client of Airflow's own provider where that is
installed, else behind the same client of Kubernetes. What it shares with a driver on YARN, the tests of that
one prove.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.operators import cluster_job
from airflow_provider_snowpipe.operators.cluster_job import ClusterRun
from airflow_provider_snowpipe.spark.driver.credentials import read_credentials_variable
from airflow_provider_snowpipe.spark.driver.report import START_FILE, ChannelStart, start_text
from airflow_provider_snowpipe.streaming.auth import ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.errors import RetriesExhaustedError
from airflow_provider_snowpipe.triggers.application import SnowpipeApplicationTrigger
from tests.airflow_version import AIRFLOW
from tests.checkpoints import shown
from tests.fake_snowpipe import PAT
from tests.scripted_kubernetes import (
    KUBE_CLIENT,
    ScriptedKubernetes,
    plan_in,
    scripted_kubernetes,
    use_kubernetes,
)
from tests.unit.operators.cluster_lab import (
    CHANNEL,
    POSITION,
    REPORT,
    TARGET,
    ClusterLab,
    keeps_state,
)

if find_spec("kubernetes") is None:
    pytest.skip("the client of Kubernetes is not installed", allow_module_level=True)

CONF = {
    "spark.kubernetes.container.image": "registry/spark:4.2.0",
    "spark.kubernetes.authenticate.driver.serviceAccountName": "snowpipe-driver",
}
KILLED = {
    "phase": "Failed",
    "containerStatuses": [
        {
            "name": "spark-kubernetes-driver",
            "image": "i",
            "imageID": "i",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
        }
    ],
}
NO_IMAGE = {
    "phase": "Pending",
    "containerStatuses": [
        {
            **KILLED["containerStatuses"][0],  # type: ignore[dict-item]
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
        }
    ],
}


class KubernetesLab(ClusterLab):
    """The same on Kubernetes."""

    host = "k8s://https://10.0.0.1:6443"

    @property
    def kubernetes(self) -> ScriptedKubernetes:
        found: ScriptedKubernetes = self.cluster
        return found


@pytest.fixture
def lab(tmp_path, monkeypatch, make, snowpipe, set_connection):
    with scripted_kubernetes() as cluster:
        lab = KubernetesLab(tmp_path, make, snowpipe, cluster, set_connection, monkeypatch)
        lab.connect(namespace="loads")
        lab.options |= {"conf": CONF, "driver_secret": "snowflake:credentials"}
        use_kubernetes(cluster, tmp_path, monkeypatch)
        yield lab
        assert cluster.stranded == []


def test_a_load_is_submitted_followed_and_reported(lab, capsys):
    lab.kubernetes.play(NO_IMAGE, "Pending", "Running", lab.leave, "Succeeded")

    value = lab.execute()

    assert value["rows"] == 2
    assert shown(value["channels"][CHANNEL]["to"]) == POSITION
    assert len(lab.kubernetes.submissions) == 1
    assert lab.kept() == {}
    assert lab.leftovers() == []
    assert lab.kubernetes.pods == {}
    assert "ImagePullBackOff, no such image" in capsys.readouterr().out


def test_the_command(lab):
    lab.kubernetes.play(lab.leave, "Succeeded")
    lab.execute(conf={**CONF, "spark.x": "y"}, py_files="local:///x/mine.zip", executor_cores=2)

    (one,) = lab.kubernetes.submissions
    tag = Path(one.plan["report_path"]).parent.name
    task = tag.rpartition("-")[0]
    folder = lab.shared / tag
    assert one.argv == [
        *("--master", lab.host),
        *("--conf", "spark.log.level=WARN"),
        *("--conf", "spark.kubernetes.container.image=registry/spark:4.2.0"),
        *("--conf", "spark.kubernetes.authenticate.driver.serviceAccountName=snowpipe-driver"),
        *("--conf", "spark.x=y"),
        *("--conf", f"spark.kubernetes.driver.label.{task}=true"),
        *("--conf", f"spark.kubernetes.driver.label.{tag}=true"),
        *("--conf", "spark.kubernetes.submission.waitAppCompletion=false"),
        *("--conf", f"spark.kubernetes.driver.pod.name={tag}-driver"),
        *("--conf", "spark.kubernetes.driver.secretKeyRef.SNOWPIPE_SECRET=snowflake:credentials"),
        *("--conf", "spark.kubernetes.namespace=loads"),
        *("--py-files", "local:///x/mine.zip"),
        *("--executor-cores", "2"),
        *("--name", "snowpipe.d.load.manual__1"),
        *("--deploy-mode", "cluster"),
        f"local://{folder}/snowpipe-job.py",
        "snowpipe-plan.json",
    ]
    assert "'airflow_provider_snowpipe.spark.driver.job'" in one.job
    assert one.plan["credentials_variable"] == "SNOWPIPE_SECRET"


@pytest.mark.skipif(AIRFLOW < (3, 2), reason="Airflow has fsspec's memory:// since 3.2")
def test_an_object_store_brings_one_file_with_all(lab):
    import fsspec

    store = fsspec.filesystem("memory")

    def leave() -> None:
        (one,) = lab.kubernetes.submissions
        lab.channel.committed = TARGET
        job = one.argv[-2].removeprefix("memory:/")
        folder = job.rpartition("/")[0]
        assert plan_in(store.cat(job).decode())["report_path"] == f"memory:/{folder}/report.json"
        store.pipe(f"{folder}/report.json", REPORT.to_json().encode())

    lab.kubernetes.play("Running", leave, "Succeeded")

    assert lab.execute(work_path="memory://loads/")["rows"] == 2
    (one,) = lab.kubernetes.submissions
    assert one.argv[-2].startswith("memory://loads/snowpipe-")
    assert not {"--files", "--py-files"} & set(one.argv)
    assert store.find("/loads") == []


class TestSecret:
    def test_the_manifest_of_one_that_is_made_and_its_end(self, lab, monkeypatch):
        from kubernetes.client import ApiClient, V1Secret

        lab.kubernetes.play(lambda: _has_secret(lab), lab.leave, "Succeeded")
        lab.execute(driver_secret="create")

        (made,) = lab.kubernetes.made
        name = Path(lab.kubernetes.submissions[0].plan["report_path"]).parent.name
        assert made == {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "immutable": True,
            "metadata": {
                "name": name,
                "namespace": "loads",
                "labels": {"app.kubernetes.io/managed-by": "airflow-provider-snowpipe"},
            },
            "data": {"credentials": made["data"]["credentials"]},
        }
        known = ApiClient()._ApiClient__deserialize(made, V1Secret)
        assert ApiClient().sanitize_for_serialization(known) == made
        monkeypatch.setenv("X", base64.b64decode(made["data"]["credentials"]).decode())
        assert read_credentials_variable("X")[0] == ProgrammaticAccessToken(PAT)
        settings = lab.kubernetes.submissions[0].settings
        assert settings["spark.kubernetes.driver.secretKeyRef.SNOWPIPE_SECRET"] == f"{name}:credentials"
        assert settings["spark.kubernetes.driver.label.snowpipe-secret"] == name
        assert lab.kubernetes.secrets == {}

    def test_its_value_is_shown_nowhere(self, lab, capsys, caplog):
        lab.kubernetes.play("Running", lab.leave, "Succeeded")
        with caplog.at_level(logging.DEBUG):
            lab.execute(driver_secret="create", verbose=True)

        (one,) = lab.kubernetes.submissions
        (made,) = lab.kubernetes.made
        encoded = made["data"]["credentials"]
        environment = {name: one.environment[name] for name in one.environment if "AIRFLOW_CONN" not in name}
        shown = json.dumps([one.argv, environment, one.plan, one.job]) + "".join(capsys.readouterr())
        for secret in (PAT, encoded, base64.b64decode(encoded).decode()):
            assert secret not in shown + caplog.text

    @keeps_state
    def test_that_of_a_worker_that_died_is_removed_by_the_next_try(self, lab, monkeypatch):
        lab.options["driver_secret"] = "create"
        lab.dies(monkeypatch, "submit")
        assert len(lab.kubernetes.secrets) == 1
        lab.kubernetes.play(lab.leave, "Succeeded")

        assert lab.execute()["rows"] == 2
        assert lab.kubernetes.secrets == {}

    def test_one_that_airflow_may_not_make_is_refused_before_submission(self, lab):
        lab.kubernetes.forbidden = "POST secrets"

        with pytest.raises(AirflowFailException, match="create secrets") as refused:
            lab.execute(driver_secret="create")
        assert PAT not in str(refused.value)
        assert lab.kubernetes.submissions == []
        assert lab.leftovers() == []


def _has_secret(lab: KubernetesLab) -> None:
    assert len(lab.kubernetes.secrets) == 1


class TestRefusedBeforeSubmission:
    def test_what_would_fail_later(self, lab, monkeypatch, tmp_path):
        for options, word in (
            ({"conf": {}}, "image"),
            ({"conf": {"spark.kubernetes.container.image": "i"}}, "serviceAccountName"),
            ({"work_path": None}, "work_path"),
            ({"driver_secret": None}, "driver_secret="),
            ({"driver_secret": "snowflake"}, "name:key"),
            ({"driver_secret": "python:vault"}, "python:module:function"),
            (
                {"conf": {**CONF, "spark.kubernetes.submission.waitAppCompletion": "true"}},
                "waitAppCompletion",
            ),
            ({"conf": {**CONF, "spark.kubernetes.driver.pod.name": "mine"}}, "name"),
            ({"conf": {**CONF, "spark.kubernetes.namespace": "others"}}, "'others'"),
        ):
            with pytest.raises(AirflowFailException, match=word):
                lab.execute(**options)
        with monkeypatch.context() as patch:
            patch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE", str(tmp_path / "none"))
            with pytest.raises(AirflowFailException, match="config_file"):
                lab.execute()
        lab.connect()
        with pytest.raises(AirflowFailException, match="namespace"):
            lab.execute()
        assert lab.kubernetes.submissions == []
        assert lab.leftovers() == []

    def test_a_missing_provider(self, lab, monkeypatch):
        monkeypatch.setitem(sys.modules, KUBE_CLIENT, None)

        with pytest.raises(AirflowFailException, match=r"\[kubernetes\]"):
            lab.execute()
        assert lab.kubernetes.submissions == []


class TestEnds:
    """The end in Kubernetes, the driver's report, and what is committed; the latter two decide."""

    @pytest.mark.parametrize("end", ["Succeeded", "Failed", "vanished"])
    def test_a_good_report_of_committed_rows_is_a_success(self, lab, capsys, end):
        ends = [lab.kubernetes.vanish] if end == "vanished" else [end]
        lab.kubernetes.play("Running", lab.leave, *ends)

        assert lab.execute(driver_secret="file:/vault/secrets/snowpipe.json")["rows"] == 2
        assert ("which counts" in capsys.readouterr().out) == (end != "Succeeded")
        assert lab.leftovers() == []
        (one,) = lab.kubernetes.submissions
        assert one.plan["credentials_from"] == "file:/vault/secrets/snowpipe.json"
        assert [name for name in one.settings if "secretKeyRef" in name] == []

    def test_one_that_could_not_write_it_reports_why_in_its_log(self, lab):
        lab.kubernetes.log = "INFO x\nsnowpipe error: ConfigurationError: no such variable\n"
        lab.kubernetes.play("Running", "Failed")

        with pytest.raises(AirflowFailException, match="no such variable"):
            lab.execute()

    def test_one_that_was_killed_reports_why_and_leaves_its_pod_for_the_log(self, lab):
        lab.kubernetes.play("Running", KILLED)

        with pytest.raises(AirflowException, match=r"OOMKilled.*kubectl logs -n loads snowpipe-"):
            lab.execute()
        assert len(lab.kubernetes.pods) == 1


class TestAnotherTry:
    """Nothing is submitted twice, wherever a worker died."""

    @keeps_state
    @pytest.mark.parametrize("step", ["_keep", "follow"])
    def test_after_submission(self, lab, monkeypatch, capsys, step):
        lab.dies(monkeypatch, step)
        lab.kubernetes.play("Running", lab.leave, "Succeeded")

        assert lab.execute()["rows"] == 2
        assert len(lab.kubernetes.submissions) == 1
        assert "nothing is submitted" in capsys.readouterr().out
        assert lab.kept() == {}
        assert lab.leftovers() == []

    @keeps_state
    def test_where_each_try_submits_an_earlier_pod_that_waits_goes_with_its_secret(self, lab, monkeypatch):
        """One that started later would shut the new driver out of its channels."""
        lab.options |= {"driver_secret": "create", "durable": False}
        lab.dies(monkeypatch, "follow")
        (waiting,) = lab.kubernetes.pods
        killed: list[str] = []

        def run() -> None:
            killed.extend(lab.kubernetes.killed)
            lab.leave()

        # The sweep reads the first pod twice: whether it waits, and for the name of its secret.
        lab.kubernetes.play("Pending", "Pending", run, "Succeeded")

        assert lab.execute()["rows"] == 2
        assert len(lab.kubernetes.submissions) == 2
        assert killed == [waiting]
        assert (lab.kubernetes.pods, lab.kubernetes.secrets, lab.folders()) == ({}, {}, [])

    @keeps_state
    def test_where_each_try_submits_an_earlier_pod_that_runs_is_left_to_be_shut_out(self, lab, monkeypatch):
        lab.options |= {"driver_secret": "create", "durable": False}
        lab.dies(monkeypatch, "follow")
        (running,) = lab.kubernetes.pods
        lab.kubernetes.play("Running", lab.leave, "Succeeded")

        assert lab.execute()["rows"] == 2
        assert len(lab.kubernetes.submissions) == 2
        assert list(lab.kubernetes.pods) == [running]
        assert lab.kubernetes.secrets == {}

    def test_an_api_that_is_away_ends_the_try_and_not_the_driver(self, lab, monkeypatch):
        lab.kubernetes.play(503, "Running", 500)
        with monkeypatch.context() as shortened:
            shortened.setattr(cluster_job, "UNREACHABLE_SECONDS", 0.0)
            with pytest.raises(RetriesExhaustedError, match="503"):
                lab.execute()
        assert lab.kubernetes.killed == []
        lab.kubernetes.play(lab.leave, "Succeeded")

        assert lab.execute()["rows"] == 2
        assert len(lab.kubernetes.submissions) == 1

    def test_a_refusal_that_no_other_poll_changes_ends_the_try_at_once(self, lab):
        lab.kubernetes.play("Running", 503, 403, lab.leave, "Succeeded")

        with pytest.raises(AirflowFailException, match="403"):
            lab.execute()
        assert lab.kubernetes.killed == []
        assert len(lab.kubernetes.script) == 2


class TestKill:
    def test_while_it_runs(self, lab):
        operator = lab.operator(driver_secret="create")
        lab.kubernetes.play("Running", "Running")
        followed = ClusterRun.follow

        def killed(run: ClusterRun) -> None:
            operator.on_kill()
            followed(run)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ClusterRun, "follow", killed)
            with pytest.raises(AirflowException, match="killed"):
                operator.execute(lab.context())
        assert len(lab.kubernetes.killed) == 1
        assert lab.kubernetes.secrets == {}
        assert lab.kept() == {}
        assert lab.leftovers() == []


class TestProgress:
    """The rows that a load has committed are logged beside its pod's phase, whoever waits."""

    START = start_text({CHANNEL: ChannelStart(0, 0, 0, rows_behind=100)})
    LINE = "(Running); channels=1 rows=25 "

    @pytest.fixture(autouse=True)
    def quick_polls(self, monkeypatch):
        monkeypatch.setattr("airflow_provider_snowpipe.operators.cluster_job._CHANNELS_SECONDS", 0.01)
        monkeypatch.setattr("airflow_provider_snowpipe.triggers.application.LOG_SECONDS", 0.0)

    @pytest.fixture
    def runs(self, lab, capsys):
        """Have the driver begin and commit 25 rows, and its pod run until that is logged; what is logged."""
        printed: list[str] = []

        def begins(folder: Path) -> None:
            lab.channel.rows_inserted = 25
            (folder / START_FILE).write_text(self.START)

        def step() -> None:
            printed.append("".join(capsys.readouterr()))
            if self.LINE not in printed[-1]:
                lab.kubernetes.script.extendleft([step, "Running"])

        lab.kubernetes.play(lambda: begins(lab.folders()[0]), step)
        return printed

    def test_while_the_triggerer_waits(self, lab, runs, snowpipe, monkeypatch):
        with pytest.raises(TaskDeferred) as deferred:
            lab.execute(deferrable=True, status_poll_interval=1)
        kind, stored = deferred.value.trigger.serialize()
        assert kind.endswith(".SnowpipeApplicationTrigger")
        lab.kubernetes.play("Succeeded")

        assert _event(SnowpipeApplicationTrigger(**{**stored, "poll_interval": 0.01}))["status"] == "ended"
        assert re.search(r"rows=25 .*rows_behind<=75 .*latency_ms<=5", runs[-1])


def test_a_trigger_fires_once_at_the_end_and_reports_an_api_that_does_not_answer(lab):
    def follow(**options: Any) -> dict[str, Any]:
        arguments = {"application_id": "loads:x-driver", "spark_conn_id": "cluster", "poll_interval": 0}
        return _event(SnowpipeApplicationTrigger(**{**arguments, **options}))

    lab.kubernetes.add("x-driver", {})
    lab.kubernetes.play("Pending", 503, "Running", "Unknown", "Running", lab.kubernetes.vanish)
    assert follow()["status"] == "ended"
    lab.kubernetes.add("x-driver", {})
    for status in (403, 503):
        lab.kubernetes.play("Running", status)
        found = follow(unreachable_seconds=0)
        assert (found["status"], str(status) in found["message"]) == ("lost", True)
    assert lab.kubernetes.killed == []


def test_a_deferred_task_that_is_cleared_takes_pod_and_secret_away(lab):
    lab.kubernetes.add("x-driver", {})
    lab.kubernetes.add("y-driver", {"snowpipe-secret": "y"})
    lab.kubernetes.secrets |= {"y": {}, "snowflake": {}}
    for pod in ("y-driver", "x-driver"):
        trigger = SnowpipeApplicationTrigger(
            application_id=f"loads:{pod}", spark_conn_id="cluster", poll_interval=0
        )
        asyncio.run(trigger.on_kill())

    assert lab.kubernetes.killed == ["y-driver", "x-driver"]
    assert list(lab.kubernetes.secrets) == ["snowflake"]


def _event(trigger: SnowpipeApplicationTrigger) -> dict[str, Any]:
    async def first() -> Any:
        return (await anext(trigger.run())).payload

    found: dict[str, Any] = asyncio.run(first())
    return found
