"""The operator around a real ``spark-submit`` command; a script stands in for Spark itself."""

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowException, AirflowFailException

from airflow_provider_snowpipe.operators.client_job import ClientRun, DriverLocation, DriverMemory
from airflow_provider_snowpipe.operators.row_policy import SchemaPolicy
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.spark import job_file
from airflow_provider_snowpipe.spark.driver.plan import read_plan
from airflow_provider_snowpipe.spark.driver.report import ChannelReport, RunReport
from airflow_provider_snowpipe.streaming.arguments import UnloadedRow
from airflow_provider_snowpipe.streaming.checked_values import RowPolicy
from airflow_provider_snowpipe.streaming.checkpoint import run_mark
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SqlError
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.airflow_connections import PASSPHRASE
from tests.metrics_receiver import receiver
from tests.stream_worker import TaskInstance

pytestmark = pytest.mark.usefixtures("temporary_files")

__all__ = ["receiver"]

SENT = {"rows": 2, "bytes": 20, "append_seconds": 0.5, "commit_seconds": 2.0, "requests": 4, "retries": 3}
ID = TableColumn("ID", "DATE")
REPORT = RunReport(
    "app",
    (
        ChannelReport("p_src_EWR", "EWR", None, "a:2", "a:2", 0, True, **SENT),
        ChannelReport("p_src_JFK", "JFK", "b:1", "b:1", "b:1", 0, True),
        ChannelReport("p_src_LGA", "LGA", None, None, None, 0, True),
    ),
    1.5,
)


@pytest.fixture
def connections(set_connection, encrypted_pem):
    set_connection("spark_default", conn_type="spark", host="local[2,4]")
    extra = {"account": "LOCAL", "host": "127.0.0.1", "port": 8443, "database": "LOCAL"}
    extra["private_key_content"] = encrypted_pem
    set_connection("snowflake_default", login="LOADER", password=PASSPHRASE, schema="PUBLIC", extra=extra)


@pytest.fixture
def submit(tmp_path):
    """Make a program instead of ``spark-submit`` that notes what it was given, then does as scripted."""

    def make(then):
        program, notes = tmp_path / "fake-spark-submit", tmp_path / "notes"
        notes.mkdir(exist_ok=True)
        program.write_text(
            "#!/bin/bash\n"
            'plan="${@: -1}"; work="$(dirname "$plan")"\n'
            f'cp "$plan" {notes}/plan.json; env > {notes}/env; printf "%s\\n" "$@" > {notes}/args\n'
            f'stat -c "%a %n" "$work" "$work"/* > {notes}/modes\n{then}\n'
        )
        program.chmod(0o755)
        return str(program), notes

    return make


def make(**options):
    arguments = {"source": {"path": "/data/src"}, "table": "FLIGHTS", "channel_prefix": "p"}
    return SnowpipeStreamOperator(**{"task_id": "load", **arguments, **options})


def run(operator):
    instance = TaskInstance()
    return operator.execute({"ti": instance}), instance


