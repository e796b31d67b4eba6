"""SELECT from staged files ("Querying Data in Staged Files"), and INFER_SCHEMA of them."""

import gzip
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from snowpipe_local.errors import SqlError
from tests.local_catalog import LocalCatalog


@pytest.fixture
def local(local):
    local.sql("CREATE FILE FORMAT bars TYPE = CSV FIELD_DELIMITER = '|' SKIP_HEADER = 1")
    local.sql("CREATE FILE FORMAT js TYPE = JSON")
    local.put("in/a.csv", b"1,x\n2,y\n")
    local.put("in/b.csv", b"3,z\n")
    return local


def test_fields_and_metadata_of_csv_files(local):
    rows = local.sql(
        "SELECT metadata$filename, metadata$file_row_number, t.$2, $1::INT + 1 AS n, t.$3 "
        "FROM @s/in t WHERE $1::INT > 1 ORDER BY t.$1"
    )
    assert [tuple(row.values()) for row in rows] == [
        ("in/a.csv", 2, "y", 3, None), ("in/b.csv", 1, "z", 4, None),
    ]  # fmt: skip
    assert list(rows[0]) == ["metadata$filename", "metadata$file_row_number", "$2", "n", "$3"]
    assert local.values("SELECT $1 FROM @s/nothing") == []


def test_formats_of_the_statement_and_of_the_stage_and_a_pattern(local):
    local.put("c.txt.gz", gzip.compress(b"a|b\n7|8\n"))
    for name in ("bars", "'bars'", "'local.public.bars'", "local.public.bars"):
        options = f"FILE_FORMAT => {name}, PATTERN => '.*[.]txt[.]gz'"
        assert local.values(f"SELECT $1, $2 FROM @s ({options})") == [("7", "8")]
    assert local.values("SELECT $2 FROM '@local.public.s/in/b.csv'") == [("z",)]
    local.sql("CREATE STAGE st FILE_FORMAT = (FORMAT_NAME = 'bars')")
    local.put("x", b"a|b\n1|2\n", "ST")
    assert local.values("SELECT $2 FROM @st") == [("2",)]


def test_json_and_parquet_have_one_variant(local):
    local.put("j.json", b'{"a": {"b": 5}, "c": [1, 2]}\n')
    pq.write_table(pa.table({"id": [1], "name": ["x"]}), local.put("p.parquet", b""))
    local.sql("CREATE FILE FORMAT pq TYPE = PARQUET")
    assert local.values("SELECT $1:a.b::INT, $1:c[1]::INT FROM @s/j.json (FILE_FORMAT => js)") == [(5, 2)]
    assert local.values("SELECT $1:name::VARCHAR FROM @s/p.parquet (FILE_FORMAT => pq)") == [("x",)]
    flat = "SELECT f.value::INT v FROM @s/j.json (FILE_FORMAT => js) t, LATERAL FLATTEN(t.$1:c) f ORDER BY v"
    assert local.values(flat) == [(1,), (2,)]
    assert local.refused("SELECT $2 FROM @s/j.json (FILE_FORMAT => js)").code == "001003"


def test_rows_go_into_tables_joins_subqueries_and_transactions(local):
    local.sql("CREATE TABLE t (id INT, name VARCHAR)")
    local.sql("INSERT INTO t SELECT $1, $2 FROM @s/in")
    local.sql("CREATE TABLE u AS SELECT $1::INT AS id, metadata$filename AS f FROM @s/in/b.csv")
    for query, expected in (
        ("SELECT * FROM t ORDER BY id", [(1, "x"), (2, "y"), (3, "z")]),
        ("SELECT * FROM u", [(3, "in/b.csv")]),
        ("SELECT a.$2, b.$2 b, name FROM @s/in a JOIN @s/in/b.csv b ON a.$1 = b.$1 JOIN t ON id = a.$1",
         [("z", "z", "z")]),
        ("SELECT count(*) FROM (SELECT $1 FROM @s/in)", [(3,)]),
        ("SELECT v.$1 v, t.$1 FROM @s/in/b.csv t JOIN (VALUES ('3', 'x')) v ON v.$1 = t.$1", [("3", "3")]),
        ("SELECT $1, (SELECT max($1) FROM @s/in/a.csv) AS m FROM @s/in/b.csv", [("3", "2")]),
        ("SELECT v.$2 FROM (VALUES (1, 'x')) v", [("x",)]),
    ):  # fmt: skip
        assert local.values(query) == expected
    for statement in ("BEGIN", "INSERT INTO t SELECT $1, $2 FROM @s/in/b.csv", "COMMIT"):
        local.sql(statement)
    local.sql(
        "MERGE INTO t USING (SELECT $1 AS id, 'm' AS name FROM @s/in/a.csv) n ON t.id = n.id "
        "WHEN MATCHED THEN UPDATE SET name = n.name"
    )
    assert local.values("SELECT count(*), count_if(name = 'm') FROM t") == [(4, 2)]


