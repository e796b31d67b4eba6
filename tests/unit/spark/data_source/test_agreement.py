"""What a task reports and reads when tasks of a write agree on a begun batch; the others are scripted."""

import pytest

from airflow_provider_snowpipe.spark.data_source import agreement
from airflow_provider_snowpipe.spark.data_source.agreement import Agreement, RefusedByAnotherError, forget
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from tests.fake_snowpipe import MISSING, error

CHANNELS = ["ds_0", "ds_1", "ds_2"]


def marker(number):
    return f"ds_{number}__compared"


class Others:
    """The tasks of a write, of which one is real."""

    def __init__(self, snowpipe):
        self.snowpipe, self.client, self.channels = snowpipe, snowpipe.client(), CHANNELS

    def task(self, number, write="w"):
        return Agreement(self.client, self.channels, number, write)

    def report(self, number, what, write="w"):
        self.snowpipe.channel(marker(number)).committed = f"{write}:{what}"

    def reported(self, number):
        channel = self.snowpipe.channels.get(marker(number))
        return None if channel is None else channel.committed

    def at_poll(self, poll, do, before="status"):
        """Do something just before a poll is answered, of those that come now."""
        self.snowpipe.fault(before=before, skip=poll, do=do)

    def polls(self):
        return [call.removeprefix("status ") for call in self.snowpipe.did("status")]


@pytest.fixture
def others(snowpipe, monkeypatch):
    monkeypatch.setattr(agreement, "time", snowpipe.clock)
    snowpipe.clock.sleep(100)
    snowpipe.clock.slept.clear()
    with snowpipe.client() as client:
        kit = Others(snowpipe)
        kit.client = client
        yield kit


def begun(others, number):
    task = others.task(number)
    task.begin()
    others.snowpipe.calls.clear()
    return task


def test_first_task_waits_for_all_and_then_lets_them_send(others, snowpipe):
    first = begun(others, 0)
    others.report(1, "compares")
    others.at_poll(2, lambda: others.report(2, "agrees"))
    others.at_poll(3, lambda: others.report(1, "agrees"))

    first.wait()

    assert others.reported(0) == "w:sends"
    assert others.polls() == [",".join(map(marker, range(3)))] * 4
    assert snowpipe.clock.slept == [0.25] * 3


@pytest.mark.parametrize("what", ["compares", "agrees"])
def test_nobody_sends_before_the_first_task_allows_it_however_long_it_takes(others, snowpipe, what):
    task = begun(others, 2)
    others.report(0, what)
    others.report(1, "agrees")
    others.at_poll(400, lambda: others.report(0, "sends"))

    task.wait()

    assert len(others.polls()) == 401


def test_first_task_refuses_for_all_when_one_does_and_names_it(others):
    first = begun(others, 0)
    others.report(1, "agrees")
    others.report(2, "refuses")

    with pytest.raises(RefusedByAnotherError, match=r"'ds_0'.*'ds_2'"):
        first.wait()
    assert others.reported(0) == "w:refuses"


def test_other_task_refuses_when_the_first_does(others):
    task = begun(others, 1)
    others.report(0, "compares")
    others.at_poll(1, lambda: others.report(0, "refuses"))

    with pytest.raises(RefusedByAnotherError, match=r"'ds_1'.*'ds_0'"):
        task.wait()
    assert len(others.polls()) == 2


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("now", [None, "another:compares"], ids=["gone", "taken"])
def test_write_whose_channel_another_one_has_opened_sends_nothing_and_reports_nothing_more(
    others, snowpipe, number, now
):
    task = begun(others, number)
    for one in {0, 1, 2} - {number}:
        others.report(one, "agrees")

    def taken():
        snowpipe.channel(marker(number)).committed = now

    others.at_poll(0, taken)

    with pytest.raises(RefusedByAnotherError, match=f"ds_{number}"):
        task.wait()
    assert others.reported(number) == now


@pytest.mark.parametrize("number", [0, 1])
def test_later_attempt_does_not_take_a_refusal_back(others, snowpipe, number):
    for one in range(3):
        others.report(one, "agrees")
    others.report(number, "refuses")
    again = others.task(number)
    again.begin()
    if number:
        others.at_poll(1, lambda: others.report(0, "refuses"))

    with pytest.raises(RefusedByAnotherError):
        again.wait()

    assert (others.reported(number), snowpipe.did("open")) == ("w:refuses", [])


