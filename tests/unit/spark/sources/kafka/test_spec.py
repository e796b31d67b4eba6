import json
from dataclasses import asdict

import pytest

from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


def kafka(**values):
    base = {"kind": "kafka", "bootstrap_servers": "a:9092,b:9092", "topics": ["orders"]}
    return source_spec({**base, **values})


def test_spec_survives_its_way_through_the_plan():
    spec = kafka(
        topics=["orders", "returns"],
        metadata=["topic", "offset"],
        options={"security.protocol": "SASL_SSL", "fetch.min.bytes": 1},
        start="timestamp",
        start_timestamp="2026-01-31T06:00:00+01:00",
    )

    assert spec.metadata == {"KAFKA_TOPIC": "topic", "KAFKA_OFFSET": "offset"}
    assert spec.start_milliseconds == 1769835600000
    assert (spec.offset_format, spec.address) == ("integer", "kafka://a:9092/orders,returns")
    taken = kafka(connector_name="my-shop")
    own = kafka(connector_name="my-shop", group_id="mine")
    assert (taken.group_id, own.group_id) == ("connect-my-shop", "mine")
    for one in (spec, taken, own):
        assert source_spec(json.loads(json.dumps(asdict(one)))) == one


AT = {"start": "timestamp"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topics": []}, "topics is \\[\\] and topic_pattern is None: give one of the two"),
        ({"topic_pattern": "o.*"}, "give one of the two"),
        ({"topics": [], "topic_pattern": "("}, "no regular expression"),
        ({"topics": ["a", "a"]}, "name each topic once"),
        ({"topics": [1]}, "must be a list of names"),
        ({"bootstrap_servers": ""}, "conn_id"),
        (AT, "start_timestamp"),
        ({"start_timestamp": "2026-01-31T06:00:00Z"}, "only then"),
        ({**AT, "start_timestamp": "2026-01-31T06:00:00"}, "with a zone"),
        ({**AT, "start_timestamp": "now"}, "with a zone"),
        ({"start": "latest"}, "needs a group_id"),
        ({"value_format": "text"}, "needs value_column"),
        ({"value_format": "text", "value_column": "T", "connect_envelope": True}, "envelope is JSON's"),
        ({"metadata": ["topics"]}, "metadata names 'topics'"),
        ({"metadata": {"T": "offset", "t": "offset"}}, "its own name"),
        ({"metadata": 5}, "must be a list of fields"),
        ({"timeout_seconds": 0}, "seconds above 0"),
        ({"options": {"sasl.password": "hunter2"}}, "is a secret, and plans hold none"),
        ({"options": {"group.id": "g"}}, "use the key 'group_id'"),
        ({"options": {"oauth_cb": "a.b"}}, "is none that a Kafka source takes"),
        ({"options": {"client.id": None}}, "give a text, a number or a boolean"),
        ({"options": ["x"]}, "is no object"),
        ({"unknown": 1}, "unknown key 'unknown'"),
        *(({"connector_name": name}, r"connector_name|255") for name in ("", ".*", "x-" * 150)),
    ],
    ids=str,
)
def test_wrong_values_are_refused_with_their_remedy(changes, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        kafka(**changes)
    assert "hunter2" not in str(caught.value)


# Printed by Utils.deriveTableName of the Kafka connector 4.1.0 itself, run by Java.
CONNECTORS = {
    "SHOP": "SHOP",
    "_x$1": "_X$1",
    "a": "A_97",
    "-": "___45",
    "my-shop": "MY_SHOP_1462868599",
    "9lives": "_9LIVES_1734846574",
    "shop\n": "SHOP__109413332",
    "größe": "GR__E_98762257",
    "😀-shop": "____SHOP_1285237472",
    "\u0131-name": "___NAME_186888615",
    "a..*b": "A_B_90997529",
    "-polygenelubricants": "__POLYGENELUBRICANTS_1494012179",
    "shop-slmpnqv": "SHOP_SLMPNQV_-2147483648",
    "x" * 200: "X" * 200,
}


class TestChannels:
    def test_are_named_as_the_kafka_connector_names_them(self):
        spec = kafka(topics=["orders", "returns"])
        assert spec.channel("loader", spec.default_name, "returns_7") == "loader_returns_7"
        with pytest.raises(ConfigurationError, match=r"named by their topic.*leave source_name out"):
            spec.channel("loader", "mine", "returns_7")

        for name, prefix in CONNECTORS.items():
            spec = kafka(connector_name=name)
            assert spec.channel_prefix == prefix
            assert spec.channel(prefix, spec.default_name, "orders_7") == f"{prefix}_orders_7"
        with pytest.raises(ConfigurationError, match=r"'shop'.*SHOP"):
            kafka(connector_name="shop").channel("shop", spec.default_name, "orders_7")

    def test_have_other_spellings_of_their_prefix_alone(self):
        spec = kafka()
        assert set(spec.other_spellings("Shop", "Orders_0")) == {"SHOP_Orders_0", "shop_Orders_0"}
        assert "MY_SHOP_1462868599_orders_0" in spec.other_spellings("my-shop", "orders_0")

        taken = kafka(connector_name="My-Shop")
        others = taken.other_spellings(taken.channel_prefix, "orders_0")
        assert {"My-Shop_orders_0", "my-shop_orders_0"} <= set(others)
        assert taken.channel(taken.channel_prefix, taken.default_name, "orders_0") not in others
