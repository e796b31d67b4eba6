"""What operators that plan a load share: the author's side, the kind of run, the path of the run before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.routing.data_shape import DataShape
from airflow_provider_snowpipe.routing.load_plan import LoadPath
from airflow_provider_snowpipe.routing.load_policy import LoadPolicy
from airflow_provider_snowpipe.routing.measured import MeasuredLoad, measured_floors
from airflow_provider_snowpipe.streaming.arguments import known_arguments

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

PLAN_KEY = "plan"
_BACKFILL = "backfill"


def load_policy(
    policy: Mapping[str, Any] | None,
    costs: Mapping[str, Any] | None,
    loads: Sequence[MeasuredLoad] = (),
) -> LoadPolicy:
    """Make the policy of an author's arguments.

    :param policy: parameters of :class:`LoadPolicy`
    :param costs: figures of the cost model to replace, by name
    :param loads: the last loads of the table, whose latency goes before floors that the author does not give
    :raises ConfigurationError: if one is wrong
    """
    from airflow_provider_snowpipe.routing.cost_model import CostModel

    given = costs or {}
    floors = {
        path: seconds
        for path, seconds in measured_floors(loads).items()
        if f"{path.value}_floor_seconds" not in given
    }
    own = known_arguments(LoadPolicy, policy or {}, "policy")
    return LoadPolicy(**{"costs": CostModel.with_figures(given), "measured": floors, **own})


def known_shape(shape: Any, context: Context | None = None) -> dict[str, Any]:
    """What the author and the kind of run say of the data.

    :param shape: parameters of :class:`DataShape`
    :param context: the task's context, None where there is no run
    :raises ConfigurationError: if it is no mapping, or a key or a value is wrong
    """
    known = DataShape.known({} if shape is None else shape)
    if context is not None and _run_type(context) == _BACKFILL and "backfill" not in known:
        known["backfill"] = True
    return known


def path_before(context: Context) -> LoadPath | None:
    """The path that the run before took by its own choice, None where there was none or it was forced.

    :param context: the task's context
    """
    ti: Any = context["ti"]
    kept = ti.xcom_pull(task_ids=ti.task_id, key=PLAN_KEY, include_prior_dates=True, map_indexes=ti.map_index)
    if not isinstance(kept, Mapping) or kept.get("is_forced"):
        return None
    return LoadPath(kept["path"])


def splits_csv(options: Mapping[str, Any] | None) -> bool:
    """True for options of COPY by which many threads read one CSV file.

    :param options: the author's options
    """
    given = {name.lower(): value for name, value in (options or {}).items()}
    form = given.get("file_format")
    if not isinstance(form, Mapping):
        return False
    form = {str(name).lower(): value for name, value in form.items()}
    on_error = str(given.get("on_error") or "ABORT_STATEMENT").upper()
    return (
        form.get("multi_line") is False
        and str(form.get("compression", "AUTO")).upper() == "NONE"
        and on_error in ("ABORT_STATEMENT", "CONTINUE")
    )


def is_staged(source: Any) -> bool:
    """True for files that are in a stage.

    :param source: the source of a load
    """
    return isinstance(source, str) and source.startswith("@")


def _run_type(context: Context) -> str:
    kind: Any = getattr(context.get("dag_run"), "run_type", None)
    return str(getattr(kind, "value", kind))
