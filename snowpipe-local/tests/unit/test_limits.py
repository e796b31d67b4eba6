import random

import pytest
from snowpipe_local.errors import ConfigurationError, Refusal
from snowpipe_local.limits import ChannelRate, Limits, parse_limits


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_client_at_the_rate_is_never_refused_and_one_above_it_is():
    clock, jitter = Clock(), random.Random(1)
    rate = ChannelRate(Limits(), clock)
    for number in range(3000):
        clock.now = max(clock.now, 100 + number * 0.1 + jitter.uniform(-0.4, 0.4))
        rate.take("c", 1_900_000)
    clock = Clock()
    rate = ChannelRate(Limits(), clock)

    def send() -> None:
        for _ in range(200):
            clock.now += 0.05
            rate.take("c", 10)

    with pytest.raises(Refusal, match="requests/s") as refusal:
        send()
    assert refusal.value.status == 429
    clock = Clock()
    rate = ChannelRate(Limits(), clock)
    rate.take("c", 100_000_000)
    with pytest.raises(Refusal, match="bytes/s"):
        rate.take("c", 1)
    clock.now += 2.1
    rate.take("c", 1)


def test_limits_are_named_and_zero_or_off_means_none():
    assert parse_limits("requests-per-second=0").requests_per_second == 0
    off = ChannelRate(parse_limits("off"))
    for _ in range(1000):
        off.take("c", 1 << 30)
    for text in [
        "x=1", "requests_per_second=1", "request-bytes=0", "request-bytes=1.5", "channels-per-pipe=-1",
        "bytes-per-second=a",
    ]:  # fmt: skip
        with pytest.raises(ConfigurationError):
            parse_limits(text)
