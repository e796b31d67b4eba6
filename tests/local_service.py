"""A local service process, and this package's client of it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from snowpipe_local import testing

if TYPE_CHECKING:
    from airflow_provider_snowpipe.streaming.auth import KeyPair
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient
    from airflow_provider_snowpipe.streaming.limits import RetryPolicy


class LocalService(testing.LocalService):
    """A service process with a client for each of its tables and pipes."""

    @cached_property
    def credentials(self) -> KeyPair:
        """Key pair of the service's own user for our client."""
        from airflow_provider_snowpipe.streaming.auth import KeyPair

        return KeyPair(self.account, self.user, self.key_file.read_bytes())

    def client(
        self,
        table_or_pipe: str,
        *,
        database: str = "LOCAL",
        schema: str = "PUBLIC",
        retry: RetryPolicy | None = None,
    ) -> SnowpipeClient:
        """Return our client on a table's default pipe, or on a pipe when the name ends in ``-STREAMING``."""
        from airflow_provider_snowpipe.streaming.client import SnowpipeClient
        from airflow_provider_snowpipe.streaming.names import PipeName

        if table_or_pipe.upper().endswith("-STREAMING"):
            pipe = PipeName(database, schema, table_or_pipe)
        else:
            pipe = PipeName.default_for_table(database, schema, table_or_pipe)
        return SnowpipeClient(self.url, self.credentials, pipe, ca_bundle=str(self.ca_file), retry=retry)
