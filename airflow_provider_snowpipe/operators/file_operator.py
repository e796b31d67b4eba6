"""What the operators of staged files and file pipes share."""

from __future__ import annotations

from functools import cached_property

from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.account_operator import AccountOperator
from airflow_provider_snowpipe.streaming.names import PipeName

FILES_KEY = "files"
"""The XCom with the paths of files, as the next operator or sensor of files takes them."""


class FileOperator(AccountOperator):
    """Base of the operators of files: stages, COPY, and the pipes that load from stages."""

    @cached_property
    def hook(self) -> SnowpipeBulkHook:
        """The hook of the account; made when first asked for, after templates are rendered."""
        return SnowpipeBulkHook(self.snowflake_conn_id, database=self.database, schema=self.schema)

    def pipe_name(self, pipe: str) -> PipeName:
        """The full name of a pipe.

        :param pipe: its name
        """
        return PipeName(*self.hook.place(), pipe)
