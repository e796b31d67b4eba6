"""The operator that copies staged files into a table, once per run."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import conf

from airflow_provider_snowpipe.assets.events import describe_file_load
from airflow_provider_snowpipe.bulk.copy import (
    LOAD_SKIPPED,
    CopyInto,
    CopyOptions,
    CopyOutcome,
    CopyRun,
    RunIdentity,
)
from airflow_provider_snowpipe.bulk.load_history import running_statements
from airflow_provider_snowpipe.bulk.run_files import run_folder
from airflow_provider_snowpipe.bulk.staged_files import (
    COPY_HISTORY,
    ExpectedFiles,
    FileLoad,
    StagedFile,
    StagedFiles,
    StageReference,
    file_names,
    is_of_stage,
    newest_loads,
    staged_at,
)
from airflow_provider_snowpipe.bulk.two_loaders import OtherLoaders
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.lineage import ReportsLineage, TaskLineage
from airflow_provider_snowpipe.operators.account_operator import (
    FileOperator,
    check_fail_or_report,
    check_seconds,
    run_identity,
)
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    FilesGivenTwiceError,
    NothingStagedError,
    SqlError,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.bulk.copy import Rows


class SnowpipeCopyOperator(ReportsLineage, FileOperator):
    """Load staged files into a table by COPY INTO: once per run, whatever becomes of worker and connection.

    The files are listed first, so every statement names its files. Each goes through the SQL API under a
    request id that every try of this task in this run derives alike, from DAG, run, task, map index,
    statement and the files' checksums: a try after an unknown outcome waits for a statement of an earlier one
    that still runs, and submits only what neither that nor load history knows. What each file's status is, is
    read from the result.

    Files that a pipe has loaded, has in its queue or gets by events are refused, since COPY and pipes
    do not share their memory of files; so are those that another task is about to give to a pipe. When COPY
    has run, its files are searched for once more at the pipes and in load history, and the task fails where
    somebody has loaded them in the meantime.

    The task's value has ``rows_loaded``, ``rejected``, ``files`` (each file's status, rows and first error by
    its path below the stage) and ``loaded_before``: the files that COPY skipped, and their loads by history.

    :param table: the table (templated)
    :param stage: ``@stage``, ``@database.schema.stage``, ``@%table`` or ``@~``, with or without a path
        (templated)
    :param files: paths below that, a list or its JSON text (templated)
    :param prefix: instead of files, the start of their paths (templated)
    :param pattern: instead of files, a regular expression that the whole path matches (templated)
    :param columns: the columns to fill, None for all in their order
    :param expressions: what to fill them with, as SQL such as ``$1:id::NUMBER``, written as it is
    :param options: parameters of :class:`~airflow_provider_snowpipe.bulk.copy.CopyOptions`:
        ``file_format``, ``on_error``, ``force``, ``match_by_column_name``, ``purge``, … (templated)
    :param on_rejected: ``fail`` fails the task when a file was not loaded, or only in part; ``report`` leaves
        that to whoever reads the value. The rows that fit are in the table either way
    :param on_nothing: the same for a stage that has no such file
    :param force: True loads files although a pipe has loaded them in the last 14 days, or is about to; the
        option ``force`` does so, too, and besides loads what COPY itself has loaded
    :param validation_mode: ``RETURN_ERRORS``, ``RETURN_ALL_ERRORS`` or ``RETURN_<n>_ROWS``: load nothing, the
        value has the ``rows`` of the answer
    :param deferrable: True waits for each statement in the triggerer, after a first poll in the worker
    :param poll_interval: seconds between two polls in the triggerer
    :raises ConfigurationError: if an argument is wrong
    """

    template_fields: Sequence[str] = (
        "table",
        "stage",
        "files",
        "prefix",
        "pattern",
        "options",
        *FileOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"options": "json", "files": "json"}

    def __init__(
        self,
        *,
        table: str,
        stage: str,
        files: Any = None,
        prefix: str | None = None,
        pattern: str | None = None,
        columns: Sequence[str] | None = None,
        expressions: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
        on_rejected: str = "fail",
        on_nothing: str = "fail",
        force: bool = False,
        validation_mode: str | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.stage = stage
        self.files = files
        self.prefix = prefix
        self.pattern = pattern
        self.columns = columns
        self.expressions = expressions
        self.options = options
        self.on_rejected = on_rejected
        self.on_nothing = on_nothing
        self.force = force
        self.validation_mode = validation_mode
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self._run: CopyRun | None = None
        self.resumed = False
        self.passes_over = False
        """True for a load whose runs take more than one way: what another way has loaded is passed over."""
        self.listed: Mapping[str, Any] | None = None
        check_fail_or_report(self, "on_rejected", "on_nothing")
        check_seconds(self, "poll_interval")
        StagedChoice(stage, files, prefix, pattern).check()

    def execute_complete(
        self, context: Context, event: Mapping[str, Any], listed: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Go on where the task was deferred: every statement is asked for by its request id.

        :param event: the payload of the statement's trigger
        :param listed: the files that were listed before, None for a task that another release has deferred
        """
        if event.get("message"):
            self.log.warning("the triggerer could not wait: %s", event["message"])
        self.go_on(listed)
        return self.execute(context)

    def go_on(self, listed: Mapping[str, Any] | None) -> None:
        """Take the files that a COPY was given before its task was deferred.

        :param listed: the files, None where none were listed
        """
        self.resumed, self.listed = listed is not None, listed

    def perform(self, context: Context) -> dict[str, Any]:
        """Do the work and return the task's value."""
        hook, identity, copy = self.hook, run_identity(context), self._copy(self.hook)
        if identity.try_number > 1:
            self.finish_earlier(identity)
        choice = StagedChoice(self.stage, self.files, self.prefix, self.pattern)
        forced = copy.options.force and self.validation_mode is None
        first = FirstTryFiles(hook, identity, (*copy.table, copy.location)) if forced else None
        staged, identity = (None, identity) if first is None else first.read(StageReference.parse(self.stage))
        if staged is not None:
            self.log.info("%s: the run's first try has listed %d files", self.table, len(staged.files))
        elif self.listed is not None:
            # The stage may have others now, or these no more (``purge``).
            staged = StagedFiles.from_json(self.listed, StageReference.parse(self.stage))
        else:
            try:
                staged = choice.find(hook)
            except NothingStagedError:
                if (gone := self._purged(choice, hook, identity)) is None:
                    raise
                return self._reported(context, gone)
            if not staged.files:
                return self._reported(context, self._nothing_staged(choice, hook, identity))
            if self.validation_mode is not None:
                return self._validated(hook, copy, self.validation_mode, list(staged.files))
            staged = staged if first is None else first.keep(staged, copy.options.size_limit)
        if first is not None:
            copy = self._without_limit(copy, staged)
        has_noted = self.resumed or identity.try_number > 1
        is_forced = self.force or copy.options.force
        others = OtherLoaders(hook, self.table, identity, has_noted, is_forced, self.passes_over)
        before = self._passed_before() if self.resumed else others.refuse(staged)
        staged = staged.without(before) if before else staged
        try:
            with closing(hook.get_statement_client()) as client:
                history = partial(hook.loads_of, self.table)
                self._run = CopyRun(copy, staged.stage, client, history, identity, staged.url)
                wait = partial(self._wait_in_triggerer, staged, before) if self.deferrable else None
                outcome = self._run.load(list(staged.files.values()), wait)
                outcome = replace(outcome, before=(*before.values(), *outcome.before))
        except SqlError:
            others.withdraw(staged)
            raise
        value = self._reported(context, outcome)
        self.log.info(
            "%s: %d of %d files loaded, %d rows, %d rejected, %d files were loaded before",
            self.table,
            len(outcome.loads),
            len(staged.files),
            value["rows_loaded"],
            value["rejected"],
            len(outcome.before),
        )
        self._warn_of_unknown(outcome)
        others.refuse(staged, has_copied=True)
        outcome.require(self.on_rejected, self.table)
        return value

    def finish_earlier(self, identity: RunIdentity) -> None:
        """Wait for a statement of an earlier try that runs, before the files are listed.

        For other files, as where one has arrived since, it has another request id, and may purge its own.

        :param identity: whose work it is
        """
        hook = self.hook
        running = running_statements(hook.run_sql, hook.database_and_schema()[0], identity.query_tag)
        if not running:
            return
        self.log.info("%s: %d statements of an earlier try run; they end first", self.table, len(running))
        with closing(hook.get_statement_client()) as client:
            history, stage = partial(hook.loads_of, self.table), StageReference.parse(self.stage)
            self._run = CopyRun(self._copy(hook), stage, client, history, identity)
            wait = partial(self._wait_in_triggerer, None, {}) if self.deferrable else None
            for handle in running:
                self._run.finish(handle, wait)

    def on_kill(self) -> None:
        """Cancel the statement that runs: COPY then leaves the table as it was."""
        if self._run is not None:
            self._run.stop()

    def preview(self) -> list[str]:
        """Report which statements would be run, and which errors the files would have; loads nothing."""
        staged = StagedChoice(self.stage, self.files, self.prefix, self.pattern).find(self.hook)
        files, copy = list(staged.files), self._copy(self.hook)
        lines = [f"{len(part)} files: {statement}" for part, statement in copy.statements(files)]
        if copy.not_validated is None and files:
            lines += map(str, self._validated(self.hook, copy, "RETURN_ERRORS", files)["rows"])
        return lines

    def _reported(self, context: Context, outcome: CopyOutcome) -> dict[str, Any]:
        """The task's value, after asset events and lineage have reported the rows, also of a failed task."""
        hook = self.bulk_hook(self.table)
        value = outcome.result()
        self.task_lineage = TaskLineage(hook, sources=(self.stage,), rows=value["rows_loaded"])
        describe_file_load(self, context, hook, self.table, value["rows_loaded"], "COPY")
        return value

    def _warn_of_unknown(self, outcome: CopyOutcome) -> None:
        """Name files that COPY has left out and load history does not know: they may not be in the table."""
        unknown = [load for load in outcome.before if load.status == LOAD_SKIPPED]
        if unknown:
            self.log.warning(
                "%s: COPY has left out %d files that load history of the last 14 days does not know, such as "
                "%r (%s). They were loaded longer ago, or pattern or size_limit leave them out, or they are "
                "older than 64 days, so that COPY does not know whether they were loaded: "
                "load_uncertain_files=True loads those",
                self.table,
                len(unknown),
                unknown[0].path,
                unknown[0].first_error or "no message",
            )

    def _without_limit(self, copy: CopyInto, staged: StagedFiles) -> CopyInto:
        """The COPY of files that are cut to the limit already, so that it takes all of them or none."""
        if any(file.size is None for file in staged.files.values()):
            return copy
        return replace(copy, options=replace(copy.options, size_limit=None))

    def _nothing_staged(
        self, choice: StagedChoice, hook: SnowpipeBulkHook, identity: RunIdentity
    ) -> CopyOutcome:
        """What an earlier try has loaded and removed from a stage that has no such file now.

        :raises NothingStagedError: if that is nothing, and to fail the task
        """
        if self.on_nothing != "fail":
            self.log.info("nothing is staged for %s", self.table)
        gone = self._purged(choice, hook, identity)
        if gone is None and self.on_nothing == "fail":
            raise NothingStagedError(
                f"stage {self.stage!r} has no file for {self.table}: stage the files before this task runs, "
                "or set on_nothing='report'"
            )
        return gone or CopyOutcome()

    def _purged(
        self, choice: StagedChoice, hook: SnowpipeBulkHook, identity: RunIdentity
    ) -> CopyOutcome | None:
        """What an earlier try has loaded and removed from the stage."""
        if identity.try_number == 1 or not CopyOptions.of(self.options).purge:
            return None
        found = choice.loaded_and_gone(hook, self.table, identity.since)
        if found is not None:
            self.log.info("%s: an earlier try has loaded and removed %d files", self.table, len(found.loads))
            found.require(self.on_rejected, self.table)
        return found

    def _passed_before(self) -> dict[str, FileLoad]:
        """The loads of files that were passed over before the task was deferred."""
        kept = (self.listed or {}).get("before", {})
        return {path: FileLoad.from_result(path, one) for path, one in kept.items()}

    def _wait_in_triggerer(
        self, staged: StagedFiles | None, before: Mapping[str, FileLoad], handle: str, statement: str
    ) -> Rows:
        """Poll a few times, then leave the worker; :meth:`execute_complete` comes back."""
        from airflow_provider_snowpipe.triggers.statement import SnowpipeStatementTrigger

        rows = None if self._run is None else self._run.poll(handle, statement)
        if rows is not None:
            return rows
        listed = self.listed
        if staged is not None:
            passed = {path: load.result() for path, load in before.items()}
            listed = {**staged.to_json(), "before": passed}
        self.defer(
            trigger=SnowpipeStatementTrigger(
                handle=handle,
                statement=statement.partition(" FILES = ")[0],
                snowflake_conn_id=self.snowflake_conn_id,
                poll_interval=self.poll_interval,
            ),
            method_name="execute_complete",
            kwargs={"listed": listed},
        )

    def _copy(self, hook: SnowpipeBulkHook) -> CopyInto:
        database, schema = hook.database_and_schema()
        root = replace(StageReference.parse(self.stage), path="")
        options = CopyOptions.of(self.options)
        return CopyInto(
            (database, schema, self.table),
            root.location("", database=database, schema=schema),
            options,
            self.columns,
            self.expressions,
        )

    def _validated(
        self, hook: SnowpipeBulkHook, copy: CopyInto, mode: str, files: Sequence[str]
    ) -> dict[str, Any]:
        rows: list[dict[str, Any]] = []
        for part, _ in copy.statements(files):
            rows += hook.run_sql(copy.validation(mode, part))
        self.log.info("%s: validation by %s of %d files: %d rows", self.table, mode, len(files), len(rows))
        return {"validation_mode": mode, "files": len(files), "rows": rows}


