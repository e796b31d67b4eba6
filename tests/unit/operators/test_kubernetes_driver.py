"""A driver on Kubernetes, a scripted API server; test_cluster_job.py has what it shares with YARN."""

import asyncio
import base64
import json
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_snowpipe.spark.driver.credentials import read_credentials_variable
from airflow_provider_snowpipe.streaming.auth import ProgrammaticAccessToken
from airflow_provider_snowpipe.triggers.application import SnowpipeApplicationTrigger
from tests.airflow_version import AIRFLOW
from tests.checkpoints import shown
from tests.fake_snowpipe import PAT
from tests.scripted_kubernetes import CONF, plan_in, scripted_kubernetes, use_kubernetes
from tests.unit.operators.cluster_lab import CHANNEL, POSITION, REPORT, TARGET, ClusterLab, keeps_state

if find_spec("kubernetes") is None:
    pytest.skip("the client of Kubernetes is not installed", allow_module_level=True)


def _failing(phase, **state):
    container = {"name": "spark-kubernetes-driver", "image": "i", "imageID": "i", "ready": False}
    return {"phase": phase, "containerStatuses": [{**container, "restartCount": 0, "state": state}]}


KILLED = _failing("Failed", terminated={"exitCode": 137, "reason": "OOMKilled"})
NO_IMAGE = _failing("Pending", waiting={"reason": "ImagePullBackOff", "message": "no such image"})


class KubernetesLab(ClusterLab):
    """The same on Kubernetes."""

    host, running = "k8s://https://10.0.0.1:6443", "Running"

    @property
    def kubernetes(self):
        return self.cluster


@pytest.fixture
def lab(tmp_path, monkeypatch, make, snowpipe, set_connection, temporary_files):
    with scripted_kubernetes() as cluster:
        lab = KubernetesLab(tmp_path, make, snowpipe, cluster, set_connection, temporary_files)
        lab.connect(namespace="loads")
        lab.options |= {"conf": CONF, "driver_secret": "snowflake:credentials"}
        use_kubernetes(cluster, tmp_path, monkeypatch)
        yield lab
        assert cluster.stranded == []


def test_the_command_of_a_load_that_is_followed_and_reported(lab, capsys):
    lab.kubernetes.play(NO_IMAGE, "Pending", "Running", lab.leave, "Succeeded")
    done = lab.execute(conf={**CONF, "spark.x": "y"}, py_files="local:///x/mine.zip", executor_cores=2)
    assert shown(done["channels"][CHANNEL]["to"]) == POSITION
    assert (lab.kept(), lab.leftovers(), lab.kubernetes.pods) == ({}, [], {})
    assert "ImagePullBackOff, no such image" in capsys.readouterr().out

    (one,) = lab.kubernetes.submissions
    tag = Path(one.plan["report_path"]).parent.name
    of_driver = {
        f"label.{tag.rpartition('-')[0]}": "true",
        f"label.{tag}": "true",
        "pod.name": f"{tag}-driver",
        "secretKeyRef.SNOWPIPE_SECRET": "snowflake:credentials",
    }
    expected = {
        **CONF,
        "spark.x": "y",
        "spark.log.level": "WARN",
        "spark.kubernetes.submission.waitAppCompletion": "false",
        "spark.kubernetes.namespace": "loads",
        **{f"spark.kubernetes.driver.{name}": value for name, value in of_driver.items()},
    }
    assert one.settings == expected
    command = " ".join(one.argv)
    assert command.startswith(f"--master {lab.host} --conf ")
    assert command.endswith(
        "--py-files local:///x/mine.zip --executor-cores 2 --name snowpipe.d.load.manual__1 "
        f"--deploy-mode cluster local://{lab.shared / tag}/snowpipe-job.py snowpipe-plan.json"
    )
    assert one.plan["credentials_variable"] == "SNOWPIPE_SECRET"


@pytest.mark.skipif(AIRFLOW < (3, 2), reason="Airflow has fsspec's memory:// since 3.2")
def test_an_object_store_brings_one_file_with_all(lab):
    import fsspec

    store = fsspec.filesystem("memory")

    def leave():
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

        def has_secret():
            assert len(lab.kubernetes.secrets) == 1

        lab.kubernetes.play(has_secret, lab.leave, "Succeeded")
        lab.execute(driver_secret="create")

        (made,) = lab.kubernetes.made
        (one,) = lab.kubernetes.submissions
        name = Path(one.plan["report_path"]).parent.name
        assert made | {"kind": "Secret", "type": "Opaque", "immutable": True} == made
        assert list(made["data"]) == ["credentials"]
        assert (made["metadata"]["name"], made["metadata"]["namespace"]) == (name, "loads")
        known = ApiClient()._ApiClient__deserialize(made, V1Secret)
        assert ApiClient().sanitize_for_serialization(known) == made
        monkeypatch.setenv("X", base64.b64decode(made["data"]["credentials"]).decode())
        assert read_credentials_variable("X")[0] == ProgrammaticAccessToken(PAT)
        assert one.settings["spark.kubernetes.driver.secretKeyRef.SNOWPIPE_SECRET"] == f"{name}:credentials"
        assert one.settings["spark.kubernetes.driver.label.snowpipe-secret"] == name
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
        assert [*lab.kubernetes.submissions, *lab.leftovers()] == []


