"""A full disk: refused in words, and over when there is room again."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from airflow_provider_snowpipe.local import cli
from airflow_provider_snowpipe.local.datadir import DataDirectory
from tests.unit.local.service_in_process import ServiceInProcess


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceInProcess]:
    service = ServiceInProcess(tmp_path / "home")
    service.connect().query("CREATE TABLE t (id INT)")
    yield service
    service.close()


def test_a_database_that_a_checkpoint_broke_is_back_at_once(service: ServiceInProcess) -> None:
    session, database = service.connect(), service.catalog.database("LOCAL")
    session.query("INSERT INTO t VALUES (1)")
    with service.catalog.cursor() as engine:
        engine.execute("SET GLOBAL debug_checkpoint_abort = 'before_header'")
        assert not database.checkpoint()
        assert session.query("INSERT INTO t VALUES (2)")["success"]
        # The engine's own checkpoint, which a statement meets.
        with pytest.raises(duckdb.Error):
            engine.execute("CHECKPOINT LOCAL")
        engine.execute("SET GLOBAL debug_checkpoint_abort = 'none'")
    assert "recovered" in session.query("INSERT INTO t VALUES (3)")["message"]
    assert session.query("INSERT INTO t VALUES (3)")["success"]
    assert service.catalog.database("LOCAL").checkpoint()
    assert session.query("SELECT id FROM t")["data"]["total"] == 3


def test_streaming_is_refused_until_there_is_room(
    service: ServiceInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = "databases/LOCAL/schemas/PUBLIC/pipes/T-STREAMING/channels/c"
    token = service.account.issue_scoped_token("127.0.0.1")
    opened = service.call("PUT", f"/v2/streaming/{pipe}", {}, token=token).json()
    query = f"continuationToken={opened['next_continuation_token']}&requestId=r&endOffsetToken=1"
    path = f"/v2/streaming/data/{pipe}/rows?{query}"
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=1 << 20))
        assert service.call("POST", path, b'{"id": 1}\n', token=token).status == 503
        assert not service.catalog.database("LOCAL").checkpoint()
    assert service.call("POST", path, b'{"id": 1}\n', token=token).status == 200


@pytest.mark.parametrize(
    "failure",
    [OSError(errno.ENOSPC, "No space left on device"), duckdb.IOException("x: No space left on device")],
)
def test_statements_and_the_start_report_that_the_disk_is_full(
    service: ServiceInProcess,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    failure: Exception,
) -> None:
    def fails(*_arguments: Any, **_more: Any) -> None:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr("airflow_provider_snowpipe.local.sql.query._run", fails)
        answer = service.connect().query("INSERT INTO t VALUES (1)")
        assert (answer["code"], "disk" in answer["message"]) == ("000603", True)
    assert service.connect().query("INSERT INTO t VALUES (1)")["success"]
    monkeypatch.setattr(DataDirectory, "create", fails)
    assert cli.main(["serve", "--data-dir", str(tmp_path / "other")]) == 1
    assert "is full" in capsys.readouterr().err
