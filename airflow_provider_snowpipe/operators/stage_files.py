"""The operator that puts files into an internal stage."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from os.path import commonprefix
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_snowpipe.bulk.ledger_entry import STAGED, Entry, work_key
from airflow_provider_snowpipe.bulk.run_files import (
    CompactForm,
    CompactOptions,
    RunManifest,
    content_key,
    run_folder,
)
from airflow_provider_snowpipe.bulk.stage import PutKind, SourceFile, Staging, check_parallel
from airflow_provider_snowpipe.bulk.staged_files import StagedFile, StageReference, spelled
from airflow_provider_snowpipe.hooks.bulk import Staged
from airflow_provider_snowpipe.hooks.storage import file_system, files_below, storage_path
from airflow_provider_snowpipe.operators.account_operator import (
    FILES_KEY,
    FileOperator,
    check_arguments,
    failing_at_once,
    require_name,
    run_identity,
)
from airflow_provider_snowpipe.operators.bulk_driver import BulkDriverOperator, RunStage, brought_folder
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    NothingStagedError,
    SourceUnavailableError,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.bulk.copy import RunIdentity
    from airflow_provider_snowpipe.bulk.ledger import Ledger
    from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook, StageUpload
    from airflow_provider_snowpipe.spark.driver.plan import WritePlan


_WOULD = {
    PutKind.NEW: "would upload",
    PutKind.OVER: "would replace",
    PutKind.UNLESS_SAME: "would upload, unless PUT finds the same content in the stage:",
    None: "would skip",
}


class SnowpipeStageFilesOperator(FileOperator):
    """Put files of this machine or of an object store into an internal stage, several at a time.

    A file that is there already is skipped, so a retry goes on where the try before ended; and what was
    loaded from the stage stays known to COPY, which takes a file that was uploaded again for a new one.

    The XCom ``files`` has all files by their paths below the stage, as :class:`SnowpipeCopyOperator` and
    :class:`SnowpipeIngestFilesOperator` take them. The task's value has ``stage``, ``files``, ``uploaded``,
    ``skipped``, ``bytes`` of all, and ``bytes_uploaded``.

    :param source: a file, a folder, or a list of them or its JSON text: any address that
        ``ObjectStoragePath`` takes. Of a folder all files below count, under their paths in it (templated)
    :param source_conn_id: the connection for these addresses (templated)
    :param pattern: only files whose path below the folder matches, with ``*`` and ``?`` (templated)
    :param stage: ``@stage``, ``@database.schema.stage``, ``@%table`` or ``@~``, with or without a path
        (templated)
    :param if_staged: what becomes of a file whose name is in the stage: ``skip_same`` replaces it where the
        content is another, ``skip`` leaves it, ``overwrite`` replaces it, ``fail`` objects to another content
    :param auto_compress: True compresses with gzip what is not compressed, which adds ``.gz`` to its name
    :param parallel: files at a time, each with a session of its own
    :param on_nothing: ``fail`` or ``report`` when there is no file
    :param compact: True has Spark combine files that are too many and cut those that are too large before
        they are staged, toward 100 to 250 MB; or parameters of
        :class:`~airflow_provider_snowpipe.bulk.run_files.CompactOptions`. The form stays what it was, lines
        are compressed with gzip, and the same content is staged once
    :param spark_conn_id: with ``compact``, the Spark connection
    :param spark_options: with ``compact``, options of ``SparkSubmitOperator``, such as ``driver_memory``
    :param work_path: with ``compact``, a folder that all executors and this worker see; None for a temporary
        one of this machine, which a local master sees (templated)
    :param ledger_table: with ``compact``, name of the load ledger, which shows what is staged (templated)
    :raises ConfigurationError: if an argument is wrong
    """

    template_fields: Sequence[str] = (
        "source",
        "source_conn_id",
        "pattern",
        "stage",
        "work_path",
        "ledger_table",
        *FileOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"source": "json"}

    def __init__(
        self,
        *,
        source: Any,
        stage: str,
        source_conn_id: str | None = None,
        pattern: str | None = None,
        if_staged: str = "skip_same",
        auto_compress: bool = False,
        parallel: int = 4,
        on_nothing: str = "fail",
        compact: bool | Mapping[str, Any] = False,
        spark_conn_id: str = "spark_default",
        spark_options: Mapping[str, Any] | None = None,
        work_path: str | None = None,
        ledger_table: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.source_conn_id = source_conn_id
        self.pattern = pattern
        self.stage = stage
        self.if_staged = if_staged
        self.auto_compress = auto_compress
        self.parallel = parallel
        self.on_nothing = on_nothing
        self.compact = compact
        self.spark_conn_id = spark_conn_id
        self.spark_options = spark_options
        self.work_path = work_path
        self.ledger_table = ledger_table
        self._writer: BulkDriverOperator | None = None
        self._compacted: CompactedStage | None = None
        self._upload: StageUpload | None = None
        Staging(StageReference("", "ANY", ""), self.auto_compress, self.if_staged)
        if CompactOptions.of(self.compact) is not None and self.auto_compress:
            raise ConfigurationError(
                "auto_compress is True beside compact: what Spark combines is compressed, leave it out"
            )
        check_arguments(self, fail_or_report=["on_nothing"], switches=["auto_compress"])
        check_parallel(self.parallel)
        self.chosen_by = [] if pattern is None else ["pattern"]

    def execute(self, context: Context) -> dict[str, Any]:
        """Upload what the stage lacks.

        :raises NothingStagedError: if there is no file, with ``on_nothing="fail"``
        """
        with failing_at_once():
            files, source, staging = self._found()
            compacted = self._combined(context, files, source)
            if compacted is not None:
                return compacted
            staged = Staged()
            if files:
                self._upload = self._made(files, source, staging)
                staged = self._upload.run(files)
            new, old = len(staged.uploaded), len(staged.skipped)
            self.log.info("stage %s: %d files uploaded, %d were there already", self.stage, new, old)
            names = [staging.staged_as(file.below) for file in files]
            return self._left(context, names, staged, sum(file.size for file in files))

    def on_kill(self) -> None:
        """Begin no other file; a file is in the stage as a whole or not at all."""
        if self._upload is not None:
            self._upload.stop()
        if self._compacted is not None:
            self._compacted.stop()
        if self._writer is not None:
            self._writer.on_kill()

    def preview(self) -> list[str]:
        """Report what would become of each file."""
        files, source, staging = self._found()
        if not files:
            return [f"there is no file below {self.source!r}"]
        compacted = self._compacting(source)
        form = None if compacted is None else compacted.form(files)
        if form is not None:
            size = sum(file.size for file in files)
            return [f"would combine {len(files):,} files of kind {form.kind}, {size:,} bytes in all"]
        upload = self._made(files, source, staging)
        return [f"{_WOULD[upload.kind_of(file)]} {file.below} ({file.size:,} bytes)" for file in files]

    def _combined(
        self, context: Context, files: Sequence[SourceFile], source: SourceFiles
    ) -> dict[str, Any] | None:
        """Stage the files combined; None where they are staged one by one."""
        compacted = self._compacting(source)
        form = compacted.form(files) if compacted is not None and files else None
        if compacted is None or form is None:
            return None
        manifest = compacted.staged(run_identity(context), files)
        self._compacted = compacted
        is_new = manifest is None
        if manifest is None:
            self._writer = self._new_writer()
            manifest = compacted.made(context, self._writer, files, form)
        names = compacted.names(manifest)
        self.log.info(
            "stage %s: %d files combined to %d%s",
            self.stage,
            len(files),
            len(names),
            "" if is_new else ", which were there already",
        )
        staged = Staged(tuple(names), (), manifest.bytes) if is_new else Staged((), tuple(names))
        return {**self._left(context, names, staged, manifest.bytes), "combined": len(files)}

    def _left(self, context: Context, names: list[str], staged: Staged, size: int) -> dict[str, Any]:
        """Leave the files for the next task; the task's value."""
        context["ti"].xcom_push(key=FILES_KEY, value=names)
        return {
            "stage": self.stage,
            "files": names,
            "uploaded": list(staged.uploaded),
            "skipped": list(staged.skipped),
            "bytes": size,
            "bytes_uploaded": staged.bytes_uploaded,
        }

    def _new_writer(self) -> BulkDriverOperator:
        given = self.spark_options or {}
        try:
            return BulkDriverOperator(
                task_id=self.task_id,
                spark_conn_id=self.spark_conn_id,
                work_path=self.work_path or None,
                **given,
            )
        except (TypeError, AirflowException):  # their texts show values, which may be secrets
            raise ConfigurationError(
                f"spark_options has {', '.join(map(str, given))}: give a mapping of arguments that "
                "SparkSubmitOperator takes and this task does not set itself, such as {'driver_memory': '2g'}"
            ) from None

    def _compacting(self, source: SourceFiles) -> CompactedStage | None:
        options = CompactOptions.of(self.compact)
        if options is None:
            return None
        return CompactedStage(self.hook, self.stage, source, options, self.parallel, self.ledger_table)

    def _found(self) -> tuple[list[SourceFile], SourceFiles, Staging]:
        stage = StageReference.parse(require_name("stage", self.stage))
        staging = Staging(stage, self.auto_compress, self.if_staged)
        source = SourceFiles(_addresses(self.source), self.source_conn_id or None, self.pattern or None)
        files = source.find()
        if not files and self.on_nothing == "fail":
            raise NothingStagedError(
                f"there is no file below {self.source!r}"
                + (f" that matches {self.pattern!r}" if self.pattern else "")
                + ": see whether the address is right, or set on_nothing='report'"
            )
        names: dict[str, str] = {}
        for file in files:
            first = names.setdefault(staging.staged_as(file.below), file.below)
            if first != file.below:
                raise ConfigurationError(
                    f"{first!r} and {file.below!r} would both be staged as {staging.staged_as(first)!r}, so "
                    "that one of them would be lost: leave one out by pattern, stage them by a task for "
                    "each, below different paths, or set auto_compress=False"
                )
        return files, source, staging

    def _made(self, files: Sequence[SourceFile], source: SourceFiles, staging: Staging) -> StageUpload:
        prefix = commonprefix([file.below for file in files])  # noqa: RUF071  LIST takes any start of a path
        return self.hook.get_stage_upload(staging, source, prefix, self.parallel)


