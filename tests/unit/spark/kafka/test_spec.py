import json
from dataclasses import asdict

import pytest

from airflow_provider_snowpipe.spark.sources import source_spec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

BASE = {"kind": "kafka", "bootstrap_servers": "a:9092,b:9092", "topics": ["orders"]}


def test_spec_survives_its_way_through_the_plan():
    spec = source_spec(
        {
            **BASE,
            "topics": ["orders", "returns"],
            "metadata": ["topic", "offset"],
            "options": {"security.protocol": "SASL_SSL", "fetch.min.bytes": 1},
            "start": "timestamp",
            "start_timestamp": "2026-01-31T06:00:00+01:00",
        }
    )

    again = source_spec(json.loads(json.dumps(asdict(spec))))

    assert again == spec
    assert spec.metadata == {"topic": "KAFKA_TOPIC", "offset": "KAFKA_OFFSET"}
    assert spec.start_milliseconds == 1769835600000
    assert spec.offset_format == "integer"
    assert spec.address == "kafka://a:9092/orders,returns"


def test_channels_are_named_as_the_kafka_connector_names_them():
    spec = source_spec({**BASE, "topics": ["orders", "returns"]})

    assert spec.channel("loader", spec.default_name, "returns_7") == "loader_returns_7"
    with pytest.raises(ConfigurationError, match=r"named by their topic.*leave source_name out"):
        spec.channel("loader", "mine", "returns_7")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topics": []}, "topics is \\[\\] and topic_pattern is None: give one of the two"),
        ({"topic_pattern": "o.*"}, "give one of the two"),
        ({"topics": [], "topic_pattern": "("}, "no regular expression"),
        ({"topics": ["a", "a"]}, "name each topic once"),
        ({"topics": [1]}, "must be a list of names"),
        ({"bootstrap_servers": ""}, "kafka_conn_id"),
        ({"start": "timestamp"}, "start_timestamp"),
        ({"start_timestamp": "2026-01-31T06:00:00Z"}, "only then"),
        ({"start": "timestamp", "start_timestamp": "2026-01-31T06:00:00"}, "with a zone"),
        ({"start": "timestamp", "start_timestamp": "now"}, "with a zone"),
        ({"start": "latest"}, "needs a group_id"),
        ({"value_format": "text"}, "needs value_column"),
        ({"metadata": ["topics"]}, "metadata names 'topics'"),
        ({"metadata": {"topic": "T", "offset": "t"}}, "its own name"),
        ({"metadata": 5}, "must be a list of fields"),
        ({"timeout_seconds": 0}, "seconds above 0"),
        ({"options": {"sasl.password": "hunter2"}}, "is a secret, and plans hold none"),
        ({"options": {"group.id": "g"}}, "use the key 'group_id'"),
        ({"options": {"oauth_cb": "a.b"}}, "is none that a Kafka source takes"),
        ({"options": {"client.id": None}}, "give a text, a number or a boolean"),
        ({"options": ["x"]}, "must be an object"),
        ({"unknown": 1}, "unknown key 'unknown'"),
    ],
    ids=str,
)
def test_wrong_values_are_refused_with_their_remedy(changes, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        source_spec({**BASE, **changes})
    assert "hunter2" not in str(caught.value)