@pytest.mark.usefixtures("connections")
class TestSubmission:
    def test_no_secret_is_on_the_command_line_or_in_a_setting(self, tmp_path, encrypted_pem):
        operator = make(conf={"spark.ui.enabled": "false"}, verbose=True, name="app")
        memory = DriverMemory({}, durable=False)
        operator._run = ClientRun(DriverLocation.here(tmp_path), memory, print, lambda _: None)
        operator._prepare(operator._run, memory)
        hook = operator._get_hook()

        command = hook._build_spark_submit_command(operator.application)

        assert command[-2:] == [str(job_file()), str(tmp_path / "plan.json")]
        assert command[command.index("--master") + 1] == "local[2,4]"
        shown = "\n".join([*command, json.dumps(hook._env_vars), json.dumps(hook._conf)])
        shown += (tmp_path / "plan.json").read_text() + repr(vars(operator))
        for secret in (PASSPHRASE, *encrypted_pem.splitlines()[1:-1]):
            assert secret not in shown
            assert secret in (tmp_path / "credentials.json").read_text().replace("\\n", "\n")

    def test_the_job_gets_its_plan_its_environment_and_private_files(self, submit, monkeypatch):
        program, notes = submit("exit 3")
        secrets = ("CONN_OTHER", "VAR_KEY", "_CORE__FERNET_KEY", "_SECRETS__BACKEND_KWARGS")
        for name in (*secrets, "_API_AUTH__JWT_SECRET"):
            monkeypatch.setenv(f"AIRFLOW_{name}", "of-airflow")
        monkeypatch.setenv("_AIRFLOW_WWW_USER_PASSWORD", "of-airflow")
        monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "context")
        given = {
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
        assert (plan.application, plan.account_url) == ("snowpipe.d.load.manual__1", "https://127.0.0.1:8443")
        assert (plan.channel("EWR"), plan.limits.rows) == ("my_dag_in_EWR", 500)
        assert plan.run.endswith(run_mark(plan.application))
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
@pytest.mark.parametrize(("shows", "text"), [("True", "{}"), ("False", None)])
def test_the_result_is_the_report_targets_and_metrics(
    submit, tmp_path, temporary_files, receiver, monkeypatch, shows, text
):
    monkeypatch.setenv("AIRFLOW__SNOWPIPE__SHOW_UNLOADED_ROWS", shows)
    report = replace(REPORT, unloaded=(UnloadedRow("p_src_EWR", "a:1", "no", "{}"),))
    (tmp_path / "report.json").write_text(report.to_json())
    program, _ = submit(f'cp {tmp_path}/report.json "$work"/report.json')

    value, instance = run(make(spark_binary=program))

    assert (value["pipe"], value["rows"], value["bytes"]) == ("LOCAL.PUBLIC.FLIGHTS-STREAMING", 2, 20)
    assert value["source"] == "/data/src"
    assert value["channels"]["p_src_EWR"] == {
        "from": None, "to": "a:2", "rows": 2, "bytes": 20, "rejected": 0, "dead_lettered": 0, "undecoded": 0,
        "committed": True, "latency_ms": None, "last_error": None,
    }  # fmt: skip
    row = {"where": "p_src_EWR", "position": "a:1", "reason": "no", "text": text}
    assert value["unloaded"] == {"path": None, "run": "app", "rows": [row]}
    assert instance.xcoms["targets"] == {
        channel: {"token": token, "offset_format": "unit/file:line", "errors": 0, "rows": rows}
        for channel, token, rows in (("p_src_EWR", "a:2", 2), ("p_src_JFK", "b:1", 0), ("p_src_LGA", None, 0))
    }
    assert json.loads(json.dumps(value)) == value
    assert list(temporary_files.iterdir()) == []
    sent = {name: value for name, (value, _) in receiver.sent.items()}
    assert sent | {"snowpipe.rows": 2, "snowpipe.commit_latency": 2000.0, "snowpipe.run": 1500.0} == sent
    program, _ = submit("exit 0")  # a success without a report
    with pytest.raises(AirflowException, match="report"):
        run(make(spark_binary=program))


@pytest.mark.usefixtures("connections")
class TestFailure:
    def test_is_the_jobs_own_error_and_leaves_nothing(self, submit, temporary_files):
        error = "snowpipe error: SourceMissingError: source path '/data/src' does not exist"
        program, _ = submit(f'echo noise; echo "{error}" >&2; exit 1')
        with pytest.raises(AirflowException) as raised:
            run(make(spark_binary=program))
        assert str(raised.value) == f"{error} [SP04]"
        assert type(raised.value) is AirflowException
        assert list(temporary_files.iterdir()) == []

    @pytest.mark.parametrize(
        ("options", "word"),
        [
            ({"source": {"path": "/d", "glob": "*"}}, "'glob'"),
            ({"batch_limits": {"wire_bytes": 5_000_000}}, "wire_bytes"),
            ({"table": None}, "table"),
        ],
    )
    def test_of_the_settings_comes_before_anything_runs(self, submit, temporary_files, options, word):
        program, notes = submit("exit 0")
        with pytest.raises(AirflowFailException, match=f"ConfigurationError.*{word}"):
            run(make(spark_binary=program, **options))
        assert [*notes.iterdir(), *temporary_files.iterdir()] == []


def test_wrong_arguments_are_refused_when_the_dag_is_read():
    for options, word in (
        ({"pipe": "P"}, "both"),
        ({"source": {"pattern": "*"}}, "'path'"),
        ({"on_error": "ignore"}, "'ignore'"),
        ({"on_data_loss": "x"}, "on_data_loss"),
        ({"commit_timeout": "600"}, "'600'"),
        ({"deploy_mode": "elsewhere"}, "'cluster'"),
        ({"spark_log_level": "quiet"}, "spark_log_level"),
        ({"application": "x.py"}, "application"),
    ):
        with pytest.raises(ConfigurationError, match=word):
            make(**options)
    operator = make(source={"path": "/data/{{ x }}"}, table="{{ x }}")
    operator.render_template_fields({"x": "v"})
    assert (operator.source, operator.table) == ({"path": "/data/v"}, "v")


@pytest.mark.parametrize(
    ("known", "wishes", "columns", "policy"),
    [
        ([ID], {}, [ID], "fail"),
        ([ID], {"unknown_columns": "ignore"}, [], "ignore"),
        ([], {}, [], "ignore"),  # a table that widens itself
        ([], {"check_rows": True}, [ID], "ignore"),
        (None, {"unknown_columns": "warn"}, [], "ignore"),
    ],
)
def test_columns_for_keys_are_the_tables_where_keys_have_to_match_and_can(known, wishes, columns, policy):
    """Where the table cannot be described, that is logged unless keys without a column are to fail."""

    def described():
        if known is None:
            raise SqlError("no rights", errno=1)
        return tuple(known)

    table = SimpleNamespace(table_columns=lambda: (ID,), columns_for_keys=described)
    logged = []
    rules = SchemaPolicy(RowPolicy(**wishes)).rules(table, lambda *words: logged.append(words))

    assert (rules["columns"], rules["unknown_columns"]) == (tuple(columns), policy)
    assert len(logged) == (known is None)
    if known is None:
        with pytest.raises(SqlError):
            SchemaPolicy(RowPolicy()).rules(table, print)
