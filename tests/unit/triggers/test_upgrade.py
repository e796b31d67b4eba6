"""Deferred tasks that a former release left in Airflow's database go on after the upgrade."""

import importlib
import inspect
import json
import pkgutil

import pytest
from airflow.models.trigger import Trigger
from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException
from airflow.triggers.base import BaseTrigger

import airflow_provider_snowpipe.triggers as room
from tests.airflow_version import AIRFLOW
from tests.stored_triggers import FILES, FORMS, entries


def _trigger_classes():
    """Every trigger of this package that this Airflow can have."""
    found = []
    for info in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
        try:
            module = importlib.import_module(info.name)
        except AirflowOptionalProviderFeatureException:
            continue
        found += [
            value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, BaseTrigger)
            and value.__module__ == info.name
            and not inspect.isabstract(value)
            and not value.__name__.startswith("_")
        ]
    return found


def _made_again(entry, kwargs):
    module, _, name = entry["classpath"].rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except AirflowOptionalProviderFeatureException as error:
        pytest.skip(str(error))
    trigger = kind(**kwargs)
    return trigger


def test_every_trigger_has_a_stored_form():
    known = {entry["classpath"] for file in FILES for entry in entries(file)}
    paths = {f"{trigger.__module__}.{trigger.__qualname__}" for trigger in _trigger_classes()}

    assert paths - known == set(), "keep its stored form, as tests/stored_triggers.py describes"


@pytest.mark.parametrize("form", FORMS)
def test_a_trigger_is_made_again_from_what_is_stored(form):
    if form == "serde" and AIRFLOW < (3, 2):
        pytest.skip("Airflow stores this form since 3.2")
    for entry in (entry for file in FILES for entry in entries(file)):
        trigger = _made_again(entry, Trigger._decrypt_kwargs(json.dumps(entry["stored"][form])))

        classpath, arguments = trigger.serialize()
        assert classpath == entry["classpath"]
        assert {key: arguments[key] for key in entry["kwargs"]} == entry["kwargs"]
