"""How the texts of options are read: each reader takes an option's name and text, or makes such a reader.

An error names the option, its value and the remedy.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from airflow_provider_snowpipe.spark.submit.row_rules import check_dead_letter_path, letter_topic
from airflow_provider_snowpipe.streaming.choice import check_one_of
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.exchange import base_url


def text(name: str, value: str) -> str:
    """Any text that is not blank."""
    if not value.strip():
        raise ConfigurationError(f"option {name} is empty: give it a value, or leave it out")
    return value


def url(name: str, value: str) -> str:
    """An account's address."""
    try:
        return base_url(text(name, value))
    except ConfigurationError as error:
        raise ConfigurationError(f"option {name}: {error}") from None


def file(name: str, value: str) -> str:
    """An absolute path."""
    if not os.path.isabs(value):
        raise ConfigurationError(
            f"option {name} is {value!r}: give an absolute path, Spark's working directory differs"
        )
    return value


def count(least: int, most: int | None = None) -> Callable[[str, str], int]:
    """A whole number.

    :param least: the smallest one
    :param most: the largest one, None for any
    """

    def check(name: str, value: str) -> int:
        number = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else None
        if number is None or number < least or (most is not None and number > most):
            limit = f"{least} or more" if most is None else f"from {least} to {most}"
            raise ConfigurationError(f"option {name} is {value!r}: it must be a whole number, {limit}")
        return number

    return check


def seconds(name: str, value: str) -> float:
    """Seconds above 0."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(f"option {name} is {value!r}: it must be seconds above 0")
    return seconds


def one_of(*choices: str) -> Callable[[str, str], str]:
    """One of some words.

    :param choices: the words
    """

    def check(name: str, value: str) -> str:
        check_one_of(f"option {name}", value, choices)
        return value

    return check


def truth(name: str, value: str) -> bool:
    """``true`` or ``false``, in any letters."""
    if value.lower() not in ("true", "false"):
        raise ConfigurationError(f"option {name} is {value!r}: it must be true or false")
    return value.lower() == "true"


def dead_letters(name: str, value: str) -> str:
    """A directory or URL that all executors reach, without credentials in it."""
    check_dead_letter_path(text(name, value))
    if letter_topic(value) is not None:
        raise ConfigurationError(
            f"option {name} is {value!r}: a DataFrame has no brokers, so that only the job with a Kafka "
            "source puts rows aside in a topic. Give a directory or a URL"
        )
    return value


def columns(name: str, value: str) -> frozenset[str]:
    """Columns with commas between them."""
    columns = [column.strip() for column in value.split(",")]
    if not all(columns):
        raise ConfigurationError(f"option {name} is {value!r}: give columns with commas between them")
    return frozenset(columns)
