"""Which staged files are to be loaded, and who else loads them: asked before a load, and after it."""

from __future__ import annotations

import datetime as dt
import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow_provider_snowpipe.bulk.copy_run import (
    CopyOutcome,
    RunIdentity,
    StagedFile,
    newest_loads,
    path_below,
)
from airflow_provider_snowpipe.bulk.expected_files import ExpectedFiles, file_names
from airflow_provider_snowpipe.bulk.file_load import FileLoad
from airflow_provider_snowpipe.bulk.file_pipe_admin import PIPE_STATUS
from airflow_provider_snowpipe.bulk.pipe_state import ListedPipe, PipeStatus, stage_key, written
from airflow_provider_snowpipe.bulk.run_manifest import run_folder
from airflow_provider_snowpipe.bulk.stage import StageReference, staged_at
from airflow_provider_snowpipe.bulk.two_loaders import (
    NOT_AUTHORIZED,
    PipeBeside,
    StagedPaths,
    announced_to,
    refuse_files_for_pipes,
    refuse_files_of_others,
)
from airflow_provider_snowpipe.hooks.account_sql import RunSql
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    FilesGivenTwiceError,
    NothingStagedError,
    SqlError,
)
from airflow_provider_snowpipe.streaming.names import full_name, quote_identifier

_MOST_SHOWN = 10_000
"""Rows of a SHOW command at most (page "SHOW <objects>")."""

