"""Custom streaming pipes: transformations, matching by name, SHOW and DROP, and the system functions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from snowpipe_local.testing import LocalService
from tests.streaming_rest import Rest, Writer

STREAM = "FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING'))"


def send(service: LocalService, pipe: str, rows: list[bytes], name: str = "c") -> dict[str, Any]:
    """Send rows through a channel, wait for their commit, and return the channel's status."""
    body = b"".join(row + b"\n" for row in rows)
    return Writer(Rest(service, pipe=pipe), name).commit(body, len(rows) - 1)


def refused(service: LocalService, statement: str) -> str:
    done = service.cli("sql", statement)
    assert done.returncode == 1
    return done.stderr


def test_a_pipe_transforms_rows_and_sets_bad_ones_aside(local_service: LocalService) -> None:
    local_service.sql(
        "CREATE OR REPLACE TABLE p1 (id INT NOT NULL, name VARCHAR(5), at TIMESTAMP_NTZ, v VARIANT, "
        "n INT DEFAULT 7)"
    )
    local_service.sql(
        "CREATE PIPE transforming AS COPY INTO p1 (id, name, at, v) FROM (SELECT $1:a.id::INT, "
        'UPPER($1:name::STRING), $1:"at"::TIMESTAMP_NTZ, PARSE_JSON($1:text) ' + STREAM + ")"
    )
    status = send(
        local_service,
        "transforming",
        [
            b'{"a":{"id":12345678901},"name":"x","at":"2026-01-02T03:04:05","text":"{\\"k\\":[1]}"}',
            b'{"a":{"id":"2"},"name":null,"at":1767225600}',
            b'{"a":{"id":"two"}}',
            b'{"a":{}}',
            b'{"a":{"id":3},"name":"longer"}',
            b"nonsense",
            b'{"a":{"id":4},"text":"{"}',
        ],
    )
    assert (status["rows_inserted"], status["rows_error_count"]) == (2, 5)
    rows = local_service.sql("SELECT * FROM p1 ORDER BY id")
    assert rows == [
        {"ID": 2, "NAME": None, "AT": "2026-01-01T00:00:00", "V": None, "N": 7},
        {"ID": 12345678901, "NAME": "X", "AT": "2026-01-02T03:04:05", "V": {"k": [1]}, "N": 7},
    ]


def test_named_expressions_are_matched_to_columns(local_service: LocalService) -> None:
    local_service.sql("CREATE OR REPLACE TABLE p3 (a INT, b VARCHAR, loaded TIMESTAMP_LTZ)")
    local_service.sql(
        f"CREATE PIPE named AS COPY INTO p3 FROM (SELECT $1:x AS b, $1:y::INT + 1 AS a, "
        f"CURRENT_TIMESTAMP() AS loaded {STREAM}) MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
    )
    send(local_service, "named", [b'{"x":"text","y":41}'])
    send(local_service, "named", [b'{"x":"text","y":41}'], "d")
    assert local_service.sql("SELECT a, b, count(DISTINCT loaded) d FROM p3 GROUP BY a, b") == [
        {"A": 42, "B": "text", "D": 1}
    ]


def test_a_pipe_and_its_channels_survive_kill_9(crash_service: LocalService) -> None:
    crash_service.sql("CREATE TABLE p4 (id INT)")
    crash_service.sql(f"CREATE PIPE kept AS COPY INTO p4 FROM (SELECT $1:n {STREAM})")
    send(crash_service, "kept", [b'{"n":1}'])
    crash_service.kill()
    crash_service.start()
    send(crash_service, "kept", [b'{"n":2}'], "d")
    assert crash_service.sql("SELECT sum(id) s FROM p4") == [{"S": 3}]


def test_a_dropped_pipe_is_gone(local_service: LocalService) -> None:
    local_service.sql("CREATE OR REPLACE TABLE p4 (id INT)")
    local_service.sql(f"CREATE PIPE kept AS COPY INTO p4 FROM (SELECT $1:n {STREAM})")
    assert "already exists" in refused(
        local_service, f"CREATE PIPE kept AS COPY INTO p4 FROM (SELECT $1:n {STREAM})"
    )
    local_service.sql("DROP PIPE kept")
    gone = Rest(local_service, pipe="kept").info()
    assert (gone.status_code, gone.json()["code"]) == (404, "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED")
    local_service.sql("DROP PIPE IF EXISTS kept")
    assert "002003" in refused(local_service, "DROP PIPE kept")


