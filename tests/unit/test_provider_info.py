"""The provider's metadata: a mistake in it stops every ``airflow`` command."""

import importlib
import importlib.metadata
import importlib.util
import json
import pkgutil
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import tests.airflow_connections  # noqa: F401  gives Airflow a home before it is imported
from airflow_provider_snowpipe.get_provider_info import get_provider_info
from tests.airflow_version import AIRFLOW

SCHEMAS = ("provider_info.schema.json", "provider.yaml.schema.json")
NEWER_KEYS = (set() if AIRFLOW >= (3, 2) else {"cli", "lifecycle"}) | (
    set() if AIRFLOW >= (3, 0) else {"asset-uris", "queues"}
)
"""What this Airflow does not know yet and skips; the stricter of the schemas does not allow it."""


AIRFLOW_DIRECTORY = Path(str(importlib.util.find_spec("airflow").origin)).parent  # type: ignore[union-attr]


@pytest.mark.parametrize("name", SCHEMAS)
def test_metadata_is_valid_by_airflows_own_schema(name):
    schema = json.loads((AIRFLOW_DIRECTORY / name).read_text())
    info = get_provider_info()
    if schema.get("additionalProperties") is False:
        assert set(info) - set(schema["properties"]) == NEWER_KEYS
        info = {key: value for key, value in info.items() if key not in NEWER_KEYS}
    if "dependencies" in schema.get("required", ()):  # Airflow 2 kept the distribution's requirements here
        info["dependencies"] = importlib.metadata.requires(info["package-name"]) or []
    jsonschema.validate(info, schema)


def test_every_operator_sensor_and_trigger_is_in_a_listed_module():
    from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

    info = get_provider_info()
    for kind in ("hooks", "operators", "sensors", "triggers"):
        listed = {module for entry in info[kind] for module in entry["python-modules"]}
        room = importlib.import_module(f"airflow_provider_snowpipe.{kind}")
        for found in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            try:
                members = vars(importlib.import_module(found.name))
            except AirflowOptionalProviderFeatureException:
                continue
            public = re.compile(r"Snowpipe\w*(Hook|Operator|Sensor|Trigger)")
            own = [name for name, one in members.items() if getattr(one, "__module__", "") == found.name]
            assert found.name in listed or not list(filter(public.fullmatch, own))


def test_every_named_object_of_the_metadata_can_be_imported():
    info = get_provider_info()
    (plugin,) = info["plugins"]
    paths = [
        *info["extra-links"],
        *info["notifications"],
        *info["cli"],
        *(entry["class-name"] for entry in info["task-decorators"]),
        plugin["plugin-class"],
        *(entry[key] for entry in info["asset-uris"] for key in entry if key != "schemes"),
    ]
    for path in paths:
        module, _, name = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"]["airflow.plugins"]
    assert declared == {plugin["name"]: ":".join(plugin["plugin-class"].rsplit(".", 1))}


def test_a_message_queue_trigger_is_stored_as_ours():
    path = "airflow_provider_snowpipe.queues.snowpipe.SnowpipeMessageQueueProvider"
    assert get_provider_info()["queues"] == [path]
    pytest.importorskip("airflow.providers.common.messaging", reason="the extra 'messaging'")
    from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger

    given = {"table": "T", "channel": "c", "every_rows": 100}
    path, arguments = MessageQueueTrigger(scheme="snowpipe", **given).serialize()
    assert path == "airflow_provider_snowpipe.triggers.offset.SnowpipeOffsetTrigger"
    assert arguments | given == arguments


def test_airflow_discovers_the_provider_and_its_connection_form():
    manager: Any
    if AIRFLOW >= (3, 2):
        from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

        manager = ProvidersManagerTaskRuntime()
    else:
        from airflow.providers_manager import ProvidersManager

        manager = ProvidersManager()

    assert "airflow-provider-snowpipe" in manager.providers
    hook = manager.hooks["snowpipe"]
    assert hook.hook_class_name == "airflow_provider_snowpipe.hooks.snowpipe.SnowpipeHook"
    assert hook.connection_id_attribute_name == "snowflake_conn_id"
