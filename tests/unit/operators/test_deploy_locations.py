"""What is submitted to each kind of cluster: the driver here, the executors there, with our code."""

from __future__ import annotations

import json
import py_compile
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks import spark_submit

import airflow_provider_snowpipe
from airflow_provider_snowpipe.operators import submission
from airflow_provider_snowpipe.operators.client_job import ClientRun, DriverLocation, DriverMemory
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.spark.driver.package_archive import write_package_archive
from airflow_provider_snowpipe.spark.submit import local_spark
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.stream_worker import TaskInstance

CONTAINER = "registry/spark:4"


class Submission:
    """The command and the environment that a load would start its driver with."""

    def __init__(self, operator: SnowpipeStreamOperator, directory: Path) -> None:
        memory = DriverMemory({}, durable=False)
        operator._run = ClientRun(DriverLocation.here(directory), memory, print, lambda _: None)
        operator.application_args = [str(directory / "plan.json")]
        hook = operator._get_hook()
        self.command = hook._build_spark_submit_command(operator.application)
        self.environment: dict[str, str] = {**hook.submit.args[1], **(hook._env or {})}  # type: ignore[attr-defined]

    def option(self, name: str) -> str:
        return self.command[self.command.index(name) + 1]

    @property
    def settings(self) -> dict[str, str]:
        given = [self.command[i + 1].split("=", 1) for i, word in enumerate(self.command) if word == "--conf"]
        return {name: value for name, value in given}


@pytest.fixture
def submit(tmp_path, set_connection):
    def make(host: str, extra: dict[str, Any] | None = None, **options: Any) -> Submission:
        set_connection("cluster", conn_type="spark", host=host, extra=extra or {})
        operator = SnowpipeStreamOperator(
            task_id="load", source={"path": "/d"}, table="T", spark_conn_id="cluster", **options
        )
        operator.name = "app"
        return Submission(operator, tmp_path)

    return make


def test_this_machine_needs_no_archive(submit, tmp_path):
    submission = submit("local[4]")

    assert submission.option("--master") == "local[4]"
    assert "--py-files" not in submission.command
    assert submission.environment["PYSPARK_PYTHON"] == sys.executable


def test_yarn_gets_our_code_its_queue_and_its_own_python(submit, tmp_path):
    submission = submit(
        "yarn",
        {"queue": "loads", "deploy-mode": "client"},
        num_executors=2,
        py_files="/x/mine.zip",
        env_vars={"HADOOP_CONF_DIR": "/etc/hadoop"},
        conf={"spark.yarn.maxAppAttempts": "1"},
    )

    assert submission.option("--master") == "yarn"
    assert (submission.option("--queue"), submission.option("--deploy-mode")) == ("loads", "client")
    # The user's own code comes first.
    assert submission.option("--py-files") == f"/x/mine.zip,{tmp_path / 'airflow_provider_snowpipe.zip'}"
    assert submission.option("--num-executors") == "2"
    assert submission.environment["HADOOP_CONF_DIR"] == "/etc/hadoop"
    assert submission.environment["PYSPARK_PYTHON"] == "python3"
    assert submission.environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert submission.settings == {
        "spark.log.level": "WARN",
        "spark.yarn.maxAppAttempts": "1",
        "spark.yarn.appMasterEnv.HADOOP_CONF_DIR": "/etc/hadoop",
    }


def test_kubernetes_gets_our_code_its_image_and_its_own_python(submit, tmp_path, monkeypatch):
    # Airflow's Kubernetes provider must be there for such a master; client mode asks nothing of it.
    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)
    submission = submit(
        "k8s://https://10.0.0.1:6443",
        {"namespace": "loads", "deploy-mode": "client"},
        conf={"spark.kubernetes.container.image": CONTAINER, "spark.driver.host": "10.0.0.9"},
        env_vars={"PYSPARK_PYTHON": "/opt/python/bin/python"},
    )

    assert submission.option("--master") == "k8s://https://10.0.0.1:6443"
    assert submission.option("--deploy-mode") == "client"
    assert submission.option("--py-files") == str(tmp_path / "airflow_provider_snowpipe.zip")
    assert submission.settings["spark.kubernetes.namespace"] == "loads"
    assert submission.settings["spark.kubernetes.container.image"] == CONTAINER
    assert submission.settings["spark.driver.host"] == "10.0.0.9"
    assert submission.environment["PYSPARK_PYTHON"] == "/opt/python/bin/python"


