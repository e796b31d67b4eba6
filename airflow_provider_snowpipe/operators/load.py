"""The operator that probes the data, plans its load, and takes the path that was chosen."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException, conf

from airflow_provider_snowpipe.assets.events import describe_file_load
from airflow_provider_snowpipe.bulk.other_loaders import asked
from airflow_provider_snowpipe.lineage import TaskLineage
from airflow_provider_snowpipe.operators.account_operator import (
    FILES_KEY,
    check_arguments,
    failing_at_once,
    run_identity,
)
from airflow_provider_snowpipe.operators.load_planning import (
    OUTCOME_KEY,
    PLAN_KEY,
    LoadAccount,
    LoadChoice,
    is_staged,
    known_shape,
    loads_before,
    only_streamed,
    path_before,
    splits_csv,
)
from airflow_provider_snowpipe.operators.stream import TARGETS_KEY, SnowpipeStreamOperator
from airflow_provider_snowpipe.routing.cost_model import LoadPolicy
from airflow_provider_snowpipe.routing.load_plan import LoadPath, outcome_of
from airflow_provider_snowpipe.spark.submit.source import (
    SourceBacklog,
    file_source,
    has_backlog,
    is_in_object_store,
    with_log_path,
)
from airflow_provider_snowpipe.streaming.arguments import mapping_argument
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, error_line
from airflow_provider_snowpipe.streaming.names import quote_identifier
from airflow_provider_snowpipe.triggers.commit import is_deferral_timeout

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.operators.file_loading import FileLoading
    from airflow_provider_snowpipe.sources import FileSource
    from airflow_provider_snowpipe.spark.source import SourceSpec
    from airflow_provider_snowpipe.spark.submit.file_units import FileUnits


class SnowpipeLoadOperator(SnowpipeStreamOperator):
    """Load data the way that suits its shape: a trickle through channels, a flood by COPY, drops by a pipe.

    The task probes the source, plans, and takes the path: streaming as :class:`SnowpipeStreamOperator`
    does, COPY as :class:`SnowpipeCopyOperator` does, or a file pipe as :class:`SnowpipeIngestFilesOperator`
    does, after it has staged files of this machine. The next run may take another path: the source log gives
    each file to one loader, so that no row is lost or loaded twice.

    The XCom ``plan`` has the path, the reasons, and what each path would cost; the XCom ``outcome`` has
    what was estimated beside what came of it, and the last loads of the table, by which the next run plans.

    :param source: ``@stage/path``; a folder of ordered files; or the source of a stream, such as a
        :class:`~airflow_provider_snowpipe.sources.FileSource` or its mapping (templated)
    :param path: ``auto``, ``stream``, ``copy`` or ``pipe`` (templated)
    :param stage: where files of this machine are staged for COPY; None for the table's own stage (templated)
    :param file_pipe: a file pipe into the table, in the table's schema; ``auto`` takes the pipe only where it
        is named. Files of this machine are staged at the pipe's own location (templated)
    :param load_timeout: seconds to wait until the pipe has loaded its files
    :param options: options of COPY, beside those that the source's format asks for (templated)
    :param ledger_table: name of the load ledger of COPY, as of :class:`SnowpipeCopyOperator` (templated)
    :param shape: what is known of the data beside what is found, such as ``{"freshness": 60}`` (templated)
    :param policy: parameters of :class:`~airflow_provider_snowpipe.routing.cost_model.LoadPolicy` but
        ``path``
    :param costs: figures of the cost model to replace, by name
    :param remember: False plans without regard to the run before
    :param kwargs: arguments of :class:`SnowpipeStreamOperator`; with ``on_error="continue"`` COPY reports
        files that were loaded in part, otherwise they fail the task
    :raises ConfigurationError: if an argument is wrong
    """

    template_fields: Sequence[str] = (
        *SnowpipeStreamOperator.template_fields,
        "path",
        "stage",
        "file_pipe",
        "options",
        "ledger_table",
        "shape",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"shape": "json", "options": "json"}
    source: Any

    def __init__(
        self,
        *,
        source: SourceSpec | Mapping[str, Any] | str,
        path: str = "auto",
        stage: str | None = None,
        file_pipe: str | None = None,
        load_timeout: float = 3600.0,
        options: Mapping[str, Any] | None = None,
        shape: Mapping[str, Any] | None = None,
        ledger_table: str | None = None,
        policy: Mapping[str, Any] | None = None,
        costs: Mapping[str, Any] | None = None,
        remember: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(source=source, **kwargs)  # type: ignore[arg-type]  # text becomes a mapping later
        self.path = path
        self.stage = stage
        self.file_pipe = file_pipe
        self.load_timeout = load_timeout
        self.options = options
        self.shape = shape
        self.ledger_table = ledger_table
        self.policy = policy
        self.costs = costs
        self.remember = remember
        self._loading: FileLoading | None = None
        self._frozen: FileUnits | None = None
        if "path" in (policy or {}):
            raise ConfigurationError("policy has the key 'path': give path=… beside it")
        check_arguments(self, seconds=["load_timeout"], switches=["remember"])
        LoadPolicy.of(policy, costs)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Plan the load and carry it out.

        :return: ``path`` and what the operator of that path returns
        :raises AirflowFailException: if it went wrong in a way that a retry cannot fix
        """
        self._run_mark = self._name_run(context)
        with failing_at_once():
            choice = self._choice(known_shape(self.shape, context), context)
            if choice.units is not None:
                choice.units.require_known()
                self._keep_log(choice.units)
            path, why = choice.path()
            if choice.plan is not None:
                for line in choice.plan.lines():
                    self.log.info("%s", line)
                context["ti"].xcom_push(key=PLAN_KEY, value=choice.xcom())
            if why is not None:
                self.log.info("path %s instead: %s", path.value, why)
            if path is not LoadPath.STREAM:
                loading = self._file_loading(context)
                with loading.leaving_copies(context):
                    return self._with_files(
                        context, path, loading.run(path, None if is_staged(self.source) else self.units())
                    )
            if choice.units is not None and choice.units.source.given():
                self.log.info("an earlier load was interrupted; it is finished before anything is streamed")
                self._file_loading(context).finish(choice.units)
            elif choice.units is not None and choice.units.is_new:
                asked("whether COPY has loaded files of this path by a log", choice.units.require_log)
        return self._streamed(context, super().execute(context))

    def execute_complete(
        self,
        context: Context,
        event: Mapping[str, Any],
        sent: Mapping[str, str] | None = None,
        submitted: Mapping[str, Any] | None = None,
        begun: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """Go on where the task was deferred, on the path that it had taken.

        :param sent: what a driver had sent; None for files
        :param submitted: what a pipe was given; None for a COPY
        :param begun: versions of ledger entries when a COPY's try began
        """
        self._run_mark = self._name_run(context)
        self.source_files()  # which reads a path as a source
        if sent is not None:
            return self._streamed(context, super().execute_complete(context, event, sent))
        path = LoadPath.COPY if submitted is None else LoadPath.PIPE
        loading = self._file_loading(context, begun, is_back=True)
        with failing_at_once(), loading.leaving_copies(context):
            units = None if is_staged(self.source) else self.units()
            if units is not None:
                units.require_known()
                self._keep_log(units)
            if submitted is not None:
                return self._with_files(context, path, loading.after_pipe(event, submitted, units))
            if event.get("message"):
                self.log.warning("the triggerer could not wait: %s", event["message"])
            return self._with_files(context, path, loading.run(path, units))

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume the deferred task; a wait for a pipe that took too long ends in words about its files."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowException as error:
            ti: Any = context["ti"]
            given = ti.xcom_pull(task_ids=ti.task_id, key=FILES_KEY, map_indexes=ti.map_index)
            if given is None or not is_deferral_timeout(error.__cause__):
                raise
            raise AirflowException(
                error_line(
                    "FilesNotLoadedError",
                    f"pipe {self.file_pipe}: nothing was reported within {self.load_timeout:g} s and a "
                    f"margin that {len(given):,} files are loaded: see whether a triggerer runs. Run again, "
                    "which asks load history first",
                )
            ) from error.__cause__

    def on_kill(self) -> None:
        """Cancel the COPY that runs, or stop Spark."""
        if self._loading is not None:
            self._loading.stop()
        super().on_kill()

    def dry_run(self) -> None:
        """Print the plan; reads source, channels and stage, changes nothing."""
        choice = self._choice(known_shape(self.shape))
        path, why = choice.path()
        for line in [] if choice.plan is None else choice.plan.lines():
            self.log.info("dry run: %s", line)
        self.log.info("dry run: would take the path %s%s", path.value, f": {why}" if why else "")

    def _choice(self, known: Mapping[str, Any], context: Context | None = None) -> LoadChoice:
        """Collect what is known; without a context the run before does not count."""
        files, source, options = self.source_files(), self.source, mapping_argument("options", self.options)
        if self.path != LoadPath.STREAM and is_in_object_store(source):
            raise ConfigurationError(
                f"source path {source['path']!r} is a URL, and path is {self.path!r}: COPY and pipes load "
                "buckets from an external stage. Make one and give it as source, '@stage/path'; or take "
                "path='stream'. Nothing was loaded"
            )
        may_lack_table, backlog = self.create_table is not None, None
        if has_backlog(source):
            prefix, statuses = self.channel_prefix or self.dag_id, self._pipe_hook().channel_statuses
            backlog = SourceBacklog(self._source, statuses, prefix, may_lack_table)
        # Whether a pipe might be worth making is not a question of a task that has to load now.
        able: dict[str, Any] = {"has_pipe": bool(self.file_pipe), "may_make_pipe": False}
        able["splits_csv"] = splits_csv(options)
        if files is None and not is_staged(source):
            able["may_write_files"] = False
        earlier = context if self.remember else None
        loads = () if earlier is None else loads_before(earlier, self.loaded_table)
        return LoadChoice(
            source=source,
            files=files,
            units=None if files is None or self.table is None else self.units(),
            backlog=backlog,
            hook=self.bulk_hook(self.table),
            known=known,
            options=options,
            file_pipe=self.file_pipe,
            may_lack_table=may_lack_table,
            only_streamed=only_streamed(self.evolve_columns, self.requires_all_columns),
            policy=LoadPolicy.of({**able, **(self.policy or {}), "path": self.path}, self.costs, loads),
            before=None if earlier is None else path_before(earlier),
        )

    def _file_loading(
        self, context: Context, begun: Mapping[str, int] | None = None, *, is_back: bool = False
    ) -> FileLoading:
        from airflow_provider_snowpipe.operators.copy import wait_for_statement
        from airflow_provider_snowpipe.operators.file_loading import FileLoading
        from airflow_provider_snowpipe.operators.ingest_files import wait_for_pipe

        ti: Any = context["ti"]
        self._loading = FileLoading(
            hook_of=self.bulk_hook,
            table=self.table,
            source=self.source,
            files=self.source_files(),
            stage=self.stage or f"@%{quote_identifier(self.table or '')}",
            file_pipe=self.file_pipe,
            options=mapping_argument("options", self.options),
            is_pipe_forced=self.path == LoadPath.PIPE,
            # Whether files that are not loaded as a whole fail the task.
            on_rejected="report" if self.on_error == "continue" else "fail",
            load_timeout=self.load_timeout,
            poll_interval=self.poll_interval,
            identity=run_identity(context),
            announce=partial(ti.xcom_push, FILES_KEY),
            keep_log=self._keep_log,
            leave_copy=partial(wait_for_statement, self, self.poll_interval) if self.deferrable else None,
            leave_pipe=partial(wait_for_pipe, self) if self.deferrable else None,
            ledger_table=self.ledger_table,
            begun=begun,
            is_back=is_back,
        )
        return self._loading

    def _with_files(self, context: Context, path: LoadPath, value: dict[str, Any]) -> dict[str, Any]:
        value = {"path": path.value, **value}
        self.task_lineage = self._described(context, value)
        return self._concluded(context, value, {"rows": value["rows_loaded"], "bytes": value["bytes"]})

    def _streamed(self, context: Context, value: dict[str, Any]) -> dict[str, Any]:
        actual = {name: value[name] for name in ("rows", "bytes", "seconds")}
        return self._concluded(context, {"path": LoadPath.STREAM.value, **value}, actual)

    def _concluded(self, context: Context, value: dict[str, Any], actual: dict[str, Any]) -> dict[str, Any]:
        ti: Any = context["ti"]
        plan = ti.xcom_pull(task_ids=ti.task_id, key=PLAN_KEY, map_indexes=ti.map_index)
        began = getattr(ti, "start_date", None)
        here = None if began is None else (dt.datetime.now(dt.UTC) - began).total_seconds()
        actual = {"seconds": here, **actual}
        account = LoadAccount(self.bulk_hook(self.table), LoadPolicy.of(self.policy, self.costs), context)
        load = account.measured(plan, self.loaded_table, value, actual)
        before = loads_before(context, self.loaded_table)
        if load.path is LoadPath.COPY and value["files"]:
            before = tuple(account.attributed(before))
        outcome = outcome_of(plan, value["path"], actual, load, before)
        self.log.info("%s", {name: one for name, one in outcome.items() if name != "loads"})
        ti.xcom_push(key=OUTCOME_KEY, value=outcome)
        return value

    @property
    def loaded_table(self) -> str:
        """The table under which loads are kept for the next plan."""
        return ".".join(one for one in (self.database, self.schema, self.table or self.pipe) if one)

    def units(self) -> FileUnits:
        """The files as they were when the task began, and who loads them."""
        from airflow_provider_snowpipe.spark.submit.file_units import FileUnits

        files = self.source_files()
        if files is None or self.table is None:
            raise ConfigurationError(
                f"source is {self.source!r} and table is {self.table!r}: only files are copied, and only "
                "into a table that is named; take path='stream'"
            )
        if self._frozen is None:
            prefix, name = self.channel_prefix or self.dag_id, self.source_name or files.default_name
            record = self._record(self._pipe_hook(), files)
            record.require_split(files.split, self.rebind)
            self._frozen = FileUnits(
                files,
                lambda partition: files.channel(prefix, name, partition),
                self.bulk_hook(self.table),
                "skip" if self.on_data_loss == "skip" else "fail",
                run=self._run_mark,
                rebind=self.rebind,
                last=record.last_checkpoints(),
                on_imbalance=self.on_imbalance,
                ledger=self.ledger_table,
                **record.copied,
            )
        return self._frozen

    def source_files(self) -> FileSource | None:
        """The source as files of this machine, None where it is something else."""
        if is_staged(self.source):
            return None
        if isinstance(self.source, str):
            self.source = {"path": self.source}
        self.source = with_log_path(self.source, conf.get("snowpipe", "log_path", fallback=""))
        return file_source(self.source)

    def _keep_log(self, units: FileUnits) -> None:
        """Keep which logs have given files to COPY or a pipe, so that they are known if they get lost."""
        files = self.source_files()
        if files is not None and units.kept:
            self._write_record(self._pipe_hook(), (), files.form.numbering, copied=units.kept, sends=True)

    def _described(self, context: Context, value: Mapping[str, Any]) -> TaskLineage:
        """Report rows to asset events and lineage; a sensor on the channels has nothing to wait for."""
        hook, rows = self.bulk_hook(self.table), value["rows_loaded"]
        loader, partitions = "COPY", list(value["partitions"])
        if value["path"] == LoadPath.PIPE:
            loader = ".".join((*hook.database_and_schema(), str(self.file_pipe)))
        describe_file_load(self, context, hook, str(self.table), rows, loader, partitions)
        files = self.source_files()
        if files is None:
            return TaskLineage(hook, sources=(str(self.source),), rows=rows)
        context["ti"].xcom_push(key=TARGETS_KEY, value={})
        return TaskLineage(hook, sources=(files.address,), rows=rows, size=value["bytes"])
