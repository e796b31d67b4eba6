from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from tests.local_catalog import LocalCatalog


@pytest.fixture
def local(local):
    for name, kind in (("pq", "PARQUET"), ("oc", "ORC"), ("csv", "CSV")):
        local.sql(f"CREATE FILE FORMAT {name} TYPE = {kind}")
    pq.write_table(pa.table({"ID": pa.array([1], pa.int32()), "ok": [True]}), local.put("a.parquet", b""))
    pq.write_table(pa.table({"ID": [1.5], "extra": ["x"]}), local.put("b.parquet", b""))
    orc.write_table(pa.table({"id": [1]}), local.put("c.orc", b""))
    return local


def inferred(local: LocalCatalog, arguments: str) -> dict[str, dict[str, Any]]:
    rows = local.sql(f"SELECT * FROM TABLE(INFER_SCHEMA({arguments})) ORDER BY ORDER_ID")
    return {row["column_name"]: row for row in rows}


def test_files_of_different_columns_are_joined(local):
    found = inferred(local, "LOCATION => '@s', FILE_FORMAT => 'pq', FILES => ('a.parquet', 'b.parquet')")
    assert (found["ID"]["type"], found["ID"]["filenames"]) == ("REAL", "a.parquet, b.parquet")
    assert found["extra"]["filenames"] == "b.parquet"


def test_case_can_be_ignored_and_orc_is_read(local):
    found = inferred(local, "LOCATION => '@s/c', FILE_FORMAT => 'oc', IGNORE_CASE => TRUE")
    assert {name: row["type"] for name, row in found.items()} == {"ID": "NUMBER(38, 0)"}


def test_a_wrong_call_reports_what_is_wrong(local):
    for arguments, named in [
        ("FILE_FORMAT => 'pq'", "LOCATION"), ("LOCATION => '@s'", "FILE_FORMAT"),
        ("LOCATION => '@s', FILE_FORMAT => 'pq', COLOUR => 1", "takes"),
        ("LOCATION => '@s/c', FILE_FORMAT => 'pq'", "c.orc"),
        ("LOCATION => '@s', FILE_FORMAT => 'csv'", "CSV"),
        ("LOCATION => '@none', FILE_FORMAT => 'pq'", "NONE"),
    ]:  # fmt: skip
        error = local.refused(f"SELECT * FROM TABLE(INFER_SCHEMA({arguments}))")
        assert named in error.message