_MOST_FILES_NAMED = 5


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Files that were found.

    :param files: by their paths below the stage
    :param url: what an external stage stands for, None for an internal one
    """

    files: list[StagedFile]
    url: str | None = None

    def paths(self, stage: str) -> StagedPaths:
        """The same by their paths.

        :param stage: the stage that they are in
        """
        return StagedPaths(tuple(file.path for file in self.files), StageReference.parse(stage), self.url)


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
        reference = StageReference.parse(self.stage)
        history = [FileLoad.from_copy_history(row) for row in hook.past_loads(table, since)]
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
        reference = StageReference.parse(self.stage)
        listed = hook.list_files(self.stage, self.prefix or "", self.pattern)
        url = hook.stage_url(self.stage) if listed and "://" in str(listed[0]["name"]) else None
        found = _below_stage(listed, reference, url)
        if self.files is None:
            return StagedFiles(sorted(found.values(), key=lambda file: file.path), url)
        names = [reference.below(name) for name in file_names(self.files)]
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
        return StagedFiles([found[name] for name in names], url)


class OtherLoaders:
    """Pipes that load the files of a COPY as well: refused before it, and found after it.

    A pipe that is given the files by an operator of this package is excluded: each of the two writes down
    what it is about to load, then looks for the other's note, and asks queues and load history last. Where no
    pipe over the table loads from there, nobody has to be told. Of a pipe that somebody else feeds while COPY
    runs, load history tells when it has run.

    :param hook: asks the account
    :param table: the table
    :param choice: names the stage
    :param identity: whose work the COPY is
    :param resumed: True where the work was begun by another process
    """

    def __init__(
        self,
        hook: SnowpipeBulkHook,
        table: str,
        choice: StagedChoice,
        identity: RunIdentity,
        *,
        resumed: bool = False,
    ) -> None:
        self._hook = hook
        self._table = table
        self._choice = choice
        self._identity = identity
        self._has_noted = resumed or identity.try_number > 1

    def refuse_before(self, staged: StagedFiles) -> None:
        """Refuse the files of others, after writing down that COPY is about to load these.

        :param staged: the files
        :raises FilesGivenTwiceError: if somebody else loads or has loaded one of them
        """
        if not pipes_beside(self._hook, self._table, self._choice, staged):
            self._refuse_loaded(staged)
            return
        intent = self._intent(staged)
        intent.declare()
        try:
            self._refuse(staged)
        except FilesGivenTwiceError:
            intent.revoke()
            raise
        self._has_noted = True

    def refuse_after(self, staged: StagedFiles) -> None:
        """Ask again when COPY has ended.

        :param staged: the files
        :raises FilesGivenTwiceError: if somebody else has loaded one of them meanwhile, or is about to
        """
        self.withdraw(staged)
        self._refuse(staged, has_copied=True)

    def withdraw(self, staged: StagedFiles) -> None:
        """Remove what was written down, when the COPY has ended.

        :param staged: the files
        """
        if self._has_noted:
            self._intent(staged).withdraw()

    def _refuse(self, staged: StagedFiles, *, has_copied: bool = False) -> None:
        # The queues first: what is loaded between the two questions is in history then.
        pipes = pipes_beside(self._hook, self._table, self._choice, staged)
        self._refuse_loaded(staged)
        refuse_files_for_pipes(pipes, table=self._table, has_copied=has_copied)

    def _refuse_loaded(self, staged: StagedFiles) -> None:
        """Refuse files that a pipe has loaded, of which COPY knows nothing."""
        files = staged.paths(self._choice.stage)
        history = self._hook.loads_of(self._table, files.paths)
        refuse_files_of_others(files, history, table=self._table, now=dt.datetime.now(dt.UTC))

    def _intent(self, staged: StagedFiles) -> LoadIntent:
        files = staged.paths(self._choice.stage)
        return LoadIntent(self._hook, self._table, self._identity, None, files)


def pipes_beside(
    hook: SnowpipeBulkHook, table: str, choice: StagedChoice, staged: StagedFiles
) -> list[PipeBeside]:
    """The pipes over the table that load from where the files are, and how they are.

    Asked are the pipes of all databases, and those that reach the same files through another external stage.

    :param hook: asks the account
    :param table: the table
    :param choice: names the stage
    :param staged: the files
    """
    database, schema = hook.database_and_schema()
    root = StageReference.parse(choice.stage).location("", database=database, schema=schema)
    stage = replace(StageReference.parse(root), path="")
    with hook.sql_session("ask the pipes over a table") as run:
        beside = []
        for pipe in _pipes_over((database, schema, table), run):
            url = None if pipe.loads_from(stage) or staged.url is None else _url_of(pipe, hook)
            files = {
                one.path: one.staged_at
                for one in staged.files
                if pipe.takes(one.path, stage)
                or (url is not None and pipe.takes_url(f"{str(staged.url).rstrip('/')}/{one.path}", url))
            }
            if files:
                status = _status_of(pipe, run)
                beside.append(PipeBeside(pipe, status, tuple(files), announced_to(pipe, files)))
    return beside


def _pipes_over(table: tuple[str, str, str], run: RunSql) -> list[ListedPipe]:
    found = []
    try:
        rows = run("SHOW PIPES IN ACCOUNT", None)
        if len(rows) >= _MOST_SHOWN:
            rows = [*rows, *run(f"SHOW PIPES IN DATABASE {quote_identifier(table[0])}", None)]
    except SqlError as error:
        if error.errno not in NOT_AUTHORIZED:
            raise
        log.warning("whether a pipe is about to load these files is not known: %s", error)
        return []
    for row in rows:
        try:
            pipe = ListedPipe.read(row)
        except ConfigurationError as error:
            log.warning("whether this pipe is about to load these files is not known: %s", error)
            continue
        if pipe is not None and pipe.target.table == table:
            found.append(pipe)
    log.info("%d file pipes over %s show to this role; of others nothing is known", len(found), table[2])
    return found


def _url_of(pipe: ListedPipe, hook: SnowpipeBulkHook) -> str | None:
    """What the external stage of a pipe stands for; None for another kind, or one that does not show."""
    try:
        return hook.stage_url(written(pipe.target.stage))
    except SqlError as error:
        if error.errno not in NOT_AUTHORIZED:
            raise
        log.warning("where pipe %s loads from is not known: %s", pipe.name, error)
        return None


def _status_of(pipe: ListedPipe, run: RunSql) -> PipeStatus | None:
    name = pipe.name
    try:
        (row,) = run(PIPE_STATUS, (full_name(name.database, name.schema, name.pipe),))
    except SqlError as error:
        if error.errno not in NOT_AUTHORIZED:
            raise
        log.warning("whether files wait in pipe %s is not known: %s", name, error)
        return None
    return PipeStatus.read(next(iter(row.values())))


def _below_stage(
    listed: Sequence[dict[str, Any]], reference: StageReference, url: str | None
) -> dict[str, StagedFile]:
    found: dict[str, StagedFile] = {}
    for row in listed:
        path = path_below(reference.relative(str(row["name"])), url)
        mark, size = str(row.get("md5") or row.get("last_modified") or ""), row.get("size")
        since = staged_at(row.get("last_modified"))
        found[path] = StagedFile(path, mark, None if size is None else int(size), since)
    return found


# -- Loads that have begun: noted before files are given to a loader, so that two loaders see each other --
#
# COPY and pipes do not share their memory of files, and asking what the other has done does not tell what
# it is about to do. So each of the two operators first writes down what it loads and by what, then looks
# for what others have written, and only then asks pipes and load history: of two that begin at once, one at
# least finds the other. The notes lie in the user's own stage, which every connection may write to.

log = logging.getLogger(__name__)
_KEPT_IN = "airflow_snowpipe/loads"
_COUNTS_FOR = dt.timedelta(days=7)
"""No statement runs for longer (page "Parameters", STATEMENT_TIMEOUT_IN_SECONDS)."""
_MOST_NAMED = 3


class LoadIntent:
    """What one try of a task is about to load.

    :param hook: asks the account, and has the table's database and schema
    :param table: the table
    :param identity: whose work it is; what other tries of the same work have noted does not count
    :param loader: full name of the pipe, None for COPY
    :param files: the files
    """

    def __init__(
        self,
        hook: SnowpipeBulkHook,
        table: str,
        identity: RunIdentity,
        loader: str | None,
        files: StagedPaths,
    ) -> None:
        self._hook = hook
        self._work = "/".join(identity.names)
        self._loader = loader
        self._files = files
        self._folder = f"@~/{_KEPT_IN}/{run_folder((*hook.database_and_schema(), table))}"
        self._own = f"{run_folder(identity.names)}."
        # Loads by the same loader need no look into what they have noted: the loader itself skips files.
        self._same = f".{blake2b((loader or 'COPY').encode(), digest_size=4).hexdigest()}.json"
        self._name = f"{self._own}{uuid.uuid4().hex}{self._same}"

    def declare(self) -> None:
        """Write it down, and refuse to go on beside somebody else's.

        :raises FilesGivenTwiceError: if another task is loading one of the files by another loader; a retry
            finds what has become of it
        """
        noted = {
            "work": self._work,
            "loader": self._loader,
            "stage": _root(self._hook, self._files),
            "files": self._files.paths,
        }
        with TemporaryDirectory(prefix="snowpipe-put-") as folder:
            Path(folder, self._name).write_text(json.dumps(noted), encoding="utf-8")
            self._hook.put_file(f"{folder}/{self._name}", f"{self._folder}/")
        for name, other in self._others():
            both = sorted(set(self._files.paths).intersection(other["files"]))
            if both and other["stage"] == noted["stage"]:
                self.revoke()
                raise self._refusal(name, other, tuple(both))

    def revoke(self) -> None:
        """Remove what this try has written, before it has loaded anything."""
        self._remove(self._name)

    def withdraw(self) -> None:
        """Remove what all tries of this work have written: load history says what they have loaded."""
        self._remove(self._own)

    def _remove(self, begin: str) -> None:
        try:
            self._hook.run_sql("REMOVE %s", (f"{self._folder}/{begin}",))
        except SqlError as error:
            log.warning(
                "%s/%s… cannot be removed, and keeps other loaders from these files for %d days: %s",
                self._folder,
                begin,
                _COUNTS_FOR.days,
                error,
            )

    def _others(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for name in self._names():
            with TemporaryDirectory(prefix="snowpipe-get-") as folder:
                try:
                    self._hook.get_file(f"{self._folder}/{name}", folder)
                    text = Path(folder, name).read_text(encoding="utf-8")
                except (SqlError, FileNotFoundError):
                    if name in self._names():
                        raise
                    continue  # that load has ended in the meantime, and history has it
            yield name, json.loads(text)

    def _names(self) -> list[str]:
        now = dt.datetime.now(dt.UTC)
        found = []
        for row in self._hook.list_files(self._folder):
            name, since = str(row["name"]).rpartition("/")[2], staged_at(row.get("last_modified"))
            is_mine = name.startswith(self._own) or name.endswith(self._same)
            if not is_mine and (since is None or now - since < _COUNTS_FOR):
                found.append(name)
        return found

    def _refusal(self, name: str, other: dict[str, Any], files: tuple[str, ...]) -> FilesGivenTwiceError:
        shown = ", ".join(map(repr, files[:_MOST_NAMED])) + (" …" if len(files) > _MOST_NAMED else "")
        by = "COPY" if other["loader"] is None else f"pipe {other['loader']}"
        own = "COPY" if self._loader is None else f"pipe {self._loader}"
        return FilesGivenTwiceError(
            f"task {other['work']} (DAG, run, task, map index) has begun to load {len(files):,} of "
            f"{len(self._files.paths):,} files by {by}: {shown}. {own} would put the same rows into the "
            "table: take the files from one of the two. If that task has died, clear it, so that it ends "
            f"its load, or REMOVE {self._folder}/{name} when no statement of it runs; or say force=True",
            files=files,
            may_pass=True,
        )


def _root(hook: SnowpipeBulkHook, files: StagedPaths) -> str:
    """The stage in one spelling, or where an external one points."""
    if files.url is not None:
        return files.url.rstrip("/")
    database, schema = hook.database_and_schema()
    return ".".join(
        stage_key(StageReference.parse(files.stage.location("", database=database, schema=schema)))
    )
