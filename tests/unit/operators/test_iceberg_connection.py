import json

import pytest
from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.spark.sources.iceberg.spec import IcebergSourceSpec
from airflow_provider_snowpipe.spark.sources.registry import source_spec

SOURCE = {"kind": "iceberg", "table": "sales.orders"}


def _connect(monkeypatch, **connection):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "iceberg", **connection}))


def _completed(values, conn_id):
    return IcebergSourceSpec.with_connection(values, BaseHook.get_connection(conn_id))


def test_properties_of_the_connection_become_options_and_its_secrets_stay_out(monkeypatch):
    extra = {"warehouse": "prod", "s3.region": "eu", "s3.secret-access-key": "hush", "of.ours": True}
    _connect(monkeypatch, host="https://catalog/api", login="me", password="hush", extra=extra)

    values, secrets = _completed({**SOURCE, "options": {"s3.region": "us"}}, "lake")

    assert source_spec(values).options == {
        "uri": "https://catalog/api",
        "warehouse": "prod",
        "s3.region": "us",
    }
    assert secrets.values == {
        "credential": "me:hush",
        "s3.secret-access-key": "hush",
        "of.ours": "true",  # a property that nobody knows here may be a secret
    }
    assert "hush" not in json.dumps(values) + repr(secrets)


@pytest.mark.parametrize(
    ("connection", "options", "secrets"),
    [
        ({"host": "lake", "port": 8181, "schema": "http"}, {"uri": "http://lake:8181"}, {}),
        ({"host": "lake", "password": "hush"}, {"uri": "https://lake"}, {"token": "hush"}),
        ({"extra": {"uri": "postgresql://a:hush@b/c"}}, {}, {"uri": "postgresql://a:hush@b/c"}),
    ],
    ids=["parts", "token", "address-with-password"],
)
def test_address_and_password_are_taken_apart(monkeypatch, connection, options, secrets):
    _connect(monkeypatch, **connection)

    values, found = _completed(SOURCE, "lake")

    assert (values["options"], found.values) == (options, secrets)


def test_stream_operator_takes_the_catalog_from_its_connection(monkeypatch):
    _connect(monkeypatch, host="https://catalog/api", login="me", password="hush")
    load = SnowpipeStreamOperator(task_id="load", source={**SOURCE, "conn_id": "lake"}, table="ORDERS")

    spec, secrets = load._source()

    assert (spec.kind, spec.options) == ("iceberg", {"uri": "https://catalog/api"})
    assert secrets.values == {"credential": "me:hush"}
