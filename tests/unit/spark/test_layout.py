"""Which rows come together and in which order: the settings, without Spark."""

from contextlib import suppress

import pytest

from airflow_provider_snowpipe.spark.sources.tables import plan_order

ADAPTIVE, SORTED, SIZE, COST, ZONE = plan_order.PINNED


class Session:
    def __init__(self):
        self.conf = self
        self.settings = {ADAPTIVE: "true", SORTED: "true", SIZE: "128MB", COST: "4MB", ZONE: "Europe/Oslo"}
        self.get, self.set = self.settings.__getitem__, self.settings.__setitem__


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_layout_is_pinned_inside_the_block_and_the_own_settings_come_back(error):
    session = Session()
    own = dict(session.settings)

    def ask():
        assert session.settings == {**plan_order.PINNED, ADAPTIVE: "true"}
        if error:
            raise error

    with suppress(RuntimeError), plan_order.pinned_layout(session):
        assert session.settings == plan_order.PINNED
        with suppress(RuntimeError), plan_order.free_layout(session):
            ask()
        assert session.settings == plan_order.PINNED
        if error:
            raise error

    assert session.settings == own


def test_settings_that_differ_are_reported_however_spark_spells_them():
    session = Session()
    assert plan_order.unpinned(session) == {ADAPTIVE: "true", SIZE: "128MB", COST: "4MB", ZONE: "Europe/Oslo"}
    plan_order.pin_layout(session)
    assert plan_order.unpinned(session) == {}
    session.settings |= {ADAPTIVE: "FALSE", SIZE: f"{1 << 40}b", COST: f"{1 << 40}B", ZONE: "utc"}
    assert plan_order.unpinned(session) == {}
    session.settings |= {ADAPTIVE: "falseb", SIZE: f"{1 << 40}x", ZONE: "UTCb"}
    assert plan_order.unpinned(session) == {ADAPTIVE: "falseb", SIZE: f"{1 << 40}x", ZONE: "UTCb"}
