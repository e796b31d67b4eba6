"""SELECT from staged files ("Querying Data in Staged Files")."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture
def local(local):
    local.sql("CREATE FILE FORMAT bars TYPE = CSV FIELD_DELIMITER = '|' SKIP_HEADER = 1")
    local.sql("CREATE FILE FORMAT js TYPE = JSON")
    local.put("in/a.csv", b"1,x\n2,y\n")
    local.put("in/b.csv", b"3,z\n")
    return local


def values(local, statement):
    return [tuple(row.values()) for row in local.sql(statement)]


def test_fields_and_metadata_of_csv_files(local):
    rows = local.sql(
        "SELECT metadata$filename, metadata$file_row_number, t.$2, $1::INT + 1 AS n, t.$3 "
        "FROM @s/in t WHERE $1::INT > 1 ORDER BY t.$1"
    )
    assert [tuple(row.values()) for row in rows] == [
        ("in/a.csv", 2, "y", 3, None), ("in/b.csv", 1, "z", 4, None),
    ]  # fmt: skip
    assert list(rows[0]) == ["metadata$filename", "metadata$file_row_number", "$2", "n", "$3"]
    assert values(local, "SELECT $1 FROM @s/nothing") == []


def test_formats_of_the_statement_and_of_the_stage_and_a_pattern(local):
    local.put("c.txt.gz", gzip.compress(b"a|b\n7|8\n"))
    for name in ("bars", "'bars'", "'local.public.bars'", "local.public.bars"):
        options = f"FILE_FORMAT => {name}, PATTERN => '.*[.]txt[.]gz'"
        assert values(local, f"SELECT $1, $2 FROM @s ({options})") == [("7", "8")]
    assert values(local, "SELECT $2 FROM '@local.public.s/in/b.csv'") == [("z",)]
    local.sql("CREATE STAGE st FILE_FORMAT = (FORMAT_NAME = 'bars')")
    local.put("x", b"a|b\n1|2\n", "ST")
    assert values(local, "SELECT $2 FROM @st") == [("2",)]


def test_json_and_parquet_have_one_variant(local):
    local.put("j.json", b'{"a": {"b": 5}, "c": [1, 2]}\n')
    pq.write_table(pa.table({"id": [1], "name": ["x"]}), local.put("p.parquet", b""))
    local.sql("CREATE FILE FORMAT pq TYPE = PARQUET")
    assert values(local, "SELECT $1:a.b::INT, $1:c[1]::INT FROM @s/j.json (FILE_FORMAT => js)") == [(5, 2)]
    assert values(local, "SELECT $1:name::VARCHAR FROM @s/p.parquet (FILE_FORMAT => pq)") == [("x",)]
    flat = "SELECT f.value::INT v FROM @s/j.json (FILE_FORMAT => js) t, LATERAL FLATTEN(t.$1:c) f ORDER BY v"
    assert values(local, flat) == [(1,), (2,)]
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
        assert values(local, query) == expected
    for statement in ("BEGIN", "INSERT INTO t SELECT $1, $2 FROM @s/in/b.csv", "COMMIT"):
        local.sql(statement)
    local.sql(
        "MERGE INTO t USING (SELECT $1 AS id, 'm' AS name FROM @s/in/a.csv) n ON t.id = n.id "
        "WHEN MATCHED THEN UPDATE SET name = n.name"
    )
    assert values(local, "SELECT count(*), count_if(name = 'm') FROM t") == [(4, 2)]


def test_what_cannot_be_read_is_refused(local):
    local.sql("CREATE TABLE t (a INT)")
    for statement, code in [
        ("SELECT * FROM @s", "000002"), ("SELECT $1 FROM @nowhere", "002003"),
        ("SELECT $1 FROM @s (FILE_FORMAT => nowhere)", "002003"), ("SELECT $1 FROM @s a, @s b", "002028"),
        ("SELECT t.$1 FROM @s", "000904"), ("SELECT $999999999999 FROM @s", "001003"),
        ("COPY INTO t FROM (SELECT $99999 FROM @s)", "001003"),
        ("SELECT $1 FROM @s (PATTERN => '(')", "100048"),
        ("SELECT $1 FROM @s/in (FILE_FORMAT => js)", "100069"), ("SELECT $1 FROM @s/../x", "001003"),
    ]:  # fmt: skip
        error = local.refused(statement)
        assert error.code == code, (statement, error)
