"""What a death at a named point leaves of loads."""

import signal
import threading
from pathlib import Path

import psutil
import pytest
import snowflake.connector
from snowpipe_local.testing import LocalService

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
    assert dying.wait(timeout=300) == -signal.SIGKILL
    service.kill()
    service.restart()
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
