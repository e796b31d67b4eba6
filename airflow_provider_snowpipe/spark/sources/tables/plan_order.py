"""Refuses query plans whose rows would not be the same, in the same order, when Spark runs them again.

A task that is repeated after a crash reads its rows again and leaves out those that are committed. That
takes the same rows in the same order; what Spark promises less than that for is found in the plan before
any row moves. ``local[n]`` hides such disorder, a cluster shows it (observed with Spark 4.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# -- Spark's settings that decide which rows come together and in which order, pinned for a write --------
#
# With its defaults Spark packs files into tasks by the number of cores, and joins shuffle partitions by
# their size while the job runs, so that the same query gives other partitions on another cluster or another
# day.

_ADAPTIVE = "spark.sql.adaptive.enabled"
PINNED: Mapping[str, str] = {
    _ADAPTIVE: "false",
    "spark.sql.execution.sortBeforeRepartition": "true",
    "spark.sql.files.maxPartitionBytes": str(1 << 40),
    "spark.sql.files.openCostInBytes": str(1 << 40),
    "spark.sql.session.timeZone": "UTC",
}
"""Both file settings at a tebibyte give one whole file to each partition on any number of cores."""


@contextmanager
def changed_settings(session: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """Change a session's settings for what is planned inside the block; its own come back after it.

    Settings count when a DataFrame is planned, which is when its first action runs.
    """
    before = {name: session.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, own in before.items():
            if own is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, own)


def pinned_layout(session: Any) -> AbstractContextManager[None]:
    """Pin the layout of what is planned inside the block."""
    return changed_settings(session, PINNED)


def free_layout(session: Any) -> AbstractContextManager[None]:
    """Let Spark choose the layout of questions whose answer does not depend on it, such as counts."""
    return changed_settings(session, {_ADAPTIVE: "true"})


def pin_layout(session: Any) -> None:
    """Pin the layout of a session that nobody else uses."""
    for name, value in PINNED.items():
        session.conf.set(name, value)


def unpinned(session: Any) -> dict[str, str]:
    """The settings that differ from the pinned ones, with their present values."""
    return {name: session.conf.get(name) for name, value in PINNED.items() if not _same(session, name, value)}


def _same(session: Any, name: str, value: str) -> bool:
    """True when a setting has a value; Spark shows sizes with a unit."""
    now = str(session.conf.get(name)).lower()
    return now == value.lower() or (value.isdecimal() and now.rstrip("b") == value)


# pragma: no mutate start (plans of Spark itself: tests/integration/test_plan_order.py)
# -- What of a plan may give other rows, or rows in another order, when it runs again --------------------

_SORT_REMEDY = (
    "sort the rows last by a unique key: df.repartition(n, 'key').sortWithinPartitions('key'), or give an "
    "offset column"
)
# Each with its remedy.
_LIMIT = "a limit takes whichever rows come first", "filter by a condition on columns"
_SAMPLE = (
    "a sample depends on how the rows lie in partitions",
    "filter by a hash of a key, for example pmod(hash(key), 100) < 5",
)
_BY_CLOCK = (
    "the clock differs in each run",
    "give a fixed value such as the run's logical date, or a column DEFAULT in the table",
)
_BY_CHANCE = (
    "its value differs each time that a row is computed",
    "store the value with the rows before, or compute it from their columns",
)
_ADAPTIVELY = (
    "adaptive execution joins shuffle partitions by their size while the job runs",
    "set spark.sql.adaptive.enabled to false for the write (plan_order.pinned_layout does)",
)
_PARTITIONINGS = {
    "RangePartitioning": (
        "orderBy and repartitionByRange cut the rows into partitions at a sample of their values, which is "
        "another one in each run",
        "use df.repartition(n, 'key').sortWithinPartitions('key')",
    ),
    "RoundRobinPartitioning": (
        "repartition(n) deals the rows out by where they lie",
        "name a stable key: df.repartition(n, 'key').sortWithinPartitions('key')",
    ),
}
_PASSING = frozenset(
    {
        *("WholeStageCodegenExec", "InputAdapter", "ColumnarToRowExec", "RowToColumnarExec"),
        *("ProjectExec", "FilterExec", "GenerateExec", "CollectMetricsExec", "ExpandExec"),
        *("MapInArrowExec", "MapInPandasExec", "ArrowEvalPythonExec", "BatchEvalPythonExec"),
        *("DeserializeToObjectExec", "SerializeFromObjectExec", "MapElementsExec", "MapPartitionsExec"),
        *("ProjectEvaluatorExec", "SubqueryAdaptiveBroadcastExec"),
    }
)
"""Operators that give each partition's rows on in the order in which they get them."""
_LEAVES = frozenset(
    {
        *("FileSourceScanExec", "BatchScanExec", "LocalTableScanExec", "RangeExec", "OneRowRelationExec"),
        *("HiveTableScanExec", "EmptyRelationExec"),
    }
)
_LIMITS = frozenset({"LocalLimit", "GlobalLimit", "Offset", "Tail"})
_STABLE = frozenset({"InputFileName", "InputFileBlockStart", "InputFileBlockLength"})
"""Called nondeterministic by Spark, but a row's file stays the same."""
_CLOCK = frozenset(
    {"CurrentTimestamp", "CurrentDate", "CurrentTime", "LocalTimestamp", "Now", "UnixTimestampNow"}
)


