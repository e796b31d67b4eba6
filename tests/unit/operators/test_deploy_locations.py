"""What is submitted to each kind of cluster: the driver here, the executors there, with our code."""

import json
import py_compile
import shutil
import subprocess
import sys
import zipfile

import pytest

import airflow_provider_snowpipe
from airflow_provider_snowpipe.operators import submission
from airflow_provider_snowpipe.operators.client_job import ClientRun, DriverLocation, DriverMemory
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.spark.driver.package_archive import write_package_archive
from airflow_provider_snowpipe.spark.submit import local_spark
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.stream_worker import TaskInstance


def test_yarn_gets_our_code_its_queue_and_its_own_python(tmp_path, set_connection):
    extra = {"queue": "loads", "deploy-mode": "client"}
    set_connection("cluster", conn_type="spark", host="yarn", extra=extra)
    given = {"py_files": "/x/mine.zip", "env_vars": {"HADOOP_CONF_DIR": "/etc/hadoop"}, "name": "app"}
    given |= {"conf": {"spark.yarn.maxAppAttempts": "1"}, "spark_conn_id": "cluster"}
    operator = SnowpipeStreamOperator(task_id="load", source={"path": "/d"}, table="T", **given)
    memory = DriverMemory({}, durable=False)
    operator._run = ClientRun(DriverLocation.here(tmp_path), memory, print, lambda _: None)
    hook = operator._get_hook()
    command = hook._build_spark_submit_command(operator.application)
    settings = {command[at + 1] for at, word in enumerate(command) if word == "--conf"}
    environment = {**hook.submit.args[1], **(hook._env or {})}

    def option(name):
        return command[command.index(name) + 1]

    assert [option(f"--{name}") for name in ("master", "queue", "deploy-mode")] == ["yarn", "loads", "client"]
    # The user's own code comes first.
    assert option("--py-files") == f"/x/mine.zip,{tmp_path / 'airflow_provider_snowpipe.zip'}"
    assert environment["HADOOP_CONF_DIR"] == "/etc/hadoop"
    assert environment["PYSPARK_PYTHON"] == "python3"
    assert environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert settings == {
        "spark.log.level=WARN",
        "spark.yarn.maxAppAttempts=1",
        "spark.yarn.appMasterEnv.HADOOP_CONF_DIR=/etc/hadoop",
    }


class TestSparkConnect:
    """A server that runs already: the job is its client, beside the task."""

    @pytest.fixture
    def operator(self, set_connection):
        connection = {"host": "sc.example", "port": 15002, "login": "u", "password": "t0k;en"}
        conn_id = set_connection("remote", conn_type="spark_connect", **connection)
        return lambda **options: SnowpipeStreamOperator(
            task_id="load", source={"path": "/d"}, table="T", spark_conn_id=conn_id, name="app", **options
        )

    def test_the_job_is_a_process_with_its_address_and_no_java(self, operator, tmp_path, monkeypatch):
        monkeypatch.setattr(local_spark, "find_java", lambda: None)
        script, noted = tmp_path / "job.py", tmp_path / "noted.json"
        script.write_text(
            "import json, os, sys\n"
            "given = [sys.argv[1:], os.environ['SPARK_REMOTE'], sys.executable]\n"
            f"json.dump(given, open({str(noted)!r}, 'w'))\n"
        )
        made = operator()
        memory = DriverMemory({}, durable=False)
        location = DriverLocation.here(tmp_path)
        made._run = ClientRun(location, memory, print, lambda _: None, made._connect_url())
        made.application_args = ["plan.json"]

        made._get_hook().submit(str(script))

        address = "sc://sc.example:15002/;user_id=u;token=t0k%3Ben"
        assert json.loads(noted.read_text()) == [["plan.json"], address, sys.executable]
        assert not (tmp_path / "airflow_provider_snowpipe.zip").exists()

    def test_what_cannot_be_is_refused(self, operator, set_connection, monkeypatch):
        with pytest.raises(ConfigurationError, match=r"'remote'.*Connect"):
            operator(deploy_mode="cluster")._found_run(
                {"ti": TaskInstance()}, DriverMemory({}, durable=False)
            )
        with monkeypatch.context() as patch:
            patch.setattr(submission, "find_spec", lambda name: None if name == "grpc" else True)
            with pytest.raises(ConfigurationError, match=r"grpc cannot .*snowpipe\[connect\]"):
                operator()._connect_url()
        for host in (None, "sc://host/path"):
            set_connection("remote", conn_type="spark_connect", host=host)
            with pytest.raises(ConfigurationError, match=r"host.*'remote'"):
                operator()._connect_url()


def _python(code, **environment):
    """Run a program; -S leaves out what makes an installed copy of the package importable."""
    command = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_archive_holds_what_executors_import_and_nothing_of_airflow(tmp_path):
    archive = write_package_archive(tmp_path)

    with zipfile.ZipFile(archive) as content:
        rooms = {name.split("/")[1] for name in content.namelist()}
    assert rooms - {"__init__.pyc"} == {"__init__.py", "bulk", "spark", "streaming"}
    site = next(path for path in sys.path if path.endswith("site-packages"))
    _python(
        f"import sys; sys.path[:0] = [{str(archive)!r}]; sys.path.append({site!r})\n"
        "import airflow_provider_snowpipe.spark.task.sink as sink\n"
        "import airflow_provider_snowpipe.spark.sources.files.csv_format\n"
        f"assert sink.__file__.startswith({str(archive)!r}), sink.__file__\n"
        "assert 'airflow' not in sys.modules and 'pyspark' not in sys.modules"
    )


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

    assert write_package_archive(tmp_path).read_bytes() == first
    printed = _python(
        f"import sys; sys.path[:0] = [{str(archive)!r}]\n"
        "from airflow_provider_snowpipe.spark import fresh, stale, uncompiled\n"
        "print(*((one.__file__[-4:], one.from_source) for one in (fresh, stale, uncompiled)))",
        TZ="Asia/Tokyo",
    )
    assert printed == "('.pyc', 1) ('.pyc', 22) ('.pyc', 3)\n"
    with monkeypatch.context() as patch:
        patch.setattr(airflow_provider_snowpipe, "__file__", str(archive / package.name / "__init__.py"))
        assert write_package_archive(package).read_bytes() == first

    def read_only(*_, **__):
        raise PermissionError

    shutil.rmtree(package / "spark" / "__pycache__")
    monkeypatch.setattr(py_compile, "compile", read_only)
    with zipfile.ZipFile(write_package_archive(tmp_path)) as content:
        assert not [name for name in content.namelist() if "spark" in name and name.endswith(".pyc")]
