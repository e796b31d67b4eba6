"""Snowpipe Streaming's REST API by plain HTTP, as Snowflake's SDK 1.9.1 uses it and as it is documented.

``guess`` marks what neither has: a real account may answer otherwise; then the local service has to change.
"""

import base64
import gzip
import json
import time

import jwt
import pytest
import zstandard
from tests.contract.account import SECONDS, Account, Pipe

from tests.waiting import wait_until


@pytest.fixture(scope="module")
def table(account: Account) -> str:
    return account.new_table()


@pytest.fixture(scope="module")
def pipe(account: Account, table: str) -> Pipe:
    made = account.pipe(table)
    assert made.info().status_code == 200
    return made


def line(number: int, text: str = "x") -> bytes:
    return json.dumps({"ID": number, "S": text}).encode() + b"\n"


def test_the_ingest_host_is_plain_text_and_the_exchange_answers_a_bare_jwt_for_an_hour(
    account: Account,
) -> None:
    assert account.ingest_name
    assert not set(account.ingest_name) & set(':/"{} \n')
    answer = account.exchange()
    assert answer.status_code == 200, answer.text
    assert jwt.decode(answer.text, options={"verify_signature": False})["exp"] - time.time() > 600


def test_pipe_info_has_what_file_mode_needs_and_makes_the_default_pipe(account: Account) -> None:
    table = account.new_table()
    answer = account.pipe(table).info()
    assert answer.status_code == 200, answer.text
    info = answer.json()
    for stage in (info["rowset_stage_location"], info["durable_stage_location"]):
        assert stage["location_type"] in ("S3", "AZURE", "GCS")
        kinds = [type(stage[name]) for name in ("region", "location", "use_s3_regional_url")]
        assert kinds == [str, str, bool]
        assert stage["expiry_time_ms"] > time.time() * 1000
        assert stage["creds"]
    assert len(base64.b64decode(info["encryption_info"]["pipe_key"])) >= 32
    assert info["encryption_info"]["pipe_key_id"]
    assert isinstance(info["encryption_info"]["diversifier"], str)
    shown = account.rows(f"SHOW PIPES LIKE '{table}%' IN SCHEMA {account.schema}")
    assert [row["name"] for row in shown] == [f"{table}-STREAMING"]


def test_a_new_channel_has_every_field_and_no_token(account: Account, pipe: Pipe) -> None:
    answer = pipe.open("fields")
    assert answer.status_code in (200, 201), answer.text
    assert isinstance(answer.json()["next_continuation_token"], str)
    status = answer.json()["channel_status"]
    names = ("database_name", "schema_name", "pipe_name", "channel_name", "channel_status_code")
    named = (account.database, account.schema, pipe.name, "fields", "SUCCESS")
    assert tuple(status[name] for name in names) == named
    assert status["last_committed_offset_token"] is None
    for number in ("created_on_ms", "rows_inserted", "rows_parsed", "rows_error_count"):
        assert type(status[number]) is int, number


def test_a_committed_token_means_visible_rows_in_each_encoding_and_with_empty_lines(account: Account) -> None:
    table, pipe = account.streamed()
    token = pipe.opened("c")
    bodies = {
        "gzip": gzip.compress(line(1)),
        "zstd": zstandard.compress(line(2) + b"\n" + line(3)),
        "": line(4) + b"\r\n" + line(5),
    }
    for number, (encoding, body) in enumerate(bodies.items()):
        headers = {"Content-Encoding": encoding} if encoding else {}
        answer = pipe.append("c", token, body, str(number), headers=headers)
        assert answer.status_code in (200, 202), answer.text
        token = answer.json()["next_continuation_token"]
    status = pipe.wait_for_token("c", "2")
    assert account.count(table) == 5
    assert (status["rows_inserted"], status["rows_error_count"]) == (5, 0)


def test_a_repeated_append_is_answered_again_and_its_rows_are_there_once(account: Account) -> None:
    table, pipe = account.streamed()
    first, query = pipe.opened("c"), {"requestId": "6f1f2a1e-60b5-4a2b-9b1c-0a1f5c0e7d11"}
    answers = [
        pipe.append("c", first, line(1), "1", params={**query, "retryCount": str(n)}) for n in range(2)
    ]
    assert [answer.status_code for answer in answers] == [answers[0].status_code] * 2
    assert answers[0].json()["next_continuation_token"] == answers[1].json()["next_continuation_token"]
    pipe.appended("c", answers[1].json()["next_continuation_token"], line(2), "2")
    pipe.wait_for_token("c", "2")
    assert account.count(table) == 2


def test_opening_fences_the_older_writer_and_keeps_the_committed_token(account: Account) -> None:
    table, pipe = account.streamed()
    older = pipe.appended("c", pipe.opened("c"), line(1), "1")
    pipe.wait_for_token("c", "1")
    again = pipe.open("c")
    assert again.json()["channel_status"]["last_committed_offset_token"] == "1"
    assert again.json()["channel_status"]["rows_inserted"] == 1
    refused = pipe.append("c", older, line(666), "666")
    assert 400 <= refused.status_code < 500
    assert isinstance(refused.json()["code"], str)
    pipe.appended("c", again.json()["next_continuation_token"], line(2), "2")
    pipe.wait_for_token("c", "2")
    assert account.rows(f"SELECT sum(id) AS s FROM {table}") == [{"s": 3}]


