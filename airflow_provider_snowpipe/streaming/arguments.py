"""An author's mapping, checked against the dataclass that is made of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

_MAY_BE_SECRET = re.compile(r"credential|encrypt|key|passw|secret|token", re.IGNORECASE)


def may_be_secret(name: str) -> bool:
    """True for the name of a key whose value may be a password, a key and the like.

    :param name: the key's name
    """
    return _MAY_BE_SECRET.search(name) is not None


def known_arguments(kind: type, given: Any, what: str) -> dict[str, Any]:
    """Take a mapping whose keys are fields of a dataclass.

    :param kind: the dataclass
    :param given: what the author gave
    :param what: the argument, for errors
    :raises ConfigurationError: if it is no mapping, or has another key; names the key, its value unless that
        may be a secret, and the keys that there are
    """
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{what} is {given!r}: give a mapping, or in JSON an object")
    names = [one.name for one in dataclasses.fields(kind) if one.init]
    unknown = sorted(str(key) for key in given if key not in names)
    if unknown:
        value = given.get(unknown[0])
        plain = value is None or isinstance(value, bool | int | float | str)
        shown = f" with the value {value!r}" if plain and not may_be_secret(unknown[0]) else ""
        raise ConfigurationError(
            f"{what} has the key {unknown[0]!r}{shown}, which is none of its keys: use {', '.join(names)}"
        )
    return dict(given)
