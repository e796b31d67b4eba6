"""The operator that looks at the data, plans its load, and takes the path that was chosen."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.file_operator import failing_at_once
from airflow_provider_snowpipe.operators.load_outcome import OUTCOME_KEY, outcome_of
from airflow_provider_snowpipe.operators.load_planning import (
    PLAN_KEY,
    is_staged,
    known_shape,
    load_policy,
    path_before,
)
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.routing.load_plan import LoadPath
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import quote_identifier

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
    from airflow_provider_snowpipe.operators.file_boundary import FileBoundary
    from airflow_provider_snowpipe.operators.load_choice import LoadChoice
    from airflow_provider_snowpipe.spark.files.spec import FileSourceSpec


class SnowpipeLoadOperator(SnowpipeStreamOperator):
    """Load data the way that suits its shape: a trickle through channels, a flood by COPY.

    The task looks at the source, plans, and takes the path: streaming as :class:`SnowpipeStreamOperator`
    does, or COPY as :class:`SnowpipeCopyOperator` does, after it has staged files of this machine. The next
    run may take the other path: each partition's channel says up to which row it is in the table, whichever
    way it came there, so that no row is lost or loaded twice where one path ends and the other begins.

    The XCom ``plan`` has the path, the reasons, and what each path would cost; the XCom ``outcome`` has
    what was estimated beside what came of it.

    :param source: ``@stage/path``; a folder of ordered files; or the source of a stream as a mapping
        (templated)
    :param path: ``auto``, ``stream`` or ``copy`` (templated)
    :param stage: where files of this machine are staged for COPY; None for the table's own stage (templated)
    :param options: options of COPY, beside those that the source's format asks for (templated)
    :param shape: what is known of the data beside what is found, such as ``{"freshness": 60}`` (templated)
    :param policy: parameters of :class:`~airflow_provider_snowpipe.routing.load_policy.LoadPolicy` but
        ``path``
    :param costs: figures of the cost model to replace, by name
    :param remember: False plans without regard to the run before
    :param kwargs: arguments of :class:`SnowpipeStreamOperator`; with ``on_error="continue"`` COPY reports
        files that were not loaded as a whole, otherwise they fail the task
    :raises ConfigurationError: if an argument is wrong
    """

    template_fields: Sequence[str] = (
        *SnowpipeStreamOperator.template_fields,
        "path",
        "stage",
        "options",
        "shape",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"shape": "json", "options": "json"}
    source: Any

    def __init__(
        self,
        *,
        source: Mapping[str, Any] | str,
        path: str = "auto",
        stage: str | None = None,
        options: Mapping[str, Any] | None = None,
        shape: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        costs: Mapping[str, Any] | None = None,
        remember: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(source=source, **kwargs)  # type: ignore[arg-type]  # text becomes a mapping later
        self.path = path
        self.stage = stage
        self.options = options
        self.shape = shape
        self.policy = policy
        self.costs = costs
        self.remember = remember
        self._copying: SnowpipeCopyOperator | None = None
        self._frozen: FileBoundary | None = None
        if "path" in (policy or {}):
            raise ConfigurationError("policy has the key 'path': give path=… beside it")
        load_policy(policy, costs)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Plan the load and carry it out.

        :return: ``path`` and what the operator of that path returns
        :raises AirflowFailException: if it went wrong in a way that a retry cannot mend
        """
        with failing_at_once():
            choice = self._choice(known_shape(self.shape, context), context)
            path, why = choice.path()
            if choice.plan is not None:
                for line in choice.plan.lines():
                    self.log.info("%s", line)
                context["ti"].xcom_push(key=PLAN_KEY, value=choice.xcom())
            if why is not None:
                self.log.info("path %s instead: %s", path.value, why)
            if path is LoadPath.COPY:
                return self._copy(context)
            if any(position.intent for position in choice.positions):
                self.log.info("an earlier COPY was interrupted; it is finished before anything is streamed")
                self._copy_files(context, promised_only=True)
        return self._streamed(context, super().execute(context))

    def execute_complete(
        self, context: Context, event: Mapping[str, Any], sent: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Go on where the task was deferred, on the path that it had taken.

        :param event: the payload of the trigger
        :param sent: what a driver had sent; None for a COPY
        """
        self._files()  # which reads a path as a source
        if sent is not None:
            return self._streamed(context, super().execute_complete(context, event, sent))
        if event.get("message"):
            self.log.warning("the triggerer could not wait: %s", event["message"])
        with failing_at_once():
            return self._copy(context, resumed=True)

    def on_kill(self) -> None:
        """Cancel the COPY that runs, or stop Spark."""
        if self._copying is not None:
            self._copying.on_kill()
        super().on_kill()

    def dry_run(self) -> None:
        """Print the plan; reads source, channels and stage, changes nothing."""
        choice = self._choice(known_shape(self.shape))
        path, why = choice.path()
        for line in [] if choice.plan is None else choice.plan.lines():
            self.log.info("dry run: %s", line)
        self.log.info("dry run: would take the path %s%s", path.value, f": {why}" if why else "")

    def _choice(self, known: Mapping[str, Any], context: Context | None = None) -> LoadChoice:
        from airflow_provider_snowpipe.operators.load_choice import LoadChoice

        files = self._files()
        return LoadChoice(
            self.source,
            files,
            None if files is None or self.table is None else self._boundary(),
            self._bulk_hook(),
            known,
            load_policy({**(self.policy or {}), "path": self.path}, self.costs),
            path_before(context) if self.remember and context is not None else None,
            may_lack_table=self.create_table is not None,
        )

    def _copy(self, context: Context, *, resumed: bool = False) -> dict[str, Any]:
        if is_staged(self.source):
            arguments = {"options": self.options, "deferrable": self.deferrable}
            copier = self._copier(str(self.source), arguments, resumed=resumed)
            value = {**copier.perform(context), "bytes": None, "channels": {}}
        else:
            value = self._copy_files(context, resumed=resumed)
        value = {"path": LoadPath.COPY.value, **value}
        return self._concluded(context, value, value["rows_loaded"], value["bytes"])

    def _copy_files(
        self, context: Context, *, promised_only: bool = False, resumed: bool = False
    ) -> dict[str, Any]:
        """Copy files of this machine, and move the channels' tokens behind them."""
        from airflow_provider_snowpipe.operators.file_copy import copy_arguments, copy_files

        files = self._files()
        if files is None:
            raise ConfigurationError(
                f"path is 'copy' and source is {self.source!r}: only files are copied; take path='stream'"
            )
        arguments = copy_arguments(files, self.options or {})
        # What is to be streamed afterwards would be forgotten with the worker.
        arguments["deferrable"] = self.deferrable and not promised_only

        def copy(paths: Sequence[str]) -> dict[str, Any]:
            copier = self._copier(self._stage_of_table(), {**arguments, "files": paths}, resumed=resumed)
            return copier.perform(context)

        return copy_files(self._boundary(), copy, self._on_rejected, promised_only=promised_only)

    def _streamed(self, context: Context, value: dict[str, Any]) -> dict[str, Any]:
        value = {"path": LoadPath.STREAM.value, **value}
        return self._concluded(context, value, value["rows"], value["bytes"], value["seconds"])

    def _concluded(
        self,
        context: Context,
        value: dict[str, Any],
        rows: int,
        size: int | None,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        ti: Any = context["ti"]
        plan = ti.xcom_pull(task_ids=ti.task_id, key=PLAN_KEY, map_indexes=ti.map_index)
        if seconds is None and getattr(ti, "start_date", None) is not None:
            seconds = (dt.datetime.now(dt.UTC) - ti.start_date).total_seconds()
        outcome = outcome_of(plan, value["path"], {"rows": rows, "bytes": size, "seconds": seconds})
        self.log.info("%s", outcome)
        ti.xcom_push(key=OUTCOME_KEY, value=outcome)
        return value

    def _copier(self, stage: str, arguments: dict[str, Any], *, resumed: bool) -> SnowpipeCopyOperator:
        from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator

        if self.table is None:
            raise ConfigurationError("table is None: name the table that the files are copied into")
        self._copying = SnowpipeCopyOperator(
            task_id=self.task_id,
            table=self.table,
            stage=stage,
            on_rejected=self._on_rejected,
            on_nothing="report",
            poll_interval=self.poll_interval,
            database=self.database,
            schema=self.schema,
            snowflake_conn_id=self.snowflake_conn_id,
            **arguments,
        )
        self._copying.resumed = resumed
        return self._copying

    def _boundary(self) -> FileBoundary:
        """The files as they were when the task began, and their channels."""
        from airflow_provider_snowpipe.operators.file_boundary import FileBoundary

        files = self._files()
        if files is None or self.table is None:
            raise ConfigurationError(
                f"source is {self.source!r} and table is {self.table!r}: only files are copied, and only "
                "into a table that is named; take path='stream'"
            )
        if self._frozen is None:
            prefix, name = self.channel_prefix or self.dag_id, self.source_name or files.default_name
            self._frozen = FileBoundary(
                files,
                lambda partition: files.channel(prefix, name, partition),
                self._bulk_hook(),
                self._stage_of_table(),
                "skip" if self.on_data_loss == "skip" else "fail",
            )
        return self._frozen

    def _bulk_hook(self) -> SnowpipeBulkHook:
        return SnowpipeBulkHook(
            self.snowflake_conn_id, table=self.table, database=self.database, schema=self.schema
        )

    def _files(self) -> FileSourceSpec | None:
        """The source as files of this machine, None where it is something else."""
        from airflow_provider_snowpipe.spark.files.spec import FileSourceSpec
        from airflow_provider_snowpipe.spark.sources import source_spec

        if is_staged(self.source):
            return None
        if isinstance(self.source, str):
            self.source = {"path": self.source}
        spec = source_spec(self.source)
        return spec if isinstance(spec, FileSourceSpec) else None

    @property
    def _on_rejected(self) -> str:
        return "report" if self.on_error == "continue" else "fail"

    def _stage_of_table(self) -> str:
        return self.stage or f"@%{quote_identifier(self.table or '')}"
