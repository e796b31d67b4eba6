"""ALTER DATABASE and ALTER SCHEMA .. RENAME under writers, with the real connector, and through a kill."""

from __future__ import annotations

import itertools
import signal
import threading
from pathlib import Path

import psutil
import pytest
import snowflake.connector
from snowpipe_local.errors import ServiceError, SqlError
from snowpipe_local.testing import LocalService
from tests.integration.test_file_pipes import insert, wait_for_files
from tests.streaming_rest import Rest, continuation

RENAMES = [
    pytest.param("ALTER SCHEMA d.s RENAME TO d.r", ("D", "R"), id="schema"),
    pytest.param("ALTER DATABASE d RENAME TO e", ("E", "S"), id="database"),
]


def _make(service: LocalService) -> None:
    for statement in (
        "CREATE DATABASE d",
        "CREATE SCHEMA d.s",
        "CREATE TABLE d.s.t (id INT, n INT IDENTITY)",
    ):
        service.sql(statement)


@pytest.mark.parametrize(("statement", "schema_path"), RENAMES)
def test_queued_rows_and_the_open_session_of_a_channel_outlive_a_rename(
    crash_service: LocalService, statement: str, schema_path: tuple[str, str]
) -> None:
    service = crash_service
    _make(service)
    service.set_faults("hold-commits")
    before = Rest(service, "T", database="D", schema="S")
    token = continuation(before.open("c"))
    token = continuation(before.append("c", token, b'{"id":0}\n{"id":1}\n', "1"))
    service.sql(statement)
    # The rows wait for their commit still, and nobody writes by the old name any more.
    assert before.append("c", token, b'{"id":2}\n', "2").status_code == 404
    after = Rest(service, "T", database=schema_path[0], schema=schema_path[1])
    assert after.statuses("c")["c"]["last_committed_offset_token"] is None
    token = continuation(after.append("c", token, b'{"id":2}\n', "2"))
    service.admin("faults", clear=True)
    status = after.wait_for_token("c", "2")
    assert (status["database_name"], status["schema_name"]) == schema_path
    assert (status["rows_inserted"], status["channel_status_code"]) == (3, "SUCCESS")
    name = ".".join(schema_path)
    assert service.sql(f"SELECT count(*) c, max(id) i, count(DISTINCT n) n FROM {name}.t") == [
        {"C": 3, "I": 2, "N": 3}
    ]


@pytest.mark.parametrize(("statement", "schema_path"), RENAMES)
def test_the_connector_finds_stages_pipes_and_load_history_under_the_new_name(
    crash_service: LocalService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    statement: str,
    schema_path: tuple[str, str],
) -> None:
    service = crash_service
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(service.ca_file))
    _make(service)
    file = tmp_path / "a.csv"
    file.write_text("1\n2\n")
    where = {**service.connector_arguments, "database": "D", "schema": "S"}
    with snowflake.connector.connect(**where) as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE STAGE g")
        cursor.execute("CREATE TABLE piped (id INT)")
        cursor.execute("CREATE PIPE p AS COPY INTO piped FROM @g")
        for stage in ("@g", "@%t"):
            cursor.execute(f"PUT file://{file} {stage} AUTO_COMPRESS = FALSE")
        cursor.execute("COPY INTO t (id) FROM @%t")
        assert cursor.fetchall()[0][1] == "LOADED"
        insert(service, "D.S.P", "a.csv")
        wait_for_files(service, "D.S.P", 1)
        cursor.execute(statement)
        assert cursor.execute("SELECT CURRENT_DATABASE(), CURRENT_SCHEMA()").fetchone() == schema_path
        # What was loaded is not loaded again, by COPY or by the pipe.
        assert cursor.execute("COPY INTO t (id) FROM @%t").fetchall()[0][0].startswith("Copy executed with 0")
        other = tmp_path / "b.csv"
        other.write_text("3\n")
        cursor.execute(f"PUT file://{other} @g AUTO_COMPRESS = FALSE")
        name = ".".join(schema_path)
        insert(service, f"{name}.P", "a.csv", "b.csv")
        files = wait_for_files(service, f"{name}.P", 2)
        assert sorted(entry["path"] for entry in files) == ["a.csv", "b.csv"]
        assert cursor.execute("SELECT id FROM piped ORDER BY 1").fetchall() == [(1,), (2,), (3,)]
        (tmp_path / "got").mkdir()
        cursor.execute(f"GET @g/b.csv file://{tmp_path}/got/")
        assert (tmp_path / "got" / "b.csv").read_text() == "3\n"
        history = cursor.execute(
            "SELECT file_name, pipe_schema_name FROM TABLE(information_schema.copy_history("
            "TABLE_NAME => 'PIPED', START_TIME => DATEADD(hour, -1, CURRENT_TIMESTAMP())))"
        ).fetchall()
        assert sorted(history) == [("a.csv", schema_path[1]), ("b.csv", schema_path[1])]
        assert cursor.execute("SELECT count(*), count(DISTINCT n) FROM t").fetchone() == (2, 2)


