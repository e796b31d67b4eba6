"""The snippets of the how-to page about Kafka make operators whose sources are understood."""

import json
import re
from pathlib import Path

import pytest

from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.sources.kafka.spec import KafkaSourceSpec
from airflow_provider_snowpipe.spark.sources.registry import source_spec

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGE = (HOW_TO / "load-kafka.md").read_text()
(CONNECTION,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(STREAM,) = re.findall(r"```python\n(.*?)```", (HOW_TO / "read-kafka-in-spark.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippet_describes_a_kafka_source_without_a_secret(monkeypatch, number):
    connection = {"conn_type": "kafka", "extra": json.loads(CONNECTION)}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))
    names = {}
    exec("\n".join([SNIPPETS[0], SNIPPETS[number]]), names)  # noqa: S102  our own page; the first imports

    spec, secrets = names["load"]._source()

    assert isinstance(spec, KafkaSourceSpec)
    assert not set(secrets.values) & set(spec.options)
    if "conn_id" in names["load"].source:
        assert set(secrets.values) == {"sasl.password", "schema.registry.basic.auth.user.info"}


def test_stream_on_the_page_goes_on_from_the_channels_of_a_job():
    written = STREAM.split("writeStream")[1]
    sink = WriteOptions.parse(dict(re.findall(r'\.option\("(\w+)", "(.*)"\)', written)))
    source = source_spec({"kind": "kafka", "bootstrap_servers": "k1:9092", "topics": ["orders"]})

    assert sink.channel("orders_3") == source.channel("shop", source.default_name, "orders_3")
    assert (sink.channel_column, sink.offset_column) == ("channel", "offset")
    assert set(sink.omit_columns) == {"channel", "offset"}
    sink.refuse_unknown_spread()
