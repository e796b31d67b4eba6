"""What operators share: one account, a stage's files, a pipe's channels, and the run whose work they do."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, BaseOperator

from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.links.snowpipe import (
    CHANNEL_PAGE_LINKS,
    SNOWSIGHT_KEY,
    SnowsightLink,
    leave_channel_page,
    pipe_page,
    snowsight_url,
)
from airflow_provider_snowpipe.metrics import count_change
from airflow_provider_snowpipe.spark.submit.checked_values import RowPolicy
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    SnowpipeError,
    SourceMissingError,
    error_line,
)
from airflow_provider_snowpipe.streaming.names import PipeName

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.bulk.copy import RunIdentity
    from airflow_provider_snowpipe.spark.sources.source import SourceSecrets, SourceSpec
    from airflow_provider_snowpipe.spark.submit.checked_values import OnError
    from airflow_provider_snowpipe.streaming.table_schema import TableColumn


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
        raise AirflowFailException(error_line(type(error).__name__, error)) from error


FAIL_OR_REPORT = ("fail", "report")


def check_arguments(
    operator: Any, *, fail_or_report: Iterable[str] = (), seconds: Iterable[str] = ()
) -> None:
    """Make sure that arguments have values that no rendering of templates can fix.

    :param operator: the operator
    :param fail_or_report: names of those that are ``fail`` or ``report``
    :param seconds: names of those that are numbers of seconds
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

    def bulk_hook(self, table: str | None = None) -> SnowpipeBulkHook:
        """The hook of the account, and of a table in it.

        :param table: the table
        """
        return SnowpipeBulkHook(
            self.snowflake_conn_id, table=table, database=self.database, schema=self.schema
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
    """Name the work by DAG, run, task and map index.

    :param context: the task's context
    """
    from airflow_provider_snowpipe.bulk.copy import RunIdentity

    ti: Any = context["ti"]
    run: Any = context["dag_run"]
    began = getattr(run, "start_date", None) or getattr(ti, "start_date", None) or dt.datetime.now(dt.UTC)
    names = (ti.dag_id, ti.run_id, ti.task_id, str(ti.map_index))
    return RunIdentity(names, began, max(1, getattr(ti, "try_number", 1)))


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
        """The full name of a pipe.

        :param pipe: its name
        """
        return PipeName(*self.hook.database_and_schema(), pipe)


# -- Mapped instances of a task must not share a channel: a channel has one writer -----------------------

_IDENTITY = ("channel", "table", "pipe", "database", "schema", "snowflake_conn_id")
_VARIES = re.compile(r"map_index|xcom_pull")


def require_distinct_channels(operator: Any, context: Mapping[str, Any]) -> None:
    """Refuse mapped instances of which two would have the same channel of the same pipe.

    :param operator: one mapped instance
    :param context: its context
    :raises ConfigurationError: if two have; names the argument
    """
    index = getattr(context.get("ti"), "map_index", None)
    if index is None or index < 0 or not operator.has_dag() or getattr(operator, "channel", None) is None:
        return
    mapped = operator.dag.task_dict.get(operator.task_id)
    given = getattr(getattr(mapped, "expand_input", None), "value", None)
    if mapped is None or given is None:
        _require_own_channel_in_group(mapped)
        return
    constant = {name: mapped.partial_kwargs.get(name) for name in _IDENTITY}
    if any("map_index" in str(value) for value in constant.values()):
        return
    if isinstance(given, Mapping):
        twice = _twice_in_product({name: _resolved(value, context) for name, value in given.items()})
    else:
        twice = _twice([{n: one.get(n) for n in _IDENTITY} for one in _resolved(given, context)])
    if twice is not None:
        raise ConfigurationError(
            f"mapped task {operator.task_id!r}: more than one instance would use {twice}, and a channel "
            "has one writer. Map over channel=… with a different name for each, or put {{ ti.map_index }} "
            "into it"
        )


def _require_own_channel_in_group(task: Any) -> None:
    """Refuse a task of a mapped group whose channel is the same in every instance of the group.

    An argument of the group's function is an object before it is rendered, and what ``xcom_pull`` gives may
    be another in each instance.

    :param task: the task as the DAG has it, None where it has none of that name
    :raises ConfigurationError: if it is
    """
    if task is None or task.get_closest_mapped_task_group() is None:
        return
    given = {name: getattr(task, name, None) for name in _IDENTITY}
    if all(
        value is None or (isinstance(value, str) and not _VARIES.search(value)) for value in given.values()
    ):
        raise ConfigurationError(
            f"task {task.task_id!r} of a mapped task group: every instance would use "
            f"channel={given['channel']!r}, and a channel has one writer. Make it an argument of the group "
            "that is mapped over, or put {{ ti.map_index }} into it"
        )


def _twice_in_product(lists: Mapping[str, Sequence[Any]]) -> str | None:
    """Arguments of ``expand`` are combined each with each, so every other one multiplies the channels."""
    own = [name for name in lists if name in _IDENTITY]
    others = [name for name in lists if name not in _IDENTITY and len(lists[name]) > 1]
    if not own or others:
        return f"the same channel (mapped over {', '.join(others or sorted(lists)) or 'nothing'})"
    for name in own:
        again = _twice([{name: value} for value in lists[name]])
        if again is not None:
            return again
    return None


def _twice(identities: Sequence[Mapping[str, Any]]) -> str | None:
    seen: set[str] = set()
    for identity in identities:
        key = json.dumps(identity, sort_keys=True, default=str)
        if key in seen and "map_index" not in key:
            return ", ".join(f"{name}={value!r}" for name, value in identity.items() if value is not None)
        seen.add(key)
    return None


def _resolved(value: Any, context: Mapping[str, Any]) -> list[Any]:
    """The values of an argument of ``expand``, fetched where they are the XCom of another task."""
    if hasattr(value, "resolve"):
        value = value.resolve(context)
    return list(value.items()) if isinstance(value, Mapping) else list(value)


# -- Nor must two sources share one: its token shows a file and a line, and not of which directory -------

_NAMES = ("table", "pipe", "database", "schema", "snowflake_conn_id", "channel_prefix", "source_name")


def require_own_channels(operator: Any, context: Mapping[str, Any]) -> None:
    """Refuse a source whose channels another task of the DAG, or another mapped instance, loads as well.

    Two directories of one name, such as ``eu/orders`` and ``us/orders``, have the same channels unless
    ``source_name`` is given. What is written as a template is not compared.

    :param operator: the task, rendered
    :param context: its context
    :raises ConfigurationError: if there is such a source
    """
    from airflow_provider_snowpipe.spark.submit.source import plain_source, shared_channel

    own = plain_source(operator.source)
    if own is None or not operator.has_dag():
        return
    tasks = operator.dag.task_dict
    task = tasks.get(operator.task_id)
    given = getattr(getattr(task, "expand_input", None), "value", None)
    if given is not None:
        names = {name: getattr(operator, name) for name in _NAMES}
        others = [("another instance", one) for one in _instances(task.partial_kwargs, given, context)]
    else:
        names = {name: getattr(task, name, None) for name in _NAMES}
        others = [
            (f"task {one.task_id!r}", {name: getattr(one, name) for name in (*_NAMES, "source")})
            for one in tasks.values()
            if one is not task and all(hasattr(one, name) for name in (*_NAMES, "source"))
        ]
    prefix = str(operator.channel_prefix or own.channel_prefix or operator.dag_id)
    for whose, other in others:
        source = plain_source(other.get("source"))
        name = operator.source_name or own.default_name
        if source is None or name != (other.get("source_name") or source.default_name):
            continue
        if any(key in other and other[key] != names[key] for key in _NAMES if key != "source_name"):
            continue
        channel = shared_channel(own, source, prefix, name)
        if channel is not None:
            raise ConfigurationError(
                f"task {operator.task_id!r} loads {own.address!r}, and {whose} {source.address!r}, both into "
                f"channel {channel!r} of one table: its offset token does not show the source, so that rows "
                "of one would pass for those of the other. Give each a source_name of its own"
            )


def _instances(
    partial: Mapping[str, Any], given: Any, context: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    """The arguments of the mapped instances, as far as they name sources and channels."""
    if not isinstance(given, Mapping):
        for one in _resolved(given, context):
            yield {**partial, **one}
        return
    lists = {name: _resolved(value, context) for name, value in given.items() if name in (*_NAMES, "source")}
    for values in product(*lists.values()):
        yield {**partial, **dict(zip(lists, values, strict=True))}


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
        if table is not None and pipe is not None:
            raise ConfigurationError(f"table {table!r} and pipe {pipe!r} are both given: drop one of them")

    def _pipe_hook(self) -> SnowpipeHook:
        return SnowpipeHook(
            self.snowflake_conn_id,
            table=self.table,
            pipe=self.pipe,
            database=self.database,
            schema=self.schema,
        )


class PipeOperator(PipeArguments, AccountOperator):
    """Base of the operators on channels of one pipe."""

    operator_extra_links = (SnowsightLink(), *CHANNEL_PAGE_LINKS)

    @cached_property
    def hook(self) -> SnowpipeHook:
        """The hook of the pipe; made when first asked for, after templates are rendered."""
        return self._pipe_hook()

    def execute(self, context: Context) -> dict[str, Any]:
        """Refuse mapped tasks on one channel, leave the task's links, and do what the operator is for.

        :raises AirflowFailException: if it went wrong in a way that a retry cannot fix
        """
        with failing_at_once():
            require_distinct_channels(self, context)
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
    """Leave the addresses behind a task's links, from its first step on.

    :param context: the task's context
    :param hook: of the pipe
    :param page: the address of the page of its channels
    """
    url = snowsight_url(hook)
    if url is not None:
        context["ti"].xcom_push(key=SNOWSIGHT_KEY, value=url)
    leave_channel_page(context["ti"], page)


def require_name(argument: str, value: str | None) -> str:
    """Return a name that must have been given, or rendered.

    :param argument: the argument's name
    :param value: its value
    :raises ConfigurationError: if it is empty
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{argument} is {value!r}: give a name")
    return value


# -- An operator's row policy, and what a load does about its table by it before it starts ---------------


class RowPolicyOperator(PipeArguments):
    """The arguments of operators that load rows through channels.

    :param wait_for_commit: False ends the task when the rows are received, committed or not
    :param wait_for_completion: ``wait_for_commit`` by the name that Airflow's other providers have for it
    :param commit_timeout: seconds to wait for a channel's commit
    :param row_policy: what becomes of rows that do not fit the table, and of the table: a
        :class:`~airflow_provider_snowpipe.sources.RowPolicy`, or a mapping of its fields
    :param on_error: a field of ``row_policy``, which is not given then; so are the others
    :param check_rows: likewise
    :param dead_letter_path: likewise (templated)
    :param create_table: likewise
    :param evolve_columns: likewise
    :param unknown_columns: likewise
    :param kwargs: arguments of the operator
    :raises ConfigurationError: if a value is wrong, or given twice
    """

    template_fields: Sequence[str] = ("dead_letter_path", *PipeArguments.template_fields)
    on_error: OnError
    check_rows: bool
    dead_letter_path: str | None
    create_table: str | None
    evolve_columns: bool | None
    unknown_columns: str

    def __init__(
        self,
        *,
        wait_for_commit: bool = True,
        wait_for_completion: bool | None = None,
        commit_timeout: float = 600.0,
        row_policy: RowPolicy | Mapping[str, Any] | None = None,
        on_error: str | None = None,
        check_rows: bool | None = None,
        dead_letter_path: str | None = None,
        create_table: str | None = None,
        evolve_columns: bool | None = None,
        unknown_columns: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.wait_for_commit = wait_for_commit if wait_for_completion is None else wait_for_completion
        self.commit_timeout = commit_timeout
        single = {
            "on_error": on_error,
            "check_rows": check_rows,
            "dead_letter_path": dead_letter_path,
            "create_table": create_table,
            "evolve_columns": evolve_columns,
            "unknown_columns": unknown_columns,
        }
        given = {name: value for name, value in single.items() if value is not None}
        if row_policy is not None and given:
            name, value = next(iter(given.items()))
            raise ConfigurationError(
                f"{name}={value!r} is given beside row_policy: give RowPolicy({name}={value!r}, …)"
            )
        if not isinstance(row_policy, RowPolicy):
            row_policy = RowPolicy.from_mapping(given if row_policy is None else row_policy)
        # A field each: what an earlier release has serialized, and templates, are by these names.
        for one in fields(RowPolicy):
            setattr(self, one.name, getattr(row_policy, one.name))

    def _schema_policy(self) -> SchemaPolicy:
        return SchemaPolicy(RowPolicy(**{one.name: getattr(self, one.name) for one in fields(RowPolicy)}))


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """What an author's policy does about a table.

    :param policy: the policy
    """

    policy: RowPolicy

    def prepare(
        self,
        hook: SnowpipeHook,
        source: SourceSpec,
        log: Callable[..., None],
        secrets: SourceSecrets | None = None,
    ) -> dict[str, Any]:
        """Make or widen the table, and return what the plan must know of rows.

        :param hook: for the pipe and its account
        :param source: what is to be loaded
        :param log: writes a line to the task's log
        :param secrets: the source's passwords and keys
        :returns: values of the plan
        :raises ConfigurationError: if the table lacks columns and must not get them
        :raises SqlError: if a statement fails
        """
        if self.changes_table:
            from airflow_provider_snowpipe.spark.submit.source import first_rows

            rows = first_rows(source, secrets)
            if rows.lines:
                self.change_table(hook, rows.lines, source.address, log, rows.types)
            elif self.policy.create_table is not None:
                raise SourceMissingError(
                    f"source {source.address!r} has no row yet from which columns could be inferred: make "
                    "the table first, or run when there are rows"
                )
        return self.rules(hook, log)

    @property
    def changes_table(self) -> bool:
        """True if the table is made or widened by the rows."""
        return self.policy.create_table is not None or self.policy.evolve_columns is not None

    def rules(self, hook: SnowpipeHook, log: Callable[..., None]) -> dict[str, Any]:
        """What the plan must know of rows, of the table as it is now.

        :param hook: for the pipe and its account
        :param log: writes a line to the task's log
        :raises SqlError: if the table cannot be described
        """
        known = self.known_columns(hook, log)
        return {
            "on_error": self.policy.on_error,
            "check_rows": self.policy.check_rows,
            "dead_letter_path": self.policy.dead_letter_path or None,
            "columns": hook.table_columns() if self.policy.checks_rows else known,
            "unknown_columns": self.policy.unknown_columns if known else "ignore",
        }

    def known_columns(self, hook: SnowpipeHook, log: Callable[..., None]) -> tuple[TableColumn, ...]:
        """The columns that keys of rows have to match; none where they need not, or that is not known.

        :param hook: for the pipe and its account
        :param log: writes a line to the task's log
        :raises SnowpipeError: if the table cannot be described, and unknown keys are to fail the task
        """
        if self.policy.unknown_columns == "ignore":
            return ()
        try:
            return hook.columns_for_keys()
        except SnowpipeError as error:
            if self.policy.unknown_columns == "fail":
                raise
            log("keys of rows are not held against the table's columns: %s", error)
            return ()

    def change_table(
        self,
        hook: SnowpipeHook,
        rows: Sequence[bytes],
        address: str,
        log: Callable[..., None],
        types: Mapping[str, str] | None = None,
    ) -> None:
        """Make the table, or widen it, for the keys of some rows.

        :param hook: for the pipe and its account
        :param rows: the rows as NDJSON
        :param address: where they come from, in words
        :param log: writes a line to the task's log
        :param types: types of columns, by name, where the rows' own schema has them
        :raises ConfigurationError: if the table lacks columns and must not get them
        :raises SqlError: if a statement fails
        """
        from airflow_provider_snowpipe.streaming.row_values import columns_of_rows
        from airflow_provider_snowpipe.streaming.table_schema import (
            add_columns,
            create_table_if_missing,
            missing_columns,
            table_of,
        )

        table = table_of(hook.pipe_name())
        required = columns_of_rows(rows, types)
        if self.policy.create_table is not None:
            hook.run_sql(create_table_if_missing(table, required))
        if self.policy.evolve_columns is None:
            return
        missing = missing_columns(required, hook.table_columns())
        if not missing:
            return
        named = ", ".join(column.ddl for column in missing)
        if not self.policy.evolve_columns:
            raise ConfigurationError(
                f"table {table} lacks {len(missing)} column(s) that source {address!r} has: {named}. "
                "Nothing was sent, since their values would be passed over: set evolve_columns=True to add "
                "them, or evolve_columns=None to load without them"
            )
        hook.run_sql(add_columns(table, missing))
        log("table %s: added %s", table, named)