def inferred(local: LocalCatalog, arguments: str) -> dict[str, dict[str, Any]]:
    for name, kind in (("pq", "PARQUET"), ("oc", "ORC"), ("csv", "CSV"), ("head", "CSV PARSE_HEADER = TRUE")):
        local.sql(f"CREATE OR REPLACE FILE FORMAT {name} TYPE = {kind}")
    pq.write_table(pa.table({"ID": pa.array([1], pa.int32()), "ok": [True]}), local.put("a.parquet", b""))
    pq.write_table(pa.table({"ID": [1.5], "extra": ["x"]}), local.put("b.parquet", b""))
    orc.write_table(pa.table({"id": [1]}), local.put("c.orc", b""))
    rows = local.sql(f"SELECT * FROM TABLE(INFER_SCHEMA({arguments})) ORDER BY ORDER_ID")
    return {row["column_name"]: row for row in rows}


def test_inferred_columns_of_different_files_are_joined(local):
    found = inferred(local, "LOCATION => '@s', FILE_FORMAT => 'pq', FILES => ('a.parquet', 'b.parquet')")
    assert (found["ID"]["type"], found["ID"]["filenames"]) == ("REAL", "a.parquet, b.parquet")
    assert found["extra"]["filenames"] == "b.parquet"


def test_case_of_inferred_columns_can_be_ignored_and_orc_is_read(local):
    found = inferred(local, "LOCATION => '@s/c', FILE_FORMAT => 'oc', IGNORE_CASE => TRUE")
    assert {name: row["type"] for name, row in found.items()} == {"ID": "NUMBER(38, 0)"}


def test_columns_of_csv_and_json_have_the_narrowest_type_of_their_values(local):
    local.put("h/h.csv", b"id,a b,at\n1,1.25,2026-01-01\n-20,3,2026-01-02 01:00:00\n,1e3,\n")
    local.put(
        "n.json", b'{"b": {"x": 1}, "a": 1.5, "q": [], "n": null, "s": "2026-01-01"}\n{"a": 20, "q": 1}\n'
    )
    for arguments, expected in [
        ("LOCATION => '@s/in', FILE_FORMAT => 'csv'",
         [("c1", "NUMBER(1, 0)", "$1"), ("c2", "TEXT", "$2")]),
        ("LOCATION => '@s/h', FILE_FORMAT => 'head'",
         [("id", "NUMBER(2, 0)", "$1"), ("a b", "REAL", "$2"), ("at", "TIMESTAMP_NTZ", "$3")]),
        ("LOCATION => '@s/h', FILE_FORMAT => 'head', MAX_RECORDS_PER_FILE => 1",
         [("id", "NUMBER(1, 0)", "$1"), ("a b", "NUMBER(3, 2)", "$2"), ("at", "DATE", "$3")]),
        ("LOCATION => '@s/n.json', FILE_FORMAT => 'js'",
         [("a", "NUMBER(3, 1)", "$1:a"), ("b", "OBJECT", "$1:b"), ("n", "TEXT", "$1:n"),
          ("q", "VARIANT", "$1:q"), ("s", "TEXT", "$1:s")]),
    ]:  # fmt: skip
        found = inferred(local, arguments)
        assert [(row["column_name"], row["type"], row["expression"]) for row in found.values()] == [
            (name, kind, f"{place}::{kind}") for name, kind, place in expected
        ]
    assert local.values("SELECT $1 FROM @s/n.json (FILE_FORMAT => js) LIMIT 1")[0][0].startswith(
        '{"a":1.5,"b"'
    )


def test_a_wrong_call_of_infer_schema_reports_what_is_wrong(local):
    for arguments, named in [
        ("FILE_FORMAT => 'pq'", "LOCATION"), ("LOCATION => '@s'", "FILE_FORMAT"),
        ("LOCATION => '@s', FILE_FORMAT => 'pq', COLOUR => 1", "takes"),
        ("LOCATION => '@s/c', FILE_FORMAT => 'pq'", "c.orc"),
        ("LOCATION => '@s/in', FILE_FORMAT => 'csv', FILES => ('a.csv', 'gone.csv')", "gone"),
        ("LOCATION => '@none', FILE_FORMAT => 'pq'", "NONE"),
    ]:  # fmt: skip
        with pytest.raises(SqlError, match=named):
            inferred(local, arguments)
