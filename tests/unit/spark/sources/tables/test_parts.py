"""Arrow batches of ready rows become parts: whole rows, in order, never one of a tie."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_snowpipe.spark.source import LINE
from airflow_provider_snowpipe.spark.sources.tables import reader
from airflow_provider_snowpipe.spark.sources.tables.reader import partition_names
from airflow_provider_snowpipe.spark.sources.tables.rows import (
    POSITION,
    VERSION,
    RowColumns,
    keyed_parts,
    versioned_parts,
)
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    ContinuityError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import (
    BatchRowOffset,
    IntegerOffset,
    LexicographicOffset,
)

LIMITS = BatchLimits(rows=4)


def _batch(keys: list[Any], versions: list[int] | None = None, text: pa.DataType | None = None) -> Any:
    lines = [f'{{"K":"{key}"}}\n' for key in keys]
    columns = {POSITION: pa.array(keys), LINE: pa.array(lines, text or pa.string())}
    if versions is not None:
        columns[VERSION] = pa.array(versions, pa.int64())
    return pa.record_batch(columns)


def _keyed(batches: list[Any], committed: Any = None, kind: Any = IntegerOffset) -> list[Any]:
    return list(
        keyed_parts(
            iter(batches),
            committed,
            LIMITS,
            column="K",
            value=lambda position: position.sort_key()[0],
            offset=kind,
        )
    )


def test_columns_show_the_run_and_the_row_of_a_version():
    extra = RowColumns({"R": "run_id", "V": "version", "N": "row"}, "r1")
    batches = [_batch([1, 2, 5, 1, 2], [7, 7, 7, 8, 8])]
    parts = versioned_parts(iter(batches), BatchRowOffset(7, 1), LIMITS, column="K", extra=extra)
    rows = [json.loads(line) for part in parts for line in bytes(part.body).splitlines()]

    assert rows == [
        {"R": "r1", "V": version, "N": row, "K": key}
        for version, row, key in ((7, 2, "2"), (7, 3, "5"), (8, 1, "1"), (8, 2, "2"))
    ]
    options = {"column": "K", "value": lambda position: position.sort_key()[0], "offset": IntegerOffset}
    (part,) = keyed_parts(
        iter([_batch([1])]), None, LIMITS, **options, extra=RowColumns({"R": "run_id"}, "r")
    )
    assert json.loads(bytes(part.body)) == {"R": "r", "K": "1"}


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()], ids=["string", "large"])
def test_parts_hold_all_rows_behind_the_committed_key_once(text):
    batches = [_batch([2, 3, 5], text=text), _batch([8, 13, 21, 34, 55, 89], text=text).slice(1)]

    parts = _keyed(batches, IntegerOffset(3))

    assert b"".join(part.body for part in parts) == b"".join(
        b'{"K":"%d"}\n' % key for key in (5, 13, 21, 34, 55, 89)
    )
    assert [(part.start.value, part.end.value, part.rows) for part in parts] == [
        (5, 5, 1),
        (13, 55, 4),
        (89, 89, 1),
    ]


@pytest.mark.parametrize(
    ("batches", "sent"),
    [([[1, 2, 2, 3]], []), ([[1, 2], [2, 3]], []), ([[0, 1], [2, 3], [3]], [0, 1])],
    ids=["within-a-batch", "over-two-batches", "later"],
)
def test_two_rows_with_one_key_stop_before_either_is_sent(batches, sent):
    parts = keyed_parts(
        iter([_batch(keys) for keys in batches]),
        None,
        LIMITS,
        column="K",
        value=lambda position: position.value,
        offset=IntegerOffset,
    )
    found: list[Any] = []
    with pytest.raises(ContinuityError, match=r"two rows have K = [23]: neither"):
        found.extend(parts)

    assert [key for part in found for key in range(part.start.value, part.end.value + 1)] == sent


def test_keys_out_of_order_and_without_value_are_refused():
    with pytest.raises(ContinuityError, match="a row with K = 4 comes after one with 7"):
        _keyed([_batch([5, 7]), _batch([4])])
    with pytest.raises(ContinuityError, match="1 rows have NULL in 'K'"):
        _keyed([_batch([5, None])])


def test_text_keys_are_ordered_by_code_points():
    keys = sorted(["a", "B", "ä", "z", "\U0001f600", "\uffff"])

    parts = _keyed([_batch(keys)], LexicographicOffset("a"), LexicographicOffset)

    assert [part.start.text for part in parts] == ["z"]
    assert sum(part.rows for part in parts) == 4
    with pytest.raises(ContinuityError):
        _keyed([_batch(["a", "B"])], kind=LexicographicOffset)


def _versioned(batches: list[Any], committed: BatchRowOffset | None = None) -> list[tuple[str, str, int]]:
    parts = versioned_parts(iter(batches), committed, LIMITS, column="K")
    return [(str(part.start), str(part.end), part.rows) for part in parts]


def test_rows_are_numbered_within_their_version_over_all_batches():
    batches = [_batch([5, 6, 1], [0, 0, 2]), _batch([2, 3], [2, 2]), _batch([1], [3])]

    assert _versioned(batches) == [("0:1", "2:1", 3), ("2:2", "2:3", 2), ("3:1", "3:1", 1)]
    assert _versioned(batches, BatchRowOffset(2, 2)) == [("2:3", "2:3", 1), ("3:1", "3:1", 1)]
    assert _versioned(batches, BatchRowOffset(3, 1)) == []


@pytest.mark.parametrize(
    "batches",
    [[_batch([1, 2], [4, 4])], [_batch([1, 2], [4, 4]), _batch([1], [5])], [_batch([1], [5])]],
    ids=["ends-early", "goes-on", "gone"],
)
def test_version_with_fewer_rows_than_are_committed_is_refused_unsent(batches):
    with pytest.raises(SourcePositionError, match="'4:3' is committed"):
        _versioned(batches, BatchRowOffset(4, 3))


def test_versions_out_of_order_are_refused():
    with pytest.raises(ContinuityError, match="older version"):
        _versioned([_batch([1], [2]), _batch([2], [1])])


@given(st.sets(st.integers(0, 300)), st.lists(st.integers(1, 9), max_size=40), st.integers(-1, 300))
def test_however_the_batches_are_cut_the_same_rows_come(keys, sizes, committed):
    ordered, batches, at = sorted(keys), [], 0
    for size in [*sizes, len(ordered)]:
        if ordered[at : at + size]:
            batches.append(_batch(ordered[at : at + size]))
        at += size

    parts = _keyed(batches, None if committed < 0 else IntegerOffset(committed))

    expected = [key for key in ordered if key > committed]
    assert b"".join(part.body for part in parts) == b"".join(b'{"K":"%d"}\n' % key for key in expected)
    assert sum(part.rows for part in parts) == len(expected)
    assert all(part.rows <= LIMITS.rows for part in parts)


class Values:
    """A DataFrame of one column, as much of it as its names of partitions take."""

    def __init__(self, *values: str | None) -> None:
        self._values = values

    def select(self, column: Any) -> Values:
        assert column.name == "string of K"
        return self

    def distinct(self) -> Values:
        return Values(*dict.fromkeys(self._values))

    def collect(self) -> list[tuple[str | None]]:
        return [(one,) for one in self._values]


@pytest.fixture
def names_of(monkeypatch):
    class Column:
        def __init__(self, name: str) -> None:
            self.name = name

        def cast(self, kind: str) -> Column:
            return Column(f"{kind} of {self.name}")

    monkeypatch.setattr(reader, "column_of", Column)
    return lambda *values: partition_names(Values(*values), "K", "lake.t")  # type: ignore[arg-type]


def test_values_of_a_column_are_the_partitions_in_order(names_of):
    assert names_of("b", "a", "b", "c") == ("a", "b", "c")


@pytest.mark.parametrize(
    ("values", "kind", "word"),
    [
        (("a", None), ConfigurationError, "NULL"),
        (("", "a"), ConfigurationError, "empty"),
        (("", None), ConfigurationError, "NULL"),
        ((), SourcePositionError, "rows"),
    ],
)
def test_rows_without_a_value_would_have_no_channel_and_no_row_gives_no_partition(
    names_of, values, kind, word
):
    with pytest.raises(kind, match=word):
        names_of(*values)
