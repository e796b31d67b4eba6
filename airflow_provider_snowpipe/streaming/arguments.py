"""Arguments of authors, checked: mappings, words of a few, and what to do about unknown columns."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

_MAY_BE_SECRET = re.compile(r"credential|encrypt|key|passw|secret|token", re.IGNORECASE)


# pragma: no mutate start (arguments of authors)


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


# -- Arguments that are one of a few words ---------------------------------------------------------------

BinaryFormat = Literal["BASE64", "HEX", "UTF-8"]
NonFinite = Literal["refuse", "null"]


def check_one_of(name: str, value: object, choices: Iterable[object]) -> None:
    """Make sure that an argument has one of its values.

    :param name: of the argument
    :param value: what was given
    :param choices: what there is
    :raises ConfigurationError: if it is none of them
    """
    known = list(choices)
    if value not in known:
        raise ConfigurationError(f"{name} is {value!r}: it must be one of {known}")


# pragma: no mutate end


# -- What a run reports of keys of its rows for which the table has no column: how many rows have each ---
#
# How they are found is :mod:`~airflow_provider_snowpipe.streaming.key_check`'s; this is all that operators
# need.

OnUnknown = Literal["warn", "fail", "ignore"]
UNKNOWN_COLUMNS: tuple[OnUnknown, ...] = ("warn", "fail", "ignore")
MOST_NAMES = 20
"""Keys that are named; where they are data, such as ids of customers, there is no end of them."""
_LONGEST_NAME = 100


def add_counts(counts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Add up rows by key, of at most 20 keys, those that came first.

    :param counts: rows by key
    :param more: further rows by key
    """
    found = dict(counts)
    for key, rows in more.items():
        name = key if len(key) <= _LONGEST_NAME else f"{key[:_LONGEST_NAME]}…"
        if name in found or len(found) < MOST_NAMES:
            found[name] = found.get(name, 0) + rows
    return found


def named(counts: Mapping[str, int]) -> str:
    """Keys and their rows in words, for people.

    :param counts: rows by key
    """
    return ", ".join(f"{key!r} ({rows:,} rows)" for key, rows in add_counts({}, counts).items())
