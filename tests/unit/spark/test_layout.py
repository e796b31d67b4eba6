"""Which rows come together and in which order: the settings, without Spark."""

from contextlib import suppress

import pytest

from airflow_provider_snowpipe.spark.sources.tables.plan_order import (
    PINNED,
    free_layout,
    pin_layout,
    pinned_layout,
    unpinned,
)

ADAPTIVE, SORTED, SIZE, COST, ZONE = PINNED


class Session:
    """What a session's settings are."""

    def __init__(self):
        self.conf = self
        self.settings = {ADAPTIVE: "true", SORTED: "true", SIZE: "128MB", COST: "4MB", ZONE: "Europe/Oslo"}
        self.get, self.set = self.settings.__getitem__, self.settings.__setitem__


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_layout_is_pinned_inside_the_block_and_the_own_settings_come_back(error):
    session = Session()
    own = dict(session.settings)

    def ask():
        assert session.settings == {**PINNED, ADAPTIVE: "true"}
        if error:
            raise error

    with suppress(RuntimeError), pinned_layout(session):
        assert session.settings == PINNED
        with suppress(RuntimeError), free_layout(session):
            ask()
        assert session.settings == PINNED
        if error:
            raise error

    assert session.settings == own


def test_settings_that_differ_are_reported_however_spark_spells_them():
    session = Session()
    assert unpinned(session) == {ADAPTIVE: "true", SIZE: "128MB", COST: "4MB", ZONE: "Europe/Oslo"}

    pin_layout(session)
    assert unpinned(session) == {}
    session.settings |= {ADAPTIVE: "FALSE", SIZE: f"{1 << 40}b", COST: f"{1 << 40}B", ZONE: "utc"}
    assert unpinned(session) == {}
    session.settings |= {ADAPTIVE: "falseb", SIZE: f"{1 << 40}x", ZONE: "UTCb"}
    assert unpinned(session) == {ADAPTIVE: "falseb", SIZE: f"{1 << 40}x", ZONE: "UTCb"}
