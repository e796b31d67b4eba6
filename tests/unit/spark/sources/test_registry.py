"""Sources of other packages: the one of the page "Add a source", named by an entry point."""

import sqlite3
import sys
from pathlib import Path

import pytest

from airflow_provider_snowpipe.spark.driver.plan import JobPlan, read_plan, write_plan
from airflow_provider_snowpipe.spark.driver.run import Run
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.fake_snowpipe import PIPE, URL
from tests.memory_source import InProcessSpark

EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"
CHANNEL = "job_orders_all"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution that is installed and has the example's entry point."""
    about = tmp_path / "sqlite_source-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: sqlite-source\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[airflow_provider_snowpipe.sources]\nsqlite = sqlite_source:SqliteSource\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setitem(sys.modules, "sqlite_source", None)
    monkeypatch.delitem(sys.modules, "sqlite_source")


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "orders.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE orders (ID INTEGER, NOTE TEXT)")
    database.close()
    return path


def _sql(path, statement):
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()


def _load(snowpipe, database, directory):
    """A run as the submitter plans it and the driver does it."""
    spec = source_spec({"kind": "sqlite", "database": str(database), "table": "orders"})
    plan = JobPlan(
        "app", URL, PIPE, "job", spec.default_name, spec, credentials_variable="X", commit_timeout=60.0,
        limits=BatchLimits(requests_per_second=10_000),
    )  # fmt: skip
    write_plan(plan, directory / "plan.json")
    run = Run(read_plan(str(directory / "plan.json")), snowpipe.client(), object)
    run.prepare()
    run.load(InProcessSpark())
    run.verify()
    run.finish()


@pytest.mark.usefixtures("installed")
def test_source_of_an_entry_point_is_loaded_and_resumes(snowpipe, database, tmp_path):
    _sql(database, "INSERT INTO orders VALUES (1, 'a'), (2, NULL)")
    _load(snowpipe, database, tmp_path)
    _sql(database, "INSERT INTO orders VALUES (3, 'c')")
    _load(snowpipe, database, tmp_path)

    assert snowpipe.channels[CHANNEL].rows == [
        {"ID": 1, "NOTE": "a"}, {"ID": 2, "NOTE": None}, {"ID": 3, "NOTE": "c"},
    ]  # fmt: skip

    _sql(database, "DELETE FROM orders")
    with pytest.raises(SourcePositionError, match="recreated"):
        _load(snowpipe, database, tmp_path)


@pytest.mark.usefixtures("installed")
def test_fields_of_the_source_are_checked():
    with pytest.raises(ConfigurationError, match="'table'"):
        source_spec({"kind": "sqlite", "database": "orders.db"})


def test_an_entry_point_of_a_broken_package_is_named(tmp_path, request):
    request.getfixturevalue("installed")
    points = tmp_path / "sqlite_source-1.0.dist-info" / "entry_points.txt"
    points.write_text("[airflow_provider_snowpipe.sources]\nsqlite = sqlite_source:Misspelt\n")

    with pytest.raises(ConfigurationError, match=r"'sqlite_source:Misspelt'.*cannot be imported"):
        source_spec({"kind": "sqlite"})


def test_unknown_kind_is_refused_with_those_that_are_known(request):
    with pytest.raises(ConfigurationError, match="'kafka'") as unknown:
        source_spec({"kind": "sqlite"})
    assert "'sqlite'" not in str(unknown.value).partition("one of")[2]

    request.getfixturevalue("installed")
    with pytest.raises(ConfigurationError, match="'sqlite'"):
        source_spec({"kind": "mysql"})