def _addresses(source: Any) -> list[str]:
    """One address, a list of them, or the JSON text of a list, as a template renders it."""
    if isinstance(source, str) and source.lstrip().startswith("["):
        try:
            source = json.loads(source)
        except ValueError:
            raise ConfigurationError(
                f"source is {source[:80]!r}, which is not a JSON list: give an address or a list of addresses"
            ) from None
    found = [source] if isinstance(source, str) else list(source or ())
    if not found or not all(isinstance(one, str) and one for one in found):
        raise ConfigurationError(f"source is {source!r}: give an address or a list of addresses")
    return found


# -- Files of this machine or of an object store, found below an address and brought here one by one -----

_LOCAL = ("file", "local", "")
_BLOCK = 1 << 20
_MARKS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "mtime", "created")
"""What the file systems of fsspec call it that changes with a file's content."""


@dataclass(slots=True)
class SourceFiles:
    """The files below some addresses.

    :param addresses: files, or folders with all files below them; whatever ``ObjectStoragePath`` takes
    :param conn_id: the connection for them, None for none
    :param pattern: only files whose path below the folder matches it, with ``*`` and ``?``
    """

    addresses: Sequence[str]
    conn_id: str | None = None
    pattern: str | None = None
    _found: dict[str, tuple[Any, str, str]] = field(default_factory=dict, init=False)

    def find(self) -> list[SourceFile]:
        """List the files, by their paths below the address that they were found at.

        :raises ConfigurationError: if two have the same path, or an address cannot be used
        :raises SourceUnavailableError: if the store does not answer
        """
        files: list[SourceFile] = []
        for address in self.addresses:
            root = storage_path(address, self.conn_id)
            for below, key, size, mark in self._below(root, address):
                if below in self._found:
                    raise ConfigurationError(
                        f"two files would be staged as {below!r}, one of them below {address!r}: stage them "
                        "below different paths, by a task for each"
                    )
                self._found[below] = (root, key, mark)
                shown = key if root.protocol in _LOCAL else f"{root.protocol}://{key}"
                files.append(SourceFile(below, size, shown))
        return sorted(files, key=lambda file: file.below)

    @contextmanager
    def local(self, file: SourceFile) -> Iterator[Path]:
        """Have a file on this machine, as long as the block runs; one of an object store is copied here.

        :raises SourceUnavailableError: if it cannot be read
        """
        root, key, _ = self._found[file.below]
        if root.protocol in _LOCAL:
            yield Path(key)
            return
        with TemporaryDirectory(prefix="snowpipe-stage-") as folder:
            path = Path(folder) / file.name
            try:
                with file_system(root).open(key, "rb") as stored, path.open("wb") as copy:
                    shutil.copyfileobj(stored, copy, _BLOCK)
            except OSError as error:
                raise SourceUnavailableError(f"{file.address} cannot be read: {error}") from error
            yield path

    def is_local(self, file: SourceFile) -> bool:
        """True for a file of this machine."""
        return self._found[file.below][0].protocol in _LOCAL

    def mark(self, file: SourceFile) -> str:
        """Distinguish a file's content from another one of the same name and size.

        :returns: the MD5 of a file of this machine; for one of an object store what that keeps of it, an
            ETag or the timestamp of its last change
        """
        _, key, mark = self._found[file.below]
        if not self.is_local(file):
            return mark
        with open(key, "rb") as stream:
            return hashlib.file_digest(stream, partial(hashlib.md5, usedforsecurity=False)).hexdigest()

    def _below(self, root: Any, address: str) -> Iterator[tuple[str, str, int, str]]:
        """Path below the address, key in the store, bytes, and the store's mark of each file."""
        start = str(root.path).rstrip("/")
        try:
            found = files_below(root)
        except FileNotFoundError:
            found = {}
        except OSError as error:
            raise SourceUnavailableError(f"{address} cannot be listed: {error}") from error
        for key, known in sorted(found.items()):
            below = key.removeprefix(start).lstrip("/") or start.rpartition("/")[2]
            if known.get("type") == "file" and (self.pattern is None or fnmatch(below, self.pattern)):
                mark = next((known[name] for name in _MARKS if known.get(name)), "")
                yield below, key, int(known["size"]), str(mark)


