"""A local service process, and this package's client of it."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snowpipe_local import testing

if TYPE_CHECKING:
    from airflow_provider_snowpipe.streaming.auth import KeyPair
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient


class LocalService(testing.LocalService):
    """A service process with a client for each of its tables and pipes."""

    @cached_property
    def credentials(self) -> KeyPair:
        """Key pair of the service's own user for our client."""
        from airflow_provider_snowpipe.streaming.auth import KeyPair

        return KeyPair(self.account, self.user, self.key_file.read_bytes())

    def write_sdk_profile(self, path: Path, **changes: Any) -> Path:
        """Write the file with which Snowflake's SDK signs in."""
        key = self.key_file.read_text()
        profile = {"account": self.account, "user": self.user, "url": self.url, "private_key": key, **changes}
        path.touch(mode=0o600)
        path.write_text(json.dumps(profile))
        return path

    def client(self, table_or_pipe: str) -> SnowpipeClient:
        """Return our client on a table's default pipe, or on a pipe when the name ends in ``-STREAMING``."""
        from airflow_provider_snowpipe.streaming.client import SnowpipeClient
        from airflow_provider_snowpipe.streaming.names import PipeName

        if table_or_pipe.upper().endswith("-STREAMING"):
            pipe = PipeName("LOCAL", "PUBLIC", table_or_pipe)
        else:
            pipe = PipeName.default_for_table("LOCAL", "PUBLIC", table_or_pipe)
        return SnowpipeClient(self.url, self.credentials, pipe, ca_bundle=str(self.ca_file))
