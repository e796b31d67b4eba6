"""The official ``snowpipe-streaming`` SDK, unmodified."""

from pathlib import Path

import pytest
from tests.contract.account import Account


@pytest.fixture
def table(account: Account) -> str:
    return account.new_table()


def test_rows_are_visible_after_wait_for_commit_and_a_channel_resumes_after_the_committed_token(
    account: Account, table: str, tmp_path: Path
) -> None:
    scenario = """
tokens = []
for attempt in range(2):
    with connect() as client:
        channel, status = client.open_channel("c")
        tokens.append(status.latest_committed_offset_token)
        start = int(tokens[-1] or 0)
        rows = [{"ID": n, "S": "x"} for n in range(start + 1, start + 11)]
        channel.append_rows(rows, str(start + 1), str(start + 10))
        committed(channel, start + 10)
        seen = channel.get_channel_status()
        channel.close()
print(json.dumps({"tokens": tokens, "inserted": seen.rows_inserted_count, "errors": seen.rows_error_count}))
"""
    seen = account.sdk(tmp_path, scenario, f"{table}-STREAMING")
    assert seen == {"tokens": [None, "10"], "inserted": 20, "errors": 0}
    assert account.rows(f"SELECT count(*) AS n, count(DISTINCT id) AS d FROM {table}") == [{"n": 20, "d": 20}]


def test_rows_above_one_mebibyte_arrive_by_file_mode(account: Account, table: str, tmp_path: Path) -> None:
    scenario = """
with connect() as client:
    channel, _ = client.open_channel("c")
    channel.append_rows([{"ID": n, "S": "x" * 1000} for n in range(1, 5001)], "1", "5000")
    committed(channel, 5000)
    channel.close()
print("{}")
"""
    account.sdk(tmp_path, scenario, f"{table}-STREAMING")
    assert account.rows(f"SELECT count(*) AS n, sum(length(s)) AS c FROM {table}") == [
        {"n": 5000, "c": 5000000}
    ]


def test_the_older_of_two_writers_is_fenced(account: Account, table: str, tmp_path: Path) -> None:
    scenario = """
with connect("one") as one, connect("two") as two:
    older, _ = one.open_channel("c")
    older.append_row({"ID": 1}, "1")
    committed(older, 1)
    newer, status = two.open_channel("c")
    refused = ""
    try:
        older.append_row({"ID": 666}, "666")
        older.wait_for_flush()
    except Exception as error:
        refused = getattr(error, "error_code", type(error).__name__)
    newer.append_row({"ID": 2}, "2")
    committed(newer, 2)
    newer.close()
    token = status.latest_committed_offset_token
print(json.dumps({"refused": bool(refused), "token": token}))
"""
    assert account.sdk(tmp_path, scenario, f"{table}-STREAMING") == {"refused": True, "token": "1"}
    assert account.rows(f"SELECT sum(id) AS s FROM {table}") == [{"s": 3}]
