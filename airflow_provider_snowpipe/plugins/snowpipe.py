"""The plugin that puts the pages of pipes into Airflow's API server and their entry into its navigation."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin

from airflow_provider_snowpipe.links.snowpipe import PAGES_ARE_SERVED, PAGES_PREFIX, pages_base


class _PagesOfServer:
    """The list of applications, made when it is asked for, which only the API server does.

    Every process of Airflow loads its plugins; workers and DAG processors have no use for a web framework.
    """

    def __get__(self, plugin: object, kind: type | None = None) -> list[dict[str, Any]]:
        if not PAGES_ARE_SERVED:
            return []
        from airflow_provider_snowpipe.plugins.pages import app

        return [{"name": "snowpipe", "app": app, "url_prefix": PAGES_PREFIX}]


class _Views:
    """Where the pages are in Airflow's navigation, with the path of ``[api] base_url``."""

    def __get__(self, plugin: object, kind: type | None = None) -> list[dict[str, Any]]:
        if not PAGES_ARE_SERVED:
            return []
        of_dag = f"{pages_base()}/dags/{{DAG_ID}}"
        of_run = f"{of_dag}/runs/{{RUN_ID}}"
        addresses = {
            "nav": f"{pages_base()}/overview",
            "task": f"{of_dag}/tasks/{{TASK_ID}}",
            "dag_run": of_run,
            "task_instance": f"{of_run}/tasks/{{TASK_ID}}/{{MAP_INDEX}}",
        }
        return [
            {
                "name": "Snowpipe",
                "href": href,
                "destination": where,
                "url_route": "snowpipe" if where == "nav" else f"snowpipe-{where.replace('_', '-')}",
                **({"category": "browse"} if where == "nav" else {}),
            }
            for where, href in addresses.items()
        ]


class SnowpipePlugin(AirflowPlugin):
    """The pages of pipes; on Airflow 2 there are none."""

    name = "snowpipe"
    fastapi_apps = _PagesOfServer()
    external_views = _Views()
