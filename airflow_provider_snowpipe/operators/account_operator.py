"""What operators share: an account, a stage's files, a pipe's channels, and the run whose work they do."""

from __future__ import annotations

import datetime as dt
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, BaseOperator

from airflow_provider_snowpipe.bulk.copy import RunIdentity
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook, refuse_two_pipes
from airflow_provider_snowpipe.links.snowpipe import (
    CHANNEL_PAGE_LINKS,
    SnowsightLink,
    leave_channel_page,
    pipe_page,
    snowsight_url,
)
from airflow_provider_snowpipe.metrics import count_change
from airflow_provider_snowpipe.operators.source_record import with_earlier_source
from airflow_provider_snowpipe.streaming.arguments import FAIL_OR_REPORT
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    SnowpipeError,
    SourceChangedError,
    error_line,
)
from airflow_provider_snowpipe.streaming.names import PipeName

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
        text = error_line(type(error).__name__, error)
        if isinstance(error, SourceChangedError):
            text = with_earlier_source(text)
        raise AirflowFailException(text) from error


def check_arguments(
    operator: Any,
    *,
    fail_or_report: Iterable[str] = (),
    seconds: Iterable[str] = (),
    switches: Iterable[str] = (),
) -> None:
    """Make sure that arguments have values that no rendering of templates can fix.

    :param fail_or_report: names of those that are ``fail`` or ``report``
    :param seconds: names of those that are numbers of seconds
    :param switches: names of those that are True or False and no template fields
    :raises ConfigurationError: if one has another value; names it
    """
    for name in fail_or_report:
        if (value := getattr(operator, name)) not in FAIL_OR_REPORT:
            raise ConfigurationError(f"{name} is {value!r}: it must be one of {list(FAIL_OR_REPORT)}")
    for name in seconds:
        value = getattr(operator, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and math.isfinite(value) and value >= 0):
            raise ConfigurationError(f"{name} is {value!r}: give a number of seconds, 0 or more")
    for name in switches:
        if not isinstance(value := getattr(operator, name), bool):
            raise ConfigurationError(f"{name} is {value!r}: give True or False; no template is rendered")


CHOICE = ("files", "prefix", "pattern")
"""Arguments that choose files; without any of them, all are."""


class AccountArguments(BaseOperator):
    """The arguments of every operator on an account.

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

    chosen_by: Sequence[str] = ()
    """Those of :data:`CHOICE` that the author gives."""

    def bulk_hook(self, table: str | None = None, pipe: str | None = None) -> SnowpipeBulkHook:
        """The hook of the account, and of a table and a file pipe in it; after templates are rendered.

        :raises ConfigurationError: if what chooses files was rendered to None, which would choose all of them
        """
        lost = [name for name in self.chosen_by if getattr(self, name) is None]
        if lost:
            raise ConfigurationError(
                f"{lost[0]} was rendered to None, as the XCom of a task that returned nothing is; without it "
                "every file would be chosen: return what is to be loaded, or skip this task"
            )
        return SnowpipeBulkHook(
            self.snowflake_conn_id, table=table, pipe=pipe, database=self.database, schema=self.schema
        )


class AccountOperator(AccountArguments):
    """Base of the operators on channels, staged files and file pipes.

    An error that no retry can fix fails the task at once (:func:`failing_at_once`); every other one is raised
    as it is.
    """

    def dry_run(self) -> None:
        """Print what would be done; reads from the service, changes nothing."""
        for line in self.preview():
            self.log.info("dry run: %s", line)

    @abstractmethod
    def preview(self) -> list[str]:
        """Describe what :meth:`execute` would do now."""


# -- Whose work a task does, in the same words on every try of it ----------------------------------------


def run_identity(context: Context) -> RunIdentity:
    """Name the work by DAG, run, task and map index."""
    ti: Any = context["ti"]
    run: Any = context["dag_run"]
    began = getattr(run, "start_date", None) or getattr(ti, "start_date", None) or dt.datetime.now(dt.UTC)
    names = (ti.dag_id, ti.run_id, ti.task_id, str(ti.map_index))
    began_once = getattr(run, "start_date", None) is not None and getattr(run, "clear_number", None) == 0
    first = min(began, getattr(run, "run_after", None) or began)
    return RunIdentity(names, began, max(1, getattr(ti, "try_number", 1)), began_once, first)


# -- What the operators of staged files and file pipes share ---------------------------------------------

FILES_KEY = "files"
"""The XCom with the paths of files, as the next operator or sensor of files takes them."""


class FileOperator(AccountOperator):
    """Base of the operators of files: stages, COPY, and the pipes that load from stages."""

    @cached_property
    def hook(self) -> SnowpipeBulkHook:
        """The hook of the account; made when first asked for, after templates are rendered."""
        return self.bulk_hook()

    def pipe_name(self, pipe: str) -> PipeName:
        """The full name of a pipe."""
        return PipeName(*self.hook.database_and_schema(), pipe)


# -- What all operators on one pipe's channels share -----------------------------------------------------


class PipeArguments(AccountArguments):
    """The arguments of every operator on channels of one pipe.

    :param table: the channels belong to this table's default pipe (templated)
    :param pipe: the channels belong to this pipe; not together with ``table`` (templated)
    """

    template_fields: Sequence[str] = ("table", "pipe", *AccountArguments.template_fields)

    def __init__(self, *, table: str | None = None, pipe: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.pipe = pipe
        refuse_two_pipes(table, pipe)

    def _pipe_hook(self) -> SnowpipeHook:
        return SnowpipeHook.of(self)


class PipeOperator(PipeArguments, AccountOperator):
    """Base of the operators on channels of one pipe."""

    operator_extra_links = (SnowsightLink(), *CHANNEL_PAGE_LINKS)

    @cached_property
    def hook(self) -> SnowpipeHook:
        """The hook of the pipe; made when first asked for, after templates are rendered."""
        return self._pipe_hook()

    def execute(self, context: Context) -> dict[str, Any]:
        """Leave the task's links, and do what the operator is for.

        :raises AirflowFailException: if it went wrong in a way that a retry cannot fix
        """
        with failing_at_once():
            leave_links(context, self.hook, self._page(context))
            return self.perform(context)

    @abstractmethod
    def perform(self, context: Context) -> dict[str, Any]:
        """Do the work and return the task's value."""

    def _count_change(self, what: str) -> None:
        """Count what was done to channels, for Airflow's metrics."""
        count_change(what, pipe=str(self.hook.pipe_name()), operator=type(self).__name__)

    def _page(self, context: Context) -> str:
        """The address of the page that shows what the task works on."""
        return pipe_page(self.hook)


def leave_links(context: Context, hook: SnowpipeHook, page: str) -> None:
    """Leave the addresses behind a task's links, from its first step on."""
    url = snowsight_url(hook)
    if url is not None:
        SnowsightLink().leave(context["ti"], url)
    leave_channel_page(context["ti"], page)


def require_name(argument: str, value: str | None) -> str:
    """Return a name that must have been given, or rendered.

    :raises ConfigurationError: if it is empty
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{argument} is {value!r}: give a name")
    return value
