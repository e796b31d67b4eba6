"""Checks of JSON objects against the dataclasses that are built from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, get_args, get_type_hints

from airflow_provider_snowpipe.streaming.errors import ConfigurationError


def checked_values(
    kind: type[Any], values: Any, what: str, *, skip_types: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Check an object's keys and values against a dataclass before it is built.

    :param kind: the dataclass
    :param values: what JSON held
    :param what: the object in words, for errors
    :param skip_types: keys whose value is checked elsewhere
    :raises ConfigurationError: for an unknown or missing key, or a value of the wrong type
    """
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"{what} is {values!r}: it must be an object with keys")
    known = {f.name: f for f in fields(kind) if f.init}
    unknown = sorted(str(key) for key in values if key not in known)
    if unknown:
        raise ConfigurationError(
            f"{what} has the unknown key {unknown[0]!r} (value {values[unknown[0]]!r}): use {sorted(known)}"
        )
    for name, one in known.items():
        if name not in values and one.default is MISSING and one.default_factory is MISSING:
            raise ConfigurationError(f"{what} lacks the key {name!r}: add it")
    hints = get_type_hints(kind)
    return {
        name: value if name in skip_types else _checked(f"{what} {name}", value, hints[name])
        for name, value in values.items()
    }


def _checked(what: str, value: Any, hint: Any) -> Any:
    choices = get_args(hint)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint in (str, bool) and isinstance(value, hint):
        return value
    if hint == tuple[str, ...]:
        if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
            return tuple(value)
        raise ConfigurationError(f"{what} is {value!r}: it must be a list of texts")
    if choices and type(None) in choices:
        if value is None:
            return None
        return _checked(what, value, next(choice for choice in choices if choice is not type(None)))
    if choices and value in choices:
        return value
    expected = f"one of {list(choices)}" if choices else getattr(hint, "__name__", str(hint))
    raise ConfigurationError(f"{what} is {value!r}: it must be {expected}")
