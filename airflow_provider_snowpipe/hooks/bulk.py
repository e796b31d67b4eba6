"""The hook of bulk loading: files to and from internal stages, and the targets of file pipes."""

from __future__ import annotations

import gzip
import inspect
import logging
import queue
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_snowpipe.bulk.stage import ListedFile, PutKind, SourceFile, Staging
from airflow_provider_snowpipe.bulk.staged_files import StageReference
from airflow_provider_snowpipe.hooks.account import AccountHook, RunSql
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.streaming.errors import SqlError
from airflow_provider_snowpipe.streaming.names import PipeName

if TYPE_CHECKING:
    from airflow_provider_snowpipe.bulk.file_pipe_admin import PipeTarget

log = logging.getLogger(__name__)


class SnowpipeBulkHook(SnowpipeHook):
    """Run the SQL of bulk loading over a connection of type ``snowflake`` or ``snowpipe``.

    Database and schema are the connection's unless given. The constructor does no I/O.
    """

    def of_table(self, database: str, schema: str, table: str) -> SnowpipeBulkHook:
        """The hook of another table in the same account."""
        return type(self)(self.snowflake_conn_id, table=table, database=database, schema=schema)

    def get_stage_upload(self, staging: Staging, source: Source, prefix: str, parallel: int) -> StageUpload:
        """List an internal stage, to upload files that it lacks.

        :param prefix: what the paths of all of them begin with, below the stage's
        :raises ConfigurationError: if the stage is an external one
        :raises SqlError: if it cannot be listed
        """
        stage = StageReference.parse(str(staging.stage), *self.database_and_schema())
        listed = staging.listed(self.run_sql("LIST %s", (stage.location(prefix),)))
        return StageUpload(self, staging, stage.location(), source, listed, parallel)

    def pipe_target(self, pipe: str) -> PipeTarget | None:
        """From where a file pipe loads into which table; None for no such pipe, or none that the role sees.

        :raises ConfigurationError: if its definition does not show it
        :raises SqlError: if the statement fails, or signing in for it
        """
        from airflow_provider_snowpipe.bulk.file_pipe_admin import FilePipeAdmin, PipeTarget

        name = PipeName(*self.database_and_schema(), pipe)
        known = FilePipeAdmin(self.run_sql, name).known()
        return None if known is None else PipeTarget.of(name, known.definition, auto_ingest=known.auto_ingest)


# -- Uploading many files to an internal stage at once, through Snowflake's own connector ------------------

_LOG_SECONDS = 10.0
_STOPPED = 604
_BLOCK = 1 << 20
_GLOB = frozenset("*?[")
"""In a path PUT takes them for a pattern; such a file goes as a stream under its name."""
_CONTENT_MATCH = "_skip_upload_on_content_match"
"""The connector's option by which a PUT that overwrites skips a file of the same SHA-256 (4.8)."""


class Source(Protocol):
    """Where the files are."""

    def local(self, file: SourceFile) -> AbstractContextManager[Path]:
        """Have a file on this machine as long as the block runs; compressed if its name says so."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of this machine, which has the files under their names in the stage."""

    path: Path

    @contextmanager
    def local(self, file: SourceFile) -> Iterator[Path]:
        """The file's path there."""
        yield self.path / file.below


@dataclass(frozen=True, slots=True)
class Staged:
    """What became of the files.

    :param bytes_uploaded: bytes of the former before compression
    """

    uploaded: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    bytes_uploaded: int = 0


