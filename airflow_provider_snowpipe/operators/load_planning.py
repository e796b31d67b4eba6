"""What is known before a load is planned, what came of it, and what the next plan learns from that."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.bulk.load_history import (
    ATTRIBUTED_AFTER,
    attributed_credits,
    warehouse_seconds,
)
from airflow_provider_snowpipe.operators.account_operator import run_identity
from airflow_provider_snowpipe.routing.cost_model import GB, WAREHOUSE_CREDITS, LoadPolicy
from airflow_provider_snowpipe.routing.load_plan import (
    MOST_KEPT,
    LoadPath,
    MeasuredLoad,
    kept_loads,
    measured_floors,
    measured_latency,
)
from airflow_provider_snowpipe.routing.probes import DataShape, file_kind
from airflow_provider_snowpipe.streaming.arguments import known_arguments

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
    from airflow_provider_snowpipe.routing.cost_model import CostModel


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
    """What is known of the data from the author and the kind of run.

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


# -- What came of a planned load, beside what was estimated, and what the next plan learns from it -------

OUTCOME_KEY = "outcome"
_ATTRIBUTED = "account usage"
_ASKED_AGAIN = dt.timedelta(days=2)
"""For how long the account's view is asked for the credits of a load: it may be closed to the role."""


def loads_before(context: Context, table: str) -> tuple[MeasuredLoad, ...]:
    """The last loads of the table, as the run before has kept them.

    :param context: the task's context
    :param table: the table, or the pipe that stands for it
    """
    ti: Any = context["ti"]
    kept = ti.xcom_pull(
        task_ids=ti.task_id, key=OUTCOME_KEY, include_prior_dates=True, map_indexes=ti.map_index
    )
    return kept_loads(kept.get("loads"), table) if isinstance(kept, Mapping) else ()


@dataclass(frozen=True, slots=True)
class LoadAccount:
    """What a load has cost, asked for when it has ended.

    :param hook: asks the account about COPY statements
    :param policy: the author's side, and the figures
    :param context: the task's context
    """

    hook: SnowpipeBulkHook
    policy: LoadPolicy
    context: Context

    def measured(
        self, plan: Any, table: str, value: Mapping[str, Any], actual: Mapping[str, Any]
    ) -> MeasuredLoad:
        """What a load took and cost.

        :param plan: the plan as JSON, None where there was none
        :param table: the table, or the pipe that stands for it
        :param value: the task's value
        :param actual: rows, bytes and seconds
        """
        path, seconds = LoadPath(value["path"]), float(actual["seconds"] or 0.0)
        credits, source = self._credits(path, value, actual)
        latency = None
        if isinstance(plan, Mapping) and not plan["per_day"] and actual["rows"] and seconds:
            estimate = next(one for one in plan["estimates"] if one["path"] == path)
            latency = measured_latency(estimate, seconds)
        return MeasuredLoad(
            table,
            path,
            seconds,
            latency,
            credits,
            source,
            self._query_tag if path is LoadPath.COPY else None,
            dt.datetime.now(dt.UTC).timestamp(),
        )

    def attributed(self, loads: Sequence[MeasuredLoad]) -> list[MeasuredLoad]:
        """The same loads, with the credits that the account attributes to earlier ones by COPY.

        :param loads: the loads, the last one by COPY as well, so that the warehouse runs
        """
        now = dt.datetime.now(dt.UTC)
        asked = {
            one.query_tag: one
            for one in loads
            if one.query_tag is not None
            and one.credits_from != _ATTRIBUTED
            and ATTRIBUTED_AFTER <= now - dt.datetime.fromtimestamp(one.ended, dt.UTC) <= _ASKED_AGAIN
        }
        if not asked:
            return list(loads)
        known = attributed_credits(self.hook.run_sql, asked, now - _ASKED_AGAIN - dt.timedelta(days=1))
        return [
            replace(one, credits=known[one.query_tag], credits_from=_ATTRIBUTED)
            if one.query_tag in asked and one.query_tag in known
            else one
            for one in loads
        ]

    def _credits(
        self, path: LoadPath, value: Mapping[str, Any], actual: Mapping[str, Any]
    ) -> tuple[float | None, str | None]:
        costs, size = self.policy.costs, actual["bytes"]
        if path is LoadPath.COPY:
            return self._warehouse_credits(value, actual)
        if size is None:
            return None, None
        if path is LoadPath.STREAM:
            return size / GB * costs.stream_credits_per_gb, "bytes streamed"
        is_compressed = any(file_kind(name)[1] for name in value["files"])
        billed = size * costs.text_ratio if is_compressed else size
        return billed / GB * costs.pipe_credits_per_gb, "bytes of the files"

    def _warehouse_credits(
        self, value: Mapping[str, Any], actual: Mapping[str, Any]
    ) -> tuple[float | None, str]:
        factor = self.policy.costs.warehouse_credit_factor / 3600
        if not value["files"]:
            return 0.0, "no statement"
        database, _ = self.hook.database_and_schema()
        now = dt.datetime.now(dt.UTC)
        began = getattr(self.context["ti"], "start_date", None) or now - dt.timedelta(days=1)
        ran = warehouse_seconds(self.hook.run_sql, database, self._query_tag, began, now)
        if ran is not None and set(ran) <= set(WAREHOUSE_CREDITS):
            return sum(WAREHOUSE_CREDITS[size] * ran[size] for size in ran) * factor, "warehouse seconds"
        power = WAREHOUSE_CREDITS[self.policy.warehouse]
        return (actual["seconds"] or 0.0) * power * factor, "seconds of the task at most"

    @property
    def _query_tag(self) -> str:
        return run_identity(self.context).query_tag


