"""The options of ``format("snowpipe")``, each with its check, and what columns they ask of a DataFrame."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from airflow_provider_snowpipe.spark.sources.tables.rows import check_types, type_name
from airflow_provider_snowpipe.streaming.arguments import (
    UNKNOWN_COLUMNS,
    OnUnknown,
    check_one_of,
    is_named_like_a_secret,
)
from airflow_provider_snowpipe.streaming.auth import base_url
from airflow_provider_snowpipe.streaming.checked_values import (
    check_dead_letter_path,
    dead_letter_topic,
    refuse_secret,
)
from airflow_provider_snowpipe.streaming.checkpoint import OnImbalance
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, UnknownColumnsError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import PipeName, check_channel_name
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

# -- How the texts of options are read: each reader takes an option's name and text, or makes such a reader --
#
# An error names the option, its value and the remedy.


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


def place(name: str, value: str) -> str:
    """A file's absolute path, or a URL without a password."""
    if "://" not in value:
        return file(name, value)
    refuse_secret(f"option {name}", value)
    return value


def count(least: int, most: int | None = None) -> Callable[[str, str], int]:
    """A whole number; None for ``most`` allows any from ``least`` on."""

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
    """One of some words."""

    def check(name: str, value: str) -> str:
        check_one_of(f"option {name}", value, choices)
        return value

    return check


def truth(name: str, value: str) -> bool:
    """``true`` or ``false``, in any case."""
    if value.lower() not in ("true", "false"):
        raise ConfigurationError(f"option {name} is {value!r}: it must be true or false")
    return value.lower() == "true"


def dead_letters(name: str, value: str) -> str:
    """A directory or URL that all executors reach, without credentials in it."""
    check_dead_letter_path(text(name, value))
    if dead_letter_topic(value) is not None:
        raise ConfigurationError(
            f"option {name} is {value!r}: a DataFrame has no brokers, so that only the job with a source "
            "that has some puts rows aside in a topic. Give a directory or a URL"
        )
    return value


def columns(name: str, value: str) -> frozenset[str]:
    """Columns with commas between them."""
    columns = [column.strip() for column in value.split(",")]
    if not all(columns):
        raise ConfigurationError(f"option {name} is {value!r}: give columns with commas between them")
    return frozenset(columns)


# -- The options -----------------------------------------------------------------------------------------

