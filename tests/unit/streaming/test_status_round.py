"""One round of status requests: whose failure is whose, and which refusals are asked again in halves."""

from airflow_provider_snowpipe.streaming.commits import PolledStatuses, poll_statuses
from airflow_provider_snowpipe.streaming.errors import (
    ApiError,
    AuthenticationError,
    PipeFailedOverError,
    PipeNotFoundError,
    RetriesExhaustedError,
)
from airflow_provider_snowpipe.streaming.progress import ChannelStatus

NAMES = [f"c{number:03}" for number in range(250)]


class Source:
    """A client that refuses every request that names one channel."""

    def __init__(self, error=None, bad=""):
        self.asked = []
        self._error, self._bad = error, bad

    def channel_statuses(self, names):
        self.asked.append(list(names))
        if self._bad in names:
            raise self._error
        return {name: ChannelStatus(name, "SUCCESS", "a:1") for name in names}

    def close(self):
        raise AssertionError("a poll does not close its client")


def test_asks_after_a_hundred_channels_a_request():
    source = Source()

    polled = poll_statuses(source, NAMES)

    assert [len(names) for names in source.asked] == [100, 100, 50]
    assert (list(polled.statuses), polled.errors) == (NAMES, {})


def test_a_name_that_is_refused_harms_no_other():
    for status in (400, 413, 422):
        source = Source(ApiError("bad", http_status=status), "c142")

        polled = poll_statuses(source, NAMES)

        assert list(polled.errors) == ["c142"]
        assert sorted(polled.statuses) == [name for name in NAMES if name != "c142"]
        assert len(source.asked) <= 3 + 2 * 7


def test_only_a_refusal_of_the_request_is_asked_again_in_halves():
    for status, again in {399: False, 400: True, 499: True, 500: False}.items():
        source = Source(ApiError("no", http_status=status), "bad")

        poll_statuses(source, ["bad", "b", "c", "d"])

        halves = [["bad", "b"], ["bad"], ["b"], ["c", "d"]] if again else []
        assert source.asked == [["bad", "b", "c", "d"], *halves]


def test_refused_channel_keeps_the_services_own_error():
    for status in (400, 500):
        error = ApiError("no", http_status=status)
        assert poll_statuses(Source(error, "bad"), ["bad"]) == PolledStatuses({}, {"bad": error})
    assert PolledStatuses.failed(["a", "b"], error) == PolledStatuses({}, {"a": error, "b": error})


def test_an_answer_that_makes_no_sense_is_not_asked_for_again():
    source = Source(ApiError("malformed", http_status=200), "c000")

    polled = poll_statuses(source, NAMES)

    assert len(source.asked) == 3
    assert sorted(polled.errors) == NAMES[:100]


def test_an_outage_is_met_once_and_not_for_every_hundred():
    for error in (
        RetriesExhaustedError("unreachable"),
        AuthenticationError("refused"),
        PipeFailedOverError("moved", http_status=410),
        PipeNotFoundError("no pipe", http_status=404),
    ):
        source = Source(error, "c100")

        polled = poll_statuses(source, NAMES)

        assert len(source.asked) == 2
        assert sorted(polled.statuses) == NAMES[:100]
        assert polled.errors == dict.fromkeys(NAMES[100:], error)
