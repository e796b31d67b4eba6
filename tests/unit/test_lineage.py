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
        "s3a://key:secret@bucket/a/": ("s3://bucket", "a"),
        "gcs://bucket": ("gs://bucket", "/"),
        f"{azure}/a": (azure, "a"),
        "hdfs://name:8020/a/b": ("hdfs://name:8020", "a/b"),
        "https://me:secret@host/a/b.ndjson?X-Amz-Signature=secret": ("https://host", "a/b.ndjson"),
    }.items():
        assert store_of(address) == named


def test_account_pipe_and_stage_have_the_names_that_the_snowflake_provider_gives_them(set_connection):
    set_connection("c", extra={"account": "MYORG-ACCT"})
    names = {"database": "D", "schema": "S"}
    hook = SnowpipeHook("c", table="T", **names)
    assert account_namespace("xy12345.eu-central-1") == "snowflake://xy12345.eu-central-1.aws"
    assert [dataset_name(one) for one in (hook, SnowpipeHook("c", pipe="P", **names))] == ["D.S.T", "D.S.P"]
    named = {"@IN/day": "D.S.IN/day", "@%T": "D.S.%T", '@X."in"/a': "D.X.in/a", "@A.B.C": "A.B.C"}
    assert {one: stage_of(hook, one) for one in named} == {
        one: ("snowflake://myorg-acct", name) for one, name in named.items()
    }


def test_without_the_provider_a_task_that_loaded_has_no_lineage_and_no_error():
    lineage = TaskLineage(SnowpipeHook("no_such_connection", table="T"), sql="SELECT 1")
    operator = SnowpipeAppendRowsOperator(task_id="t", table="T", rows=[])
    operator.task_lineage = lineage
    assert "airflow.providers.openlineage" not in sys.modules
    assert operator_lineage(lineage) is None
    assert operator.get_openlineage_facets_on_complete(None) is None
    assert operator.get_openlineage_facets_on_failure(None) is None
