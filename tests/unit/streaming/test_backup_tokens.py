"""Backups of offset tokens: what one holds, what replaces it, and what a restore does to each channel."""

import datetime as dt
import json

import pytest

from airflow_provider_snowpipe.streaming import errors
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


def _backup(*statuses, previous=None, now=MONDAY, **options):
    return take_backup(PIPE, {s.channel: s for s in statuses}, previous, now=now, **options)


class TestTake:
    def test_first_backup_keeps_token_timestamp_and_rows_of_each_channel(self, caplog):
        found = (_status("a", "7", 70), _status("b", None), ChannelStatus.missing("c"))
        backup = _backup(*found, offset_format="integer")
        kept = {"a": KeptToken("7", MONDAY, 70), "b": KeptToken(None, MONDAY)}
        assert backup == OffsetBackup(PIPE, MONDAY, kept, "integer")
        missing = f"channel 'c' of pipe {PIPE} does not exist: the backup has no token of it"
        assert [record.getMessage() for record in caplog.records] == [missing]

    def test_life_of_a_channel_counts_from_its_last_change_and_only_tokens_expire(self):
        before = _backup(_status("a", "7", 70), _status("b", None))
        for token, rows, since in [("7", 70, MONDAY), ("8", 70, TUESDAY), ("7", 71, TUESDAY)]:
            backup = _backup(_status("a", token, rows), previous=before, now=TUESDAY)
            assert (backup.taken_at, backup.channels["a"]) == (TUESDAY, KeptToken(token, since, rows))
        assert dt.timedelta(days=30) == CHANNEL_LIFE
        assert before.expiring(CHANNEL_LIFE) == {"a": MONDAY + CHANNEL_LIFE}
        assert before.expiring(CHANNEL_LIFE - dt.timedelta(seconds=1)) == {}

    def test_lost_token_is_not_replaced_unless_asked(self):
        before = _backup(_status("a", "7"), _status("b", "9"))
        for now in [(), (ChannelStatus.missing("a"),), (_status("a", None),)]:
            statuses = (*now, _status("b", "9"))
            with pytest.raises(errors.SourcePositionError, match=r"'a' \(token 7") as caught:
                _backup(*statuses, previous=before, now=TUESDAY)
            assert "'b'" not in str(caught.value)
            kept = _backup(*statuses, previous=before, now=TUESDAY, keep_lost=True)
            assert kept.channels == before.channels
        assert _backup(previous=_backup(_status("a", None)), now=TUESDAY).channels == {}

    def test_token_that_is_lower_than_the_one_it_replaces_is_named(self, caplog):
        before = _backup(_status("a", "10", 100), _status("b", None), offset_format="integer")
        for token, rows, offset_format, lower in [
            ("9", 90, "integer", True),
            ("9", 110, "integer", True),
            ("11", 90, "integer", False),
            ("10", 90, "integer", False),
            ("9", 90, None, True),
            ("11", 110, None, False),
            ("10", 90, None, False),
            ("a:1", 90, "integer", False),
        ]:
            caplog.clear()
            now = (_status("a", token, rows), _status("b", "1"))
            backup = _backup(*now, previous=before, offset_format=offset_format)
            assert backup.channels["a"].offset_token == token
            words = f"'a' of pipe {PIPE} has committed {token}"
            named = [words in one.message and " 10," in one.message for one in caplog.records]
            assert named == ([True] if lower else [])

    def test_backup_of_another_pipe_is_not_replaced(self):
        with pytest.raises(errors.ConfigurationError, match="OTHER"):
            _backup(previous=OffsetBackup(PipeName("DB", "S", "OTHER"), MONDAY, {}))


def _changed(*path, to):
    body = json.loads(_backup(_status("a", "7", 70)).to_json())
    within = body
    for key in path[:-1]:
        within = within[key]
    within[path[-1]] = to
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
        token = _changed("channels", "a", "offset_token", to=7)
        wrong = [
            *("", "[]", "{}", token),
            _changed("format", to="other"),
            _changed("pipe", to={"database": "DB"}),
            _changed("taken_at", to="2026-03-02T00:00:00"),
            _changed("channels", to=[]),
            _changed("channels", "a", "unchanged_since", to="2026-03-02T00:00:00"),
            _changed("channels", "a", to={"offset_token": "7"}),
        ]

        def read(text):
            OffsetBackup.from_json(text, origin="x.json")

        refused(errors.ConfigurationError, read, wrong, "x.json is no offset backup")
        refused(errors.ConfigurationError, read, [token], "channel 'a' has the token 7")
        refused(
            errors.ConfigurationError, read, [_changed("version", to=2)], "x.json", "version 2", "version 1"
        )


def _kept(**tokens):
    return OffsetBackup(PIPE, MONDAY, {name: KeptToken(token, MONDAY) for name, token in tokens.items()})


def _plan(kept, committed, offset=IntegerOffset, **options):
    statuses = {name: _status(name, token, 3) for name, token in committed.items()}
    return plan_restore(_kept(**kept), statuses, offset, **options)


class TestRestorePlan:
    def test_channel_gets_the_backups_token_unless_it_has_it(self):
        kept = {"a": "10", "b": None, "c": "10"}
        for committed, action in [(None, "SET"), ("9", "SET"), ("10", "KEEP")]:
            expected = [RestoreStep("a", RestoreAction[action], committed, "10", rows_inserted=3)]
            assert _plan(kept, {"a": committed, "b": "9"}) == expected
        (step,) = plan_restore(_kept(a="10"), {"a": ChannelStatus.missing("a")}, IntegerOffset)
        assert step == RestoreStep("a", RestoreAction.CREATE, None, "10")
        assert str(step) == "create channel 'a': NULL -> 10"
        backup = _kept(a="1", b="2")
        assert [chosen(backup, names) for names in (None, ["b"], [])] == [["a", "b"], ["b"], []]
        refused(errors.ConfigurationError, lambda names: chosen(backup, names), [["a", "x"]], "'x'", "a, b")

    def test_channel_that_is_ahead_stops_the_whole_restore_unless_that_is_allowed(self):
        with pytest.raises(errors.SourcePositionError, match="1 channel") as caught:
            _plan({"a": "10", "b": "10"}, {"a": "9", "b": "11"})
        assert "'b' (committed 11, backup 10)" in str(caught.value)
        assert "offset_format" not in str(caught.value)
        (step,) = _plan({"a": "10"}, {"a": "11"}, allow_older_tokens=True)
        assert (step.action, step.committed, step.token) == (RestoreAction.SET, "11", "10")

    def test_tokens_are_compared_in_their_format_and_without_one_may_only_be_equal(self):
        steps = _plan({"a": "10", "b": "10"}, {"a": "10", "b": None}, None)
        assert [one.action for one in steps] == [RestoreAction.KEEP, RestoreAction.SET]
        with pytest.raises(errors.SourcePositionError, match="offset_format"):
            _plan({"a": "10"}, {"a": "9"}, None)
        for committed, kept in [("x", "10"), ("10", "x")]:
            with pytest.raises(errors.OffsetTokenError, match="'a'"):
                _plan({"a": kept}, {"a": committed})
        # The same position in another spelling is not ahead.
        (step,) = _plan({"a": "1/a.log:7"}, {"a": "1/b.log:7"}, UnitOffset)
        assert (step.action, step.token) == (RestoreAction.SET, "1/a.log:7")
