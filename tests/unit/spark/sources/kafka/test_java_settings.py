import pytest

from airflow_provider_snowpipe.spark.sources.kafka.cluster import ClientSettings
from airflow_provider_snowpipe.spark.sources.kafka.spark_reader import java_settings
from airflow_provider_snowpipe.spark.sources.source import SourceSecrets
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


def _settings(options, secrets=None):
    return ClientSettings("k1:9092", None, "read_committed", 5.0, options, SourceSecrets(secrets or {}))


def test_password_becomes_the_java_clients_login():
    found = java_settings(
        _settings(
            {"security.protocol": "SASL_SSL", "sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": 'lo"ader'},
            {"sasl.password": "hun\\ter"},
        )
    )

    assert found == {
        "bootstrap.servers": "k1:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="lo\\"ader" password="hun\\\\ter";',
    }


def test_pem_files_become_stores_of_the_type_pem():
    found = java_settings(_settings({"ssl.ca.location": "/ca.pem"}, {"ssl.key.pem": "KEY"}))

    assert found["ssl.truststore.location"] == "/ca.pem"
    assert (found["ssl.truststore.type"], found["ssl.keystore.type"]) == ("PEM", "PEM")
    assert found["ssl.keystore.key"] == "KEY"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queued.min.messages": 5}, "'queued.min.messages' has no translation for Spark's own"),
        ({"sasl.username": "a", "sasl.mechanism": "GSSAPI"}, "'sasl.mechanism' is 'GSSAPI'"),
    ],
    ids=["unknown", "mechanism"],
)
def test_setting_without_a_translation_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        java_settings(_settings(options))
