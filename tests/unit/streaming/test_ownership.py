"""Whose rows a channel may get: what other channels have loaded, and what earlier runs have seen."""

from dataclasses import replace

import pytest

from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.ownership import EarlierChannels, OwnChannel, refuse_lost
from airflow_provider_snowpipe.streaming.progress import SUCCESS, ChannelStatus
from tests.checkpoints import binding_of, loaded, shown, source_of, token

LAST = {binding_of(one).source_digest: (f"old_{one}", token(7, 8, binding=binding_of(one))) for one in "pq"}


def own(partition, committed=None, lost="", **changes):
    binding = replace(binding_of(partition), lost=lost)
    source = source_of(IntegerOffset, binding=binding, **changes)
    return OwnChannel(source, ChannelStatus(f"new_{partition}", SUCCESS, committed))


class TestLostToken:
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

    @pytest.mark.parametrize("is_bare", [True, False])
    def test_of_a_channel_that_was_recorded_before_its_first_row_is_refused(self, is_bare):
        one, another = own("p", is_bare=is_bare), own("q", is_bare=is_bare)
        there = replace(one, status=replace(one.status, created_on_ms=17))
        key, mark = "new_p" if is_bare else one.partition, there.source.begun(there.status)
        last = {key: ("new_p", mark)}
        again = replace(one, status=replace(one.status, created_on_ms=18))
        renamed = replace(there, status=replace(there.status, channel="other_p"))
        for rebind in (None, "continue"):
            lost = [replace(one, source=replace(one.source, rebind=rebind)) for one in (again, renamed)]
            for one in lost if not is_bare else lost[:1]:
                with pytest.raises(errors.SourcePositionError, match=r"about to.*'new_p'.*NULL"):
                    refuse_lost([another, one], last)
        refuse_lost([there, another, own("p", rebind="restart", is_bare=is_bare), own("p", "7")], last)
        assert [one.is_unknown_to(last) for one in (there, again, another)] == [False, True, True]
        assert not own("p", token(1, 2)).is_unknown_to({})
        assert not replace(another, recorded=IntegerOffset(7)).is_unknown_to({})

    def test_is_known_by_the_sources_own_record_where_runs_have_none(self):
        known = replace(own("p"), recorded=IntegerOffset(7))
        with pytest.raises(
            errors.SourcePositionError, match=r"'new_p' had committed '7~i1\..*\.0\.source-log"
        ):
            refuse_lost([own("q"), known], None)
        for last, one in [({}, known), (None, own("p")), (None, replace(known, source=CONTINUED))]:
            refuse_lost([one], last)


CONTINUED = own("p", rebind="continue").source


@pytest.fixture
def earlier(snowpipe, client):
    return EarlierChannels(client, snowpipe.listed, {})


def refuse(name, position):
    raise errors.SourcePositionError(f"{name} {position}")


