from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import pytest
from snowpipe_local.catalog import Catalog
from snowpipe_local.errors import SqlError
from snowpipe_local.faults import Faults
from snowpipe_local.sql import front
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.stage_references import resolve_location

ROWS = {
    "ID": pa.array([1], pa.int32()), "my price": pa.array([Decimal("1.50")], pa.decimal128(12, 2)),
    "ratio": [1.5], "ok": [True], "name": ["a"], "raw": [b"a"], "day": [dt.date(2026, 1, 1)],
    "at": pa.array([dt.datetime(2026, 1, 1)], pa.timestamp("us")),
    "seen": pa.array([dt.datetime(2026, 1, 1)], pa.timestamp("us", tz="UTC")), "list": [[1]],
    "object": [{"a": 1}],
}  # fmt: skip


@pytest.fixture
def session(tmp_path):
    catalog = Catalog(tmp_path, Faults())
    session = Session(catalog, "DEMO", "LOCAL", "PUBLIC")
    for statement in (
        "CREATE STAGE s", "CREATE FILE FORMAT pq TYPE = PARQUET", "CREATE FILE FORMAT oc TYPE = ORC",
        "CREATE FILE FORMAT csv TYPE = CSV",
    ):  # fmt: skip
        front.execute(session, statement)
    location, _ = resolve_location(session, "@s")
    folder, _ = location.upload_folder()
    pyarrow.parquet.write_table(pa.table(ROWS), folder.root / "a.parquet")
    pyarrow.parquet.write_table(pa.table({"ID": [1.5], "extra": ["x"]}), folder.root / "b.parquet")
    pyarrow.orc.write_table(pa.table({"id": [1]}), folder.root / "c.orc")
    yield session
    catalog.close()


def _inferred(session: Session, arguments: str, columns: str = "COLUMN_NAME, TYPE") -> list[Any]:
    text = f"SELECT {columns} FROM TABLE(INFER_SCHEMA({arguments})) ORDER BY ORDER_ID"
    return front.execute(session, text).rows


def test_files_of_different_columns_are_joined(session):
    found = {
        row[0]: row[1:]
        for row in _inferred(
            session, "LOCATION => '@s', FILE_FORMAT => 'pq', FILES => ('a.parquet', 'b.parquet')", "*"
        )
    }
    assert found["ID"][0] == "REAL"
    assert found["ID"][3] == "a.parquet, b.parquet"
    assert found["extra"][3] == "b.parquet"


def test_case_can_be_ignored_and_orc_is_read(session):
    found = _inferred(session, "LOCATION => '@s/c', FILE_FORMAT => 'oc', IGNORE_CASE => TRUE")
    assert found == [("ID", "NUMBER(38, 0)")]


def test_a_wrong_call_reports_what_is_wrong(session):
    for arguments, message in [
        ("FILE_FORMAT => 'pq'", "LOCATION"), ("LOCATION => '@s'", "FILE_FORMAT"),
        ("LOCATION => '@s', FILE_FORMAT => 'pq', COLOUR => 1", "COLOUR|takes"),
        ("LOCATION => '@s/c', FILE_FORMAT => 'pq'", "c.orc"),
        ("LOCATION => '@s', FILE_FORMAT => 'csv'", "CSV"),
        ("LOCATION => '@none', FILE_FORMAT => 'pq'", "NONE"),
    ]:  # fmt: skip
        with pytest.raises(SqlError, match=message):
            _inferred(session, arguments)
