"""A planned load: what it reads, which path it takes, what came of it, and what the next plan learns."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_snowpipe.bulk.copy import CopyOptions, StagedChoice, query_tag
from airflow_provider_snowpipe.bulk.load_history import (
    ATTRIBUTED_AFTER,
    attributed_credits,
    warehouse_seconds,
)
from airflow_provider_snowpipe.bulk.other_loaders import loads_since_staged
from airflow_provider_snowpipe.bulk.row_options import OF_COPY, RowOptions
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.hooks.storage import files_below, storage_path
from airflow_provider_snowpipe.operators.account_operator import run_identity
from airflow_provider_snowpipe.routing.cost_model import GB, WAREHOUSE_CREDITS, LoadPolicy
from airflow_provider_snowpipe.routing.load_plan import LoadPath, MeasuredLoad, kept_loads, measured_latency
from airflow_provider_snowpipe.routing.planner import plan_load
from airflow_provider_snowpipe.routing.probes import (
    DataShape,
    ListedFile,
    file_kind,
    folder_shape,
    listing_shape,
    past_loads_shape,
)
from airflow_provider_snowpipe.spark.submit.source import (
    SourceBacklog,
    addressed_source,
    connected_source,
    has_backlog,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, PartlyStreamedError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.routing.load_plan import LoadPlan
    from airflow_provider_snowpipe.sources import FileSource
    from airflow_provider_snowpipe.spark.submit.file_units import FileUnits, PartitionPosition

log = logging.getLogger(__name__)


PLAN_KEY = "plan"
_BACKFILL = "backfill"


def known_shape(shape: Any, context: Context | None = None) -> dict[str, Any]:
    """What is known of the data from the author and the kind of run.

    :raises ConfigurationError: if it is not a mapping, or a key or a value is wrong
    """
    known = DataShape.known({} if shape is None else shape)
    if context is not None and _run_type(context) == _BACKFILL and "backfill" not in known:
        known["backfill"] = True
    return known


def path_before(context: Context) -> LoadPath | None:
    """The path that the run before took by its own choice, None where there was none or it was forced."""
    ti: Any = context["ti"]
    kept = ti.xcom_pull(task_ids=ti.task_id, key=PLAN_KEY, include_prior_dates=True, map_indexes=ti.map_index)
    if not isinstance(kept, Mapping) or kept.get("is_forced") or kept.get("path") not in list(LoadPath):
        return None
    return LoadPath(kept["path"])


def splits_csv(options: Mapping[str, Any]) -> bool:
    """True for options of COPY by which many threads read one CSV file."""
    given = {name.lower(): value for name, value in options.items()}
    form = given.get("file_format")
    if not isinstance(form, Mapping):
        return False
    form = {str(name).lower(): value for name, value in form.items()}
    on_error = str(given.get("on_error") or "ABORT_STATEMENT").upper()
    return (
        form.get("multi_line") is False
        and str(form.get("compression", "AUTO")).upper() == "NONE"
        and on_error in ("ABORT_STATEMENT", "CONTINUE")
    )


def is_staged(source: Any) -> bool:
    """True for files that are in a stage."""
    return isinstance(source, str) and source.startswith("@")


def _run_type(context: Context) -> str:
    kind: Any = getattr(context.get("dag_run"), "run_type", None)
    return str(getattr(kind, "value", kind))


# -- What a load reads, from the name that an author gives to the data's shape, and its path ------------

_PAST = "table:"


@dataclass(frozen=True, slots=True)
class ShapeSource:
    """Something that has a shape.

    :param source: ``@stage/path``; ``table:NAME`` for the shape of its past loads; a folder, file or URL such
        as ``s3://bucket/path``; ``kafka://host:port/topic``, or the mapping of a source from Kafka; or the
        shape itself; these two as a mapping or its JSON text
    :param hook: asks the account about stages, past loads and, where it has a table, the table's channels
    :param storage_conn_id: the connection of a URL, None for none
    :param channel_prefix: the first part of the names of a Kafka source's channels
    """

    source: Any
    hook: SnowpipeBulkHook
    storage_conn_id: str | None = None
    channel_prefix: str | None = None

    def shape(self, known: Mapping[str, Any]) -> DataShape:
        """Probe the data, and return its shape.

        :param known: what the author knows of it: parameters of :class:`DataShape`, which go before what is
            found
        :raises ConfigurationError: if the source is nothing of the kind, or there is nothing to list
        :raises SqlError: if the account cannot be asked
        """
        source, now = self.source, dt.datetime.now(dt.UTC)
        if isinstance(source, DataShape):
            source = source.as_json()
        if isinstance(source, str) and source.lstrip().startswith("{"):
            source = _json(source)
        source = addressed_source(source)
        if has_backlog(source):
            return self._backlog(source).shape(known)
        if isinstance(source, Mapping):
            return DataShape.from_json({**source, **known})
        if not isinstance(source, str) or not source:
            raise ConfigurationError(
                f"source is {source!r}: give a stage (@…), table:NAME, a path, a URL, kafka://…, or the "
                "shape as JSON"
            )
        if source.startswith("@"):
            files = map(ListedFile.from_list_row, self.hook.list_files(source))
            return listing_shape(files, now, staged=True, **known)
        if source.startswith(_PAST):
            return past_loads_shape(self.hook.past_loads(source.removeprefix(_PAST)), **known)
        if "://" in source:
            return listing_shape(self._objects(source), now, **known)
        return folder_shape(source, now, **known)

    def _backlog(self, source: Mapping[str, Any]) -> SourceBacklog:
        return SourceBacklog(
            lambda: connected_source(source, BaseHook.get_connection),
            None if self.hook.table is None else self.hook.channel_statuses,
            self.channel_prefix,
        )

    def _objects(self, address: str) -> Iterator[ListedFile]:
        for name, entry in files_below(storage_path(address, self.storage_conn_id)).items():
            yield ListedFile(str(name), int(entry.get("size") or 0), _modified(entry))


def _json(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise ConfigurationError(f"source is {text[:80]!r}: it begins like JSON and is none") from None
    return found if isinstance(found, dict) else {}


def _modified(entry: Mapping[str, Any]) -> dt.datetime | None:
    """When an object was written, under whichever name its file system has it."""
    for name in ("LastModified", "last_modified", "updated", "mtime"):
        value = entry.get(name)
        if isinstance(value, dt.datetime):
            return value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        if isinstance(value, int | float):
            return dt.datetime.fromtimestamp(value, dt.UTC)
        if isinstance(value, str) and value:
            found = dt.datetime.fromisoformat(value)
            return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
    return None


_CHOOSES_FILES = ("pattern", "force", "size_limit", "purge", "load_uncertain_files")
"""Options of COPY that decide which files it loads, or what becomes of them."""
_REMEDY = {False: "leave these options out", True: "recreate the pipe with these values"}


@dataclass(frozen=True, kw_only=True)
class LoadChoice:
    """What is known before a load: the data, the author's side, and what is in the table already.

    :param files: the source as files of this machine, None where it is something else
    :param units: these files and who loads them, None where there is nothing to copy into
    :param backlog: what the source itself knows of its rows, None where it cannot be asked
    :param known: what is known of the data from the author and the kind of run
    :param may_lack_table: True where the stream makes the table
    :param only_streamed: what COPY and pipes would ignore with success, None where there is nothing
    :param before: the path of the run before, None where it does not count
    """

    source: Any
    files: FileSource | None
    units: FileUnits | None
    backlog: SourceBacklog | None
    hook: SnowpipeBulkHook
    known: Mapping[str, Any]
    options: Mapping[str, Any]
    file_pipe: str | None
    may_lack_table: bool
    only_streamed: str | None
    policy: LoadPolicy
    before: LoadPath | None

    @cached_property
    def positions(self) -> Sequence[PartitionPosition]:
        """How far each partition is in the table."""
        return [] if self.units is None else self.units.positions(may_lack_table=self.may_lack_table)

    @cached_property
    def shape(self) -> DataShape | None:
        """The shape of what is left to load, None where nothing is known of it."""
        if is_staged(self.source):
            return self._left_in_stage()
        if self.units is not None:
            return self.units.shape(self.positions, self.known)
        if self.backlog is not None and self.policy.forced is not LoadPath.STREAM:
            return self.backlog.shape(self.known)
        return DataShape.from_json(dict(self.known)) if self.known else None

    @cached_property
    def plan(self) -> LoadPlan | None:
        """The plan; None where the author asks for a stream of something whose shape is not known.

        :raises ConfigurationError: if there is no shape, and no path is forced
        """
        if self.shape is not None:
            return plan_load(self.shape, self.policy, self.before)
        if self.policy.forced is LoadPath.STREAM:
            return None
        raise ConfigurationError(
            f"source is {self.source!r}, whose shape is not known: give shape=…, such as {{'bounded': False, "
            "'arrival_rate': 1e6}, or set path='stream'"
        )

    def path(self) -> tuple[LoadPath, str | None]:
        """The path to take, and why it is not the one of the plan.

        :raises ConfigurationError: if there is no way to take it
        """
        if self.plan is None:
            return LoadPath.STREAM, None
        planned = self.plan.path
        may_stream = not is_staged(self.source) and not self.plan.is_forced
        if self.only_streamed is not None and planned is not LoadPath.STREAM and not may_stream:
            raise ConfigurationError(
                f"{self.only_streamed}: leave that out, or take path='stream', which does not read files "
                "of a stage. Nothing was loaded"
            )
        if is_staged(self.source):
            if planned is LoadPath.STREAM:
                raise ConfigurationError(
                    f"source is {self.source!r} and path is 'stream': files in a stage are copied, or given "
                    "to a pipe; name the folder that they came from to stream them, or set path='copy'"
                )
            why = None if self.plan.is_forced or planned is LoadPath.COPY else self._why_not_pipe()
            return (planned, None) if why is None else (LoadPath.COPY, why)
        loaders = {one.loader.pipe for one in self.units.source.given()} if self.units is not None else set()
        if self.plan.is_forced and planned is not LoadPath.STREAM:
            loaders.add(self._pipe_of(planned))
        for pipe in loaders:
            self._require_same_rows(pipe)
        if self.plan.is_forced:
            return planned, None
        path, why = self._chosen(planned)
        if path is LoadPath.STREAM:
            self._require_nothing_copied()
        return path, why

    def _left_in_stage(self) -> DataShape:
        """The shape of the files whose content is not in the table; of files that keep coming, of all."""
        staged = StagedChoice(str(self.source)).find(self.hook)
        is_left_over = self.known.get("bounded", True) and not CopyOptions.of(self.options).force
        if is_left_over and self.hook.table and staged.files:
            history = self.hook.loads_of(self.hook.table, list(staged.files))
            staged = staged.without(loads_since_staged(staged, history))
        files = (ListedFile(one.path, one.size or 0, one.staged_at) for one in staged.files.values())
        return listing_shape(files, dt.datetime.now(dt.UTC), staged=True, **self.known)

    def _why_not_pipe(self) -> str | None:
        """Why a pipe would not do what the options ask for with files of a stage, None where it would.

        Options that are not given are not compared, nor a format whose type or options do not show.
        """
        given = CopyOptions.of(self.options)
        for name in _CHOOSES_FILES:
            if getattr(given, name):
                return f"options has {name}={getattr(given, name)!r}, which a pipe does not heed"
        target = self.hook.pipe_target(str(self.file_pipe)) if self.options else None
        if target is None:
            return None  # a pipe that is not there is refused with a remedy
        expected = RowOptions.of(self.options)
        if isinstance(expected.file_format, str) or "TYPE" not in (expected.file_format or {}):
            expected = replace(expected, file_format=None)
        found = [
            one
            for one in RowOptions.of_statement(target.statement).differences(expected)
            if one.option not in OF_COPY or one.option in expected.options
        ]
        if not found:
            return None
        return f"options has other values than pipe {self.file_pipe!r}: {'; '.join(map(str, found))}"

    def _chosen(self, planned: LoadPath) -> tuple[LoadPath, str | None]:
        why = self._why_not_copy()
        if why is None and planned is not LoadPath.STREAM:
            why = self._other_rows(self._pipe_of(planned))
        if why is None and planned is not LoadPath.STREAM and self.units is not None:
            why = self.units.why_not_copy(self.positions)
        if planned is not LoadPath.STREAM and why is not None:
            return LoadPath.STREAM, why
        if why is None and all(position.is_done for position in self.positions):
            return LoadPath.COPY, "no row is left, which COPY finds out without Spark"
        return planned, None

    def xcom(self) -> dict[str, Any] | None:
        """The plan as JSON, with the data's shape, and the rows and bytes that it is for."""
        if self.plan is None or self.shape is None:
            return None
        shape = dataclasses.asdict(self.shape)
        return {**self.plan.as_json(), "shape": shape, "expected": self.shape.expected(self.policy.costs)}

    def _pipe_of(self, path: LoadPath) -> str | None:
        return self.file_pipe if path is LoadPath.PIPE else None

    def _require_nothing_copied(self) -> None:
        """Refuse to stream behind files that COPY or a pipe has loaded, maybe into other rows.

        Which options they were loaded with is not known: those of today may be the ones.

        :raises ConfigurationError: if today's would make other rows
        """
        for pipe in set() if self.units is None else self.units.loaders():
            if (why := self._other_rows(pipe)) is not None:
                raise ConfigurationError(
                    f"{why}, and files of this source were loaded that way: {_REMEDY[pipe is not None]}, "
                    f"or take path={'copy' if pipe is None else 'pipe'!r} for the others. Nothing was loaded"
                )

    def _require_same_rows(self, pipe: str | None) -> None:
        """Refuse other rows where the stream has loaded some already; where it has not, warn.

        :param pipe: the pipe that is to take the files, None for COPY
        """
        why = self._other_rows(pipe)
        if why is None:
            return
        streamed = [position.channel for position in self.positions if position.rows_inserted]
        if streamed:
            raise ConfigurationError(
                f"{why}, and rows of channel {streamed[0]!r} were streamed: {_REMEDY[pipe is not None]}, "
                "or take path='stream'. Nothing was staged or loaded"
            )
        log.warning(
            "%s: nothing of these files was streamed yet; do not load them by path='stream' later", why
        )

    def _other_rows(self, pipe: str | None) -> str | None:
        """Why COPY or a pipe would make other rows than the stream by its options; None where it would not.

        What cannot be judged is logged.
        """
        from airflow_provider_snowpipe.spark.submit.copy_rows import row_options

        if self.units is None or self.files is None:
            return None
        if all(position.is_done for position in self.positions):
            return None
        required = row_options(self.files, {})
        if pipe is None:
            if not self.options:
                return None
            given, whose = row_options(self.files, self.options), "options of COPY"
        else:
            target = self.hook.pipe_target(pipe)
            table = (*self.hook.database_and_schema(), self.units.table)
            if target is None or target.auto_ingest or target.table != table:
                return None  # such a pipe is refused with a remedy before anything is loaded
            given = RowOptions.of_statement(target.statement)
            whose = f"the statement of pipe {pipe!r}"
        found = given.differences(required, self.units.compressions())
        if found:
            return f"{whose} would make other rows than the stream: {'; '.join(map(str, found))}"
        for doubt in given.doubts():
            log.warning(
                "whether %s makes the rows that the stream makes cannot be judged: %s; compare it with "
                "FILE_FORMAT = %s",
                whose,
                doubt,
                required.file_format,
            )
        return None

    def _why_not_copy(self) -> str | None:
        if self.files is None or self.units is None:
            return "only files are copied, and only into a table that is named"
        try:
            for position in self.positions:
                position.require_whole_files()
        except PartlyStreamedError as error:
            return str(error)
        return self.only_streamed


