"""What becomes of rows that do not fit the table: the author's policy, and the rules of a run."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal, Self
from urllib.parse import urlsplit

from airflow_provider_snowpipe.spark.submit.checked_values import TypedArgument, is_template
from airflow_provider_snowpipe.streaming.arguments import OnUnknown
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

_TOPIC_PREFIX = "kafka:"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
OnError = Literal["abort", "continue", "dead_letter"]


@dataclass(frozen=True, slots=True, repr=False)
class RowPolicy(TypedArgument):
    """What a load does with rows that do not fit its table, and with the table itself.

    :param on_error: ``abort`` fails the task when the service has skipped a row, ``continue`` reports how
        many; ``dead_letter`` writes rows that do not fit to ``dead_letter_path`` before the others are sent,
        and fails the task when the service skips one of those
    :param check_rows: with ``abort``, True fails the task before a row is sent that does not fit
    :param dead_letter_path: an absolute directory or a URL without credentials, which all executors reach, or
        ``kafka:<topic>`` for a topic of a Kafka source's cluster (templated)
    :param create_table: ``if_missing`` makes the table from the source's first rows, as the worker sees them;
        None does not
    :param evolve_columns: True adds the columns of those rows that the table lacks, False refuses them, None
        leaves them to the service, which passes unknown keys over
    :param unknown_columns: keys of rows that match no column: ``warn`` counts them, and fails the task where
        no key of a row does; ``fail`` fails it at the first one; ``ignore`` does not check
    :raises ConfigurationError: if a value is wrong, or two do not go together
    """

    on_error: OnError = "abort"
    check_rows: bool = False
    dead_letter_path: str | None = None
    create_table: Literal["if_missing"] | None = None
    evolve_columns: bool | None = None
    unknown_columns: OnUnknown = "warn"

    def __post_init__(self) -> None:
        if not self._check_fields():
            return
        if self.on_error == "dead_letter":
            if not is_template(self.dead_letter_path):
                check_dead_letter_path(self.dead_letter_path)
        elif self.dead_letter_path and not is_template(self.dead_letter_path):
            raise ConfigurationError(
                f"dead_letter_path is {self.dead_letter_path!r}, but on_error is {self.on_error!r}: set "
                "on_error='dead_letter', or drop the path"
            )
        if self.on_error == "continue" and self.check_rows:
            raise ConfigurationError(
                "check_rows is True, but on_error is 'continue': rows are checked before they are sent with "
                "'abort' or 'dead_letter'"
            )

    @property
    def checks_rows(self) -> bool:
        """True if rows are held against the table's columns before they are sent."""
        return self.check_rows or self.on_error == "dead_letter"


@dataclass(frozen=True, slots=True)
class RowRules:
    """The check of a run's rows; travels to the executors and holds no credential.

    :param columns: the table's columns
    :param dead_letter_path: where rows go that do not fit, None if the first one ends the run
    :param application: the run's name, written with each row that is put aside
    """

    columns: tuple[TableColumn, ...]
    dead_letter_path: str | None
    application: str

    @classmethod
    def of(
        cls,
        on_error: OnError,
        check_rows: bool,
        dead_letter_path: str | None,
        columns: tuple[TableColumn, ...],
        application: str,
    ) -> Self | None:
        """Make the rules of a plan.

        :returns: None if rows are not checked before they are sent
        :raises ConfigurationError: if the values do not go together
        """
        policy = RowPolicy(on_error, check_rows, dead_letter_path)
        if not policy.checks_rows:
            return None
        if not columns:
            raise ConfigurationError(
                "rows are to be checked before they are sent, but the plan has no columns: give the table's "
                "columns as DESCRIBE TABLE lists them"
            )
        return cls(columns, dead_letter_path, application)


def check_dead_letter_path(path: str | None) -> None:
    """Refuse a path that executors could not reach, or that gives a secret away.

    :param path: an absolute directory, a URL such as ``s3://bucket/rejected``, or ``kafka:<topic>``
    :raises ConfigurationError: if it is neither
    """
    if not path:
        raise ConfigurationError(
            "on_error is 'dead_letter', but dead_letter_path is not given: name a directory or a URL that "
            "all executors reach"
        )
    topic = dead_letter_topic(path)
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


def dead_letter_topic(path: str | None) -> str | None:
    """The Kafka topic that a dead-letter path names, None if it is another path.

    :param path: the plan's ``dead_letter_path``
    """
    if path is None or not path.startswith(_TOPIC_PREFIX):
        return None
    return path.removeprefix(_TOPIC_PREFIX)