_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
"""Options of ``writeStream`` that Spark hands on to the sink (observed with PySpark 4.2)."""
_CAPITAL = re.compile("[A-Z]")
"""Begins a word in the name of an option, which the field of that name has in small letters."""
_MOST_PARTITIONS = 2000
"""Channels that a pipe takes ("Limitations and considerations")."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of one write; holds no credential.

    :param account_url: the account's address, ``https://<host>[:<port>]``
    :param channel_prefix: first part of each channel's name, stable over runs
    :param credentials_file: path of the credentials file on the driver, None for the environment's
    :param ca_bundle: PEM file of trusted roots, on the driver and the executors
    :param channel_column: column whose value names the row's channel, None to name it by partition number
    :param offset_column: column that grows from row to row within a channel, None to count rows of batches
    :param partitions: number of partitions that the plan fixes, None where a column names the channel
    :param fixed_spread: the author's promise that a repeated batch has each row in the same partition, and a
        channel's rows in one partition
    :param batch_id: id of this write's batch, for ``df.write`` without an offset column
    :param omit_columns: columns that are not sent
    :param on_error: ``abort`` fails the write when the service skipped rows, ``continue`` reports them,
        ``dead_letter`` puts rows that do not fit aside before the others are sent
    :param check_rows: with ``abort``: fail at the first row that does not fit, before it is sent
    :param dead_letter_path: where ``dead_letter`` puts rows, None otherwise
    :param unknown_columns: what becomes of columns for which the table has none: ``warn`` names them in the
        log, ``fail`` refuses the write, ``ignore`` does not check; None for ``warn`` where rows are checked
    :param on_imbalance: ``fail`` fails the write where a channel counts other rows than its checkpoint,
        ``warn`` logs it
    :param offset_backup: file or URL with the channels' last checkpoints, which all executors reach; None
        keeps none
    :param commit_timeout: seconds to wait for a channel's commit
    :param limits: when a batch of rows is closed and sent
    :param sdk_profile: path, on every machine with executors, of the profile file with which Snowflake's SDK
        carries the rows; None for this package's own client
    :param ndjson: how values are written that JSON has no form for
    """

    account_url: str
    pipe: PipeName
    channel_prefix: str
    credentials_file: str | None
    ca_bundle: str | None
    channel_column: str | None
    offset_column: str | None
    partitions: int | None
    fixed_spread: bool
    batch_id: int | None
    omit_columns: frozenset[str]
    on_error: Literal["abort", "continue", "dead_letter"]
    check_rows: bool
    dead_letter_path: str | None
    unknown_columns: OnUnknown | None
    on_imbalance: OnImbalance
    offset_backup: str | None
    commit_timeout: float
    limits: BatchLimits
    sdk_profile: str | None
    ndjson: NdjsonOptions

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Read the options as Spark gives them; their names have no case."""
        values = _checked(options)
        if (values["channelColumn"] is None) == (values["partitions"] is None):
            raise ConfigurationError(
                "give exactly one of the options channelColumn (a column that names each row's channel) and "
                "partitions (the number of Spark partitions, which then are the channels; fix it in the plan "
                "by repartition(n, column) or coalesce(1)): a channel's rows must be the same in every run"
            )
        check_channel_name(f"{values['channelPrefix']}_0")
        _check_row_options(values)
        if values["batchId"] is not None and values["offsetColumn"] is not None:
            raise ConfigurationError(
                f"options batchId ({values['batchId']}) and offsetColumn ({values['offsetColumn']!r}) are "
                "both given: the offset column distinguishes rows by itself, leave batchId out"
            )
        own = {one.name for one in fields(cls)}
        named = {_CAPITAL.sub(r"_\g<0>", name).lower(): value for name, value in values.items()}
        return cls(
            **{name: value for name, value in named.items() if name in own - {"pipe"}},
            pipe=_pipe(values),
            limits=BatchLimits(raw_bytes=values["batchBytes"], compression=values["compression"]),
            ndjson=NdjsonOptions(binary=values["binaryFormat"], non_finite=values["nonFinite"]),
        )

    @property
    def checks_rows(self) -> bool:
        """True if rows are compared with the table's columns before they are sent."""
        return self.check_rows or self.on_error == "dead_letter"

    @property
    def needs_columns(self) -> bool:
        """True if the table's columns have to be known."""
        return self.checks_rows or self.unknown_columns in ("warn", "fail")

    def channel(self, part: str | int) -> str:
        """Name a channel: the prefix and a partition's number or a column's value."""
        return check_channel_name(f"{self.channel_prefix}_{part}")

    def for_batch(self) -> int | None:
        """The batch id of a ``df.write``, None where the offset column identifies rows."""
        if self.offset_column is None and self.batch_id is None:
            raise ConfigurationError(
                "df.write needs the option offsetColumn (a column that grows from row to row) or batchId (a "
                "number that grows from write to write and stays the same when a write is repeated): without "
                "one a repeated write cannot be distinguished from a new one, and would send its rows twice"
            )
        return self.batch_id

    def refuse_unknown_spread(self) -> None:
        """Refuse what only a check of the plan could allow, for whoever sees none.

        A token that is a row's own value has no digest of the rows before it. With a channel column, rows of
        one channel in two partitions are lost: those of the one move the token past those of the other. With
        several partitions as channels, a row that lies in another one than before is lost where that one's
        token is past it, and sent twice where it is not. No later run can find out.
        """
        if self.offset_column is None or self.fixed_spread or self.partitions == 1:
            return
        with_what, together = (
            ("partitions", "each row lies in the partition that it lay in before")
            if self.channel_column is None
            else ("channelColumn", "each channel's rows lie in one partition")
        )
        raise ConfigurationError(
            f"options {with_what} and offsetColumn ({self.offset_column!r}) are both given, and nobody can "
            f"see here whether {together}; others would be lost, so nothing was sent. Call write_checked(df, "
            "options), in a stream within foreachBatch; or promise it by the option fixedSpread=true; or "
            "leave offsetColumn out, so that batches are compared"
        )

    def for_stream(self) -> None:
        """Refuse what only ``df.write`` takes."""
        if self.batch_id is not None:
            raise ConfigurationError(
                f"option batchId is {self.batch_id}: a stream counts its micro-batches itself, leave it out"
            )


