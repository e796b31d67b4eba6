"""The plugin: its pages are there, and cost nothing where no pages are served."""

import subprocess
import sys

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


def test_loading_it_makes_no_application():
    code = (
        "import sys, tests.airflow_connections; from airflow_provider_snowpipe.plugins.snowpipe import "
        "SnowpipePlugin; print([m for m in sys.modules if m.split('.')[0] in ('fastapi', 'jinja2.loaders') "
        "or m.startswith('airflow_provider_snowpipe.plugins.channel')])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert printed.stdout.strip().splitlines()[-1] == "[]"