# -- Files that Spark combines before they are put into a stage, once for the same content ---------------

_WORK, _LEDGER = "compact", "the load ledger"
_MOST_AT_ONCE = 500
_SHARES = 8
"""At least so many for each thread, so that none is left with the largest files alone."""
_UNREADABLE = re.compile(r"[*?\[\]{}\\:]|/[._][^/]*$")
"""Spark takes these characters for a pattern, and passes files over whose names begin so."""


@dataclass(slots=True)
class CompactedStage:
    """Files of one source on their way into a stage.

    What is staged goes by the files' content and not by the run: a run that finds the same files again finds
    what the one before has staged, so that COPY does not take it for new files.

    :param stage: the stage, with or without a path
    """

    hook: SnowpipeBulkHook
    stage: str
    source: SourceFiles
    options: CompactOptions
    parallel: int
    ledger_table: str | None = None
    _folder: RunStage = field(init=False)
    _identity: RunIdentity = field(init=False)
    _known: Entry | None = field(default=None, init=False)

    def form(self, files: Sequence[SourceFile]) -> CompactForm | None:
        """Describe the files; None where they are as they should be.

        :raises ConfigurationError: if they cannot be combined
        """
        form = self.options.form_of([file.below for file in files])
        sizes = [(file.below, file.size) for file in files]
        return form if form.is_worth_it(sizes, self.options.target_file_bytes) else None

    def staged(self, identity: RunIdentity, files: Sequence[SourceFile]) -> RunManifest | None:
        """What is staged of this content, None if nothing is, or not all of it any more.

        :param identity: the task that asks
        """
        marks = self._of_each(files, lambda _, file: self.source.mark(file), "snowpipe-digest")
        facts = [(file.below, file.size, mark) for file, mark in zip(files, marks, strict=True)]
        folder = run_folder((_WORK,), content_key(facts, self.options))
        self._folder = RunStage(self.hook, self.stage, folder)
        if self._folder.url is not None:
            raise ConfigurationError(
                f"stage {self.stage!r} is external, where PUT writes nothing: name an internal stage, or "
                "have SnowpipeBulkLoadOperator write into it"
            )
        self._identity = replace(identity, work=folder)
        with self._ledger() as (ledger, work):
            self._known = next(iter(ledger.entries(work)), None)
        if self._known is None:
            return None
        manifest = RunManifest.from_json(self._known.details, _LEDGER)
        return manifest if self._folder.names().issuperset(manifest.names) else None

    def made(
        self, context: Context, writer: BulkDriverOperator, files: Sequence[SourceFile], form: CompactForm
    ) -> RunManifest:
        """Have Spark combine the files, and stage what it makes; :meth:`staged` has been asked.

        An attempt that stalls may end late. So the ledger has one entry for this content, and who finds that
        another attempt has changed it since takes what that one has staged.

        :raises ConfigurationError: if Spark cannot read a file of that name
        """
        folder = self._folder

        def plan(application: str, target: str, attempt: str, report_path: str) -> WritePlan:
            folder_here = brought_folder(target)
            try:
                paths = self._here(files, folder_here, form)
            except BaseException:  # there is no plan yet that names what the driver leaves
                shutil.rmtree(folder_here, ignore_errors=True)
                raise
            return self._plan((application, target, attempt, report_path), paths, form)

        with writer.writing(context, plan) as report:
            manifest = folder.put_written(report, self.parallel)
            below = folder.reference.below
            staged = tuple(StagedFile(below(one.name), size=one.bytes) for one in manifest.files)
            with self._ledger() as (ledger, work):
                new = Entry(work, 1, 1, state=STAGED, files=staged, details=manifest.to_json())
                if self._known is None:
                    ledger.plan(new, self._identity, folder.location)
                else:
                    ledger.change(self._known, new)
                (self._known,) = ledger.entries(work)
            return RunManifest.from_json(self._known.details, _LEDGER)

    @contextmanager
    def _ledger(self) -> Iterator[tuple[Ledger, str]]:
        """The ledger beside the stage, and the key of this content, however the stage is spelled."""
        place = self.hook.database_and_schema()
        reference = StageReference.parse(str(self._folder.reference), *place)
        *owner, name = spelled(reference.owner + reference.name)
        database, schema = owner or place  # a user's own stage has none
        hook = self.hook.of_table(database, schema, name)
        with hook.load_ledger(f"{name}/{reference.path}", self.ledger_table) as ledger:
            yield ledger, work_key(self._identity, ledger.target)

    def names(self, manifest: RunManifest) -> list[str]:
        """Paths of the new files below the stage's."""
        return [f"{self._folder.folder}/{name}" for name in manifest.names]

    def stop(self) -> None:
        """Begin no other ``PUT``; :meth:`staged` has been asked."""
        self._folder.stop()

    def _plan(self, run: tuple[str, str, str, str], paths: Sequence[str], form: CompactForm) -> WritePlan:
        from airflow_provider_snowpipe.spark.driver.plan import LinesToCombine, RowsToWrite, WritePlan

        given: dict[str, Any] = {"target_file_bytes": self.options.target_file_bytes}
        if form.has_rows:
            merged: Mapping[str, str] = {} if form.kind == "avro" else {"mergeSchema": "true"}
            uris = tuple(Path(path).as_uri() for path in paths)
            given["rows"] = RowsToWrite(paths=uris, format=form.kind, options=merged)
            given["form"] = form.kind
        else:
            given["lines"] = LinesToCombine(tuple(paths), form.ending, form.header, form.splits)
        return WritePlan(*run, **given)

    def _here(self, files: Sequence[SourceFile], folder: Path, form: CompactForm) -> list[str]:
        """Paths of the files on this machine; those of an object store are brought here."""

        def bring(number: int, file: SourceFile) -> str:
            with self.source.local(file) as path:
                if self.source.is_local(file):
                    if form.has_rows and _UNREADABLE.search(str(path)):
                        raise ConfigurationError(
                            f"compact: Spark does not read file {str(path)!r} by its name: rename it, since "
                            "its name begins with '.' or '_', or the path has one of * ? [ ] { } \\ :"
                        )
                    return str(path)
                target = folder / f"{number:07}-{re.sub(r'[^A-Za-z0-9.=-]', '-', file.name)}"
                return str(shutil.move(path, target))

        folder.mkdir(parents=True, exist_ok=True)
        return self._of_each(files, bring, "snowpipe-bring")

    def _of_each(
        self, files: Sequence[SourceFile], work: Callable[[int, SourceFile], str], name: str
    ) -> list[str]:
        """Do some work on each file, several at a time; a future holds many: a hundred thousand weigh."""
        share = max(1, min(_MOST_AT_ONCE, len(files) // (self.parallel * _SHARES)))

        def some(first: int) -> list[str]:
            return [work(first + number, file) for number, file in enumerate(files[first : first + share])]

        with ThreadPoolExecutor(self.parallel, thread_name_prefix=name) as pool:
            return [one for found in pool.map(some, range(0, len(files), share)) for one in found]