@dataclass(frozen=True, slots=True)
class _Option:
    """One option: how its text is read, and its value where it is left out."""

    read: Callable[[str, str], Any]
    default: Any = None
    required: bool = False


OPTIONS: dict[str, _Option] = {
    "accountUrl": _Option(url, required=True),
    "credentialsFile": _Option(file),
    "caBundle": _Option(file),
    "database": _Option(text, required=True),
    "schema": _Option(text, required=True),
    "table": _Option(text),
    "pipe": _Option(text),
    "channelPrefix": _Option(text, required=True),
    "channelColumn": _Option(text),
    "partitions": _Option(count(1, _MOST_PARTITIONS)),
    "offsetColumn": _Option(text),
    "fixedSpread": _Option(truth, False),
    "batchId": _Option(count(0)),
    "omitColumns": _Option(columns, frozenset()),
    "onError": _Option(one_of("abort", "continue", "dead_letter"), "abort"),
    "checkRows": _Option(truth, False),
    "deadLetterPath": _Option(dead_letters),
    "unknownColumns": _Option(one_of(*UNKNOWN_COLUMNS)),
    "onImbalance": _Option(one_of("warn", "fail"), "warn"),
    "offsetBackup": _Option(place),
    "commitTimeout": _Option(seconds, 600.0),
    "batchBytes": _Option(count(1), BatchLimits().raw_bytes),
    "compression": _Option(one_of("zstd", "gzip", "none"), BatchLimits().compression),
    "sdkProfile": _Option(file),
    "binaryFormat": _Option(one_of("BASE64", "HEX", "UTF-8"), NdjsonOptions().binary),
    "nonFinite": _Option(one_of("refuse", "null"), NdjsonOptions().non_finite),
}
"""Every option by its documented name."""

_BY_LOWER = {name.lower(): name for name in OPTIONS}


def _checked(options: Mapping[str, str]) -> dict[str, Any]:
    given: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() in _SPARKS_OWN:
            continue
        known = _BY_LOWER.get(name.lower())
        if known is None:
            raise _unknown(name)
        given[known] = value
    for name, option in OPTIONS.items():
        if option.required and name not in given:
            raise ConfigurationError(f"option {name} is missing: add .option({name!r}, ...) to the write")
    return {
        name: option.read(name, given[name]) if name in given else option.default
        for name, option in OPTIONS.items()
    }


def _unknown(name: str) -> ConfigurationError:
    """The error for an option that there is not; its value is never shown, it may be a secret."""
    if name.lower() == "path":
        return ConfigurationError(
            "a path was given to save() or start(): rows go to the table or pipe that the options name, "
            "leave it out"
        )
    if is_named_like_a_secret(name) or name.lower() in ("pat", "oauth"):
        return ConfigurationError(
            f"option {name!r} is unknown: options are shown in plans and logs, so no credential is one. Name "
            "a file with the option credentialsFile, or set SNOWPIPE_CREDENTIALS_FILE in the driver's "
            "environment; replace what was given here if others may have seen it"
        )
    return ConfigurationError(f"option {name!r} is unknown: use {', '.join(sorted(OPTIONS))}")


def _pipe(values: Mapping[str, Any]) -> PipeName:
    table, pipe = values["table"], values["pipe"]
    if (table is None) == (pipe is None):
        raise ConfigurationError(
            "give exactly one of the options table (rows go through its default pipe) and pipe"
        )
    if pipe is not None:
        return PipeName(values["database"], values["schema"], pipe)
    return PipeName.default_for_table(values["database"], values["schema"], table)


