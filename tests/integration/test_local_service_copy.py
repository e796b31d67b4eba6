"""COPY INTO through the service: crashes, clients, and channels that write at the same time."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import psutil
import pytest

from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from tests.conftest import ServiceFactory

ROWS = 2000


def fill(folder: Path, files: int) -> None:
    folder.mkdir()
    for number in range(files):
        lines = (f"{number * ROWS + row},text {row}\n" for row in range(ROWS))
        (folder / f"{number:02}.csv").write_text("".join(lines))


@pytest.mark.parametrize(("point", "files"), [("before-load-commit", 0), ("after-load-commit", 5)])
def test_a_death_leaves_all_files_of_a_statement_or_none(
    service_factory: ServiceFactory, tmp_path: Path, point: str, files: int
) -> None:
    folder = tmp_path / "in"
    fill(folder, 5)
    service = service_factory(f"kill-{point}=1", options=("--allow-folder", str(folder)))
    service.sql("CREATE TABLE t (id INT, name VARCHAR)")
    dying = psutil.Process(service.pid)
    statement = f"COPY INTO t FROM 'file://{folder}/'"
    asking = threading.Thread(target=service.cli, args=("sql", statement), daemon=True)
    asking.start()
    assert dying.wait(timeout=300) == -signal.SIGKILL
    asking.join()
    service.kill()
    service.restart()
    assert service.sql("SELECT count(*) AS n FROM t") == [{"N": files * ROWS}]
    assert service.sql("SELECT count(*) AS n FROM INFORMATION_SCHEMA.LOAD_HISTORY") == [{"N": files}]
    service.sql(statement)
    assert service.sql("SELECT count(*) AS n, count(DISTINCT id) AS d FROM t") == [
        {"N": 5 * ROWS, "D": 5 * ROWS}
    ]


def test_channels_commit_into_a_table_while_files_are_loaded_into_it(
    service_factory: ServiceFactory, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    fill(folder, 20)
    service = service_factory(options=("--allow-folder", str(folder)))
    service.sql("CREATE TABLE t (id INT, name VARCHAR)")
    statement = f"COPY INTO t FROM 'file://{folder}/'"
    loading = threading.Thread(target=service.sql, args=(statement,))
    with service.client("T") as client:
        channel = Channel.open(client, "c", IntegerOffset)
        loading.start()
        sent = 0
        while sent < 20 or loading.is_alive():
            channel.append(b'{"id":-1}\n', IntegerOffset(sent), IntegerOffset(sent), rows=1)
            channel.wait_for_commit(timeout=30)
            sent += 1
        channel.close()
    loading.join()
    counted = "SELECT count_if(id < 0) AS streamed, count_if(id >= 0) AS copied FROM t"
    assert service.sql(counted) == [{"STREAMED": sent, "COPIED": 20 * ROWS}]
