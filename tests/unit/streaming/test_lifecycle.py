"""Opening, handing over and dropping a channel: what is done, and what is refused."""

from dataclasses import replace

import pytest

from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.admin import Dropping, Opening, drop_channel, open_channel
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.ownership import EarlierChannels, OwnChannel, refuse_lost
from airflow_provider_snowpipe.streaming.progress import SUCCESS, ChannelStatus
from tests.checkpoints import binding_of, source_of, token
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


LAST = {binding_of(one).source_digest: (f"old_{one}", token(7, 8, binding=binding_of(one))) for one in "pq"}


def own(partition, committed=None, lost="", **changes):
    binding = replace(binding_of(partition), lost=lost)
    source = source_of(IntegerOffset, binding=binding, **changes)
    return OwnChannel(source, ChannelStatus(f"new_{partition}", SUCCESS, committed))


class TestOwnership:
    @pytest.mark.parametrize("before", [own("other"), own("p", token(7, 8)), own("q", rebind="restart")])
    def test_each_channel_without_a_token_is_compared_with_the_last_runs(self, before):
        with pytest.raises(errors.SourcePositionError, match=r"'new_p'.*'old_p'.*7~i1"):
            refuse_lost([before, own("p")], LAST)
        refuse_lost([before, own("p", rebind="continue")], LAST)
        refuse_lost([before, own("p")], {})

    def test_a_source_that_has_lost_its_own_record_is_refused_where_any_was_loaded(self):
        words = r"'old_p' '7~i1.*', 'old_q' '7~i1.*Its log is gone\. Set"
        for rebind in (None, "continue"):
            with pytest.raises(errors.SourcePositionError, match=words):
                refuse_lost([own("other"), own("unknown", None, "Its log is gone. ", rebind=rebind)], LAST)
        refuse_lost([own("unknown", None, "Its log is gone. ", rebind="restart")], LAST)
        refuse_lost([own("unknown", None, "Its log is gone. ")], {})

    def test_of_the_kafka_connector_is_refused_where_an_earlier_run_has_seen_its_token(self):
        seen = {"new_0": ("new_0", "41")}
        for rebind in (None, "continue"):
            with pytest.raises(errors.SourcePositionError, match="'41'"):
                refuse_lost([own("0", is_bare=True, rebind=rebind)], seen)
        refuse_lost([own("0", is_bare=True, rebind="restart"), own("0", "41", is_bare=True)], seen)

    @pytest.fixture
    def earlier(self, snowpipe, client):
        return EarlierChannels(client, snowpipe.listed, LAST)

    def test_a_position_of_another_kind_is_refused_by_its_channel(self, snowpipe, earlier):
        other = token("a:9", 6)
        for name, last in [("new_p", {binding_of("p").source_digest: ("old_p", other)}), ("old_p", {})]:
            if not last:
                snowpipe.channel("old_p", committed=other)
            with pytest.raises(errors.SnowpipeError, match=f"{name}.*another kind"):
                replace(earlier, last=last).hand_over([own("p", rebind="continue")])
