"""Deferred tasks that a former release left in Airflow's database go on after the upgrade."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from typing import Any

import pytest
from airflow.models.trigger import Trigger
from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException
from airflow.triggers.base import BaseTrigger

import airflow_provider_snowpipe.triggers as room
from tests.airflow_version import AIRFLOW
from tests.stored_triggers import FILES, FORMS, entries, stored


def _trigger_classes() -> list[type[BaseTrigger]]:
    """Every trigger of this package that this Airflow can have."""
    found: list[type[BaseTrigger]] = []
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


def _made_again(entry: Any, kwargs: dict[str, Any]) -> BaseTrigger:
    module, _, name = entry["classpath"].rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except AirflowOptionalProviderFeatureException as error:
        pytest.skip(str(error))
    trigger: BaseTrigger = kind(**kwargs)
    return trigger


@pytest.mark.parametrize("trigger", _trigger_classes(), ids=lambda trigger: trigger.__name__)
def test_every_trigger_has_a_stored_form(trigger):
    path = f"{trigger.__module__}.{trigger.__qualname__}"
    known = {entry["classpath"] for file in FILES for entry in entries(file)}

    assert path in known, "keep its stored form, as tests/stored_triggers.py describes"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_trigger_is_made_again_from_what_is_stored(file, form):
    if form == "serde" and AIRFLOW < (3, 2):
        pytest.skip("Airflow stores this form since 3.2")
    for entry in entries(file):
        trigger = _made_again(entry, Trigger._decrypt_kwargs(json.dumps(entry["stored"][form])))

        classpath, arguments = trigger.serialize()
        assert classpath == entry["classpath"]
        assert {key: arguments[key] for key in entry["kwargs"]} == entry["kwargs"]


@pytest.mark.skipif(AIRFLOW < (3, 2), reason="before Airflow 3.2 there is one form only")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_files_hold_what_airflow_stores(file):
    for entry in entries(file):
        again = json.loads(json.dumps(stored(_made_again(entry, entry["kwargs"]))))

        for form in FORMS:
            kept, now = entry["stored"][form], again["stored"][form]
            inner_kept, inner_now = kept.get("__var", kept), now.get("__var", now)
            assert {key: inner_now[key] for key in inner_kept} == inner_kept
