"""A Spark session in the tests' own process, and a table of a local service to write to."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.spark.credentials import write_credentials
from airflow_provider_snowpipe.spark.jvm import ensure_java_home
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.status import ChannelStatus
from tests.local_service import LocalService
from tests.spark_in_process import stop_gateway

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]


def spark_environment(folder: Path) -> dict[str, str]:
    """What a Spark driver in this checkout needs in its environment."""
    java = ensure_java_home(folder)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **({"JAVA_HOME": str(java)} if java else {}),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": path,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@contextmanager
def session(folder: Path, master: str, **settings: str) -> Iterator[SparkSession]:
    """A session that ends with the block, and its JVM with it."""
    os.environ.update(spark_environment(folder))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("tests").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.sql.session.timeZone": "UTC",
        "spark.speculation": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
        stop_gateway()


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
        """Make the table and the credentials file."""
        self.service.sql(f"CREATE TABLE LOCAL.PUBLIC.{self.table} ({self.columns})")
        if not self.credentials.exists():
            key = KeyPair(self.service.account, self.service.user, self.service.key_file.read_bytes())
            write_credentials(key, self.credentials)
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
        """Committed offset tokens, by what follows the prefix in the channels' names."""
        return {part: status.committed for part, status in self.statuses(*parts).items()}

    def ids(self, where: str = "TRUE") -> list[int]:
        """The rows' numbers in the order in which they were inserted."""
        rows = self.service.sql(f"SELECT ID FROM LOCAL.PUBLIC.{self.table} WHERE {where}")
        return [int(next(iter(row.values()))) for row in rows]
