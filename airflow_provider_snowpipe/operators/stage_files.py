"""The operator that puts files into an internal stage."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_snowpipe.bulk.compaction import CompactOptions
from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.bulk.stage_upload import PutKind, SourceFile, Staging, check_parallel
from airflow_provider_snowpipe.operators.file_operator import FILES_KEY, FileOperator
from airflow_provider_snowpipe.operators.pipe import require_name
from airflow_provider_snowpipe.operators.source_files import SourceFiles
from airflow_provider_snowpipe.streaming.choice import check_one_of
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, NothingStagedError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.hooks.stage_upload import StageUpload
    from airflow_provider_snowpipe.operators.bulk_driver import BulkDriverOperator
    from airflow_provider_snowpipe.operators.compacted_stage import CompactedStage

_ON_NOTHING = ("fail", "report")
_WOULD = {
    PutKind.NEW: "would upload",
    PutKind.OVER: "would replace",
    PutKind.UNLESS_SAME: "would upload, unless PUT finds the same content in the stage:",
    None: "would skip",
}


class SnowpipeStageFilesOperator(FileOperator):
    """Put files of this machine or of an object store into an internal stage, several at a time.

    A file that is there already is passed over, so a retry goes on where the try before ended; and what was
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
        :class:`~airflow_provider_snowpipe.bulk.compaction.CompactOptions`. The form stays what it was, lines
        are compressed with gzip, and the same content is staged once
    :param spark_conn_id: with ``compact``, the Spark connection; client deploy mode only
    :param spark_options: with ``compact``, options of ``SparkSubmitOperator``, such as ``driver_memory``
    :param work_path: with ``compact``, a folder that all executors and this worker see; None for a temporary
        one of this machine, which a local master sees (templated)
    :raises ConfigurationError: if an argument is wrong
    """

    template_fields: Sequence[str] = (
        "source",
        "source_conn_id",
        "pattern",
        "stage",
        "work_path",
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
        self._writer: BulkDriverOperator | None = None
        self._compacted: CompactedStage | None = None
        self._upload: StageUpload | None = None
        self._check_arguments()

    def perform(self, context: Context) -> dict[str, Any]:
        """Upload what the stage lacks.

        :raises NothingStagedError: if there is no file, with ``on_nothing="fail"``
        """
        files, source, staging = self._found()
        compacted = self._combined(context, files, source)
        if compacted is not None:
            return compacted
        uploaded: tuple[str, ...] = ()
        skipped: tuple[str, ...] = ()
        sent = 0
        if files:
            self._upload = self._made(files, source, staging)
            staged = self._upload.run(files)
            uploaded, skipped, sent = staged.uploaded, staged.skipped, staged.bytes_uploaded
        self.log.info(
            "stage %s: %d files uploaded, %d were there already", self.stage, len(uploaded), len(skipped)
        )
        names = [staging.staged_as(file.below) for file in files]
        context["ti"].xcom_push(key=FILES_KEY, value=names)
        return {
            "stage": self.stage,
            "files": names,
            "uploaded": list(uploaded),
            "skipped": list(skipped),
            "bytes": sum(file.size for file in files),
            "bytes_uploaded": sent,
        }

    def on_kill(self) -> None:
        """Begin no other file; a file is in the stage as a whole or not at all."""
        if self._upload is not None:
            self._upload.stop()
        if self._compacted is not None:
            self._compacted.stop()
        if self._writer is not None:
            self._writer.on_kill()

    def preview(self) -> list[str]:
        """Say what would become of each file."""
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
        self._compacted = compacted
        manifest = compacted.staged(files)
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
        context["ti"].xcom_push(key=FILES_KEY, value=names)
        return {
            "stage": self.stage,
            "files": names,
            "uploaded": names if is_new else [],
            "skipped": [] if is_new else names,
            "bytes": manifest.bytes,
            "bytes_uploaded": manifest.bytes if is_new else 0,
            "combined": len(files),
        }

    def _new_writer(self) -> BulkDriverOperator:
        from airflow.providers.common.compat.sdk import AirflowException

        from airflow_provider_snowpipe.operators.bulk_driver import BulkDriverOperator

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
        from airflow_provider_snowpipe.operators.compacted_stage import CompactedStage

        return CompactedStage(self.hook, self.stage, source, options, self.parallel)

    def _found(self) -> tuple[list[SourceFile], SourceFiles, Staging]:
        stage = StageReference.parse(require_name("stage", self.stage))
        staging = Staging(stage, self.auto_compress, self.if_staged)
        source = SourceFiles(_addresses(self.source), self.source_conn_id or None, self.pattern or None)
        files = source.find()
        if not files and self.on_nothing == "fail":
            raise NothingStagedError(
                f"there is no file below {self.source!r}"
                + (f" that matches {self.pattern!r}" if self.pattern else "")
                + ": see whether the address is right, or say on_nothing='report'"
            )
        return files, source, staging

    def _made(self, files: Sequence[SourceFile], source: SourceFiles, staging: Staging) -> StageUpload:
        prefix = commonprefix([file.below for file in files])  # noqa: RUF071  LIST takes any start of a path
        return self.hook.get_stage_upload(staging, source, prefix, self.parallel)

    def _check_arguments(self) -> None:
        Staging(StageReference("", "ANY", ""), self.auto_compress, self.if_staged)
        if CompactOptions.of(self.compact) is not None and self.auto_compress:
            raise ConfigurationError(
                "auto_compress is True beside compact: what Spark combines is compressed, leave it out"
            )
        check_one_of("on_nothing", self.on_nothing, _ON_NOTHING)
        check_parallel(self.parallel)


def _addresses(source: Any) -> list[str]:
    """One address, a list of them, or the JSON text of a list, as a template renders it."""
    if isinstance(source, str) and source.lstrip().startswith("["):
        try:
            source = json.loads(source)
        except ValueError:
            raise ConfigurationError(
                f"source is {source[:80]!r}, which is no JSON list: give an address or a list of addresses"
            ) from None
    found = [source] if isinstance(source, str) else list(source or ())
    if not found or not all(isinstance(one, str) and one for one in found):
        raise ConfigurationError(f"source is {source!r}: give an address or a list of addresses")
    return found
