"""The options of ``format("snowpipe")``: one table of names, each with its check."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.exchange import base_url
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import PipeName, check_channel_name
from airflow_provider_snowpipe.streaming.ndjson import BinaryFormat, NdjsonOptions, NonFinite

_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
"""Options of ``writeStream`` that Spark hands on to the sink (observed with PySpark 4.2)."""
_SECRET = ("password", "passphrase", "secret", "token", "privatekey", "private_key", "pat", "oauth")
_MOST_PARTITIONS = 2000
"""Channels that a pipe takes ("Limitations and considerations")."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What the options of one write say; holds no credential.

    :param account_url: the account's address, ``https://<host>[:<port>]``
    :param pipe: the pipe
    :param channel_prefix: first part of each channel's name, stable over runs
    :param credentials_file: path of the credentials file on the driver, None for the environment's
    :param ca_bundle: PEM file of trusted roots, on the driver and the executors
    :param channel_column: column whose value names the row's channel, None to name it by partition number
    :param offset_column: column that grows from row to row within a channel, None to count rows of batches
    :param partitions: number of partitions that the plan fixes, None where a column names the channel
    :param batch_id: id of this write's batch, for ``df.write`` without an offset column
    :param omit_columns: columns that are not sent
    :param on_error: ``abort`` fails the write when the service skipped rows, ``continue`` reports them
    :param commit_timeout: seconds to wait for a channel's commit
    :param limits: when a batch of rows is closed and sent
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
    batch_id: int | None
    omit_columns: frozenset[str]
    on_error: Literal["abort", "continue"]
    commit_timeout: float
    limits: BatchLimits
    ndjson: NdjsonOptions

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Read the options as Spark gives them; their names have no case.

        :param options: names and texts
        :raises ConfigurationError: for an option that is unknown, missing, wrong, or at odds with another
        """
        values = _checked(options)
        channel_column, partitions = values["channelColumn"], values["partitions"]
        if (channel_column is None) == (partitions is None):
            raise ConfigurationError(
                "give exactly one of the options channelColumn (a column that names each row's channel) and "
                "partitions (the number of Spark partitions, which then are the channels; fix it in the plan "
                "by repartition(n, column) or coalesce(1)): a channel's rows must be the same in every run"
            )
        prefix = values["channelPrefix"]
        check_channel_name(f"{prefix}_0")
        return cls(
            account_url=values["accountUrl"],
            pipe=_pipe(values),
            channel_prefix=prefix,
            credentials_file=values["credentialsFile"],
            ca_bundle=values["caBundle"],
            channel_column=channel_column,
            offset_column=values["offsetColumn"],
            partitions=partitions,
            batch_id=_batch_id(values),
            omit_columns=values["omitColumns"],
            on_error=values["onError"],
            commit_timeout=values["commitTimeout"],
            limits=BatchLimits(raw_bytes=values["batchBytes"], compression=values["compression"]),
            ndjson=NdjsonOptions(
                binary=_binary(values["binaryFormat"]), non_finite=_non_finite(values["nonFinite"])
            ),
        )

    def channel(self, part: str | int) -> str:
        """Name a channel: the prefix and a partition's number or a column's value."""
        return check_channel_name(f"{self.channel_prefix}_{part}")

    def for_batch(self) -> int | None:
        """The batch id of a ``df.write``, None where the offset column tells rows apart.

        :raises ConfigurationError: if there is neither
        """
        if self.offset_column is None and self.batch_id is None:
            raise ConfigurationError(
                "df.write needs the option offsetColumn (a column that grows from row to row) or batchId (a "
                "number that grows from write to write and stays the same when a write is repeated): without "
                "one a repeated write cannot be told from a new one, and would send its rows twice"
            )
        return self.batch_id

    def for_stream(self) -> None:
        """Refuse what only ``df.write`` takes.

        :raises ConfigurationError: if there is a batch id
        """
        if self.batch_id is not None:
            raise ConfigurationError(
                f"option batchId is {self.batch_id}: a stream counts its micro-batches itself, leave it out"
            )


def _text(name: str, value: str) -> str:
    if not value.strip():
        raise ConfigurationError(f"option {name} is empty: give it a value, or leave it out")
    return value


def _url(name: str, value: str) -> str:
    try:
        return base_url(_text(name, value))
    except ConfigurationError as error:
        raise ConfigurationError(f"option {name}: {error}") from None


def _file(name: str, value: str) -> str:
    if not os.path.isabs(value):
        raise ConfigurationError(
            f"option {name} is {value!r}: give an absolute path, Spark's working directory differs"
        )
    return value


def _count(least: int, most: int | None = None) -> Callable[[str, str], int]:
    def check(name: str, value: str) -> int:
        number = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else None
        if number is None or number < least or (most is not None and number > most):
            limit = f"{least} or more" if most is None else f"from {least} to {most}"
            raise ConfigurationError(f"option {name} is {value!r}: it must be a whole number, {limit}")
        return number

    return check


def _seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(f"option {name} is {value!r}: it must be seconds above 0")
    return seconds


def _one_of(*choices: str) -> Callable[[str, str], str]:
    def check(name: str, value: str) -> str:
        if value not in choices:
            raise ConfigurationError(f"option {name} is {value!r}: it must be one of {', '.join(choices)}")
        return value

    return check


def _columns(name: str, value: str) -> frozenset[str]:
    columns = [column.strip() for column in value.split(",")]
    if not all(columns):
        raise ConfigurationError(f"option {name} is {value!r}: give columns with commas between them")
    return frozenset(columns)


@dataclass(frozen=True, slots=True)
class _Option:
    """One option: how its text is read, and its value where it is left out."""

    read: Callable[[str, str], Any]
    default: Any = None
    required: bool = False


OPTIONS: dict[str, _Option] = {
    "accountUrl": _Option(_url, required=True),
    "credentialsFile": _Option(_file),
    "caBundle": _Option(_file),
    "database": _Option(_text, required=True),
    "schema": _Option(_text, required=True),
    "table": _Option(_text),
    "pipe": _Option(_text),
    "channelPrefix": _Option(_text, required=True),
    "channelColumn": _Option(_text),
    "partitions": _Option(_count(1, _MOST_PARTITIONS)),
    "offsetColumn": _Option(_text),
    "batchId": _Option(_count(0)),
    "omitColumns": _Option(_columns, frozenset()),
    "onError": _Option(_one_of("abort", "continue"), "abort"),
    "commitTimeout": _Option(_seconds, 600.0),
    "batchBytes": _Option(_count(1), BatchLimits().raw_bytes),
    "compression": _Option(_one_of("zstd", "gzip", "none"), BatchLimits().compression),
    "binaryFormat": _Option(_one_of("BASE64", "HEX", "UTF-8"), NdjsonOptions().binary),
    "nonFinite": _Option(_one_of("refuse", "null"), NdjsonOptions().non_finite),
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
    if any(word in name.lower() for word in _SECRET):
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


def _batch_id(values: Mapping[str, Any]) -> int | None:
    batch_id: int | None = values["batchId"]
    if batch_id is not None and values["offsetColumn"] is not None:
        raise ConfigurationError(
            f"options batchId ({batch_id}) and offsetColumn ({values['offsetColumn']!r}) are both given: the "
            "offset column tells rows apart by itself, leave batchId out"
        )
    return batch_id


def _binary(text: str) -> BinaryFormat:
    return "HEX" if text == "HEX" else "UTF-8" if text == "UTF-8" else "BASE64"


def _non_finite(text: str) -> NonFinite:
    return "null" if text == "null" else "refuse"