class TestSparkConnect:
    """A server that runs already: the job is its client, beside the task."""

    @pytest.fixture
    def conn_id(self, set_connection):
        return set_connection(
            "remote", conn_type="spark_connect", host="sc.example", port=15002, login="u", password="t0k;en"
        )

    @pytest.fixture
    def operator(self, conn_id):
        return lambda **options: SnowpipeStreamOperator(
            task_id="load", source={"path": "/d"}, table="T", spark_conn_id=conn_id, name="app", **options
        )

    @pytest.fixture
    def context(self):
        return {"ti": TaskInstance()}

    def test_the_job_is_a_process_with_its_address_and_no_java(self, operator, tmp_path, monkeypatch):
        monkeypatch.setattr(local_spark, "find_java", lambda: None)
        script, noted = tmp_path / "job.py", tmp_path / "noted.json"
        script.write_text(
            "import json, os, sys\n"
            "received = [sys.argv[1:], os.environ['SPARK_REMOTE'], sys.executable]\n"
            f"json.dump(received, open({str(noted)!r}, 'w'))\n"
        )
        made = operator()
        location = DriverLocation.here(tmp_path)
        made._run = ClientRun(
            location, DriverMemory({}, durable=False), print, lambda _: None, made._connect_url()
        )
        made.application_args = ["plan.json"]

        made._get_hook().submit(str(script))

        assert json.loads(noted.read_text()) == [
            ["plan.json"],
            "sc://sc.example:15002/;user_id=u;token=t0k%3Ben",
            sys.executable,
        ]
        assert not (tmp_path / "airflow_provider_snowpipe.zip").exists()

    def test_its_driver_cannot_be_on_the_cluster(self, operator, context):
        with pytest.raises(ConfigurationError, match="'remote' is a Spark Connect server"):
            operator(deploy_mode="cluster")._found_run(context, DriverMemory({}, durable=False))

    @pytest.mark.parametrize("module", ["grpc"])
    def test_without_a_client_the_extra_is_named(self, operator, module, monkeypatch):
        monkeypatch.setattr(submission, "find_spec", lambda name: None if name == module else True)

        with pytest.raises(ConfigurationError, match=rf"{module} cannot .*snowpipe\[connect\]"):
            operator()._connect_url()

    @pytest.mark.parametrize("host", [None, "sc://host/path"])
    def test_a_host_that_is_none_is_refused(self, operator, set_connection, host):
        set_connection("remote", conn_type="spark_connect", host=host)

        with pytest.raises(ConfigurationError, match="the host of the Spark Connect connection 'remote'"):
            operator()._connect_url()


def test_the_archive_holds_what_executors_import_and_nothing_of_airflow(tmp_path):
    archive = write_package_archive(tmp_path)

    with zipfile.ZipFile(archive) as content:
        rooms = {name.split("/")[1] for name in content.namelist()}
    assert rooms - {"__init__.pyc"} == {"__init__.py", "bulk", "spark", "streaming"}
    site = next(path for path in sys.path if path.endswith("site-packages"))
    code = (
        f"import sys; sys.path[:0] = [{str(archive)!r}]; sys.path.append({site!r})\n"
        "import airflow_provider_snowpipe.spark.task.sink as sink\n"
        "import airflow_provider_snowpipe.spark.sources.files.csv_format\n"
        f"assert sink.__file__.startswith({str(archive)!r}), sink.__file__\n"
        "assert 'airflow' not in sys.modules and 'pyspark' not in sys.modules"
    )
    # -S leaves out what makes an installed copy of the package importable.
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr


def test_the_archive_brings_compiled_modules_and_none_of_another_source(tmp_path, monkeypatch):
    package = tmp_path / "airflow_provider_snowpipe"
    (package / "spark").mkdir(parents=True)
    for name in ("__init__.py", "spark/__init__.py", "spark/stale.py", "spark/fresh.py"):
        (package / name).write_text("from_source = 1\n")
        py_compile.compile(str(package / name))
    (package / "spark" / "stale.py").write_text("from_source = 22\n")
    (package / "spark" / "uncompiled.py").write_text("from_source = 3\n")
    monkeypatch.setattr(airflow_provider_snowpipe, "__file__", str(package / "__init__.py"))

    archive = write_package_archive(tmp_path)
    first = archive.read_bytes()

    with zipfile.ZipFile(archive) as content:
        compiled = {name.rpartition("/")[2] for name in content.namelist() if name.endswith(".pyc")}
    assert compiled == {"__init__.pyc", "fresh.pyc", "stale.pyc", "uncompiled.pyc"}
    assert write_package_archive(tmp_path).read_bytes() == first
    code = (
        f"import sys; sys.path[:0] = [{str(archive)!r}]\n"
        "from airflow_provider_snowpipe.spark import fresh, stale, uncompiled\n"
        "print(fresh.__file__, *(one.from_source for one in (fresh, stale, uncompiled)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        capture_output=True,
        text=True,
        cwd="/",
        check=True,
        env={"TZ": "Asia/Tokyo"},
    )
    file, *values = done.stdout.split()
    assert file.endswith("fresh.pyc")
    assert values == ["1", "22", "3"]

    def read_only(*_, **__):
        raise PermissionError

    shutil.rmtree(package / "spark" / "__pycache__")
    monkeypatch.setattr(py_compile, "compile", read_only)
    with zipfile.ZipFile(write_package_archive(tmp_path)) as content:
        assert not [name for name in content.namelist() if "spark" in name and name.endswith(".pyc")]