@dataclass(frozen=True, slots=True)
class PlanHazard:
    """One part of a plan that may give other rows, or the rows in another order, when it runs again."""

    operator: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.operator}: {self.reason}; {self.remedy}"


def refuse_changing_rows(df: DataFrame, what: str) -> None:
    """Refuse a DataFrame that may hold other rows or values when it is read again.

    Enough where a unique key orders the rows afterwards.
    """
    _refuse(row_hazards(df), what)


def refuse_unordered_rows(df: DataFrame, what: str) -> None:
    """Refuse a DataFrame whose partitions may hold other rows, or in another order, when it runs again."""
    _refuse((*row_hazards(df), *order_hazards(df)), what)


def _refuse(hazards: Sequence[PlanHazard], what: str) -> None:
    if hazards:
        more = f" (and {len(hazards) - 1} more)" if len(hazards) > 1 else ""
        raise ConfigurationError(
            f"{what}: a repeated run would not get the same rows in the same order. {hazards[0]}{more}. "
            "Nothing was sent"
        )


def row_hazards(df: DataFrame) -> tuple[PlanHazard, ...]:
    """Find what makes rows or their values differ from one run of a plan to the next."""
    analyzed = _query(df).analyzed()
    found: list[PlanHazard] = []
    for node in _nodes(analyzed):
        name = _kind(node)
        if name in _LIMITS and not _limits_sorted(node):
            found.append(PlanHazard(name, *_LIMIT))
        elif name == "Sample":
            found.append(PlanHazard(name, *_SAMPLE))
        found.extend(_expression_hazards(node))
    return tuple(found)


def order_hazards(df: DataFrame) -> tuple[PlanHazard, ...]:
    """Find what makes the rows of a partition come in another order, or into another partition.

    Searches from the result down to the first sort within partitions, or to the scan. A sort counts as an
    order: that its key is unique is for the writer to see, which compares the positions of the rows.
    """
    query = _query(df)
    most = query.optimizedPlan().maxRows()
    if most.isDefined() and most.get() <= 1:
        return ()  # one row is in order, so that Spark leaves the sort out
    plan = query.executedPlan()
    if _kind(plan) == "AdaptiveSparkPlanExec":
        if any(_kind(node).endswith("ExchangeExec") for node in _nodes(plan.executedPlan())):
            return (PlanHazard("AdaptiveSparkPlan", *_ADAPTIVELY),)
        plan = plan.executedPlan()
    return tuple(_order(plan, df.sparkSession))


