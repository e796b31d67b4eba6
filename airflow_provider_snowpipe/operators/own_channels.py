"""Tasks that would share a channel are refused: it has one writer, and its token does not show whose rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.source import SourceSpec

_IDENTITY = ("channel", "table", "pipe", "database", "schema", "snowflake_conn_id")
_VARIES = re.compile(r"map_index|xcom_pull")


def require_distinct_channels(operator: Any, context: Mapping[str, Any]) -> None:
    """Refuse mapped instances of which two would have the same channel of the same pipe.

    :raises ConfigurationError: if two have; names the channel
    """
    index = getattr(context.get("ti"), "map_index", None)
    if index is None or index < 0 or not operator.has_dag() or getattr(operator, "channel", None) is None:
        return
    task = operator.dag.task_dict.get(operator.task_id)
    if not _is_mapped(task):
        _require_own_channel_in_group(task)
        return
    if hasattr(task, "op_kwargs_expand_input"):
        _require_own_channel_of_function(task)
        return
    seen: set[str] = set()
    for given in _instances(task, context):
        named = {name: given[name] for name in _IDENTITY if given.get(name) is not None}
        key = json.dumps(named, sort_keys=True, default=str)
        if "channel" not in named or "map_index" in key:
            continue
        if key in seen:
            raise ConfigurationError(
                f"mapped task {operator.task_id!r}: more than one instance would use "
                f"{', '.join(f'{name}={value!r}' for name, value in named.items())}, and a channel has one "
                "writer. Map over channel=… with a different name for each, or put {{ ti.map_index }} into it"
            )
        seen.add(key)


def _require_own_channel_in_group(task: Any) -> None:
    """Refuse a task of a mapped group whose channel is the same in every instance of the group.

    An argument of the group's function is an object before it is rendered, and what ``xcom_pull`` gives may
    be another in each instance.

    :param task: the task as the DAG has it, None where it has none of that name
    :raises ConfigurationError: if it is
    """
    if task is None or task.get_closest_mapped_task_group() is None:
        return
    given = {name: getattr(task, name, None) for name in _IDENTITY}
    if all(
        value is None or (isinstance(value, str) and not _VARIES.search(value)) for value in given.values()
    ):
        raise ConfigurationError(
            f"task {task.task_id!r} of a mapped task group: every instance would use "
            f"channel={given['channel']!r}, and a channel has one writer. Make it an argument of the group "
            "that is mapped over, or put {{ ti.map_index }} into it"
        )


def _require_own_channel_of_function(task: Any) -> None:
    """Refuse a decorated function that is mapped over its own arguments, with one channel for all instances.

    :raises ConfigurationError: if it has; names the channel
    """
    given = [task.partial_kwargs.get(name) for name in _IDENTITY]
    if not any("{" in str(one) and (_OWN.search(str(one)) or _VARIES.search(str(one))) for one in given):
        raise ConfigurationError(
            f"mapped task {task.task_id!r}: every instance would use channel={given[0]!r}, and a channel has "
            "one writer. Leave channel out, so that each instance has its own, or put {{ ti.map_index }} "
            "into it"
        )


_APPEND = (*_IDENTITY, "batch", "token_column")
_DEFAULTS = {**dict.fromkeys(_APPEND), "snowflake_conn_id": "snowflake_default"}
_MAP_INDEX = re.compile(r"\b(?:ti|task_instance)\.map_index\b")
_PULLED = re.compile(r"\b(?:ti|task_instance)\.xcom_pull\( *(?:task_ids *= *)?['\"]")
"""What another task has pushed, which is the same for every task of a run that is not mapped."""
_OWN = re.compile(r"\b(?:ti|task|task_instance\w*|map_index|map_indexes|random|uuid\w*|now|utcnow|time)\b")
"""What may be something else in each task, or each time."""


def default_channel(operator: Any, index: int | None) -> str:
    """The channel of an append that names none.

    :param index: the index of a mapped instance; of another one -1, or None
    """
    mapped = f"_{index}" if index is not None and index >= 0 else ""
    return f"{operator.dag_id}_{operator.task_id}{mapped}"


def require_own_batch(operator: Any, context: Mapping[str, Any]) -> None:
    """Refuse an append whose channel is a load's, or whose channel and batch are another append's of the DAG.

    Rows have the positions ``batch:row``, so that the rows of whichever task is second count as loaded, as
    far as the first one has as many. Two branches of which one runs are no exception: the run may be cleared
    and take the other one. What templates of two texts are rendered to is not compared.

    :param operator: the task, rendered
    :raises ConfigurationError: if there is such a task; names both, and the channel
    """
    if not operator.has_dag():
        return
    tasks = dict(operator.dag.task_dict)
    own = list(_appends(tasks.pop(operator.task_id, None)))
    for one in own:
        one["channel"] = one["channel"] or default_channel(operator, context["ti"].map_index)
    for task_id, task in tasks.items() if own else ():
        if all(hasattr(task, name) for name in _LOAD):
            _refuse_appends(task_id, {name: getattr(task, name) for name in _LOAD}, operator, own)
        for one, other in product(own, _appends(task)):
            if one["token_column"] is None and _has_same_positions(one, other):
                batch = "no batch" if one["batch"] is None else f"batch={one['batch']!r}"
                raise ConfigurationError(
                    f"tasks {operator.task_id!r} and {task_id!r} append to one channel, "
                    f"channel={one['channel']!r} with {batch}: the rows of both have the same positions, so "
                    "that those of the second task would count as loaded. Give each task a channel of its "
                    "own, or a batch of its own, greater in the task that comes later"
                )


def _appends(task: Any) -> Iterator[dict[str, Any]]:
    """The channel and the batch of a task that appends rows, of each instance where it is mapped.

    None of a task that does something else, and where only a run knows what an instance gets. A channel is
    None where only a run knows the index that is in its name.
    """
    if not _is_mapped(task):
        if all(hasattr(task, name) for name in _APPEND):
            group = task.get_closest_mapped_task_group()
            given = {name: getattr(task, name) for name in (*_APPEND, "params")} | {"group": group}
            yield given if group else _named(given, task, None)
        return
    if not {"batch", "token_column"} <= set(getattr(task.operator_class, "template_fields", ())):
        return
    known = {**_DEFAULTS, "params": task.params, "group": task}
    given = task.expand_input.value
    written_out = given.values() if isinstance(given, Mapping) else (given,)
    if not any(hasattr(one, "resolve") for one in written_out):
        for index, one in enumerate(_instances(task, {})):
            yield _named({**known, **one}, task, index)
    elif isinstance(given, Mapping) and given.keys().isdisjoint(known):
        yield {**known, **task.partial_kwargs}


def _named(given: dict[str, Any], task: Any, index: int | None) -> dict[str, Any]:
    return {**given, "channel": given["channel"] or default_channel(task, index)}


def _has_same_positions(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two appends have the same channel and batch in every run."""
    for name in _APPEND:
        text = one[name]
        if text != other[name] and not (name == "batch" and str(text) == str(other[name])):
            return False
        if not isinstance(text, str) or "{" not in text:
            continue
        if one["group"] is other["group"]:
            text = _MAP_INDEX.sub("", text)
        if _OWN.search(_PULLED.sub("", text)) or ("params" in text and one["params"] != other["params"]):
            return False
    return True


