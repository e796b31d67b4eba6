"""What a death at a named point leaves of rows, tokens and loads."""

import contextlib
import signal
import threading
from pathlib import Path

import psutil
import pytest
import requests
import snowflake.connector
from snowpipe_local.testing import LocalService
from tests.streaming_rest import Rest, Writer

ROW = b'{"id":0}\n'


def _restart_after_death(service: LocalService, dying: psutil.Process) -> None:
    assert dying.wait(timeout=300) == -signal.SIGKILL
    service.kill()
    service.restart()


@pytest.mark.parametrize(
    ("point", "rows"),
    [
        ("after-append-answer", {0, 1}),
        ("after-commit", {1}),
        pytest.param("before-append", {0}, marks=pytest.mark.nightly),
        pytest.param("before-append-answer", {0, 1}, marks=pytest.mark.nightly),
        pytest.param("before-commit", {0}, marks=pytest.mark.nightly),
    ],
)
def test_rows_and_token_agree_after_a_death_at_a_named_point(
    crash_service: LocalService, point: str, rows: set[int]
) -> None:
    service = crash_service
    service.set_faults(f"kill-{point}=1")
    service.sql("CREATE TABLE t (id INT)")
    dying = psutil.Process(service.pid)
    channel = Writer(Rest(service, "T"))

    def write() -> None:
        with contextlib.suppress(requests.RequestException):
            channel.append(ROW, 0)

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    _restart_after_death(service, dying)
    writing.join(300)
    assert not writing.is_alive()
    committed = Rest(service, "T").committed("c")
    (row,) = service.sql("SELECT count(*) n FROM t")
    assert row["N"] in rows
    assert committed == ("0" if row["N"] else None)


ROWS = 2000


def fill(folder: Path, files: int) -> None:
    for number in range(files):
        lines = (f"{number * ROWS + row},text {row}\n" for row in range(ROWS))
        (folder / f"{number:02}.csv").write_text("".join(lines))


@pytest.mark.parametrize(
    ("point", "files"),
    [("after-load-commit", 5), pytest.param("before-load-commit", 0, marks=pytest.mark.nightly)],
)
def test_a_death_leaves_all_files_of_a_statement_or_none(
    crash_service: LocalService, point: str, files: int
) -> None:
    service = crash_service
    folder = service.new_folder()
    fill(folder, 5)
    service.set_faults(f"kill-{point}=1")
    service.sql("CREATE TABLE t (id INT, name VARCHAR)")
    dying = psutil.Process(service.pid)
    statement = f"COPY INTO t FROM 'file://{folder}/'"
    asking = threading.Thread(target=service.cli, args=("sql", statement), daemon=True)
    asking.start()
    _restart_after_death(service, dying)
    asking.join()
    assert service.sql("SELECT count(*) AS n FROM t") == [{"N": files * ROWS}]
    assert service.sql("SELECT count(*) AS n FROM INFORMATION_SCHEMA.LOAD_HISTORY") == [{"N": files}]
    service.sql(statement)
    assert service.sql("SELECT count(*) AS n, count(DISTINCT id) AS d FROM t") == [
        {"N": 5 * ROWS, "D": 5 * ROWS}
    ]


def test_a_death_leaves_nothing_of_a_transaction_that_is_not_committed(
    crash_service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = crash_service
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(service.ca_file))
    folder = service.new_folder()
    fill(folder, 1)
    service.sql("CREATE TABLE t (id INT, name VARCHAR)")
    service.sql("CREATE TABLE ledger AS SELECT 'planned' AS state")
    statement = f"COPY INTO t FROM 'file://{folder}/'"
    connection = snowflake.connector.connect(**service.connector_arguments)
    for each in ("BEGIN", "UPDATE ledger SET state = 'loaded'", statement):
        connection.cursor().execute(each)
    service.kill()
    service.start()
    assert service.sql("SELECT state, (SELECT count(*) FROM t) AS n FROM ledger") == [
        {"STATE": "planned", "N": 0}
    ]
    assert service.sql("SELECT count(*) AS n FROM INFORMATION_SCHEMA.LOAD_HISTORY") == [{"N": 0}]
    assert service.sql(statement)[0]["status"] == "LOADED"
