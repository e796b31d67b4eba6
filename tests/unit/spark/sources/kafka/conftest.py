"""Records of a topic under test: the rows that become of them."""

import io
import json
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.kafka.records import Records
from airflow_provider_snowpipe.spark.sources.kafka.values import RowWriter
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from tests.schema_registry import RegistryService


def records_of(values, first=10, **columns):
    count = len(values)
    return Records(
        np.arange(first, first + count, dtype=np.int64),
        pa.array(values, pa.large_binary()),
        pa.array(columns.get("timestamps", [1700000000123] * count), pa.int64()),
        pa.array([False] * count),
        pa.array(columns.get("keys", [b"k"] * count), pa.large_binary()),
        columns.get("headers", [None] * count),
    )


def writer(registry=None, secrets=None, run="", **spec):
    """What writes the rows of partition 3 of the topic orders.

    :param registry: its URL
    """
    given = {"kind": "kafka", "bootstrap_servers": "a:9092", "topics": ["orders"], **spec}
    if registry is not None:
        given["schema_registry_url"] = registry
    return RowWriter(source_spec(given), "orders", 3, SourceSecrets(secrets or {}), run)


def part_of(values, registry=None, secrets=None, **spec):
    """The part of records with these values, from offset 10 on."""
    return writer(registry, secrets, **spec).part(records_of(values))


def rows_of_part(part):
    body = bytes(part.body)
    assert body.endswith(b"\n") == bool(part.rows)
    lines = body.split(b"\n")[:-1]
    assert len(lines) == part.rows
    return [json.loads(line, parse_float=Decimal) for line in lines]


def undecoded(part):
    return [(int(str(one.position)), one.payload) for one in part.undecoded]


def head(number):
    """The head of a value with a schema of the registry."""
    return b"\0" + struct.pack(">I", number)


def avro_value(number, schema, row):
    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return head(number) + out.getvalue()


@pytest.fixture(scope="module")
def registry():
    with RegistryService() as service:
        yield service


@pytest.fixture(scope="module")
def cluster():
    from tests.kafka_topics import MockCluster

    return MockCluster()
