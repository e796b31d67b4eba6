"""How a run treats rows that do not fit the table, before it sends them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.table_columns import TableColumn

_TOPIC_PREFIX = "kafka:"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class RowRules:
    """The check of a run's rows; travels to the executors and holds no credential.

    :param columns: the table's columns
    :param dead_letter_path: where rows go that do not fit, None if the first one ends the run
    :param application: the run's name, told with each row that is put aside
    """

    columns: tuple[TableColumn, ...]
    dead_letter_path: str | None
    application: str

    @classmethod
    def of(
        cls,
        on_error: str,
        check_rows: bool,
        dead_letter_path: str | None,
        columns: tuple[TableColumn, ...],
        application: str,
    ) -> Self | None:
        """Make the rules of a plan.

        :returns: None if rows are not checked before they are sent
        :raises ConfigurationError: if the values do not go together
        """
        if on_error != "dead_letter" and dead_letter_path is not None:
            raise ConfigurationError(
                f"dead_letter_path is {dead_letter_path!r}, but on_error is {on_error!r}: set "
                "on_error='dead_letter', or drop the path"
            )
        if on_error == "continue" and check_rows:
            raise ConfigurationError(
                "check_rows is True, but on_error is 'continue': rows are checked before they are sent with "
                "'abort' or 'dead_letter'"
            )
        if on_error != "dead_letter" and not check_rows:
            return None
        if not columns:
            raise ConfigurationError(
                "rows are to be checked before they are sent, but the plan has no columns: give the table's "
                "columns as DESCRIBE TABLE lists them"
            )
        if on_error == "dead_letter":
            check_dead_letter_path(dead_letter_path)
        return cls(columns, dead_letter_path, application)


def check_dead_letter_path(path: str | None) -> None:
    """Refuse a place that executors could not reach, or that gives a secret away.

    :param path: an absolute directory, a URL such as ``s3://bucket/rejected``, or ``kafka:<topic>``
    :raises ConfigurationError: if it is neither
    """
    if not path:
        raise ConfigurationError(
            "on_error is 'dead_letter', but dead_letter_path is not given: name a directory or a URL that "
            "all executors reach"
        )
    topic = letter_topic(path)
    if topic is not None:
        if _TOPIC.fullmatch(topic) is None or topic in (".", ".."):
            raise ConfigurationError(
                f"dead_letter_path is {path!r}: what follows {_TOPIC_PREFIX!r} must be a topic's name, "
                "letters, digits, '.', '_' and '-'; its brokers are the source's"
            )
        return
    if "://" not in path:
        if not os.path.isabs(path):
            raise ConfigurationError(
                f"dead_letter_path is {path!r}: give an absolute path, executors run elsewhere"
            )
        return
    address = urlsplit(path)
    if address.username or address.password:
        raise ConfigurationError(
            f"dead_letter_path {address.scheme}://…@{address.hostname} holds credentials: leave them out, "
            "the executors have them in their environment"
        )


def letter_topic(path: str | None) -> str | None:
    """The Kafka topic that a place for dead letters names, None if it is another place.

    :param path: the plan's ``dead_letter_path``
    """
    if path is None or not path.startswith(_TOPIC_PREFIX):
        return None
    return path.removeprefix(_TOPIC_PREFIX)