@pytest.mark.guess
def test_a_stale_continuation_token_is_answered_409_with_its_code(pipe: Pipe) -> None:
    older = pipe.opened("stale")
    pipe.opened("stale")
    refused = pipe.append("stale", older, line(1), "1")
    assert refused.status_code == 409
    assert refused.json()["code"] == "STALE_CONTINUATION_TOKEN_SEQUENCER"


@pytest.mark.guess
def test_an_empty_end_token_moves_nothing(account: Account) -> None:
    table, pipe = account.streamed()
    token = pipe.appended("c", pipe.opened("c"), line(1), "1")
    token = pipe.appended("c", token, line(2))
    wait_until(lambda: account.count(table) == 2, seconds=SECONDS)
    assert pipe.committed("c") == "1"


def test_bad_rows_are_counted_and_the_token_passes_them(account: Account) -> None:
    table, pipe = account.streamed("id INT NOT NULL, s VARCHAR(3)")
    body = line(1) + b'{"ID":"no number"}\n' + line(2, "too long") + line(3)
    pipe.appended("c", pipe.opened("c"), body, "4")
    status = pipe.wait_for_token("c", "4")
    assert (status["rows_inserted"], status["rows_parsed"], status["rows_error_count"]) == (2, 4, 2)
    assert status["last_error_message"]
    assert status["last_error_offset_upper_bound"] == "4"
    assert account.rows(f"SELECT id FROM {table} ORDER BY id") == [{"id": 1}, {"id": 3}]


def test_counters_grow_over_reopening(account: Account) -> None:
    _, pipe = account.streamed()
    for number in (1, 2):
        pipe.appended("c", pipe.opened("c"), line(number) + b'{"ID":"no number"}\n', str(number))
        status = pipe.wait_for_token("c", str(number))
        assert (status["rows_inserted"], status["rows_error_count"]) == (number, number)


def test_status_leaves_out_channels_that_there_are_not_and_always_has_the_elastic_one(pipe: Pipe) -> None:
    pipe.opened("there")
    assert set(pipe.statuses("there", "never opened", "ELASTIC")) == {"there", "ELASTIC"}


@pytest.mark.guess
def test_status_takes_a_hundred_names(pipe: Pipe) -> None:
    names = [f"n{number}" for number in range(101)]
    assert pipe.bulk_status(*names[:100]).status_code == 200
    assert pipe.bulk_status(*names).status_code == 400


def test_names_of_channels_are_exact(pipe: Pipe) -> None:
    pipe.opened("case")
    pipe.opened("a/b %41+\u00e4")
    assert set(pipe.statuses("case", "CASE", "a/b %41+\u00e4")) == {"case", "a/b %41+\u00e4"}


def test_a_pipe_is_found_in_any_case_and_a_quoted_one_as_it_is(account: Account, pipe: Pipe) -> None:
    for name, status in ((pipe.name.lower(), 200), (f'"{pipe.name}"', 200), (f'"{pipe.name.lower()}"', 404)):
        answer = Pipe(account, name).bulk_status()
        assert answer.status_code == status


def test_a_dropped_channel_is_gone_and_starts_without_a_token(pipe: Pipe) -> None:
    token = pipe.appended("dropped", pipe.opened("dropped"), line(1), "1")
    pipe.wait_for_token("dropped", "1")
    answer = pipe.drop("dropped")
    assert answer.status_code == 200
    assert isinstance(answer.json(), dict)
    assert "dropped" not in pipe.statuses("dropped")
    assert pipe.append("dropped", token, line(2), "2").status_code in (400, 404, 409)
    assert pipe.open("dropped").json()["channel_status"]["last_committed_offset_token"] is None


def test_an_unknown_pipe_is_a_404_with_a_code(account: Account) -> None:
    answer = account.pipe("NO_SUCH_TABLE").info()
    assert answer.status_code == 404
    assert answer.json()["code"].startswith("ERR_")


@pytest.mark.guess
def test_a_body_above_four_mebibytes_is_answered_413(pipe: Pipe) -> None:
    body = (b'{"ID":1}' + b" " * 1015 + b"\n") * 4097
    assert pipe.append("large", pipe.opened("large"), body, "1").status_code == 413


@pytest.mark.guess
@pytest.mark.parametrize("token", ["", "a.b.c"])
def test_a_wrong_token_is_a_401(pipe: Pipe, token: str) -> None:
    refused = pipe.call("POST", ":bulk-channel-status", token=token, json={"channel_names": []})
    assert refused.status_code == 401


def test_the_tables_route_makes_the_pipe_and_takes_no_tokens(account: Account) -> None:
    table = account.new_table()
    route = {
        "route": "/v2/streaming/data", "data": line(1) + line(2),
        "resource": f"databases/{account.database}/schemas/{account.schema}/tables/{table}",
    }  # fmt: skip
    answer = account.pipe(table).call("POST", "/rows", **route)
    assert answer.status_code == 200, answer.text
    wait_until(lambda: account.count(table) == 2, seconds=SECONDS)
    refused = account.pipe(table).call("POST", "/rows", params={"endOffsetToken": "1"}, **route)
    assert refused.status_code == 400


