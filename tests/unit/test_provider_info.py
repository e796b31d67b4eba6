"""The provider's metadata: a mistake in it stops every ``airflow`` command."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import pkgutil
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


def _airflow_directory():
    found = importlib.util.find_spec("airflow")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


@pytest.mark.parametrize("name", SCHEMAS)
def test_metadata_is_valid_by_airflows_own_schema(name):
    schema = json.loads((_airflow_directory() / name).read_text())
    info = get_provider_info()
    if schema.get("additionalProperties") is False:
        assert set(info) - set(schema["properties"]) == NEWER_KEYS
        info = {key: value for key, value in info.items() if key not in NEWER_KEYS}
    if "dependencies" in schema.get("required", ()):  # Airflow 2 kept the distribution's requirements here
        info["dependencies"] = importlib.metadata.requires(info["package-name"]) or []

    jsonschema.validate(info, schema)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schema_would_notice_a_broken_connection_type(name):
    schema = json.loads((_airflow_directory() / name).read_text())
    info = get_provider_info()
    del info["connection-types"][0]["hook-class-name"]

    with pytest.raises(jsonschema.ValidationError, match="hook-class-name"):
        jsonschema.validate(info, schema)


def test_every_operator_sensor_and_trigger_is_in_a_listed_module():
    from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

    info = get_provider_info()
    for kind in ("hooks", "operators", "sensors", "triggers"):
        listed = {module for entry in info[kind] for module in entry["python-modules"]}
        room = importlib.import_module(f"airflow_provider_snowpipe.{kind}")
        for found in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            try:
                module = importlib.import_module(found.name)
            except AirflowOptionalProviderFeatureException:
                continue
            public = [
                name
                for name, value in vars(module).items()
                if name.startswith("Snowpipe") and isinstance(value, type) and value.__module__ == found.name
            ]
            if [name for name in public if name.endswith(("Hook", "Operator", "Sensor", "Trigger"))]:
                assert found.name in listed


def test_every_named_object_of_the_metadata_can_be_imported():
    info = get_provider_info()
    paths = [
        *info["extra-links"],
        *info["notifications"],
        *info["cli"],
        *(entry["class-name"] for entry in info["task-decorators"]),
        *(entry["plugin-class"] for entry in info["plugins"]),
        *(entry[key] for entry in info["asset-uris"] for key in entry if key != "schemes"),
    ]

    assert len(paths) == 11
    for path in paths:
        module, _, name = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_the_plugin_has_an_entry_point_of_its_own():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (plugin,) = get_provider_info()["plugins"]

    declared = project["entry-points"]["airflow.plugins"]

    assert declared == {plugin["name"]: ":".join(plugin["plugin-class"].rsplit(".", 1))}


def test_the_hook_is_that_of_the_connection_type():
    (connection_type,) = get_provider_info()["connection-types"]
    module, _, name = connection_type["hook-class-name"].rpartition(".")
    hook = getattr(importlib.import_module(module), name)

    assert hook.conn_type == connection_type["connection-type"] == "snowpipe"
    assert hook.hook_name == connection_type["hook-name"]
    assert hook.conn_name_attr == "snowflake_conn_id"


def test_every_form_field_is_one_that_the_connection_reads():
    (connection_type,) = get_provider_info()["connection-types"]
    reader = Path(
        importlib.import_module("airflow_provider_snowpipe.hooks.connection").__file__ or ""
    ).read_text()

    for name in connection_type["conn-fields"]:
        assert f'self.text("{name}")' in reader


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
    assert hook is not None
    assert hook.hook_class_name == "airflow_provider_snowpipe.hooks.snowpipe.SnowpipeHook"
    assert hook.connection_id_attribute_name == "snowflake_conn_id"
