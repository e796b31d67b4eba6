"""The branch operator and its decorator: the plan's path decides which tasks are skipped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowFailException, task

from airflow_provider_snowpipe.decorators.route import snowpipe_route_task
from airflow_provider_snowpipe.operators.branch import SnowpipeBranchOperator
from airflow_provider_snowpipe.operators.load_planning import path_before
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.airflow_version import AIRFLOW
from tests.local_connection import TaskInstance

pytestmark = pytest.mark.skipif(AIRFLOW < (3, 0), reason="Airflow 2 skips tasks in its database")

PATHS = {"stream": "by_stream", "copy": "by_copy", "pipe": "by_pipe"}
SMALL, LARGE = {"bytes": 1e6}, {"bytes": 1e12}


class Instance(TaskInstance):
    """A task instance that remembers the plan of the run before."""

    def __init__(self, task: Any, before: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.task, self.task_id, self.before = task, task.task_id, before
        self.asked: dict[str, Any] = {}

    def xcom_pull(self, **asked: Any) -> Any:
        self.asked = asked
        return self.before


def branch(**arguments: Any) -> SnowpipeBranchOperator:
    """A branch with a task for each path behind it."""
    with DAG("d", schedule=None):
        made = SnowpipeBranchOperator(task_id="route", **{**PATHS, **arguments})
        made >> [_task(name) for name in PATHS.values()]
    return made


def _task(name: str) -> Any:
    @task(task_id=name)
    def nothing() -> None:
        return None

    return nothing()


def skipped(
    operator: Any, *, before: dict[str, Any] | None = None, run_type: str = "manual"
) -> tuple[set[str], dict[str, Any]]:
    """Run it; the tasks that Airflow is asked to skip, and the plan."""
    # Elsewhere before Airflow 3.2, nowhere in Airflow 2.
    from airflow.providers.common.compat.sdk import DownstreamTasksSkipped

    ti = Instance(operator, before)
    context: Any = {"ti": ti, "dag_run": SimpleNamespace(run_type=run_type)}
    with pytest.raises(DownstreamTasksSkipped) as raised:
        operator.execute(context)
    return {one if isinstance(one, str) else one[0] for one in raised.value.tasks}, ti.xcoms["plan"]


@pytest.mark.parametrize(("source", "path"), [(SMALL, "stream"), (LARGE, "copy")], ids=["small", "large"])
def test_the_tasks_of_the_other_paths_are_skipped(source, path):
    others, plan = skipped(branch(source=source))

    assert others == set(PATHS.values()) - {PATHS[path]}
    assert plan["path"] == path
    assert plan["reasons"]
    assert [one["path"] for one in plan["estimates"]] == ["stream", "copy", "pipe"]


def test_a_backfill_run_prefers_copy_and_reports_why():
    assert skipped(branch(source=SMALL), run_type="backfill")[1]["reasons"][0].startswith("a backfill")
    assert (
        skipped(branch(source=SMALL, shape={"backfill": False}), run_type="backfill")[1]["path"] == "stream"
    )


def test_the_path_of_the_run_before_stays_near_a_boundary():
    near, before = {"bytes": 5e9}, {"path": "stream", "is_forced": False}

    assert skipped(branch(source=near))[1]["path"] == "copy"
    assert skipped(branch(source=near), before=before)[1]["path"] == "stream"
    assert skipped(branch(source=near, remember=False), before=before)[1]["path"] == "copy"
    operator = branch(source=near)
    ti = Instance(operator, before)
    assert path_before({"ti": ti}) == "stream"  # type: ignore[typeddict-item]
    asked = {"task_ids": "route", "key": "plan", "include_prior_dates": True, "map_indexes": -1}
    assert ti.asked == asked
    assert skipped(branch(source=near), before={**before, "is_forced": True})[1]["path"] == "copy"


def test_nothing_to_load_skips_the_tasks_of_every_path_but_a_forced_one():
    others, plan = skipped(branch(source={"rows": 0}))
    forced, _ = skipped(branch(source={"rows": 0}, policy={"path": "copy"}))
    _, kept = skipped(branch(source={"rows": 0}), before={"path": "copy", "is_forced": False})

    assert (others, plan["nothing_to_load"]) == (set(PATHS.values()), True)
    assert forced == {"by_stream", "by_pipe"}
    assert kept["path"] == "copy"


def test_policy_and_figures_reach_the_plan():
    forced = skipped(branch(source=SMALL, policy={"path": "copy"}))[1]
    costly = skipped(branch(source=SMALL, costs={"stream_credits_per_gb": 1000}))[1]

    assert (forced["path"], forced["is_forced"]) == ("copy", True)
    assert (costly["path"], costly["is_forced"]) == ("copy", False)


def test_a_path_without_a_task_fails_and_names_the_parameter():
    operator = branch(source=SMALL, stream=None)
    with pytest.raises(AirflowFailException, match="stream=…"):
        operator.execute({"ti": Instance(operator), "dag_run": None})  # type: ignore[typeddict-item]


def test_arguments_that_cannot_be_are_refused_when_the_dag_is_read():
    for arguments, word in (
        ({"stream": None, "copy": None, "pipe": None}, "way"),
        ({"policy": {"path": "fast"}}, "'fast'"),
        ({"policy": {"speed": 1}}, "'speed'"),
        ({"policy": {"costs": {}}}, "costs"),
        ({"policy": {"measured": 3}}, "measured"),
        ({"costs": {"speed": 1}}, "'speed'"),
        ({"costs": [1]}, "mapping"),
    ):
        with pytest.raises(ConfigurationError, match=word):
            branch(source=SMALL, **arguments)


def test_what_the_author_knows_of_the_data_is_refused_by_name_where_it_cannot_be(tmp_path):
    (tmp_path / "a.csv").write_text("1\n")
    for shape, word in (
        ({"freshnes": 60}, "'freshness'"),
        ({"now": 1}, "'now'"),
        ({"backfill": "yes"}, "backfill"),
        ({"files": {"count": 1, "bytes": 2}}, "files"),
        ([60], "mapping"),
    ):
        with pytest.raises(AirflowFailException, match=word):
            skipped(branch(source=str(tmp_path), shape=shape))


def test_a_function_describes_the_data():
    with DAG("d", schedule=None):

        @snowpipe_route_task(**PATHS)
        def route(size: float) -> dict[str, Any]:
            return {"bytes": size}

        operator = route(1e12).operator  # type: ignore[attr-defined]
        operator >> [_task(name) for name in PATHS.values()]

    others, plan = skipped(operator)

    assert (others, plan["path"]) == ({"by_stream", "by_pipe"}, "copy")
    assert operator.source is None


@pytest.mark.parametrize("before", [{}, {"path": "ship"}, {"path": ["copy"]}, "copy"], ids=str)
def test_a_plan_before_that_is_none_of_this_task_does_not_matter(before):
    """Another task of this name has left it."""
    assert skipped(branch(source=SMALL), before=before)[1]["path"] == "stream"
