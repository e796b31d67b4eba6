"""What the operators of staged files and file pipes share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, BaseOperator

from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.streaming.errors import SnowpipeError
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.retry_advice import is_permanent

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


FILES_KEY = "files"
"""The XCom with the paths of files, as the next operator or sensor of files takes them."""


@contextmanager
def failing_at_once() -> Iterator[None]:
    """Fail the task without another try where no other try can mend the error.

    :raises AirflowFailException: instead of such an error
    """
    try:
        yield
    except SnowpipeError as error:
        if is_permanent(error):
            raise AirflowFailException(f"snowpipe error: {type(error).__name__}: {error}") from error
        raise


class FileOperator(BaseOperator):
    """Base of the operators of files: stages and the pipes that load from them.

    An error that no retry can mend fails the task at once; every other one is raised as it is.

    :param database: where stage, pipe and table are, None for the connection's (templated)
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
        snowflake_conn_id: str = SnowpipeBulkHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.database = database
        self.schema = schema
        self.snowflake_conn_id = snowflake_conn_id

    @cached_property
    def hook(self) -> SnowpipeBulkHook:
        """The hook of the account; made when first asked for, after templates are rendered."""
        return SnowpipeBulkHook(self.snowflake_conn_id, database=self.database, schema=self.schema)

    def execute(self, context: Context) -> dict[str, Any]:
        """Do what the operator is for.

        :raises AirflowFailException: if it went wrong in a way that a retry cannot mend
        """
        with failing_at_once():
            return self.perform(context)

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

    def pipe_name(self, pipe: str) -> PipeName:
        """The full name of a pipe.

        :param pipe: its name
        """
        return PipeName(*self.hook.place(), pipe)
