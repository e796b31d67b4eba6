"""The Iceberg source on real tables: what it reads, in which order, and what it refuses."""

from __future__ import annotations

import json
import pickle
import uuid
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.iceberg.reader import IcebergPartition
from airflow_provider_snowpipe.spark.sources.registry import open_source, source_spec
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    SourcePositionError,
    SourceUnavailableError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset

LIMITS = BatchLimits(rows=4)


@pytest.fixture(scope="module", autouse=True)
def iceberg():
    """PyIceberg, when the first test runs: every process collects this file."""
    global IcebergTable, ManifestContent, ManifestFile, write_manifest_list

    from pyiceberg.manifest import ManifestContent, ManifestFile, write_manifest_list

    from tests.iceberg_tables import IcebergTable


@pytest.fixture
def orders(tmp_path):
    return IcebergTable(tmp_path / "lake")


def _partitions(
    lake: IcebergTable, *, on_data_loss: Any = "fail", **source: Any
) -> dict[str, IcebergPartition]:
    found = open_source(source_spec(lake.source(**source)), on_data_loss).partitions()
    return {one.name: one for one in found}


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


def _ids(partition: IcebergPartition, committed: BatchRowOffset | None = None) -> list[int]:
    return [row["ID"] for row in _rows(partition, committed)]


def test_rows_have_their_sequence_number_and_their_number_in_it(orders):
    orders.append(range(3))
    orders.append([99])
    (partition,) = _partitions(orders, metadata={"V": "version", "N": "row", "R": "run_id"}).values()

    assert [(row["V"], row["N"], row["R"]) for row in _rows(partition, BatchRowOffset(1, 1))] == [
        (1, 2, ""), (1, 3, ""), (2, 1, ""),
    ]  # fmt: skip


def test_rows_come_in_the_order_of_snapshots_and_files(orders):
    orders.append(range(50, 61))
    orders.append(range(5))
    orders.append([99])
    (partition,) = _partitions(orders).values()

    assert _ids(partition) == [*range(50, 61), *range(5), 99]
    assert _ids(partition, BatchRowOffset(1, 7)) == [*range(57, 61), *range(5), 99]
    assert _ids(partition, BatchRowOffset(2, 5)) == [99]
    assert _ids(partition, BatchRowOffset(3, 1)) == []
    assert partition.behind(BatchRowOffset(2, 1)).rows == 5
    assert partition.behind(BatchRowOffset(3, 1)).bytes == 0


def test_each_value_of_a_partition_field_is_a_partition(tmp_path):
    orders = IcebergTable(tmp_path / "lake", partitioned=True)
    orders.append(range(10))
    orders.append([11, 13])

    found = _partitions(orders, partition_by="FILE")

    assert {name: _ids(one) for name, one in found.items()} == {
        "g0": [0, 2, 4, 6, 8],
        "g1": [1, 3, 5, 7, 9, 11, 13],
    }
    assert _ids(found["g1"], BatchRowOffset(1, 4)) == [9, 11, 13]


def test_compaction_moves_rows_and_adds_none(orders):
    orders.append(range(10))
    orders.append(range(10, 15))
    orders.compact()
    orders.append([20])
    (partition,) = _partitions(orders).values()

    assert _ids(partition) == [*range(15), 20]
    assert _ids(partition, BatchRowOffset(2, 5)) == [20]


@pytest.mark.parametrize(
    ("change", "kind"),
    [("ID >= 0", "delete"), ("ID = 3", "overwrite")],
    ids=["whole-files", "some-rows"],
)
def test_snapshot_that_took_rows_away_is_refused_before_it_is_passed(orders, change, kind):
    orders.append(range(10))
    orders.delete(change)
    orders.append([20])
    (partition,) = _partitions(orders).values()

    with pytest.raises(
        SourcePositionError, match=f"sequence number 2.* of the kind '{kind}' .*deleted-records"
    ):
        partition.check(BatchRowOffset(1, 10))
    assert _ids(partition, BatchRowOffset(2, 0)) == [20]


