"""The specification of tables: checked when the operator is made, before anything starts."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"kind": "table", "offset_column": "ID"}, "no table, query or path"),
        ({"kind": "table", "offset_column": "ID", "table": "t", "path": "/p"}, "table and path"),
        ({"kind": "table", "table": "t"}, "offset_column is empty"),
        ({"kind": "table", "offset_column": "", "table": "t"}, "offset_column is empty"),
        ({"kind": "table", "offset_column": "ID", "query": "SELECT 1"}, "query and no name"),
        ({"kind": "table", "offset_column": "ID", "table": "t", "ranges": [5, 5]}, "growing numbers"),
        ({"kind": "table", "offset_column": "ID", "table": "t", "ranges": "12"}, "a list of whole numbers"),
        (
            {"kind": "table", "offset_column": "ID", "table": "t", "ranges": [5], "partition_by": "K"},
            "drop them, or drop partition_by",
        ),
        (
            {"kind": "table", "offset_column": "ID", "path": "/p", "options": {"dbPassword": "hush"}},
            "'dbPassword' looks like a secret",
        ),
        ({"kind": "table", "offset_column": "ID", "path": "/p", "options": {"a": 1}}, "'a' is no text"),
        ({"kind": "table", "offset_column": "ID", "table": "t", "offset_type": "float"}, "offset_type"),
        ({"kind": "table", "offset_column": "ID", "table": "t", "binary": "OCTAL"}, "binary"),
        ({"kind": "table", "offset_column": "ID", "table": "t", "metadata": {"V": "version"}}, "run_id"),
        (
            {"kind": "table", "offset_column": "ID", "path": "s3a://key:hush@b/t"},
            "path 's3a://…@b/t' holds a password",
        ),
        ({"kind": "delta", "order_by": "ID", "path": "s3a://key:hush@b/t"}, "'s3a://…@b/t' holds a password"),
        ({"kind": "iceberg", "path": "https://key:hush@b/t"}, "path 'https://…@b/t' holds a password"),
        ({"kind": "delta", "order_by": "ID"}, "exactly one of the two"),
        ({"kind": "delta", "order_by": "ID", "path": "/p", "starting_version": -1}, "starting_version is -1"),
        ({"kind": "delta", "order_by": "", "path": "/p"}, "order_by is empty"),
    ],
)
def test_wrong_spec_is_refused_by_key_and_remedy(values, text):
    with pytest.raises(ConfigurationError, match=text) as refused:
        source_spec(values)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("values", "offset_format", "name", "address"),
    [
        (
            {"kind": "table", "offset_column": "ID", "table": "lake.db.`t`"},
            *("integer", "t", "lake.db.`t`"),
        ),
        (
            {"kind": "table", "offset_column": "AT", "offset_type": "text", "path": "/data/events/"},
            *("lexicographic", "events", "/data/events/"),
        ),
        (
            {"kind": "table", "offset_column": "ID", "query": "SELECT 1 AS ID", "name": "ones"},
            *("integer", "ones", "query ones"),
        ),
        (
            {"kind": "table", "offset_column": "ID", "table": "t", "ranges": [10, 20]},
            *("integer", "t", "t"),
        ),
        ({"kind": "delta", "order_by": "ID", "path": "/lake/t"}, "batch:row", "t", "/lake/t"),
    ],
)
def test_spec_has_format_name_and_address_and_survives_a_plan(values, offset_format, name, address):
    spec = source_spec(values)

    assert (spec.offset_format, spec.default_name, spec.address) == (offset_format, name, address)
    assert source_spec(json.loads(json.dumps(asdict(spec)))) == spec
