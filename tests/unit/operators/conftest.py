"""A pipe in this process, and the operators of its channels."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.spark.driver.package_archive import write_package_archive
from airflow_provider_snowpipe.spark.submit import local_spark
from airflow_provider_snowpipe.streaming.progress import ListedChannel
from tests.fake_snowpipe import PAT, URL, FakeSnowpipe, snowpipe

__all__ = ["snowpipe"]


@pytest.fixture(autouse=True)
def no_columns_for_keys(monkeypatch):
    """No SQL, which nobody answers here."""
    monkeypatch.setattr(SnowpipeHook, "columns_for_keys", lambda _: ())


@pytest.fixture(autouse=True)
def spark_loads_all_rows(monkeypatch):
    """A script stands in for Spark, also on a local master."""
    monkeypatch.setenv("AIRFLOW__SNOWPIPE__LOCAL_ROWS_WITHOUT_SPARK", "False")


# Java is asked once, not by each submission of these tests.
asked_java_version = functools.cache(local_spark.java_version)


@pytest.fixture(autouse=True)
def java_version_is_read_once(monkeypatch):
    """A Java that is asked for its version costs as much as all else of a submission."""
    monkeypatch.setattr(local_spark, "java_version", asked_java_version)


@pytest.fixture(scope="session")
def package_archive(tmp_path_factory):
    return write_package_archive(tmp_path_factory.mktemp("package"))


@pytest.fixture(autouse=True)
def archive_is_compressed_once(package_archive, monkeypatch):
    """Each submission copies it: to compress the package costs as much as all else of one, too."""
    monkeypatch.setattr(
        "airflow_provider_snowpipe.operators.spark_job.write_package_archive",
        lambda directory: Path(shutil.copyfile(package_archive, directory / package_archive.name)),
    )


@pytest.fixture(autouse=True)
def drivers_are_followed_closely(monkeypatch):
    """A script stands in for Spark, and has often ended before the first read of its log."""
    monkeypatch.setattr("airflow_provider_snowpipe.operators.client_job._FOLLOW_SECONDS", 0.01)


@pytest.fixture
def make(snowpipe, set_connection, monkeypatch):
    """Make an operator on the pipe, whose SQL side sets any token that it is asked to."""
    extra = {"account": "a", "auth": "programmatic_access_token", "database": "DB"}
    conn_id = set_connection("fake", conn_type="snowpipe", host=URL, password=PAT, schema="S", extra=extra)

    def set_token(channel: str, token: str) -> None:
        snowpipe.channels[channel].committed = token

    def listed(_: SnowpipeHook) -> list[ListedChannel]:
        return [
            ListedChannel(
                name, "DB", "S", "T", "T-STREAMING", one.committed, one.session, one.next_append, None
            )
            for name, one in snowpipe.channels.items()
        ]

    monkeypatch.setattr(SnowpipeHook, "offset_tokens", lambda _: nullcontext(set_token))
    monkeypatch.setattr(SnowpipeHook, "list_channels", listed)

    def operator(kind: Any, **options: Any) -> Any:
        return kind(**{"task_id": "t", "table": "T", "snowflake_conn_id": conn_id, **options})

    return operator


def send(snowpipe: FakeSnowpipe, channel: str, *tokens: str) -> Callable[[str], None]:
    """Open a channel and append a row for each token; what appends one more in the same session."""
    client = snowpipe.client()
    continuation = client.open_channel(channel).continuation_token

    def append(token: str) -> None:
        nonlocal continuation
        continuation = client.append_rows(
            channel,
            b'{"ID": 1}\n',
            continuation_token=continuation,
            start_token=token,
            end_token=token,
            content_encoding=None,
            raw_length=10,
        )

    for token in tokens:
        append(token)
    return append