_TARGET = ("table", "pipe", "database", "schema", "snowflake_conn_id")
_NAMES = (*_TARGET, "channel_prefix")
_LOAD = (*_NAMES, "source_name", "source")


def require_own_channels(operator: Any, context: Mapping[str, Any]) -> None:
    """Refuse a source whose channels another task of the DAG, or another mapped instance, loads as well.

    Two directories of one name, such as ``eu/orders`` and ``us/orders``, have the same channels unless
    ``source_name`` is given: a channel's token shows a file and a line, and not of which directory. What is
    written as a template is not compared.

    :param operator: the task, rendered
    :raises ConfigurationError: if there is such a source
    """
    from airflow_provider_snowpipe.spark.submit.source import plain_source, shared_channel

    if not operator.has_dag():
        return
    own, others = _loads(operator, context)
    source = plain_source(operator.source)
    _require_own_channels_of_run(operator, own, source)
    if source is None:
        return
    for task in operator.dag.task_dict.values():
        _refuse_appends(operator.task_id, {**own, "source": source}, task, _appends(task))
    prefix = str(operator.channel_prefix or source.channel_prefix or operator.dag_id)
    name = operator.source_name or source.default_name
    for whose, other in others:
        second = plain_source(other.get("source"))
        if second is None or name != (other.get("source_name") or second.default_name):
            continue
        if any(one in other and other[one] != own.get(one, getattr(operator, one)) for one in _NAMES):
            continue
        channel = shared_channel(source, second, prefix, name)
        if channel is not None:
            raise ConfigurationError(
                f"task {operator.task_id!r} loads {source.address!r}, and {whose} {second.address!r}, both "
                f"into channel {channel!r} of one table: its offset token does not show the source, so that "
                "rows of one would pass for those of the other. Give each a source_name of its own"
            )


def _refuse_appends(
    load_id: str, load: Mapping[str, Any], append: Any, appended: Iterable[Mapping[str, Any]]
) -> None:
    """Refuse a channel that a load and an append share, as far as the DAG shows.

    :param load: the arguments of the load
    :param append: the other task
    :param appended: its channels
    :raises ConfigurationError: if there is one; names it
    """
    from airflow_provider_snowpipe.spark.submit.source import loads_channel, plain_source

    source = None
    for one in appended:
        is_elsewhere = any(load.get(name, _DEFAULTS.get(name)) != one[name] for name in _TARGET)
        if one["channel"] is None or is_elsewhere:
            continue
        source = source or plain_source(load["source"])
        if source is None:
            return
        prefix = str(load.get("channel_prefix") or source.channel_prefix or append.dag_id)
        name = str(load.get("source_name") or source.default_name)
        if loads_channel(source, prefix, name, one["channel"]):
            raise ConfigurationError(
                f"tasks {load_id!r} and {append.task_id!r} share the channel {one['channel']!r} of one "
                "table, one loading a source and one appending rows: the offset token does not show whose "
                "rows are committed. Give the append a channel of its own"
            )


