"""The numbers in the end, and whether they agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from airflow_provider_snowpipe.streaming.progress import ChannelStatus
from demo.progress import committed_position


@dataclass(frozen=True, slots=True)
class Report:
    """What the source has, what the table has, and what this run did about it.

    :param table: the table
    :param expected: rows of the source, by origin
    :param before: rows of the table before the run
    :param found: rows and distinct flights of the table after the run, read through the service
    :param sent: rows that the run's last Spark job sent
    :param tries: how often Airflow tried that job
    :param targets: the target token of each channel
    :param statuses: what the service reports of each channel
    :param seconds: how long the demo took
    """

    table: str
    expected: Mapping[str, Mapping[str, int]]
    before: int
    found: Mapping[str, int]
    sent: int
    tries: int
    targets: Mapping[str, str]
    statuses: Mapping[str, ChannelStatus]
    seconds: float

    @property
    def expected_rows(self) -> int:
        """Rows of the source."""
        return sum(origin["rows"] for origin in self.expected.values())

    @property
    def duplicates(self) -> int:
        """Rows of the table beyond the first of each flight."""
        return self.found["rows"] - self.found["flights"]

    @property
    def differences(self) -> list[str]:
        """Describe which numbers disagree; empty when all agree."""
        found = []
        if self.found["rows"] != self.expected_rows:
            found.append(f"the table has {self.found['rows']:,} rows, the source {self.expected_rows:,}")
        if self.duplicates:
            found.append(f"{self.duplicates:,} rows are duplicates")
        # After a retry the last job's count lacks what the first had already committed.
        if self.tries == 1 and self.sent != self.expected_rows - self.before:
            found.append(
                f"{self.expected_rows - self.before:,} rows were missing, but {self.sent:,} were sent"
            )
        for channel, status in self.statuses.items():
            if status.committed != self.targets.get(channel):
                found.append(f"{channel} is at {status.committed}, its target is {self.targets.get(channel)}")
            if status.rows_error_count:
                found.append(f"{channel} has {status.rows_error_count:,} rejected rows")
        return found

    @property
    def agrees(self) -> bool:
        """True when every number agrees."""
        return not self.differences

    def render(self) -> RenderableType:
        """Return the report for a console."""
        channels = Table(box=None, pad_edge=False)
        for name in ("channel", "committed position"):
            channels.add_column(name)
        for name in ("rows", "rejected"):
            channels.add_column(name, justify="right")
        for channel, status in sorted(self.statuses.items()):
            rows, rejected = f"{status.rows_inserted:,}", f"{status.rows_error_count:,}"
            channels.add_row(channel, committed_position(status), rows, rejected)
        numbers = Table(box=None, pad_edge=False, show_header=False)
        numbers.add_column()
        numbers.add_column(justify="right")
        for name, value in (
            (f"rows in {self.table}", f"{self.found['rows']:,}"),
            ("rows expected", f"{self.expected_rows:,}"),
            ("duplicates", f"{self.duplicates:,}"),
            ("rows sent by this run", f"{self.sent:,}"),
            ("elapsed", f"{self.seconds:.1f} s"),
        ):
            numbers.add_row(name, value)
        return Group("", channels, "", numbers, "", self._verdict())

    def _verdict(self) -> Text:
        if not self.agrees:
            return Text("These numbers disagree: " + "; ".join(self.differences), style="bold red")
        if self.before == self.expected_rows:
            return Text(
                "Every number agrees; all rows were committed before: 0 new rows sent.", style="bold green"
            )
        if self.before:
            return Text(
                f"Every number agrees; resumed after {self.before:,} committed rows.", style="bold green"
            )
        return Text("Every number agrees.", style="bold green")
