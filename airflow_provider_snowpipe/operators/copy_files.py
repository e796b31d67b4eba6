"""Which staged files a COPY is for: looked up before it, so that the same statement means the same files."""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow_provider_snowpipe.bulk.copy_outcome import CopyOutcome, newest_loads, path_below
from airflow_provider_snowpipe.bulk.copy_run import RunIdentity, StagedFile
from airflow_provider_snowpipe.bulk.file_load import FileLoad
from airflow_provider_snowpipe.bulk.pipe_statement import PIPE_STATUS
from airflow_provider_snowpipe.bulk.pipe_status import PipeStatus
from airflow_provider_snowpipe.bulk.pipe_target import ListedPipe, written
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
from airflow_provider_snowpipe.bulk.wanted_files import WantedFiles, file_names
from airflow_provider_snowpipe.hooks.account_sql import RunSql
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.load_intents import LoadIntent
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    FilesGivenTwiceError,
    NothingStagedError,
    SqlError,
)
from airflow_provider_snowpipe.streaming.listing import full_name
from airflow_provider_snowpipe.streaming.names import quote_identifier

log = logging.getLogger(__name__)
_MOST_SHOWN = 10_000
"""Rows of a SHOW command at most (page "SHOW <objects>")."""

_MOST_NAMED = 5
_KEPT_IN = "airflow_snowpipe/forced_copies"
"""Folder of the user's own stage."""


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Files that were found.

    :param files: by their paths below the stage
    :param url: what an external stage stands for, None for an internal one
    """

    files: list[StagedFile]
    url: str | None = None


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
        """Find what no rendering of templates can mend.

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
        wanted = WantedFiles((), reference.below(self.prefix or ""), 1)
        paths = dict.fromkeys(name for load in history if (name := wanted.name_of(load)) is not None)
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
            shown = ", ".join(map(repr, missing[:_MOST_NAMED])) + (" …" if len(missing) > _MOST_NAMED else "")
            raise NothingStagedError(
                f"{len(missing):,} of {len(names):,} files are not in stage {self.stage!r}: {shown}; "
                "stage them "
                "first, under these very names"
            )
        return StagedFiles([found[name] for name in names], url)


class FirstTryFiles:
    """The files of a run whose COPY has FORCE, as the run's first try has listed them.

    COPY itself then skips nothing, and load history does not say whose a load was, so that a later try can
    only tell by the files what is left to do. They are kept as a small file in the user's own stage, which
    every connection may write to, whatever the stage of the files and the version of Airflow. Its name says
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

    def read(self) -> tuple[StagedFiles, RunIdentity] | None:
        """The files that an earlier try has listed, and the run as it began; None where none has.

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
            files = StagedFiles([StagedFile(*file) for file in kept["files"]], kept["url"])
            # The same try may begin twice, or go on after a deferral: history is asked as by a second one.
            number = max(2, self._identity.try_number)
            return files, replace(self._identity, since=since, try_number=number)
        return None

    def keep(self, staged: StagedFiles) -> None:
        """Write the files down before the first COPY.

        :param staged: the files
        :raises FilesGivenTwiceError: if another try has listed others in the meantime
        """
        files = [[file.path, file.mark, file.size] for file in staged.files]
        kept = {"since": self._identity.since.isoformat(), "url": staged.url, "files": files}
        name = f"{blake2b(json.dumps([staged.url, files]).encode(), digest_size=16).hexdigest()}.json"
        with TemporaryDirectory(prefix="snowpipe-put-") as folder:
            Path(folder, name).write_text(json.dumps(kept), encoding="utf-8")
            self._hook.put_file(f"{folder}/{name}", f"{self._location}/")
        names = self._names()
        if names != [name]:
            raise self._of_two_tries(names)

    def _names(self) -> list[str]:
        return sorted(str(row["name"]).rpartition("/")[2] for row in self._hook.list_files(self._location))

    def _of_two_tries(self, names: Sequence[str]) -> FilesGivenTwiceError:
        return FilesGivenTwiceError(
            f"{len(names)} tries of this run have listed different files at the same time for a COPY with "
            f"force, in {self._location}, so that nobody knows which of the lists was loaded: compare the "
            "table with the stage, and load what is missing in a new run",
            files=(),
        )


def cut_to_size(files: Sequence[StagedFile], limit: int) -> list[StagedFile]:
    """The files that a COPY begins before it has read more than a number of bytes; all sizes are known.

    :param files: the files
    :param limit: the bytes
    """
    begun = accumulate((file.size or 0 for file in files), initial=0)
    return [file for file, before in zip(files, begun, strict=False) if before < limit]


def refuse_files_of_pipes(
    hook: SnowpipeBulkHook, table: str, choice: StagedChoice, staged: StagedFiles
) -> None:
    """Refuse files that a pipe has loaded, of which COPY knows nothing.

    :param hook: asks the account
    :param table: the table
    :param choice: names the stage
    :param staged: the files
    :raises FilesGivenTwiceError: if a pipe has put rows of one into the table
    """
    files = _paths_of(choice, staged)
    history = hook.loads_of(table, files.paths)
    refuse_files_of_others(files, history, table=table, now=dt.datetime.now(dt.UTC))


def _paths_of(choice: StagedChoice, staged: StagedFiles) -> StagedPaths:
    paths = tuple(file.path for file in staged.files)
    return StagedPaths(paths, StageReference.parse(choice.stage), staged.url)


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
        if not pipes_beside(*self._question(staged)):
            refuse_files_of_pipes(*self._question(staged))
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
        """Take back what was written down, when the COPY has ended.

        :param staged: the files
        """
        if self._has_noted:
            self._intent(staged).withdraw()

    def _refuse(self, staged: StagedFiles, *, has_copied: bool = False) -> None:
        # The queues first: what is loaded between the two questions is in history then.
        pipes = pipes_beside(*self._question(staged))
        refuse_files_of_pipes(*self._question(staged))
        refuse_files_for_pipes(pipes, table=self._table, has_copied=has_copied)

    def _question(self, staged: StagedFiles) -> tuple[SnowpipeBulkHook, str, StagedChoice, StagedFiles]:
        return self._hook, self._table, self._choice, staged

    def _intent(self, staged: StagedFiles) -> LoadIntent:
        return LoadIntent(self._hook, self._table, self._identity, None, _paths_of(self._choice, staged))


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
    database, schema = hook.place()
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
