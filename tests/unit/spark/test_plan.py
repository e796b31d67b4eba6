"""The plans of both jobs: one loads a source's rows, the other writes files for COPY."""

import json
from dataclasses import fields, replace

import pytest

from airflow_provider_snowpipe.spark.driver import plan as plans
from airflow_provider_snowpipe.spark.driver.plan import JobPlan
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource, Ndjson
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.refusals import refused

COLUMNS = (TableColumn("ID", "NUMBER(38,0)", nullable=False, identity=True),)
PLAN = JobPlan(
    application="load_flights",
    account_url="https://127.0.0.1:4433",
    pipe=PipeName("LOCAL", "PUBLIC", "FLIGHTS-STREAMING"),
    channel_prefix="flights",
    source_name="logs",
    source=FileSource(path="/data/flights", format=Ndjson(growing=True)),
    report_path="/run/report.json",
    credentials_path="/run/credentials.json",
    limits=BatchLimits(rows=100, bytes_per_second=None),
    columns=COLUMNS,
)


BYTES = {
    "source": {"kind": "iceberg", "path": "/lake", "binary": "HEX"},
    "columns": [{"name": "B", "type": "BINARY"}],
}


def _changed(**changes):
    return json.dumps({**json.loads(PLAN.to_json()), **changes})


def test_plan_comes_back_unchanged_from_its_file_or_the_argument_itself(tmp_path):
    (tmp_path / "plan.json").write_text(PLAN.to_json())
    assert plans.read_plan(tmp_path / "plan.json") == plans.read_plan(f"\n{PLAN.to_json()}") == PLAN
    assert JobPlan.from_json(_changed(commit_timeout=30)) == replace(PLAN, commit_timeout=30.0)
    with pytest.raises(ConfigurationError, match=r"none\.json"):
        plans.read_plan(tmp_path / "none.json")


def test_every_field_of_a_plan_comes_back():
    plan = replace(
        PLAN, ca_bundle="/ca.pem", on_error="dead_letter", dead_letter_path="/letters",
        unknown_columns="warn", on_data_loss="skip", wait_for_commit=False, commit_timeout=5.0,
        sdk_profile="/sdk.json", run="r1", rebind="restart", on_imbalance="fail",
        last_checkpoints={"9c0f6a2d41": ("c", "t")}, renew=("c",), local_master="local",
        source_logs={"l": 3}, table_created="t", is_recorded=True,
    )  # fmt: skip
    unset = {one.name for one in fields(plan) if getattr(plan, one.name) == one.default}
    assert unset == {"check_rows", "credentials_variable", "credentials_from"}, "do not go with the others"
    checked = replace(PLAN, check_rows=True)
    assert [JobPlan.from_json(one.to_json()) for one in (plan, checked)] == [plan, checked]


def test_channel_is_named_after_prefix_source_and_partition_and_a_source_has_a_name_of_its_own():
    assert PLAN.channel("EWR") == "flights_logs_EWR"
    for source, name, partition, channel in [
        ({"kind": "files", "path": "/data/flights"}, "flights", "EWR", "p_flights_EWR"),
        ({"kind": "kafka", "bootstrap_servers": "b", "topics": ["t"]}, "t", "t_0", "p_t_0"),
    ]:
        values = json.loads(_changed(source=source, channel_prefix="p", columns=[]))
        del values["source_name"]
        plan = JobPlan.from_json(json.dumps(values))
        assert (plan.source_name, plan.channel(partition)) == (name, channel)


def test_wrong_plan_is_refused_by_key_and_value():
    for text, named in [
        ("not json", "the plan is not JSON"),
        ("[]", "list"),
        (_changed(plan_version=1), "plan_version is 1"),
        (_changed(colour="red"), "unknown key 'colour' (value 'red')"),
        (_changed(on_error="explode"), "on_error is 'explode': it must be one of ['abort', "),
        (_changed(commit_timeout=0), "commit_timeout is 0"),
        (_changed(report_path="report.json"), "report_path is 'report.json': give an absolute path"),
        (_changed(credentials_path=""), "give one of them"),
        (_changed(credentials_variable="SECRET"), "'SECRET' and credentials_from '': give one of them"),
        *(
            (
                _changed(credentials_path="", credentials_from=wrong),
                f"plan credentials_from is '{wrong}': give",
            )
            for wrong in ("file:c.json", "python:vault", "python:my vault:ask", "vault:ask", "/c.json")
        ),
        (_changed(application=""), "application is empty"),
        (_changed(columns={}), "plan columns is {}: give a list"),
        (_changed(source={}), "source lacks the key 'path'"),
        (_changed(source={"path": "/d", "pattern": "../*.log"}), "leaves the source's path"),
        (_changed(pipe={"database": "D"}), "plan pipe lacks the key"),
        (_changed(columns=[{"name": "A"}]), "plan columns[0] lacks the key 'type'"),
        (_changed(columns=[{"name": "A", "type": "NUMBR"}]), "column type 'NUMBR' is unknown"),
        (_changed(check_rows=True, columns=[]), "the plan has no columns"),
        (_changed(**BYTES), "binary is 'HEX', and a table's default pipe reads column 'B' as BASE64"),
    ]:
        refused(ConfigurationError, JobPlan.from_json, [text], named)
    assert JobPlan.from_json(_changed(**BYTES, pipe={**json.loads(PLAN.to_json())["pipe"], "pipe": "OWN"}))
    secret = _changed(private_key="s3cret")
    (error,) = refused(ConfigurationError, JobPlan.from_json, [secret], "unknown key 'private_key'")
    assert "s3cret" not in str(error)


WRITE = plans.WritePlan(
    "app",
    "file:///shared/a1",
    "a1",
    "/run/report.json",
    rows=plans.RowsToWrite(path="/in", format="csv", options={"header": "true"}),
    columns=COLUMNS,
    target_file_bytes=5_000,
)


class TestWritePlan:
    def test_comes_back_as_it_was_written(self, tmp_path):
        lines = plans.LinesToCombine(("/a", "/b"), ".csv", True)
        for plan in (WRITE, replace(WRITE, rows=None, lines=lines)):
            (tmp_path / "plan.json").write_text(plan.to_json())
            assert plans.WritePlan.read(tmp_path / "plan.json") == plan

    def test_has_one_source_without_a_secret(self):
        for source, words in [
            ({}, "source has no table, query or path"),
            ({"table": "t", "query": "q"}, "source has table and query"),
            ({"tabel": "t"}, "unknown key 'tabel'"),
            ({"path": "/in", "options": {"password": "x"}}, "looks like a secret"),
            *(({name: "s3://k:s@b"}, f"source {name}") for name in ("table", "query", "path")),
            ({"paths": ["s3://k:s@b"]}, "source path"),
            ("t", "source is 't': give a mapping, or in JSON an object"),
        ]:
            refused(ConfigurationError, plans.RowsToWrite.from_mapping, [source], words)

    def test_that_cannot_be_done_is_refused(self):
        values = {**json.loads(WRITE.to_json()), "folder": 5}
        refused(ConfigurationError, plans.WritePlan.from_json, [json.dumps(values)], "plan folder is 5")
        wrong = [{"rows": None}, {"folder": ""}, {"target_file_bytes": 1}]
        refused(ConfigurationError, lambda changes: replace(WRITE, **changes), wrong)
