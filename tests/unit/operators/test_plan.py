"""A plan for other operators: what the job gets, and what a sensor waits for after it."""

import json
from dataclasses import replace

import jinja2
import pytest
from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_snowpipe.operators.plan import SnowpipePlan
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.sources import FileSource
from airflow_provider_snowpipe.spark.driver.plan import JobPlan
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.stream_worker import TaskInstance
from tests.unit.operators.cluster_lab import CHANNEL, LASTING, REPORT, TARGET

GIVEN = {
    "source": FileSource(path="/data/src", pattern="*.ndjson"),
    "account_url": "https://host",
    "database": "DB",
    "schema": "S",
    "channel_prefix": "p",
}


JINJA = jinja2.Environment()  # noqa: S701  Airflow's own escapes nothing either


def targets(plan, **context):
    return plan.targets(context, JINJA)


def test_the_job_reads_what_the_plan_specifies():
    given = {**GIVEN, "work_path": "s3://conn@b/w/", "on_error": "continue"}
    (text,) = SnowpipePlan(**given, table="T").arguments()
    plan = JobPlan.from_json(text)
    assert "\n" not in text
    assert (plan.pipe, plan.source) == (PipeName("DB", "S", "T-STREAMING"), GIVEN["source"])
    assert plan.report_path == "s3a://b/w/report.json"
    assert (plan.credentials_variable, plan.on_error) == ("SNOWPIPE_CREDENTIALS", "continue")
    assert plan.channel("a") == CHANNEL
    mapped = {**given, "source": {"path": "/data/src", "pattern": "*.ndjson"}}
    assert SnowpipePlan(**mapped, pipe="T-STREAMING").arguments() == [text]


def test_a_wrong_value_is_refused_where_the_dag_file_gives_it():
    for wrong, word in (
        ({}, "one"),
        ({"table": "T", "pipe": "P"}, "one"),
        ({"table": "T", "on_eror": "abort"}, "on_eror"),
        ({"table": "T", "source": {"kind": "kafka", "conn_id": "k", "topics": ["t"]}}, "conn_id"),
        ({"table": "T", "work_path": "{{ var.value.loads }}"}, "work_path"),
    ):
        with pytest.raises(ConfigurationError, match=word):
            SnowpipePlan(**{**GIVEN, **wrong})
    with pytest.raises(ConfigurationError, match="work_path"):
        targets(SnowpipePlan(**GIVEN, table="T"))


def test_a_sensor_waits_for_what_the_run_reported(tmp_path, make, snowpipe):
    plan = SnowpipePlan(**GIVEN, table="T", work_path=f"{tmp_path}/{{{{ run_id }}}}")
    (text,) = plan.arguments()
    written = JINJA.from_string(json.loads(text)["report_path"]).render(run_id="r1")
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1" / "report.json").write_text(REPORT.to_json())
    assert written == str(tmp_path / "r1" / "report.json")

    snowpipe.channel(CHANNEL).committed = TARGET
    sensor = make(SnowpipeCommitSensor, targets=targets(plan, run_id="r1"))
    assert sensor.poke({"ti": TaskInstance()}).xcom_value == {CHANNEL: TARGET}
    snowpipe.channel(CHANNEL).committed = "1/1.ndjson:1"
    again = make(SnowpipeCommitSensor, targets=targets(plan, run_id="r1"))
    assert not again.poke({"ti": TaskInstance()})


def test_a_run_without_a_good_report_has_no_targets(tmp_path):
    plan = SnowpipePlan(**GIVEN, table="T", work_path=str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"no report\.json"):
        targets(plan)
    (tmp_path / "report.json").write_text(LASTING.to_json())
    with pytest.raises(AirflowException, match="RowsRejectedError: 3 row"):
        targets(plan)
    (tmp_path / "report.json").write_text(replace(REPORT, channels=()).to_json())
    assert targets(plan) == {}
