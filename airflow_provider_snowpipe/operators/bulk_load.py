"""The operator that has Spark write rows as files of the right size, and loads them by one COPY."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import conf

from airflow_provider_snowpipe.assets.events import describe_file_load
from airflow_provider_snowpipe.bulk.copy import LOAD_SKIPPED, CopyInto, CopyOptions
from airflow_provider_snowpipe.bulk.copy_run import CopyRun, LeaveWorker
from airflow_provider_snowpipe.bulk.ledger_entry import GIVEN_UP, Entry, work_key
from airflow_provider_snowpipe.bulk.run_files import TARGET_FILE_BYTES, RunManifest, check_target, run_folder
from airflow_provider_snowpipe.bulk.stage import check_parallel
from airflow_provider_snowpipe.bulk.staged_files import LOADED, StagedFile, StageReference
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.lineage import TaskLineage
from airflow_provider_snowpipe.links.snowpipe import SparkUiLink, leaving_copies
from airflow_provider_snowpipe.operators.account_operator import (
    FILES_KEY,
    AccountArguments,
    check_arguments,
    failing_at_once,
    run_identity,
)
from airflow_provider_snowpipe.operators.bulk_driver import BulkDriverOperator, RunStage
from airflow_provider_snowpipe.operators.copy import CopyTask, copy_into, wait_for_statement
from airflow_provider_snowpipe.operators.spark_job import refuse_own_arguments
from airflow_provider_snowpipe.sources import TableSource, bulk_values
from airflow_provider_snowpipe.streaming.arguments import known_arguments, mapping_argument
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, FilesRejectedError, SqlError
from airflow_provider_snowpipe.streaming.names import first_few, quote_identifier

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.bulk.copy import RunIdentity
    from airflow_provider_snowpipe.spark.driver.plan import RowsToWrite, WriteReport
    from airflow_provider_snowpipe.streaming.table_schema import TableColumn


log = logging.getLogger(__name__)


class SnowpipeBulkLoadOperator(CopyTask, BulkDriverOperator):
    """Load whatever Spark reads into a table by files and one COPY, once per run.

    Spark computes the rows once and writes them as Parquet files of about ``target_file_bytes``: into the
    storage of an external stage, or into a folder from which this worker puts them into an internal stage.
    Then the load ledger, the table ``SNOWPIPE_LOADS`` beside the target, names the files of this run, and
    COPY loads those and marks them there in its own transaction.

    A retry goes on where the try before ended. With no entry in the ledger the files are written again; what
    that try has left is loaded by nobody. With an entry its files are the ones to load. When the rows are in
    the table, the task, cleared or not, does nothing more; it loads again what a table has lost that was
    emptied, and fails where the table was replaced by another one that is not empty.

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
    :param options: options of COPY: ``on_error``, ``truncate_columns``, ``enforce_length``, … (templated)
    :param ledger_table: name of the load ledger, as of :class:`SnowpipeCopyOperator` (templated)
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
        "options",
        "ledger_table",
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
        options: Mapping[str, Any] | None = None,
        ledger_table: str | None = None,
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
        self.options = options
        self.ledger_table = ledger_table
        self.on_rejected = on_rejected
        self.keep_files = keep_files
        self.parallel = parallel
        self.deferrable = deferrable
        self.poll_interval = poll_interval
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

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Write, stage and copy, or do what an earlier try of this run has left to do.

        :raises AirflowFailException: if it went wrong in a way that a retry cannot fix
        """
        with failing_at_once():
            hook, identity = self.bulk_hook(self.table), run_identity(context)
            if self.run_key:
                identity = replace(identity, names=(str(self.run_key),))
            folder = run_folder(identity.names, *hook.database_and_schema(), self.table)
            rows, options = self._rows(), mapping_argument("options", self.options)
            digest = blake2b(json.dumps(asdict(rows), sort_keys=True).encode(), digest_size=8).hexdigest()
            stage = RunStage(hook, self._stage_name(), folder)
            leave = partial(wait_for_statement, self, self.poll_interval) if self.deferrable else None
            run = self._load = BulkRun(
                hook,
                stage,
                self.table,
                identity,
                f"{rows.address} ({digest})",
                lambda found: copy_into(
                    hook, self.table, stage.location, **copy_arguments(found, hook.table_columns, options)
                ),
                on_rejected=self.on_rejected,
                parallel=self.parallel,
                is_of_run=not self.run_key,
                ledger_table=self.ledger_table,
                leave=leave,
                begun=self._begun,
            )
            with leaving_copies(context, hook, [run]):
                done = run.load(partial(self._written, context, run))
            return self._concluded(context, run, done)

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
}


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse what is not an option of COPY, and options that this operator's own would contradict.

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
    """The task's value, compared with the manifest.

    :param files: what COPY reports of each file, by its path below the stage
    :param on_rejected: ``fail`` refuses another number of rows than a file has
    :raises FilesRejectedError: if there is such a file
    """
    rows = {f"{stage.reference.path}/{file.name}": file.rows for file in manifest.files}
    wrong = [
        path
        for path, one in files.items()
        if one["status"] in (LOADED, LOAD_SKIPPED) and int(one["rows_loaded"]) != rows.get(path)
    ]
    if wrong and on_rejected == "fail":
        named = [
            f"{path!r} has {rows.get(path, 0):,} rows and COPY reports {int(files[path]['rows_loaded']):,}"
            for path in wrong
        ]
        raise FilesRejectedError(
            f"COPY into {table}: {len(wrong):,} of {len(files):,} files were not loaded as Spark wrote them: "
            f"{first_few(named, '; ')}. Compare the table with the source",
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


# -- The work of one run of a bulk load: files that Spark writes, and one COPY of these -------------------

Write = Callable[[], AbstractContextManager["WriteReport"]]
"""Has Spark write the rows; the files are there as long as the block runs."""


@dataclass(slots=True)
class BulkRun:
    """What is to be done once, however many tries it takes.

    :param source: what the rows are read from, in words that tell it from another one
    :param copy_of: makes the COPY of a manifest's files, from where the stage itself is
    :param on_rejected: ``fail`` or ``report`` files that were not loaded, or only in part
    :param is_of_run: False where a ``run_key`` names the work over all runs
    :param ledger_table: name of the load ledger, None for the default
    :param leave: leaves the worker while COPY runs, None to wait here
    :param begun: versions of ledger entries when the task was deferred, None for a try that begins
    """

    hook: SnowpipeBulkHook
    stage: RunStage
    table: str
    identity: RunIdentity
    source: str
    copy_of: Callable[[RunManifest], CopyInto]
    _: KW_ONLY
    on_rejected: str = "fail"
    parallel: int = 4
    is_of_run: bool = True
    ledger_table: str | None = None
    leave: LeaveWorker | None = None
    begun: Mapping[str, int] | None = None
    copy_run: CopyRun | None = field(default=None, init=False)

    def load(self, write: Write) -> dict[str, Any]:
        """Do what an earlier try has left to do, which may be all or nothing; the task's value.

        :raises ConfigurationError: if an earlier try has read from another source, or was one of a run of the
            same id that was deleted
        :raises FilesRejectedError: if COPY has not loaded each file as Spark wrote it
        """
        hook = self.hook
        with (
            hook.load_ledger(self.table, self.ledger_table) as ledger,
            closing(hook.get_statement_client()) as client,
        ):
            stage = StageReference.parse(str(self.stage.reference), *ledger.target[:2])
            run = self.copy_run = CopyRun(
                CopyInto(ledger.target, self.stage.location),
                replace(stage, path=""),
                client,
                ledger,
                partial(hook.loads_of, self.table),
                self.identity,
                work_key(self.identity, ledger.target),
                url=self.stage.stage_url,
                leave=self.leave,
                begun=self.begun,
            )
            entries = ledger.entries(run.work)
            known = [one for one in entries if one.state != GIVEN_UP]
            self._require_own(known)
            known, lost = run.seen(known)
            if lost:
                log.info("%s has lost the rows: they are written and loaded again", self.table)
                for one in known:
                    ledger.change(one, replace(one, state=GIVEN_UP))
                known = []
            written = None
            if not known:
                with write() as report:
                    written = self.stage.put_written(report, self.parallel, self.source)
            # Another process of this work may have planned its files meanwhile, which are the ones then.
            entries = ledger.entries(run.work)
            known = [one for one in entries if one.state != GIVEN_UP]
            if written is None and not known:
                raise SqlError(f"COPY into {self.table}: another process has given its files up; run again")
            if written is None or known:
                manifest = RunManifest.from_json(known[0].details, f"the ledger {'.'.join(ledger.name)}")
                if manifest.source != self.source:
                    raise ConfigurationError(
                        f"an earlier try of {'/'.join(self.identity.names)} has read its rows from "
                        f"{manifest.source!r}, and they are loaded, or staged in {self.stage.location}; the "
                        f"source is {self.source!r} now. A task, and an instance of a mapped one, has to get "
                        "the same source at each try: to load this one as well, begin another run or give "
                        "another run_key"
                    )
                log.info("an earlier try has staged %d files, which are the ones", len(manifest.files))
            else:
                manifest = written
            run.copy, run.details = self.copy_of(manifest), lambda _: manifest.to_json()
            return self._copied(run, manifest, entries)

    def stop(self) -> None:
        """Cancel the COPY that runs, or begin no other ``PUT``."""
        self.stage.stop()
        if self.copy_run is not None:
            self.copy_run.stop()

    def _copied(self, run: CopyRun, manifest: RunManifest, entries: Sequence[Entry]) -> dict[str, Any]:
        """Load what the ledger does not show to be loaded; the task's value."""
        files = {
            path: StagedFile(path, size=one.bytes)
            for one in manifest.files
            for path in (f"{self.stage.reference.path}/{one.name}",)
        }
        if not files:
            return copied_value(manifest, self.stage, {}, self.on_rejected, self.table)
        entries = run.plan(files, entries)
        left = files
        if any(one.is_loaded for one in entries):  # what is loaded may be removed
            named = {f"{self.stage.reference.path}/{name}" for name in self.stage.names()}
            named |= {file.path for one in entries if not one.is_loaded for file in one.files}
            left = {path: file for path, file in files.items() if path in named}
        outcome = run.judged(run.load(entries, left))
        outcome.require(self.on_rejected, self.table)
        loads = {load.path: load.result() for load in (*outcome.before, *outcome.loads)}
        return copied_value(manifest, self.stage, loads, self.on_rejected, self.table)

    def _require_own(self, entries: Iterable[Entry]) -> None:
        """Refuse what a run of the same id has done that was deleted: its rows are not those of now."""
        deleted = [one for one in entries if one.run_started and self.identity.is_anew(one.run_started)]
        if not self.is_of_run or not deleted:
            return
        raise ConfigurationError(
            f"a run of the same id, which began at {deleted[0].run_started}, was deleted, and it has written "
            f"files of {'/'.join(self.identity.names)} for {self.table}, or loaded them: their rows may be "
            "in the table, and are not loaded again. To load the rows of now, begin a run under another id, "
            f"or give run_key=…; where nothing was loaded, delete WORK = {deleted[0].work!r} of the load "
            "ledger and clear the task"
        )
