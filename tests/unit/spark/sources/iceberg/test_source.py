"""The Iceberg source on real tables: what it reads, where a channel goes on, and what it refuses."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.iceberg import reader
from airflow_provider_snowpipe.spark.sources.iceberg.history import DataFile, History, SnapshotRows
from airflow_provider_snowpipe.spark.sources.iceberg.reader import IcebergPartition
from airflow_provider_snowpipe.spark.sources.registry import open_source, source_spec
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset

LIMITS = BatchLimits(rows=4)


@pytest.fixture(scope="module", autouse=True)
def iceberg():
    """PyIceberg, when the first test runs: every process collects this file."""
    global IcebergTable, ManifestContent, snapshots, types

    from pyiceberg import types
    from pyiceberg.manifest import ManifestContent
    from pyiceberg.table import snapshots

    from tests.iceberg_tables import IcebergTable


@pytest.fixture
def orders(tmp_path):
    return IcebergTable(tmp_path / "lake")


@pytest.fixture
def parted(tmp_path):
    return IcebergTable(tmp_path / "lake", partitioned=True)


def _partitions(
    lake: IcebergTable, *, on_data_loss: Any = "fail", **source: Any
) -> dict[str, IcebergPartition]:
    found = open_source(source_spec(lake.source(**source)), on_data_loss).partitions()
    return {one.name: one for one in found}


def _partition(lake: IcebergTable, **source: Any) -> IcebergPartition:
    (partition,) = _partitions(lake, **source).values()
    return partition


def _rows(partition: IcebergPartition, committed: BatchRowOffset | None = None) -> list[dict[str, Any]]:
    """All rows behind a position, read as an executor does; their positions follow each other."""
    partition = pickle.loads(pickle.dumps(partition))  # noqa: S301  our own
    partition.check(committed)
    position = partition.resume(committed)
    if position is None:
        return []
    found, last = [], committed
    for part in partition.read(position, LIMITS):
        lines = bytes(part.body).splitlines()
        assert len(lines) == part.rows == part.start.steps_to(part.end) + 1 <= LIMITS.rows
        assert last is None or part.start.follows(last)
        last = part.end
        found += [json.loads(line) for line in lines]
    return found


def _ids(partition: IcebergPartition, *committed: int) -> list[int]:
    return [row["ID"] for row in _rows(partition, BatchRowOffset(*committed) if committed else None)]


def _refused(partition: IcebergPartition, message: str, *committed: int) -> None:
    with pytest.raises(errors.SourcePositionError, match=message):
        partition.check(BatchRowOffset(*committed) if committed else None)


def test_rows_come_in_the_order_of_snapshots_and_files_with_their_numbers(orders):
    for ids in (range(50, 61), range(5), [99]):
        orders.append(ids)
    partition = _partition(orders, metadata={"V": "version", "N": "row", "R": "run_id"})
    assert _ids(partition) == [*range(50, 61), *range(5), 99]
    assert _ids(partition, 1, 7) == [*range(57, 61), *range(5), 99]
    rows = _rows(partition, BatchRowOffset(2, 4))
    assert [(row["V"], row["N"], row["R"]) for row in rows] == [(2, 5, ""), (3, 1, "")]
    assert _ids(partition, 3, 1) == []
    assert partition.behind(BatchRowOffset(2, 1)).rows == 5
    assert partition.behind(BatchRowOffset(3, 1)).bytes == 0


def test_compaction_adds_no_rows_and_those_that_were_not_committed_are_missed_when_it_expires(orders):
    orders.append(range(10))
    orders.append(range(10, 15))
    orders.compact()
    orders.append([20])
    partition = _partition(orders)
    assert _ids(partition) == [*range(15), 20]
    assert _ids(partition, 2, 5) == [20]
    orders.expire(keep=1)
    _refused(_partition(orders), "up to sequence number 3, whose snapshots have expired", 1, 10)


@pytest.mark.parametrize(
    ("change", "kind"), [("ID >= 0", "delete"), ("ID = 3", "overwrite")], ids=["whole-files", "some-rows"]
)
def test_snapshot_that_took_rows_away_is_refused_before_it_is_passed(orders, change, kind):
    orders.append(range(10))
    orders.delete(change)
    orders.append([20])
    partition = _partition(orders)
    _refused(partition, f"sequence number 2.* of the kind '{kind}' .*deleted-records", 1, 10)
    assert _ids(partition, 2, 0) == [20]


def test_expired_snapshots_are_missed_only_where_their_rows_are_not_committed(orders):
    orders.append(range(10))
    orders.append(range(10, 15))
    oldest = orders.append([20])
    orders.append([21])
    orders.expire(keep=2)
    partition = _partition(orders)

    assert _ids(partition, 2, 5) == [20, 21]
    for committed in ((2, 4), (1, 10)):
        _refused(partition, "up to sequence number 2, whose snapshots have expired", *committed)
    _refused(partition, f"starting_snapshot={oldest} loads all rows")

    assert _ids(_partition(orders, on_data_loss="skip"), 1, 3) == [20, 21]
    starting = _partition(orders, starting_snapshot=oldest)
    assert sorted(_ids(starting)) == [*range(15), 20, 21]
    assert _ids(starting)[-1] == 21
    assert [*_ids(starting)[:9], *_ids(starting, 3, 9)] == _ids(starting)


def test_partition_that_began_after_the_oldest_snapshot_needs_no_older_ones(parted):
    for ids in ([0, 2], [4], [1, 3]):
        parted.append(ids)
    parted.expire(keep=2)
    found = _partitions(parted, partition_by="FILE")
    assert _ids(found["g1"]) == [1, 3]
    assert _ids(found["g0"], 1, 2) == [4]
    _refused(found["g0"], "nothing is committed")


def test_rolled_back_or_other_table_is_refused(orders):
    first = orders.append(range(10))
    gone = orders.append(range(10, 15))
    orders.roll_back(first)
    orders.append([20])
    partition = _partition(orders)

    _refused(partition, "no snapshot with that sequence number leads to", 2, 5)
    _refused(partition, r"the latest snapshot of .* has sequence number 3", 9, 1)
    assert _ids(partition, 1, 10) == [20]
    # That snapshot is kept, and does not lead to what the table is now.
    _refused(_partition(orders, starting_snapshot=gone), f"starting_snapshot={gone}")
    history = partition.history
    assert (history.versions, history.complete, history.oldest) == ((1, 3), True, first)


class TestStartingSnapshot:
    def test_that_is_not_kept_is_refused_where_nothing_is_committed(self, orders):
        orders.append(range(3))
        partition = _partition(orders, starting_snapshot=77)
        _refused(partition, "starting_snapshot=77 is not among the kept")
        assert _ids(partition, 1, 1) == [1, 2]

    def test_with_delete_files_is_refused(self, orders, monkeypatch):
        snapshot, own = orders.append(range(3)), snapshots.Snapshot.manifests
        deletes = SimpleNamespace(
            content=ManifestContent.DELETES, has_added_files=lambda: True, added_snapshot_id=0
        )
        monkeypatch.setattr(snapshots.Snapshot, "manifests", lambda *given: [*own(*given), deletes])
        _refused(_partition(orders, starting_snapshot=snapshot), "holds delete files")

    def test_numbers_its_rows_otherwise_than_those_that_it_appended(self, orders):
        """A position in one of the two would fit the other, and skip the rows that the table had before."""
        orders.append(range(10))
        start = orders.append(range(10, 15))
        own, whole = _partition(orders), _partition(orders, starting_snapshot=start)
        assert len(_ids(whole, 2, 3)) > len(_ids(own, 2, 3))
        assert whole.binding.source_digest == own.binding.source_digest
        assert whole.binding.digest != own.binding.digest

    def test_is_what_an_upgraded_table_begins_with(self, tmp_path):
        table = IcebergTable(tmp_path / "lake", version=1)
        table.append(range(3))
        with pytest.raises(errors.ConfigurationError, match=r"1, .*format-version to 2"):
            _partitions(table)
        with table.table.transaction() as change:
            change.upgrade_table_version(2)
        with pytest.raises(errors.SourcePositionError, match="snapshot"):
            _partitions(table)
        start = table.append([5])
        table.append([6])

        _refused(_partition(table), f"starting_snapshot={start}")
        starting = _partition(table, starting_snapshot=start)
        assert sorted(_ids(starting)) == [0, 1, 2, 5, 6]
        assert _ids(starting, 1, 4) == [6]


def test_columns_come_out_as_the_table_has_them_now(tmp_path):
    price = pa.array([0.5], pa.float32())
    old = pa.table({"ID": pa.array([1], pa.int32()), "OLD": ["a"], "GONE": [5], "PRICE": price})
    orders = IcebergTable(tmp_path / "lake", schema=old.schema)
    orders.table.append(old)
    with orders.table.update_schema() as change:
        change.rename_column("OLD", "NEW").delete_column("GONE").move_first("OLD")
        change.update_column("ID", types.LongType()).update_column("PRICE", types.DoubleType())
        change.add_column("MORE", types.StringType())
    new = {"NEW": ["b"], "ID": [2**40], "PRICE": [0.25], "MORE": ["m"]}
    orders.table.append(pa.table(new, schema=orders.table.schema().as_arrow()))

    assert [list(row.items()) for row in _rows(_partition(orders))] == [
        [("NEW", "a"), ("ID", 1), ("PRICE", 0.5), ("MORE", None)],
        [("NEW", "b"), ("ID", 2**40), ("PRICE", 0.25), ("MORE", "m")],
    ]
    assert "MORE" not in _rows(_partition(orders, explicit_nulls=False))[0]


def _name_columns(orders: IcebergTable) -> None:
    """Let files without ids of columns be added."""
    names = orders.table.schema().name_mapping.model_dump_json()
    with orders.table.transaction() as change:
        change.set_properties({"schema.name-mapping.default": names})


def test_files_that_lack_a_partition_column_get_its_value(parted, tmp_path):
    _name_columns(parted)
    folder = tmp_path / "lake" / "FILE=g7"
    folder.mkdir()
    pq.write_table(pa.table({"ID": [7], "NOTE": ["n"], "FILE": ["g7"]}), folder / "a.parquet")
    parted.table.add_files([f"file://{folder}/a.parquet"])
    pq.write_table(pa.table({"ID": [7], "NOTE": ["n"]}), folder / "a.parquet")
    assert _rows(_partition(parted, partition_by="FILE")) == [{"ID": 7, "FILE": "g7", "NOTE": "n"}]


def test_resume_reads_no_row_group_before_the_committed_row(orders, tmp_path):
    _name_columns(orders)
    file = tmp_path / "lake" / "many.parquet"
    rows = pa.table({"ID": list(range(1000)), "FILE": ["f"] * 1000, "NOTE": ["n"] * 1000})
    pq.write_table(rows, file, row_group_size=100, compression="none")
    orders.table.add_files([file.as_uri()])
    begin = pq.ParquetFile(file).metadata.row_group(9).column(0).dictionary_page_offset
    with file.open("r+b") as stored:
        stored.seek(4)
        stored.write(b"\xff" * (begin - 4))
    partition = _partition(orders)

    assert _ids(partition, 1, 950) == list(range(950, 1000))
    with pytest.raises(errors.SourceUnavailableError, match=r"many.parquet'.*damaged"):
        _ids(partition, 1, 850)


def test_data_file_that_is_gone_or_replaced_is_refused(orders):
    orders.append(range(3))
    partition = _partition(orders)
    (snapshot,) = partition.history.snapshots
    (file,) = snapshot.files
    pq.write_table(pa.table({"ID": [1]}), file.path.removeprefix("file://"))
    with pytest.raises(errors.SourcePositionError, match=r"1 row.* 3"):
        _rows(partition)
    gone = replace(snapshot, files=(replace(file, path=f"{file.path}.gone"),))
    with pytest.raises(errors.SourcePositionError, match="expired"):
        _rows(replace(partition, history=replace(partition.history, snapshots=(gone,))))


def test_table_is_found_by_its_directory_and_by_a_metadata_file(orders, tmp_path):
    orders.append(range(3))
    metadata = orders.table.metadata_location
    hint = tmp_path / "lake" / "lake" / "orders" / "metadata" / "version-hint.text"
    hint.write_text(metadata.rpartition("/")[2])
    for path in (orders.table.location(), metadata):
        spec = source_spec({"kind": "iceberg", "path": path})
        (partition,) = open_source(spec, "fail").partitions()
        assert (_ids(partition), spec.default_name) == ([0, 1, 2], "orders")


def test_source_that_is_not_there_is_refused_with_the_remedy(parted):
    for source, kind, message in [
        ({"partition_by": "NOTE"}, errors.ConfigurationError, r"partition_by is 'NOTE', .* by \['FILE'\]"),
        (
            {"partition_by": "FILE"},
            errors.SourcePositionError,
            "has no rows, so that 'FILE' gives no partition",
        ),
        (
            {"table": "lake.none"},
            errors.SourcePositionError,
            "'test.lake.none' is not there: NoSuchTableError",
        ),
        ({"options": {"type": "odd"}}, errors.ConfigurationError, "PyIceberg cannot open .* .pyiceberg.yaml"),
    ]:
        with pytest.raises(kind, match=message):
            _partitions(parted, **source)


def test_rows_of_before_the_partition_field_are_refused(orders):
    orders.append(range(3))
    with orders.table.update_spec() as change:
        change.add_identity("FILE")
    orders.append([4])
    with pytest.raises(errors.ConfigurationError, match="'FILE'"):
        _partitions(orders, partition_by="FILE")


def test_no_secret_of_the_catalog_shows_or_travels(orders):
    orders.append(range(3))
    spec = source_spec(orders.source(options={**orders.options, "s3.region": "x"}))
    secrets = SourceSecrets({"credential": "hush-hush", "s3.secret-access-key": "hush-key"})
    (partition,) = open_source(spec, "fail", secrets).partitions()
    assert "hush" not in repr(partition)
    assert b"hush-hush" not in pickle.dumps(partition)
    assert partition.reader.store == {"s3.region": "x", "s3.secret-access-key": "hush-key"}


NOWHERE = "http://127.0.0.1:1"
ABSENT = {"side_effect": PackageNotFoundError}


def test_error_of_a_catalog_shows_no_secret(orders):
    for options, secrets, kind in [
        (
            {"type": "rest", "uri": NOWHERE, "oauth2-server-uri": f"{NOWHERE}/sign"},
            *({"credential": "me:hush"}, errors.SourceUnavailableError),
        ),
        ({}, {"type": "hush"}, errors.ConfigurationError),
    ]:
        spec = source_spec(orders.source(options=options))
        with pytest.raises(kind, match="catalog") as refused:
            open_source(spec, "fail", SourceSecrets(secrets)).partitions()
        assert "hush" not in str(refused.value)


def test_table_that_was_dropped_and_recreated_has_another_binding(tmp_path):
    """It has as many snapshots, of as many rows, so that the position alone would fit."""

    def binding():
        return _partitions(table, partition_by="FILE")["g1"].binding

    table = IcebergTable(tmp_path, partitioned=True)
    table.append(range(6))
    before = binding()
    table.append(range(6))
    assert binding() == before

    table._catalog().drop_table(table.name)
    table = IcebergTable(tmp_path, partitioned=True)
    table.append(range(8))
    assert binding().source_digest != before.source_digest


@pytest.mark.parametrize(("version", "found"), [({"return_value": "0.9.1"}, "0.9.1"), (ABSENT, "none")])
def test_missing_and_other_pyiceberg_are_refused_with_versions_and_remedy(monkeypatch, version, found):
    monkeypatch.setattr(reader, "version", Mock(**version))
    message = rf"needs pyiceberg 0\.12, and this Python has {found}: install .*\[iceberg\]"
    with pytest.raises(errors.ConfigurationError, match=message):
        reader.require_pyiceberg()


def _snapshot(version: int, *rows: int) -> SnapshotRows:
    files = tuple(DataFile(f"{version}-{number}", count, 100) for number, count in enumerate(rows))
    return SnapshotRows(version, 1000 + version, files, "")


SNAPSHOTS = (_snapshot(3, 2, 3), _snapshot(5, 4), _snapshot(7, 1))
HISTORY = History("lake.t", versions=(3, 4, 5, 7), snapshots=SNAPSHOTS, oldest=1003)
OLDER = replace(HISTORY, complete=False, earlier=BatchRowOffset(2, 6))


def _positions(history: History, committed: BatchRowOffset | None) -> list[tuple[int, int]]:
    return [
        (piece.version, piece.before + row)
        for piece in history.pieces_after(committed)
        for row in range(piece.skip + 1, piece.file.rows + 1)
    ]


@given(st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=5), st.data())
def test_wherever_a_run_stops_the_next_one_goes_on_with_the_next_row(counts, data):
    snapshots = tuple(_snapshot(number, *rows) for number, rows in enumerate(counts, 1))
    history = History("lake.t", tuple(range(1, len(counts) + 1)), snapshots, oldest=1001)
    everything = [(one.version, row + 1) for one in history.snapshots for row in range(one.rows)]
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
