"""Rows of a batch as parts with positions, and one task of ``format("snowpipe")``: its replays."""

import json
import zlib

import pyarrow as pa
import pytest
from pyspark.sql.variant_utils import VariantUtils

from airflow_provider_snowpipe.spark.data_source.parts import (
    GIVEN_WRITER,
    BatchIdentity,
    DigestedShare,
    OrderedRows,
    SupersededError,
    channel_runs,
    channel_source,
    position_in_batch,
)
from airflow_provider_snowpipe.spark.data_source.task import BatchesSeen, Prepared, Task, row_rules
from airflow_provider_snowpipe.spark.sources.tables.rows import RowEncoder, encode_rows
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions
from airflow_provider_snowpipe.streaming.offsets import BatchDigestOffset, IntegerOffset
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.checkpoints import shown
from tests.fake_snowpipe import KilledError
from tests.refusals import refused
from tests.unit.spark.data_source.write_options import write_options

MINE = BatchIdentity.of_query(17, "0397fca7-82ee", 4)
IDS = list(range(10))


def _encoder(omitted=frozenset(), **limits):
    return RowEncoder(NdjsonOptions(), omitted, BatchLimits(**limits))


def _batches(ids, size=4):
    return (pa.record_batch({"ID": ids[low : low + size]}) for low in range(0, len(ids), size))


def _body(ids):
    return b"".join(b'{"ID":%d}\n' % number for number in ids)


def _end(ids, rows, final=False):
    """The position behind some first rows, computed in the plainest way."""
    return BatchDigestOffset(17, rows, zlib.crc32(_body(ids[:rows])), final)


@pytest.mark.parametrize("committed", [None, 1, 3, 4, 5, 9])
@pytest.mark.parametrize("rows_per_part", [1, 3, 100])
def test_replay_goes_on_behind_the_committed_row_wherever_batches_were_cut(committed, rows_per_part):
    share = DigestedShare("ds_0", MINE, _encoder(rows=rows_per_part))
    parts = list(share.parts(_batches(IDS), committed and _end(IDS, committed)))
    assert b"".join(bytes(part.body) for part in parts) == _body(IDS[committed or 0 :])
    assert parts[0].start.row == (committed or 0) + 1
    assert str(parts[-1].end) == str(_end(IDS, 10, final=True))


def test_replay_with_other_rows_or_order_is_refused_before_anything_is_given():
    for replayed, committed, text in [
        ([0, 1, 3, 2, 4], _end(range(5), 4), "other rows, or another order"),
        ([0, 1, 9, 3, 4], _end(range(5), 3), "other rows, or another order"),
        ([0, 1], _end(range(5), 4), "ends at row 2"),
        ([0, 1, 2, 3], _end(range(5), 4), "ends at row 4"),
        ([0, 1, 2, 3, 4, 5], _end(range(5), 5, final=True), "has rows after row 5"),
        ([1, 0, 2, 3, 4], _end(range(5), 5, final=True), "another order"),
    ]:
        parts = DigestedShare("ds_0", MINE, _encoder(rows=3)).parts(_batches(replayed), committed)
        words = (text, "sortWithinPartitions by a unique key", "offsetColumn")
        refused(errors.SourcePositionError, next, [parts], *words)


def test_omitted_columns_are_neither_sent_nor_digested():
    share = DigestedShare("ds_0", MINE, _encoder(frozenset({"KEY"}), rows=3))
    (part,) = share.parts(iter([pa.record_batch({"ID": [1], "KEY": ["x"]})]), None)
    assert (bytes(part.body), str(part.end)) == (_body([1]), str(_end([1], 1, final=True)))


def test_later_batch_of_the_query_supersedes_this_one_and_one_before_a_given_id_is_refused():
    with pytest.raises(SupersededError) as caught:
        position_in_batch("c", BatchDigestOffset(18, 5, 1), MINE)
    assert caught.value.batch == 18
    with pytest.raises(errors.ConfigurationError, match="batchId is 17"):
        position_in_batch("c", BatchDigestOffset(18, 5, 1), BatchIdentity(17, GIVEN_WRITER, 4))


def _ordered(values, committed=None, **limits):
    parts = OrderedRows("ds_0", "ID", _encoder(**limits)).parts(_batches(values), committed)
    return [(str(one.start), str(one.end), one.rows) for one in parts]


