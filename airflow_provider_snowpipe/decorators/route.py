"""``@task.snowpipe_route``: choose tasks by the load path that suits what a function describes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import DecoratedOperator, context_merge, determine_kwargs
from airflow.providers.common.compat.sdk import task_decorator_factory as _factory

from airflow_provider_snowpipe.operators.branch import SnowpipeBranchOperator
from airflow_provider_snowpipe.sources import shape_values

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, TaskDecorator


class SnowpipeRouteDecoratedOperator(DecoratedOperator, SnowpipeBranchOperator):
    """Call a function and branch by what it returns, as :class:`SnowpipeBranchOperator` does."""

    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *(name for name in SnowpipeBranchOperator.template_fields if name != "source"),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **SnowpipeBranchOperator.template_fields_renderers,
    }
    custom_operator_name: str = "@task.snowpipe_route"

    def execute(self, context: Context) -> str | Iterable[str] | None:
        """Branch by what the function returns; the decorated base would take that for the task's value."""
        return self.do_branch(context, self.choose_branch(context))

    def choose_branch(self, context: Context) -> str | Iterable[str]:
        """Call the function, and plan for what it returned."""
        context_merge(context, self.op_kwargs)
        arguments = determine_kwargs(self.python_callable, self.op_args, context)
        self.source = shape_values(self.python_callable(*self.op_args, **arguments))
        try:
            return super().choose_branch(context)
        finally:
            self.source = None


def snowpipe_route_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a function a task that chooses the tasks to run by the load path that suits its data.

    :param python_callable: the function
    :param kwargs: arguments of :class:`SnowpipeBranchOperator`, without ``source``
    """
    return _factory(
        python_callable=python_callable, decorated_operator_class=SnowpipeRouteDecoratedOperator, **kwargs
    )
