"""The table's columns, which rows are held against before they are sent, as the driver knows them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from airflow_provider_snowpipe.bulk.statement_client import describe_table
from airflow_provider_snowpipe.spark.credentials import standing_credentials
from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.data_source.tokens import credentials_stamp
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.table_schema import TableColumn, table_of

_KEPT_SECONDS = 60.0
"""A column that is added while a stream runs is known a minute later."""


@dataclass(frozen=True, slots=True)
class _Kept:
    columns: tuple[TableColumn, ...]
    until: float


_kept: dict[tuple[object, ...], _Kept] = {}


def checked_columns(options: WriteOptions) -> tuple[TableColumn, ...]:
    """Describe the table if the options want rows or columns checked; nothing otherwise.

    Kept for a minute, since each micro-batch asks twice.

    :param options: what the write's options say
    :raises SqlError: if the table cannot be described
    :raises ConfigurationError: if there are no usable credentials, or the table has no column
    """
    if not options.needs_columns:
        return ()
    table = table_of(options.pipe)
    key = (options.account_url, options.ca_bundle, table, *credentials_stamp(options.credentials_file))
    kept = _kept.get(key)
    if kept is not None and time.monotonic() < kept.until:
        return kept.columns
    credentials = standing_credentials(options.credentials_file)
    columns = describe_table(options.account_url, credentials, table, ca_bundle=options.ca_bundle)
    if not columns:
        raise ConfigurationError(f"table {table} has no column that rows could be held against")
    _kept.clear()
    _kept[key] = _Kept(columns, time.monotonic() + _KEPT_SECONDS)
    return columns
