"""Backups of offset tokens: what one holds, what replaces it, and what a restore does to each channel."""

import datetime as dt
import json

import pytest

from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    OffsetTokenError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offset_backup import (
    CHANNEL_LIFE,
    KeptToken,
    OffsetBackup,
    RestoreAction,
    RestoreStep,
    chosen,
    plan_restore,
    take_backup,
)
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset, UnitOffset
from airflow_provider_snowpipe.streaming.progress import ChannelStatus
from tests.refusals import refused

PIPE = PipeName("DB", "S", "T-STREAMING")
MONDAY = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
TUESDAY = MONDAY + dt.timedelta(days=1)


def _status(name, token, rows=0):
    return ChannelStatus(name, "SUCCESS", token, rows_inserted=rows)


def _backup(*statuses, previous=None, **options):
    options.setdefault("now", MONDAY)
    return take_backup(PIPE, {s.channel: s for s in statuses}, previous, **options)


class TestTake:
    def test_first_backup_keeps_token_timestamp_and_rows_of_each_channel(self, caplog):
        backup = _backup(
            _status("a", "7", 70), _status("b", None), ChannelStatus.missing("c"), offset_format="integer"
        )

        kept = {"a": KeptToken("7", MONDAY, 70), "b": KeptToken(None, MONDAY)}
        assert backup == OffsetBackup(PIPE, MONDAY, kept, "integer")
        assert [record.getMessage() for record in caplog.records] == [
            f"channel 'c' of pipe {PIPE} does not exist: the backup has no token of it"
        ]

    def test_life_of_a_channel_counts_from_its_last_change(self):
        for now, since in {
            _status("a", "7", 70): MONDAY, _status("a", "8", 70): TUESDAY, _status("a", "7", 71): TUESDAY
        }.items():  # fmt: skip
            backup = _backup(now, previous=_backup(_status("a", "7", 70)), now=TUESDAY)
            assert backup.taken_at == TUESDAY
            assert backup.channels == {"a": KeptToken(now.committed, since, now.rows_inserted)}

    def test_lost_token_is_not_replaced_unless_asked(self):
        before = _backup(_status("a", "7"), _status("b", "9"))
        for now in [(), (ChannelStatus.missing("a"),), (_status("a", None),)]:
            statuses = (*now, _status("b", "9"))
            with pytest.raises(SourcePositionError, match=r"'a' \(token 7") as caught:
                _backup(*statuses, previous=before, now=TUESDAY)
            assert "'b'" not in str(caught.value)
            kept = _backup(*statuses, previous=before, now=TUESDAY, keep_lost=True)
            assert kept.channels == before.channels
        assert _backup(previous=_backup(_status("a", None)), now=TUESDAY).channels == {}

    def test_many_lost_tokens_are_counted_and_five_are_named(self):
        before = _backup(*(_status(f"c{n}", "7") for n in range(7)))

        with pytest.raises(SourcePositionError) as caught:
            _backup(previous=before)

        assert str(caught.value).startswith("7 channels")
        assert [f"'c{n}'" in str(caught.value) for n in range(7)] == [True] * 5 + [False] * 2

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
        self, caplog, token, rows, offset_format, lower
    ):
        before = _backup(_status("a", "10", 100), _status("b", None), offset_format="integer")
        given = {"previous": before, "offset_format": offset_format}
        backup = _backup(_status("a", token, rows), _status("b", "1"), **given)

        assert backup.channels["a"].offset_token == token
        named = [record.getMessage() for record in caplog.records]
        assert [f"'a' of pipe {PIPE} has committed {token}" in text and " 10," in text for text in named] == (
            [True] if lower else []
        )

    def test_backup_of_another_pipe_is_not_replaced(self):
        with pytest.raises(ConfigurationError, match="OTHER"):
            _backup(_status("a", "7"), previous=OffsetBackup(PipeName("DB", "S", "OTHER"), MONDAY, {}))

    def test_only_tokens_expire_and_only_within_the_time_asked_for(self):
        backup = _backup(_status("a", "7"), _status("b", None))

        assert dt.timedelta(days=30) == CHANNEL_LIFE
        assert backup.expiring(CHANNEL_LIFE) == {"a": MONDAY + CHANNEL_LIFE}
        assert backup.expiring(CHANNEL_LIFE - dt.timedelta(seconds=1)) == {}


def _changed(path, value):
    body = json.loads(_backup(_status("a", "7", 70)).to_json())
    within = body
    for key in path[:-1]:
        within = within[key]
    within.pop(path[-1]) if value is None else within.update({path[-1]: value})
    return json.dumps(body)