@pytest.mark.parametrize("committed", [None, 3, 12, 13, 99])
def test_rows_up_to_the_committed_value_are_skipped(committed):
    values = [1, 3, 7, 8, 12, 13, 20]
    parts = _ordered(values, None if committed is None else IntegerOffset(committed), rows=1)
    rest = [value for value in values if committed is None or value > committed]
    assert parts == [(str(value), str(value), 1) for value in rest]


def test_value_that_does_not_lie_after_the_one_before_is_refused():
    for values, committed, text in [
        ([1, 3, 2], None, "2 comes after 3"),
        ([1, 2, 2], None, "2 comes after 2"),
        ([1, 2, 3, 4, 4, 5], None, "4 comes after 4"),
        ([1, None, 2], None, "row 1 of a batch holds none"),
        ([-1, 2], None, "it holds -1"),
        (["b", "a"], None, "'a' comes after 'b'"),
        (["", "a"], None, "empty text"),
        ([1, 3, 2, 9], IntegerOffset(5), "2 comes after 3"),
    ]:
        words = (text, "offsetColumn 'ID'", "sortWithinPartitions")
        refused(errors.ContinuityError, lambda given, of=committed: _ordered(given, of), [values], *words)


def _runs(*batches):
    return channel_runs((pa.record_batch({"K": keys, "N": numbers}) for keys, numbers in batches), "K")


def test_partition_is_cut_where_the_channel_changes_and_one_that_comes_again_or_has_no_name_is_refused():
    runs = _runs((["a", "a", "b"], [1, 2, 3]), (["b", "c"], [4, 5]), (["c"], [6]))
    found = [(key, [n for batch in rows for n in batch.column("N").to_pylist()]) for key, rows in runs]
    assert found == [("a", [1, 2]), ("b", [3, 4]), ("c", [5, 6])]
    for keys, text in [(["a", "b", "a"], "rows of 'a' come again"), (["a", None], "'K' holds NULL")]:
        with pytest.raises(errors.ContinuityError, match=text):
            list(_runs((keys, list(range(len(keys))))))


NAMES = frozenset({"V", 'V"', "W"})


def _column(*values):
    of_variant = pa.struct([pa.field(name, pa.binary(), nullable=False) for name in ("value", "metadata")])
    return pa.array([one and {"value": one[0], "metadata": one[1]} for one in values], of_variant)


def _variants(*texts):
    return _column(*(text and VariantUtils.parse_json(text) for text in texts))


def test_variants_become_native_json_beside_other_columns():
    ids = pa.array([1, 2, 3])
    first = _variants('{"a":[1,2.5,"nan\\n",null]}', '"x"', "12345678901234567890.125")
    rows = pa.record_batch({"ID": ids, "V": first, "W": _variants("true", None, "{}")})

    encoded = encode_rows(rows, NdjsonOptions(), NAMES)

    assert [json.loads(line) for line in encoded.splitlines()] == [
        {"ID": 1, "V": {"a": [1, 2.5, "nan\n", None]}, "W": True},
        {"ID": 2, "V": "x", "W": None},
        {"ID": 3, "V": 12345678901234567890.125, "W": {}},
    ]
    assert b'"V":12345678901234567890.125,' in encoded


def test_number_that_json_has_not_is_refused():
    nan = bytes([7 << 2]) + b"\x00\x00\x00\x00\x00\x00\xf8\x7f"
    with pytest.raises(EncodingError, match=r"'V'.*NaN"):
        encode_rows(pa.record_batch({"V": _column((nan, b"\x01\x00\x00"))}), NdjsonOptions(), NAMES)


WRITER = "00000001"
SIX = list(range(6))
ORDERED = {"offsetColumn": "ID"}


@pytest.fixture
def run(snowpipe):
    def run(ids=SIX, batch=5, writer=WRITER, seen=None, life=None, size=2, partition=0, **more):
        options = write_options(batchBytes="20", commitTimeout="60", **more)
        identity = None if options.offset_column else BatchIdentity(batch, writer, options.partitions or 0)
        batches = (pa.record_batch({"ID": ids[low : low + size]}) for low in range(0, len(ids), size))
        prepared = Prepared(snowpipe.scoped_token(life), seen or BatchesSeen(), integer_offsets=True)
        return Task(options, prepared, identity, partition, 3).run(batches)

    return run


def loaded(snowpipe, channel="ds_0"):
    return [row["ID"] for row in snowpipe.channels[channel].rows]


