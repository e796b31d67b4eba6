"""What a plan says of a file source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from airflow_provider_snowpipe.spark.source import SourceSpec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset


@dataclass(frozen=True, slots=True)
class FileSourceSpec(SourceSpec):
    """Ordered groups of newline-delimited files.

    :param path: the directory that holds them, as the Spark driver and its executors see it
    :param pattern: glob that a file must match: inside its group's directory, or inside ``path`` where
        ``group_by`` is ``name``
    :param group_by: ``directory``: each directory in ``path`` is a partition; ``name``: the files' names say
    :param name_pattern: regular expression for the whole name with a group ``(?P<partition>…)``; for
        ``group_by="name"``
    :param format: ``ndjson``: each line is a JSON object, passed on as it is; ``text``: each line becomes
        the value of ``text_column``
    :param text_column: the column that takes the lines of a text source
    :param growing: True while something appends to a group's last file: its last line waits until it is
        terminated
    :param numbering: ``checked`` refuses names like ``log_9`` and ``log_10``, whose order as names is not the
        order of their numbers; ``ignored`` takes them in the order of their names
    :param kind: always ``files``
    """

    path: str
    pattern: str = "*.ndjson"
    group_by: Literal["directory", "name"] = "directory"
    name_pattern: str | None = None
    format: Literal["ndjson", "text"] = "ndjson"
    text_column: str = "LINE"
    growing: bool = False
    numbering: Literal["checked", "ignored"] = "checked"
    kind: Literal["files"] = "files"

    def __post_init__(self) -> None:
        for key in ("path", "pattern", "text_column"):
            if not getattr(self, key):
                raise ConfigurationError(f"source {key} is empty: give it a value")
        if Path(self.pattern).is_absolute() or ".." in Path(self.pattern).parts:
            raise ConfigurationError(
                f"source pattern {self.pattern!r} leaves the source's path: give one below it"
            )
        if self.group_by == "directory" and self.name_pattern is not None:
            raise ConfigurationError(
                f"source name_pattern {self.name_pattern!r} is only for group_by='name': drop one of the two"
            )
        if self.group_by == "name":
            self._check_name_pattern()

    def _check_name_pattern(self) -> None:
        try:
            named = re.compile(self.name_pattern or "").groupindex
        except re.error as error:
            raise ConfigurationError(
                f"source name_pattern {self.name_pattern!r} is no regular expression ({error})"
            ) from None
        if "partition" not in named:
            raise ConfigurationError(
                f"source name_pattern {self.name_pattern!r} needs a group (?P<partition>…) with "
                "group_by='name', for example '(?P<partition>[a-z]+)_[0-9]+[.]ndjson'"
            )

    @property
    def offset_format(self) -> str:
        """``file:line``."""
        return FileLineOffset.format_name

    @property
    def default_name(self) -> str:
        """The last part of the path."""
        return Path(self.path).name

    @property
    def address(self) -> str:
        """The directory."""
        return self.path