@dataclass(slots=True)
class StageUpload:
    """Files on their way into a stage.

    Each thread works on one file at a time in a session of its own; a lock guards the counters.

    :param root: the stage's own path, as :meth:`StageReference.location` writes it
    """

    account: AccountHook
    staging: Staging
    root: str
    source: Source
    listed: Mapping[str, ListedFile]
    parallel: int = 4
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _done: dict[str, bool] = field(default_factory=dict, init=False)
    _bytes: int = field(default=0, init=False)
    _parts: int = field(default=1, init=False)
    _logged_at: float = field(default=0.0, init=False)

    def run(self, files: Sequence[SourceFile]) -> Staged:
        """Upload what is not in the stage; the first error ends it."""
        self._logged_at = time.monotonic()
        sessions: queue.SimpleQueue[RunSql] = queue.SimpleQueue()
        threads = max(1, min(self.parallel, len(files)))
        self._parts = max(1, self.parallel // threads)
        with ExitStack() as stack:
            for _ in range(threads):
                sessions.put(stack.enter_context(self.account.sql_session("PUT")))
            with ThreadPoolExecutor(threads, thread_name_prefix="snowpipe-put") as pool:
                waiting = [pool.submit(self._one, file, sessions, files) for file in files]
                done, _ = wait(waiting, return_when=FIRST_EXCEPTION)
                for failed in (one for one in done if one.exception() is not None):
                    self.stop()  # the others first
                    failed.result()
        names = {file.below: self.staging.staged_as(file.below) for file in files}
        return Staged(
            tuple(names[file.below] for file in files if self._done[file.below]),
            tuple(names[file.below] for file in files if not self._done[file.below]),
            self._bytes,
        )

    def kind_of(self, file: SourceFile) -> PutKind | None:
        """How a file would be uploaded, None where it would not."""
        with ExitStack() as stack:
            here = partial(stack.enter_context, self._content(file))
            return self.staging.decide(file, self.listed, here)

    def stop(self) -> None:
        """Begin no other file."""
        self._stop.set()

    def _one(
        self, file: SourceFile, sessions: queue.SimpleQueue[RunSql], files: Sequence[SourceFile]
    ) -> None:
        if self._stop.is_set():
            raise SqlError("staging was stopped before its next file", errno=_STOPPED)
        run = sessions.get()
        try:
            uploaded = self._put(run, file)
        finally:
            sessions.put(run)
        with self._lock:
            self._done[file.below] = uploaded
            self._bytes += file.size if uploaded else 0
            self._log_progress(files)

    def _put(self, run: RunSql, file: SourceFile) -> bool:
        from snowflake.connector.cursor import SnowflakeCursor

        with ExitStack() as stack:

            @cache
            def here() -> Path:
                return stack.enter_context(self._content(file))

            kind = self.staging.decide(file, self.listed, here)
            if kind is None:
                return False
            options: dict[str, Any] = {}
            if kind is PutKind.UNLESS_SAME:
                if _CONTENT_MATCH in inspect.signature(SnowflakeCursor.execute).parameters:
                    options[_CONTENT_MATCH] = True
                else:
                    kind = PutKind.NEW  # which skips whatever has that name
            if not _GLOB.isdisjoint(str(here())):
                options["file_stream"] = stack.enter_context(here().open("rb"))
            (row,) = run(self.staging.put(file, str(here()), self.root, kind, self._parts), None, **options)
            return str(row["status"]).upper() == "UPLOADED"

    @contextmanager
    def _content(self, file: SourceFile) -> Iterator[Path]:
        """Have a file as it is staged: compressed here, where the same content has the same bytes again."""
        name = self.staging.staged_as(file.name)
        with self.source.local(file) as path:
            if name in (file.name, path.name):
                yield path
                return
            with TemporaryDirectory(prefix="snowpipe-stage-") as folder:
                compressed = Path(folder, name)
                with (
                    path.open("rb") as content,
                    compressed.open("wb") as out,
                    gzip.GzipFile("", "wb", fileobj=out, mtime=0) as packed,
                ):
                    shutil.copyfileobj(content, packed, _BLOCK)
                yield compressed

    def _log_progress(self, files: Sequence[SourceFile]) -> None:
        now = time.monotonic()
        if now - self._logged_at >= _LOG_SECONDS or len(self._done) == len(files):
            self._logged_at = now
            log.info(
                "staged %d of %d files, %.1f MB uploaded, %d were there already",
                len(self._done),
                len(files),
                self._bytes / 1e6,
                sum(not uploaded for uploaded in self._done.values()),
            )