def test_task_that_has_started_within_half_a_minute_is_waited_for(others):
    first = begun(others, 0)
    others.report(1, "agrees")
    others.at_poll(120, lambda: others.report(2, "compares"))
    others.at_poll(900, lambda: others.report(2, "agrees"))

    first.wait()

    assert len(others.polls()) == 901


@pytest.mark.parametrize(("number", "missing", "polls"), [(0, 2, 122), (1, 0, 123)])
def test_task_that_does_not_start_is_waited_for_half_a_minute_and_the_remedy_is_a_slot(
    others, snowpipe, number, missing, polls
):
    task = begun(others, number)
    others.report(1 - number, "agrees") if missing else others.report(2, "agrees")

    with pytest.raises(SourcePositionError, match="slot") as refused:
        task.wait()

    assert not isinstance(refused.value, RefusedByAnotherError), "nobody knows the reason better"
    for word in (f"'ds_{number}'", f"'ds_{missing}'", "3 task slots", "30 s", "write_checked"):
        assert word in str(refused.value)
    assert others.reported(number) == "w:refuses"
    assert (len(others.polls()), sum(snowpipe.clock.slept)) == (polls, 30.25)


@pytest.mark.parametrize("decision", ["sends", "refuses"])
def test_task_that_gives_the_first_one_up_goes_by_its_decision_if_it_begins_just_then(others, decision):
    task = begun(others, 1)
    others.report(2, "refuses")
    others.at_poll(1, lambda: others.report(0, "compares"))
    others.at_poll(3, lambda: others.report(0, decision))

    if decision == "refuses":
        with pytest.raises(RefusedByAnotherError, match="ds_0"):
            task.wait()
    else:
        task.wait()
    assert others.reported(1) == "w:refuses", "the first task may have read it"


def test_later_attempt_at_the_first_partition_keeps_the_decision(others, snowpipe):
    others.report(0, "sends")
    again = others.task(0)
    again.begin()

    again.wait()
    again.refuse()
    again.finish()

    assert (others.reported(0), snowpipe.did("open")) == ("w:sends", [])


def test_channels_of_a_comparison_are_dropped_once_and_no_others(others, snowpipe):
    for number in (0, 2):
        others.report(number, "agrees")
        snowpipe.channel(f"ds_{number}")
    snowpipe.fault(before="drop", channel=marker(0), error=error(404, MISSING))

    forget(others.client, CHANNELS)

    assert sorted(snowpipe.did("drop")) == [f"drop {marker(0)}", f"drop {marker(2)}"]
    assert {"ds_0", "ds_2"} <= snowpipe.channels.keys()


def test_other_task_reads_all_once_and_then_its_own_channel_and_the_first(others, snowpipe):
    task = begun(others, 1)
    others.report(0, "agrees")
    others.at_poll(2, lambda: others.report(0, "sends"))

    task.wait()

    assert others.polls() == [",".join(map(marker, range(3))), *[f"{marker(0)},{marker(1)}"] * 2]
    assert others.reported(1) == "w:agrees"


def test_messages_of_another_write_are_ignored(others):
    first = begun(others, 0)
    others.report(1, "refuses", write="v")
    others.report(2, "agrees", write="v")

    with pytest.raises(SourcePositionError, match="slot"):
        first.wait()


def test_refusal_of_any_other_task_ends_the_wait_for_a_first_one_that_has_no_slot(others):
    task = begun(others, 1)
    others.report(2, "refuses")

    with pytest.raises(RefusedByAnotherError, match="ds_2"):
        task.wait()
    assert others.reported(1) == "w:refuses"
    assert others.polls() == [",".join(map(marker, range(3))), marker(0)]


def test_first_task_decides_even_if_it_has_nothing_to_send(others):
    first = begun(others, 0)
    others.report(1, "agrees")
    others.report(2, "agrees")

    first.finish()

    assert others.reported(0) == "w:sends"


def test_first_task_that_has_refused_does_not_wait(others, snowpipe):
    first = begun(others, 0)
    first.refuse()

    first.finish()

    assert (others.reported(0), snowpipe.did("status")) == ("w:refuses", [])


@pytest.mark.parametrize(("before", "opens"), [(None, 1), ("v:sends", 1), ("w:agrees", 1), ("w:compares", 1)])
def test_task_begins_by_reporting_that_it_compares(others, snowpipe, before, opens):
    snowpipe.channel(marker(1), committed=before)

    others.task(1).begin()

    assert (others.reported(1), len(snowpipe.did("open"))) == ("w:compares", opens)