def test_expired_snapshots_are_missed_only_where_their_rows_are_not_committed(orders):
    orders.append(range(10))
    orders.append(range(10, 15))
    oldest = orders.append([20])
    orders.append([21])
    orders.expire(keep=2)
    (partition,) = _partitions(orders).values()

    assert _ids(partition, BatchRowOffset(2, 5)) == [20, 21]
    for committed in (BatchRowOffset(2, 4), BatchRowOffset(1, 10)):
        with pytest.raises(
            SourcePositionError, match="up to sequence number 2, whose snapshots have expired"
        ):
            partition.check(committed)
    with pytest.raises(SourcePositionError, match=f"starting_snapshot={oldest} loads all rows"):
        partition.check(None)

    (skipping,) = _partitions(orders, on_data_loss="skip").values()
    assert _ids(skipping, BatchRowOffset(1, 3)) == [20, 21]
    (starting,) = _partitions(orders, starting_snapshot=oldest).values()
    assert sorted(_ids(starting)) == [*range(15), 20, 21]
    assert _ids(starting)[-1] == 21
    assert [*_ids(starting)[:9], *_ids(starting, BatchRowOffset(3, 9))] == _ids(starting)


def test_compaction_of_rows_that_are_not_committed_is_seen_when_their_snapshots_expire(orders):
    orders.append(range(10))
    orders.append(range(10, 15))
    orders.compact()
    orders.expire(keep=1)
    (partition,) = _partitions(orders).values()

    with pytest.raises(SourcePositionError, match="up to sequence number 3, whose snapshots have expired"):
        partition.check(BatchRowOffset(1, 10))


def test_partition_that_began_after_the_oldest_snapshot_needs_no_older_ones(tmp_path):
    orders = IcebergTable(tmp_path / "lake", partitioned=True)
    orders.append([0, 2])
    orders.append([4])
    orders.append([1, 3])
    orders.expire(keep=2)
    found = _partitions(orders, partition_by="FILE")

    assert _ids(found["g1"]) == [1, 3]
    assert _ids(found["g0"], BatchRowOffset(1, 2)) == [4]
    with pytest.raises(SourcePositionError, match="nothing is committed"):
        found["g0"].check(None)


def test_rolled_back_or_other_table_is_refused(orders):
    first = orders.append(range(10))
    gone = orders.append(range(10, 15))
    orders.roll_back(first)
    orders.append([20])
    (partition,) = _partitions(orders).values()
    (starting,) = _partitions(orders, starting_snapshot=gone).values()

    with pytest.raises(SourcePositionError, match="no snapshot with that sequence number leads to"):
        partition.check(BatchRowOffset(2, 5))
    with pytest.raises(SourcePositionError, match=r"the latest snapshot of .* has sequence number 3"):
        partition.check(BatchRowOffset(9, 1))
    assert _ids(partition, BatchRowOffset(1, 10)) == [20]
    # That snapshot is kept, and does not lead to what the table is now.
    with pytest.raises(SourcePositionError, match=f"starting_snapshot={gone}"):
        starting.check(None)
    assert (partition.history.versions, partition.history.complete) == ((1, 3), True)
    assert partition.history.oldest == first


def test_starting_snapshot_that_is_not_kept_is_refused_where_nothing_is_committed(orders):
    orders.append(range(3))
    (partition,) = _partitions(orders, starting_snapshot=77).values()

    with pytest.raises(SourcePositionError, match="starting_snapshot=77 is not among the kept"):
        partition.check(None)
    assert _ids(partition, BatchRowOffset(1, 1)) == [1, 2]


def test_starting_snapshot_with_delete_files_is_refused(orders):
    snapshot = orders.append(range(3))
    _add_delete_manifest(orders.table)

    (partition,) = _partitions(orders, starting_snapshot=snapshot).values()
    with pytest.raises(SourcePositionError, match="holds delete files"):
        partition.check(None)