def test_replacing_a_pipe_destroys_its_channels_and_dropping_the_table_the_pipe(
    local_service: LocalService,
) -> None:
    local_service.sql("CREATE OR REPLACE TABLE p5 (id INT)")
    create = f"CREATE OR REPLACE PIPE replaced AS COPY INTO p5 FROM (SELECT $1:n {STREAM})"
    local_service.sql(create)
    send(local_service, "replaced", [b'{"n":1}'])
    local_service.sql(create)
    assert Rest(local_service, pipe="replaced").statuses("c") == {}
    local_service.sql("DROP TABLE p5")
    assert "002003" in refused(local_service, "DESCRIBE PIPE replaced")


def test_pipes_are_shown_and_default_pipes_after_their_first_use_only(local_service: LocalService) -> None:
    local_service.sql("CREATE OR REPLACE TABLE p6 (id INT)")
    local_service.sql(f"CREATE PIPE p6_custom AS COPY INTO p6 FROM (SELECT $1:n {STREAM})")
    assert [row["name"] for row in local_service.sql("SHOW PIPES LIKE 'P6%'")] == ["P6_CUSTOM"]
    assert Rest(local_service, "P6").info().status_code == 200
    assert [row["name"] for row in local_service.sql("SHOW PIPES LIKE 'P6%'")] == [
        "P6-STREAMING",
        "P6_CUSTOM",
    ]
    (row,) = local_service.sql("DESC PIPE p6_custom")
    assert row["definition"].startswith("COPY INTO p6 FROM")
    (row,) = local_service.sql('DESCRIBE PIPE "P6-STREAMING"')
    assert "CASE_INSENSITIVE" in row["definition"]
    for statement in (
        'DROP PIPE "P6-STREAMING"',
        'ALTER PIPE "P6-STREAMING" SET PIPE_EXECUTION_PAUSED = TRUE',
        f'CREATE PIPE "P6-STREAMING" AS COPY INTO p6 FROM (SELECT $1:n {STREAM})',
    ):
        assert "managed by Snowflake" in refused(local_service, statement)


@pytest.mark.parametrize(
    ("pipe", "reason"),
    [
        (f"COPY INTO nowhere FROM (SELECT $1:n {STREAM})", "002003"),
        (f"COPY INTO p7 FROM (SELECT $1:n, $1:m {STREAM})", "002020"),
        (f"COPY INTO p7 (id) FROM (SELECT nonsense {STREAM})", "000904"),
        (f"COPY INTO p7 (other) FROM (SELECT $1:n {STREAM})", "000904"),
        (f"COPY INTO p7 FROM (SELECT $2:n {STREAM})", "000002"),
        (f"COPY INTO p7 FROM (SELECT $1:n {STREAM} WHERE 1=1)", "WHERE"),
        (f"COPY INTO p7 FROM (SELECT count($1:n) {STREAM})", "000002"),
        (f"COPY INTO p7 FROM (SELECT nosuchfunction($1:n) {STREAM})", "SQL"),
        (f"COPY INTO p7 FROM (SELECT $1:n {STREAM}) PURGE = TRUE", "PURGE"),
        ("COPY INTO p7 FROM @stage", "002003"),
    ],
)
def test_what_a_pipe_cannot_do_is_refused_when_it_is_created(
    local_service: LocalService, pipe: str, reason: str
) -> None:
    local_service.sql("CREATE TABLE IF NOT EXISTS p7 (id INT)")
    assert reason in refused(local_service, f"CREATE PIPE broken AS {pipe}")


def test_system_functions_report_a_pipe_and_set_a_token(local_service: LocalService) -> None:
    local_service.sql("CREATE OR REPLACE TABLE p8 (id INT)")
    send(local_service, "P8-STREAMING", [b'{"id":1}'])
    (row,) = local_service.sql("""SELECT SYSTEM$PIPE_STATUS('local.public."P8-STREAMING"')""")
    assert json.loads(next(iter(row.values())))["executionState"] == "RUNNING"
    function = "SYSTEM$SNOWPIPE_STREAMING_UPDATE_CHANNEL_OFFSET_TOKEN"
    local_service.sql(f"SELECT {function}('LOCAL.PUBLIC.P8', 'c', '41')")
    assert Rest(local_service, "P8").committed("c") == "41"
    assert "does not exist" in refused(local_service, f"SELECT {function}('LOCAL.PUBLIC.P8', 'no', '41')")
    assert "000002" in refused(local_service, "SELECT SYSTEM$UNKNOWN('x')")
