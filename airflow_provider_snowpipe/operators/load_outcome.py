"""What came of a planned load, beside what was estimated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_snowpipe.routing.cost_model import CostModel
    from airflow_provider_snowpipe.routing.data_shape import DataShape

OUTCOME_KEY = "outcome"


def outcome_of(plan: Any, path: str, actual: Mapping[str, Any]) -> dict[str, Any]:
    """Put what a load did beside the estimate of its path.

    :param plan: the plan as JSON, None where there was none
    :param path: the path that was taken
    :param actual: rows, bytes and seconds
    """
    estimated: dict[str, Any] = {}
    planned = None
    if isinstance(plan, Mapping):
        planned = plan.get("path")
        found: Mapping[str, Any] = next((one for one in plan["estimates"] if one["path"] == path), {})
        costs = {name: found.get(name) for name in ("seconds", "credits")}
        estimated = {**plan.get("expected", {}), **costs}
    return {"path": path, "planned": planned, "estimated": estimated, "actual": dict(actual)}


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