def target(outcome):
    return outcome.channels[0].target_token


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["open 0", "append 0", "append 1", "append 2", "status 2"])
@pytest.mark.parametrize("size", [1, 2, 6])
def test_attempt_after_a_crash_brings_each_row_once(snowpipe, run, when, call, size):
    operation, skip = call.split()
    snowpipe.fault(**{when: operation}, skip=int(skip), error=KilledError())
    with pytest.raises(KilledError):
        run(size=2)
    assert run(size=size).error_type is None
    assert loaded(snowpipe) == SIX


def test_batch_that_the_channel_has_left_behind_sends_nothing(snowpipe, run):
    run(batch=6)
    assert run([9], batch=5).superseded == ("ds_0", 6)
    assert loaded(snowpipe) == SIX


def test_batch_that_another_channel_has_left_behind_sends_nothing(snowpipe, run):
    source = channel_source(write_options(), "ds_1", BatchIdentity(6, WRITER, 2))
    outcome = run(seen=BatchesSeen({"ds_1": source.token(BatchDigestOffset(6, 1, 0), 1, 0)}))
    assert outcome.superseded == ("ds_0", 6)
    assert snowpipe.did() == ["status ds_0"]


@pytest.mark.parametrize("more", [{}, ORDERED], ids=["digest", "offset-column"])
class TestOfBothKinds:
    def test_channel_that_was_dropped_since_the_write_began_gets_no_row(self, snowpipe, run, more):
        run(batch=4, **more)
        seen = BatchesSeen({"ds_0": snowpipe.channels.pop("ds_0").committed})
        appends = len(snowpipe.appends())
        assert run(seen=seen, **more).error_type == "TokenWentBackError"
        assert len(snowpipe.appends()) == appends

    def test_empty_partition_opens_no_channel(self, snowpipe, run, more):
        outcome = run([], **more)
        assert (target(outcome), outcome.error_type) == (None, None)
        assert snowpipe.did() == ["status ds_0"]


def test_rows_rejected_by_an_attempt_that_died_count_as_not_reported(snowpipe, run):
    snowpipe.rejects = lambda row: row["ID"] == 1
    snowpipe.fault(before="append", skip=1, error=KilledError())
    with pytest.raises(KilledError):
        run()
    again, later = run(), run([6, 7], batch=6)
    assert snowpipe.channels["ds_0"].rows_error_count == 1
    reports = (*again.channels, *later.channels)
    found = [(one.rejected_before, one.unreported, one.unreported_run) for one in reports]
    assert found == [(0, 0, "batch-5"), (0, 1, "batch-5")]


def test_values_of_an_offset_column_are_the_tokens_and_rows_behind_the_committed_one_are_sent(snowpipe, run):
    run(SIX[:3], **ORDERED)
    appends = len(snowpipe.appends())
    outcome = run(SIX, **ORDERED)
    assert snowpipe.channels["ds_0"].committed == target(outcome)
    assert (shown(target(outcome)), outcome.channels[0].inserted_before) == ("5", 3)
    assert run([9, 8], **ORDERED).error_type == "ContinuityError"
    assert [row["ID"] for call in snowpipe.appends()[appends:] for row in call.rows] == [3, 4, 5]


def test_token_that_expired_before_the_task_began_leaves_the_batch_incomplete(snowpipe, run):
    outcome = run(life=-1)
    assert (outcome.complete, outcome.error_type, outcome.channels) == (False, None, ())
    assert snowpipe.calls == []


def test_partition_beyond_the_promised_number_sends_nothing_and_asks_nobody(snowpipe, run):
    outcome = run(partition=2)
    assert outcome.error_type == "ConfigurationError"
    assert outcome.error.startswith("the plan has a partition 2, option partitions is 2")
    assert (outcome.partition, outcome.attempt, snowpipe.calls) == (2, 3, [])


@pytest.mark.parametrize(
    ("more", "identity", "path", "application"),
    [
        ({}, BatchIdentity(5, "0000abcd", 2), "/dead/query=0000abcd/batch=5", "ds query=0000abcd batch=5"),
        (ORDERED, None, "/dead", "ds by ID"),
    ],
)
def test_rows_are_put_aside_by_their_batch_or_their_column(more, identity, path, application):
    columns = (TableColumn("ID", "NUMBER(38,0)"),)
    options = write_options(onError="dead_letter", deadLetterPath="/dead/", **more)
    rules = row_rules(options, columns, identity)
    alone = row_rules(write_options(checkRows="true"), columns, BatchIdentity(5, "00000001", 2))
    assert (rules.dead_letter_path, rules.application) == (path, application)
    assert (alone.columns, alone.dead_letter_path) == (columns, None)