# -- Which staged files are to be loaded -------------------------------------------------------------------

_MOST_FILES_NAMED = 5


@dataclass(frozen=True, slots=True)
class StagedChoice:
    """Files by name, by the start of their paths, by a pattern, or all of a stage.

    :param stage: the stage, with or without a path
    :param files: paths below that: a list or its JSON text
    :param prefix: instead of files, the start of their paths
    :param pattern: regular expression that their whole paths match
    """

    stage: str
    files: Any = None
    prefix: str | None = None
    pattern: str | None = None

    def check(self) -> None:
        """Find what no rendering of templates can fix.

        :raises ConfigurationError: if the arguments do not go together
        """
        if self.files is not None and (self.prefix is not None or self.pattern is not None):
            raise ConfigurationError(
                f"files is {self.files!r} beside prefix or pattern: the files are named, leave the others out"
            )

    def loaded_and_gone(self, hook: SnowpipeBulkHook, table: str, since: dt.datetime) -> CopyOutcome | None:
        """What this run has loaded of the files and then removed (``purge``); None where that is not all.

        :param hook: asks the account
        :param table: the table
        :param since: when the run began
        """
        reference, url = StageReference.parse(self.stage), hook.stage_url(self.stage)
        loads = (FileLoad.read(row, COPY_HISTORY) for row in hook.past_loads(table, since))
        history = [load for load in loads if load.pipe is None and is_of_stage(load, reference, url)]
        if self.files is not None:
            names = [reference.below(name) for name in file_names(self.files)]
            found = newest_loads(names, history)
            return CopyOutcome(tuple(found.values())) if len(found) == len(names) else None
        expected = ExpectedFiles((), reference.below(self.prefix or ""), 1)
        paths = dict.fromkeys(name for load in history if (name := expected.name_of(load)) is not None)
        return CopyOutcome(tuple(newest_loads(list(paths), history).values())) if paths else None

    def find(self, hook: SnowpipeBulkHook) -> StagedFiles:
        """List the files, in the order of their names or in the one that they were given in.

        :param hook: asks the account
        :raises NothingStagedError: if a file that is named is not there
        :raises SqlError: if the stage cannot be listed
        """
        stage = StageReference.parse(self.stage)
        listed = hook.list_files(self.stage, self.prefix or "", self.pattern)
        url = hook.stage_url(self.stage) if listed and "://" in str(listed[0]["name"]) else None
        found: dict[str, StagedFile] = {}
        for row in listed:
            path, size = stage.relative(str(row["name"]), url), row.get("size")
            mark, since = str(row.get("md5") or row.get("last_modified") or ""), row.get("last_modified")
            found[path] = StagedFile(path, mark, None if size is None else int(size), staged_at(since))
        if self.files is None:
            return StagedFiles(dict(sorted(found.items())), stage, url)
        names = [stage.below(name) for name in file_names(self.files)]
        missing = [name for name in names if name not in found]
        if missing:
            shown = ", ".join(map(repr, missing[:_MOST_FILES_NAMED])) + (
                " …" if len(missing) > _MOST_FILES_NAMED else ""
            )
            raise NothingStagedError(
                f"{len(missing):,} of {len(names):,} files are not in stage {self.stage!r}: {shown}; "
                "stage them "
                "first, under these very names"
            )
        return StagedFiles({name: found[name] for name in names}, stage, url)