def _add_delete_manifest(table: Any) -> None:
    """Write the current snapshot's manifest list again, with a manifest of delete files more."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io)
    facts = {name: 1 for name in ("manifest_length", "sequence_number", "min_sequence_number")}
    counts = {
        f"{what}_{of}_count": 0 for what in ("added", "existing", "deleted") for of in ("files", "rows")
    }
    deletes = ManifestFile.from_args(
        2,
        manifest_path="file:///nowhere.avro",
        partition_spec_id=0,
        content=ManifestContent.DELETES,
        added_snapshot_id=snapshot.snapshot_id,
        **{**facts, **counts, "added_files_count": 1},
    )
    out = table.io.new_output(snapshot.manifest_list)
    out.exists = lambda: False
    with write_manifest_list(2, out, snapshot.snapshot_id, None, 1, "deflate") as writer:
        writer.add_manifests([*manifests, deletes])


def test_columns_come_out_as_the_table_has_them_now(tmp_path):
    schema = pa.schema(
        [("ID", pa.int32()), ("OLD", pa.string()), ("GONE", pa.int64()), ("PRICE", pa.float32())]
    )
    orders = IcebergTable(tmp_path / "lake", schema=schema)
    orders.table.append(pa.table({"ID": [1], "OLD": ["a"], "GONE": [5], "PRICE": [0.5]}, schema=schema))
    with orders.table.update_schema() as change:
        change.rename_column("OLD", "NEW").delete_column("GONE").move_first("OLD")
        change.update_column("ID", change_type_to("long")).update_column("PRICE", change_type_to("double"))
        change.add_column("MORE", change_type_to("string"))
    orders.table.append(
        pa.table(
            {"NEW": ["b"], "ID": [2**40], "PRICE": [0.25], "MORE": ["m"]},
            schema=orders.table.schema().as_arrow(),
        )
    )
    (partition,) = _partitions(orders).values()

    assert [list(row.items()) for row in _rows(partition)] == [
        [("NEW", "a"), ("ID", 1), ("PRICE", 0.5), ("MORE", None)],
        [("NEW", "b"), ("ID", 2**40), ("PRICE", 0.25), ("MORE", "m")],
    ]
    (short,) = _partitions(orders, explicit_nulls=False).values()
    assert "MORE" not in _rows(short)[0]


def change_type_to(name: str) -> Any:
    from pyiceberg.types import DoubleType, LongType, StringType

    return {"long": LongType(), "double": DoubleType(), "string": StringType()}[name]


def test_values_of_every_type_are_faithful(tmp_path):
    columns = {
        "B": pa.array([True, None]),
        "D": pa.array([Decimal("12345678901234567.8901"), None], pa.decimal128(38, 4)),
        "AT": pa.array([1_700_000_000_123_456, None], pa.timestamp("us", "UTC")),
        "LOCAL": pa.array([1_700_000_000_123_456, None], pa.timestamp("us")),
        "DAY": pa.array([19_000, None], pa.date32()),
        "CLOCK": pa.array([3_600_000_001, None], pa.time64("us")),
        "BIN": pa.array([b"\xff\x00", None], pa.binary()),
        "U": pa.array([uuid.UUID(int=255).bytes, None], pa.uuid()),
        "S": pa.array(
            [{"a": 1, "l": [{"x": "y"}]}, None],
            pa.struct([("a", pa.int64()), ("l", pa.list_(pa.struct([("x", pa.string())])))]),
        ),
        "M": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
    }
    rows = pa.table(columns)
    table = IcebergTable(tmp_path / "lake", schema=rows.schema)
    table.table.append(rows)
    (partition,) = _partitions(table).values()

    first, second = _rows(partition)

    assert first == {
        "B": True,
        "D": pytest.approx(12345678901234567.8901),
        "AT": "2023-11-14T22:13:20.123456Z",
        "LOCAL": "2023-11-14T22:13:20.123456",
        "DAY": "2022-01-08",
        "CLOCK": "01:00:00.000001",
        "BIN": "/wA=",
        "U": "00000000-0000-0000-0000-0000000000ff",
        "S": {"a": 1, "l": [{"x": "y"}]},
        "M": {"k": 1},
    }
    assert set(second.values()) == {None}
    assert _rows(partition, BatchRowOffset(1, 1)) == [second]
    position = partition.resume(None)
    (part,) = partition.read(position, LIMITS)
    assert b"12345678901234567.8901" in bytes(part.body)


def test_files_that_lack_a_partition_column_get_its_value(tmp_path):
    orders = IcebergTable(tmp_path / "lake", partitioned=True)
    with orders.table.transaction() as change:
        change.set_properties(
            {"schema.name-mapping.default": orders.table.schema().name_mapping.model_dump_json()}
        )
    folder = tmp_path / "lake" / "FILE=g7"
    folder.mkdir()
    pq.write_table(pa.table({"ID": [7], "NOTE": ["n"], "FILE": ["g7"]}), folder / "a.parquet")
    orders.table.add_files([f"file://{folder}/a.parquet"])
    pq.write_table(pa.table({"ID": [7], "NOTE": ["n"]}), folder / "a.parquet")

    (partition,) = _partitions(orders, partition_by="FILE").values()

    assert _rows(partition) == [{"ID": 7, "FILE": "g7", "NOTE": "n"}]


def test_resume_reads_no_row_group_before_the_committed_row(tmp_path):
    orders = IcebergTable(tmp_path / "lake")
    with orders.table.transaction() as change:
        change.set_properties(
            {"schema.name-mapping.default": orders.table.schema().name_mapping.model_dump_json()}
        )
    file = tmp_path / "lake" / "many.parquet"
    rows = pa.table({"ID": list(range(1000)), "FILE": ["f"] * 1000, "NOTE": ["n"] * 1000})
    pq.write_table(rows, file, row_group_size=100, compression="none")
    orders.table.add_files([file.as_uri()])
    begin = pq.ParquetFile(file).metadata.row_group(9).column(0).dictionary_page_offset
    with file.open("r+b") as stored:
        stored.seek(4)
        stored.write(b"\xff" * (begin - 4))
    (partition,) = _partitions(orders).values()

    assert _ids(partition, BatchRowOffset(1, 950)) == list(range(950, 1000))
    with pytest.raises(SourceUnavailableError, match=r"many.parquet' cannot be read .* or it is damaged"):
        _ids(partition, BatchRowOffset(1, 850))


def test_data_file_that_is_gone_or_replaced_is_refused(orders):
    orders.append(range(3))
    (partition,) = _partitions(orders).values()
    (file,) = partition.history.snapshots[0].files
    path = file.path.removeprefix("file://")

    pq.write_table(pa.table({"ID": [1]}), path)
    with pytest.raises(SourcePositionError, match=r"has 1 row, its snapshot states 3"):
        _rows(partition)
    gone = replace(partition.history.snapshots[0], files=(replace(file, path=f"{file.path}.gone"),))
    with pytest.raises(SourcePositionError, match="is gone: its snapshot expired"):
        _rows(replace(partition, history=replace(partition.history, snapshots=(gone,))))


def test_table_is_found_by_its_directory_and_by_a_metadata_file(orders, tmp_path):
    orders.append(range(3))
    metadata = orders.table.metadata_location
    root = orders.table.location()
    (tmp_path / "lake" / "lake" / "orders" / "metadata" / "version-hint.text").write_text(
        metadata.rpartition("/")[2]
    )

    for path in (root, metadata):
        spec = source_spec({"kind": "iceberg", "path": path})
        (partition,) = open_source(spec, "fail").partitions()
        assert _ids(partition) == [0, 1, 2]
        assert spec.default_name == "orders"


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        (
            {"partition_by": "NOTE"},
            ConfigurationError,
            r"partition_by is 'NOTE', .* partitioned by \['FILE'\]",
        ),
        ({"partition_by": "FILE"}, SourcePositionError, "has no rows, so that 'FILE' gives no partition"),
        ({"table": "lake.none"}, SourcePositionError, "'test.lake.none' is not there: NoSuchTableError"),
        ({"options": {"type": "odd"}}, ConfigurationError, "PyIceberg cannot open .* .pyiceberg.yaml"),
    ],
    ids=["field", "no-rows", "no-table", "no-catalog"],
)
def test_source_that_is_not_there_is_refused_with_the_remedy(tmp_path, source, kind, message):
    table = IcebergTable(tmp_path / "lake", partitioned=True)

    with pytest.raises(kind, match=message):
        _partitions(table, **source)


def test_file_in_another_format_and_partitions_without_a_value_are_refused(orders):
    orders.append(range(3))
    with orders.table.update_spec() as change:
        change.add_identity("FILE")
    orders.append([4])

    with pytest.raises(ConfigurationError, match="no value of the partition field 'FILE'"):
        _partitions(orders, partition_by="FILE")


def test_table_of_format_version_1_is_refused(tmp_path):
    table = IcebergTable(tmp_path / "lake", version=1)
    table.append(range(3))

    with pytest.raises(ConfigurationError, match=r"format version 1, .* format-version to 2"):
        _partitions(table)


def test_upgraded_table_begins_with_what_it_had(tmp_path):
    table = IcebergTable(tmp_path / "lake", version=1)
    table.append(range(3))
    with table.table.transaction() as change:
        change.upgrade_table_version(2)
    with pytest.raises(SourcePositionError, match="no snapshot yet that was made in format version 2"):
        _partitions(table)
    start = table.append([5])
    table.append([6])

    (partition,) = _partitions(table).values()
    with pytest.raises(SourcePositionError, match=f"starting_snapshot={start}"):
        partition.check(None)
    (starting,) = _partitions(table, starting_snapshot=start).values()
    assert sorted(_ids(starting)) == [0, 1, 2, 5, 6]
    assert _ids(starting, BatchRowOffset(1, 4)) == [6]


def test_no_secret_of_the_catalog_shows_or_travels(orders):
    orders.append(range(3))
    spec = source_spec(orders.source(options={**orders.options, "s3.region": "x"}))
    secrets = SourceSecrets({"credential": "hush-hush", "s3.secret-access-key": "hush-key"})

    (partition,) = open_source(spec, "fail", secrets).partitions()

    assert "hush" not in repr(partition)
    assert b"hush-hush" not in pickle.dumps(partition)
    assert partition.reader.store == {"s3.region": "x", "s3.secret-access-key": "hush-key"}


@pytest.mark.parametrize(
    ("options", "secrets", "kind"),
    [
        (
            {"type": "rest", "uri": "http://127.0.0.1:1", "oauth2-server-uri": "http://127.0.0.1:1/sign"},
            {"credential": "me:hush"},
            SourceUnavailableError,
        ),
        ({}, {"type": "hush"}, ConfigurationError),
    ],
    ids=["no-answer", "named-in-the-error"],
)
def test_error_of_a_catalog_shows_no_secret(orders, options, secrets, kind):
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


def test_rows_of_the_starting_snapshot_are_numbered_otherwise_than_those_that_it_appended(orders):
    """A position in one of the two would fit the other one, and skip the rows that the table had before."""
    orders.append(range(10))
    start = orders.append(range(10, 15))
    (own,) = _partitions(orders).values()
    (whole,) = _partitions(orders, starting_snapshot=start).values()

    assert len(_ids(whole, BatchRowOffset(2, 3))) > len(_ids(own, BatchRowOffset(2, 3)))
    assert whole.binding.source_digest == own.binding.source_digest
    assert whole.binding.digest != own.binding.digest
