"""ERROR_LOGGING and ERROR_TABLE: rejected rows with their reason and payload, through SQL."""

from __future__ import annotations

from snowpipe_local.testing import LocalService
from tests.streaming_rest import Rest, Writer

BAD = (
    b'{"id":1}\n{"id":"x","more":[1]}\nnope\n{"id":2,"name":"12345678901"}\n'
    b'{"id":4,"name":"\xff"}\n{"name":"a"}\n'
)


def _send(service: LocalService, body: bytes, first: int, last: int) -> None:
    Writer(Rest(service, "LOGGED")).commit(body, last, params={"startOffsetToken": str(first)})


def test_rejected_rows_are_in_the_error_table_with_the_documented_columns(
    local_service: LocalService,
) -> None:
    local_service.sql(
        "CREATE OR REPLACE TABLE logged (id INT NOT NULL, name VARCHAR(10)) ERROR_LOGGING = TRUE"
    )
    _send(local_service, BAD, 0, 5)
    rows = local_service.sql("SELECT * FROM ERROR_TABLE(logged)")
    assert [list(row) for row in rows] == [
        ["TIMESTAMP", "QUERY_ID", "ERROR_CODE", "ERROR_METADATA", "ERROR_DATA"]
    ] * 5
    found = {
        (row["ERROR_CODE"], row["ERROR_METADATA"]["error_source"], str(row["ERROR_DATA"]["$1"]))
        for row in rows
    }
    assert found == {
        (100038, "ID", "{'id': 'x', 'more': [1]}"),
        (100069, None, "nope"),
        (100078, "NAME", "{'id': 2, 'name': '12345678901'}"),
        (100069, None, "eyJpZCI6NCwibmFtZSI6Iv8ifQ=="),
        (100072, "ID", "{'name': 'a'}"),
    }
    metadata = rows[0]["ERROR_METADATA"]
    assert metadata["service"] == "snowpipe_streaming"
    assert metadata["error_message"]
    details = {key: value for key, value in metadata["details"].items() if key != "error_data_content_type"}
    assert details == {
        "pipe_name": "LOGGED-STREAMING",
        "channel_name": "c",
        "offset_token_lower_bound": "0",
        "offset_token_upper_bound": "5",
        "error_data_truncated": False,
    }
    kinds = {row["ERROR_METADATA"]["details"]["error_data_content_type"] for row in rows}
    assert kinds == {"json", "json-invalid", "binary-base64"}


def test_paths_into_metadata_and_data_can_be_queried(local_service: LocalService) -> None:
    local_service.sql("CREATE OR REPLACE TABLE logged (id INT) ERROR_LOGGING = TRUE")
    _send(local_service, b'{"id":"x"}\n', 3, 3)
    assert local_service.sql(
        'SELECT e.error_metadata:details.channel_name::STRING c, e.error_data:"$1".id::STRING d '
        "FROM ERROR_TABLE(local.public.logged) e WHERE error_metadata:service = 'snowpipe_streaming'"
    ) == [{"C": "c", "D": "x"}]


def test_the_error_table_is_truncated_by_itself_and_goes_with_its_table(local_service: LocalService) -> None:
    local_service.sql("CREATE OR REPLACE TABLE logged (id INT) ERROR_LOGGING = TRUE")
    _send(local_service, b'{"id":"x"}\n{"id":1}\n', 0, 1)
    local_service.sql("TRUNCATE ERROR_TABLE(logged)")
    assert local_service.sql("SELECT count(*) n FROM ERROR_TABLE(logged)") == [{"N": 0}]
    assert local_service.sql("SELECT count(*) n FROM logged") == [{"N": 1}]
    _send(local_service, b'{"id":"y"}\n', 2, 2)
    local_service.sql("CREATE OR REPLACE TABLE logged (id INT) ERROR_LOGGING = TRUE")
    assert local_service.sql("SELECT count(*) n FROM ERROR_TABLE(logged)") == [{"N": 0}]


def test_logging_is_switched_by_alter_table(local_service: LocalService) -> None:
    local_service.sql("CREATE OR REPLACE TABLE logged (id INT)")
    _send(local_service, b'{"id":"x"}\n', 0, 0)
    for statement in ("SELECT * FROM ERROR_TABLE(logged)", "TRUNCATE ERROR_TABLE(logged)"):
        done = local_service.cli("sql", statement)
        assert done.returncode == 1
        assert "ERROR_LOGGING" in done.stderr
    local_service.sql("ALTER TABLE logged SET ERROR_LOGGING = TRUE")
    _send(local_service, b'{"id":"y"}\n', 1, 1)
    assert [row["ERROR_DATA"]["$1"] for row in local_service.sql("SELECT * FROM ERROR_TABLE(logged)")] == [
        {"id": "y"}
    ]
    local_service.sql("ALTER TABLE logged UNSET ERROR_LOGGING")
    assert local_service.cli("sql", "SELECT * FROM ERROR_TABLE(logged)").returncode == 1
    for statement in ("ALTER TABLE logged SET COLOR = 1", "ALTER TABLE logged JUMP"):
        assert "000002" in local_service.cli("sql", statement).stderr
