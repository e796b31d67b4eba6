"""What a load has cost and how long it took, and how the next plan takes it into account."""

import datetime as dt
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.operators.load_planning import LoadAccount
from airflow_provider_snowpipe.routing.cost_model import LoadPolicy
from airflow_provider_snowpipe.routing.load_plan import LoadPath, MeasuredLoad
from airflow_provider_snowpipe.routing.planner import plan_load
from airflow_provider_snowpipe.routing.probes import DataShape, FileSet
from airflow_provider_snowpipe.streaming.errors import SqlError
from tests.local_connection import TaskInstance

STREAM, COPY, PIPE = LoadPath.STREAM, LoadPath.COPY, LoadPath.PIPE
STAGED = DataShape(files=FileSet(24, 24e6, format="CSV", staged=True), freshness=120)


class Hook:
    """An account whose history the role may not see."""

    def database_and_schema(self) -> tuple[str, str]:
        return "D", "S"

    def run_sql(self, *_: Any) -> Any:
        raise SqlError("no such view", errno=2003)


def context(before: dict[str, Any] | None = None) -> Any:
    ti = TaskInstance(before, start_date=dt.datetime.now(dt.UTC) - dt.timedelta(seconds=160))
    return {"ti": ti, "dag_run": SimpleNamespace(start_date=None)}


def test_a_load_that_seems_to_end_before_it_began_does_not_make_every_later_plan_fail():
    """The clock of the worker that resumed the task is behind the first one's."""
    plan = plan_load(STAGED, LoadPolicy()).as_json()
    actual = {"rows": 1, "bytes": 1, "seconds": -5}
    hook: Any = Hook()
    account = LoadAccount(hook, LoadPolicy(), context())
    load = account.measured(plan, "T", {"path": "copy", "files": {}}, actual)
    kept = replace(load, latency=-5.0)
    assert (load.seconds, load.latency) == (0.0, None)
    assert LoadPolicy.of(None, None, [kept] * 3).measured == {}


class TestLatency:
    @pytest.mark.parametrize(
        ("table", "remember", "floor"), [("T", True, 150.0), ("T", False, 90.0), ("OTHER", True, 90.0)]
    )
    def test_the_load_operator_takes_the_loads_of_its_table_from_the_run_before(self, table, remember, floor):
        loads = [MeasuredLoad("S.T", PIPE, 160.0, 150.0).as_json()] * 3
        operator = SnowpipeLoadOperator(
            task_id="load", source="@FILES", table=table, schema="S", file_pipe="P", remember=remember
        )
        choice = operator._choice({}, context({"outcome": {"loads": loads}}))
        assert choice.policy.floor(PIPE) == floor

    def test_the_load_operator_keeps_what_it_measured(self, monkeypatch):
        operator = SnowpipeLoadOperator(task_id="load", source="@FILES", table="T", file_pipe="P")
        monkeypatch.setattr(operator, "bulk_hook", lambda _: Hook())
        before = MeasuredLoad("T", PIPE, 140.0, 130.0)
        task = context({"outcome": {"loads": [before.as_json()]}})
        task["ti"].xcoms["plan"] = plan_load(STAGED, LoadPolicy(has_pipe=True)).as_json()
        operator._concluded(task, {"path": "pipe", "files": {"a.csv": {}}}, {"rows": 10, "bytes": 24e6})
        outcome = task["ti"].xcoms["outcome"]
        assert outcome["loads"][0] == before.as_json()
        assert outcome["loads"][1]["latency"] == outcome["actual"]["latency"] == pytest.approx(160, abs=2)
        assert outcome["actual"]["credits"] == pytest.approx(0.024 * 0.0037)
