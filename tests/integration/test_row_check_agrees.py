"""The check before sending against the service itself: thousands of generated rows, one verdict each."""

import json
import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.row_check import RowCheck
from airflow_provider_snowpipe.streaming.row_values import RowValues
from airflow_provider_snowpipe.streaming.table_schema import columns_of_describe
from tests.checkpoints import source_of
from tests.local_service import LocalService

ROWS = 500
MOST_LEVELS = 10_000
"""The service does not read what is nested deeper."""
TABLE = (
    "id INT, name VARCHAR(10), at TIMESTAMP_NTZ, v VARIANT, b BINARY, f FLOAT, d DATE, t TIME, "
    "x NUMBER(10,2), ok BOOLEAN, need INT NOT NULL, z TIMESTAMP_TZ, a ARRAY, o OBJECT"
)
_KEYS = [part.split()[0].upper() for part in TABLE.replace("(10,2)", "").split(", ")]
_TEXTS = [
    "", "1", " 1 ", "+1", "1.", ".5", "5.e1", "1E+3", "0x10", "NaN", "-Infinity", "1e999", "99999999.994",
    "99999999.995", "abc", "TRUE", " yes ", "off", "aGk=", "aGk", "####", "2026-01-02", "2026-1-2",
    "2026-02-29", "2024-02-29", "0000-01-01", "9999-12-31", "2026/01/02", "2026-01-02T03:04:05",
    "2026-01-02 03:04", "2026-01-02T24:00:00", "2026-01-02T23:59:60", "2026-01-02T03:04:05Z", "24:00",
    "2026-01-02T03:04:05+02:00", "2026-01-02t03:04:05", " 2026-01-02", "25:00", "1:2:3", "epoch", "-5",
    "10:11", "10:11:12.5", "1e25", "9223372036854775807", "9223372036854775808", "9" * 38, "9" * 39,
    "ten chars.", "eleven char", "e\u0301" * 6, "\u0000", "\U0001f44d" * 10, "\U0001f44d" * 11,
    "1_000", "262143-12-31", "-290308-12-31",
]  # fmt: skip
_OTHERS: list[Any] = [
    None, True, False, 0, -1, 1.6, 99999999.994, 99999999.995, 10**38 - 1, 10**38, 1e22, 1767312000, [], {},
    [1, "x"], {"id": "x", "Need": None}, [[{}]], 123456789012, 12345678901, 10**45, -(10**45),
]  # fmt: skip

_DEEP = [(b"[", b"]"), (b'{"a":', b"}"), (b"[", b"")]
_ODD = [
    b"\xef\xbb\xbf{}", b'{"need":1,"v":"\\ud800"}', b'{"need":1,"name":"\\u0000"}', b'{"need":1,"v":"\x00"}',
    b'{"id":x}', b"[]", b"7", b"null", b'"text"',
]  # fmt: skip


def _row(chance: random.Random) -> bytes:
    row: dict[str, Any] = {"NEED": 1} if chance.random() < 0.95 else {}
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        key = chance.choice([*_KEYS, "DEF", "id", "Need", "other", ""])
        row[key] = chance.choice(_TEXTS if chance.random() < 0.6 else _OTHERS)
    return json.dumps(row, ensure_ascii=chance.random() < 0.5).encode()


def _broken(chance: random.Random) -> bytes:
    """A row that is cut, has a key twice, is deeply nested, is no text or no object."""
    line, (begin, end) = _row(chance), chance.choice(_DEEP)
    depth = chance.choice([10, 500, 1000, 5000])
    broken = chance.choice(
        [
            line[: chance.randint(1, len(line))],
            line[:-1] + b',"id":1,"id":"x"}',
            b'{"need":1,"v":' + begin * depth + b"1" + end * depth + b"}",
            chance.randbytes(chance.randint(1, 60)).translate(None, b"\r\n"),
            chance.choice(_ODD),
        ]
    )
    return broken or b"{"


class Loaded:
    """A table with one channel into it."""

    def __init__(self, service: LocalService, name: str, columns: str) -> None:
        service.sql(f"CREATE TABLE LOCAL.PUBLIC.{name} ({columns})")
        self.columns = columns_of_describe(service.sql(f"DESCRIBE TABLE LOCAL.PUBLIC.{name}"))
        self.client = service.client(name)
        self.client.pipe_info()
        self.channel = Channel.open(self.client, "c", source_of(IntegerOffset))
        self.positions = count(1)
        self.errors = 0

    def skipped(self, lines: list[bytes]) -> int:
        """Send rows, and count those that the service has skipped."""
        if not lines:
            return 0
        position = IntegerOffset(next(self.positions))
        self.channel.append(b"\n".join(lines) + b"\n", position, position, rows=len(lines))
        status = self.channel.wait_for_commit(position, timeout=60)
        before, self.errors = self.errors, status.rows_error_count
        return self.errors - before

    def close(self) -> None:
        self.channel.close()
        self.client.close()


@pytest.fixture(scope="module")
def loaded(local_service: LocalService) -> Iterator[Loaded]:
    table = Loaded(local_service, "GENERATED", f"{TABLE}, def INT NOT NULL DEFAULT 7")
    yield table
    table.close()


def _agree(loaded: Loaded, lines: list[bytes]) -> int:
    """Compare the verdicts of the block's check, the row's check and the service; the rows refused."""
    exact = RowValues(loaded.columns)
    refused = {one.row for one in RowCheck(loaded.columns).check(b"\n".join(lines)).faults}
    assert refused == {row for row, line in enumerate(lines) if exact.fault(line.removesuffix(b"\r"))}
    bad = [line for row, line in enumerate(lines) if row in refused]
    assert loaded.skipped(bad) == len(bad), bad
    assert loaded.skipped([line for row, line in enumerate(lines) if row not in refused]) == 0, lines
    return len(bad)


@pytest.mark.parametrize("seed", [0, 1])
def test_each_line_gets_the_verdict_of_the_service(loaded: Loaded, seed: int) -> None:
    chance = random.Random(seed)
    lines = [(_broken if chance.random() < 0.2 else _row)(chance) for _ in range(ROWS)]
    assert ROWS / 10 < _agree(loaded, lines) < ROWS * 0.9


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        pytest.param("V VARIANT", b'{"V":' + b"[" * MOST_LEVELS + b"]" * MOST_LEVELS + b"}", id="deep"),
        pytest.param("C NUMBER(2,2)", b'{"C":1e-7}', id="tiny number"),
    ],
)
def test_row_that_the_embedded_service_alone_cannot_hold_is_sent(
    local_service: LocalService, columns: str, line: bytes
) -> None:
    table = Loaded(local_service, f"SENT_{columns[0]}", columns)
    assert RowCheck(table.columns).check(line).faults == ()
    assert table.skipped([line]) == 1
    table.close()
