"""The link from a task to the page of its channels."""

from types import SimpleNamespace

import pytest

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.links.snowpipe import (
    CHANNEL_PAGE_KEY,
    CHANNEL_PAGE_LINKS,
    PAGES_ARE_SERVED,
    ChannelPageLink,
    channel_page,
    leave_channel_page,
    page_of_channels,
    pipe_page,
)
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.operators.channels import SnowpipeOpenChannelOperator
from airflow_provider_snowpipe.operators.offsets import SnowpipeBackupOffsetsOperator
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from tests.airflow_version import AIRFLOW
from tests.local_connection import TaskInstance

served = pytest.mark.skipif(AIRFLOW < (3, 1), reason="Airflow 2 has no page to link to")
PIPE = "database=D+B&schema=S&pipe=T-STREAMING"


@pytest.fixture
def hook(set_connection):
    return SnowpipeHook(set_connection("c", schema="S", extra={"database": "D B"}), table="T")


def test_a_channel_has_its_own_page(hook):
    assert channel_page(hook, "a/b&c") == f"/snowpipe/connections/c/channel?{PIPE}&channel=a%2Fb%26c"


def test_a_target_of_a_callers_own_format_stays_out(hook):
    assert channel_page(hook, "a", target="1", offset_format="mine.Offset") == channel_page(hook, "a")


@pytest.mark.parametrize(
    ("channels", "prefix"),
    [
        (["d_s_EWR", "d_s_JFK"], "&prefix=d_s_"),
        (["d_s_1", "d_s_10"], "&prefix=d_s_1"),
        (["a", "b"], ""),
        ([], ""),
    ],
    ids=["same start", "one the start of the other", "nothing in common", "none"],
)
def test_several_channels_are_seen_in_the_list(hook, channels, prefix):
    assert page_of_channels(hook, channels) == f"/snowpipe/connections/c/channels?{PIPE}{prefix}"


@pytest.mark.parametrize(
    ("base_url", "start"),
    [("https://h.example/air/flow/", "/air/flow/snowpipe/"), ("https://h.example", "/snowpipe/")],
)
def test_airflow_may_live_below_a_path(hook, monkeypatch, base_url, start):
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)

    assert pipe_page(hook).startswith(start)


def test_a_connections_name_may_have_a_slash(set_connection):
    hook = SnowpipeHook("team/a", pipe="P", database="D", schema="S")
    set_connection("team/a")

    assert pipe_page(hook).startswith("/snowpipe/connections/team%2Fa/channels?")


@served
def test_the_address_is_left_for_the_link_and_for_airflows_page():
    instance = TaskInstance()

    leave_channel_page(instance, "/snowpipe/x")

    assert instance.xcoms == {CHANNEL_PAGE_KEY: "/snowpipe/x", "_link_ChannelPageLink": "/snowpipe/x"}


@pytest.mark.skipif(AIRFLOW < (3, 0), reason="Airflow 2 reads its own table")
@pytest.mark.parametrize(("left", "shown"), [("/snowpipe/x", "/snowpipe/x"), (None, "")])
def test_the_link_is_what_the_task_left(monkeypatch, left, shown):
    monkeypatch.setattr(
        "airflow_provider_snowpipe.links.snowpipe.XCom.get_value",
        lambda *, ti_key, key: left if (ti_key, key) == ("ti", CHANNEL_PAGE_KEY) else None,
    )

    assert ChannelPageLink().get_link(None, ti_key="ti") == shown


@pytest.mark.parametrize(
    "operator",
    [
        SnowpipeAppendRowsOperator,
        SnowpipeBackupOffsetsOperator,
        SnowpipeCommitSensor,
        SnowpipeOpenChannelOperator,
        SnowpipeStreamOperator,
    ],
)
def test_what_has_channels_has_it_where_there_is_a_page(operator):
    names = [link.name for link in operator.operator_extra_links]

    assert ("Channel page" in names) == (AIRFLOW >= (3, 1)) == PAGES_ARE_SERVED == bool(CHANNEL_PAGE_LINKS)


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
        row = {**names, "dag_run_id": 1, "key": CHANNEL_PAGE_KEY, "value": left}
        database.execute(BaseXCom.__table__.insert().values(**row))
    monkeypatch.setattr(sessions, "create_session", lambda: Session(engine))

    assert ChannelPageLink().get_link(None, ti_key=SimpleNamespace(**names)) == shown
