import json

import pytest
from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_snowpipe.spark.sources.kafka.spec import KafkaSourceSpec
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

SOURCE = {"kind": "kafka", "topics": ["orders"]}


def _connect(monkeypatch, **connection):
    monkeypatch.setenv("AIRFLOW_CONN_EVENTS", json.dumps({"conn_type": "kafka", **connection}))


def _completed(values, conn_id):
    return KafkaSourceSpec.with_connection(values, BaseHook.get_connection(conn_id))


def test_settings_of_the_connection_become_options_and_its_secrets_stay_out(monkeypatch):
    extra = {
        "bootstrap.servers": "k1:9093,k2:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "loader",
        "sasl.password": "hunter2",
        "group.id": "shared",
        "enable.auto.commit": True,
        "auto.offset.reset": "latest",
    }
    _connect(monkeypatch, extra=extra)

    values, secrets = _completed({**SOURCE, "options": {"client.rack": "a"}}, "events")

    spec = source_spec(values)
    assert spec.bootstrap_servers == "k1:9093,k2:9093"
    assert spec.options == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "loader",
        "client.rack": "a",
    }
    assert (spec.group_id, spec.start) == (None, "earliest")
    assert secrets.values == {"sasl.password": "hunter2"}
    assert "hunter2" not in json.dumps(values) + repr(secrets)


def test_host_login_and_password_serve_where_the_extra_has_none(monkeypatch):
    _connect(monkeypatch, host="k1", port=9094, login="loader", password="hunter2")

    values, secrets = _completed(SOURCE, "events")

    assert values["bootstrap_servers"] == "k1:9094"
    assert values["options"] == {"sasl.username": "loader"}
    assert secrets.values == {"sasl.password": "hunter2"}


def test_key_of_the_source_wins_over_the_connection(monkeypatch):
    _connect(monkeypatch, extra={"bootstrap.servers": "k1:9092", "client.id": "a"})
    values, _ = _completed(
        {**SOURCE, "bootstrap_servers": "k9:9092", "options": {"client.id": "b"}}, "events"
    )
    assert (values["bootstrap_servers"], values["options"]) == ("k9:9092", {"client.id": "b"})


def test_callback_in_the_connection_is_refused_by_name(monkeypatch):
    _connect(monkeypatch, extra={"bootstrap.servers": "k1:9092", "oauth_cb": "my.module.token"})
    values, _ = _completed(SOURCE, "events")
    with pytest.raises(ConfigurationError, match="'oauth_cb'"):
        source_spec(values)
