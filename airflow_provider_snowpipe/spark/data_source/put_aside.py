"""Where a DataFrame's rows go that do not fit the table."""

from __future__ import annotations

from airflow_provider_snowpipe.spark.data_source.digested import GIVEN_WRITER, BatchIdentity
from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.submit.row_rules import RowRules
from airflow_provider_snowpipe.streaming.table_columns import TableColumn


def row_rules(
    options: WriteOptions, columns: tuple[TableColumn, ...], identity: BatchIdentity | None
) -> RowRules | None:
    """Make the rules by which a task checks its rows.

    A batch has a directory of its own, because its row numbers mean nothing outside of it: an attempt may
    then clear away what others left without touching another batch's or another query's rows.

    :param options: what the write's options say
    :param columns: the table's columns
    :param identity: the batch, None where an offset column tells rows apart
    :returns: None if rows are not checked before they are sent
    """
    if not options.checks_rows:
        return None
    folders, application = batch_folders(identity), f"{options.channel_prefix} by {options.offset_column}"
    if identity is not None:
        application = f"{options.channel_prefix} {' '.join(folders)}"
    path = options.dead_letter_path
    if path is not None:
        path = "/".join([path.rstrip("/"), *folders])
    return RowRules.of(options.on_error, options.check_rows, path, columns, application)


def batch_folders(identity: BatchIdentity | None) -> tuple[str, ...]:
    """The directories below ``deadLetterPath`` that a batch's dead letters lie in.

    :param identity: the batch, None where an offset column tells rows apart
    """
    if identity is None:
        return ()
    query = () if identity.writer == GIVEN_WRITER else (f"query={identity.writer}",)
    return (*query, f"batch={identity.batch}")
