"""The operator that chooses the tasks to run by the load path that suits the data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import BaseBranchOperator

from airflow_provider_snowpipe.operators.account_operator import (
    AccountArguments,
    check_arguments,
    failing_at_once,
)
from airflow_provider_snowpipe.operators.load_planning import PLAN_KEY, ShapeSource, known_shape, path_before
from airflow_provider_snowpipe.routing.cost_model import LoadPolicy
from airflow_provider_snowpipe.routing.load_plan import LoadPath
from airflow_provider_snowpipe.routing.planner import plan_load
from airflow_provider_snowpipe.sources import shape_values
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.routing.load_plan import LoadPlan

Branch = str | Sequence[str] | None


class SnowpipeBranchOperator(AccountArguments, BaseBranchOperator):
    """Probe the data, plan its load, and go on with the tasks of the path that was chosen.

    The plan is logged and is the XCom ``plan``: path, reasons, warnings, credits and latencies. The path of
    the run before stays unless another is clearly better; a backfill run prefers COPY. Nothing is loaded.

    :param source: ``@stage/path``; ``table:NAME`` for the shape of its past loads; a path, a URL;
        ``kafka://host:port/topic``, or a :class:`~airflow_provider_snowpipe.sources.KafkaSource` or its
        mapping; or the shape, as a mapping or its JSON text (templated)
    :param stream: ids of the tasks or task groups that stream the data, None where there is no such way
    :param copy: ids of those that copy it
    :param pipe: ids of those that give it to a file pipe
    :param shape: what is known of the data beside what the source shows: parameters of
        :class:`~airflow_provider_snowpipe.routing.probes.DataShape`, such as ``freshness`` or ``bounded``
        (templated)
    :param policy: parameters of :class:`~airflow_provider_snowpipe.routing.cost_model.LoadPolicy`, such as
        ``path``, ``warehouse`` or ``has_pipe``
    :param costs: figures of the cost model to replace, by name
    :param remember: False plans without regard to the run before
    :param table: the table of a Kafka source, whose channels show how far each partition is; None counts
        from the offsets of the source's group, or from its start (templated)
    :param channel_prefix: the first part of these channels' names, None for the DAG's id (templated)
    :param storage_conn_id: the connection of a URL (templated)
    :raises ConfigurationError: if an argument is wrong
    """

    template_fields: Sequence[str] = (
        "source",
        "shape",
        "table",
        "channel_prefix",
        "storage_conn_id",
        *AccountArguments.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"shape": "json"}

    def __init__(
        self,
        *,
        source: Any = None,
        stream: Branch = None,
        copy: Branch = None,
        pipe: Branch = None,
        shape: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        costs: Mapping[str, Any] | None = None,
        remember: bool = True,
        table: str | None = None,
        channel_prefix: str | None = None,
        storage_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = shape_values(source)
        self.stream = stream
        self.copy = copy
        self.pipe = pipe
        self.shape = shape
        self.policy = policy
        self.costs = costs
        self.remember = remember
        self.table = table
        self.channel_prefix = channel_prefix
        self.storage_conn_id = storage_conn_id
        if not (stream or copy or pipe):
            raise ConfigurationError("no way to load is given: name the tasks of stream=…, copy=… or pipe=…")
        check_arguments(self, switches=["remember"])
        LoadPolicy.of(policy, costs)

    def choose_branch(self, context: Context) -> str | Iterable[str]:
        """Plan, and return the tasks to go on with; those of the other paths are skipped.

        Where there is nothing to load, those of every path are, unless one is forced.

        :raises AirflowFailException: if it went wrong in a way that a retry cannot fix
        """
        with failing_at_once():
            before = path_before(context) if self.remember else None
            plan = self._made(known_shape(self.shape, context), before)
            branch = self._branch(plan)
        for line in plan.lines():
            self.log.info("%s", line)
        context["ti"].xcom_push(key=PLAN_KEY, value=plan.as_json())
        return branch

    def dry_run(self) -> None:
        """Print the plan; reads what the source names, chooses nothing."""
        for line in self._made(known_shape(self.shape), None).lines():
            self.log.info("dry run: %s", line)

    def _made(self, known: dict[str, Any], before: LoadPath | None) -> LoadPlan:
        hook, prefix = self.bulk_hook(self.table), self.channel_prefix or self.dag_id
        shape = ShapeSource(self.source, hook, self.storage_conn_id, prefix).shape(known)
        return plan_load(shape, LoadPolicy.of(self.policy, self.costs), before)

    def _branch(self, plan: LoadPlan) -> str | Iterable[str]:
        if plan.nothing_to_load and not plan.is_forced:
            return []
        branches = {LoadPath.STREAM: self.stream, LoadPath.COPY: self.copy, LoadPath.PIPE: self.pipe}
        branch = branches[plan.path]
        if not branch:
            raise ConfigurationError(
                f"the plan takes {plan.path.value} ({plan.reasons[0]}), and no task is named for it: give "
                f"{plan.path.value}=…, or force one of the others by policy={{'path': …}}"
            )
        return branch
