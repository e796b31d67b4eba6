"""The plugin: its pages are there, and cost nothing where no pages are served."""

import pytest

import tests.airflow_connections  # noqa: F401  gives Airflow a home before it is imported
from airflow_provider_snowpipe.plugins.snowpipe import SnowpipePlugin
from tests.airflow_version import AIRFLOW


@pytest.mark.skipif(AIRFLOW < (3, 1), reason="Airflow 2 has no such pages")
def test_its_pages_are_below_one_prefix_for_class_and_instance():
    for plugin in (SnowpipePlugin, SnowpipePlugin()):
        (pages,) = plugin.fastapi_apps
        assert (pages["name"], pages["url_prefix"]) == ("snowpipe", "/snowpipe")


@pytest.mark.skipif(AIRFLOW >= (3, 0), reason="Airflow 3 has them")
def test_there_are_none_on_airflow_two():
    assert SnowpipePlugin.fastapi_apps == []