def _order(node: Any, session: Any) -> Iterator[PlanHazard]:
    name = _kind(node)
    if name == "SortExec":
        yield from _under_sort(node)
    elif name in _PASSING:
        for child in _children(node):
            yield from _order(child, session)
    elif name in ("FileSourceScanExec", "BatchScanExec"):
        yield from _scan_hazards(session)
    elif name == "InMemoryTableScanExec":
        yield from _order(node.relation().cachedPlan(), session)
    elif name not in _LEAVES:
        yield _disorder(node, name)


def _under_sort(node: Any) -> Iterator[PlanHazard]:
    """A sort within partitions makes the order; what lies below still decides which partition a row is in."""
    for below in _nodes(node):
        name = _kind(below)
        if name == "ShuffleExchangeExec":
            partitioning = below.outputPartitioning()
            kind = _kind(partitioning)
            if partitioning.numPartitions() > 1 and kind in _PARTITIONINGS:
                yield PlanHazard(kind, *_PARTITIONINGS[kind])
            return
        if name == "CoalesceExec":
            yield _disorder(below, name)
            return


def _scan_hazards(session: Any) -> Iterator[PlanHazard]:
    differing = {name: value for name, value in unpinned(session).items() if ".files." in name}
    if differing:
        name, value = next(iter(differing.items()))
        yield PlanHazard(
            "FileScan",
            f"files are packed into partitions by the number of cores ({name} is {value})",
            "pin the layout (plan_order.pinned_layout), or sort the rows last by a unique key",
        )


def _disorder(node: Any, name: str) -> PlanHazard:
    if name.endswith("ExchangeExec"):
        name, reason = "Exchange", "rows come through a shuffle in the order in which its parts arrive"
    elif name == "CoalesceExec":
        name, reason = "Coalesce", "coalesce packs partitions together by where they lie at that time"
    else:
        name, reason = str(node.nodeName()).strip(), "nothing fixes the order in which its rows come"
    return PlanHazard(name, reason, _SORT_REMEDY)


def _limits_sorted(node: Any) -> bool:
    """True for a limit right above a sort of all rows, which takes the same rows where the key is unique."""
    below = _children(node)[0] if _children(node) else None
    while below is not None and _kind(below) in (*_LIMITS, "Project", "SubqueryAlias"):
        below = _children(below)[0]
    return below is not None and _kind(below) == "Sort" and bool(getattr(below, "global")())


def _expression_hazards(node: Any) -> Iterator[PlanHazard]:
    expressions = node.expressions()
    for index in range(expressions.size()):
        expression = expressions.apply(index)
        shaky = not expression.deterministic()
        for part in _nodes(expression):
            name = _kind(part)
            if name in _CLOCK:
                yield PlanHazard(str(part.prettyName()), *_BY_CLOCK)
            elif not shaky or name in _STABLE or part.deterministic():
                continue
            elif all(child.deterministic() for child in _children(part)):  # it is not one inside it
                yield PlanHazard(str(part.prettyName()), *_BY_CHANCE)


def _query(df: DataFrame) -> Any:
    jdf = getattr(df, "_jdf", None)
    if jdf is None:
        raise ConfigurationError(
            "the plan of a Spark Connect DataFrame cannot be looked at from here: write it in a job of its "
            "own, or give an offset column"
        )
    if df.isStreaming:
        raise ConfigurationError(
            "a streaming DataFrame has no plan before it runs: look at the batch that foreachBatch gets"
        )
    return jdf.queryExecution()


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in _children(node):
        yield from _nodes(child)


def _children(node: Any) -> list[Any]:
    children = node.children()
    return [children.apply(index) for index in range(children.size())]


def _kind(node: Any) -> str:
    name: str = node.getClass().getSimpleName()
    return name


# pragma: no mutate end
