"""The specification of Iceberg tables, and the library that reads them."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError

import pytest

from airflow_provider_snowpipe.spark.sources.iceberg import reader
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "exactly one of the two"),
        ({"table": "a.b", "path": "/lake/b"}, "exactly one of the two"),
        ({"table": "orders"}, r"namespace and name, for example 'sales\.orders'"),
        ({"table": "a.b", "options": {"s3.secret-access-key": "hush"}}, "looks like a secret"),
        ({"table": "a.b", "starting_snapshot": "1"}, "starting_snapshot"),
        ({"table": "a.b", "order_by": "ID"}, "unknown key 'order_by'"),
    ],
    ids=["neither", "both", "namespace", "secret", "type", "unknown"],
)
def test_wrong_spec_is_refused_by_key_and_remedy(values, message):
    with pytest.raises(ConfigurationError, match=message) as refused:
        source_spec({"kind": "iceberg", **values})
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("values", "name", "address"),
    [
        ({"table": "lake.sales.orders", "catalog": "prod"}, "orders", "prod.lake.sales.orders"),
        ({"path": "s3://lake/sales/orders"}, "orders", "s3://lake/sales/orders"),
        (
            {"path": "/lake/orders/metadata/v7.metadata.json"},
            "orders",
            "/lake/orders/metadata/v7.metadata.json",
        ),
    ],
    ids=["table", "directory", "metadata"],
)
def test_spec_has_format_name_and_address_and_survives_a_plan(values, name, address):
    spec = source_spec({"kind": "iceberg", "starting_snapshot": 2**63 - 1, **values})

    assert (spec.offset_format, spec.default_name, spec.address) == ("batch:row", name, address)
    assert source_spec(json.loads(json.dumps(asdict(spec)))) == spec


@pytest.mark.parametrize("found", ["0.9.1", None])
def test_missing_and_other_pyiceberg_are_refused_with_versions_and_remedy(monkeypatch, found):
    def version(name: str) -> str:
        if found is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(reader, "version", version)
    message = rf"needs pyiceberg 0\.12, and this Python has {found or 'none'}: install .*\[iceberg\]"
    with pytest.raises(ConfigurationError, match=message):
        reader.require_pyiceberg()
