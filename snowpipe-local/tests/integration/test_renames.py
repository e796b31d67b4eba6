"""ALTER DATABASE, SCHEMA and TABLE under writers, readers and pipes, and through a kill."""

import itertools
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from snowpipe_local.errors import ServiceError, SqlError
from snowpipe_local.testing import LocalService
from tests.streaming_rest import Rest, Writer


@pytest.mark.parametrize(
    ("statement", "schema_path", "point"),
    [
        ("ALTER SCHEMA d.s RENAME TO d.r", ("D", "R"), "after-rename-commit"),
        pytest.param(
            "ALTER DATABASE d RENAME TO e", ("E", "S"), "before-rename-commit", marks=pytest.mark.nightly
        ),
    ],
)
def test_a_rename_that_a_kill_interrupts_is_whole_or_not_there_at_the_next_start(
    crash_service: LocalService, statement: str, schema_path: tuple[str, str], point: str
) -> None:
    service = crash_service
    service.set_faults(f"kill-{point}=1")
    for setup in (
        "CREATE DATABASE d", "CREATE SCHEMA d.s", "CREATE TABLE d.s.t (id INT, n INT IDENTITY)",
        "CREATE ROLE reader", "GRANT USAGE ON DATABASE d TO ROLE reader",
        "GRANT USAGE ON SCHEMA d.s TO ROLE reader", "GRANT SELECT ON TABLE d.s.t TO ROLE reader",
        "CREATE FILE FORMAT d.s.f TYPE = CSV",
        "CREATE STAGE local.public.g FILE_FORMAT = (FORMAT_NAME = 'd.s.f')",
    ):  # fmt: skip
        service.sql(setup)
    Writer(Rest(service, "T", database="D", schema="S")).commit(b'{"id":0}\n', 0)
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
    described = {row["property"]: row["property_value"] for row in service.sql("DESC STAGE g")}
    assert described["FORMAT_NAME"] == f"{name}.F"
    assert Rest(service, "T", database=there[0], schema=there[1]).committed("c") == "0"
    # The other name is free, and what is there now is not taken for what was renamed.
    service.sql(f"CREATE DATABASE {gone[0]}" if gone[0] != there[0] else f"CREATE SCHEMA {'.'.join(gone)}")
    service.restart()
    assert service.sql(f"SELECT count(*) c FROM {name}.t") == [{"C": 1}]
    granted = [row["name"] for row in service.sql("SHOW GRANTS TO ROLE reader")]
    assert sorted(granted) == [there[0], name, f"{name}.T"]


_A, _B = ([1], ["RA"], ["from_a"], "of a"), ([2], ["RB"], ["from_b"], "of b")
# By statement, what is there after it; a table has rows, roles that may read it, staged files and a comment.
CHANGES = {
    "ALTER TABLE a SWAP WITH b": {"A": _B, "B": _A},
    "ALTER TABLE a RENAME TO c": {"B": _B, "C": _A},
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


def test_readers_always_find_a_table_that_is_swapped(crash_service: LocalService) -> None:
    service = crash_service
    for number, name in enumerate("ab", 1):
        service.sql(f"CREATE TABLE {name} AS SELECT {number} AS id")
    service.sql("ALTER TABLE a SWAP WITH a")
    stop = threading.Event()

    def read() -> list[int]:
        seen = []
        while not stop.is_set():
            seen += [row["ID"] for row in service.sql("SELECT id FROM a")]
        return seen

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for _ in range(16):
                service.sql("ALTER TABLE a SWAP WITH b")
        finally:
            stop.set()
    assert {number for reader in readers for number in reader.result()} == {1, 2}
    service.restart()
    assert service.sql("SELECT id FROM a") == [{"ID": 1}]
