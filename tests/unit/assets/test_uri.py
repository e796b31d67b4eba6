"""Asset URIs: one form for one table, exact names, clear errors."""

from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.airflow_connections  # noqa: F401  gives Airflow a home before it is imported
from airflow_provider_snowpipe.assets.uri import TableAddress, dataset_identity, sanitize_uri, snowpipe_asset
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.airflow_version import AIRFLOW
from tests.refusals import refused

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40)
ADDRESS = {"account": "Org-Acct", "database": "DB", "schema": "Public", "table": "Orders"}


@settings(max_examples=30)
@given(database=NAMES, schema=NAMES, table=NAMES, channel=st.none() | NAMES.map(lambda name: f"c{name}"))
def test_any_name_survives_the_uri(database, schema, table, channel):
    address = TableAddress("org-acct", database, schema, table, channel)

    assert TableAddress.parse(str(address)) == address
    assert sanitize_uri(urlsplit(str(address))).geturl() == str(address)


def test_case_counts_in_names_and_not_in_the_account():
    assert str(TableAddress(**ADDRESS)) == "snowpipe://org-acct/DB/Public/Orders"
    assert TableAddress.parse("SNOWPIPE://ORG-ACCT/DB/Public/Orders/") == TableAddress(**ADDRESS)


def test_another_form_is_refused_with_the_right_one_and_without_a_password():
    for uri, text in {
        "snowpipe://a/DB/S": "has 2 names after the account",
        "snowpipe://a/DB/S/T/c/x": "has 5 names after the account",
        "snowpipe://a/DB//T": "has 2 names after the account",
        "snowpipe:///DB/S/T": "account ''",
        "snowpipe://a/DB/S/T?x=1": "has a query",
        "snowpipe://a/DB/S/T#x": "has a fragment",
        "snowpipe://a:443/DB/S/T": "names a user or a port",
        "snowpipe://a/DB/S/T/ELASTIC": "reserved for the elastic channel",
        "snowflake://a/DB/S/T": "has another scheme",
        "snowpipe://me:hunter2@a/DB/S/T": "names a user",
    }.items():
        (error,) = refused(ConfigurationError, TableAddress.parse, [uri], text)
        assert "hunter2" not in str(error)


class TestAsset:
    @pytest.mark.skipif(AIRFLOW < (3, 0), reason="a dataset of Airflow 2 has no name, and warns only")
    def test_has_the_uri_in_its_one_form(self):
        asset = snowpipe_asset(**ADDRESS, channel="o_7/b", name="orders", extra={"team": "x"})

        assert asset.uri == "snowpipe://org-acct/DB/Public/Orders/o_7%2Fb"
        assert (asset.name, asset.extra) == ("orders", {"team": "x"})

    @pytest.mark.skipif(AIRFLOW < (3, 0), reason="a dataset of Airflow 2 has no name, and warns only")
    def test_is_the_same_however_an_author_writes_the_uri(self):
        from airflow.providers.common.compat.sdk import Asset

        for uri in ("snowpipe://ORG-Acct/DB/Public/Orders/", "snowpipe://org-acct/DB/P%75blic/Orders"):
            assert Asset(name="orders", uri=uri) == snowpipe_asset(**ADDRESS, name="orders")

    @pytest.mark.skipif(AIRFLOW < (3, 0), reason="a dataset of Airflow 2 has no name, and warns only")
    def test_with_a_wrong_uri_is_refused_where_the_dag_is_read(self):
        from airflow.providers.common.compat.sdk import Asset

        with pytest.raises(ValueError, match="after the account"):
            Asset(uri="snowpipe://org-acct/DB")

    @pytest.mark.parametrize(
        ("account", "namespace"),
        [("org-acct", "snowflake://org-acct"), ("xy12345", "snowflake://xy12345.us-west-1.aws")],
    )
    def test_is_for_lineage_the_dataset_that_the_operators_report(self, account, namespace):
        address = TableAddress(**{**ADDRESS, "account": account}, channel="c")

        assert dataset_identity(address) == (namespace, "DB.Public.Orders")