def _check_row_options(values: Mapping[str, Any]) -> None:
    on_error, path = values["onError"], values["deadLetterPath"]
    if (on_error == "dead_letter") != (path is not None):
        raise ConfigurationError(
            f"option onError is {on_error!r} and deadLetterPath is {path!r}: rows that do not fit are put "
            "aside with both, onError=dead_letter and a directory or URL as deadLetterPath"
        )
    if values["binaryFormat"] != "BASE64" and values["table"] is not None:
        raise ConfigurationError(
            f"option binaryFormat is {values['binaryFormat']!r}, and a table's default pipe reads BASE64: "
            "leave it out, give the option pipe instead of table, or convert a column of text by hex"
        )
    if on_error == "continue" and values["checkRows"]:
        raise ConfigurationError(
            "option checkRows is true, but onError is 'continue': rows are checked before they are sent with "
            "abort or dead_letter"
        )
    if values["unknownColumns"] in ("warn", "fail") and values["table"] is None:
        raise ConfigurationError(
            f"option unknownColumns is {values['unknownColumns']!r}, but rows go through pipe "
            f"{values['pipe']!r}, which may transform them: give the option table instead, or drop it"
        )
    if (on_error == "dead_letter" or values["checkRows"]) and values["table"] is None:
        raise ConfigurationError(
            f"rows are to be checked, but they go through pipe {values['pipe']!r}, which may transform them: "
            "give the option table instead, or drop onError=dead_letter and checkRows"
        )


# -- What a DataFrame's columns must be: checked on the driver, before any row moves ---------------------

_INTEGERS = ("byte", "short", "integer", "long")


def check_schema(schema: Mapping[str, Any], options: WriteOptions) -> None:
    """Refuse columns without a faithful JSON form, and key columns that do not serve as keys."""
    types = {field["name"]: field["type"] for field in schema["fields"]}
    for name, column in (("channelColumn", options.channel_column), ("offsetColumn", options.offset_column)):
        if column is None:
            continue
        kind = _find(name, column, types)
        is_text = isinstance(kind, str) and kind.startswith(("string", "varchar", "char("))
        if kind not in _INTEGERS and not is_text:
            raise ConfigurationError(
                f"option {name} names the column {column!r} of type {type_name(kind)}: it must be a whole "
                "number or a text; cast it to BIGINT or STRING"
            )
    for column in options.omit_columns:
        _find("omitColumns", column, types)
    sent = [field for field in schema["fields"] if field["name"] not in options.omit_columns]
    if not sent:
        raise ConfigurationError("the DataFrame has no column to send: omit fewer columns")
    check_types(sent)


def unknown_columns(
    schema: Mapping[str, Any], options: WriteOptions, table: Sequence[TableColumn]
) -> list[str]:
    """The columns that are sent and for which the table has none; their values are skipped."""
    if not table or options.unknown_columns == "ignore":
        return []
    known = {column.name.upper() for column in table}
    sent = [field["name"] for field in schema["fields"] if field["name"] not in options.omit_columns]
    unknown = [name for name in sent if name.upper() not in known]
    if unknown and (options.unknown_columns == "fail" or len(unknown) == len(sent)):
        raise UnknownColumnsError(
            f"table {options.pipe.default_table!r} has no column for {', '.join(unknown)} of the DataFrame; "
            f"it has {', '.join(column.name for column in table)}. Nothing was sent: rename the columns, "
            "omit them (omitColumns), or add them to the table"
        )
    return unknown


def is_integer(schema: Mapping[str, Any], column: str | None) -> bool:
    """True for a column of whole numbers in ``StructType.jsonValue``."""
    return any(field["name"] == column and field["type"] in _INTEGERS for field in schema["fields"])


def variant_columns(schema: Mapping[str, Any]) -> frozenset[str]:
    """The names of the VARIANT columns in ``StructType.jsonValue``."""
    return frozenset(field["name"] for field in schema["fields"] if field["type"] == "variant")


def _find(option: str, column: str, types: Mapping[str, Any]) -> Any:
    if column not in types:
        raise ConfigurationError(
            f"option {option} names the column {column!r}, which the DataFrame has not: it has "
            f"{', '.join(types)} (letters count as they are)"
        )
    return types[column]