def test_a_token_is_set_by_sql_and_read_by_status_and_open(account: Account, table: str, pipe: Pipe) -> None:
    pipe.opened("moved")
    account.rows(
        "SELECT SYSTEM$SNOWPIPE_STREAMING_UPDATE_CHANNEL_OFFSET_TOKEN(%s, %s, %s)",
        f"{account.database}.{account.schema}.{table}", "moved", "41",
    )  # fmt: skip
    assert pipe.committed("moved") == "41"
    assert pipe.open("moved").json()["channel_status"]["last_committed_offset_token"] == "41"


@pytest.mark.guess
def test_tokens_of_two_hundred_characters_are_kept_and_an_opening_sets_one_with_the_counters_as_they_are(
    account: Account,
) -> None:
    _, pipe = account.streamed()
    appended, opened = (f"{number}/ä {'x' * 120}:1".ljust(200, "~") for number in (1, 2))
    pipe.appended("c", pipe.opened("c"), line(1) + b'{"ID":"no number"}\n', appended)
    pipe.wait_for_token("c", appended)
    assert pipe.open("c", offset_token=opened).status_code in (200, 201)
    status = pipe.wait_for_token("c", opened)
    assert (status["rows_inserted"], status["rows_error_count"]) == (1, 1)


def test_show_channels_reports_the_token_and_the_sequencers(account: Account, table: str, pipe: Pipe) -> None:
    pipe.appended("shown", pipe.opened("shown"), line(1), "7")
    pipe.wait_for_token("shown", "7")
    rows = [row for row in account.rows(f"SHOW CHANNELS IN TABLE {table}") if row["name"] == "shown"]
    (shown,) = rows
    names = "created_on name database_name schema_name table_name client_sequencer row_sequencer offset_token"
    assert set(names.split()) <= set(shown)
    assert shown["offset_token"] == "7"


def test_a_truncated_table_keeps_its_channels_and_a_replaced_one_ends_them(account: Account) -> None:
    table, pipe = account.streamed()
    token = pipe.appended("c", pipe.opened("c"), line(1), "1")
    pipe.wait_for_token("c", "1")
    account.rows(f"TRUNCATE TABLE {table}")
    assert pipe.committed("c") == "1"
    account.rows(f"CREATE OR REPLACE TABLE {table} (id INT, s VARCHAR)")
    assert pipe.append("c", token, line(2), "2").status_code >= 400
    pipe.info()
    status = pipe.statuses("c").get("c", {"channel_status_code": "missing"})
    assert status["channel_status_code"] != "SUCCESS"


VALUES: list[tuple[str, object, str]] = [
    ("NUMBER(10,2)", 1.25, "1.25"),
    ("NUMBER(10,2)", "1.25", "1.25"),
    ("FLOAT", "1e3", "1000"),
    ("BOOLEAN", True, "true"),
    ("BOOLEAN", 0, "false"),
    ("BOOLEAN", "true", "true"),
    ("VARCHAR", 12, "12"),
    ("VARCHAR", True, "true"),
    ("BINARY", "AAEC", "000102"),
    ("DATE", "2026-01-31", "2026-01-31"),
    ("DATE", "2026-01-31T10:00:00", "2026-01-31"),
    ("TIME", "10:11:12.5", "10:11:12"),
    ("TIMESTAMP_NTZ", "2026-01-31T10:11:12.123", "2026-01-31 10:11:12.123000000"),
    ("VARIANT", {"b": 1, "a": [1, None]}, '{"a":[1,null],"b":1}'),
    ("VARIANT", "[1]", '"[1]"'),
    ("ARRAY", 1, "[1]"),
]
TEXTS = {
    "VARIANT": "to_json({})",
    "ARRAY": "to_json({})",
    "TIMESTAMP_NTZ": "to_char({}, 'YYYY-MM-DD HH24:MI:SS.FF9')",
}


def test_values_of_each_type(account: Account) -> None:
    """One row has all of them; where one is refused, the message of the channel names its column."""
    table, pipe = account.streamed(", ".join(f"v{n} {column}" for n, (column, _, _) in enumerate(VALUES)))
    row = {f"V{n}": sent for n, (_, sent, _) in enumerate(VALUES)}
    pipe.appended("c", pipe.opened("c"), json.dumps(row).encode() + b"\n", "1")
    status = pipe.wait_for_token("c", "1")
    assert status["rows_error_count"] == 0, status["last_error_message"]
    texts = [TEXTS.get(column, "{}::varchar").format(f"v{n}") for n, (column, _, _) in enumerate(VALUES)]
    shown = ", ".join(f"{text} AS v{n}" for n, text in enumerate(texts))
    assert account.rows(f"SELECT {shown} FROM {table}") == [
        {f"v{n}": seen for n, (_, _, seen) in enumerate(VALUES)}
    ]
