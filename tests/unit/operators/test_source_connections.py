"""A source's connection: its settings become options of the source, and its secrets stay out of the plan."""

import json

import pytest

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

LAKE = {"kind": "iceberg", "table": "sales.orders", "conn_id": "events"}
TOPIC = {"kind": "kafka", "topics": ["orders"], "conn_id": "events"}


@pytest.fixture
def source(monkeypatch):
    """The source of a load, and its secrets, by what the source gives and its connection."""

    def made(given, **connection):
        kind = {"conn_type": given["kind"], **connection}
        monkeypatch.setenv("AIRFLOW_CONN_EVENTS", json.dumps(kind))
        spec, secrets = SnowpipeStreamOperator(task_id="load", source=given, table="T")._source()
        assert "hush" not in repr(spec) + repr(secrets)
        return spec, secrets.values

    return made


def test_properties_of_a_catalog(source):
    extra = {"warehouse": "prod", "s3.region": "eu", "s3.secret-access-key": "hush", "of.ours": True}
    given = {**LAKE, "options": {"s3.region": "us"}}
    spec, secrets = source(given, host="https://c/api", login="me", password="hush", extra=extra)
    assert spec.options == {"uri": "https://c/api", "warehouse": "prod", "s3.region": "us"}
    # A property that nobody knows here may be a secret.
    assert secrets == {"credential": "me:hush", "s3.secret-access-key": "hush", "of.ours": "true"}


@pytest.mark.parametrize(
    ("connection", "options", "secrets"),
    [
        ({"host": "lake", "port": 8181, "schema": "http"}, {"uri": "http://lake:8181"}, {}),
        ({"host": "lake", "password": "hush"}, {"uri": "https://lake"}, {"token": "hush"}),
        ({"extra": {"uri": "postgresql://a:hush@b/c"}}, {}, {"uri": "postgresql://a:hush@b/c"}),
    ],
)
def test_address_and_password_of_a_catalog_are_taken_apart(source, connection, options, secrets):
    spec, found = source(LAKE, **connection)
    assert (spec.options, found) == (options, secrets)


def test_settings_of_a_broker(source):
    safe = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "loader"}
    left_out = {"group.id": "shared", "enable.auto.commit": True, "auto.offset.reset": "latest"}
    extra = {"bootstrap.servers": "k1:9093,k2:9093", "client.id": "a", "sasl.password": "hush"}
    extra["schema.registry.url"] = "https://key:hush@registry/v1"
    spec, secrets = source({**TOPIC, "options": {"client.id": "b"}}, extra={**extra, **safe, **left_out})
    assert spec.options == {**safe, "client.id": "b"}
    assert (spec.bootstrap_servers, spec.schema_registry_url) == ("k1:9093,k2:9093", "https://registry/v1")
    assert (spec.group_id, spec.start) == (None, "earliest")
    registry = {"schema.registry.basic.auth.user.info": "key:hush"}
    assert secrets == {"sasl.password": "hush", **registry}


def test_host_login_and_password_of_a_broker_serve_where_the_extra_and_the_source_have_none(source):
    connection = {"host": "k1", "port": 9094, "login": "loader", "password": "hush"}
    spec, secrets = source(TOPIC, **connection)
    other, _ = source({**TOPIC, "bootstrap_servers": "k9:9092"}, **connection)
    assert (spec.bootstrap_servers, spec.options) == ("k1:9094", {"sasl.username": "loader"})
    assert (other.bootstrap_servers, secrets) == ("k9:9092", {"sasl.password": "hush"})
    with pytest.raises(ConfigurationError, match="'oauth_cb'"):
        source(TOPIC, **connection, extra={"oauth_cb": "my.module.token"})
