"""What a task reports and reads when tasks of a write agree on a begun batch; the others are scripted."""

import pytest

from airflow_provider_snowpipe.spark.data_source import agreement
from airflow_provider_snowpipe.spark.data_source.agreement import Agreement, RefusedByAnotherError

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
