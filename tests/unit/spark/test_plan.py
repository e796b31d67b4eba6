import json
from dataclasses import fields, replace

import pytest

from airflow_provider_snowpipe.spark.driver.plan import JobPlan, read_plan, write_plan
from airflow_provider_snowpipe.spark.sources.files.spec import FileSourceSpec, Ndjson
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

PLAN = JobPlan(
    application="load_flights",
    account_url="https://127.0.0.1:4433",
    pipe=PipeName("LOCAL", "PUBLIC", "FLIGHTS-STREAMING"),
    channel_prefix="flights",
    source_name="logs",
    source=FileSourceSpec(path="/data/flights", format=Ndjson(growing=True)),
    report_path="/run/report.json",
    credentials_path="/run/credentials.json",
    limits=BatchLimits(rows=100, bytes_per_second=None),
    columns=(TableColumn("ID", "NUMBER(38,0)", nullable=False, identity=True),),
)


def test_plan_comes_back_unchanged_from_its_file(tmp_path):
    write_plan(PLAN, tmp_path / "plan.json")

    assert read_plan(tmp_path / "plan.json") == PLAN


def test_every_field_of_a_plan_comes_back():
    plan = replace(
        PLAN, ca_bundle="/ca.pem", on_error="dead_letter", dead_letter_path="/letters",
        unknown_columns="warn", on_data_loss="skip", wait_for_commit=False, commit_timeout=5.0,
        sdk_profile="/sdk.json", run="r1", rebind="restart", on_imbalance="fail",
        last_checkpoints={"9c0f6a2d41": ("c", "t")}, renew=("c",), local_master="local",
    )  # fmt: skip
    unset = {one.name for one in fields(plan) if getattr(plan, one.name) == one.default}
    assert unset == {"check_rows", "credentials_variable", "credentials_from"}, "do not go with the others"
    checked = replace(PLAN, check_rows=True)

    assert [JobPlan.from_json(one.to_json()) for one in (plan, checked)] == [plan, checked]


def test_plan_may_be_the_argument_itself():
    assert read_plan(f"\n{PLAN.to_json()}") == PLAN


def test_channel_is_named_after_prefix_source_and_partition():
    assert PLAN.channel("EWR") == "flights_logs_EWR"


@pytest.mark.parametrize(
    ("source", "name", "channel"),
    [
        ({"kind": "files", "path": "/data/flights"}, "flights", "p_flights_EWR"),
        ({"kind": "kafka", "bootstrap_servers": "b:9092", "topics": ["orders"]}, "orders", "p_orders_0"),
    ],
    ids=["files", "kafka"],
)
def test_plan_without_a_source_name_has_the_sources_own(source, name, channel):
    values = json.loads(_changed(source=source, channel_prefix="p", columns=[]))
    del values["source_name"]
    plan = JobPlan.from_json(json.dumps(values))

    assert plan.source_name == name
    assert plan.channel(channel.removeprefix("p_").replace("flights_", "")) == channel


def _changed(**changes):
    return json.dumps({**json.loads(PLAN.to_json()), **changes})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("not json", "not JSON"),
        ("[]", "list"),
        (_changed(plan_version=1), "plan_version is 1"),
        (_changed(colour="red"), "unknown key 'colour' (value 'red')"),
        (
            _changed(on_error="explode"),
            "on_error is 'explode': it must be one of ['abort', 'continue', 'dead_letter']",
        ),
        (_changed(on_data_loss=None), "on_data_loss is None"),
        (_changed(wait_for_commit="yes"), "wait_for_commit is 'yes'"),
        (_changed(commit_timeout=True), "commit_timeout is True"),
        (_changed(commit_timeout=0), "commit_timeout is 0"),
        (_changed(report_path="report.json"), "report_path is 'report.json': give an absolute path"),
        (_changed(credentials_path="c.json"), "credentials_path is 'c.json': give an absolute path"),
        (_changed(credentials_path=""), "give one of them"),
        (
            _changed(credentials_variable="SECRET"),
            "credentials_variable 'SECRET' and credentials_from '': give one of them",
        ),
        (_changed(credentials_from="file:/c"), "credentials_from 'file:/c': give one of them"),
        *(
            (
                _changed(credentials_path="", credentials_from=wrong),
                "give 'file:/path' of a credentials file on the driver's machine",
            )
            for wrong in ("file:c.json", "python:vault", "python:my vault:ask", "vault:ask", "/c.json")
        ),
        (_changed(application=""), "application is empty"),
        (_changed(source=[]), "plan source is []"),
        (_changed(source={}), "source lacks the key 'path'"),
        (_changed(source={"path": "/d", "kind": "rabbit"}), "source kind is 'rabbit': it must be one of"),
        (
            _changed(source={"path": "/d", "partitions": "name"}),
            "lacks the key 'regex'",
        ),
        (
            _changed(source={"path": "/d", "partitions": {"type": "name", "regex": "("}}),
            "no regular expression",
        ),
        (
            _changed(source={"path": "/d", "partitions": {"type": "name", "regex": "x"}}),
            "needs a group (?P<partition>",
        ),
        (_changed(source={"path": "/d", "pattern": "../*.log"}), "leaves the source's path"),
        (_changed(limits={"rows": 0}), "rows is 0"),
        (_changed(limits={"rows": 1.5}), "limits rows is 1.5: it must be int"),
        (_changed(pipe={"database": "D"}), "plan pipe lacks the key"),
        (_changed(columns={}), "plan columns is {}: give a list"),
        (_changed(columns=[{"name": "A"}]), "plan columns[0] lacks the key 'type'"),
        (_changed(columns=[{"name": "A", "type": "NUMBR"}]), "column type 'NUMBR' is unknown"),
        (_changed(check_rows=True, columns=[]), "the plan has no columns"),
        (_changed(dead_letter_path="/dead"), "on_error is 'abort': set on_error='dead_letter'"),
    ],
)
def test_wrong_plan_is_refused_by_key_and_value(text, named):
    with pytest.raises(ConfigurationError) as refused:
        JobPlan.from_json(text)

    assert named in str(refused.value)


def test_missing_plan_is_refused_by_path(tmp_path):
    with pytest.raises(ConfigurationError, match=r"none\.json.*cannot be read"):
        read_plan(tmp_path / "none.json")


def test_plan_has_no_field_for_a_secret():
    assert "private_key" not in PLAN.to_json()
    with pytest.raises(ConfigurationError, match="unknown key 'private_key'"):
        JobPlan.from_json(_changed(private_key="x"))


def test_integer_seconds_are_taken_as_seconds():
    assert JobPlan.from_json(_changed(commit_timeout=30)) == replace(PLAN, commit_timeout=30.0)
