"""The link to the application's page."""

import pytest

from airflow_provider_snowpipe.links.snowpipe import SPARK_UI_KEY, SparkUiLink
from tests.airflow_version import AIRFLOW
from tests.stream_worker import TaskInstance


def test_the_address_is_left_for_the_link_and_for_airflows_page():
    instance = TaskInstance()

    SparkUiLink().leave(instance, "http://127.0.0.1:4040")

    assert instance.xcoms[SPARK_UI_KEY] == "http://127.0.0.1:4040"
    assert instance.xcoms.get("_link_SparkUiLink", "http://127.0.0.1:4040") == "http://127.0.0.1:4040"


def test_an_address_is_taken_back():
    instance = TaskInstance()
    SparkUiLink().leave(instance, "http://127.0.0.1:4040")

    SparkUiLink().leave(instance, None)

    assert set(instance.xcoms.values()) == {""}


@pytest.mark.skipif(AIRFLOW < (3, 0), reason="Airflow 2 reads its own table")
@pytest.mark.parametrize(("left", "shown"), [("http://h:4040", "http://h:4040"), ("", ""), (None, "")])
def test_the_link_is_what_the_task_left(monkeypatch, left, shown):
    monkeypatch.setattr(
        "airflow_provider_snowpipe.links.snowpipe.XCom.get_value",
        lambda *, ti_key, key: left if (ti_key, key) == ("ti", SPARK_UI_KEY) else None,
    )

    assert SparkUiLink().get_link(None, ti_key="ti") == shown
