"""The operator that makes, pauses, refreshes and drops file pipes, and asks how they are."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_snowpipe.bulk.copy import CopyInto, CopyOptions, StagedChoice
from airflow_provider_snowpipe.bulk.file_pipe_admin import (
    IF_EXISTS,
    REFRESHED,
    FilePipeAdmin,
    PipeChange,
    PipeDefinition,
    PipeTarget,
)
from airflow_provider_snowpipe.bulk.load_history import timestamp
from airflow_provider_snowpipe.bulk.other_loaders import NOT_AUTHORIZED, remembered_loads
from airflow_provider_snowpipe.bulk.row_options import RowOptions
from airflow_provider_snowpipe.bulk.staged_files import FileLoad, StageReference
from airflow_provider_snowpipe.operators.account_operator import (
    FileOperator,
    check_arguments,
    failing_at_once,
    require_name,
    run_identity,
)
from airflow_provider_snowpipe.streaming.arguments import check_one_of
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    FilesGivenTwiceError,
    PipeNotRunningError,
    SqlError,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.bulk.copy import RunIdentity
    from airflow_provider_snowpipe.streaming.names import PipeName

_CREATE_ONLY = ("table", "stage", "columns", "expressions", "options", "auto_ingest", "integration")
ACTIONS: Mapping[str, tuple[str, ...]] = {
    "create": (*_CREATE_ONLY, "aws_sns_topic", "error_integration", "comment", "if_exists", "force"),
    "alter": ("error_integration", "comment"),
    "pause": (),
    "resume": ("force",),
    "refresh": ("prefix", "modified_after", "on_nothing", "force"),
    "drop": ("force",),
    "status": ("require_running",),
}
"""What can be done, and the arguments that each action takes beside ``pipe``."""
_DEFAULTS = {"auto_ingest": False, "if_exists": "check", "force": False, "on_nothing": "report"}


class SnowpipePipeOperator(FileOperator):
    """Make, alter, pause, resume, refresh or drop a file pipe, or ask for its state. Doing it again is safe.

    The task's value has ``pipe``, ``action``, ``changed`` (False where there was nothing to do),
    ``statements``, after ``refresh`` the ``files`` that the run submitted, and ``status``, the state after
    it: ``execution_state``, ``pending_files``, ``oldest_pending_path``, ``last_ingested_path``, ``error``, …

    :param pipe: the pipe (templated)
    :param action: ``create``, ``alter``, ``pause``, ``resume``, ``refresh``, ``drop`` or ``status``
    :param table: of ``create``: the table that it loads into (templated)
    :param stage: of ``create``: ``@stage``, ``@database.schema.stage`` or ``@%table``, with or without a path
        (templated)
    :param columns: of ``create``: the columns to fill, None for all in their order
    :param expressions: of ``create``: what to fill them with, as SQL such as ``$1:id::NUMBER``
    :param options: of ``create``: parameters of
        :class:`~airflow_provider_snowpipe.bulk.copy.CopyOptions`, as far as a pipe can have them
        (templated)
    :param auto_ingest: of ``create``: True loads what events announce, False what is submitted
    :param integration: of ``create``: the notification integration of these events (templated)
    :param aws_sns_topic: of ``create``: the topic that they come from instead (templated)
    :param error_integration: of ``create`` and ``alter``: the notification integration for errors (templated)
    :param comment: of ``create`` and ``alter``: a comment; an empty one removes it (templated)
    :param if_exists: of ``create``, what becomes of a pipe of that name that does something else: ``check``
        fails, ``keep`` leaves it, ``replace`` recreates it, which forgets the files that it has loaded
    :param force: of ``create`` with ``replace`` and of ``drop``: although files wait in the pipe's queue; of
        ``resume``: although it was paused for longer than 14 days; of ``refresh``: although the pipe was
        replaced since it has loaded some of the files
    :param prefix: of ``refresh``: only files whose path below the pipe's location begins so (templated)
    :param modified_after: of ``refresh``: only files that were staged after this time, at most 7 days ago;
        a timestamp or its text in ISO 8601 (templated)
    :param on_nothing: of ``refresh``: ``report`` or ``fail`` when there is no such file
    :param require_running: of ``status``: fail the task when the pipe is stopped or stalled
    :raises ConfigurationError: if an argument is wrong, or not one of the action's
    """

    template_fields: Sequence[str] = (
        "pipe",
        "table",
        "stage",
        "options",
        "integration",
        "aws_sns_topic",
        "error_integration",
        "comment",
        "prefix",
        "modified_after",
        *FileOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"options": "json"}

    def __init__(
        self,
        *,
        pipe: str,
        action: str,
        table: str | None = None,
        stage: str | None = None,
        columns: Sequence[str] | None = None,
        expressions: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
        auto_ingest: bool = False,
        integration: str | None = None,
        aws_sns_topic: str | None = None,
        error_integration: str | None = None,
        comment: str | None = None,
        if_exists: str = "check",
        force: bool = False,
        prefix: str | None = None,
        modified_after: Any = None,
        on_nothing: str = "report",
        require_running: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pipe = pipe
        self.action = action
        self.table = table
        self.stage = stage
        self.columns = columns
        self.expressions = expressions
        self.options = options
        self.auto_ingest = auto_ingest
        self.integration = integration
        self.aws_sns_topic = aws_sns_topic
        self.error_integration = error_integration
        self.comment = comment
        self.if_exists = if_exists
        self.force = force
        self.prefix = prefix
        self.modified_after = modified_after
        self.on_nothing = on_nothing
        self.require_running = require_running
        self._check_arguments()
        self.chosen_by = [] if prefix is None else ["prefix"]

    def execute(self, context: Context) -> dict[str, Any]:
        """Do the action.

        :raises PipeBusyError: if files wait that the action would lose
        :raises PipeNotRunningError: with ``require_running``
        """
        with failing_at_once(), self._admin() as admin:
            return self._done(admin, run_identity(context))

    def _done(self, admin: FilePipeAdmin, identity: RunIdentity) -> dict[str, Any]:
        before: Sequence[str] = ()
        if self.action == "refresh":
            try:
                before = self._submitted_before(admin, identity)
            except SqlError as error:
                if error.errno not in NOT_AUTHORIZED:
                    raise
                self.log.warning("which files were submitted or loaded before is not known: %s", error)
        change = self._act(admin, before)
        value: dict[str, Any] = {
            "pipe": str(admin.pipe),
            "action": self.action,
            "changed": change.changed,
            "statements": list(change.statements),
        }
        if self.action == "refresh":
            value["files"] = list(change.files)
            self.log.info("%d files were submitted to pipe %s", len(change.files), admin.pipe)
        if self.action == "drop":
            self.log.info("pipe %s %s", admin.pipe, "is dropped" if change.changed else "was gone already")
            return value
        status = admin.status()
        self.log.info("pipe %s: %s", admin.pipe, status)
        if self.require_running and not status.is_running:
            raise PipeNotRunningError(
                f"pipe {admin.pipe} does not load: {status}. Fix what the error names, or resume the pipe"
            )
        return {**value, "status": status.result()}

    def preview(self) -> list[str]:
        """Report which statements would be run now."""
        with self._admin(is_rehearsal=True) as admin:
            if self.action == "status":
                return [f"pipe {admin.pipe}: {admin.status()}"]
            change = self._act(admin)
        if not change.changed:
            return [f"pipe {admin.pipe}: nothing to do"]
        return list(change.statements)

    def _submitted_before(self, admin: FilePipeAdmin, identity: RunIdentity) -> list[str]:
        """Files that an earlier try's refresh may have submitted, whose names went with its worker.

        Snowflake names a file that waits, or that the pipe has loaded since, no second time.

        :raises FilesGivenTwiceError: if the pipe was replaced since it has loaded one, and has forgotten that
        """
        known, hook = admin.known(), self.hook
        if known is None or (identity.try_number == 1 and (self.force or known.created is None)):
            return []
        target = PipeTarget.of(admin.pipe, known.definition, auto_ingest=known.auto_ingest)
        pattern = RowOptions.of_statement(known.definition).options.get("PATTERN")
        staged = StagedChoice(str(target.stage), prefix=self.prefix, pattern=pattern).find(hook)
        database, schema, table = target.table
        history = hook.of_table(database, schema, table).loads_of(table, list(staged.files))
        since = dt.datetime.now(dt.UTC) - REFRESHED
        since = max(since, timestamp(self.modified_after) or since)
        taken = {
            path for path, file in staged.files.items() if file.staged_at is None or file.staged_at >= since
        }
        loads = [one for one in remembered_loads(staged, history, None) if one.path in taken]
        if not self.force:
            _refuse_forgotten(admin.pipe, known.created, loads)
        if identity.try_number == 1:
            return []
        done = {
            load.path
            for load in loads
            if load.pipe is None or (load.loaded_at is not None and load.loaded_at < identity.since)
        }
        below = f"{target.stage.path}/" if target.stage.path else ""
        return [path.removeprefix(below) for path in staged.files if path in taken - done]

    def _act(self, admin: FilePipeAdmin, before: Sequence[str] = ()) -> PipeChange:
        match self.action:
            case "create":
                return admin.create(self._definition(), self.if_exists, force=self.force)
            case "alter":
                return admin.alter(comment=self.comment, error_integration=self.error_integration)
            case "pause":
                return admin.pause()
            case "resume":
                return admin.resume(force=self.force)
            case "refresh":
                after = timestamp(self.modified_after)
                return admin.refresh(
                    prefix=self.prefix, modified_after=after, on_nothing=self.on_nothing, before=before
                )
            case "drop":
                return admin.drop(force=self.force)
        return PipeChange(False)

    @contextmanager
    def _admin(self, *, is_rehearsal: bool = False) -> Iterator[FilePipeAdmin]:
        pipe = self.pipe_name(require_name("pipe", self.pipe))
        with self.hook.sql_session(f"{self.action} pipe {pipe}") as run:
            yield FilePipeAdmin(run, pipe, is_rehearsal=is_rehearsal)

    def _definition(self) -> PipeDefinition:
        schema = self.hook.database_and_schema()
        copy = CopyInto(
            (*schema, require_name("table", self.table)),
            StageReference.parse(require_name("stage", self.stage), *schema).location(),
            CopyOptions.of(self.options),
            self.columns,
            self.expressions,
        )
        return PipeDefinition(
            copy,
            self.auto_ingest,
            self.integration,
            self.aws_sns_topic,
            self.error_integration,
            self.comment or None,
        )

    def _check_arguments(self) -> None:
        check_one_of("action", self.action, ACTIONS)
        taken = ACTIONS[self.action]
        for name in dict.fromkeys(argument for arguments in ACTIONS.values() for argument in arguments):
            value = getattr(self, name)
            if name not in taken and value is not None and value != _DEFAULTS.get(name, False):
                raise ConfigurationError(
                    f"{name} is {value!r}, which action={self.action!r} does not take: it takes "
                    f"{', '.join(taken) or 'none'} beside pipe"
                )
        check_one_of("if_exists", self.if_exists, IF_EXISTS)
        check_arguments(
            self, fail_or_report=["on_nothing"], switches=["auto_ingest", "force", "require_running"]
        )
        if self.action == "create" and not (self.table and self.stage):
            raise ConfigurationError(
                f"table is {self.table!r} and stage is {self.stage!r}: action='create' needs both"
            )


def _refuse_forgotten(pipe: PipeName, created: dt.datetime | None, loads: Sequence[FileLoad]) -> None:
    """Refuse files that a pipe of this name loaded before it was replaced, which forgets them.

    :raises FilesGivenTwiceError: if there are such files
    """
    forgotten = tuple(
        dict.fromkeys(
            load.path
            for load in loads
            if load.pipe == str(pipe) and created and load.loaded_at and load.loaded_at < created
        )
    )
    if forgotten:
        raise FilesGivenTwiceError(
            f"pipe {pipe} was replaced at {created:%Y-%m-%d %H:%M:%S %Z} and has forgotten that it loaded "
            f"{len(forgotten):,} of these files before, such as {forgotten[0]!r}: a refresh would load their "
            "rows again. Give modified_after=… or prefix=… for newer files, or set force=True",
            files=forgotten,
        )
