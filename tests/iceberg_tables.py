"""Iceberg tables for tests, written by PyIceberg into a folder, with a catalog in SQLite."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table

ROWS = pa.schema([("ID", pa.int64()), ("FILE", pa.string()), ("NOTE", pa.string())])


class IcebergTable:
    """A table in the namespace ``lake``, changed as a test likes."""

    def __init__(
        self,
        folder: Path,
        name: str = "orders",
        *,
        schema: pa.Schema = ROWS,
        partitioned: bool = False,
        version: int = 2,
        warehouse: str | None = None,
        store: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.options = {
            "type": "sql",
            "uri": f"sqlite:///{folder / 'catalog.db'}",
            "warehouse": warehouse or folder.as_uri(),
        }
        self._store = dict(store or {})
        self.name = f"lake.{name}"
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists("lake")
        catalog.create_table(self.name, schema, properties={"format-version": str(version)})
        if partitioned:
            with self.table.update_spec() as change:
                change.add_identity("FILE")

    def _catalog(self) -> SqlCatalog:
        catalog = load_catalog("test", **self.options, **self._store)
        assert isinstance(catalog, SqlCatalog)
        return catalog

    @property
    def table(self) -> Table:
        return self._catalog().load_table(self.name)

    @property
    def snapshot(self) -> int:
        snapshot = self.table.current_snapshot()
        return snapshot.snapshot_id

    def source(self, **more: Any) -> dict[str, Any]:
        return {"kind": "iceberg", "table": self.name, "catalog": "test", "options": self.options, **more}

    def append(self, ids: Iterable[int], note: str = "x") -> int:
        """Append numbered rows; the id of the snapshot that this makes."""
        self.table.append(_rows(ids, note))
        return self.snapshot

    def delete(self, where: str) -> None:
        """Delete rows, whole files where all rows of them go."""
        self.table.delete(where)

    def compact(self) -> None:
        """Write all rows into new files, in a snapshot of the kind ``replace`` as compaction makes."""
        table = self.table
        rows = table.scan().to_arrow()
        with table.transaction() as change, change.update_snapshot().overwrite() as snapshot:
            for task in table.scan().plan_files():
                snapshot.delete_data_file(task.file)
            for file in _dataframe_to_data_files(change.table_metadata, rows, table.io):
                snapshot.append_data_file(file)
        self._declare_no_change()

    def _declare_no_change(self) -> None:
        """PyIceberg writes no snapshot of that kind; all but this word is what Iceberg's own has."""
        table = self.table
        written = Path(table.metadata_location.removeprefix("file://"))
        metadata = json.loads(written.read_text())
        (last,) = [one for one in metadata["snapshots"] if one["snapshot-id"] == self.snapshot]
        assert last["summary"]["operation"] == "overwrite"
        last["summary"]["operation"] = "replace"
        changed = written.with_name(f"{int(written.name[:5]) + 1:05d}-compacted.metadata.json")
        changed.write_text(json.dumps(metadata))
        catalog = self._catalog()
        catalog.drop_table(self.name)
        catalog.register_table(self.name, changed.as_uri())

    def expire(self, keep: int = 1) -> None:
        ids = [one.snapshot_id for one in sorted(self.table.snapshots(), key=lambda one: one.timestamp_ms)]
        self.table.maintenance.expire_snapshots().by_ids(ids[: len(ids) - keep]).commit()

    def roll_back(self, snapshot: int) -> None:
        self.table.manage_snapshots().rollback_to_snapshot(snapshot).commit()


def _rows(ids: Iterable[int], note: str) -> pa.Table:
    numbers = list(ids)
    columns = {"ID": numbers, "FILE": [f"g{one % 2}" for one in numbers], "NOTE": [note] * len(numbers)}
    return pa.table(columns, schema=ROWS)
