"""What a task reports and reads when tasks of a write agree on a begun batch; the others are scripted."""

import pytest

from airflow_provider_snowpipe.spark.data_source import agreement
from airflow_provider_snowpipe.spark.data_source.agreement import Agreement, RefusedByAnotherError, forget
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from tests.fake_snowpipe import MISSING, error

CHANNELS = ["ds_0", "ds_1", "ds_2"]


def marker(number):
    return f"ds_{number}__compared"


ALL = ",".join(map(marker, range(3)))


class Others:
    """The tasks of a write, of which one is real."""

    def __init__(self, snowpipe, client):
        self.snowpipe, self.client = snowpipe, client

    def task(self, number):
        return Agreement(self.client, CHANNELS, number, "w")

    def begun(self, number, **reported):
        """A task that has begun; what the others have reported, by name (``t1="agrees"``)."""
        task = self.task(number)
        task.begin()
        self.snowpipe.calls.clear()
        for name, what in reported.items():
            self.report(int(name[1:]), what)
        return task

    def report(self, number, what, write="w"):
        self.snowpipe.channel(marker(number)).committed = f"{write}:{what}"

    def reported(self, number):
        channel = self.snowpipe.channels.get(marker(number))
        return None if channel is None else channel.committed

    def at_poll(self, poll, number, what):
        """Have a task report something just before a poll is answered, of those that come now."""
        self.snowpipe.fault(before="status", skip=poll, do=lambda: self.report(number, what))

    def polls(self):
        return [call.removeprefix("status ") for call in self.snowpipe.did("status")]


@pytest.fixture
def others(snowpipe, monkeypatch):
    monkeypatch.setattr(agreement, "time", snowpipe.clock)
    snowpipe.clock.sleep(100)
    snowpipe.clock.slept.clear()
    with snowpipe.client() as client:
        yield Others(snowpipe, client)


def test_first_task_waits_for_all_and_then_lets_them_send(others, snowpipe):
    first = others.begun(0, t1="compares")
    others.at_poll(2, 2, "agrees")
    others.at_poll(3, 1, "agrees")
    first.wait()
    assert others.reported(0) == "w:sends"
    assert others.polls() == [ALL] * 4
    assert snowpipe.clock.slept == [0.25] * 3


@pytest.mark.parametrize("what", ["compares", "agrees"])
def test_nobody_sends_before_the_first_task_allows_it_however_long_it_takes(others, what):
    task = others.begun(2, t0=what, t1="agrees")
    others.at_poll(400, 0, "sends")
    task.wait()
    assert len(others.polls()) == 401


def test_first_task_refuses_for_all_when_one_does_and_names_it(others):
    first = others.begun(0, t1="agrees", t2="refuses")
    with pytest.raises(RefusedByAnotherError, match=r"'ds_0'.*'ds_2'"):
        first.wait()
    assert others.reported(0) == "w:refuses"


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("now", [None, "another:compares"], ids=["gone", "taken"])
def test_write_whose_channel_another_one_opened_sends_and_reports_nothing(others, snowpipe, number, now):
    task = others.begun(number, **{f"t{one}": "agrees" for one in {0, 1, 2} - {number}})

    def taken():
        snowpipe.channel(marker(number)).committed = now

    snowpipe.fault(before="status", do=taken)

    with pytest.raises(RefusedByAnotherError, match=f"ds_{number}"):
        task.wait()
    assert others.reported(number) == now


@pytest.mark.parametrize("number", [0, 1])
def test_later_attempt_does_not_take_a_refusal_back(others, snowpipe, number):
    for one in range(3):
        others.report(one, "refuses" if one == number else "agrees")
    again = others.task(number)
    again.begin()
    if number:
        others.at_poll(1, 0, "refuses")
    with pytest.raises(RefusedByAnotherError):
        again.wait()
    assert (others.reported(number), snowpipe.did("open")) == ("w:refuses", [])


def test_task_that_has_started_within_half_a_minute_is_waited_for(others):
    first = others.begun(0, t1="agrees")
    others.at_poll(120, 2, "compares")
    others.at_poll(900, 2, "agrees")
    first.wait()
    assert len(others.polls()) == 901


@pytest.mark.parametrize(
    ("number", "missing", "polls", "reported"), [(0, 2, 122, {"t1": "agrees"}), (1, 0, 123, {"t2": "agrees"})]
)
def test_task_that_does_not_start_needs_a_slot(others, snowpipe, number, missing, polls, reported):
    task = others.begun(number, **reported)
    with pytest.raises(SourcePositionError, match="slot") as refused:
        task.wait()
    assert not isinstance(refused.value, RefusedByAnotherError), "nobody knows the reason better"
    for word in (f"'ds_{number}'", f"'ds_{missing}'", "3 task slots", "30 s", "write_checked"):
        assert word in str(refused.value)
    assert others.reported(number) == "w:refuses"
    assert (len(others.polls()), sum(snowpipe.clock.slept)) == (polls, 30.25)


@pytest.mark.parametrize("decision", ["sends", "refuses", None])
def test_refusal_ends_the_wait_for_the_first_task_unless_it_decides_just_then(others, decision):
    task = others.begun(1, t2="refuses")
    if decision:
        others.at_poll(1, 0, "compares")
        others.at_poll(3, 0, decision)

    if decision == "sends":
        task.wait()
    else:
        with pytest.raises(RefusedByAnotherError, match="ds_0" if decision else "ds_2"):
            task.wait()
    assert others.reported(1) == "w:refuses", "the first task may have read it"
    assert others.polls()[:2] == [ALL, marker(0)]


def test_later_attempt_at_the_first_partition_keeps_the_decision(others, snowpipe):
    others.report(0, "sends")
    again = others.task(0)
    for step in (again.begin, again.wait, again.refuse, again.finish):
        step()
    assert (others.reported(0), snowpipe.did("open")) == ("w:sends", [])


def test_channels_of_a_comparison_are_dropped_once_and_no_others(others, snowpipe):
    for number in (0, 2):
        others.report(number, "agrees")
        snowpipe.channel(f"ds_{number}")
    snowpipe.fault(before="drop", channel=marker(0), error=error(404, MISSING))
    forget(others.client, CHANNELS)
    assert sorted(snowpipe.did("drop")) == [f"drop {marker(0)}", f"drop {marker(2)}"]
    assert {"ds_0", "ds_2"} <= snowpipe.channels.keys()


def test_messages_of_another_write_are_ignored(others):
    first = others.begun(0)
    others.report(1, "refuses", write="v")
    others.report(2, "agrees", write="v")
    with pytest.raises(SourcePositionError, match="slot"):
        first.wait()


def test_first_task_decides_even_if_it_has_nothing_to_send_and_not_where_it_has_refused(others, snowpipe):
    others.begun(0, t1="agrees", t2="agrees").finish()
    assert others.reported(0) == "w:sends"
    snowpipe.channels.clear()
    first = others.begun(0)
    first.refuse()
    first.finish()
    assert (others.reported(0), snowpipe.did("status")) == ("w:refuses", [])


@pytest.mark.parametrize("before", [None, "v:sends", "w:agrees", "w:compares"])
def test_task_begins_by_reporting_that_it_compares(others, snowpipe, before):
    snowpipe.channel(marker(1), committed=before)
    others.task(1).begin()
    assert (others.reported(1), len(snowpipe.did("open"))) == ("w:compares", 1)
