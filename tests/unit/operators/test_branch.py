"""The branch operator and its decorator, and the shapes of what is to be loaded."""

import json
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowFailException, task

from airflow_provider_snowpipe.decorators.route import snowpipe_route_task
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.branch import SnowpipeBranchOperator
from airflow_provider_snowpipe.operators.load_planning import ShapeSource, path_before
from airflow_provider_snowpipe.routing.probes import DataShape
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.airflow_version import AIRFLOW
from tests.stream_worker import TaskInstance

pytestmark = pytest.mark.skipif(AIRFLOW < (3, 0), reason="Airflow 2 skips tasks in its database")

PATHS = {"stream": "by_stream", "copy": "by_copy", "pipe": "by_pipe"}
SMALL, LARGE = {"bytes": 1e6}, {"bytes": 1e12}


def instance(task, before=None):
    """One with the plan of the run before."""
    return TaskInstance({"plan": before}, task=task, task_id=task.task_id)


def branch(**arguments):
    """A branch with a task for each path behind it."""
    with DAG("d", schedule=None):
        made = SnowpipeBranchOperator(task_id="route", **{**PATHS, **arguments})
        made >> [_task(name) for name in PATHS.values()]
    return made


def _task(name):
    @task(task_id=name)
    def nothing():
        return None

    return nothing()


def skipped(operator, *, before=None, run_type="manual"):
    """Run it; the tasks that Airflow is asked to skip, and the plan."""
    # Elsewhere before Airflow 3.2, nowhere in Airflow 2.
    from airflow.providers.common.compat.sdk import DownstreamTasksSkipped

    ti = instance(operator, before)
    context = {"ti": ti, "dag_run": SimpleNamespace(run_type=run_type)}
    with pytest.raises(DownstreamTasksSkipped) as raised:
        operator.execute(context)
    return {one if isinstance(one, str) else one[0] for one in raised.value.tasks}, ti.xcoms["plan"]


@pytest.mark.parametrize(
    ("arguments", "run_type", "path"),
    [
        ({"source": SMALL}, "manual", "stream"),
        ({"source": LARGE}, "manual", "copy"),
        ({"source": SMALL}, "backfill", "copy"),
        ({"source": SMALL, "shape": {"backfill": False}}, "backfill", "stream"),
        ({"source": SMALL, "policy": {"path": "copy"}}, "manual", "copy"),
        ({"source": SMALL, "costs": {"stream_credits_per_gb": 1000}}, "manual", "copy"),
    ],
    ids=["small", "large", "backfill", "no backfill", "policy", "costs"],
)
def test_the_tasks_of_the_other_paths_are_skipped(arguments, run_type, path):
    others, plan = skipped(branch(**arguments), run_type=run_type)
    assert others == set(PATHS.values()) - {PATHS[path]}
    assert (plan["path"], plan["is_forced"]) == (path, "policy" in arguments)
    assert [one["path"] for one in plan["estimates"]] == ["stream", "copy", "pipe"]


def test_the_path_of_the_run_before_stays_near_a_boundary():
    near, before = {"bytes": 5e9}, {"path": "stream", "is_forced": False}
    assert skipped(branch(source=near))[1]["path"] == "copy"
    assert skipped(branch(source=near), before=before)[1]["path"] == "stream"
    assert skipped(branch(source=near, remember=False), before=before)[1]["path"] == "copy"
    operator = branch(source=near)
    ti = instance(operator, before)
    assert path_before({"ti": ti}) == "stream"
    asked = {"task_ids": "route", "key": "plan", "include_prior_dates": True, "map_indexes": -1}
    assert ti.asked == asked
    for other in ({**before, "is_forced": True}, {"path": "ship"}, {"path": ["copy"]}, "copy"):
        assert skipped(branch(source=near), before=other)[1]["path"] == "copy"


def test_nothing_to_load_skips_the_tasks_of_every_path_but_a_forced_one():
    others, plan = skipped(branch(source={"rows": 0}), before={"path": "copy", "is_forced": False})
    forced, _ = skipped(branch(source={"rows": 0}, policy={"path": "copy"}))
    assert (others, plan["nothing_to_load"], plan["path"]) == (set(PATHS.values()), True, "copy")
    assert forced == {"by_stream", "by_pipe"}
    operator = branch(source=SMALL, stream=None)
    with pytest.raises(AirflowFailException, match="stream=…"):
        operator.execute({"ti": instance(operator), "dag_run": None})


def test_arguments_that_cannot_be_are_refused_when_the_dag_is_read():
    for arguments, word in (
        ({"stream": None, "copy": None, "pipe": None}, "way"),
        ({"policy": {"path": "fast"}}, "'fast'"),
        ({"policy": {"speed": 1}}, "'speed'"),
        ({"policy": {"measured": 3}}, "measured"),
        ({"costs": {"speed": 1}}, "'speed'"),
    ):
        with pytest.raises(ConfigurationError, match=word):
            branch(source=SMALL, **arguments)


def test_a_function_describes_the_data():
    with DAG("d", schedule=None):

        @snowpipe_route_task(**PATHS)
        def route(size):
            return {"bytes": size}

        operator = route(1e12).operator
        operator >> [_task(name) for name in PATHS.values()]

    others, plan = skipped(operator)

    assert (others, plan["path"]) == ({"by_stream", "by_pipe"}, "copy")
    assert operator.source is None


@pytest.fixture(autouse=True)
def account(account):
    """A stage with two files in a folder, which are loaded, and one beside it."""
    for path, rows in {"day/a.csv": ["1,a"] * 10, "day/b.csv": ["2,b"] * 30}.items():
        account.put(path, *rows)
    account._copy("COPY INTO T FROM @S ON_ERROR = CONTINUE")
    account.put("other.csv", "3,c")
    return account


def shape_of(source, **known):
    return ShapeSource(source, SnowpipeBulkHook("account")).shape(known)


def test_a_path_in_a_stage_is_listed_with_sizes_and_ages():
    shape = shape_of("@S/day/", freshness=300)
    assert (shape.files.count, shape.files.bytes, shape.files.largest) == (2, 160, 120)
    assert (shape.files.format, shape.files.staged, shape.freshness) == ("CSV", True, 300)
    assert shape.files.newest is not None


def test_past_loads_give_the_files_that_keep_coming(account):
    for load in account.history:
        load["file_size"] = 80
    shape = shape_of("table:T", bounded=False)
    assert (shape.bounded, shape.files.count, shape.files.mean) == (False, 2, 80)
    assert shape.files.interval is not None
    with pytest.raises(ConfigurationError, match="bounded"):
        shape_of("table:T", bounded=True)


def test_objects_of_a_store_are_listed_by_their_url(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.parquet").write_bytes(b"x" * 50)
    shape = shape_of(f"file://{tmp_path}")
    assert (shape.files.count, shape.files.bytes, shape.files.format) == (1, 50, "PARQUET")
    assert shape.files.oldest is not None


def test_a_shape_is_itself_with_what_the_author_knows():
    assert shape_of({"rows": 5}, backfill=True) == DataShape(rows=5, backfill=True)
    assert shape_of(json.dumps({"rows": 5})) == DataShape(rows=5)
    assert shape_of(DataShape(rows=5), partitions=2) == DataShape(rows=5, partitions=2)
    for source in (None, 7, ""):
        with pytest.raises(ConfigurationError, match="stage"):
            shape_of(source)