class TestFile:
    def test_reads_back_as_it_was_written(self):
        backup = _backup(_status("b", "7", 70), _status("a", None), offset_format="integer")

        text = backup.to_json()

        assert OffsetBackup.from_json(text, origin="x") == backup
        assert OffsetBackup.from_json(text.encode(), origin="x") == backup
        day = "2026-03-02T00:00:00+00:00"
        assert list(json.loads(text)["channels"]) == ["a", "b"]
        assert json.loads(text) == {
            "format": "airflow-provider-snowpipe offset backup",
            "version": 1,
            "pipe": {"database": "DB", "schema": "S", "pipe": "T-STREAMING"},
            "taken_at": day,
            "offset_format": "integer",
            "channels": {
                "a": {"offset_token": None, "unchanged_since": day, "rows_inserted": 0},
                "b": {"offset_token": "7", "unchanged_since": day, "rows_inserted": 70},
            },
        }

    def test_text_that_is_no_backup_names_where_it_came_from(self):
        wrong = [
            *("", "[]", "{}"),
            _changed(["format"], "other"),
            _changed(["pipe"], {"database": "DB"}),
            _changed(["taken_at"], "2026-03-02T00:00:00"),
            _changed(["channels"], []),
            _changed(["channels", "a", "offset_token"], 7),
            _changed(["channels", "a", "unchanged_since"], "2026-03-02T00:00:00"),
            _changed(["channels", "a", "unchanged_since"], None),
        ]

        def read(text):
            OffsetBackup.from_json(text, origin="x.json")

        refused(ConfigurationError, read, wrong, "x.json is no offset backup")
        refused(ConfigurationError, read, wrong[5 + 2 : 8], "channel 'a' has the token 7")
        refused(ConfigurationError, read, [_changed(["version"], 2)], "x.json", "version 2", "version 1")


def _kept(**tokens):
    return OffsetBackup(PIPE, MONDAY, {name: KeptToken(token, MONDAY) for name, token in tokens.items()})


def _plan(kept, committed, offset=IntegerOffset, **options):
    statuses = {name: _status(name, token) for name, token in committed.items()}
    return plan_restore(_kept(**kept), statuses, offset, **options)


class TestRestorePlan:
    def test_channel_gets_the_backups_token_unless_it_has_it(self):
        for committed, action in {
            None: RestoreAction.SET, "9": RestoreAction.SET, "10": RestoreAction.KEEP
        }.items():  # fmt: skip
            steps = plan_restore(_kept(a="10"), {"a": _status("a", committed, 3)}, IntegerOffset)
            assert steps == [RestoreStep("a", action, committed, "10", rows_inserted=3)]

    def test_channel_that_is_gone_is_created_with_its_token(self):
        steps = plan_restore(_kept(a="10"), {"a": ChannelStatus.missing("a")}, IntegerOffset)

        assert steps == [RestoreStep("a", RestoreAction.CREATE, None, "10")]
        assert str(steps[0]) == "create channel 'a': NULL -> 10"

    def test_channels_without_a_token_and_channels_not_asked_for_are_left(self):
        steps = _plan({"a": "10", "b": None, "c": "10"}, {"a": "9", "b": "9"})

        assert [one.channel for one in steps] == ["a"]
        backup = _kept(a="1", b="2")
        assert [chosen(backup, names) for names in (None, ["b"], [])] == [["a", "b"], ["b"], []]
        refused(ConfigurationError, lambda names: chosen(backup, names), [["a", "x"]], "'x'", "a, b")

    def test_channel_that_is_ahead_stops_the_whole_restore_unless_that_is_allowed(self):
        with pytest.raises(SourcePositionError, match="1 channel") as caught:
            _plan({"a": "10", "b": "10"}, {"a": "9", "b": "11"})
        assert "'b' (committed 11, backup 10)" in str(caught.value)
        assert "offset_format" not in str(caught.value)

        names = [f"c{n}" for n in range(7)]
        with pytest.raises(SourcePositionError, match="7 channel") as caught:
            _plan(dict.fromkeys(names, "1"), dict.fromkeys(names, "2"))
        assert [f"{name!r}" in str(caught.value) for name in names] == [True] * 5 + [False] * 2

        steps = _plan({"a": "10"}, {"a": "11"}, allow_older_tokens=True)
        assert steps == [RestoreStep("a", RestoreAction.SET, "11", "10")]

    def test_tokens_of_no_known_format_may_only_be_equal(self):
        assert _plan({"a": "10", "b": "10"}, {"a": "10", "b": None}, None) == [
            RestoreStep("a", RestoreAction.KEEP, "10", "10"),
            RestoreStep("b", RestoreAction.SET, None, "10"),
        ]
        with pytest.raises(SourcePositionError, match="offset_format"):
            _plan({"a": "10"}, {"a": "9"}, None)

    def test_tokens_are_compared_in_their_format(self):
        for committed, kept in [("x", "10"), ("10", "x")]:
            with pytest.raises(OffsetTokenError, match="'a'"):
                _plan({"a": kept}, {"a": committed})
        token = "1/a.log:7"  # the same position in another spelling is not ahead
        steps = _plan({"a": token}, {"a": "1/b.log:7"}, UnitOffset)
        assert steps == [RestoreStep("a", RestoreAction.SET, "1/b.log:7", token)]
