"""When to ask after which channel: pure, with a clock that the test moves."""

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming.polling import PolledChannels


def test_nobody_waiting_means_no_round_and_the_first_one_is_due_at_once_and_asks_once():
    polled = PolledChannels()
    assert polled.seconds_to_next_round(0.0) is None
    polled.add(["a", "b"], 5.0)
    polled.add(["b", "c"], 5.0)

    assert polled.seconds_to_next_round(100.0) == 0.0
    assert polled.start_round(100.0) == ["a", "b", "c"]


def test_a_late_waiter_starts_no_round_of_its_own_unless_its_interval_is_shorter():
    polled = PolledChannels()
    polled.add(["a"], 5.0)
    polled.start_round(100.0)

    polled.add(["b"], 5.0)
    assert polled.seconds_to_next_round(101.0) == 4.0
    polled.add(["c"], 2.0)
    assert polled.seconds_to_next_round(101.0) == 1.0

    assert polled.start_round(105.0) == ["a", "b", "c"]


def test_channels_are_polled_at_the_pace_of_their_own_waiter_with_the_shortest_interval():
    polled = PolledChannels()
    polled.add(["slow"], 60.0)
    polled.add(["fast"], 5.0)

    rounds = [polled.start_round(float(second)) for second in range(0, 125, 5)]

    assert sum("fast" in names for names in rounds) == 25
    assert sum("slow" in names for names in rounds) == 3
    polled.remove(["fast"], 5.0)
    polled.add(["slow", "b"], 5.0)
    polled.start_round(200.0)
    assert polled.start_round(204.5) == ["slow", "b"], "a little early"
    polled.remove(["slow", "b"], 5.0)
    assert polled.interval == 60.0
    assert polled.start_round(210.0) == []


def test_the_same_waiter_twice_leaves_twice():
    polled = PolledChannels()
    polled.add(["a"], 5.0)
    polled.add(["a"], 5.0)

    polled.remove(["a"], 5.0)
    assert len(polled) == 1
    polled.remove(["a"], 5.0)
    assert len(polled) == 0


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from("abcdef"), unique=True, min_size=1), st.sampled_from([0.5, 5.0, 60.0])
        )
    )
)
def test_nothing_is_left_when_everybody_has_gone(waiters):
    polled = PolledChannels()
    for names, interval in waiters:
        polled.add(names, interval)
    asked = polled.start_round(0.0)
    for names, interval in waiters:
        polled.remove(names, interval)

    assert set(asked) == {name for names, _ in waiters for name in names}
    assert len(asked) == len(set(asked))
    assert (len(polled), polled.interval) == (0, None)
    assert vars(polled)["_asked_at"] == {}
