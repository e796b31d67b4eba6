"""Streaming pipes: transformations, SHOW and DROP, system functions, and the rows that they reject."""

import json
from typing import Any

from snowpipe_local.testing import LocalService
from tests.streaming_rest import Rest, Writer, refused

STREAM = "FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING'))"


def send(service: LocalService, pipe: str, rows: list[bytes], name: str = "c") -> dict[str, Any]:
    """Send rows through a channel, wait for their commit, and return the channel's status."""
    body = b"".join(row + b"\n" for row in rows)
    return Writer(Rest(service, pipe=pipe), name).commit(body, len(rows) - 1)


def test_named_expressions_are_matched_to_columns(local_service: LocalService) -> None:
    local_service.sql("CREATE OR REPLACE TABLE p3 (a INT, b VARCHAR, loaded TIMESTAMP_LTZ)")
    local_service.sql(
        f"CREATE PIPE named AS COPY INTO p3 FROM (SELECT $1:x AS b, $1:y::INT + 1 AS a, "
        f"CURRENT_TIMESTAMP() AS loaded {STREAM}) MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
    )
    status = send(local_service, "named", [b'{"x":"text","y":41}', b'{"y":"no number"}', b"nonsense"])
    assert (status["rows_inserted"], status["rows_error_count"]) == (1, 2)
    send(local_service, "named", [b'{"x":"text","y":41}'], "d")
    assert local_service.sql("SELECT a, b, count(DISTINCT loaded) d FROM p3 GROUP BY a, b") == [
        {"A": 42, "B": "text", "D": 1}
    ]


def test_replacing_a_pipe_destroys_its_channels_and_dropping_the_table_the_pipe(
    local_service: LocalService,
) -> None:
    local_service.sql("CREATE TABLE p5 (id INT)")
    copy = f"AS COPY INTO p5 FROM (SELECT $1:n {STREAM})"
    local_service.sql(f"CREATE PIPE replaced {copy}")
    assert "already exists" in refused(local_service, f"CREATE PIPE replaced {copy}")
    send(local_service, "replaced", [b'{"n":1}'])
    local_service.sql(f"CREATE OR REPLACE PIPE replaced {copy}")
    assert Rest(local_service, pipe="replaced").statuses("c") == {}
    local_service.sql("DROP TABLE p5")
    assert "002003" in refused(local_service, "DESCRIBE PIPE replaced")
    gone = Rest(local_service, pipe="replaced").info()
    assert (gone.status_code, gone.json()["code"]) == (404, "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED")
    local_service.sql("DROP PIPE IF EXISTS replaced")
    assert "002003" in refused(local_service, "DROP PIPE replaced")


def test_pipes_are_shown_and_default_pipes_after_their_first_use_only(local_service: LocalService) -> None:
    def shown() -> list[str]:
        return [row["name"] for row in local_service.sql("SHOW PIPES LIKE 'P6%'")]

    local_service.sql("CREATE TABLE p6 (id INT)")
    local_service.sql(f"CREATE PIPE p6_custom AS COPY INTO p6 FROM (SELECT $1:n {STREAM})")
    assert shown() == ["P6_CUSTOM"]
    send(local_service, "P6-STREAMING", [b'{"id":1}'])
    assert shown() == ["P6-STREAMING", "P6_CUSTOM"]
    (row,) = local_service.sql("DESC PIPE p6_custom")
    assert row["definition"].startswith("COPY INTO p6 FROM")
    (row,) = local_service.sql('DESCRIBE PIPE "P6-STREAMING"')
    assert "CASE_INSENSITIVE" in row["definition"]
    for statement in (
        'DROP PIPE "P6-STREAMING"', 'ALTER PIPE "P6-STREAMING" SET PIPE_EXECUTION_PAUSED = TRUE',
        f'CREATE PIPE "P6-STREAMING" AS COPY INTO p6 FROM (SELECT $1:n {STREAM})',
    ):  # fmt: skip
        assert "managed by Snowflake" in refused(local_service, statement)
    (row,) = local_service.sql("""SELECT SYSTEM$PIPE_STATUS('local.public."P6-STREAMING"')""")
    assert json.loads(next(iter(row.values())))["executionState"] == "RUNNING"
    function = "SYSTEM$SNOWPIPE_STREAMING_UPDATE_CHANNEL_OFFSET_TOKEN"
    assert "does not exist" in refused(local_service, f"SELECT {function}('LOCAL.PUBLIC.P6', 'no', '41')")
    assert "000002" in refused(local_service, "SELECT SYSTEM$UNKNOWN('x')")


