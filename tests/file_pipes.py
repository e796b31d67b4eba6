"""A table, a stage and a file pipe of their own for a test, on a running local service."""

import datetime as dt
import itertools
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from tests.airflow_connections import SetConnection, set_connection
from tests.local_connection import connect, ids
from tests.local_service import LocalService
from tests.staged_files import put
from tests.stream_worker import TaskInstance

__all__ = ["set_connection"]

_numbers = itertools.count(1)
BEGAN = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)


class PipeTarget:
    """Names, and the statements of somebody who uses them; files are written into the folder first."""

    def __init__(self, service: LocalService, folder: Path, conn_id: str) -> None:
        self.service, self.folder, self.conn_id = service, folder, conn_id
        self.table = f"PIPED{next(_numbers)}"
        self.stage, self.pipe = f"{self.table}_STAGE", f"{self.table}_PIPE"
        self.began = dt.datetime.now(dt.UTC)  # of every run of this target
        service.sql(f"CREATE TABLE {self.table} (ID INTEGER, NAME VARCHAR)")
        service.sql(f"CREATE STAGE {self.stage} FILE_FORMAT = (TYPE = CSV)")

    def make_pipe(self, options: str = "", path: str = "") -> None:
        self.service.sql(
            f"CREATE PIPE {self.pipe} AS COPY INTO {self.table} FROM @{self.stage}{path} {options}"
        )

    def put(self, files: Mapping[str, str]) -> None:
        put(self.service, self.folder, self.stage, files)

    def submit(self, *paths: str) -> None:
        """Give files to the pipe by its REST API, as another program would."""
        answer = requests.post(
            f"{self.service.url}/v1/data/pipes/LOCAL.PUBLIC.{self.pipe}/insertFiles",
            params={"requestId": str(uuid.uuid4())},
            headers={"Authorization": f"Bearer {self.service.key_pair_jwt()}"},
            json={"files": [{"path": path} for path in paths]},
            verify=str(self.service.ca_file),
            timeout=30,
        )
        assert answer.status_code == 200, answer.text

    def ids(self) -> list[int]:
        return ids(self.service, self.table)

    def context(self, run: str = "r1", try_number: int = 1) -> Any:
        return task_context(run, try_number, self.began)


MakeTarget = Callable[[LocalService], PipeTarget]


@pytest.fixture
def make_target(set_connection: SetConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTarget:
    """Make stage, table and pipe in a service, which the connector trusts from then on."""

    def make(service: LocalService) -> PipeTarget:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(service.ca_file))
        return PipeTarget(service, tmp_path, connect(service, set_connection))

    return make


@pytest.fixture
def target(local_service: LocalService, make_target: MakeTarget) -> PipeTarget:
    return make_target(local_service)


def task_context(run: str = "r1", try_number: int = 1, began: dt.datetime = BEGAN) -> Any:
    ti = TaskInstance(task_id="t", run_id=run, try_number=try_number)
    return {"ti": ti, "dag_run": SimpleNamespace(start_date=began)}
