"""Backing up and restoring offset tokens; what a backup holds and allows is ``streaming``'s to prove."""

import json
import stat

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_snowpipe.operators.offsets import (
    SnowpipeBackupOffsetsOperator,
    SnowpipeRestoreOffsetsOperator,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, WriterActiveError
from tests.airflow_version import AIRFLOW
from tests.local_connection import context

Backup, Restore = SnowpipeBackupOffsetsOperator, SnowpipeRestoreOffsetsOperator


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kept" / "offsets.json"


@pytest.fixture
def task(make, path):
    return lambda kind, **options: make(kind, **{"path": str(path), "offset_format": "file:line", **options})


@pytest.fixture
def backup(task):
    return lambda **options: task(Backup, **options).execute(context())


@pytest.fixture
def restore(task):
    return lambda **options: task(Restore, **{"observe_seconds": 0.1, **options}).execute(context())


class TestBackup:
    def test_holds_the_token_of_every_channel(self, snowpipe, backup, path):
        snowpipe.channel("a", committed="f:1")
        snowpipe.channel("b", committed="f:2")

        value = backup()

        assert (value["channels"], value["expiring"]) == ({"a": "f:1", "b": "f:2"}, {})
        body = json.loads(path.read_text())
        assert body["pipe"] == {"database": "DB", "schema": "S", "pipe": "T-STREAMING"}
        assert body["offset_format"] == "file:line"
        assert {name: kept["offset_token"] for name, kept in body["channels"].items()} == value["channels"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [one.name for one in path.parent.iterdir()] == ["offsets.json"]
        assert backup(channels='["b"]', path=f"{path}.b")["channels"] == {"b": "f:2"}

    @pytest.mark.skipif(AIRFLOW < (3, 2), reason="before Airflow 3.2 a provider has to bring each storage")
    def test_is_written_to_any_storage_that_fsspec_knows(self, snowpipe, backup, restore):
        snowpipe.channel("a", committed="f:1")
        backup(path="memory:///offsets.json")
        snowpipe.channels.clear()
        restore(path="memory:///offsets.json")

        assert snowpipe.channels["a"].committed == "f:1"

    @pytest.mark.parametrize("recreated", [False, True], ids=["gone", "recreated"])
    def test_is_left_alone_when_a_channel_has_lost_its_token(self, snowpipe, backup, path, recreated):
        snowpipe.channel("a", committed="f:1")
        backup()
        before = path.read_text()
        snowpipe.channels.clear()
        if recreated:
            snowpipe.channel("a")

        with pytest.raises(AirflowFailException, match="SourcePositionError"):
            backup()
        assert path.read_text() == before
        assert backup(on_lost="keep")["channels"] == {"a": "f:1"}


class TestRestore:
    @pytest.fixture(autouse=True)
    def kept(self, snowpipe, backup):
        for channel in ("same", "gone", "behind"):
            snowpipe.channel(channel, committed="f:2")
        backup()

    def test_brings_back_channels_that_are_gone_or_behind(self, snowpipe, restore):
        del snowpipe.channels["gone"]
        snowpipe.channels["behind"].committed = None

        assert restore()["channels"] == {
            "behind": {"action": "set", "old": None, "new": "f:2"},
            "gone": {"action": "create", "old": None, "new": "f:2"},
            "same": {"action": "keep", "old": "f:2", "new": "f:2"},
        }
        assert {one.committed for one in snowpipe.channels.values()} == {"f:2"}

    def test_one_channel_that_is_ahead_stops_all_of_it(self, snowpipe, restore):
        snowpipe.channels["same"].committed = "f:3"
        del snowpipe.channels["gone"]

        with pytest.raises(AirflowFailException, match="'same'"):
            restore()
        assert {name: one.committed for name, one in snowpipe.channels.items()} == {
            "same": "f:3",
            "behind": "f:2",
        }
        restore(allow_older_tokens=True)
        assert {one.committed for one in snowpipe.channels.values()} == {"f:2"}

    def test_a_channel_that_is_written_to_meanwhile_stops_all_of_it(self, snowpipe, restore):
        snowpipe.channels["behind"].committed = None
        del snowpipe.channels["gone"]

        def write():
            snowpipe.channels["behind"].rows_inserted += 1

        snowpipe.fault(after="status", do=write, skip=1)
        with pytest.raises(WriterActiveError, match="'behind' is being written to"):
            restore()
        assert {name: one.committed for name, one in snowpipe.channels.items()} == {
            "same": "f:2",
            "behind": None,
        }
        assert restore(allow_active_writer=True)["channels"]["behind"]["new"] == "f:2"

    @pytest.mark.parametrize("part", ["database", "schema", "pipe"])
    def test_a_file_of_another_pipe_is_refused(self, restore, path, part):
        body = json.loads(path.read_text())
        body["pipe"][part] = "X"
        path.write_text(json.dumps(body))

        with pytest.raises(AirflowFailException, match=r"a backup of pipe .*X.*, not of DB\.S\.T-STREAMING"):
            restore()


def test_dry_runs_show_each_step_and_change_nothing(snowpipe, task, backup, path):
    snowpipe.channel("a", committed="f:1")
    assert task(Backup).preview() == [f"would write 1 tokens of pipe DB.S.T-STREAMING to {path}", "a: f:1"]
    assert not path.exists()
    backup()
    snowpipe.channels.clear()

    assert task(Restore).preview() == ["would create channel 'a': NULL -> f:1"]
    assert snowpipe.channels == {}


def test_paths_and_channels_are_templates():
    operator = Backup(task_id="t", table="T", path="/data/{{ x }}.json", channels="{{ x }}")
    operator.render_template_fields({"x": "v"})

    assert (operator.path, operator._names()) == ("/data/v.json", ["v"])


def test_wrong_arguments_are_refused_when_the_dag_is_read():
    with pytest.raises(ConfigurationError, match="on_lost"):
        Backup(task_id="t", table="T", path="/p", on_lost="x")
    with pytest.raises(ConfigurationError, match="observe_seconds"):
        Restore(task_id="t", table="T", path="/p", observe_seconds=-1)
