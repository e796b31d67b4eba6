"""The operator around a real ``spark-submit`` command; a script stands in for Spark itself."""

from __future__ import annotations

import json
import os
import stat
import tempfile
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowException, AirflowFailException

from airflow_provider_snowpipe.operators.client_job import ClientRun, DriverLocation, DriverMemory, runs
from airflow_provider_snowpipe.operators.row_policy import SchemaPolicy
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.spark import job_file
from airflow_provider_snowpipe.spark.driver.plan import read_plan
from airflow_provider_snowpipe.spark.driver.report import ChannelReport, RunReport
from airflow_provider_snowpipe.streaming.checked_values import RowPolicy
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SqlError
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.airflow_connections import PASSPHRASE, SetConnection
from tests.metrics_receiver import Receiver, receiver
from tests.waiting import wait_until

__all__ = ["receiver"]

SENT = {
    **{"rows": 2, "bytes": 20, "append_seconds": 0.5, "commit_seconds": 2.0, "requests": 4},
    **{"request_seconds": 0.2, "longest_request": 0.125, "retries": 3},
}
REPORT = RunReport(
    "app",
    (
        ChannelReport("p_src_EWR", "EWR", None, "a:2", "a:2", 0, True, **SENT),
        ChannelReport("p_src_JFK", "JFK", "b:1", "b:1", "b:1", 0, True),
        ChannelReport("p_src_LGA", "LGA", None, None, None, 0, True),
    ),
    1.5,
)


class TaskInstance:
    """As much of a running task instance as the operator asks for."""

    def __init__(self) -> None:
        self.dag_id, self.task_id, self.run_id, self.map_index = "d", "load", "manual__1", -1
        self.try_number = 1
        self.xcoms: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value


@pytest.fixture(autouse=True)
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files where leftovers are seen."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


