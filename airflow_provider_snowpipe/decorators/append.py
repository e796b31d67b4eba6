"""``@task.snowpipe_append``: append the rows that a function returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import DecoratedOperator, context_merge, determine_kwargs
from airflow.providers.common.compat.sdk import task_decorator_factory as _factory

from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, TaskDecorator

    from airflow_provider_snowpipe.streaming.append import AppendRules, NumberedRows


class SnowpipeAppendDecoratedOperator(DecoratedOperator, SnowpipeAppendRowsOperator):
    """Call a function and append the rows it returns, as :class:`SnowpipeAppendRowsOperator` does."""

    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *(name for name in SnowpipeAppendRowsOperator.template_fields if name != "rows"),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **SnowpipeAppendRowsOperator.template_fields_renderers,
    }
    custom_operator_name: str = "@task.snowpipe_append"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._returned: Any = None

    def perform(self, context: Context) -> dict[str, Any]:
        """Call the function, then append what it returned."""
        context_merge(context, self.op_kwargs)
        arguments = determine_kwargs(self.python_callable, self.op_args, context)
        self._returned = self.python_callable(*self.op_args, **arguments)
        return super().perform(context)

    def preview(self) -> list[str]:
        """Report that the function is not called without a run."""
        name = self.python_callable.__name__
        return [f"would append the rows that {name}() returns; it is not called here"]

    def _numbered(self, channel: str, rules: AppendRules) -> NumberedRows:
        self.rows = [] if self._returned is None else self._returned
        try:
            return super()._numbered(channel, rules)
        finally:
            self.rows = None


def snowpipe_append_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a function a task that appends the rows it returns.

    :param python_callable: the function
    :param kwargs: arguments of :class:`SnowpipeAppendRowsOperator`, without ``rows``, ``file`` and ``sql``
    """
    return _factory(
        python_callable=python_callable, decorated_operator_class=SnowpipeAppendDecoratedOperator, **kwargs
    )
