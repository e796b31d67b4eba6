"""A channel without a token is compared with what earlier runs and other channels have of its source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_snowpipe.streaming.checkpoint import Checkpoint
from airflow_provider_snowpipe.streaming.errors import SourceChangedError, SourcePositionError
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.ownership import EarlierChannels, OwnChannel, refuse_lost
from airflow_provider_snowpipe.streaming.progress import SUCCESS, ChannelStatus
from tests.checkpoints import binding_of, loaded, source_of, token

LAST = {binding_of(one).source_digest: (f"old_{one}", token(7, 8, binding=binding_of(one))) for one in "pq"}


def own(partition: str, committed: str | None = None, lost: str = "", **changes) -> OwnChannel:
    binding = replace(binding_of(partition), lost=lost)
    source = source_of(IntegerOffset, binding=binding, **changes)
    return OwnChannel(source, ChannelStatus(f"new_{partition}", SUCCESS, committed))


@pytest.mark.parametrize("before", [own("other"), own("p", token(7, 8)), own("q", rebind="restart")])
def test_each_channel_without_a_token_is_compared_with_the_last_runs(before):
    with pytest.raises(SourcePositionError, match=r"'new_p'.*'old_p'.*7~i1"):
        refuse_lost([before, own("p")], LAST)
    refuse_lost([before, own("p", rebind="continue")], LAST)
    refuse_lost([before, own("p")], {})


def test_a_source_that_has_lost_its_own_record_is_refused_where_any_was_loaded():
    lost = own("unknown", lost="Its log is gone. ")

    for rebind in (None, "continue"):
        with pytest.raises(
            SourcePositionError, match=r"'old_p' '7~i1.*', 'old_q' '7~i1.*Its log is gone\. Set"
        ):
            refuse_lost([own("other"), replace(lost, source=replace(lost.source, rebind=rebind))], LAST)
    refuse_lost([replace(lost, source=replace(lost.source, rebind="restart"))], LAST)
    refuse_lost([lost], {})


class TestHandOver:
    """Several channels at once, of which each has another past."""

    @pytest.fixture
    def earlier(self, snowpipe):
        with snowpipe.client() as client:
            yield EarlierChannels(client, snowpipe.listed, LAST)

    def test_positions_come_from_other_channels_and_from_the_last_run(self, snowpipe, earlier):
        snowpipe.channel("foreign", committed="41")
        snowpipe.channel("old_p", **loaded(5, 6))
        channels = [own(one, rebind="continue") for one in ("none", "p", "q")]
        checked = {}

        moved = earlier.hand_over(channels, lambda name, position: checked.update({name: position}))

        assert moved == {"new_p": 6, "new_q": 8}
        assert checked == {"new_p": IntegerOffset(5), "new_q": IntegerOffset(7)}
        assert {"foreign", "new_p", "new_q"} == snowpipe.channels.keys()
        found = [Checkpoint.parse(snowpipe.channels[name].committed) for name in ("new_p", "new_q")]
        assert [(str(one.position), one.rows, one.run) for one in found] == [("5", 0, "r1"), ("7", 0, "r1")]

    def test_the_error_of_a_new_channel_differs_from_that_of_one_with_rows_of_another_source(
        self, snowpipe, earlier
    ):
        snowpipe.channel("new_q", **loaded(1, 2, binding=binding_of("q")))
        snowpipe.channel("old_p", **loaded(5, 6))
        client = replace(earlier, last={})

        with pytest.raises(SourceChangedError, match=r"'new_p' is new, and channel 'old_p'"):
            client.hand_over([own("q", token(1, 2, binding=binding_of("q"))), own("p")])
        other = own("p", token(9, 9, binding=binding_of("q")), rebind="continue")
        with pytest.raises(SourceChangedError, match=r"'new_p' has rows of another source, and"):
            client.hand_over([other])
        assert "old_p" in snowpipe.channels

    @pytest.mark.parametrize("known", ["a:9", None])
    def test_a_position_of_another_kind_is_refused_by_its_channel(self, snowpipe, earlier, known):
        if known is None:
            snowpipe.channel("old_p", **loaded("a:9", 6))
        last = {binding_of("p").source_digest: ("old_p", token("a:9", 6))} if known else {}

        with pytest.raises(Exception, match=r"new_p" if known else r"old_p") as refused:
            replace(earlier, last=last).hand_over([own("p", rebind="continue")])
        assert "another kind" in str(refused.value)