@pytest.fixture
def connections(set_connection: SetConnection, encrypted_pem: str) -> None:
    set_connection("spark_default", conn_type="spark", host="local[2,4]")
    set_connection(
        "snowflake_default",
        login="LOADER",
        password=PASSPHRASE,
        schema="PUBLIC",
        extra={
            "account": "LOCAL",
            "host": "127.0.0.1",
            "port": 8443,
            "database": "LOCAL",
            "private_key_content": encrypted_pem,
        },
    )


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a program instead of ``spark-submit`` that notes what it was given, then does as scripted."""

    def make(then: str) -> tuple[str, Path]:
        program, notes = tmp_path / "fake-spark-submit", tmp_path / "notes"
        notes.mkdir(exist_ok=True)
        program.write_text(
            "#!/bin/bash\n"
            'plan="${@: -1}"; work="$(dirname "$plan")"\n'
            f'cp "$plan" {notes}/plan.json; env > {notes}/env; printf "%s\\n" "$@" > {notes}/args\n'
            f'stat -c "%a %n" "$work" "$work"/* > {notes}/modes; cp "$work"/credentials.json {notes}/\n'
            + then
            + "\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("NOTES", str(notes))
        return str(program), notes

    return make


def make(**options: Any) -> SnowpipeStreamOperator:
    arguments: dict[str, Any] = {
        "task_id": "load",
        "source": {"path": "/data/src"},
        "table": "FLIGHTS",
        "channel_prefix": "p",
    }
    return SnowpipeStreamOperator(**{**arguments, **options})


def run(operator: SnowpipeStreamOperator) -> tuple[dict[str, Any], TaskInstance]:
    instance = TaskInstance()
    return operator.execute({"ti": instance}), instance  # type: ignore[typeddict-item]


@pytest.mark.usefixtures("connections")
class TestSubmission:
    def test_no_secret_is_on_the_command_line_or_in_a_setting(
        self, tmp_path: Path, encrypted_pem: str
    ) -> None:
        operator = make(conf={"spark.ui.enabled": "false"}, verbose=True)
        operator.name = "app"
        memory = DriverMemory({}, durable=False)
        operator._run = ClientRun(DriverLocation.here(tmp_path), memory, print, lambda _: None)
        operator._prepare(operator._run, memory)
        hook = operator._get_hook()

        command = hook._build_spark_submit_command(operator.application)

        assert command[0] == "spark-submit"
        assert command[-2:] == [str(job_file()), str(tmp_path / "plan.json")]
        assert command[command.index("--master") + 1] == "local[2,4]"
        shown = "\n".join([*command, json.dumps(hook._env_vars), json.dumps(hook._conf)])
        shown += (tmp_path / "plan.json").read_text() + repr(vars(operator))
        for secret in (PASSPHRASE, *encrypted_pem.splitlines()[1:-1]):
            assert secret not in shown
            assert secret in (tmp_path / "credentials.json").read_text().replace("\\n", "\n")

    def test_the_job_gets_its_plan_its_environment_and_private_files(
        self, submit: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program, notes = submit("exit 3")
        for name in (
            "CONN_OTHER",
            "VAR_KEY",
            "_CORE__FERNET_KEY",
            "_SECRETS__BACKEND_KWARGS",
            "_API_AUTH__JWT_SECRET",
        ):
            monkeypatch.setenv(f"AIRFLOW_{name}", "of-airflow")
        monkeypatch.setenv("_AIRFLOW_WWW_USER_PASSWORD", "of-airflow")
        monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "context")
        given: dict[str, Any] = {
            "source_name": "in", "on_error": "continue", "on_data_loss": "skip", "wait_for_commit": False,
            "commit_timeout": 7.0, "sdk_profile": "/profile.json", "unknown_columns": "ignore",
        }  # fmt: skip
        with DAG("my_dag", schedule=None):
            operator = make(
                spark_binary=program, batch_limits={"rows": 500}, channel_prefix=None,
                env_vars={"PYSPARK_PYTHON": "/other/python"}, **given,
            )  # fmt: skip

        with pytest.raises(AirflowException, match="3"):  # Spark's own, where the job has logged none
            run(operator)

        plan = read_plan(notes / "plan.json")
        assert {name: getattr(plan, name) for name in given} == given
        names = (plan.application, str(plan.pipe), plan.account_url)
        assert names == (
            "snowpipe.d.load.manual__1", "LOCAL.PUBLIC.FLIGHTS-STREAMING", "https://127.0.0.1:8443",
        )  # fmt: skip
        assert (plan.channel("EWR"), plan.limits.rows) == ("my_dag_in_EWR", 500)
        modes = dict(reversed(line.split()) for line in (notes / "modes").read_text().splitlines())
        assert (modes[os.path.dirname(plan.report_path)], modes[plan.credentials_path]) == ("700", "600")
        args = (notes / "args").read_text().splitlines()
        assert args[args.index("--name") + 1] == plan.application
        assert "spark.log.level=WARN" in args
        environment = (notes / "env").read_text().splitlines()
        assert "PYSPARK_PYTHON=/other/python" in environment
        assert any(line.startswith("JAVA_HOME=") for line in environment)
        assert "AIRFLOW_CTX_DAG_ID=context" in environment
        assert not [line for line in environment if PASSPHRASE in line or "of-airflow" in line]


@pytest.mark.usefixtures("connections")
def test_the_result_is_the_report_the_targets_and_airflows_metrics(
    submit: Any, tmp_path: Path, temporary_files: Path, receiver: Receiver
) -> None:
    (tmp_path / "report.json").write_text(REPORT.to_json())
    program, _ = submit(f'cp {tmp_path}/report.json "$work"/report.json')
    operator = make(spark_binary=program)

    value, instance = run(operator)

    assert value["pipe"] == "LOCAL.PUBLIC.FLIGHTS-STREAMING"
    assert (value["offset_format"], value["rows"], value["bytes"]) == ("unit/file:line", 2, 20)
    assert value["channels"]["p_src_EWR"] == {
        "from": None, "to": "a:2", "rows": 2, "bytes": 20, "rejected": 0, "dead_lettered": 0, "undecoded": 0,
        "committed": True, "latency_ms": None,
    }  # fmt: skip
    assert instance.xcoms["targets"] == {
        channel: {"token": token, "offset_format": "unit/file:line", "errors": 0, "rows": rows}
        for channel, token, rows in (("p_src_EWR", "a:2", 2), ("p_src_JFK", "b:1", 0), ("p_src_LGA", None, 0))
    }
    assert json.loads(json.dumps(value)) == value
    assert list(temporary_files.iterdir()) == []
    assert {name: value for name, (value, _) in receiver.sent.items() if name.startswith("snowpipe")} == {
        "snowpipe.rows": 2,
        "snowpipe.bytes": 20,
        "snowpipe.rejected": 0,
        "snowpipe.dead_lettered": 0,
        "snowpipe.retries": 3,
        "snowpipe.appends": 4,
        "snowpipe.append_time": 500.0,
        "snowpipe.append_latency": 50.0,
        "snowpipe.append_latency_max": 125.0,
        "snowpipe.commit_latency": 2000.0,
        "snowpipe.run": 1500.0,
        "snowpipe.lag_channels": 0,
    }
    program, _ = submit("exit 0")  # a success without a report
    with pytest.raises(AirflowException, match="report"):
        run(operator)


@pytest.mark.usefixtures("connections")
class TestFailure:
    def test_is_the_jobs_own_error_and_leaves_nothing(self, submit: Any, temporary_files: Path) -> None:
        program, _ = submit(
            "echo noise; "
            "echo \"snowpipe error: SourceMissingError: source path '/data/src' does not exist\" >&2; exit 1"
        )

        with pytest.raises(AirflowException) as raised:
            run(make(spark_binary=program))

        message = "snowpipe error: SourceMissingError: source path '/data/src' does not exist [SP04]"
        assert str(raised.value) == message
        assert type(raised.value) is AirflowException
        assert list(temporary_files.iterdir()) == []

    def test_of_the_settings_comes_before_anything_runs(self, submit: Any, temporary_files: Path) -> None:
        program, notes = submit("exit 0")
        for options, word in (
            ({"source": {"path": "/d", "glob": "*"}}, "'glob'"),
            ({"batch_limits": {"wire_bytes": 5_000_000}}, "wire_bytes"),
            ({"batch_limits": "rows=5"}, "JSON"),
            ({"table": None}, "table"),
            ({"conf": {"spark.submit.deployMode": "cluster"}}, "deploy_mode="),
        ):
            with pytest.raises(AirflowFailException, match=f"ConfigurationError.*{word}"):
                run(make(spark_binary=program, **options))
        assert list(notes.iterdir()) == []
        assert list(temporary_files.iterdir()) == []


@pytest.mark.usefixtures("connections")
def test_kill_stops_every_process_and_removes_the_files(
    submit: Any, temporary_files: Path, tmp_path: Path
) -> None:
    program, notes = submit(f"sleep 300 & echo $! > {tmp_path}/child; echo started; wait")
    operator = make(spark_binary=program)
    children: list[psutil.Process] = []

    def kill() -> None:
        wait_until(lambda: (tmp_path / "child").is_file() and (tmp_path / "child").read_text().strip())
        children.append(psutil.Process(int((tmp_path / "child").read_text())))
        operator.on_kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(
        AirflowException
    ):  # here, not in a thread: Airflow 2.11 runs tasks in main threads only
        run(operator)
    killer.join(300)

    assert not killer.is_alive()
    (child,) = children
    wait_until(lambda: not runs(child), seconds=60)
    assert list(temporary_files.iterdir()) == []
    assert stat.S_ISDIR(notes.stat().st_mode)


def test_kill_before_the_start_is_harmless() -> None:
    make().on_kill()


def test_wrong_arguments_are_refused_when_the_dag_is_read() -> None:
    for options, word in (
        ({"pipe": "P"}, "both"),
        ({"source": {"pattern": "*"}}, "'path'"),
        ({"on_error": "ignore"}, "'ignore'"),
        ({"on_data_loss": "x"}, "on_data_loss"),
        ({"commit_timeout": 0}, "commit_timeout"),
        ({"commit_timeout": "600"}, "'600'"),
        ({"deploy_mode": "elsewhere"}, "'cluster'"),
        ({"spark_log_level": "quiet"}, "spark_log_level"),
        ({"application": "x.py"}, "application"),
    ):
        with pytest.raises(ConfigurationError, match=word):
            make(**options)


def test_source_and_names_are_templates() -> None:
    operator = make(source={"path": "/data/{{ x }}"}, table="{{ x }}", channel_prefix="{{ x }}")
    operator.render_template_fields({"x": "v"})

    assert (operator.source, operator.table, operator.channel_prefix) == ({"path": "/data/v"}, "v", "v")


class DescribedTable:
    """A hook whose table has these columns for keys, or cannot be described."""

    def __init__(self, known: Any) -> None:
        self.known = known

    def table_columns(self) -> Any:
        return (TableColumn("A", "DATE"),)

    def columns_for_keys(self) -> Any:
        if isinstance(self.known, Exception):
            raise self.known
        return self.known


class TestColumnsForKeys:
    ONE = (TableColumn("ID", "DATE"),)

    def test_are_the_tables_where_keys_have_to_match_and_can(self) -> None:
        refused = SqlError("no rights", errno=1)
        for known, wishes, columns, policy in (
            (self.ONE, {}, self.ONE, "fail"),
            (self.ONE, {"unknown_columns": "warn"}, self.ONE, "warn"),
            (self.ONE, {"unknown_columns": "ignore"}, (), "ignore"),
            ((), {}, (), "ignore"),  # a table that widens itself
            ((), {"check_rows": True}, (TableColumn("A", "DATE"),), "ignore"),
            (refused, {"unknown_columns": "warn"}, (), "ignore"),
        ):
            message: list[Any] = []
            table: Any = DescribedTable(known)
            rules = SchemaPolicy(RowPolicy(**wishes)).rules(table, lambda *w, m=message: m.append(w))

            assert (rules["columns"], rules["unknown_columns"]) == (columns, policy), wishes
            assert len(message) == isinstance(known, Exception)
        unseen: Any = DescribedTable(refused)
        with pytest.raises(SqlError):
            SchemaPolicy(RowPolicy()).rules(unseen, print)
