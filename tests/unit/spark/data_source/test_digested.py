import zlib

import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.data_source.parts import (
    GIVEN_WRITER,
    BatchIdentity,
    DigestedShare,
    SupersededError,
    position_in_batch,
)
from airflow_provider_snowpipe.spark.sources.tables.row_encoder import RowEncoder
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions
from airflow_provider_snowpipe.streaming.offsets import BatchDigestOffset

MINE = BatchIdentity.of_query(17, "0397fca7-82ee", 4)


def _share(rows_per_part=3, omitted=frozenset()):
    encoder = RowEncoder(NdjsonOptions(), omitted, BatchLimits(rows=rows_per_part))
    return DigestedShare("ds_0", MINE, encoder)


def _batches(ids, size=4):
    for low in range(0, len(ids), size):
        yield pa.record_batch({"ID": ids[low : low + size]})


def _parts(ids, committed=None, **share):
    return [
        (bytes(part.body), str(part.start), str(part.end), part.rows)
        for part in _share(**share).parts(_batches(ids), committed)
    ]


def _end(ids, rows, final=False):
    """The position behind some first rows, computed in the plainest way."""
    body = b"".join(b'{"ID":%d}\n' % number for number in ids[:rows])
    return BatchDigestOffset(17, rows, zlib.crc32(body), final)


def test_positions_carry_batch_row_and_the_digest_of_all_rows_so_far():
    ids = list(range(10))
    parts = _parts(ids)

    assert b"".join(part[0] for part in parts) == b"".join(b'{"ID":%d}\n' % number for number in ids)
    assert [part[3] for part in parts] == [3, 1, 3, 1, 2]
    assert [part[2] for part in parts] == [str(_end(ids, n, n == 10)) for n in (3, 4, 7, 8, 10)]
    starts = [BatchDigestOffset.parse(part[1]).row for part in parts]
    assert starts == [1, 4, 5, 8, 9]


@pytest.mark.parametrize("committed", [1, 3, 4, 5, 9])
@pytest.mark.parametrize("rows_per_part", [1, 3, 100])
def test_replay_goes_on_behind_the_committed_row_wherever_batches_were_cut(committed, rows_per_part):
    ids = list(range(10))
    parts = _parts(ids, _end(ids, committed), rows_per_part=rows_per_part)

    assert b"".join(part[0] for part in parts) == b"".join(b'{"ID":%d}\n' % n for n in ids[committed:])
    assert BatchDigestOffset.parse(parts[0][1]).row == committed + 1
    assert parts[-1][2] == str(_end(ids, 10, final=True))


@pytest.mark.parametrize(
    ("replayed", "committed", "text"),
    [
        pytest.param([0, 1, 3, 2, 4], _end(range(5), 4), "other rows, or another order", id="order"),
        pytest.param([0, 1, 9, 3, 4], _end(range(5), 3), "other rows, or another order", id="rows"),
        pytest.param([0, 1], _end(range(5), 4), "ends at row 2", id="fewer"),
        pytest.param([0, 1, 2, 3], _end(range(5), 4), "ends at row 4", id="missing-last"),
        pytest.param([0, 1, 2, 3, 4, 5], _end(range(5), 5, final=True), "has rows after row 5", id="more"),
        pytest.param([1, 0, 2, 3, 4], _end(range(5), 5, final=True), "another order", id="complete-order"),
    ],
)
def test_replay_with_other_rows_or_order_is_refused_before_anything_is_given(replayed, committed, text):
    given = []
    with pytest.raises(SourcePositionError, match=text) as caught:
        given.extend(_share().parts(_batches(replayed), committed))

    assert given == []
    assert "sortWithinPartitions by a unique key" in str(caught.value)
    assert "offsetColumn" in str(caught.value)


def test_omitted_columns_are_neither_sent_nor_digested():
    def rows():
        yield pa.record_batch({"ID": [1], "KEY": ["x"]})

    (part,) = _share(omitted=frozenset({"KEY"})).parts(rows(), None)

    assert bytes(part.body) == b'{"ID":1}\n'


def test_later_batch_of_the_same_query_supersedes_this_one():
    with pytest.raises(SupersededError) as caught:
        position_in_batch("c", BatchDigestOffset(18, 5, 1), MINE)
    assert caught.value.batch == 18


def test_given_batch_id_behind_a_committed_one_is_refused():
    mine = BatchIdentity(17, GIVEN_WRITER, 4)
    with pytest.raises(ConfigurationError, match="batchId is 17"):
        position_in_batch("c", BatchDigestOffset(18, 5, 1), mine)
