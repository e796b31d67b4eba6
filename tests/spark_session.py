"""A table of a local service that DataFrames are written to, and the error that ends a write."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_snowpipe.spark.driver.credentials import write_credentials
from airflow_provider_snowpipe.streaming.progress import ChannelStatus
from tests.local_service import LocalService
from tests.spark_in_process import ROOT, spark_environment

__all__ = ["ROOT", "spark_environment"]


def our_error(error: BaseException) -> str:
    """Class and text of the error of ours that Spark wraps in its own."""
    found = re.findall(r"airflow_provider_snowpipe[\w.]*\.(\w+: .*)$", str(error), re.MULTILINE)
    assert found, str(error)[-3000:]
    return str(found[-1])


@dataclass
class Door:
    """A table that DataFrames are written to through ``format("snowpipe")``."""

    service: LocalService
    table: str
    credentials: Path
    columns: str = "ID NUMBER, P VARCHAR, NOTE VARCHAR"
    prefix: str = "ds"
    common: dict[str, Any] = field(default_factory=dict)

    def create(self) -> Door:
        self.service.sql(f"CREATE TABLE LOCAL.PUBLIC.{self.table} ({self.columns})")
        if not self.credentials.exists():
            write_credentials(self.service.credentials, self.credentials)
        return self

    def options(self, **more: Any) -> dict[str, str]:
        """Options of a write; None leaves one out."""
        options = {
            "accountUrl": self.service.url,
            "caBundle": str(self.service.ca_file),
            "credentialsFile": str(self.credentials),
            "database": "LOCAL",
            "schema": "PUBLIC",
            "table": self.table,
            "channelPrefix": self.prefix,
            "commitTimeout": "60",
            **self.common,
            **more,
        }
        return {name: str(value) for name, value in options.items() if value is not None}

    def statuses(self, *parts: Any) -> dict[Any, ChannelStatus]:
        """The state of channels, by what follows the prefix in their names."""
        with self.service.client(self.table) as client:
            found = client.channel_statuses([f"{self.prefix}_{part}" for part in parts])
        return {part: found[f"{self.prefix}_{part}"] for part in parts}

    def tokens(self, *parts: Any) -> dict[Any, str | None]:
        return {part: status.committed for part, status in self.statuses(*parts).items()}

    def ids(self, where: str = "TRUE") -> list[int]:
        """The rows' numbers in the order in which they were inserted."""
        rows = self.service.sql(f"SELECT ID FROM LOCAL.PUBLIC.{self.table} WHERE {where}")
        return [int(next(iter(row.values()))) for row in rows]
