import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.data_source.parts import ChannelRuns, OrderedRows
from airflow_provider_snowpipe.spark.sources.tables.row_encoder import RowEncoder
from airflow_provider_snowpipe.streaming.errors import ContinuityError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset


def _encoder(**limits):
    return RowEncoder(NdjsonOptions(), frozenset(), BatchLimits(**limits))


def _ordered(values, committed=None, size=4, **limits):
    rows = OrderedRows("ds_0", "ID", _encoder(**limits))
    batches = (pa.record_batch({"ID": values[low : low + size]}) for low in range(0, len(values), size))
    return [(str(p.start), str(p.end), p.rows) for p in rows.parts(batches, committed)]


@pytest.mark.parametrize("committed", [None, 3, 12, 13, 99])
def test_rows_up_to_the_committed_value_are_skipped(committed):
    values = [1, 3, 7, 8, 12, 13, 20]
    parts = _ordered(values, None if committed is None else IntegerOffset(committed), rows=1)

    rest = [value for value in values if committed is None or value > committed]
    assert parts == [(str(value), str(value), 1) for value in rest]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        pytest.param([1, 3, 2], "2 comes after 3", id="back"),
        pytest.param([1, 2, 2], "2 comes after 2", id="tie"),
        pytest.param([1, 2, 3, 4, 4, 5], "4 comes after 4", id="tie-between-batches"),
        pytest.param([1, None, 2], "row 1 of a batch holds none", id="null"),
        pytest.param([-1, 2], "it holds -1", id="negative"),
        pytest.param(["b", "a"], "'a' comes after 'b'", id="text"),
        pytest.param(["", "a"], "empty text", id="empty"),
    ],
)
def test_value_that_does_not_lie_after_the_one_before_is_refused(values, text):
    with pytest.raises(ContinuityError, match=text) as caught:
        _ordered(values)
    assert "offsetColumn 'ID'" in str(caught.value)
    assert "sortWithinPartitions" in str(caught.value)


def test_disorder_among_committed_rows_is_refused_too():
    with pytest.raises(ContinuityError, match="2 comes after 3"):
        _ordered([1, 3, 2, 9], IntegerOffset(5))


def _runs(*batches):
    rows = iter([pa.record_batch({"K": keys, "N": numbers}) for keys, numbers in batches])
    return ChannelRuns(rows, "K")


def test_partition_is_taken_apart_where_the_channel_changes():
    runs = _runs((["a", "a", "b"], [1, 2, 3]), (["b", "c"], [4, 5]), (["c"], [6]))

    found = [(key, [n for batch in rows for n in batch.column("N").to_pylist()]) for key, rows in runs]

    assert found == [("a", [1, 2]), ("b", [3, 4]), ("c", [5, 6])]


@pytest.mark.parametrize(
    ("keys", "text"),
    [(["a", "b", "a"], "rows of 'a' come again"), (["a", None], "'K' holds NULL")],
    ids=["again", "null"],
)
def test_channel_that_comes_again_or_has_no_name_is_refused(keys, text):
    runs = _runs((keys, list(range(len(keys)))))
    with pytest.raises(ContinuityError, match=text):
        list(runs)
