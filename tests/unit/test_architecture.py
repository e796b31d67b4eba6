"""Rooms that must be usable alone are: they import where the others' libraries are not installed."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

PACKAGE = "airflow_provider_snowpipe"
ABSENT = {
    "streaming": ["airflow", "pyspark", "duckdb", "snowflake", f"{PACKAGE}.spark", f"{PACKAGE}.local"],
    "bulk": ["airflow", "pyspark", "duckdb", "snowflake", f"{PACKAGE}.spark", f"{PACKAGE}.local"],
    "routing": ["airflow", "pyspark", "duckdb", "snowflake", f"{PACKAGE}.bulk", f"{PACKAGE}.spark"],
    "spark": ["airflow", "duckdb", "snowflake", f"{PACKAGE}.local", f"{PACKAGE}.hooks"],
    "local": ["airflow", "pyspark", f"{PACKAGE}.spark", f"{PACKAGE}.hooks"],
}
IMPORT_WITHOUT = """
import importlib, sys
absent, wanted = (words.split(",") for words in sys.argv[1:])
class Absent:
    def find_spec(self, name, path=None, target=None):
        if any(name == word or name.startswith(word + ".") for word in absent):
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)
sys.meta_path.insert(0, Absent())
for name in wanted:
    importlib.import_module(name)
"""


def _modules(room: str) -> list[str]:
    spec = find_spec(f"{PACKAGE}.{room}")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    found = pkgutil.walk_packages(spec.submodule_search_locations, f"{PACKAGE}.{room}.")
    return [module.name for module in found if not module.name.endswith("__main__")]


def _import(modules: list[str], absent: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", IMPORT_WITHOUT, ",".join(absent), ",".join(modules)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("room", list(ABSENT))
def test_every_module_of_a_room_imports_without_the_other_rooms(room):
    modules = _modules(room)
    assert modules
    done = _import(modules, ABSENT[room])
    assert done.returncode == 0, done.stderr


def test_an_import_of_something_absent_is_noticed():
    done = _import([f"{PACKAGE}.hooks.snowpipe"], ["airflow"])
    assert done.returncode == 1
    assert "airflow is not installed here" in done.stderr or "airflow." in done.stderr


def test_provider_metadata_imports_without_anything_installed():
    done = _import([f"{PACKAGE}.get_provider_info"], ["airflow", "pyarrow", "requests", "numpy"])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("former", "name"),
    [
        ("spark.plan", "JobPlan"),
        ("spark.plan_order", "refuse_unordered_rows"),
        ("spark.source_secrets", "SourceSecrets"),
    ],
)
def test_an_address_that_the_docs_once_gave_still_works_and_warns(former, name):
    sys.modules.pop(f"{PACKAGE}.{former}", None)

    with pytest.warns(DeprecationWarning, match=f"{former} is deprecated"):
        module = importlib.import_module(f"{PACKAGE}.{former}")

    assert getattr(module, name).__module__ != module.__name__
