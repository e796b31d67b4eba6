"""Arrow batches of ready rows become parts: whole rows, in order, never one of a tie."""

import json
from itertools import accumulate
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import AnalysisException

from airflow_provider_snowpipe.spark.source import LINE
from airflow_provider_snowpipe.spark.sources.tables import reader
from airflow_provider_snowpipe.spark.sources.tables import rows as module
from airflow_provider_snowpipe.spark.sources.tables.reader import partition_names
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset, IntegerOffset, LexicographicOffset

LIMITS = BatchLimits(rows=4)


def _batch(keys: list[Any], versions: list[int] | None = None, text: pa.DataType | None = None) -> Any:
    lines = [f'{{"K":"{key}"}}\n' for key in keys]
    columns = {module.POSITION: pa.array(keys), LINE: pa.array(lines, text or pa.string())}
    if versions is not None:
        columns[module.VERSION] = pa.array(versions, pa.int64())
    return pa.record_batch(columns)


def _keyed(*batches: Any, committed: Any = None, kind: Any = IntegerOffset, **extra: Any) -> Any:
    options = {"column": "K", "value": lambda position: position.sort_key()[0], "offset": kind, **extra}
    return module.keyed_parts(iter(batches), committed, LIMITS, **options)


def _body(parts: list[Any]) -> bytes:
    return b"".join(bytes(part.body) for part in parts)


def _lines(*keys: int) -> bytes:
    return b"".join(b'{"K":"%d"}\n' % key for key in keys)


def test_a_format_that_spark_lacks_is_an_error_that_names_the_option():
    for text, remedy in (("[DATA_SOURCE_NOT_FOUND] delta", "packages="), ("[UNRESOLVED_COLUMN] X", "X$")):
        with pytest.raises(errors.ConfigurationError, match=f"'address': .*{remedy}"):
            reader.asked_of_spark(MagicMock(side_effect=AnalysisException(text)), "address")


class TestKeyedParts:
    @given(
        st.sets(st.integers(0, 300)),
        st.lists(st.integers(1, 9), max_size=40),
        st.integers(-1, 300),
        st.sampled_from([pa.string(), pa.large_string()]),
    )
    def test_have_the_same_rows_however_the_batches_are_cut(self, keys, sizes, committed, text):
        ordered, batches, at = sorted(keys), [], 0
        for size in [*sizes, len(ordered)]:
            if ordered[at : at + size]:
                batches.append(_batch([-1, *ordered[at : at + size]], text=text).slice(1))
            at += size

        parts = list(_keyed(*batches, committed=None if committed < 0 else IntegerOffset(committed)))

        expected = [key for key in ordered if key > committed]
        assert _body(parts) == _lines(*expected)
        assert sum(part.rows for part in parts) == len(expected)
        assert all(part.rows <= LIMITS.rows for part in parts)
        ends = [number - 1 for number in accumulate(part.rows for part in parts)]
        assert [part.end.value for part in parts] == [expected[end] for end in ends]

    def test_stop_before_either_of_two_rows_with_one_key_is_sent(self):
        for batches, sent in [([[1, 2, 2, 3]], []), ([[1, 2], [2, 3]], []), ([[0, 1], [2, 3], [3]], [0, 1])]:
            found: list[Any] = []
            with pytest.raises(errors.ContinuityError, match=r"K = [23]"):
                found.extend(_keyed(*map(_batch, batches)))
            assert _body(found) == _lines(*sent)

    def test_are_not_made_of_keys_out_of_order_or_without_value(self):
        for batches, kind, words in [
            ([[5, 7], [4]], IntegerOffset, "a row with K = 4 comes after one with 7"),
            ([[5, None]], IntegerOffset, "1 rows have NULL in 'K'"),
            ([["a", "B"]], LexicographicOffset, "comes after"),
        ]:
            with pytest.raises(errors.ContinuityError, match=words):
                list(_keyed(*map(_batch, batches), kind=kind))

    def test_of_text_are_ordered_by_code_points(self):
        keys = sorted(["a", "B", "ä", "z", "\U0001f600", "\uffff"])
        (part,) = _keyed(_batch(keys), committed=LexicographicOffset("a"), kind=LexicographicOffset)
        assert (part.start.text, part.rows) == ("z", 4)


class TestVersionedParts:
    def parts(self, *batches: Any, committed: BatchRowOffset | None = None) -> list[tuple[str, str, int]]:
        parts = module.versioned_parts(iter(batches), committed, LIMITS, column="K")
        return [(str(part.start), str(part.end), part.rows) for part in parts]

    def test_number_rows_within_their_version_over_all_batches(self):
        batches = [_batch([5, 6, 1], [0, 0, 2]), _batch([2, 3], [2, 2]), _batch([1], [3])]
        assert self.parts(*batches) == [("0:1", "2:1", 3), ("2:2", "2:3", 2), ("3:1", "3:1", 1)]
        behind = self.parts(*batches, committed=BatchRowOffset(2, 2))
        assert behind == [("2:3", "2:3", 1), ("3:1", "3:1", 1)]
        assert self.parts(*batches, committed=BatchRowOffset(3, 1)) == []

    def test_of_a_version_with_fewer_rows_than_are_committed_are_refused_unsent(self):
        early, gone = _batch([1, 2], [4, 4]), _batch([1], [5])
        for batches in ([early], [early, gone], [gone]):
            with pytest.raises(errors.SourcePositionError, match="'4:3' is committed"):
                self.parts(*batches, committed=BatchRowOffset(4, 3))

    def test_out_of_order_are_refused(self):
        with pytest.raises(errors.ContinuityError, match="older version"):
            self.parts(_batch([1], [2]), _batch([2], [1]))


def test_columns_show_the_run_and_the_row_of_a_version():
    extra = module.RowColumns({"R": "run_id", "V": "version", "N": "row"}, "r1")
    batches = [_batch([1, 2, 5, 1, 2], [7, 7, 7, 8, 8])]
    parts = module.versioned_parts(iter(batches), BatchRowOffset(7, 1), LIMITS, column="K", extra=extra)
    assert [json.loads(line) for line in _body(list(parts)).splitlines()] == [
        {"R": "r1", "V": version, "N": row, "K": key}
        for version, row, key in ((7, 2, "2"), (7, 3, "5"), (8, 1, "1"), (8, 2, "2"))
    ]
    (part,) = _keyed(_batch([1]), extra=module.RowColumns({"R": "run_id"}, "r"))
    assert json.loads(bytes(part.body)) == {"R": "r", "K": "1"}


@pytest.mark.parametrize(
    ("values", "kind", "word"),
    [
        (("a", None), errors.ConfigurationError, "NULL"),
        (("", "a"), errors.ConfigurationError, "empty"),
        ((), errors.SourcePositionError, "rows"),
    ],
)
def test_values_of_a_column_are_the_partitions_in_order_and_none_is_refused(monkeypatch, values, kind, word):
    column, frame = MagicMock(), MagicMock()
    monkeypatch.setattr(reader, "column_of", {"K": column}.get)
    found = frame.select.return_value.distinct.return_value.collect
    found.return_value = [("b",), ("a",), ("c",)]
    assert partition_names(frame, "K", "lake.t") == ("a", "b", "c")
    frame.select.assert_called_with(column.cast.return_value)
    found.return_value = [(one,) for one in values]
    with pytest.raises(kind, match=word):
        partition_names(frame, "K", "lake.t")
