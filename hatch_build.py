"""Build hook: the example DAGs are part of the wheel, under the package."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ExampleDagsHook(BuildHookInterface[Any]):
    """Adds ``dags/`` to a wheel as ``airflow_provider_snowpipe.example_dags``.

    An editable install stays without them: it would get a folder of the package's name beside the package.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Define what else a build holds; hatchling calls this ("Build hook plugins").

        :param version: ``standard`` or ``editable``
        :param build_data: what the builder receives
        """
        if version == "standard":
            build_data["force_include"]["dags"] = "airflow_provider_snowpipe/example_dags"
