"""The check before sending against the service itself: thousands of generated rows, one verdict each."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.row_check import RowCheck
from airflow_provider_snowpipe.streaming.row_values import RowValues
from airflow_provider_snowpipe.streaming.table_schema import TableColumn, columns_of_describe
from tests.checkpoints import source_of
from tests.local_service import LocalService

BLOCKS, ROWS = 12, 500
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
]  # fmt: skip
_OTHERS = [
    None, True, False, 0, -1, 1.6, 99999999.994, 99999999.995, 10**38 - 1, 10**38, 1e22, 1767312000, [], {},
    [1, "x"], {"id": "x", "Need": None}, [[{}]], 123456789012, 12345678901,
]  # fmt: skip

_NAMES = ["id", "ID", "name", "at", "v", "b", "f", "d", "t", "x", "ok", "need", "z", "a", "o", "unknown", ""]
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**45), 10**45),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["2026-01-01", "2026-13-41", "2026-01-01T00:00:00Z", "23:59:60", "1e999", "-0", "NaN", "aGk=", "\x00",
         "\ud800", "9" * 60, "1.5", "TRUE", "0x10", " 1 ", "1_000", "262143-12-31", "-290308-12-31"]
    ),
)  # fmt: skip
VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)


def _line(value: Any) -> bytes:
    return json.dumps(value).encode()


_RIGHT = st.builds(
    lambda number, name: _line({"id": number, "name": name, "need": 1}),
    st.integers(0, 10**9),
    st.text(max_size=10),
)
_WRONG = st.dictionaries(st.sampled_from(_NAMES), VALUES, max_size=6).map(_line)
_TWICE = st.builds(
    lambda name, one, two: (
        b"{" + _line(name) + b":" + _line(one) + b"," + _line(name) + b":" + _line(two) + b"}"
    ),
    st.sampled_from(_NAMES),
    _SCALARS,
    _SCALARS,
)
_CUT = st.builds(
    lambda line, cut: line[: cut % (len(line) + 1)], st.one_of(_RIGHT, _WRONG), st.integers(0, 400)
)
_DEEP = st.builds(
    lambda depth, kind: b'{"need":1,"v":' + kind[0] * depth + b"1" + kind[1] * depth + b"}",
    st.sampled_from([10, 500, 1000, 5000, 100_000]),
    st.sampled_from([(b"[", b"]"), (b'{"a":', b"}"), (b"[", b"")]),
)
LINES = st.one_of(
    _RIGHT, _RIGHT, _WRONG, _WRONG, _TWICE, _CUT, VALUES.map(_line), st.binary(max_size=60),
    st.text(max_size=60).map(str.encode), _DEEP, st.just(b"\xef\xbb\xbf{}"), st.just(b""),
    st.just(b'{"need":1,"v":"\\ud800"}'), st.just(b'{"need":1,"name":"\\u0000"}'),
    st.just(b'{"need":1,"v":"\x00"}'),
)  # fmt: skip


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
        assert status is not None
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


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, BLOCKS))]
)
def test_each_value_gets_the_verdict_of_the_service(loaded: Loaded, seed: int) -> None:
    chance = random.Random(seed)
    rows = []
    for number in range(ROWS):
        row = {"NEED": number} if chance.random() < 0.95 else {}
        for _ in range(chance.choice([0, 1, 1, 2, 3])):
            key = chance.choice([*_KEYS, "DEF", "id", "Need", "other"])
            row[key] = chance.choice(_TEXTS if chance.random() < 0.6 else _OTHERS)
        rows.append(json.dumps(row, ensure_ascii=chance.random() < 0.5).encode())

    assert ROWS / 10 < _agree(loaded, rows) < ROWS * 0.9


@settings(max_examples=25, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(lines=st.lists(LINES, min_size=20, max_size=20))
def test_broken_text_gets_the_verdict_of_the_service(loaded: Loaded, lines: list[bytes]) -> None:
    # What is nested deeper than the embedded service reads has its own test.
    read = [line for line in lines if line.count(b"[") + line.count(b"{") <= MOST_LEVELS]
    _agree(loaded, [line for line in read if b"\n" not in line and line not in (b"", b"\r")])


def test_deeply_nested_row_is_sent_and_the_embedded_service_does_not_read_it(loaded: Loaded) -> None:
    line = b'{"NEED":1,"V":' + b"[" * MOST_LEVELS + b"]" * MOST_LEVELS + b"}"

    assert RowCheck(loaded.columns).check(line).faults == ()
    assert loaded.skipped([line]) == 1


def test_tiny_number_is_sent_and_the_embedded_service_has_no_room_for_it(local_service: LocalService) -> None:
    line = b'{"C":1e-7}'
    table = Loaded(local_service, "SENT", "C NUMBER(2,2)")

    assert RowCheck([TableColumn("C", "NUMBER(2,2)")]).check(line).faults == ()
    assert table.skipped([line]) == 1
    table.close()


def test_row_that_is_no_json_by_rfc_8259_is_refused_although_the_embedded_service_takes_it(
    local_service: LocalService,
) -> None:
    lines = [b'{"C":1,}', b'{"V":[1,],"C":1}', b'{"V":nan,"C":1}']
    table = Loaded(local_service, "REFUSED", "C NUMBER, V VARIANT")

    assert len(RowCheck(table.columns).check(b"\n".join(lines)).faults) == len(lines)
    assert table.skipped(lines) == 0
    table.close()
