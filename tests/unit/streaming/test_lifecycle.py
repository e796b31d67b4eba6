"""Opening, handing over and dropping a channel: what is done, and what is refused."""

import pytest

from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.admin import Dropping, Opening, drop_channel, open_channel
from tests.fake_snowpipe import ROW_SEQ_GAP, UNCOMMITTED, error

HELD = error(409, UNCOMMITTED)
GAP = error(409, ROW_SEQ_GAP)


@pytest.mark.parametrize(
    ("before", "options", "action", "after", "opens"),
    [
        (None, {}, "create", None, [None]),
        (None, {"offset_token": "a:7", "if_exists": "fence"}, "create", "a:7", ["a:7"]),
        ("a:9", {"offset_token": "a:7"}, "skip", "a:9", []),
        ("a:9", {"offset_token": "a:7", "if_exists": "fence"}, "fence", "a:9", [None]),
    ],
)
def test_opening_creates_fences_or_leaves_alone(snowpipe, client, before, options, action, after, opens):
    if before:
        snowpipe.channel("c", committed=before)
    assert open_channel(client, "c", **options) == Opening("c", action, after)
    assert [call.body.get("offset_token") for call in snowpipe.calls if call.operation == "open"] == opens
    assert snowpipe.channels["c"].committed == after
    snowpipe.channels["c"].committed = None
    for wrong in ({"if_exists": "replace"}, {"offset_token": "a:8"}):
        with pytest.raises(errors.ConfigurationError):
            open_channel(client, "c", **wrong)
    assert len(snowpipe.did("open")) == len(opens)


def test_fence_and_drop_wait_for_what_is_received(snowpipe, client):
    """The pauses grow from a twentieth of a second to a second."""
    for wait in (lambda: open_channel(client, "c", if_exists="fence"), lambda: drop_channel(client, "c")):
        snowpipe.channel("c", committed="a:9")
        snowpipe.fault(before="open", error=HELD, times=11)
        wait()
        expected = [*(0.05 * 1.4**number for number in range(9)), 1.0, 1.0]
        assert snowpipe.clock.slept[-11:] == pytest.approx(expected)
    assert snowpipe.channels == {}


@pytest.mark.parametrize(
    ("act", "seconds"),
    [
        (lambda client: open_channel(client, "c", if_exists="fence"), 60),
        (lambda client: open_channel(client, "c", if_exists="fence", uncommitted_timeout=5), 5),
        (lambda client: drop_channel(client, "c"), 600),
        (lambda client: drop_channel(client, "c", commit_timeout=0.1), 0.1),
    ],
)
def test_the_wait_ends_in_time_and_changes_nothing(snowpipe, client, act, seconds):
    snowpipe.channel("c", committed="a:9")
    snowpipe.fault(before="open", error=HELD, times=1000)
    with pytest.raises(errors.UncommittedRowsError, match=f"'c'.* {seconds} s") as late:
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


def test_drop_that_is_refused_is_not_taken_for_done(snowpipe, client):
    for operation, word in [("open", "force=True"), ("drop", "'c'")]:
        snowpipe.channel("c", committed="7")
        snowpipe.fault(before=operation, error=GAP, times=1000)
        with pytest.raises(errors.ChannelInvalidError, match=word) as refusal:
            drop_channel(client, "c")
        found = (refusal.value.channel, refusal.value.http_status, refusal.value.code)
        assert (found, "c" in snowpipe.channels) == (("c", 409, ROW_SEQ_GAP), True)
        snowpipe.heal()
