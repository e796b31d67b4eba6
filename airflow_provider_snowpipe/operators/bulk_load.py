"""The operator that has Spark write rows as files of the right size, and loads them by one COPY."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import conf

from airflow_provider_snowpipe.assets.events import describe_file_load
from airflow_provider_snowpipe.bulk.copy import CopyOptions, CopyOutcome, StagedChoice
from airflow_provider_snowpipe.bulk.run_files import (
    TARGET_FILE_BYTES,
    RunManifest,
    WrittenFile,
    check_target,
    loaded_files,
    refuse_loaded_folder,
    refuse_other_files,
    run_folder,
)
from airflow_provider_snowpipe.bulk.stage import check_parallel
from airflow_provider_snowpipe.bulk.staged_files import LOADED, StageReference
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.lineage import ReportsLineage, TaskLineage
from airflow_provider_snowpipe.links.snowpipe import SparkUiLink
from airflow_provider_snowpipe.operators.account_operator import (
    FILES_KEY,
    AccountArguments,
    check_arguments,
    failing_at_once,
    run_identity,
)
from airflow_provider_snowpipe.operators.bulk_driver import BulkDriverOperator, RunStage, local_path
from airflow_provider_snowpipe.operators.copy import CopyLoad, copy_into, wait_for_statement
from airflow_provider_snowpipe.operators.spark_job import refuse_own_arguments
from airflow_provider_snowpipe.sources import TableSource, bulk_values
from airflow_provider_snowpipe.streaming.arguments import known_arguments, mapping_argument
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, FilesRejectedError
from airflow_provider_snowpipe.streaming.names import quote_identifier

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.bulk.copy import RunIdentity
    from airflow_provider_snowpipe.spark.driver.plan import RowsToWrite, WriteReport
    from airflow_provider_snowpipe.streaming.table_schema import TableColumn


class SnowpipeBulkLoadOperator(ReportsLineage, AccountArguments, BulkDriverOperator):
    """Load whatever Spark reads into a table by files and one COPY, once per run.

    Spark computes the rows once and writes them as Parquet files of about ``target_file_bytes``: into the
    storage of an external stage, or into a folder from which this worker puts them into an internal stage.
    Then a manifest in the stage names the files of this run, and COPY loads those.

    A retry goes on where the try before ended. With no manifest the files are written again; what that try
    has left is loaded by nobody. With a manifest its files are the ones to load: COPY joins the statement of
    an earlier try and skips what is in the table, and load history is asked first. When the rows are in the
    table, the stage records it, and the task, cleared or not, does nothing more.

    The task's value has ``rows_loaded``, ``rejected``, ``files`` (each file's status, rows and first error by
    its path below the stage), ``rows``, ``bytes`` and ``folder``. The XCom ``files`` has their paths.

    :param source: what Spark reads: a :class:`~airflow_provider_snowpipe.sources.TableSource` with ``table``,
        ``query`` or ``path``, ``format`` and ``options``; or a mapping of these, or its JSON text (templated)
    :param table: the table; its columns are filled by their names (templated)
    :param stage: ``@stage``, ``@database.schema.stage``, ``@%table`` or ``@~``, with or without a path; None
        for the table's own (templated)
    :param target_file_bytes: bytes of a file
    :param run_key: what names the work, None for DAG, run, task and map index: what is loaded under a key is
        not loaded under it again (templated)
    :param work_path: for an internal stage, a folder that all executors and this worker see; None for a
        temporary one of this machine, which a local master sees (templated)
    :param storage_url: for an external stage, its URL as Spark spells it, such as ``s3a://…``; None for the
        stage's own (templated)
    :param storage_conn_id: the connection for the storage of an external stage, where the manifest goes
        (templated)
    :param options: options of COPY: ``on_error``, ``truncate_columns``, ``enforce_length``, … (templated)
    :param on_rejected: ``fail`` or ``report`` files that were not loaded, or only in part
    :param keep_files: True leaves the files in the stage when they are loaded
    :param parallel: files that are put at a time
    :param deferrable: True waits for COPY in the triggerer
    :param poll_interval: seconds between two polls in the triggerer
    :param snowflake_conn_id: a connection of type ``snowflake`` or ``snowpipe`` with a key pair, an access
        token or OAuth (templated)
    :param spark_conn_id: the Spark connection; with ``deploy_mode="cluster"`` the driver runs on YARN, as
        :class:`~airflow_provider_snowpipe.operators.stream.SnowpipeStreamOperator` documents, and needs
        ``work_path``
    :param kwargs: options of ``SparkSubmitOperator``, such as ``conf`` and ``driver_memory``, and
        ``spark_log_level``, from which level on Spark's own lines are in the task's log (``WARN``)
    :raises ConfigurationError: if an argument is wrong
    """

    template_fields: Sequence[str] = (
        "source",
        "table",
        "stage",
        "run_key",
        "work_path",
        "storage_url",
        "storage_conn_id",
        "options",
        *AccountArguments.template_fields,
        *BulkDriverOperator.template_fields,
    )
    operator_extra_links = (SparkUiLink(),)
    template_fields_renderers: ClassVar[dict[str, str]] = {"source": "json", "options": "json"}

    def __init__(
        self,
        *,
        source: TableSource | Mapping[str, Any] | str,
        table: str,
        stage: str | None = None,
        target_file_bytes: int = TARGET_FILE_BYTES,
        run_key: str | None = None,
        storage_url: str | None = None,
        storage_conn_id: str | None = None,
        options: Mapping[str, Any] | None = None,
        on_rejected: str = "fail",
        keep_files: bool = False,
        parallel: int = 4,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 5.0,
        **kwargs: Any,
    ) -> None:
        refuse_own_arguments(kwargs)
        super().__init__(**kwargs)
        self.source = bulk_values(source)
        self.table = table
        self.stage = stage
        self.target_file_bytes = target_file_bytes
        self.run_key = run_key
        self.storage_url = storage_url
        self.storage_conn_id = storage_conn_id
        self.options = options
        self.on_rejected = on_rejected
        self.keep_files = keep_files
        self.parallel = parallel
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self._copying: CopyLoad | None = None
        self._staging: RunStage | None = None
        self._check_arguments()

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Write, stage and copy, or do what an earlier try of this run has left to do.

        :raises AirflowFailException: if it went wrong in a way that a retry cannot fix
        """
        with failing_at_once():
            run = self._run_of(context)
            done = run.load(partial(self._written, context, run), partial(self._copied, context, run))
            return self._concluded(context, run, done)

    def execute_complete(
        self, context: Context, event: Mapping[str, Any], listed: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Go on where the task was deferred: the statement is asked for by its request id.

        :param listed: the staged files that COPY was given, None where it was given none yet
        """
        if event.get("message"):
            self.log.warning("the triggerer could not wait: %s", event["message"])
        with failing_at_once():
            run = self._run_of(context)
            done = run.resume(partial(self._copied, context, run, listed=listed))
            return self._concluded(context, run, done)

    def on_kill(self) -> None:
        """Cancel the COPY that runs, begin no other upload, or stop Spark."""
        if self._copying is not None:
            self._copying.stop()
        if self._staging is not None:
            self._staging.stop()
        super().on_kill()

    def dry_run(self) -> None:
        """Print what would be read, and where it would go; nothing is read or changed."""
        self.log.info(
            "dry run: Spark would write %s as Parquet files of about %d bytes, and one COPY would load them "
            "from %s into %s",
            self._rows().address,
            self.target_file_bytes,
            self._stage_name(),
            self.table,
        )

    def _run_of(self, context: Context) -> BulkRun:
        identity = None if self.run_key else run_identity(context)
        names = (str(self.run_key),) if identity is None else identity.names
        hook = self.bulk_hook(self.table)
        folder = run_folder(names, *hook.database_and_schema(), self.table)
        self._staging = RunStage(hook, self._stage_name(), folder, self.storage_conn_id or None)
        rows = self._rows()
        digest = blake2b(json.dumps(asdict(rows), sort_keys=True).encode(), digest_size=8).hexdigest()
        return BulkRun(
            hook,
            self._staging,
            "/".join(names),
            self.table,
            self.on_rejected,
            self.parallel,
            self.log.info,
            f"{rows.address} ({digest})",
            identity,
        )

    def _written(self, context: Context, run: BulkRun) -> AbstractContextManager[WriteReport]:
        """Have Spark write the rows: here, or into the storage of an external stage."""
        from airflow_provider_snowpipe.spark.driver.plan import WritePlan

        plan = partial(
            WritePlan,
            rows=self._rows(),
            columns=run.hook.table_columns(),
            target_file_bytes=self.target_file_bytes,
        )
        url = run.stage.url
        if url is not None and self.storage_url:
            url = f"{self.storage_url.rstrip('/')}/{run.stage.reference.path}"
        return self.writing(context, plan, url)

    def _copied(
        self,
        context: Context,
        run: BulkRun,
        manifest: RunManifest,
        *,
        listed: Mapping[str, Any] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """What COPY reports of each file of a manifest, by its path below the stage."""
        stage, options = run.stage.location, mapping_argument("options", self.options)
        arguments = copy_arguments(manifest, run.hook.table_columns, options)
        self._copying = CopyLoad(
            run.hook,
            copy_into(run.hook, self.table, stage, **arguments),
            StagedChoice(stage, manifest.names),
            run_identity(context),
            on_rejected=self.on_rejected,
            leave_worker=partial(wait_for_statement, self, self.poll_interval) if self.deferrable else None,
            listed=listed,
            resumed=listed is not None,
        )
        copied = self._copying.run()
        return {**copied["loaded_before"], **copied["files"]}

    def _concluded(self, context: Context, run: BulkRun, done: dict[str, Any]) -> dict[str, Any]:
        """Remove what is of no use any more, and give the task its value."""
        if not self.keep_files:
            run.stage.sweep()
        context["ti"].xcom_push(key=FILES_KEY, value=list(done["files"]))
        rows = done["rows_loaded"]
        sources = (self._rows().address,)
        self.task_lineage = TaskLineage(run.hook, sources=sources, rows=rows, size=done["bytes"])
        describe_file_load(self, context, run.hook, self.table, rows, "COPY")
        self.log.info(
            "%s: %d of %d rows loaded from %d files, %d rejected",
            self.table,
            rows,
            done["rows"],
            len(done["files"]),
            done["rejected"],
        )
        return done

    def _stage_name(self) -> str:
        return self.stage or f"@%{quote_identifier(self.table)}"

    def _rows(self) -> RowsToWrite:
        from airflow_provider_snowpipe.spark.driver.plan import RowsToWrite

        return RowsToWrite.from_mapping(mapping_argument("source", self.source))

    def _check_arguments(self) -> None:
        check_arguments(
            self,
            fail_or_report=["on_rejected"],
            seconds=["poll_interval"],
            switches=["keep_files", "deferrable"],
        )
        check_parallel(self.parallel)
        check_target(self.target_file_bytes)
        if isinstance(self.options, Mapping):
            check_options(self.options)
        if self.stage is not None and not (isinstance(self.stage, str) and "{" in self.stage):
            StageReference.parse(self.stage)


# -- How COPY has to read files that Spark has written, and what it reports of them ----------------------

_FORMAT: Mapping[str, Any] = {"type": "PARQUET", "use_logical_type": True, "binary_as_text": False}
"""Neither is the default (page "CREATE FILE FORMAT"): without, a binary value is read as text."""
_REFUSED = {
    "file_format": "the files are Parquet files of this operator's own",
    "match_by_column_name": "columns are filled by their names",
    "pattern": "the manifest names the files",
    "force": "it would load files that are in the table",
    "purge": "the files are removed when the stage shows that they are loaded: see keep_files",
    "size_limit": "it would leave files out",
    "return_failed_only": "it would hide what was loaded",
}
_MOST_NAMED = 3


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse what is no option of COPY, and options that this operator's own would contradict.

    :raises ConfigurationError: naming the option and the reason
    """
    known_arguments(CopyOptions, options, "options")
    for name, reason in _REFUSED.items():
        if options.get(name) is not None:
            raise ConfigurationError(
                f"options has {name}={options[name]!r}, and {reason}: leave the option out"
            )


def copy_arguments(
    manifest: RunManifest, table_columns: Callable[[], Sequence[TableColumn]], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The columns, expressions and options of a COPY of the files of a manifest.

    Columns are matched by their names. Where one holds JSON as text, which only an expression parses, all are
    named: a COPY cannot do both.

    :raises ConfigurationError: if an option contradicts these
    """
    check_options(options)
    found: dict[str, Any] = {**options, "file_format": dict(_FORMAT)}
    if not manifest.json_columns:
        return {"options": {**found, "match_by_column_name": "CASE_SENSITIVE"}}
    types = {column.name: column.type for column in table_columns()}
    missing = [name for name in manifest.columns if name not in types]
    if missing:
        raise ConfigurationError(
            f"the table has lost column {missing[0]!r} since its rows were written: bring it back, or load "
            "again under another run_key"
        )
    expressions = [
        _expression(name, types[name], parsed=name in manifest.json_columns) for name in manifest.columns
    ]
    return {"columns": list(manifest.columns), "expressions": expressions, "options": found}


def _expression(name: str, kind: str, *, parsed: bool) -> str:
    value = f"$1:{quote_identifier(name)}"
    return f"PARSE_JSON({value})" if parsed else f"{value}::{kind}"


def copied_value(
    manifest: RunManifest,
    stage: RunStage,
    files: Mapping[str, Mapping[str, Any]],
    on_rejected: str,
    table: str,
) -> dict[str, Any]:
    """The task's value, held against the manifest.

    :param files: what COPY reports of each file, by its path below the stage
    :param on_rejected: ``fail`` refuses another number of rows than a file has
    :raises FilesRejectedError: if there is such a file
    """
    rows = {f"{stage.reference.path}/{file.name}": file.rows for file in manifest.files}
    wrong = [
        path
        for path, one in files.items()
        if one["status"] == LOADED and int(one["rows_loaded"]) != rows.get(path)
    ]
    if wrong and on_rejected == "fail":
        named = "; ".join(
            f"{path!r} has {rows.get(path, 0):,} rows and COPY reports {int(files[path]['rows_loaded']):,}"
            for path in wrong[:_MOST_NAMED]
        )
        raise FilesRejectedError(
            f"COPY into {table}: {len(wrong):,} of {len(files):,} files were not loaded as Spark wrote them: "
            f"{named}. Compare the table with the source",
            files=tuple(wrong),
            rejected=0,
        )
    return {
        "folder": stage.location,
        "rows": manifest.rows,
        "bytes": manifest.bytes,
        "rows_loaded": sum(int(one["rows_loaded"]) for one in files.values()),
        "rejected": sum(int(one["errors_seen"]) for one in files.values()),
        "files": {path: dict(one) for path, one in files.items()},
    }


# -- The work of one run of a bulk load: files that Spark writes, their manifest, and one COPY of these --

Write = Callable[[], AbstractContextManager["WriteReport"]]
"""Has Spark write the rows; the files are there as long as the block runs."""
Copy = Callable[[RunManifest], Mapping[str, Mapping[str, Any]]]
"""Copies a manifest's files that are not in the table; what became of each, by its path below the stage."""


@dataclass(frozen=True, slots=True)
class BulkRun:
    """What is to be done once, however many tries it takes.

    :param on_rejected: ``fail`` or ``report`` files that were not loaded, or only in part
    :param source: what the rows are read from, in words that tell it from another one
    :param identity: the run whose work it is, None where a ``run_key`` names it over all runs
    """

    hook: SnowpipeBulkHook
    stage: RunStage
    work: str
    table: str
    on_rejected: str
    parallel: int
    log: Callable[..., None]
    source: str
    identity: RunIdentity | None = None

    def load(self, write: Write, copy: Copy) -> dict[str, Any]:
        """Do what an earlier try has left to do, which may be all or nothing; the task's value.

        :raises FilesGivenTwiceError: if files are in the table that no manifest, or another one, has
        :raises ConfigurationError: if an earlier try has read from another source, or was one of a run of the
            same id that was deleted
        """
        done = self._outcome(is_begun=False)
        if done is not None:
            self.log("%s shows that this work is done; nothing is loaded", self.stage.location)
            return done
        manifest, attempt = self.stage.manifest(), ""
        if manifest is not None:
            self._require_own(manifest.began)
        else:
            manifest, attempt = self._staged(write)
        if manifest.attempt != attempt:
            self._require_same(manifest.source)
            self.log("another try has staged %d files, which are the ones", len(manifest.files))
        done = self._outcome() or self._loaded_before(manifest)
        return self._settled(manifest, done, copy)

    def resume(self, copy: Copy) -> dict[str, Any]:
        """Go on after COPY was submitted; the task's value.

        :raises ConfigurationError: if the manifest is gone, or an earlier try has read from another source
        :raises FilesGivenTwiceError: if files are in the table that the manifest does not have
        """
        done = self._outcome()
        if done is not None:
            return done
        manifest = self.stage.manifest()
        if manifest is None:
            raise ConfigurationError(
                f"{self.stage.location} has lost its manifest while COPY was running: compare the table with "
                "the source before you load again, under another run_key"
            )
        self._require_same(manifest.source)
        folder = self.stage.folder
        refuse_other_files(manifest, folder, self.hook.loads_in_folder(self.table, folder))
        return self._settled(manifest, None, copy)

    def _outcome(self, *, is_begun: bool = True) -> dict[str, Any] | None:
        """The task's value, None where the work is not known to be done.

        :param is_begun: True where this try has found it to be this run's own work
        """
        done = self.stage.outcome()
        if done is not None:
            began = done.pop("began")
            if not is_begun:
                self._require_own(began)
            self._require_same(done.pop("source"))
        return done

    def _require_own(self, began: str) -> None:
        """Refuse what a run of the same id has done that was deleted: its rows are not those of now.

        :param began: when the run began that has done it; empty where it is of no run
        """
        run = self.identity
        if run is None or not began:
            return
        is_anew = run.is_anew(dt.datetime.fromisoformat(began))
        if not is_anew and not self.stage.is_made_anew():
            return
        self.stage.note_made_anew()
        raise ConfigurationError(
            f"{self.stage.location} has what a run of the same id has written and loaded that began at "
            f"{began}; this run began at {run.since.isoformat()}, so that one was deleted, and what it has "
            f"loaded of {self.work} is not loaded again: its rows may be in the table. To load the rows of "
            "now, begin a run under another id, or give run_key=…; where nothing was loaded, REMOVE that "
            "folder and clear the task"
        )

    def _require_same(self, source: str) -> None:
        """Refuse for this work what was read from another source."""
        if source != self.source:
            raise ConfigurationError(
                f"an earlier try of {self.work} has read its rows from {source!r}, and they are loaded, or "
                f"staged in {self.stage.location}; the source is {self.source!r} now. A task, and an "
                "instance of a mapped one, has to get the same source at each try: to load this one as well, "
                "begin another run or give another run_key; where nothing of it is loaded, REMOVE that folder"
            )

    def _staged(self, write: Write) -> tuple[RunManifest, str]:
        """Write the rows and stage them; from its end on, this run has the manifest's files and no others.

        :return: the manifest, and the attempt that was made here; another one may have been faster
        """
        history = self.hook.loads_in_folder(self.table, self.stage.folder)
        refuse_loaded_folder(self.stage.folder, self.work, history)
        with write() as report:
            manifest = _manifest(self.work, report, self.source, self._began)
            if self.stage.url is None:
                self.stage.put(local_path(report.folder).parent, manifest.names, self.parallel)
            return self.stage.keep_manifest(manifest), manifest.attempt

    def _settled(self, manifest: RunManifest, done: dict[str, Any] | None, copy: Copy) -> dict[str, Any]:
        """Copy what is not in the table, and record it in the stage."""
        if done is None:
            files = copy(manifest) if manifest.files else {}
            done = copied_value(manifest, self.stage, files, self.on_rejected, self.table)
        self.stage.keep_outcome({**done, "source": self.source, "began": self._began})
        return done

    @property
    def _began(self) -> str:
        return "" if self.identity is None else self.identity.since.isoformat()

    def _loaded_before(self, manifest: RunManifest) -> dict[str, Any] | None:
        """The value where load history shows that every file is in the table."""
        folder = self.stage.folder
        history = self.hook.loads_in_folder(self.table, folder)
        refuse_other_files(manifest, folder, history)
        loads = loaded_files(manifest, folder, history)
        if not manifest.files or len(loads) < len(manifest.files):
            return None
        self.log("load history shows that all %d files are in the table", len(loads))
        CopyOutcome(tuple(loads.values())).require(self.on_rejected, self.table)
        files = {f"{self.stage.reference.path}/{name}": load.result() for name, load in loads.items()}
        return copied_value(manifest, self.stage, files, self.on_rejected, self.table)


def _manifest(work: str, report: WriteReport, source: str, began: str) -> RunManifest:
    files = tuple(WrittenFile(f"{report.attempt}/{one.name}", one.bytes, one.rows) for one in report.files)
    return RunManifest(work, report.attempt, files, report.columns, report.json_columns, source, began)
