"""Operators of channels and tokens; ``streaming`` has the rules of backups, life cycles and resets."""

import json
import stat
from dataclasses import replace
from functools import partial

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.operators.channels import (
    SnowpipeDropChannelOperator,
    SnowpipeOpenChannelOperator,
    SnowpipeResetOffsetOperator,
)
from airflow_provider_snowpipe.operators.offsets import (
    SnowpipeBackupOffsetsOperator,
    SnowpipeRestoreOffsetsOperator,
)
from airflow_provider_snowpipe.streaming import errors
from tests.airflow_version import AIRFLOW
from tests.local_connection import context
from tests.unit.operators.conftest import send

Backup, Restore = SnowpipeBackupOffsetsOperator, SnowpipeRestoreOffsetsOperator
Open, Drop, Reset = SnowpipeOpenChannelOperator, SnowpipeDropChannelOperator, SnowpipeResetOffsetOperator
PIPE = {"pipe": "DB.S.T-STREAMING"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kept" / "offsets.json"


@pytest.fixture
def task(make, path):
    reset = {"offset_token": "a:1", "offset_format": "file:line", "observe_seconds": 0.2}
    of_file = {"path": str(path), "offset_format": "file:line"}
    defaults = {Reset: reset, Backup: of_file, Restore: {**of_file, "observe_seconds": 0.1}}

    def made(kind, **options):
        channel = {"channel": "c"} if kind in (Open, Drop, Reset) else {}
        return make(kind, **{**channel, **defaults.get(kind, {}), **options})

    return made


@pytest.fixture
def run(task):
    return lambda kind, **options: task(kind, **options).execute(context())


@pytest.fixture
def backup(run):
    return partial(run, Backup)


@pytest.fixture
def restore(run):
    return partial(run, Restore)


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

    def test_is_left_alone_when_a_channel_has_lost_its_token(self, snowpipe, backup, path):
        snowpipe.channel("a", committed="f:1")
        snowpipe.channel("b", committed="f:2")
        backup()
        before = path.read_text()
        snowpipe.channels["b"].committed = None
        with pytest.raises(AirflowFailException, match="SourcePositionError"):
            backup()
        assert path.read_text() == before
        assert backup(on_lost="keep")["channels"] == {"a": "f:1", "b": "f:2"}


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
        snowpipe.channels["same"].committed = "f:3"
        with pytest.raises(AirflowFailException, match="'same'"):
            restore()
        writes = partial(setattr, snowpipe.channels["same"], "rows_inserted", 9)
        snowpipe.fault(after="status", do=writes, skip=1)
        with pytest.raises(errors.WriterActiveError, match="'same'"):
            restore(allow_older_tokens=True)
        snowpipe.holds_commits = True
        send(snowpipe, "same", "f:4")
        restore(allow_older_tokens=True, allow_active_writer=True)
        assert snowpipe.channels["same"].committed == "f:2"


def test_an_open_creates_or_keeps_a_channel_and_only_a_fence_stops_its_writer(snowpipe, run):
    value = run(Open, channel="new", offset_token="a:7")
    assert value == {**PIPE, "channel": "new", "action": "create", "committed": "a:7"}
    append = send(snowpipe, "c", "a:1")
    assert run(Open, offset_token="a:0", if_exists="skip")["committed"] == "a:1"
    append("a:2")
    assert run(Open, offset_token="a:0", if_exists="fence")["committed"] == "a:2"
    with pytest.raises(errors.ChannelFencedError):
        append("a:3")


def test_a_token_that_is_no_text_is_refused_but_digits_that_a_template_made_a_number(snowpipe, run):
    assert run(Open, offset_token=42)["committed"] == "42"
    for kind in (Open, Reset):
        for token in (1.5, True, ["a:1"]):
            with pytest.raises(AirflowFailException, match="offset_token"):
                run(kind, offset_token=token)


def test_a_drop_reports_what_is_lost(snowpipe, run, capsys):
    send(snowpipe, "c", "a:1", "a:2")
    value = run(Drop)
    assert value == {**PIPE, "channel": "c", "existed": True, "committed": "a:2", "discarded": False}
    snowpipe.holds_commits = True
    send(snowpipe, "c", "a:1", "a:3")
    with pytest.raises(errors.UncommittedRowsError):
        run(Drop, commit_timeout=30)
    assert run(Drop, force=True)["discarded"] is True
    assert "offset token NULL; uncommitted rows discarded: yes" in capsys.readouterr().out
    assert run(Drop)["existed"] is False


def test_a_reset_shows_old_and_new_token_and_discards_rows_only_when_requested(
    snowpipe, run, capsys, monkeypatch
):
    append = send(snowpipe, "c", "a:1", "a:3")
    value = run(Reset)
    assert (value, snowpipe.channels["c"].committed) == (
        {**PIPE, "channel": "c", "old": "a:3", "new": "a:1"},
        "a:1",
    )
    assert "a:3 -> a:1" in (printed := capsys.readouterr().out)
    assert "AGAIN" in printed
    with pytest.raises(errors.ChannelFencedError):
        append("a:4")

    snowpipe.holds_commits = True
    send(snowpipe, "c", "a:5")
    with pytest.raises(errors.WriterActiveError):
        run(Reset)
    assert run(Reset, allow_active_writer=True)["new"] == "a:1"

    (listed,), openings = snowpipe.listed(), iter(range(2))
    other = replace(listed, name="b", client_sequencer=0)
    monkeypatch.setattr(
        SnowpipeHook, "list_channels", lambda _: [other, replace(listed, client_sequencer=next(openings))]
    )
    with pytest.raises(errors.WriterActiveError, match="openings"):
        run(Reset)


def test_dry_run_reports_what_would_happen_and_does_nothing(snowpipe, task):
    send(snowpipe, "c", "a:1")
    del snowpipe.calls[:]
    for kind, options, words in (
        (Open, {"channel": "x", "offset_token": "a:7"}, "would create channel 'x'"),
        (Open, {"offset_token": "a:7"}, "would skip channel 'c' of pipe DB.S.T-STREAMING, token a:1"),
        (Drop, {}, "its offset token a:1 would be lost (1 rows stay"),
        (Drop, {"channel": "x"}, "does not exist"),
        (Reset, {"offset_token": "a:4"}, "a:1 -> a:4 (forward"),
    ):
        operator = task(kind, **options)
        operator.dry_run()
        (line,) = operator.preview()
        assert words in line
    assert not snowpipe.did("open", "append", "drop")