@pytest.mark.parametrize(
    ("statement", "schema_path", "point"),
    [
        pytest.param(*RENAMES[0].values, "after-rename-commit", id="schema"),
        pytest.param(*RENAMES[1].values, "before-rename-commit", id="database", marks=pytest.mark.nightly),
    ],
)
def test_a_rename_that_a_kill_interrupts_is_whole_or_not_there_at_the_next_start(
    crash_service: LocalService, statement: str, schema_path: tuple[str, str], point: str
) -> None:
    service = crash_service
    _make(service)
    service.set_faults(f"kill-{point}=1")
    for grant in (
        "CREATE ROLE reader",
        "GRANT USAGE ON DATABASE d TO ROLE reader",
        "GRANT USAGE ON SCHEMA d.s TO ROLE reader",
        "GRANT SELECT ON TABLE d.s.t TO ROLE reader",
        "CREATE FILE FORMAT d.s.f TYPE = CSV",
        "CREATE STAGE local.public.g FILE_FORMAT = (FORMAT_NAME = 'd.s.f')",
    ):
        service.sql(grant)
    rest = Rest(service, "T", database="D", schema="S")
    token = continuation(rest.open("c"))
    rest.append("c", token, b'{"id":0}\n', "0")
    rest.wait_for_token("c", "0")
    process = psutil.Process(service.pid)
    with pytest.raises(ServiceError):
        service.sql(statement)
    assert process.wait(timeout=300) == -signal.SIGKILL
    service.kill()
    service.restart()
    there, gone = (("D", "S"), schema_path) if point.startswith("before") else (schema_path, ("D", "S"))
    name = ".".join(there)
    assert service.sql(f"SELECT count(*) c, max(n) n FROM {name}.t") == [{"C": 1, "N": 1}]
    with pytest.raises(SqlError, match="not exist"):
        service.sql(f"SELECT * FROM {'.'.join(gone)}.t")
    assert _granted(service) == [there[0], name, f"{name}.T"]
    described = {row["property"]: row["property_value"] for row in service.sql("DESC STAGE g")}
    assert described["FORMAT_NAME"] == f"{name}.F"
    rest = Rest(service, "T", database=there[0], schema=there[1])
    assert rest.statuses("c")["c"]["last_committed_offset_token"] == "0"
    # The other name is free, and what is there now is not taken for what was renamed.
    service.sql(f"CREATE DATABASE {gone[0]}" if gone[0] != there[0] else f"CREATE SCHEMA {'.'.join(gone)}")
    service.restart()
    assert service.sql(f"SELECT count(*) c FROM {name}.t") == [{"C": 1}]
    assert _granted(service) == [there[0], name, f"{name}.T"]