def outcome_of(
    plan: Any,
    path: str,
    actual: Mapping[str, Any],
    load: MeasuredLoad | None = None,
    before: Sequence[MeasuredLoad] = (),
) -> dict[str, Any]:
    """Put what a load did beside the estimate of its path.

    :param plan: the plan as JSON, None where there was none
    :param path: the path that was taken
    :param actual: rows, bytes and seconds
    :param load: what it took and cost, which is kept for the next plan where rows were loaded
    :param before: the last loads of the table, from the oldest
    """
    estimated: dict[str, Any] = {}
    planned = None
    if isinstance(plan, Mapping):
        planned = plan.get("path")
        found: Mapping[str, Any] = next((one for one in plan["estimates"] if one["path"] == path), {})
        costs = {name: found.get(name) for name in ("seconds", "credits")}
        estimated = {**plan.get("expected", {}), **costs}
    cost: dict[str, Any] = {}
    if load is not None:
        cost = {"latency": load.latency, "credits": load.credits, "credits_from": load.credits_from}
    own = [load] if load is not None and actual["rows"] else []
    return {
        "path": path,
        "planned": planned,
        "estimated": estimated,
        "actual": {**actual, **cost},
        "loads": [one.as_json() for one in [*before, *own][-MOST_KEPT:]],
    }


def expected_of(shape: DataShape, costs: CostModel) -> dict[str, float]:
    """Rows and uncompressed bytes that a shape stands for.

    :param shape: the data
    :param costs: the figures to estimate with
    """
    size = shape.uncompressed(costs)
    rows = shape.rows if shape.rows is not None else round(size / costs.bytes_per_row)
    return {"rows": rows, "bytes": size}


def copied_value(before: Mapping[str, Any], copied: Mapping[str, Any]) -> dict[str, Any]:
    """Join what an interrupted COPY had loaded with what its successor did; both as a COPY task's value.

    :param before: the first
    :param copied: the second
    """
    return {
        "rows_loaded": before["rows_loaded"] + copied["rows_loaded"],
        "rejected": before["rejected"] + copied["rejected"],
        "files": {**before["files"], **copied["files"]},
        "loaded_before": {**before["loaded_before"], **copied["loaded_before"]},
    }


def ingested_value(ingested: Mapping[str, Any]) -> dict[str, Any]:
    """The value of a task that gave files to a pipe, with what became of them in the words of a COPY task.

    :param ingested: the value
    """
    loads = ingested["loads"]
    return {
        "pipe": ingested["pipe"],
        "rows_loaded": sum(int(load["rows_loaded"]) for load in loads.values()),
        "rejected": sum(int(load["errors_seen"]) for load in loads.values()),
        "files": dict(loads),
        "loaded_before": dict(ingested["loaded_before"]),
    }
