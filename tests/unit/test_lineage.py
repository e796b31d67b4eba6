"""Lineage without the OpenLineage provider: nothing is asked of it, and names follow OpenLineage's rules."""

import sys

from airflow_provider_snowpipe.assets.uri import account_namespace
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.lineage import TaskLineage, dataset_name, operator_lineage, stage_of, store_of
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator


def test_a_file_is_named_by_its_store_without_connection_or_credential():
    azure = "abfss://container@store.dfs.core.windows.net"
    for address, named in {
        "/data/in": ("file", "/data/in"),
        "file:///data/in/": ("file", "/data/in/"),
        "s3://bucket/a/b.ndjson": ("s3://bucket", "a/b.ndjson"),
        "s3a://bucket/a/": ("s3://bucket", "a"),
        "s3://my_conn@bucket/a": ("s3://bucket", "a"),
        "s3://key:secret@bucket/a": ("s3://bucket", "a"),
        "gcs://bucket": ("gs://bucket", "/"),
        f"{azure}/a": (azure, "a"),
        "hdfs://name:8020/a/b": ("hdfs://name:8020", "a/b"),
        "https://me:secret@host/a/b.ndjson?X-Amz-Signature=secret": ("https://host", "a/b.ndjson"),
        "s3://bucket/a?b.ndjson": ("s3://bucket", "a?b.ndjson"),
    }.items():
        assert store_of(address) == named


def test_an_account_is_named_as_the_snowflake_provider_names_it():
    for account, namespace in {
        "MYORG-ACCT": "snowflake://myorg-acct",
        "xy12345": "snowflake://xy12345.us-west-1.aws",
        "xy12345.eu-central-1": "snowflake://xy12345.eu-central-1.aws",
    }.items():
        assert account_namespace(account) == namespace


def test_a_default_pipe_stands_for_its_table_and_another_pipe_for_itself(set_connection):
    set_connection("c", extra={"account": "a"})
    names = {"database": "D", "schema": "S"}
    assert dataset_name(SnowpipeHook("c", table="T", **names)) == "D.S.T"
    assert dataset_name(SnowpipeHook("c", pipe="P", **names)) == "D.S.P"


def test_a_stage_is_named_by_its_account_and_its_full_name(set_connection):
    set_connection("c", extra={"account": "MYORG-ACCT"})
    hook = SnowpipeHook("c", table="T", database="D", schema="S")

    named = {"@IN/day": "D.S.IN/day", "@%T": "D.S.%T", '@X."in"/a': "D.X.in/a", "@A.B.C": "A.B.C"}
    for stage, name in named.items():
        assert stage_of(hook, stage) == ("snowflake://myorg-acct", name)


def test_without_the_provider_a_task_that_loaded_has_no_lineage_and_no_error():
    lineage = TaskLineage(SnowpipeHook("no_such_connection", table="T"), sql="SELECT 1")
    operator = SnowpipeAppendRowsOperator(task_id="t", table="T", rows=[])
    operator.task_lineage = lineage
    assert "airflow.providers.openlineage" not in sys.modules
    assert operator_lineage(lineage) is None
    assert operator.get_openlineage_facets_on_complete(None) is None
    assert operator.get_openlineage_facets_on_failure(None) is None
