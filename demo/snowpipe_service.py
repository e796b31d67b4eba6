"""The local Snowpipe service as a child process, started by its own command line."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snowpipe_local.datadir import DataDirectory
from snowpipe_local.environment import check_ready, variables
from snowpipe_local.errors import DataDirectoryError

from airflow_provider_snowpipe.bulk.statement_client import StatementClient
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.names import PipeName
from demo.processes import ProcessGroup, stop_left_behind

POLL_SECONDS = 0.05
_COMMAND = str(Path(sys.executable).with_name("snowpipe-local"))


class SnowpipeService:
    """``snowpipe-local serve`` on a free port that it remembers in its data directory.

    :param data_dir: the service's whole state; made when missing, kept afterwards
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.resolve()
        self.log = self.data_dir.with_name(f"{self.data_dir.name}.log")
        self.env: Mapping[str, str] = {}
        self._state_file = self.data_dir.with_name(f"{self.data_dir.name}-processes.json")
        self._group = ProcessGroup(self._state_file)

    def start(self, options: Sequence[str] = ()) -> None:
        """Start the service; `wait_until_ready` returns when it answers.

        :param options: more options of ``snowpipe-local serve``
        """
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        stop_left_behind(self._state_file)
        command = [_COMMAND, "serve", "--data-dir", str(self.data_dir), "--port", "0", *options]
        self._group.start("snowpipe-local", command, os.environ, self.log)

    def wait_until_ready(self, timeout: float = 60.0) -> None:
        """Wait until the service answers, and take over the environment that its clients need.

        :param timeout: seconds
        :raises RuntimeError: if the service ends, or does not answer in time
        """
        deadline = time.monotonic() + timeout
        home = DataDirectory(self.data_dir)
        while True:
            try:
                check_ready(home)
            except DataDirectoryError as error:
                if self._group.ended() or time.monotonic() > deadline:
                    tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
                    raise RuntimeError(
                        f"snowpipe-local does not answer: {error}\n{self.log}:\n{tail}"
                    ) from error
                time.sleep(POLL_SECONDS)
            else:
                self.env = variables(home)
                return

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """Run one statement that changes nothing, and return its rows, the columns' names in lower case.

        :raises SqlError: if the service refuses it
        """
        ca_bundle = self.env["REQUESTS_CA_BUNDLE"]
        client = StatementClient(self.env["SNOWPIPE_LOCAL_URL"], self._key(), ca_bundle=ca_bundle)
        try:
            return client.rows(statement)
        finally:
            client.close()

    def client(self, table: str) -> SnowpipeClient:
        """Return a client of the default pipe of a table in the connection's database and schema."""
        connection = json.loads(self.env["AIRFLOW_CONN_SNOWFLAKE_DEFAULT"])
        pipe = PipeName.default_for_table(connection["extra"]["database"], connection["schema"], table)
        return SnowpipeClient(
            self.env["SNOWPIPE_LOCAL_URL"], self._key(), pipe, ca_bundle=self.env["REQUESTS_CA_BUNDLE"]
        )

    def _key(self) -> KeyPair:
        return KeyPair(
            account=self.env["SNOWPIPE_LOCAL_ACCOUNT"],
            user=self.env["SNOWPIPE_LOCAL_USER"],
            private_key=Path(self.env["SNOWPIPE_LOCAL_PRIVATE_KEY_FILE"]).read_bytes(),
        )

    def terminate(self) -> None:
        """Ask the service to end; `stop` waits for that."""
        self._group.terminate()

    def stop(self) -> None:
        """Stop the service; its state stays."""
        self._group.stop()
