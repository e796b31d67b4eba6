"""Mapped instances of a task must not share a channel: a channel has one writer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

_IDENTITY = ("channel", "table", "pipe", "database", "schema", "snowflake_conn_id")


def require_distinct_channels(operator: Any, context: Mapping[str, Any]) -> None:
    """Refuse mapped instances of which two would have the same channel of the same pipe.

    :param operator: one mapped instance
    :param context: its context
    :raises ConfigurationError: if two have; names the argument
    """
    index = getattr(context.get("ti"), "map_index", None)
    if index is None or index < 0 or not operator.has_dag() or getattr(operator, "channel", None) is None:
        return
    mapped = operator.dag.task_dict.get(operator.task_id)
    given = getattr(getattr(mapped, "expand_input", None), "value", None)
    if mapped is None or given is None:
        return
    constant = {name: mapped.partial_kwargs.get(name) for name in _IDENTITY}
    if any("map_index" in str(value) for value in constant.values()):
        return
    if isinstance(given, Mapping):
        twice = _twice_in_product({name: _resolved(value, context) for name, value in given.items()})
    else:
        twice = _twice([{n: one.get(n) for n in _IDENTITY} for one in _resolved(given, context)])
    if twice is not None:
        raise ConfigurationError(
            f"mapped task {operator.task_id!r}: more than one instance would use {twice}, and a channel "
            "has one writer. Map over channel=… with a different name for each, or put {{ ti.map_index }} "
            "into it"
        )


def _twice_in_product(lists: Mapping[str, Sequence[Any]]) -> str | None:
    """Arguments of ``expand`` are combined each with each, so every other one multiplies the channels."""
    own = [name for name in lists if name in _IDENTITY]
    others = [name for name in lists if name not in _IDENTITY and len(lists[name]) > 1]
    if not own or others:
        return f"the same channel (mapped over {', '.join(others or sorted(lists)) or 'nothing'})"
    for name in own:
        again = _twice([{name: value} for value in lists[name]])
        if again is not None:
            return again
    return None


def _twice(identities: Sequence[Mapping[str, Any]]) -> str | None:
    seen: set[str] = set()
    for identity in identities:
        key = json.dumps(identity, sort_keys=True, default=str)
        if key in seen and "map_index" not in key:
            return ", ".join(f"{name}={value!r}" for name, value in identity.items() if value is not None)
        seen.add(key)
    return None


def _resolved(value: Any, context: Mapping[str, Any]) -> list[Any]:
    """The values of an argument of ``expand``, fetched where they are the XCom of another task."""
    if hasattr(value, "resolve"):
        value = value.resolve(context)
    return list(value.items()) if isinstance(value, Mapping) else list(value)
