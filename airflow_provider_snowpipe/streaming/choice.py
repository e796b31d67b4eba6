"""Arguments that are one of a few words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

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
