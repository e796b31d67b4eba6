"""Loads that have begun: noted before files are given to a loader, so that two loaders see each other.

COPY and pipes do not share their memory of files, and asking what the other has done does not tell what it is
about to do. So each of the two operators first writes down what it loads and by what, then looks for what
others have written, and only then asks pipes and load history: of two that begin at once, one at least finds
the other. The notes lie in the user's own stage, which every connection may write to.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import uuid
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow_provider_snowpipe.bulk.copy_run import RunIdentity
from airflow_provider_snowpipe.bulk.pipe_target import stage_place
from airflow_provider_snowpipe.bulk.run_manifest import run_folder
from airflow_provider_snowpipe.bulk.stage import StageReference, staged_at
from airflow_provider_snowpipe.bulk.two_loaders import StagedPaths
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.streaming.errors import FilesGivenTwiceError, SqlError

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
        self._folder = f"@~/{_KEPT_IN}/{run_folder((*hook.place(), table))}"
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
        """Take back what this try has written, before it has loaded anything."""
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
    database, schema = hook.place()
    return ".".join(
        stage_place(StageReference.parse(files.stage.location("", database=database, schema=schema)))
    )
