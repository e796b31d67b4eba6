"""What every operator on something of a Snowflake account shares."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, BaseOperator

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.streaming.errors import SnowpipeError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


@contextmanager
def failing_at_once() -> Iterator[None]:
    """Fail the task without another try where no other try can help.

    :raises AirflowFailException: instead of such an error
    """
    try:
        yield
    except SnowpipeError as error:
        if error.retryable:
            raise
        raise AirflowFailException(f"snowpipe error: {type(error).__name__}: {error}") from error


class AccountOperator(BaseOperator):
    """Base of the operators on channels, staged files and file pipes.

    An error that no retry can mend fails the task at once; every other one is raised as it is.

    :param database: where pipe, stage and table are, None for the connection's (templated)
    :param schema: the same (templated)
    :param snowflake_conn_id: a connection of type ``snowflake`` or ``snowpipe`` (templated)
    """

    template_fields: Sequence[str] = ("database", "schema", "snowflake_conn_id")
    ui_color = "#29b5e8"

    def __init__(
        self,
        *,
        database: str | None = None,
        schema: str | None = None,
        snowflake_conn_id: str = SnowpipeHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.database = database
        self.schema = schema
        self.snowflake_conn_id = snowflake_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Do what the operator is for.

        :raises AirflowFailException: if it went wrong in a way that a retry cannot mend
        """
        with failing_at_once():
            self.prepare(context)
            return self.perform(context)

    def dry_run(self) -> None:
        """Print what would be done; reads from the service, changes nothing."""
        for line in self.preview():
            self.log.info("dry run: %s", line)

    def prepare(self, context: Context) -> None:
        """Do what comes before the work itself, which may be nothing."""

    @abstractmethod
    def perform(self, context: Context) -> dict[str, Any]:
        """Do the work and return the task's value."""

    @abstractmethod
    def preview(self) -> list[str]:
        """Say in words what :meth:`perform` would do now."""
