"""Links of a task: to the page of its channels, to Snowsight, to Spark's application."""

from types import SimpleNamespace

import pytest

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.links import snowpipe as links
from airflow_provider_snowpipe.plugins.snowpipe import SnowpipePlugin
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.airflow_version import AIRFLOW
from tests.stream_worker import TaskInstance

PIPE = "database=D+B&schema=S&pipe=T-STREAMING"


@pytest.fixture
def hook(set_connection):
    return SnowpipeHook(set_connection("team/a", schema="S", extra={"database": "D B"}), table="T")


def test_a_channel_has_its_own_page_and_several_are_seen_in_the_list(hook):
    pages, mine = "/snowpipe/connections/team%2Fa", {"target": "1", "offset_format": "mine.Offset"}
    for given in ({}, mine):  # a caller's own format is left out
        page = links.channel_page(hook, "a/b&c", **given)
        assert page == f"{pages}/channel?{PIPE}&channel=a%2Fb%26c"
    for channels, prefix in (
        (["d_s_EWR", "d_s_JFK"], "&prefix=d_s_"),
        (["d_s_1", "d_s_10"], "&prefix=d_s_1"),
        (["a", "b"], ""),
        ([], ""),
    ):
        assert links.page_of_channels(hook, channels) == f"{pages}/channels?{PIPE}{prefix}"


def test_snowsight_shows_a_table_or_a_pipe_and_nothing_for_a_locator():
    for account, pipe, address in (
        ("MYORG-my_account", "FLIGHTS-STREAMING", "myorg/my_account {} table/FLIGHTS"),
        ("o-a", "p/1", "o/a {} pipe/p%2F1"),
    ):
        expected = address.replace(" {} ", "/#/data/databases/D%20B/schemas/S/")
        name = PipeName("D B", "S", pipe)
        assert links.snowsight_address(account, name) == f"https://app.snowflake.com/{expected}"
        assert links.snowsight_address("xy12345", name) is None


@pytest.mark.parametrize(
    ("host", "shown"), [(None, True), ("myorg-acc.snowflakecomputing.com", True), ("127.0.0.1", False)]
)
def test_only_snowflakes_own_hosts_have_an_address_in_snowsight(set_connection, host, shown):
    extra = {"account": "myorg-acc", "database": "DB", **({"host": host} if host else {})}
    conn_id = set_connection("c", login="U", schema="S", extra=extra)
    assert (links.snowsight_url(SnowpipeHook(conn_id, table="T")) is not None) is shown


def test_addresses_are_left_for_the_links_and_for_airflows_page_and_taken_back():
    instance = TaskInstance(task=SimpleNamespace(operator_extra_links=(links.ChannelPageLink(),)))
    if links.PAGES_ARE_SERVED:
        links.leave_channel_page(instance, "/snowpipe/x")
        assert instance.xcoms == {
            links.CHANNEL_PAGE_KEY: "/snowpipe/x",
            "_link_ChannelPageLink": "/snowpipe/x",
        }
        instance.xcoms.clear()
    for left, kept in (("http://h:4040", "http://h:4040"), (None, "")):
        links.SparkUiLink().leave(instance, left)
        assert instance.xcoms[links.SPARK_UI_KEY] == kept
        assert set(instance.xcoms.values()) == {kept}
    assert instance.task.operator_extra_links == (), "Airflow writes no empty one when the task ends"


@pytest.mark.skipif(AIRFLOW < (3, 0), reason="Airflow 2 reads its own table")
@pytest.mark.parametrize(
    ("link", "key"),
    [
        (links.ChannelPageLink, links.CHANNEL_PAGE_KEY),
        (links.SnowsightLink, links.SNOWSIGHT_KEY),
        (links.SparkUiLink, links.SPARK_UI_KEY),
    ],
)
def test_a_link_is_what_the_task_left(monkeypatch, link, key):
    values = {("ti", key): "/x", ("empty", key): ""}
    monkeypatch.setattr(
        "airflow_provider_snowpipe.links.snowpipe.XCom.get_value",
        lambda *, ti_key, key: values.get((ti_key, key)),
    )
    assert [link().get_link(None, ti_key=one) for one in ("ti", "empty", "other")] == ["/x", "", ""]


@pytest.mark.skipif(AIRFLOW >= (3, 0), reason="Airflow 3 shows an XCom of its own")
@pytest.mark.parametrize(
    ("left", "shown"),
    [
        (b'"/snowpipe/x"', "/snowpipe/x"),
        (b'{"__classname__": "builtins.tuple", "__version__": 1, "__data__": ["/x"]}', ""),
        (b'"javascript:alert(1)"', ""),
        (b"[" * 100_000, ""),
        (b"\xff\x00", ""),
        (None, ""),
    ],
    ids=["an address", "an object", "a script", "nested", "no text", "nothing"],
)
def test_on_airflow_2_no_object_is_made_of_what_a_task_left(monkeypatch, left, shown):
    from airflow.models.xcom import BaseXCom
    from airflow.utils import session as sessions
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    engine = create_engine("sqlite://")
    BaseXCom.__table__.create(engine)
    names = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1}
    with engine.begin() as database:
        row = {**names, "dag_run_id": 1, "key": links.CHANNEL_PAGE_KEY, "value": left}
        database.execute(BaseXCom.__table__.insert().values(**row))
    monkeypatch.setattr(sessions, "create_session", lambda: Session(engine))

    assert links.ChannelPageLink().get_link(None, ti_key=SimpleNamespace(**names)) == shown


@pytest.mark.skipif((3, 0) <= AIRFLOW < (3, 1), reason="this Airflow has other pages")
def test_pages_are_below_one_prefix_for_class_and_instance_of_the_plugin():
    for plugin in (SnowpipePlugin, SnowpipePlugin()):
        served = [(app["name"], app["url_prefix"]) for app in plugin.fastapi_apps]
        assert served == ([("snowpipe", "/snowpipe")] if links.PAGES_ARE_SERVED else [])
