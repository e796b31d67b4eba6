"""What a restore does to each channel, decided before anything is done to any."""

from __future__ import annotations

import datetime as dt

import pytest

from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    OffsetTokenError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offset_backup import (
    KeptToken,
    OffsetBackup,
    RestoreAction,
    RestoreStep,
    chosen,
    plan_restore,
)
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset, VerifiedFileLineOffset
from airflow_provider_snowpipe.streaming.progress import ChannelStatus

NOW = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)


def _backup(**tokens: str | None) -> OffsetBackup:
    channels = {name: KeptToken(token, NOW) for name, token in tokens.items()}
    return OffsetBackup(PipeName("DB", "S", "T-STREAMING"), NOW, channels)


def _statuses(**tokens: str | None) -> dict[str, ChannelStatus]:
    return {name: ChannelStatus(name, "SUCCESS", token) for name, token in tokens.items()}


@pytest.mark.parametrize(
    ("committed", "action"),
    [(None, RestoreAction.SET), ("9", RestoreAction.SET), ("10", RestoreAction.KEEP)],
)
def test_channel_gets_the_backups_token_unless_it_has_it(
    committed: str | None, action: RestoreAction
) -> None:
    status = ChannelStatus("a", "SUCCESS", committed, rows_inserted=3)

    steps = plan_restore(_backup(a="10"), {"a": status}, IntegerOffset)

    assert steps == [RestoreStep("a", action, committed, "10", rows_inserted=3)]


def test_channel_that_is_gone_is_created_with_its_token() -> None:
    steps = plan_restore(_backup(a="10"), {"a": ChannelStatus.missing("a")}, IntegerOffset)

    assert steps == [RestoreStep("a", RestoreAction.CREATE, None, "10")]
    assert str(steps[0]) == "create channel 'a': NULL -> 10"


def test_channels_without_a_token_and_channels_not_asked_for_are_left() -> None:
    backup = _backup(a="10", b=None, c="10")

    assert [s.channel for s in plan_restore(backup, _statuses(a="9", b="9"), IntegerOffset)] == ["a"]


def test_channel_that_is_ahead_stops_the_whole_restore() -> None:
    with pytest.raises(SourcePositionError) as caught:
        plan_restore(_backup(a="10", b="10"), _statuses(a="9", b="11"), IntegerOffset)

    assert "1 channel(s)" in str(caught.value)
    assert "'b' (committed 11, backup 10)" in str(caught.value)
    assert "offset_format" not in str(caught.value)


def test_channel_that_is_ahead_is_set_back_when_that_is_allowed() -> None:
    steps = plan_restore(_backup(a="10"), _statuses(a="11"), IntegerOffset, allow_older_tokens=True)

    assert steps == [RestoreStep("a", RestoreAction.SET, "11", "10")]


def test_tokens_of_no_known_format_may_only_be_equal() -> None:
    assert plan_restore(_backup(a="10", b="10"), _statuses(a="10", b=None), None) == [
        RestoreStep("a", RestoreAction.KEEP, "10", "10"),
        RestoreStep("b", RestoreAction.SET, None, "10"),
    ]
    with pytest.raises(SourcePositionError, match="offset_format"):
        plan_restore(_backup(a="10"), _statuses(a="9"), None)


@pytest.mark.parametrize(("committed", "kept"), [("x", "10"), ("10", "x")])
def test_token_of_another_format_names_its_channel(committed: str, kept: str) -> None:
    with pytest.raises(OffsetTokenError, match="'a'"):
        plan_restore(_backup(a=kept), _statuses(a=committed), IntegerOffset)


def test_five_of_the_channels_that_are_ahead_are_named() -> None:
    names = [f"c{n}" for n in range(7)]

    with pytest.raises(SourcePositionError) as caught:
        plan_restore(
            _backup(**dict.fromkeys(names, "1")), _statuses(**dict.fromkeys(names, "2")), IntegerOffset
        )

    assert "7 channel(s)" in str(caught.value)
    assert [f"{name!r}" in str(caught.value) for name in names] == [True] * 5 + [False] * 2


def test_all_channels_of_a_backup_are_restored_unless_some_are_named() -> None:
    backup = _backup(a="1", b="2")

    assert chosen(backup, None) == ["a", "b"]
    assert chosen(backup, ["b"]) == ["b"]
    assert chosen(backup, []) == []
    with pytest.raises(ConfigurationError, match=r"'x'.*a, b"):
        chosen(backup, ["a", "x"])


def test_same_position_in_another_spelling_is_not_ahead() -> None:
    token = "a.log@9f3a1200c4d5e6f7:7"

    steps = plan_restore(_backup(a=token), _statuses(a="a.log:7"), VerifiedFileLineOffset)

    assert steps == [RestoreStep("a", RestoreAction.SET, "a.log:7", token)]
