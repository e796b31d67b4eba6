"""A table and a folder of files that a load operator brings together, on a running local service."""

import datetime as dt
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.sources import FileSource
from airflow_provider_snowpipe.streaming.checkpoint import ChannelSource
from airflow_provider_snowpipe.streaming.offsets import UnitOffset
from tests.airflow_connections import SetConnection, set_connection
from tests.local_connection import commit, committed, connect, ids
from tests.local_service import LocalService
from tests.source_log import taken, unit_offset
from tests.stream_worker import TaskInstance

__all__ = ["set_connection"]

_numbers = itertools.count(1)
CHANNEL = "p_s_a"


class Load:
    """A table, and a folder with one partition ``a`` of NDJSON files."""

    def __init__(self, service: LocalService, folder: Path, conn_id: str) -> None:
        self.service, self.folder, self.conn_id = service, folder, conn_id
        self.table = f"LOADED{next(_numbers)}"
        self.began = dt.datetime.now(dt.UTC)
        self.ti: Any = None
        self.runs = itertools.count(1)
        self.ids: list[int] = []
        self.stage, self.pipe = f"{self.table}_STAGE", f"{self.table}_PIPE"
        service.sql(f"CREATE TABLE {self.table} (ID INTEGER, NAME VARCHAR)")

    def make_pipe(self, path: str = "") -> None:
        """Make a stage and a pipe that loads NDJSON from it."""
        self.service.sql(f"CREATE STAGE IF NOT EXISTS {self.stage}")
        self.service.sql(
            f"CREATE OR REPLACE PIPE {self.pipe} AS COPY INTO {self.table} "
            f"FROM @{self.stage}{path} FILE_FORMAT = (TYPE = JSON) MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
        )

    def write(self, name: str, count: int = 2) -> None:
        file = self.folder / "a" / name
        file.parent.mkdir(exist_ok=True)
        new = range(len(self.ids), len(self.ids) + count)
        with file.open("a") as lines:
            lines.writelines(json.dumps({"ID": number, "NAME": name}) + "\n" for number in new)
        self.ids += new

    @property
    def target(self) -> str:
        hook = SnowpipeHook(self.conn_id, table=self.table)
        return hook.pipe_name().address(hook.account_url())

    def stream(self, *names: str) -> None:
        """Do what the stream does: send the rows of files, and commit."""
        files = taken(FileSource(path=str(self.folder)), self.target)["a"]
        with self.service.client(self.table) as client:
            rows = client.open_channel(CHANNEL).status.rows_inserted
        source, tokens, lines = ChannelSource(UnitOffset, files.binding), list[str](), list[str]()
        for name in names:
            for number, line in enumerate((self.folder / "a" / name).read_text().splitlines(), 1):
                tokens.append(source.token(unit_offset(files, f"{name}:{number}"), rows + len(tokens) + 1, 0))
                lines.append(line)
        commit(self.service, self.table, CHANNEL, tokens, rows=lines)

    def run(self, run: str | None = None, try_number: int = 1, **arguments: Any) -> dict[str, Any]:
        self.last = self.operator(**arguments)
        return self.last.execute(self.context(run or f"run{next(self.runs)}", try_number))

    def context(self, run: str = "r1", try_number: int = 1) -> Any:
        self.ti = TaskInstance(run_id=run, try_number=try_number, start_date=dt.datetime.now(dt.UTC))
        return {"ti": self.ti, "dag_run": SimpleNamespace(start_date=self.began, run_type="manual")}

    def operator(self, **arguments: Any) -> SnowpipeLoadOperator:
        given = {"source": {"path": str(self.folder)}, "path": "copy", "table": self.table, **arguments}
        return SnowpipeLoadOperator(
            task_id="load",
            snowflake_conn_id=self.conn_id,
            channel_prefix="p",
            source_name="s",
            driver_memory="512m",
            conf={"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"},
            **given,
        )

    @property
    def token(self) -> str | None:
        return committed(self.service, self.table, CHANNEL)

    def assert_every_row_is_there_once(self) -> None:
        assert ids(self.service, self.table) == self.ids


@pytest.fixture
def load(
    local_service: LocalService,
    set_connection: SetConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Load:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(local_service.ca_file))
    set_connection("spark_default", conn_type="spark", host="local[2,4]")
    return Load(local_service, tmp_path, connect(local_service, set_connection))