def only_streamed(evolve_columns: bool | None, requires_all_columns: bool) -> str | None:
    """What an author asks for that COPY and pipes would ignore with success, None where they would not."""
    if evolve_columns is not None:
        asked = f"evolve_columns is {evolve_columns!r}"
    elif requires_all_columns:
        asked = "unknown_columns is 'fail'"
    else:
        return None
    return f"{asked}, and COPY and pipes pass keys over that have no column"


# -- What came of a planned load, beside what was estimated, and what the next plan learns from it -------

OUTCOME_KEY = "outcome"
_ATTRIBUTED = "account usage"
_ASKED_AGAIN = dt.timedelta(days=2)
"""For how long the account's view is asked for the credits of a load: it may be closed to the role."""


def loads_before(context: Context, table: str) -> tuple[MeasuredLoad, ...]:
    """The last loads of the table, as the run before has kept them.

    :param table: the table, or the pipe that stands for it
    """
    ti: Any = context["ti"]
    kept = ti.xcom_pull(
        task_ids=ti.task_id, key=OUTCOME_KEY, include_prior_dates=True, map_indexes=ti.map_index
    )
    return kept_loads(kept.get("loads"), table) if isinstance(kept, Mapping) else ()


@dataclass(frozen=True, slots=True)
class LoadAccount:
    """What a load has cost, asked for when it has ended."""

    hook: SnowpipeBulkHook
    policy: LoadPolicy
    context: Context

    def measured(
        self, plan: Any, table: str, value: Mapping[str, Any], actual: Mapping[str, Any]
    ) -> MeasuredLoad:
        """What a load took and cost.

        :param plan: the plan as JSON, None where there was none
        :param actual: rows, bytes and seconds
        """
        # The clock of another worker, on which a deferred task began, may be ahead of this one's.
        path, seconds = LoadPath(value["path"]), max(0.0, float(actual["seconds"] or 0.0))
        credits, source = self._credits(path, value, actual)
        latency = None
        if isinstance(plan, Mapping) and not plan["per_day"] and actual["rows"] and seconds:
            estimate = next(one for one in plan["estimates"] if one["path"] == path)
            latency = measured_latency(estimate, seconds)
        return MeasuredLoad(
            table,
            path,
            seconds,
            latency,
            credits,
            source,
            self._query_tag if path is LoadPath.COPY else None,
            dt.datetime.now(dt.UTC).timestamp(),
        )

    def attributed(self, loads: Sequence[MeasuredLoad]) -> list[MeasuredLoad]:
        """The same loads, with the credits that the account attributes to earlier ones by COPY.

        :param loads: the loads, the last one by COPY as well, so that the warehouse runs
        """
        now = dt.datetime.now(dt.UTC)
        asked = {
            one.query_tag: one
            for one in loads
            if one.query_tag is not None
            and one.credits_from != _ATTRIBUTED
            and ATTRIBUTED_AFTER <= now - dt.datetime.fromtimestamp(one.ended, dt.UTC) <= _ASKED_AGAIN
        }
        if not asked:
            return list(loads)
        known = attributed_credits(self.hook.run_sql, asked, now - _ASKED_AGAIN - dt.timedelta(days=1))
        return [
            replace(one, credits=known[one.query_tag], credits_from=_ATTRIBUTED)
            if one.query_tag in asked and one.query_tag in known
            else one
            for one in loads
        ]

    def _credits(
        self, path: LoadPath, value: Mapping[str, Any], actual: Mapping[str, Any]
    ) -> tuple[float | None, str | None]:
        costs, size = self.policy.costs, actual["bytes"]
        if path is LoadPath.COPY:
            return self._warehouse_credits(value, actual)
        if size is None:
            return None, None
        if path is LoadPath.STREAM:
            return size / GB * costs.stream_credits_per_gb, "bytes streamed"
        is_compressed = any(file_kind(name)[1] for name in value["files"])
        billed = size * costs.text_ratio if is_compressed else size
        return billed / GB * costs.pipe_credits_per_gb, "bytes of the files"

    def _warehouse_credits(
        self, value: Mapping[str, Any], actual: Mapping[str, Any]
    ) -> tuple[float | None, str]:
        factor = self.policy.costs.warehouse_credit_factor / 3600
        if not value["files"]:
            return 0.0, "no statement"
        database, _ = self.hook.database_and_schema()
        now = dt.datetime.now(dt.UTC)
        began = getattr(self.context["ti"], "start_date", None) or now - dt.timedelta(days=1)
        ran = warehouse_seconds(self.hook.run_sql, database, self._query_tag, began, now)
        if ran is not None and set(ran) <= set(WAREHOUSE_CREDITS):
            return sum(WAREHOUSE_CREDITS[size] * ran[size] for size in ran) * factor, "warehouse seconds"
        power = WAREHOUSE_CREDITS[self.policy.warehouse]
        return (actual["seconds"] or 0.0) * power * factor, "seconds of the task at most"

    @property
    def _query_tag(self) -> str:
        return query_tag(run_identity(self.context).names)