class TestOtherChannels:
    @pytest.fixture(autouse=True)
    def other(self, snowpipe):
        snowpipe.channel("old_p", **loaded(7, 8))
        snowpipe.channel("none")
        snowpipe.channel("bare", committed="7")
        snowpipe.channel("old_q", **loaded(3, 4, binding=binding_of("q")))

    def test_that_have_loaded_the_source_of_a_new_one_are_refused(self, earlier):
        with pytest.raises(errors.SourceChangedError, match=r"'new_p'.*'old_p'.*7~i1"):
            earlier.hand_over([own("x"), own("p")])
        with pytest.raises(errors.SourceChangedError, match=r"'new_p' and 'old_p'"):
            earlier.refuse_twins([own("x"), own("p")])

    @pytest.mark.parametrize(
        "one",
        [
            own("p", token(1, 2)), own("p", rebind="restart"), own("0", is_bare=True),
            own("0", is_bare=True, rebind="continue"),
        ],
    )  # fmt: skip
    def test_are_not_asked_for_where_a_token_or_its_author_decides(self, earlier, one, snowpipe):
        silent = replace(earlier, list_channels=lambda: pytest.fail("they are listed"))
        assert silent.hand_over([one]) == {}
        silent.refuse_twins([one])
        assert snowpipe.calls == []

    def test_are_not_the_channels_themselves(self, snowpipe, earlier):
        mine = OwnChannel(own("p").source, ChannelStatus("old_p", SUCCESS))
        assert earlier.hand_over([mine]) == {}
        earlier.refuse_twins([mine])
        continued = replace(mine, source=CONTINUED)
        assert earlier.hand_over([continued]) == {}
        assert "old_p" in snowpipe.channels

    def test_give_their_positions_to_new_ones_and_are_dropped(self, snowpipe, earlier):
        snowpipe.channel("new_p", rows_inserted=2, rows_error_count=1)
        snowpipe.channel("older_p", **loaded(5, 6))
        mine = OwnChannel(CONTINUED, ChannelStatus("new_p", SUCCESS, None, 2, 3, 1))
        checked = []

        moved = earlier.hand_over([own("other"), mine], lambda *found: checked.append(found))

        assert moved == {"new_p": (8, 0)}
        assert checked == [("new_p", IntegerOffset(7))]
        assert snowpipe.channels["new_p"].committed == token(7, 3, 1)
        assert sorted(snowpipe.channels) == ["bare", "new_p", "none", "old_q"]
        assert snowpipe.did("drop") == ["drop old_p", "drop older_p"]

    def test_give_their_positions_where_a_run_that_died_has_recorded_them(self, earlier):
        last = {own("p").partition: ("old_p", own("p").source.begun(own("p").status))}
        assert replace(earlier, last=last).hand_over([own("p", rebind="continue")]) == {"new_p": (8, 0)}

    def test_whose_position_the_source_has_no_more_are_left(self, snowpipe, earlier):
        with pytest.raises(errors.SourcePositionError, match="new_p 7"):
            earlier.hand_over([own("p", rebind="continue")], refuse)
        assert snowpipe.did("drop") == []

    def test_that_count_other_rows_fail_the_run_if_they_are_to(self, snowpipe, earlier):
        snowpipe.channels["old_p"].rows_inserted += 1
        with pytest.raises(errors.ImbalanceError, match="'old_p'"):
            replace(earlier, on_imbalance="fail").hand_over([own("p", rebind="continue")])
        assert earlier.hand_over([own("p", rebind="continue")]) == {"new_p": (8, 0)}

    def test_that_cannot_be_listed_are_not_known(self, earlier, caplog):
        def fails():
            raise errors.SqlError("the role may not")

        unlisted = replace(earlier, list_channels=fails)
        assert unlisted.hand_over([own("p")]) == {}
        assert "the role may not" in caplog.text

    def test_have_their_rejected_rows_reported_once(self, snowpipe, earlier):
        for name, position, rejected, seen in [("old_p", 7, 5, 1), ("b_p", 5, 2, 1), ("c_p", 3, 1, 1)]:
            snowpipe.channels.pop(name, None)
            state = loaded(position, 10, rejected, seen, run=f"run-{name}")
            snowpipe.channel(name, **state, last_error_message=f"error of {name}")
        mine = own("p", rebind="continue")
        with pytest.raises(
            errors.RowsRejectedError, match=r"5 rows.*2 channels.*'old_p' \(run run-old_p\)"
        ) as bad:
            earlier.hand_over([mine])
        assert (bad.value.channel, bad.value.rejected) == ("old_p", 5)
        assert bad.value.last_error == "error of old_p"
        assert snowpipe.did("drop") == []
        assert snowpipe.channels["old_p"].committed == token(7, 10, 5, run="run-old_p")
        assert earlier.hand_over([mine]) == {"new_p": (5, 5)}

    def test_have_their_rejected_rows_logged_where_these_are_accepted(self, snowpipe, earlier, caplog):
        snowpipe.channels["old_p"].rows_error_count = 2
        moved = replace(earlier, accepts_rejected=True).hand_over([own("p", rebind="continue")])
        assert (moved, "'old_p' (run r1): no message" in caplog.text) == ({"new_p": (6, 2)}, True)


class TestLastCheckpoints:
    def test_give_their_positions_where_no_other_channel_does(self, snowpipe, earlier):
        snowpipe.channel("old_q", **loaded(3, 4, binding=binding_of("q")))
        channels = [own("x", rebind="continue"), own("q", rebind="continue"), own("p", rebind="continue")]
        checked = []
        rejected = {own("p").partition: ("old_p", token(7, 11, 3))}
        seen = replace(earlier, last=LAST | rejected)
        assert seen.hand_over(channels, lambda *found: checked.append(found)) == {
            "new_q": (4, 0),
            "new_p": (8, 3),
        }
        assert checked == [("new_q", IntegerOffset(3)), ("new_p", IntegerOffset(7))]
        assert snowpipe.channels["new_p"].committed == token(7)
        assert "new_x" not in snowpipe.channels
        with pytest.raises(errors.SourcePositionError, match="'old_p'"):
            seen.hand_over([own("p")])
        with pytest.raises(errors.SourcePositionError, match="new_p 7"):
            seen.hand_over([channels[2]], refuse)

    @pytest.mark.parametrize(
        ("now", "moved"), [(token(7, 3), (3, 2)), (token(7, 8), None), (token(6, 3), None), ("7", None)]
    )
    def test_tell_the_rows_of_a_channel_that_was_restored(self, earlier, now, moved):
        seen = replace(earlier, last={own("p").partition: ("new_p", token(7, 8, 2))})
        assert seen.hand_over([own("p", now, is_bare=now == "7")]) == ({"new_p": moved} if moved else {})

    def test_are_those_of_the_sources_own_record_without_another(self, snowpipe, earlier):
        known = replace(own("p", rebind="continue"), recorded=IntegerOffset(7))
        unseen = replace(earlier, last=None)
        with pytest.raises(errors.SourcePositionError, match="'new_p'"):
            unseen.hand_over([replace(known, source=own("p").source)])
        assert unseen.hand_over([known]) == {"new_p": (0, 0)}
        assert shown(snowpipe.channels["new_p"].committed) == "7"
        snowpipe.channel("old_p", **loaded(7, 8))
        with pytest.raises(errors.SourceChangedError, match="'old_p'"):
            unseen.hand_over([replace(known, source=own("p").source)])

    def test_a_position_of_another_kind_is_refused_by_its_channel(self, snowpipe, earlier):
        other = token("a:9", 6)
        for name, last in [("new_p", {binding_of("p").source_digest: ("old_p", other)}), ("old_p", {})]:
            if not last:
                snowpipe.channel("old_p", committed=other)
            with pytest.raises(errors.SnowpipeError, match=f"{name}.*another kind"):
                replace(earlier, last=last).hand_over([own("p", rebind="continue")])