_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_OF_RUN = re.compile(
    r"\b(?:ds|ts|ds_\w+|ts_\w+|\w+_ds|\w+_ds_nodash|(?:logical|execution)_date|data_interval_\w+|run_id|dag_run(?!\.conf))\b"
)


def _require_own_channels_of_run(operator: Any, own: Mapping[str, Any], rendered: SourceSpec | None) -> None:
    """Refuse a folder that is another one in each run, while the channels are the same.

    A token names a file and a line. So where ``/data/{{ ds }}/orders`` has files of the same names every day,
    the rows of a later day count as loaded, as far as an earlier one had as many. Where the names differ, the
    committed file is missed in the next run, unless ``on_data_loss="skip"`` allows that.

    :param operator: the task, rendered
    :param own: its arguments as their author wrote them
    :param rendered: its source, None where only the task itself knows it
    :raises ConfigurationError: if its author wrote such a folder; names it
    """
    if operator.on_data_loss == "skip":
        return
    source: Any = own.get("source")
    source = source.as_json() if hasattr(source, "as_json") else source
    if not isinstance(source, Mapping):
        source = {"path": source}
    path = source.get("path")
    if not isinstance(path, str) or path.startswith("@") or source.get("kind", "files") != "files":
        return
    above, _, name = _TEMPLATE.sub(_mark_of_run, path).rstrip("/").rpartition("/")
    names = [str(one) for one in (own.get("source_name") or name, own.get("channel_prefix")) if one]
    if "\0" not in above or any("\0" in _TEMPLATE.sub(_mark_of_run, one) for one in names):
        return
    partitions = source.get("partitions", "directory")
    if isinstance(partitions, Mapping):
        partitions = partitions.get("type")
    if getattr(partitions, "type", partitions) in ("directory", "all") or _has_name_without_number(rendered):
        raise ConfigurationError(
            f"task {operator.task_id!r} loads from path {path!r}, another folder in each run, into channels "
            f"that are named alike in all of them, by {own.get('source_name') or name!r}: an offset token "
            "shows a file and a line and not the folder, so that rows of a file would pass for those of an "
            "earlier run's file of that name. Put the same template into source_name, so that each run has "
            "channels of its own, or load the folder above with all runs in it"
        )


def _has_name_without_number(source: SourceSpec | None) -> bool:
    """Whether a partition's name cannot have a run's date or time in it, and is another one in no run."""
    from airflow_provider_snowpipe.spark.submit.source import partitions_seen_here

    return source is not None and not all(re.search("[0-9]", one) for one in partitions_seen_here(source))


def _mark_of_run(found: re.Match[str]) -> str:
    """What stands for a template: NUL for one that is rendered to something else in each run.

    What a run is triggered with, ``params`` and ``dag_run.conf``, may be the same in all of them.
    """
    return "\0" if _OF_RUN.search(found[0]) else "x"


def _loads(
    operator: Any, context: Mapping[str, Any]
) -> tuple[Mapping[str, Any], list[tuple[str, Mapping[str, Any]]]]:
    """The arguments of a load, and those of the loads beside it, all as their author wrote them."""
    tasks = operator.dag.task_dict
    task = tasks.get(operator.task_id)
    if _is_mapped(task):
        instances = list(_instances(task, context))
        own = instances.pop(context["ti"].map_index)
        return own, [("another instance", one) for one in instances]
    loads = {
        one.task_id: {name: getattr(one, name) for name in _LOAD}
        for one in tasks.values()
        if all(hasattr(one, name) for name in _LOAD)
    }
    own = loads.pop(operator.task_id)
    return own, [(f"task {task_id!r}", one) for task_id, one in loads.items()]


# -- The arguments of mapped instances -------------------------------------------------------------------


def _is_mapped(task: Any) -> bool:
    return getattr(getattr(task, "expand_input", None), "value", None) is not None


def _instances(task: Any, context: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments of each instance of a mapped task, in the order of their indexes."""
    given = task.expand_input.value
    if not isinstance(given, Mapping):
        for one in _resolved(given, context):
            yield {**task.partial_kwargs, **one}
        return
    for values in product(*(_resolved(value, context) for value in given.values())):
        yield {**task.partial_kwargs, **dict(zip(given, values, strict=True))}


def _resolved(value: Any, context: Mapping[str, Any]) -> Sequence[Any]:
    """The values of an argument of ``expand``, fetched where they are the XCom of another task."""
    if hasattr(value, "resolve"):
        value = value.resolve(context)
    return list(value.items()) if isinstance(value, Mapping) else list(value)