# -- The files of a run whose COPY has FORCE -------------------------------------------------------------

_KEPT_IN = "airflow_snowpipe/forced_copies"
"""Folder of the user's own stage."""


class FirstTryFiles:
    """The files of a run whose COPY has FORCE, as the run's first try has listed them.

    COPY itself then skips nothing, and load history does not show whose a load was, so that a later try can
    only see by the files what is left to do. They are kept as a small file in the user's own stage, which
    every connection may write to, whatever the stage of the files and the version of Airflow. Its name shows
    what it lists, so that tries that begin at once with the same files agree; each lists the names after
    writing its own, and where there are two, none of them loads.

    :param hook: asks the account
    :param identity: whose work it is
    :param target: the table's full name and the stage
    """

    def __init__(self, hook: SnowpipeBulkHook, identity: RunIdentity, target: Sequence[str]) -> None:
        self._hook = hook
        self._identity = identity
        self._location = f"@~/{_KEPT_IN}/{run_folder(identity.names, *target)}"

    def read(self, stage: StageReference) -> tuple[StagedFiles | None, RunIdentity]:
        """The files that an earlier try has listed, None where none has; and the run as it began.

        :param stage: the files' stage
        :raises FilesGivenTwiceError: if two tries have listed files
        """
        names = self._names()
        if len(names) > 1:
            raise self._of_two_tries(names)
        for name in names:
            with TemporaryDirectory(prefix="snowpipe-get-") as folder:
                self._hook.get_file(f"{self._location}/{name}", folder)
                kept = json.loads(Path(folder, name).read_text(encoding="utf-8"))
            # Clearing a task lets its run begin anew, which does not undo what it has loaded.
            since = min(self._identity.since, dt.datetime.fromisoformat(kept["since"]))
            files = StagedFiles.from_json(kept, stage)
            # The same try may begin twice, or go on after a deferral: history is asked as by a second one.
            number = max(2, self._identity.try_number)
            return files, replace(self._identity, since=since, try_number=number)
        return None, self._identity

    def keep(self, staged: StagedFiles, limit: int | None) -> StagedFiles:
        """Write the files down before the first COPY, which takes these.

        :param staged: the files
        :param limit: bytes after which COPY begins no more files; they are cut to it if all sizes are known
        :raises FilesGivenTwiceError: if another try has listed others in the meantime
        """
        found = staged.files.values()
        if limit is not None and all(file.size is not None for file in found):
            begun = accumulate((file.size or 0 for file in found), initial=0)
            cut = {file.path: file for file, before in zip(found, begun, strict=False) if before < limit}
            staged = replace(staged, files=cut)
        kept = {"since": self._identity.since.isoformat(), **staged.to_json()}
        listed = json.dumps([kept["url"], kept["files"]])
        name = f"{blake2b(listed.encode(), digest_size=16).hexdigest()}.json"
        with TemporaryDirectory(prefix="snowpipe-put-") as folder:
            Path(folder, name).write_text(json.dumps(kept), encoding="utf-8")
            self._hook.put_file(f"{folder}/{name}", f"{self._location}/")
        names = self._names()
        if names != [name]:
            raise self._of_two_tries(names)
        return staged

    def _names(self) -> list[str]:
        return sorted(str(row["name"]).rpartition("/")[2] for row in self._hook.list_files(self._location))

    def _of_two_tries(self, names: Sequence[str]) -> FilesGivenTwiceError:
        return FilesGivenTwiceError(
            f"{len(names)} tries of this run have listed different files at the same time for a COPY with "
            f"force, in {self._location}, so that nobody knows which of the lists was loaded: compare the "
            "table with the stage, and load what is missing in a new run",
            files=(),
        )