def test_what_a_pipe_cannot_do_is_refused_when_it_is_created(local_service: LocalService) -> None:
    local_service.sql("CREATE TABLE p7 (id INT)")
    assert "ERROR_LOGGING" in refused(local_service, "SELECT * FROM ERROR_TABLE(p7)")
    for copy, reason in (
        (f"nowhere FROM (SELECT $1:n {STREAM})", "002003"),
        (f"p7 FROM (SELECT $1:n, $1:m {STREAM})", "002020"),
        (f"p7 (id) FROM (SELECT nonsense {STREAM})", "000904"),
        (f"p7 (other) FROM (SELECT $1:n {STREAM})", "000904"), (f"p7 FROM (SELECT $2:n {STREAM})", "000002"),
        (f"p7 FROM (SELECT $1:n {STREAM} WHERE 1=1)", "WHERE"),
        (f"p7 FROM (SELECT count($1:n) {STREAM})", "000002"),
        (f"p7 FROM (SELECT nosuchfunction($1:n) {STREAM})", "SQL"),
        (f"p7 FROM (SELECT $1:n {STREAM}) PURGE = TRUE", "PURGE"), ("p7 FROM @stage", "002003"),
    ):  # fmt: skip
        assert reason in refused(local_service, f"CREATE PIPE broken AS COPY INTO {copy}"), copy


BAD = (
    b'{"id":1}\n{"id":"x","more":[1]}\nnope\n{"id":2,"name":"12345678901"}\n'
    b'{"id":4,"name":"\xff"}\n{"name":"a"}\n'
)


def _log(service: LocalService, body: bytes, first: int, last: int) -> None:
    Writer(Rest(service, "LOGGED")).commit(body, last, params={"startOffsetToken": str(first)})


def test_rejected_rows_are_in_the_error_table_with_the_documented_columns(
    local_service: LocalService,
) -> None:
    local_service.sql("CREATE TABLE logged (id INT NOT NULL, name VARCHAR(10)) ERROR_LOGGING = TRUE")
    _log(local_service, BAD, 0, 5)
    rows = local_service.sql("SELECT * FROM ERROR_TABLE(logged)")
    columns = ["TIMESTAMP", "QUERY_ID", "ERROR_CODE", "ERROR_METADATA", "ERROR_DATA"]
    assert [list(row) for row in rows] == [columns] * 5
    found = {
        (row["ERROR_CODE"], row["ERROR_METADATA"]["error_source"], str(row["ERROR_DATA"]["$1"]))
        for row in rows
    }
    assert found == {
        (100038, "ID", "{'id': 'x', 'more': [1]}"), (100069, None, "nope"),
        (100078, "NAME", "{'id': 2, 'name': '12345678901'}"),
        (100069, None, "eyJpZCI6NCwibmFtZSI6Iv8ifQ=="), (100072, "ID", "{'name': 'a'}"),
    }  # fmt: skip
    metadata = rows[0]["ERROR_METADATA"]
    assert (metadata["service"], bool(metadata["error_message"])) == ("snowpipe_streaming", True)
    details = {key: value for key, value in metadata["details"].items() if key != "error_data_content_type"}
    assert details == {
        "pipe_name": "LOGGED-STREAMING", "channel_name": "c", "offset_token_lower_bound": "0",
        "offset_token_upper_bound": "5", "error_data_truncated": False,
    }  # fmt: skip
    kinds = {row["ERROR_METADATA"]["details"]["error_data_content_type"] for row in rows}
    assert kinds == {"json", "json-invalid", "binary-base64"}
    assert local_service.sql(
        'SELECT e.error_metadata:details.channel_name::STRING c, e.error_data:"$1".id::STRING d '
        "FROM ERROR_TABLE(local.public.logged) e WHERE error_data:\"$1\".id = 'x'"
    ) == [{"C": "c", "D": "x"}]
    local_service.sql("TRUNCATE ERROR_TABLE(logged)")
    assert local_service.sql("SELECT count(*) n FROM ERROR_TABLE(logged)") == [{"N": 0}]
    assert local_service.sql("SELECT count(*) n FROM logged") == [{"N": 1}]
    _log(local_service, b'{"id":"y"}\n', 6, 6)
    local_service.sql("CREATE OR REPLACE TABLE logged (id INT) ERROR_LOGGING = TRUE")
    assert local_service.sql("SELECT count(*) n FROM ERROR_TABLE(logged)") == [{"N": 0}]
