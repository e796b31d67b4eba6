"""A full disk: refused in words, and over when there is room again."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
from snowpipe_local import admin, cli
from snowpipe_local.admin import Commands
from snowpipe_local.datadir import Clock, DataDirectory, write_file
from snowpipe_local.definitions import transact
from snowpipe_local.engine.spool import disk_full
from snowpipe_local.faults import Faults
from tests.unit.service_in_process import ServiceInProcess


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


def _disk_full(*_arguments: Any) -> None:
    raise duckdb.TransactionException("Failed to commit: could not write: No space left on device")


def test_channels_are_opened_written_and_dropped_when_there_is_room_again(service, monkeypatch, caplog):
    channel = "databases/LOCAL/schemas/PUBLIC/pipes/T-STREAMING/channels/c"
    token = service.account.issue_scoped_token("127.0.0.1")
    store = service.catalog.database("LOCAL").store

    def answer(method: str, plane: str = "", query: str = "") -> Any:
        body = b'{"id": 1}\n' if plane else {}
        return service.call(method, f"/v2/streaming/{plane}{channel}{query}", body, token=token)

    for written in ("add_channel", "update_channels"):
        with monkeypatch.context() as patch:
            patch.setattr(store, written, _disk_full)
            refused = answer("PUT")
        assert (refused.status, "disk" in refused.json()["message"]) == (503, True)
    continuation = answer("PUT").json()["next_continuation_token"]
    with monkeypatch.context() as patch:
        patch.setattr(store, "remove_channel", _disk_full)
        assert answer("DELETE").status == 503
    query = f"/rows?continuationToken={continuation}&requestId=r&endOffsetToken=1"
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=1 << 20))
        assert answer("POST", "data/", query).status == 503
        assert not service.catalog.database("LOCAL").checkpoint()
    assert answer("POST", "data/", query).status == 200
    assert answer("DELETE").status == 200
    assert answer("DELETE").status == 404
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_an_inactive_channel_stays_until_it_can_be_removed(service, monkeypatch):
    channels = service.catalog.database("LOCAL").channels
    pipe = service.catalog.database("LOCAL").pipes.resolve("PUBLIC", "T-STREAMING")
    channels.open(pipe, "c", offset_token="7", fail_on_uncommitted_rows=False)
    service.catalog.clock.move(31 * 86_400)
    with monkeypatch.context() as patch:
        patch.setattr(service.catalog.database("LOCAL").store, "remove_channel", _disk_full)
        with pytest.raises(duckdb.TransactionException):
            channels.find(pipe, "c")
    assert channels.find(pipe, "c") is None
    opened = channels.open(pipe, "c", offset_token=None, fail_on_uncommitted_rows=False)
    assert opened.committed.offset_token is None


def test_a_call_that_meets_a_broken_database_is_asked_for_again(service, monkeypatch):
    def broken(*_arguments: Any) -> None:
        raise duckdb.FatalException("Database has been invalidated because of a previous fatal error")

    monkeypatch.setattr(service.service._streaming, "handle", broken)
    token = service.account.issue_scoped_token("127.0.0.1")
    assert service.call("GET", "/v2/streaming/hostname", token=token).status == 503


def test_a_statement_or_file_that_finds_no_room_reports_that(tmp_path, monkeypatch):
    def fails(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="space"):
        write_file(tmp_path / "clock", b"1", mode=0o600)
    assert list(tmp_path.iterdir()) == []
    clock = Clock.kept_in(tmp_path / "clock")
    commands = Commands(SimpleNamespace(clock=clock), Faults())  # type: ignore[arg-type]
    answer = admin._answer(commands, b'{"command": "clock", "move": 1}')
    assert json.loads(answer) == {"ok": False, "error": disk_full().message}

    class Cursor:
        def execute(self, statement: str) -> None:
            if statement == "COMMIT":
                _disk_full()
            if statement == "ROLLBACK":
                raise duckdb.TransactionException("cannot rollback - no transaction is active")

    with pytest.raises(duckdb.TransactionException, match="space"):
        transact(Cursor(), lambda: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "failure",
    [OSError(errno.ENOSPC, "No space left on device"), duckdb.IOException("x: No space left on device")],
)
def test_statements_and_the_start_report_a_full_disk(service, monkeypatch, tmp_path, capsys, failure):
    def fails(*_arguments: Any, **_more: Any) -> None:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr("snowpipe_local.sql.query._run", fails)
        answer = service.connect().query("INSERT INTO t VALUES (1)")
        assert (answer["code"], "disk" in answer["message"]) == ("000603", True)
    assert service.connect().query("INSERT INTO t VALUES (1)")["success"]
    monkeypatch.setattr(DataDirectory, "create", fails)
    assert cli.main(["serve", "--data-dir", str(tmp_path / "other")]) == 1
    assert "is full" in capsys.readouterr().err
