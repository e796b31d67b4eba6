"""The plugin that puts the pages of channels into Airflow's API server."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin

from airflow_provider_snowpipe.links.channel_page import PAGES_ARE_SERVED, PAGES_PREFIX


class _PagesOfServer:
    """The list of applications, made when it is asked for, which only the API server does.

    Every process of Airflow loads its plugins; workers and DAG processors have no use for a web framework.
    """

    def __get__(self, plugin: object, kind: type | None = None) -> list[dict[str, Any]]:
        if not PAGES_ARE_SERVED:
            return []
        from airflow_provider_snowpipe.plugins.channel_pages import app

        return [{"name": "snowpipe", "app": app, "url_prefix": PAGES_PREFIX}]


class SnowpipePlugin(AirflowPlugin):
    """The pages of channels; on Airflow 2 there are none."""

    name = "snowpipe"
    fastapi_apps = _PagesOfServer()
