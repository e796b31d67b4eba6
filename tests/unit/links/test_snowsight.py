"""Where Snowsight shows what a task loads into."""

import pytest

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.links.snowpipe import (
    SNOWSIGHT_KEY,
    SnowsightLink,
    snowsight_address,
    snowsight_url,
)
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.airflow_version import AIRFLOW


def test_a_default_pipe_is_shown_as_its_table():
    assert (
        snowsight_address("MYORG-my_account", PipeName("DB", "S", "FLIGHTS-STREAMING"))
        == "https://app.snowflake.com/myorg/my_account/#/data/databases/DB/schemas/S/table/FLIGHTS"
    )


def test_another_pipe_is_shown_itself_and_names_are_escaped():
    assert snowsight_address("o-a", PipeName("D B", "S", "p/1")) == (
        "https://app.snowflake.com/o/a/#/data/databases/D%20B/schemas/S/pipe/p%2F1"
    )


def test_an_account_locator_has_no_address():
    assert snowsight_address("xy12345", PipeName("DB", "S", "P")) is None


@pytest.mark.parametrize(
    ("host", "shown"), [(None, True), ("myorg-acc.snowflakecomputing.com", True), ("127.0.0.1", False)]
)
def test_only_snowflakes_own_hosts_have_one(set_connection, host, shown):
    extra = {"account": "myorg-acc", "database": "DB", **({"host": host} if host else {})}
    conn_id = set_connection("c", login="U", schema="S", extra=extra)

    assert (snowsight_url(SnowpipeHook(conn_id, table="T")) is not None) is shown


@pytest.mark.skipif(AIRFLOW < (3, 0), reason="Airflow 2 reads its own table")
def test_the_link_is_what_the_task_left(monkeypatch):
    left = {SNOWSIGHT_KEY: "https://app.snowflake.com/o/a/#/x"}
    monkeypatch.setattr(
        "airflow_provider_snowpipe.links.snowpipe.XCom.get_value",
        lambda *, ti_key, key: left.get(key) if ti_key == "ti" else None,
    )

    assert SnowsightLink().get_link(None, ti_key="ti") == left[SNOWSIGHT_KEY]
    assert SnowsightLink().get_link(None, ti_key="other") == ""