class TestRefusedBeforeSubmission:
    @pytest.mark.parametrize(
        ("options", "word"),
        [
            ({"conf": {}}, "image"),
            ({"conf": {"spark.kubernetes.container.image": "i"}}, "serviceAccountName"),
            ({"work_path": None}, "work_path"),
            ({"driver_secret": None}, "driver_secret="),
            ({"driver_secret": "snowflake"}, "name:key"),
            (
                {"conf": {**CONF, "spark.kubernetes.submission.waitAppCompletion": "true"}},
                "waitAppCompletion",
            ),
            ({"conf": {**CONF, "spark.kubernetes.namespace": "others"}}, "'others'"),
        ],
    )
    def test_what_would_fail_later(self, lab, options, word):
        with pytest.raises(AirflowFailException, match=word):
            lab.execute(**options)
        assert [*lab.kubernetes.submissions, *lab.leftovers()] == []

    def test_an_airflow_that_cannot_reach_the_api(self, lab, monkeypatch, tmp_path):
        with monkeypatch.context() as patch:
            patch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE", str(tmp_path / "none"))
            with pytest.raises(AirflowFailException, match="config_file"):
                lab.execute()
        lab.connect()
        with pytest.raises(AirflowFailException, match="namespace"):
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

    def test_one_that_has_written_none_reports_why_in_its_log_or_leaves_its_pod(self, lab):
        lab.kubernetes.play("Running", KILLED)
        with pytest.raises(AirflowException, match=r"OOMKilled.*kubectl logs -n loads snowpipe-"):
            lab.execute()
        assert len(lab.kubernetes.pods) == 1
        lab.kubernetes.log = "INFO x\nsnowpipe error: ConfigurationError: no such variable\n"
        lab.kubernetes.play("Running", "Failed")
        with pytest.raises(AirflowFailException, match="variable"):
            lab.execute()


class TestAnotherTry:
    """Nothing is submitted twice, wherever a worker died."""

    @keeps_state
    @pytest.mark.parametrize("phase", ["Pending", "Running"])
    def test_where_each_try_submits_an_earlier_pod_is_stopped_if_it_waits(self, lab, monkeypatch, phase):
        """One that started later would shut the new driver out of its channels; one that runs is shut out."""
        lab.options |= {"driver_secret": "create", "durable": False}
        lab.dies(monkeypatch, "follow")
        (earlier,) = lab.kubernetes.pods
        killed = []

        def run():
            killed.extend(lab.kubernetes.killed)
            lab.leave()

        # The sweep reads a pod that waits twice: whether it does, and for the name of its secret.
        lab.kubernetes.play(*["Pending", "Pending"] if phase == "Pending" else [phase], run, "Succeeded")

        assert lab.execute()["rows"] == 2
        assert len(lab.kubernetes.submissions) == 2
        stopped, left = ([earlier], []) if phase == "Pending" else ([], [earlier])
        assert (killed, list(lab.kubernetes.pods), lab.kubernetes.secrets) == (stopped, left, {})
        assert phase == "Running" or lab.folders() == []


def test_kill_takes_pod_and_secret_away(lab, monkeypatch):
    lab.killed(monkeypatch, driver_secret="create")
    assert (len(lab.kubernetes.killed), lab.kubernetes.secrets) == (1, {})


def _trigger(application, **options):
    where = {"application_id": application, "spark_conn_id": "cluster", "poll_interval": 0}
    return SnowpipeApplicationTrigger(**where, **options)


def test_a_trigger_fires_once_at_the_end_and_reports_an_api_that_does_not_answer(lab):
    async def first(trigger: SnowpipeApplicationTrigger) -> Any:
        return (await anext(trigger.run())).payload

    lab.kubernetes.add("x-driver", {})
    lab.kubernetes.play("Pending", 503, "Running", "Unknown", "Running", lab.kubernetes.vanish)
    assert asyncio.run(first(_trigger("loads:x-driver")))["status"] == "ended"
    lab.kubernetes.add("x-driver", {})
    for status in (403, 503):
        lab.kubernetes.play("Running", status)
        found = asyncio.run(first(_trigger("loads:x-driver", unreachable_seconds=0)))
        assert (found["status"], str(status) in found["message"]) == ("lost", True)
    assert lab.kubernetes.killed == []


def test_a_deferred_task_that_is_cleared_takes_pod_and_secret_away(lab):
    lab.kubernetes.add("x-driver", {})
    lab.kubernetes.add("y-driver", {"snowpipe-secret": "y"})
    lab.kubernetes.secrets |= {"y": {}, "snowflake": {}}
    for pod in ("y-driver", "x-driver"):
        asyncio.run(_trigger(f"loads:{pod}").on_kill())
    assert lab.kubernetes.killed == ["y-driver", "x-driver"]
    assert list(lab.kubernetes.secrets) == ["snowflake"]
