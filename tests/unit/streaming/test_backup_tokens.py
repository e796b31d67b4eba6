"""Backups of offset tokens: what one holds, what replaces it, and what refuses to be replaced."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offset_backup import (
    CHANNEL_LIFE,
    KeptToken,
    OffsetBackup,
    take_backup,
)
from airflow_provider_snowpipe.streaming.progress import ChannelStatus

PIPE = PipeName("DB", "S", "T-STREAMING")
MONDAY = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
TUESDAY = MONDAY + dt.timedelta(days=1)


def _status(name: str, token: str | None, rows: int = 0) -> ChannelStatus:
    return ChannelStatus(name, "SUCCESS", token, rows_inserted=rows)


def _backup(*statuses: ChannelStatus, previous: OffsetBackup | None = None, **options: Any) -> OffsetBackup:
    options.setdefault("now", MONDAY)
    return take_backup(PIPE, {s.channel: s for s in statuses}, previous, **options)


def test_first_backup_keeps_token_timestamp_and_rows_of_each_channel() -> None:
    backup = _backup(_status("a", "7", 70), _status("b", None), offset_format="integer")

    assert backup == OffsetBackup(
        PIPE, MONDAY, {"a": KeptToken("7", MONDAY, 70), "b": KeptToken(None, MONDAY)}, "integer"
    )


def test_channel_that_does_not_exist_is_not_kept_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    assert _backup(ChannelStatus.missing("a"), _status("b", None)).channels.keys() == {"b"}
    assert [record.getMessage() for record in caplog.records] == [
        f"channel 'a' of pipe {PIPE} does not exist: the backup has no token of it"
    ]


@pytest.mark.parametrize(
    ("now", "since"),
    [
        (_status("a", "7", 70), MONDAY),
        (_status("a", "8", 70), TUESDAY),
        (_status("a", "7", 71), TUESDAY),
    ],
)
def test_life_of_a_channel_counts_from_its_last_change(now: ChannelStatus, since: dt.datetime) -> None:
    backup = _backup(now, previous=_backup(_status("a", "7", 70)), now=TUESDAY)

    assert backup.taken_at == TUESDAY
    assert backup.channels == {"a": KeptToken(now.committed, since, now.rows_inserted)}


@pytest.mark.parametrize("now", [(), (ChannelStatus.missing("a"),), (_status("a", None),)])
def test_lost_token_is_not_replaced_unless_asked(now: tuple[ChannelStatus, ...]) -> None:
    before = _backup(_status("a", "7"), _status("b", "9"))
    statuses = (*now, _status("b", "9"))

    with pytest.raises(SourcePositionError) as caught:
        _backup(*statuses, previous=before, now=TUESDAY)
    kept = _backup(*statuses, previous=before, now=TUESDAY, keep_lost=True)

    assert "'a' (token 7" in str(caught.value)
    assert "'b'" not in str(caught.value)
    assert kept.channels == before.channels


@pytest.mark.parametrize(
    ("token", "rows", "offset_format", "lower"),
    [
        ("9", 90, "integer", True),
        ("9", 110, "integer", True),
        ("11", 90, "integer", False),
        ("10", 90, "integer", False),
        ("9", 90, None, True),
        ("11", 110, None, False),
        ("10", 90, None, False),
        ("a:1", 90, "integer", False),
    ],
)
def test_token_that_is_lower_than_the_one_it_replaces_is_named(
    caplog: pytest.LogCaptureFixture, token: str, rows: int, offset_format: str | None, lower: bool
) -> None:
    before = _backup(_status("a", "10", 100), _status("b", None), offset_format="integer")
    given = {"previous": before, "offset_format": offset_format}
    backup = _backup(_status("a", token, rows), _status("b", "1"), **given)

    assert backup.channels["a"].offset_token == token
    named = [record.getMessage() for record in caplog.records]
    assert [f"'a' of pipe {PIPE} has committed {token}" in text and " 10," in text for text in named] == (
        [True] if lower else []
    )


def test_channel_that_never_had_a_token_may_vanish() -> None:
    assert _backup(previous=_backup(_status("a", None)), now=TUESDAY).channels == {}


def test_backup_of_another_pipe_is_not_replaced() -> None:
    before = OffsetBackup(PipeName("DB", "S", "OTHER"), MONDAY, {})

    with pytest.raises(ConfigurationError, match="OTHER"):
        _backup(_status("a", "7"), previous=before)


def test_many_lost_tokens_are_counted_and_five_are_named() -> None:
    before = _backup(*(_status(f"c{n}", "7") for n in range(7)))

    with pytest.raises(SourcePositionError) as caught:
        _backup(previous=before)

    assert str(caught.value).startswith("7 channel(s)")
    assert [f"'c{n}'" in str(caught.value) for n in range(7)] == [True] * 5 + [False] * 2


def test_only_tokens_expire_and_only_within_the_time_asked_for() -> None:
    backup = _backup(_status("a", "7"), _status("b", None))

    assert dt.timedelta(days=30) == CHANNEL_LIFE
    assert backup.expiring(CHANNEL_LIFE) == {"a": MONDAY + CHANNEL_LIFE}
    assert backup.expiring(CHANNEL_LIFE - dt.timedelta(seconds=1)) == {}


def test_backup_reads_back_as_it_was_written() -> None:
    backup = _backup(_status("b", "7", 70), _status("a", None), offset_format="integer")

    text = backup.to_json()

    assert OffsetBackup.from_json(text, origin="x") == backup
    assert OffsetBackup.from_json(text.encode(), origin="x") == backup
    assert list(json.loads(text)["channels"]) == ["a", "b"]


def test_form_of_the_file_stays() -> None:
    assert json.loads(_backup(_status("a", "7", 70), offset_format="integer").to_json()) == {
        "format": "airflow-provider-snowpipe offset backup",
        "version": 1,
        "pipe": {"database": "DB", "schema": "S", "pipe": "T-STREAMING"},
        "taken_at": "2026-03-02T00:00:00+00:00",
        "offset_format": "integer",
        "channels": {
            "a": {"offset_token": "7", "unchanged_since": "2026-03-02T00:00:00+00:00", "rows_inserted": 70}
        },
    }


def _changed(path: list[str], value: Any) -> str:
    body = json.loads(_backup(_status("a", "7", 70)).to_json())
    within = body
    for key in path[:-1]:
        within = within[key]
    within.pop(path[-1]) if value is None else within.update({path[-1]: value})
    return json.dumps(body)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        _changed(["format"], "other"),
        _changed(["pipe"], {"database": "DB"}),
        _changed(["taken_at"], "2026-03-02T00:00:00"),
        _changed(["channels"], []),
        _changed(["channels", "a", "offset_token"], 7),
        _changed(["channels", "a", "unchanged_since"], "2026-03-02T00:00:00"),
        _changed(["channels", "a", "unchanged_since"], None),
        _changed(["channels", "a", "rows_inserted"], None),
        _changed(["offset_format"], None),
    ],
)
def test_text_that_is_no_backup_names_where_it_came_from(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"x\.json is no offset backup"):
        OffsetBackup.from_json(text, origin="x.json")


def test_backup_with_a_token_that_is_no_text_names_its_channel() -> None:
    with pytest.raises(ConfigurationError, match="channel 'a' has the token 7"):
        OffsetBackup.from_json(_changed(["channels", "a", "offset_token"], 7), origin="x.json")


def test_later_version_names_both() -> None:
    with pytest.raises(ConfigurationError, match=r"x.json .*version 2.*version 1"):
        OffsetBackup.from_json(_changed(["version"], 2), origin="x.json")
