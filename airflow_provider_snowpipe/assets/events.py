"""What a task's outlet events report of its load: tokens and rows, as far as they are committed."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.assets.uri import PARTITIONED_KEY, SCHEME, TableAddress
from airflow_provider_snowpipe.streaming.arguments import add_counts
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError

if TYPE_CHECKING:
    from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
    from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook

log = logging.getLogger(__name__)

_LONGEST_PARTITION_KEY = 250
"""Most characters of a partition key (Airflow 3.3.2)."""
_TURN_SECONDS = 1.0
"""How much later each mapped task makes an asset that is not there yet."""
_MOST_TURNS = 30
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class LoadedChannel:
    """What a task knows of one channel that it loaded or waited for, for asset events and for lineage.

    :param token: its committed offset token, None where none was seen
    :param committed: True when all rows of this task were seen to be committed
    :param rows: rows that this task sent, None where the task does not know
    :param found: the committed offset token before, None for NULL or unknown
    :param rejected: rows that the service skipped, None for a task that does not know
    """

    channel: str
    token: str | None
    committed: bool
    rows: int | None = None
    partition: str | None = None
    unknown_columns: Mapping[str, int] = field(default_factory=dict)
    found: str | None = None
    rejected: int | None = None

    @property
    def loaded(self) -> int | None:
        """Rows of them that are in the table, None where the task does not know."""
        return None if self.rows is None else max(0, self.rows - (self.rejected or 0))


def describe_outlets(
    task: Any, context: Mapping[str, Any], hook: SnowpipeHook, channels: list[LoadedChannel]
) -> None:
    """Put tokens and rows into the extra of a task's events on assets of its table.

    Only what was seen to be committed is reported; an event of a load that did not wait has ``"committed":
    false``, and the commit sensor's event brings the tokens. Nothing here fails the task. A committed load
    without such an outlet gets an event on the asset of its table (:func:`_add_table_event`).
    """
    events = context.get("outlet_events")
    if events is None:
        return
    outlets = [one for one in getattr(task, "outlets", None) or [] if _is_ours(one)]
    adds_event = not outlets and _describes_tables() and _all_committed(channels)
    if not outlets and not adds_event:
        return
    try:
        table = _table_of(hook, [one.channel for one in channels])
        pipe = str(hook.pipe_name())
    except SnowpipeError as error:
        log.warning("the asset events carry nothing of tokens and rows: %s", error)
        return
    if adds_event:
        _add_table_event(task, context, table, event_extra(pipe, channels))
    for outlet, address in _outlets_of(table, outlets):
        meant = [one for one in channels if address.channel in (None, one.channel)]
        event = events[outlet]
        event.extra.update(event_extra(pipe, meant))
        if (getattr(outlet, "extra", None) or {}).get(PARTITIONED_KEY):
            loaded = [one for one in meant if one.committed and one.loaded]
            _add_partitions(event, [one.partition or one.channel for one in loaded])


def describe_file_load(
    task: Any,
    context: Mapping[str, Any],
    hook: SnowpipeBulkHook,
    table: str,
    rows: int,
    loader: str,
    partitions: Sequence[str] = (),
) -> None:
    """Put the rows of a load of staged files into the extra of a task's events on assets of its table.

    An asset of one channel is skipped: staged files come through none. Nothing here fails the task. A
    load of rows without such an outlet gets an event on the asset of its table (:func:`_add_table_event`).

    :param partitions: the source's partitions that the rows are of
    """
    events = context.get("outlet_events")
    if events is None:
        return
    outlets = [one for one in getattr(task, "outlets", None) or [] if _is_ours(one)]
    adds_event = not outlets and rows > 0 and _describes_tables()
    if not outlets and not adds_event:
        return
    try:
        address = TableAddress(hook.account(), *hook.database_and_schema(), table)
    except SnowpipeError as error:
        log.warning("the asset events carry nothing of rows: %s", error)
        return
    extra = {"committed": True, "rows": rows, "loader": loader}
    if adds_event:
        _add_table_event(task, context, address, extra)
    for outlet, found in _outlets_of(address, outlets):
        if found.channel is None:
            events[outlet].extra.update(extra)
            if (getattr(outlet, "extra", None) or {}).get(PARTITIONED_KEY):
                _add_partitions(events[outlet], partitions)


def event_extra(pipe: str, channels: list[LoadedChannel]) -> dict[str, Any]:
    """Build the data of an event."""
    committed = [one for one in channels if one.committed]
    extra: dict[str, Any] = {
        "pipe": pipe,
        "committed": len(committed) == len(channels),
        "tokens": {one.channel: one.token for one in committed if one.token is not None},
    }
    rows = [one.loaded for one in committed if one.loaded is not None]
    if len(rows) == len(committed):
        extra["rows"] = sum(rows)
    unknown: dict[str, int] = {}
    for one in channels:
        unknown = add_counts(unknown, one.unknown_columns)
    return {**extra, "unknown_columns": unknown} if unknown else extra


def _describes_tables() -> bool:
    if find_spec("airflow.sdk") is None:
        # Airflow 2.11 fails the task for an alias's event whose extra holds an object.
        return False
    from airflow.providers.common.compat.sdk import conf

    return bool(conf.getboolean("snowpipe", "describe_assets", fallback=True))


def _all_committed(channels: list[LoadedChannel]) -> bool:
    """Whether a task has put rows there, and has seen the commit of all; a sensor knows of no rows."""
    return all(one.committed and one.loaded is not None for one in channels) and any(
        one.loaded for one in channels
    )


def _add_table_event(
    task: Any, context: Mapping[str, Any], table: TableAddress, extra: dict[str, Any]
) -> None:
    """Give the task an event on the asset of its table, which no outlet names.

    The account is known when the task runs, not when the DAG is read. So the outlet is an asset alias, which
    the event itself resolves, and which makes the asset ("Asset aliases" of Airflow).
    """
    from airflow.providers.common.compat.sdk import Asset, AssetAlias

    try:
        alias, asset = AssetAlias(name=f"snowpipe:{task.dag_id}.{task.task_id}"), Asset(uri=str(table))
        _wait_for_turn(asset, getattr(context.get("ti"), "map_index", None) or 0)
        context["outlet_events"][alias].add(asset, extra=extra)
        # Airflow reads the outlets when the task has ended; the list itself belongs to the DAG, too.
        task.outlets = [*task.outlets, alias]
    except (AttributeError, TypeError, ValueError) as error:
        log.warning("no asset event of table %s: %s: %s", table, type(error).__name__, error)


def _wait_for_turn(asset: Any, map_index: int) -> None:
    """Let the mapped tasks before this one make the asset, unless it has an event already.

    Airflow sets a task to failed, without a retry, when another makes the same asset at the same time
    ("Error updating Task Instance state", observed with Airflow 3.3.2), and mapped tasks end together.
    """
    end = time.monotonic() + _TURN_SECONDS * min(map_index, _MOST_TURNS)
    while time.monotonic() < end and not _has_event(asset):
        time.sleep(_POLL_SECONDS)


def _has_event(asset: Any) -> bool:
    """True as well where Airflow does not report it, or, before 3.2, would report all of them."""
    from airflow.sdk.exceptions import AirflowRuntimeError
    from airflow.sdk.execution_time import context

    accessor = getattr(context, "InletEventsAccessor", None)
    if accessor is None:
        return True
    try:
        return len(accessor(asset_name=asset.name, asset_uri=asset.uri).limit(1)) > 0
    except AirflowRuntimeError as error:
        log.warning("whether %s has events is not known: %s: %s", asset.uri, type(error).__name__, error)
        return True


def _outlets_of(table: TableAddress, outlets: list[Any]) -> Iterator[tuple[Any, TableAddress]]:
    for outlet in outlets:
        address = TableAddress.parse(outlet.uri)
        if address.of_table() == table:
            yield outlet, address
        else:
            log.warning("asset %s is not of table %s, which this task loads", outlet.uri, table)


def _is_ours(outlet: Any) -> bool:
    return str(getattr(outlet, "uri", "")).startswith(f"{SCHEME}://")


def _table_of(hook: SnowpipeHook, channels: list[str]) -> TableAddress:
    pipe = hook.pipe_name()
    if pipe.default_table is not None:
        return TableAddress(hook.account(), pipe.database, pipe.schema, pipe.default_table)
    for listed in hook.list_channels():
        if listed.name in channels:
            return TableAddress(hook.account(), listed.database, listed.schema, listed.table)
    raise ConfigurationError(
        f"SHOW CHANNELS lists none of {channels[:5]} in pipe {pipe}: check that the role may see it"
    )


def _add_partitions(event: Any, keys: Sequence[str]) -> None:
    """One event for each partition with rows, on Airflow 3.3; before, one event for all."""
    add = getattr(event, "add_partitions", None)
    if add is None:
        return
    long = [key for key in keys if len(key) > _LONGEST_PARTITION_KEY]
    if long:
        log.warning(
            "partitions without an event: %d, whose names are longer than %d characters, such as %.60r…",
            len(long),
            _LONGEST_PARTITION_KEY,
            long[0],
        )
    if short := [key for key in keys if key.strip() and key not in long]:
        add(short)
