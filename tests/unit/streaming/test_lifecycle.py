"""Opening a channel for another writer, and dropping one: what is done, and what is refused."""

import pytest

from airflow_provider_snowpipe.streaming.admin import Dropping, create_channel, drop_channel
from airflow_provider_snowpipe.streaming.errors import (
    ChannelInvalidError,
    ConfigurationError,
    UncommittedRowsError,
)
from tests.fake_snowpipe import ROW_SEQ_GAP, UNCOMMITTED, error

HELD = error(409, UNCOMMITTED)
GAP = error(409, ROW_SEQ_GAP)


@pytest.fixture
def client(snowpipe):
    with snowpipe.client() as client:
        yield client


@pytest.mark.parametrize(
    ("before", "token", "created", "after", "opens"),
    [
        (None, None, True, None, [None]),
        (None, "a:7", True, "a:7", ["a:7"]),
        ("a:9", None, False, "a:9", []),
        ("a:9", "a:7", False, "a:9", []),
    ],
)
def test_opening_creates_or_leaves_alone(snowpipe, client, before, token, created, after, opens):
    if before:
        snowpipe.channel("c", committed=before)

    assert create_channel(client, "c", token) == (created, after)

    assert [call.body.get("offset_token") for call in snowpipe.calls if call.operation == "open"] == opens
    assert snowpipe.channels["c"].committed == after


def test_opening_that_would_need_another_token_is_refused(snowpipe, client):
    snowpipe.channel("c")
    with pytest.raises(ConfigurationError):
        create_channel(client, "c", "a:7")
    assert snowpipe.did("open") == []


def test_drop_waits_for_what_is_received(snowpipe, client):
    """The pauses grow from a twentieth of a second to a second."""
    snowpipe.channel("c", committed="a:9")
    snowpipe.fault(before="open", error=HELD, times=11)
    drop_channel(client, "c")
    assert snowpipe.clock.slept == pytest.approx([*(0.05 * 1.4**number for number in range(9)), 1.0, 1.0])
    assert snowpipe.channels == {}


@pytest.mark.parametrize(
    ("act", "seconds"),
    [
        (lambda client: drop_channel(client, "c"), 600),
        (lambda client: drop_channel(client, "c", commit_timeout=0.1), 0.1),
    ],
)
def test_the_wait_ends_in_time_and_changes_nothing(snowpipe, client, act, seconds):
    snowpipe.channel("c", committed="a:9")
    snowpipe.fault(before="open", error=HELD, times=1000)

    with pytest.raises(UncommittedRowsError, match=f"'c'.* {seconds} s") as late:
        act(client)

    assert (late.value.channel, late.value.http_status, late.value.code) == ("c", 409, UNCOMMITTED)
    assert max(seconds - 2, seconds / 2) <= sum(snowpipe.clock.slept) <= seconds
    assert snowpipe.did("drop") == []


@pytest.mark.parametrize(
    ("force", "refusal", "discarded"),
    [(False, None, False), (True, None, False), (True, HELD, True), (True, GAP, None)],
)
def test_dropping_reports_what_went_with_the_channel(snowpipe, client, force, refusal, discarded):
    snowpipe.channel("c", committed="9")
    if refusal:
        snowpipe.fault(before="open", error=refusal, times=1000)

    assert drop_channel(client, "c", force=force) == Dropping("c", True, "9", discarded)

    assert snowpipe.channels == {}
    assert next(one for one in snowpipe.calls if one.operation == "open").body["fail_on_uncommitted_rows"]


def test_drop_whose_answer_was_lost_or_of_a_channel_that_is_gone_is_done(snowpipe, client):
    assert drop_channel(client, "c") == Dropping("c", existed=False)
    assert snowpipe.did("open", "drop") == []
    for force in (False, True):
        snowpipe.channel("c", committed="7")
        snowpipe.fault(after="drop")

        assert drop_channel(client, "c", force=force) == Dropping("c", True, "7")
        assert "c" not in snowpipe.channels


@pytest.mark.parametrize(("operation", "word"), [("open", "force=True"), ("drop", "'c'")])
def test_drop_that_is_refused_is_not_taken_for_done(snowpipe, client, operation, word):
    snowpipe.channel("c", committed="7")
    snowpipe.fault(before=operation, error=GAP, times=1000)

    with pytest.raises(ChannelInvalidError, match=word) as invalid:
        drop_channel(client, "c")

    assert (invalid.value.channel, invalid.value.http_status, invalid.value.code) == ("c", 409, ROW_SEQ_GAP)
    assert "c" in snowpipe.channels
