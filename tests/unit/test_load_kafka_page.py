"""The snippets of the how-to page about Kafka make operators whose sources are understood."""

import json
import re
from pathlib import Path

import pytest

from airflow_provider_snowpipe.spark.kafka.spec import KafkaSourceSpec

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "load-kafka.md").read_text()
(CONNECTION,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippet_describes_a_kafka_source_without_a_secret(monkeypatch, snippet):
    connection = {"conn_type": "kafka", "extra": json.loads(CONNECTION)}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))
    names: dict = {}
    exec(snippet, names)  # noqa: S102  our own page

    spec, secrets = names["load"]._source()

    assert isinstance(spec, KafkaSourceSpec)
    assert not set(secrets.values) & set(spec.options)
    if names["load"].kafka_conn_id is not None:
        assert set(secrets.values) == {"sasl.password", "schema.registry.basic.auth.user.info"}
