"""Sources of other packages: the one of the page "Add a source", named by an entry point."""

import sqlite3
import sys
from contextlib import closing
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


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a distribution with an entry point for the example."""

    def install(name="SqliteSource"):
        about = tmp_path / "sqlite_source-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: sqlite-source\nVersion: 1.0\n")
        points = f"[airflow_provider_snowpipe.sources]\nsqlite = sqlite_source:{name}\n"
        (about / "entry_points.txt").write_text(points)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.syspath_prepend(EXAMPLES)
        monkeypatch.setitem(sys.modules, "sqlite_source", None)
        monkeypatch.delitem(sys.modules, "sqlite_source")

    return install


def _load(snowpipe, database, directory):
    """A run as the submitter plans it and the driver does it."""
    spec = source_spec({"kind": "sqlite", "database": str(database), "table": "orders"})
    limits = {"commit_timeout": 60.0, "limits": BatchLimits(requests_per_second=10_000)}
    plan = JobPlan("app", URL, PIPE, "job", spec.default_name, spec, credentials_variable="X", **limits)
    write_plan(plan, directory / "plan.json")
    run = Run(read_plan(str(directory / "plan.json")), snowpipe.client(), object)
    run.prepare()
    run.load(InProcessSpark())
    run.verify()
    run.finish()


def test_source_of_an_entry_point_is_loaded_and_resumes(snowpipe, installed, tmp_path):
    installed()
    path = tmp_path / "orders.db"

    def sql(statement):
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(statement)

    sql("CREATE TABLE orders (ID INTEGER, NOTE TEXT)")
    sql("INSERT INTO orders VALUES (1, 'a'), (2, NULL)")
    _load(snowpipe, path, tmp_path)
    sql("INSERT INTO orders VALUES (3, 'c')")
    _load(snowpipe, path, tmp_path)

    rows = [(row["ID"], row["NOTE"]) for row in snowpipe.channels["job_orders_all"].rows]
    assert rows == [(1, "a"), (2, None), (3, "c")]

    sql("DELETE FROM orders")
    with pytest.raises(SourcePositionError, match="recreated"):
        _load(snowpipe, path, tmp_path)


def test_unknown_kind_is_refused_with_those_that_are_known_and_fields_are_checked(installed):
    with pytest.raises(ConfigurationError, match="'kafka'") as unknown:
        source_spec({"kind": "sqlite"})
    assert "'sqlite'" not in str(unknown.value).partition("one of")[2]

    installed()
    with pytest.raises(ConfigurationError, match="'sqlite'"):
        source_spec({"kind": "mysql"})
    with pytest.raises(ConfigurationError, match="'table'"):
        source_spec({"kind": "sqlite", "database": "orders.db"})


def test_an_entry_point_of_a_broken_package_is_named(installed):
    installed("Misspelt")
    with pytest.raises(ConfigurationError, match=r"'sqlite_source:Misspelt'.*cannot be imported"):
        source_spec({"kind": "sqlite"})