def _granted(service: LocalService) -> list[str]:
    return sorted(row["name"] for row in service.sql("SHOW GRANTS TO ROLE reader"))


_A, _B = ([1], ["RA"], ["from_a"], "of a"), ([2], ["RB"], ["from_b"], "of b")
# By statement, what is there after it; a table has rows, roles that may read it, staged files and a comment.
CHANGES = {
    "ALTER TABLE a SWAP WITH b": {"A": _B, "B": _A},
    "ALTER TABLE a RENAME TO c": {"B": _B, "C": _A},
    "CREATE OR REPLACE TABLE a AS SELECT 9 AS id": {"A": ([9], [], [], ""), "B": _B},
    "CREATE OR REPLACE TABLE a COPY GRANTS AS SELECT 9 AS id": {"A": ([9], ["RA"], [], ""), "B": _B},
    "CREATE TABLE c LIKE b COPY GRANTS": {"A": _A, "B": _B, "C": ([], ["RB"], [], "")},
}


def _tables(service: LocalService) -> dict[str, tuple[list[int], list[str], list[str], str]]:
    found = {}
    for row in service.sql("SHOW TABLES"):
        name = row["name"]
        grants = service.sql(f"SHOW GRANTS ON TABLE {name}")
        assert [each["grantee_name"] for each in grants if each["privilege"] == "OWNERSHIP"] == [row["owner"]]
        found[name] = (
            [row["ID"] for row in service.sql(f"SELECT id FROM {name}")],
            [each["grantee_name"] for each in grants if each["privilege"] == "SELECT"],
            [file["name"].partition("/")[0] for file in service.sql(f"LIST @%{name}")],
            row["comment"],
        )
    return found


_SWAP = next(iter(CHANGES))


@pytest.mark.parametrize(
    ("statement", "point"),
    [
        pytest.param(*pair, marks=() if pair == (_SWAP, "after-table-commit") else pytest.mark.nightly)
        for pair in itertools.product(
            CHANGES, ("before-table-commit", "after-table-commit", "before-intent-end")
        )
    ],
)
def test_a_change_of_tables_that_a_kill_interrupts_is_whole_or_not_there_at_the_next_start(
    crash_service: LocalService, statement: str, point: str
) -> None:
    service = crash_service
    for number, name in enumerate("ab", 1):
        service.sql(f"CREATE TABLE {name} COMMENT = 'of {name}' AS SELECT {number} AS id")
        service.sql(f"COPY INTO @%{name}/from_{name}/ FROM (SELECT 1)")
        service.sql(f"CREATE ROLE r{name}")
        service.sql(f"GRANT SELECT ON TABLE {name} TO ROLE r{name}")
    service.set_faults(f"kill-{point}=1")
    with pytest.raises(ServiceError):
        service.sql(statement)
    service.kill()
    for _ in range(2):
        service.restart()
        expected = {"A": _A, "B": _B} if point.startswith("before-table") else CHANGES[statement]
        assert _tables(service) == expected
    service.sql("CREATE OR REPLACE TABLE a AS SELECT 3 AS id")
    assert _tables(service)["A"] == ([3], [], [], "")


def test_a_table_can_be_swapped_with_itself_and_readers_always_find_it(crash_service: LocalService) -> None:
    service = crash_service
    service.sql("CREATE TABLE a AS SELECT 1 AS id")
    service.sql("CREATE TABLE b AS SELECT 2 AS id")
    service.sql("ALTER TABLE a SWAP WITH a")
    assert service.sql("SELECT id FROM a") == [{"ID": 1}]
    seen: list[int] = []
    failed: list[str] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                seen.extend(row["ID"] for row in service.sql("SELECT id FROM a"))
            except SqlError as error:
                failed.append(str(error))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(40):
            service.sql("ALTER TABLE a SWAP WITH b")
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert not failed
    assert set(seen) == {1, 2}
    service.restart()
    assert service.sql("SELECT id FROM a") == [{"ID": 1}]
