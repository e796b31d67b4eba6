"""A driver on Kubernetes, as Spark's own ``spark-submit`` makes its pod, at a scripted API server.

Nothing here runs containers: the test does with the pod what a node would, in a Python without our package,
and so has all that a driver gets and no more: its arguments, its environment and its secret.
"""

import base64
import json
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess, run
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.operators.submission import launch_environment
from airflow_provider_snowpipe.sources import FileSource
from tests.local_connection import connect
from tests.local_service import LocalService
from tests.scripted_kubernetes import scripted_kubernetes, use_kubernetes
from tests.spark_cluster import spark_home, write_bare_python
from tests.spark_groups import assert_exact, grouped_job
from tests.spark_job import numbered_name
from tests.stream_worker import FileState, TaskInstance

if find_spec("kubernetes") is None:
    pytest.skip("the client of Kubernetes is not installed", allow_module_level=True)

pytestmark = pytest.mark.spark


def test_the_pod_that_spark_makes_has_what_its_driver_needs_and_the_load_ends(
    local_service: LocalService, tmp_path: Path, set_connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = grouped_job(local_service, tmp_path, numbered_name("KUBERNETES"))
    (tmp_path / "work").mkdir()
    with scripted_kubernetes() as cluster:
        use_kubernetes(cluster, tmp_path, monkeypatch)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        extra = {"deploy-mode": "cluster", "namespace": "loads"}
        set_connection("kubernetes", conn_type="spark", host=f"k8s://{cluster.url}", extra=extra)
        operator = SnowpipeStreamOperator(
            task_id="load",
            source=FileSource(path=job.source.path),
            table=job.table,
            snowflake_conn_id=connect(local_service, set_connection),
            spark_conn_id="kubernetes",
            channel_prefix="test",
            source_name=job.table,
            work_path=str(tmp_path / "work"),
            driver_secret="create",
            deferrable=True,
            conf={
                "spark.kubernetes.container.image": "registry.example.com/spark:4.2.0",
                "spark.kubernetes.authenticate.driver.serviceAccountName": "snowpipe-driver",
            },
        )
        context: Any = {"ti": TaskInstance(), "task_state_store": FileState(tmp_path / "state.json")}
        with pytest.raises(TaskDeferred) as deferred:
            operator.execute(context)

        ((name, pod),) = cluster.pods.items()
        (container,) = pod["spec"]["containers"]
        assert pod["spec"]["serviceAccountName"] == "snowpipe-driver"
        assert deferred.value.trigger.serialize()[1]["application_id"] == f"loads:{name}"
        (secret,) = [one for one in container["env"] if one["name"] == "SNOWPIPE_SECRET"]
        reference = secret["valueFrom"]["secretKeyRef"]
        value = base64.b64decode(cluster.secrets[reference["name"]]["data"][reference["key"]]).decode()
        assert value not in json.dumps(pod)
        *_, application, plan = container["args"]

        driver = _run(application.removeprefix("local://"), plan, {secret["name"]: value}, tmp_path)
        assert driver.returncode == 0, driver.stdout[-2000:] + driver.stderr[-3000:]
        assert value not in driver.stdout + driver.stderr

        pod["status"] = {"phase": "Succeeded"}
        kwargs = {"event": {"status": "ended", "message": ""}, **(deferred.value.kwargs or {})}
        value_of_task = operator.resume_execution(str(deferred.value.method_name), kwargs, context)
        assert value_of_task["rows"] == 1800
        assert_exact(job)
        assert cluster.pods == cluster.secrets == {}
        assert list((tmp_path / "work").iterdir()) == []


def _run(application: str, plan: str, secrets: dict[str, str], folder: Path) -> CompletedProcess[str]:
    """What the pod's container does, with a master of this machine, whose tasks have no package either."""
    python, home = write_bare_python(folder / "bare-python"), spark_home(folder / "spark")
    environment = {
        "JAVA_HOME": launch_environment(folder / "java")["JAVA_HOME"],
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "PATH": "/usr/bin:/bin",
    }
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", application, plan]
    return run(command, capture_output=True, text=True, timeout=900, cwd=folder, env=environment | secrets)
