"""Channels that are quiet for long: the service deletes them after 30 days, and no row is lost or doubled."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from tests.airflow_connections import set_connection
from tests.loaded_folder import Loaded, variables
from tests.local_connection import connect, ids, make_table
from tests.local_service import LocalService

__all__ = ["set_connection", "variables"]

DAY = dt.timedelta(days=1)


class Days:
    """A load, and the days that have passed."""

    def __init__(self, load: Loaded) -> None:
        self.load, self.after = load, dt.timedelta()

    def run(self, **options: Any) -> None:
        self.load.run(after=self.after, **options)

    def passes(self, days: int) -> None:
        self.load.service.admin("clock", move=days * DAY.total_seconds())
        self.after += days * DAY

    @property
    def is_whole(self) -> bool:
        """True where each row is in the table once."""
        table = ids(self.load.service, self.load.table)
        return table == list(range(next(self.load.ids)))


@pytest.fixture
def days(
    admin_service: LocalService,
    set_connection: Any,
    variables: dict[str, str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Days:
    table = make_table(admin_service, re.sub(r"\W+", "_", request.node.name.upper()))
    return Days(Loaded(admin_service, table, connect(admin_service, set_connection), tmp_path / "src"))


def test_partitions_that_are_quiet_are_kept_by_a_job_that_runs(days: Days) -> None:
    days.load.write("quiet/1.ndjson")
    for day in range(0, 40, 4):
        days.load.write(f"day-{day:02}/1.ndjson", rows=1)
        days.load.write("daily/all.ndjson", rows=1)
        days.run()
        days.passes(4)
    days.load.write("quiet/2.ndjson")
    days.run()

    assert days.load.audit() == []
    assert days.is_whole


@pytest.mark.parametrize("has_record", [True, False], ids=["same Airflow", "another Airflow"])
def test_a_partition_that_was_deleted_meanwhile_is_refused_and_goes_on_where_it_stood(
    days: Days, variables: dict[str, str], has_record: bool
) -> None:
    days.load.write("a/1.ndjson")
    days.run()
    days.passes(31)
    if not has_record:
        variables.clear()
    days.load.write("a/2.ndjson")

    with pytest.raises(SourcePositionError, match="30 days"):
        days.run()
    days.run(rebind="continue")

    assert days.is_whole
