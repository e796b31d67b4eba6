"""Where a channel goes on in a table's history: every row once, or a refusal with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_snowpipe.spark.sources.iceberg.history import DataFile, History, SnapshotRows
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset


def _snapshot(version: int, *rows: int, change: str = "") -> SnapshotRows:
    files = tuple(DataFile(f"{version}-{number}", count, 100) for number, count in enumerate(rows))
    return SnapshotRows(version, 1000 + version, files, change)


SNAPSHOTS = (_snapshot(3, 2, 3), _snapshot(5, 4), _snapshot(7, 1))
HISTORY = History("lake.t", versions=(3, 4, 5, 7), snapshots=SNAPSHOTS, oldest=1003)
OLDER = replace(HISTORY, complete=False, earlier=BatchRowOffset(2, 6))


def _positions(history: History, committed: BatchRowOffset | None) -> list[tuple[int, int]]:
    return [
        (piece.version, piece.before + row)
        for piece in history.pieces_after(committed)
        for row in range(piece.skip + 1, piece.file.rows + 1)
    ]


def _all(history: History) -> list[tuple[int, int]]:
    return [(one.version, row + 1) for one in history.snapshots for row in range(one.rows)]


@given(st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=5), st.data())
def test_wherever_a_run_stops_the_next_one_goes_on_with_the_next_row(counts, data):
    snapshots = tuple(_snapshot(number, *rows) for number, rows in enumerate(counts, 1))
    history = History("lake.t", tuple(range(1, len(counts) + 1)), snapshots, oldest=1001)
    everything = _all(history)
    done = data.draw(st.integers(0, len(everything)))
    committed = BatchRowOffset(*everything[done - 1]) if done else None
    history.check(committed, "fail")
    assert _positions(history, committed) == everything[done:]


def test_position_that_is_not_in_the_history_is_refused():
    for history, committed, message in [
        (HISTORY, (8, 1), "'8:1' is committed, but the latest .* has sequence number 7: .* rolled back"),
        (History("lake.t"), (1, 1), "the latest snapshot of 'lake.t' has sequence number none"),
        (HISTORY, (4, 1), "sequence number 4 has 0 row"),
        (HISTORY, (3, 6), "sequence number 3 has 5 row"),
        (HISTORY, (2, 6), "begins with sequence number 3"),
        (OLDER, (1, 9), "goes on with snapshot 1003"),
    ]:
        with pytest.raises(SourcePositionError, match=message):
            history.check(BatchRowOffset(*committed), "fail")


def test_snapshot_that_changed_rows_stops_whoever_has_not_passed_it():
    change = _snapshot(4, change="is of the kind 'overwrite' (deleted-records=2)")
    history = replace(HISTORY, snapshots=(SNAPSHOTS[0], change, *SNAPSHOTS[1:]))
    with pytest.raises(SourcePositionError, match=r"1004 .* 'overwrite' \(deleted-records=2\), .* to '4:0'"):
        history.check(BatchRowOffset(3, 5), "skip")
    with pytest.raises(SourcePositionError, match="begin with that snapshot or a later one"):
        history.check(None, "fail")
    history.check(BatchRowOffset(4, 0), "fail")
    assert _positions(history, BatchRowOffset(4, 0)) == _all(HISTORY)[5:]


def test_first_load_of_a_whole_snapshot_is_resumed_in_it_and_followed_by_later_ones():
    history = replace(OLDER, base=replace(_snapshot(5, 6, 4), snapshot=1005))
    expected = [*((5, row) for row in range(1, 11)), (7, 1)]
    for done in range(len(expected) + 1):
        committed = BatchRowOffset(*expected[done - 1]) if done else None
        history.check(committed, "fail")
        assert _positions(history, committed) == expected[done:]
    history.check(BatchRowOffset(3, 5), "fail")
    assert _positions(history, BatchRowOffset(3, 5)) == _all(HISTORY)[5:]
