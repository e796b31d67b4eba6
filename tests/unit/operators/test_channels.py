"""Open, drop and reset of a channel; ``streaming/test_compare_and_set.py`` has the races of a reset."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_snowpipe.operators.channels import (
    SnowpipeDropChannelOperator,
    SnowpipeOpenChannelOperator,
    SnowpipeResetOffsetOperator,
)
from airflow_provider_snowpipe.streaming.errors import (
    ChannelFencedError,
    ConfigurationError,
    UncommittedRowsError,
    WriterActiveError,
)
from tests.local_connection import context
from tests.unit.operators.conftest import send

Open, Drop, Reset = SnowpipeOpenChannelOperator, SnowpipeDropChannelOperator, SnowpipeResetOffsetOperator
ARGUMENTS: dict[Any, dict[str, Any]] = {
    Open: {},
    Drop: {},
    Reset: {"offset_token": "a:1", "offset_format": "file:line", "observe_seconds": 0.2},
}


@pytest.fixture
def task(make):
    return lambda kind, **options: make(kind, **{"channel": "c", **ARGUMENTS[kind], **options})


@pytest.fixture
def run(task):
    return lambda kind, **options: task(kind, **options).execute(context())


class TestOpen:
    def test_a_new_channel_starts_with_the_token(self, snowpipe, run):
        assert run(Open, offset_token="a:7") == {
            "channel": "c",
            "pipe": "DB.S.T-STREAMING",
            "action": "create",
            "committed": "a:7",
        }
        assert snowpipe.channels["c"].committed == "a:7"

    def test_a_token_that_is_no_text_is_refused_but_digits_that_a_template_made_a_number(self, snowpipe, run):
        snowpipe.channel("d")
        assert run(Open, offset_token=42)["committed"] == "42"
        for kind in (Open, Reset):
            for token in (1.5, True, ["a:1"]):
                with pytest.raises(AirflowFailException, match="offset_token"):
                    run(kind, offset_token=token, channel="d")

    @pytest.mark.parametrize("if_exists", ["skip", "fence"])
    def test_an_existing_channel_keeps_its_token_and_only_a_fence_shuts_its_writer_out(
        self, snowpipe, run, if_exists
    ):
        append = send(snowpipe, "c", "a:1")

        value = run(Open, offset_token="a:0", if_exists=if_exists)

        assert (value["action"], value["committed"]) == (if_exists, "a:1")
        if if_exists == "skip":
            append("a:2")
        else:
            with pytest.raises(ChannelFencedError):
                append("a:2")

    def test_a_channel_without_the_token_is_refused(self, snowpipe, run):
        snowpipe.channel("c")

        with pytest.raises(AirflowFailException, match="ConfigurationError"):
            run(Open, offset_token="a:7")


class TestDrop:
    def test_waits_for_the_commit_and_leaves_a_channel_that_does_not_commit(self, snowpipe, run):
        snowpipe.holds_commits = True
        send(snowpipe, "c", "a:1", "a:2")
        with pytest.raises(UncommittedRowsError):
            run(Drop, commit_timeout=30)
        channel = snowpipe.channels["c"]
        snowpipe.fault(before="open", skip=2, do=snowpipe.commit)

        value = run(Drop)

        assert (value["existed"], value["committed"], value["discarded"]) == (True, "a:2", False)
        assert (len(channel.rows), snowpipe.channels) == (2, {})

    def test_force_drops_at_once_and_reports_what_is_lost(self, snowpipe, run, capsys):
        snowpipe.holds_commits = True
        send(snowpipe, "c", "a:1")

        assert run(Drop, force=True)["discarded"] is True
        assert "offset token NULL; uncommitted rows discarded: yes" in capsys.readouterr().out
        assert snowpipe.channels == {}

    def test_a_channel_that_is_gone_is_success(self, run):
        assert run(Drop)["existed"] is False


class TestReset:
    def test_sets_the_token_shows_old_and_new_and_shuts_an_idle_writer_out(self, snowpipe, run, capsys):
        append = send(snowpipe, "c", "a:1", "a:3")

        value = run(Reset)

        assert (value["old"], value["new"], snowpipe.channels["c"].committed) == ("a:3", "a:1", "a:1")
        printed = capsys.readouterr().out
        assert "a:3 -> a:1" in printed
        assert "AGAIN" in printed
        with pytest.raises(ChannelFencedError):
            append("a:4")

    def test_refuses_uncommitted_rows_unless_requested(self, snowpipe, run):
        snowpipe.holds_commits = True
        send(snowpipe, "c", "a:5")

        with pytest.raises(WriterActiveError):
            run(Reset)
        assert run(Reset, allow_active_writer=True)["new"] == "a:1"
        assert snowpipe.channels["c"].rows == []


def test_dry_run_reports_what_would_happen_and_does_nothing(snowpipe, task):
    send(snowpipe, "c", "a:1")
    del snowpipe.calls[:]
    for kind, options, words in (
        (Open, {"channel": "x", "offset_token": "a:7"}, "would create channel 'x'"),
        (Open, {}, "would skip channel 'c'"),
        (Drop, {}, "its offset token a:1 would be lost (1 rows stay"),
        (Drop, {"force": True}, "at once"),
        (Drop, {"channel": "x"}, "does not exist"),
        (Reset, {"offset_token": "a:4"}, "a:1 -> a:4 (forward"),
        (Reset, {"offset_format": None, "offset_token": "any"}, "a:1 -> any"),
        (Reset, {"channel": "x"}, "would fail"),
    ):
        operator = task(kind, **options)
        operator.dry_run()
        (line,) = operator.preview()
        assert words in line
    assert not snowpipe.did("open", "append", "drop")


def test_all_names_are_templates():
    operator = Reset(task_id="t", channel="{{ x }}", offset_token="{{ x }}:1", table="{{ x }}")
    operator.render_template_fields({"x": "v"})

    assert (operator.channel, operator.offset_token, operator.table) == ("v", "v:1", "v")


def test_wrong_arguments_are_refused_when_the_dag_is_read():
    for options in ({"if_exists": "x"}, {"pipe": "P"}, {"uncommitted_timeout": -1}):
        with pytest.raises(ConfigurationError):
            Open(task_id="t", channel="c", table="T", **options)
    for seconds in (-1, float("nan"), "10"):
        with pytest.raises(ConfigurationError, match="observe_seconds"):
            Reset(task_id="t", channel="c", table="T", offset_token="a:1", observe_seconds=seconds)
