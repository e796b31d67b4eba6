"""What all operators on one pipe's channels share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, BaseOperator

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.links.channel_page import CHANNEL_PAGE_LINKS, leave_channel_page, pipe_page
from airflow_provider_snowpipe.links.snowsight import SNOWSIGHT_KEY, SnowsightLink, snowsight_url
from airflow_provider_snowpipe.operators.mapping import require_distinct_channels
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError
from airflow_provider_snowpipe.streaming.retry_advice import is_permanent

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class PipeOperator(BaseOperator):
    """Base of the operators on channels of one pipe.

    An error that no retry can mend fails the task at once; every other one is raised as it is.

    :param table: the channels belong to this table's default pipe (templated)
    :param pipe: the channels belong to this pipe; not together with ``table`` (templated)
    :param database: the pipe's database, None for the connection's (templated)
    :param schema: the pipe's schema, None for the connection's (templated)
    :param snowflake_conn_id: a connection of type ``snowflake`` or ``snowpipe`` (templated)
    """

    template_fields: Sequence[str] = ("table", "pipe", "database", "schema", "snowflake_conn_id")
    operator_extra_links = (SnowsightLink(), *CHANNEL_PAGE_LINKS)
    ui_color = "#29b5e8"

    def __init__(
        self,
        *,
        table: str | None = None,
        pipe: str | None = None,
        database: str | None = None,
        schema: str | None = None,
        snowflake_conn_id: str = SnowpipeHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.pipe = pipe
        self.database = database
        self.schema = schema
        self.snowflake_conn_id = snowflake_conn_id
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

    def execute(self, context: Context) -> dict[str, Any]:
        """Do what the operator is for.

        :raises AirflowFailException: if it went wrong in a way that a retry cannot mend
        """
        try:
            require_distinct_channels(self, context)
            self._leave_links(context)
            return self.perform(context)
        except SnowpipeError as error:
            if is_permanent(error):
                raise AirflowFailException(f"snowpipe error: {type(error).__name__}: {error}") from error
            raise

    def dry_run(self) -> None:
        """Print what would be done; reads from the service, changes nothing."""
        for line in self.preview():
            self.log.info("dry run: %s", line)

    @abstractmethod
    def perform(self, context: Context) -> dict[str, Any]:
        """Do the work and return the task's value."""

    @abstractmethod
    def preview(self) -> list[str]:
        """Say in words what :meth:`perform` would do now."""

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
