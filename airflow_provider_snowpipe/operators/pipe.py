"""What all operators on one pipe's channels share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.links.channel_page import CHANNEL_PAGE_LINKS, leave_channel_page, pipe_page
from airflow_provider_snowpipe.links.snowsight import SNOWSIGHT_KEY, SnowsightLink, snowsight_url
from airflow_provider_snowpipe.operators.account_operator import AccountOperator
from airflow_provider_snowpipe.operators.mapping import require_distinct_channels
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class PipeOperator(AccountOperator):
    """Base of the operators on channels of one pipe.

    :param table: the channels belong to this table's default pipe (templated)
    :param pipe: the channels belong to this pipe; not together with ``table`` (templated)
    """

    template_fields: Sequence[str] = ("table", "pipe", *AccountOperator.template_fields)
    operator_extra_links = (SnowsightLink(), *CHANNEL_PAGE_LINKS)

    def __init__(self, *, table: str | None = None, pipe: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.pipe = pipe
        if table is not None and pipe is not None:
            raise ConfigurationError(f"table {table!r} and pipe {pipe!r} are both given: drop one of them")

    @cached_property
    def hook(self) -> SnowpipeHook:
        """The hook of the pipe; made when first asked for, after templates are rendered."""
        return SnowpipeHook(
            self.snowflake_conn_id,
            table=self.table,
            pipe=self.pipe,
            database=self.database,
            schema=self.schema,
        )

    def prepare(self, context: Context) -> None:
        """Refuse mapped tasks on one channel, and leave the task's links."""
        require_distinct_channels(self, context)
        self._leave_links(context)

    def _leave_links(self, context: Context) -> None:
        url = snowsight_url(self.hook)
        if url is not None:
            context["ti"].xcom_push(key=SNOWSIGHT_KEY, value=url)
        leave_channel_page(context["ti"], self._page(context))

    def _page(self, context: Context) -> str:
        """The address of the page that shows what the task works on."""
        return pipe_page(self.hook)


def require_name(argument: str, value: str | None) -> str:
    """Return a name that must have been given, or rendered.

    :param argument: the argument's name
    :param value: its value
    :raises ConfigurationError: if it is empty
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{argument} is {value!r}: give a name")
    return value
