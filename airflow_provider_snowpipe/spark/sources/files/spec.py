"""The specification of a file source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from airflow_provider_snowpipe.spark.sources.source import SourceSpec
from airflow_provider_snowpipe.spark.submit.checked_values import is_template
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset, VerifiedFileLineOffset

_GLOBS = {"text": "*.txt"}
_LINES = ("text", "ndjson")
_OPTION_FORMATS: dict[str, tuple[str, ...]] = {
    "text_column": ("text",),
    "compression": (*_LINES, "csv"),
    "growing": (*_LINES, "csv"),
    "columns": ("csv", "parquet", "orc", "avro"),
    "header": ("csv",),
    "column_names": ("csv",),
    "delimiter": ("csv",),
    "quote": ("csv",),
    "escape": ("csv",),
    "null_values": ("csv",),
}
"""Options that some formats have; any other format refuses them."""
_OPTION_GROUPINGS = {
    "name_pattern": "name",
    "partition_key": "partition",
    "partition_columns": "partition",
}
"""Options of one way to group files; any other refuses them."""


@dataclass(frozen=True, slots=True, repr=False)
class FileSource(SourceSpec):
    """Ordered groups of files.

    :param path: the directory that holds them, as the Spark driver and its executors see it
    :param pattern: glob that a file must match: inside its group's directory, inside ``path`` where
        ``group_by`` is ``name`` or ``all``, at any depth below it where that is ``partition``; None for
        the format's own, such as ``*.ndjson``
    :param group_by: what makes a partition. ``directory``: each directory in ``path`` is one; ``name``: the
        files' names contain; ``partition``: the value of ``partition_key`` in the files' paths; ``all``: the
        files in ``path`` are one, named ``all``
    :param name_pattern: regular expression for the whole name with a group ``(?P<partition>…)``; for
        ``group_by="name"``
    :param partition_key: the key, as ``day`` in ``day=2024-01-01/part-0.parquet``; for
        ``group_by="partition"``
    :param partition_columns: True adds all such keys in a file's path to its rows, as columns of text
    :param format: ``ndjson``: each line is a JSON object, passed on as it is; ``text``: each line becomes
        the value of ``text_column``; ``csv``: all values are text; ``parquet``, ``orc``, ``avro``
    :param compression: of text, NDJSON and CSV: ``gzip``, ``zstd``, ``bz2``, ``xz``, ``none``, or ``auto`` to
        go by the endings ``.gz``, ``.zst``, ``.bz2`` and ``.xz``
    :param text_column: the column that takes the lines of a text source
    :param columns: the columns to load, None for all; of CSV, Parquet, ORC and Avro
    :param header: True if the first record of a CSV file names its columns
    :param column_names: names of a CSV file's columns, instead of those in its header
    :param delimiter: one character between the values of CSV
    :param quote: one character around values of CSV, doubled within them; empty if there is none
    :param escape: one character that takes its meaning from the next one in CSV; empty if there is none
    :param null_values: texts that mean NULL in CSV, as COPY's NULL_IF; the empty text only without quotes
    :param growing: True while something appends to a group's last file: its last line waits until it is
        terminated; of text, NDJSON and CSV that is not compressed
    :param numbering: ``checked`` refuses names like ``log_9`` and ``log_10``, whose order as names is not the
        order of their numbers; ``ignored`` takes them in the order of their names
    :param verify: ``rows``: a resumed file has to have the committed row; ``digest``: it also has to be the
        same up to there, which the offset tokens then show (``file:line/digest``)
    :param on_late_files: what becomes of a run that finds a file before the committed one new, larger or
        younger than the run before has listed it. ``fail``: it stops before anything is sent; ``warn``: it
        names the file in the log and leaves it out; ``load`` is refused
    :param listing_path: directory that keeps each run's listing for the next one, the same for all runs; None
        for ``_snowpipe`` in ``path``
    :param kind: always ``files``
    """

    path: str
    pattern: str | None = None
    group_by: Literal["directory", "name", "partition", "all"] = "directory"
    name_pattern: str | None = None
    partition_key: str | None = None
    partition_columns: bool = False
    format: Literal["ndjson", "text", "csv", "parquet", "orc", "avro"] = "ndjson"
    compression: Literal["auto", "none", "gzip", "zstd", "bz2", "xz"] = "auto"
    text_column: str = "LINE"
    columns: Sequence[str] | None = None
    header: bool = True
    column_names: Sequence[str] | None = None
    delimiter: str = ","
    quote: str = '"'
    escape: str = ""
    null_values: Sequence[str] = ("",)
    growing: bool = False
    numbering: Literal["checked", "ignored"] = "checked"
    verify: Literal["rows", "digest"] = "rows"
    on_late_files: Literal["fail", "warn", "load"] = "fail"
    listing_path: str | None = None
    kind: Literal["files"] = "files"
    source_class: ClassVar[str] = "airflow_provider_snowpipe.spark.sources.files.reader:FileSource"

    def __post_init__(self) -> None:
        if not self._check_fields():
            return
        for key in ("path", "pattern", "text_column", "columns", "column_names", "listing_path"):
            if getattr(self, key) in ("", ()):
                raise ConfigurationError(f"source {key} is empty: give it a value")
        if Path(self.glob).is_absolute() or ".." in Path(self.glob).parts:
            raise ConfigurationError(
                f"source pattern {self.pattern!r} leaves the source's path: give one below it"
            )
        if self.on_late_files == "load":
            raise ConfigurationError(
                "source on_late_files is 'load': a channel's token counts rows in the order of the files' "
                "names and has no room for a file out of that order, so that a retry could load it twice. "
                "Load such files as a source of their own, with a pattern for them and another source_name, "
                "which gives them channels of their own"
            )
        self._refuse_options_of_others()
        if self.group_by == "name":
            self._check_name_pattern()
        if self.group_by == "partition" and not self.partition_key:
            raise ConfigurationError(
                f"source partition_key is {self.partition_key!r}: with group_by='partition' give the key, "
                "for example 'day' for directories like day=2024-01-01"
            )
        if self.growing and self.compression not in ("auto", "none"):
            raise ConfigurationError(
                f"source compression is {self.compression!r} with growing=True: a compressed file cannot "
                "grow; drop one of the two"
            )
        if self.format == "csv":
            self._check_dialect()

    def _refuse_options_of_others(self) -> None:
        defaults: dict[str, Any] = {one.name: one.default for one in fields(self)}
        for option, formats in _OPTION_FORMATS.items():
            value = getattr(self, option)
            if value != defaults[option] and self.format not in formats:
                raise ConfigurationError(
                    f"source {option} {value!r} is only for format {' or '.join(map(repr, formats))}, and "
                    f"format is {self.format!r}: drop one of the two"
                )
        for option, grouping in _OPTION_GROUPINGS.items():
            value = getattr(self, option)
            if value != defaults[option] and self.group_by != grouping:
                raise ConfigurationError(
                    f"source {option} {value!r} is only for group_by={grouping!r}: drop one of the two"
                )

    def _check_name_pattern(self) -> None:
        if is_template(self.name_pattern):
            return
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

    def _check_dialect(self) -> None:
        for key in ("delimiter", "quote", "escape"):
            value = getattr(self, key)
            is_one = is_template(value) or (len(value) == 1 and value.isascii() and value not in "\r\n")
            if not is_one and (value or key == "delimiter"):
                or_none = "" if key == "delimiter" else ", or '' where the files have none"
                raise ConfigurationError(
                    f"source {key} is {value!r}: give one ASCII character that ends no line{or_none}"
                )
        used = [value for value in (self.delimiter, self.quote, self.escape) if value]
        if len(set(used)) < len(used):
            raise ConfigurationError(
                f"source delimiter {self.delimiter!r}, quote {self.quote!r} and escape {self.escape!r} must "
                "differ; a quote within quotes is doubled, which needs no escape"
            )
        if not self.header and self.column_names is None:
            raise ConfigurationError(
                "source header is False: give column_names, since nothing else names the columns"
            )

    @property
    def glob(self) -> str:
        """The pattern, or the format's own."""
        return self.pattern or _GLOBS.get(self.format, f"*.{self.format}")

    @property
    def offset_format(self) -> str:
        """``file:line``, with ``verify="digest"`` ``file:line/digest``."""
        return FileLineOffset.format_name if self.verify == "rows" else VerifiedFileLineOffset.format_name

    @property
    def default_name(self) -> str:
        """The last part of the path."""
        return Path(self.path).name

    @property
    def address(self) -> str:
        """The directory."""
        return self.path


FileSourceSpec = FileSource
"""The name of the class inside the job, where a FileSource reads what the spec describes."""
