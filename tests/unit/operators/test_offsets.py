"""Backing up and restoring offset tokens against a real local service."""

from __future__ import annotations

import datetime as dt
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_snowpipe.operators.offsets import (
    SnowpipeBackupOffsetsOperator,
    SnowpipeRestoreOffsetsOperator,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, WriterActiveError
from tests.airflow_version import AIRFLOW
from tests.local_connection import append, commit, committed, context, writer_at_work
from tests.local_service import LocalService

Run = Callable[..., Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "offsets.json"


@pytest.fixture
def backup(conn_id: str, table: str, path: Path) -> Run:
    def run(**options: Any) -> Any:
        return make(SnowpipeBackupOffsetsOperator, conn_id, table, path, options).execute(context())

    return run


@pytest.fixture
def restore(conn_id: str, table: str, path: Path) -> Run:
    def run(**options: Any) -> Any:
        options = {"observe_seconds": 0.1, **options}
        return make(SnowpipeRestoreOffsetsOperator, conn_id, table, path, options).execute(context())

    return run


def make(kind: Any, conn_id: str, table: str, path: Path, options: dict[str, Any]) -> Any:
    given = {"task_id": "t", "table": table, "snowflake_conn_id": conn_id, "path": str(path)}
    return kind(**{**given, "offset_format": "file:line", **options})


def drop(service: LocalService, table: str, channel: str) -> None:
    with service.client(table) as client:
        client.drop_channel(channel)


def age(path: Path, channel: str, days: int) -> None:
    """Make the backup say that a channel has not moved for some days."""
    body = json.loads(path.read_text())
    moment = dt.datetime.fromisoformat(body["channels"][channel]["unchanged_since"])
    body["channels"][channel]["unchanged_since"] = (moment - dt.timedelta(days=days)).isoformat()
    path.write_text(json.dumps(body))


class TestBackup:
    def test_holds_the_token_of_every_channel(
        self, local_service: LocalService, backup: Run, table: str, path: Path
    ) -> None:
        commit(local_service, table, "a", ["f:1"])
        commit(local_service, table, "b", ["f:1", "f:2"])

        value = backup()

        assert value["channels"] == {"a": "f:1", "b": "f:2"}
        assert value["expiring"] == {}
        body = json.loads(path.read_text())
        assert (body["format"], body["version"]) == ("airflow-provider-snowpipe offset backup", 1)
        assert body["pipe"] == {"database": "LOCAL", "schema": "PUBLIC", "pipe": f"{table}-STREAMING"}
        assert body["offset_format"] == "file:line"
        assert {name: kept["offset_token"] for name, kept in body["channels"].items()} == value["channels"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [one.name for one in path.parent.iterdir()] == ["offsets.json"]

    @pytest.mark.skipif(AIRFLOW < (3, 2), reason="before Airflow 3.2 a provider has to bring each storage")
    def test_is_written_to_any_storage_that_fsspec_knows(
        self, local_service: LocalService, backup: Run, restore: Run, table: str
    ) -> None:
        commit(local_service, table, "a", ["f:1"])
        address = f"memory:///offsets/{table}.json"

        backup(path=address)
        drop(local_service, table, "a")
        restore(path=address)

        assert committed(local_service, table, "a") == "f:1"

    def test_takes_the_channels_that_are_named(
        self, local_service: LocalService, backup: Run, table: str
    ) -> None:
        commit(local_service, table, "a", ["f:1"])
        commit(local_service, table, "b", ["f:1"])

        assert backup(channels=["b"])["channels"] == {"b": "f:1"}

    @pytest.mark.parametrize("recreated", [False, True], ids=["gone", "made-anew"])
    def test_is_left_alone_when_a_channel_has_lost_its_token(
        self, local_service: LocalService, backup: Run, table: str, path: Path, recreated: bool
    ) -> None:
        commit(local_service, table, "a", ["f:1"])
        backup()
        before = path.read_text()
        drop(local_service, table, "a")
        if recreated:
            with local_service.client(table) as client:
                client.open_channel("a")

        with pytest.raises(AirflowFailException, match=r"SourcePositionError: 1 channel.* 'a' \(token f:1"):
            backup()
        assert path.read_text() == before
        assert backup(on_lost="keep")["channels"] == {"a": "f:1"}

    def test_warns_before_a_channel_expires(
        self,
        local_service: LocalService,
        backup: Run,
        table: str,
        path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        commit(local_service, table, "idle", ["f:1"])
        commit(local_service, table, "busy", ["f:1"])
        backup()
        age(path, "idle", 25)
        age(path, "busy", 25)
        commit(local_service, table, "busy", ["f:2"])

        assert list(backup()["expiring"]) == ["idle"]
        assert "channel 'idle' has not moved since" in capsys.readouterr().out

    def test_of_another_pipe_is_not_replaced(
        self, local_service: LocalService, backup: Run, table: str, path: Path
    ) -> None:
        commit(local_service, table, "a", ["f:1"])
        backup()
        path.write_text(path.read_text().replace(f"{table}-STREAMING", "OTHER-STREAMING"))

        with pytest.raises(AirflowFailException, match=r"of pipe LOCAL\.PUBLIC\.OTHER-STREAMING, not of"):
            backup()

    def test_never_replaces_a_file_that_is_something_else(self, backup: Run, path: Path) -> None:
        path.parent.mkdir()
        path.write_text("precious")

        with pytest.raises(AirflowFailException, match="is no offset backup"):
            backup()
        assert path.read_text() == "precious"

    def test_dry_run_shows_the_tokens_and_writes_nothing(
        self, local_service: LocalService, conn_id: str, table: str, path: Path
    ) -> None:
        commit(local_service, table, "a", ["f:1"])

        lines = make(SnowpipeBackupOffsetsOperator, conn_id, table, path, {}).preview()

        assert lines == [
            f"would write 1 tokens of pipe LOCAL.PUBLIC.{table}-STREAMING to {path}",
            "a: f:1",
        ]
        assert not path.exists()


class TestRestore:
    def test_brings_back_channels_that_are_gone_or_behind(
        self, local_service: LocalService, backup: Run, restore: Run, table: str
    ) -> None:
        for channel in ("same", "gone", "anew"):
            commit(local_service, table, channel, ["f:1", "f:2"])
        backup()
        drop(local_service, table, "gone")
        drop(local_service, table, "anew")
        with local_service.client(table) as client:
            client.open_channel("anew")

        value = restore()

        assert value["channels"] == {
            "anew": {"action": "set", "old": None, "new": "f:2"},
            "gone": {"action": "create", "old": None, "new": "f:2"},
            "same": {"action": "keep", "old": "f:2", "new": "f:2"},
        }
        assert {committed(local_service, table, name) for name in value["channels"]} == {"f:2"}

    def test_one_channel_that_is_ahead_stops_all_of_it(
        self, local_service: LocalService, backup: Run, restore: Run, table: str
    ) -> None:
        commit(local_service, table, "ahead", ["f:1"])
        commit(local_service, table, "gone", ["f:1"])
        backup()
        commit(local_service, table, "ahead", ["f:2"])
        drop(local_service, table, "gone")

        with pytest.raises(AirflowFailException, match=r"'ahead' \(committed f:2, backup f:1\).*twice"):
            restore()
        assert committed(local_service, table, "gone") is None
        assert committed(local_service, table, "ahead") == "f:2"

        restore(allow_older_tokens=True)
        assert committed(local_service, table, "gone") == "f:1"
        assert committed(local_service, table, "ahead") == "f:1"

    def test_tokens_that_cannot_be_compared_are_not_overwritten(
        self, local_service: LocalService, backup: Run, restore: Run, table: str
    ) -> None:
        commit(local_service, table, "a", ["f:1"])
        backup(offset_format=None)
        commit(local_service, table, "a", ["e:2"])

        with pytest.raises(AirflowFailException, match="no offset_format is known"):
            restore(offset_format=None)

    def test_a_writer_at_work_is_respected(
        self, local_service: LocalService, backup: Run, restore: Run, table: str
    ) -> None:
        commit(local_service, table, "a", ["f:5"])
        backup()
        drop(local_service, table, "a")
        with local_service.held_commits():
            append(local_service, table, "a", ["f:1"])

            with pytest.raises(WriterActiveError, match="not committed"):
                restore()
        assert committed(local_service, table, "a") != "f:5"

    def test_channels_are_watched_together_before_any_is_changed(
        self, local_service: LocalService, backup: Run, restore: Run, table: str
    ) -> None:
        for channel in ("a", "busy"):
            commit(local_service, table, channel, ["f:5"])
        backup()
        for channel in ("a", "busy"):
            drop(local_service, table, channel)
            commit(local_service, table, channel, ["f:1"])
        with (
            writer_at_work(local_service, table, "busy"),
            pytest.raises(WriterActiveError, match="busy"),
        ):
            restore(observe_seconds=30)
        assert committed(local_service, table, "a") == "f:1"

    def test_names_a_channel_that_the_backup_does_not_hold(
        self, local_service: LocalService, backup: Run, restore: Run, table: str
    ) -> None:
        commit(local_service, table, "a", ["f:1"])
        backup()

        with pytest.raises(AirflowFailException, match=r"holds no channel 'b': it holds a"):
            restore(channels='["b"]')

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (lambda body: body.update(version=2), "of version 2"),
            (lambda body: body.update(format="x"), "its format is 'x'"),
            (lambda body: body["channels"]["a"].update(offset_token=5), "token 5, which is no text"),
            (lambda body: body.update(taken_at="2026-01-01T00:00:00"), "no time zone"),
            (lambda body: body.pop("channels"), "KeyError"),
            (lambda body: body["pipe"].update(pipe="X"), r"backup of pipe LOCAL\.PUBLIC\.X"),
        ],
        ids=["version", "format", "token", "moment", "channels", "pipe"],
    )
    def test_a_file_that_is_not_right_changes_nothing(
        self,
        local_service: LocalService,
        backup: Run,
        restore: Run,
        table: str,
        path: Path,
        change: Callable[[Any], Any],
        text: str,
    ) -> None:
        commit(local_service, table, "a", ["f:1"])
        backup()
        body = json.loads(path.read_text())
        change(body)
        path.write_text(json.dumps(body))

        with pytest.raises(AirflowFailException, match=text):
            restore()
        assert committed(local_service, table, "a") == "f:1"

    def test_a_file_that_is_not_there_is_said_so(self, restore: Run) -> None:
        with pytest.raises(AirflowFailException, match=r"there is no file .*offsets\.json"):
            restore()

    def test_dry_run_names_each_step(
        self, local_service: LocalService, backup: Run, conn_id: str, table: str, path: Path
    ) -> None:
        commit(local_service, table, "a", ["f:1"])
        backup()
        drop(local_service, table, "a")

        assert make(SnowpipeRestoreOffsetsOperator, conn_id, table, path, {}).preview() == [
            "would create channel 'a': NULL -> f:1"
        ]
        assert committed(local_service, table, "a") is None


def test_paths_and_channels_are_templates() -> None:
    operator = SnowpipeBackupOffsetsOperator(
        task_id="t", table="T", path="/data/{{ x }}.json", channels="{{ x }}"
    )
    operator.render_template_fields({"x": "v"})

    assert (operator.path, operator._names()) == ("/data/v.json", ["v"])


def test_wrong_arguments_are_refused_when_the_dag_is_read() -> None:
    with pytest.raises(ConfigurationError, match="on_lost is 'x'"):
        SnowpipeBackupOffsetsOperator(task_id="t", table="T", path="/p", on_lost="x")
