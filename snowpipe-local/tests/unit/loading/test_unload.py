"""COPY INTO a stage: what it writes, and that COPY INTO a table reads it as it was."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from snowpipe_local.sql import unload
from snowpipe_local.sql.execution import Execution
from tests.local_catalog import LocalCatalog
from tests.unit.sql_sessions import SqlSessions

PLAIN = "FILE_FORMAT = (COMPRESSION = NONE)"
JSON = "FILE_FORMAT = (TYPE = JSON COMPRESSION = NONE)"
PARQUET = "FILE_FORMAT = (TYPE = PARQUET)"
COUNT = "SELECT COUNT(*) AS n FROM t"


@pytest.fixture
def local(local):
    local.sql("CREATE TABLE t (a INT, b VARCHAR)")
    local.sql("INSERT INTO t VALUES (1, 'x'), (2, 'y')")
    return local


def files(local: LocalCatalog, path: str = "@s") -> dict[str, int]:
    return {row["name"]: row["size"] for row in local.sql(f"LIST {path}")}


def paths(local: LocalCatalog, pattern: str) -> list[Path]:
    return sorted((local.folder / "data" / "staged" / "files").glob(f"*/{pattern}"))


def content(local: LocalCatalog, name: str) -> bytes:
    [path] = paths(local, name)
    return path.read_bytes()


def unloaded(local: LocalCatalog, query: str, options: str = PLAIN) -> str:
    """Unload a query into one file of text, and return it."""
    local.sql(f"COPY INTO @s/one FROM ({query}) {options} SINGLE = TRUE OVERWRITE = TRUE")
    return content(local, "one").decode()


def leftover(local: LocalCatalog) -> list[str]:
    return [path.name for path in (local.folder / "data" / "staged" / "incoming").iterdir()]


def many(count: int, columns: str = "SEQ4() AS n, RANDSTR(20, 1) AS s") -> str:
    return f"(SELECT {columns} FROM TABLE(GENERATOR(ROWCOUNT => {count})))"


def test_a_table_becomes_a_private_compressed_csv_file_and_both_sizes_are_counted(local):
    assert local.sql("COPY INTO @s/u/ FROM t") == [{"rows_unloaded": 2, "input_bytes": 8, "output_bytes": 28}]
    assert files(local) == {"s/u/data_0_0_0.csv.gz": 28}
    assert gzip.decompress(content(local, "u/data_0_0_0.csv.gz")) == b"1,x\n2,y\n"
    assert paths(local, "u/*")[0].stat().st_mode & 0o777 == 0o600
    assert local.sql(f"COPY INTO @s/d/ FROM t {PLAIN} DETAILED_OUTPUT = TRUE") == [
        {"file_name": "data_0_0_0.csv", "file_size": 8, "row_count": 2}
    ]


def test_a_file_is_named_by_path_format_and_compression(local):
    for target, options, name in [
        ("@s", "TYPE = CSV", "s/data_0_0_0.csv.gz"), ("@s/in/x", "TYPE = CSV", "s/in/x_0_0_0.csv.gz"),
        ("'@s/in/x y'", "TYPE = CSV", "s/in/x y_0_0_0.csv.gz"),
        ("@s/u/", "COMPRESSION = NONE", "s/u/data_0_0_0.csv"),
        ("@s/u/", "COMPRESSION = BZ2", "s/u/data_0_0_0.csv.bz2"),
        ("@s/u/", "COMPRESSION = ZSTD", "s/u/data_0_0_0.csv.zst"),
        ("@s/u/", "COMPRESSION = NONE FILE_EXTENSION = '.dat'", "s/u/data_0_0_0.dat"),
        ("@s/u/", "TYPE = PARQUET", "s/u/data_0_0_0.snappy.parquet"),
        ("@s/u/", "TYPE = PARQUET COMPRESSION = NONE", "s/u/data_0_0_0.parquet"),
        ("@s/u/", "TYPE = PARQUET SNAPPY_COMPRESSION = FALSE", "s/u/data_0_0_0.parquet"),
    ]:  # fmt: skip
        local.sql("REMOVE @s")
        local.sql(f"COPY INTO {target} FROM t FILE_FORMAT = ({options})")
        assert list(files(local)) == [name]
    local.sql("REMOVE @s")
    local.sql("COPY INTO @s/u/ FROM t SINGLE = TRUE")
    local.sql("COPY INTO @s/u/out.csv FROM t SINGLE = TRUE")
    local.sql("COPY INTO @%t/a FROM t")
    local.sql("COPY INTO @~/b/ FROM (SELECT 1)")
    assert list(files(local)) == ["s/u/data", "s/u/out.csv"]
    assert (list(files(local, "@%t")), list(files(local, "@~"))) == (
        ["a_0_0_0.csv.gz"], ["b/data_0_0_0.csv.gz"],
    )  # fmt: skip


def test_the_format_of_the_stage_is_the_default_and_a_named_one_is_found(local):
    local.sql("CREATE FILE FORMAT pipes TYPE = CSV FIELD_DELIMITER = '|' COMPRESSION = NONE")
    local.sql("CREATE STAGE p FILE_FORMAT = (FORMAT_NAME = pipes)")
    for options in ("", "FILE_FORMAT = (FORMAT_NAME = pipes)", "FILE_FORMAT = 'PIPES'"):
        local.sql(f"COPY INTO @p FROM t {options} OVERWRITE = TRUE")
        assert content(local, "data_0_0_0.csv") == b"1|x\n2|y\n"


def test_no_rows_make_no_file(local):
    for options in ("", "SINGLE = TRUE", "HEADER = TRUE", PARQUET):
        found = local.sql(f"COPY INTO @s/n/ FROM (SELECT * FROM t WHERE FALSE) {options}")
        assert found == [{"rows_unloaded": 0, "input_bytes": 0, "output_bytes": 0}]
    assert local.sql("COPY INTO @s/e FROM (SELECT 1 WHERE FALSE) DETAILED_OUTPUT = TRUE") == []
    assert files(local) == {}


def test_files_of_the_location_are_kept_unless_they_are_overwritten(local):
    local.sql(f"COPY INTO @s/u/ FROM t {PLAIN}")
    error = local.refused(f"COPY INTO @s/u FROM (SELECT 3) {PLAIN}")
    assert error.code == "001030"
    assert "Files already existing at the unload destination: @s/u. Use overwrite" in error.message
    # Only its own name blocks a single file.
    local.sql(f"COPY INTO @s/u/x FROM (SELECT 4) {PLAIN} SINGLE = TRUE")
    assert local.refused(f"COPY INTO @s/u/x FROM (SELECT 5) {PLAIN} SINGLE = TRUE").code == "001030"
    local.sql(f"COPY INTO @s/u/ FROM (SELECT 6) {PLAIN} OVERWRITE = TRUE")
    assert (content(local, "u/data_0_0_0.csv"), content(local, "u/x")) == (b"6\n", b"4\n")
    for _ in range(2):
        local.sql("COPY INTO @s/u/ FROM t INCLUDE_QUERY_ID = TRUE")
        assert f"s/u/data_{local.session.query_id}_0_0_0.csv.gz" in files(local)
    assert len(files(local)) == 4


def test_overwrite_that_fails_leaves_the_files_as_they_were(local):
    local.put("u/data_0_0_0.csv", b"old\n")
    local.put("u/data_0_0_2.csv/in_the_way", b"x")
    before = files(local)
    options = f"{PLAIN} MAX_FILE_SIZE = 1 OVERWRITE = TRUE"
    error = local.refused(f"COPY INTO @s/u/ FROM {many(10_000, 'SEQ8()')} {options}")
    assert "data_0_0_2.csv" in error.message
    error = local.refused(f"COPY INTO @s/u/data_0_0_2.csv FROM t {PLAIN} SINGLE = TRUE OVERWRITE = TRUE")
    assert (error.code, "'u/data_0_0_2.csv' cannot be a file" in error.message) == ("001003", True)
    assert (files(local), leftover(local)) == (before, [])
    assert content(local, "u/data_0_0_0.csv") == b"old\n"


def test_a_file_that_arrives_meanwhile_is_kept_too(local, monkeypatch):
    def late(session, made, tree, run=unload._run):
        local.put("u/data_0_0_0.csv", b"earlier\n")
        return run(session, made, tree)

    monkeypatch.setattr(unload, "_run", late)
    assert local.refused(f"COPY INTO @s/u/ FROM t {PLAIN}").code == "001030"
    assert content(local, "u/data_0_0_0.csv") == b"earlier\n"


def test_max_file_size_splits_between_sets_of_rows(local):
    [found] = local.sql(f"COPY INTO @s/m/ FROM {many(10_000)} {PLAIN} MAX_FILE_SIZE = 60000 HEADER = TRUE")
    names = sorted(files(local))
    assert names == [f"s/m/data_0_0_{number}.csv" for number in range(len(names))]
    assert len(names) > 2
    assert sum(files(local).values()) == found["output_bytes"]
    lines = [content(local, name[2:]).decode().splitlines() for name in names]
    assert {each[0] for each in lines} == {"N,S"}
    assert [int(line.split(",")[0]) for each in lines for line in each[1:]] == list(range(10000))
    error = local.refused(f"COPY INTO @s/n FROM {many(10_000)} {PLAIN} SINGLE = TRUE MAX_FILE_SIZE = 1000")
    assert "Max file size (1000) exceeded for unload single file mode" in error.message


def test_partitions_are_folders_of_files_with_the_query_id(local):
    local.sql("INSERT INTO t VALUES (3, NULL), (4, 'x')")
    rows = local.sql(f"COPY INTO @s/p FROM t PARTITION BY ('b=' || b) {PLAIN} DETAILED_OUTPUT = TRUE")
    name = f"data_{local.session.query_id}_0_0_0.csv"
    assert {tuple(row.values()) for row in rows} == {
        ("b=x", f"b=x/{name}", 8, 2), ("b=y", f"b=y/{name}", 4, 1), (None, f"__NULL__/{name}", 5, 1),
    }  # fmt: skip
    assert list(rows[0]) == ["partition_name", "file_name", "file_size", "row_count"]
    assert sorted(content(local, f"p/b=x/{name}").splitlines()) == [b"1,x", b"4,x"]
    assert content(local, f"p/__NULL__/{name}") == b"3,\\N\n"
    local.sql(f"COPY INTO @s/p FROM t PARTITION BY 'b=' || b {PLAIN}")
    assert len(files(local)) == 6


def test_a_partition_may_name_a_column_of_the_query_and_be_longer_than_a_set(local):
    query = many(20_000, "MOD(SEQ4(), 3) AS m, RANDSTR(20, 1) AS s")
    options = f"{PARQUET} MAX_FILE_SIZE = 100000 HEADER = TRUE"
    local.sql(f"COPY INTO @s/p/ FROM {query} PARTITION BY TO_VARCHAR(m) {options}")
    rows = dict.fromkeys("012", 0)
    for path in paths(local, "p/*/*"):
        table = pq.read_table(path)
        assert table.column_names == ["M", "S"]
        assert {str(value) for value in table["M"].to_pylist()} == {path.parent.name}
        rows[path.parent.name] += table.num_rows
    assert rows == {"0": 6667, "1": 6667, "2": 6666}


def test_a_partition_does_not_leave_its_location(local):
    for value in ["../x", "/", "a//b", "a\\\\b", ""]:
        error = local.refused(f"COPY INTO @s/p/ FROM t PARTITION BY '{value}' {PLAIN}")
        assert "invalid file path" in error.message
        assert files(local) == {}


def test_what_it_does_not_take_is_refused_and_leaves_no_file(local):
    for rest, code in [
        ("FROM t ON_ERROR = CONTINUE", "001420"), ("FROM t OVERWRITE = 'TRUE'", "001008"),
        ("FROM t MAX_FILE_SIZE = 5368709121", "001008"), ("FROM t VALIDATION_MODE = RETURN_ERRORS", "001008"),
        ("FROM t FILE_FORMAT = (TYPE = PARQUET FILE_EXTENSION = 'x')", "001420"),
        ("FROM t FILE_FORMAT = (TYPE = PARQUET COMPRESSION = LZO)", "000002"),
        ("FROM t FILE_FORMAT = (TYPE = AVRO)", "000002"), ("FROM t FILE_FORMAT = (TYPE = JSON)", "000002"),
        ("FROM (SELECT b FROM t) FILE_FORMAT = (TYPE = JSON)", "000002"),
        ("FROM t INCLUDE_QUERY_ID = TRUE OVERWRITE = TRUE", "001003"),
        ("FROM t PARTITION BY (b) SINGLE = TRUE", "001003"),
        ("FROM t PARTITION BY (b) INCLUDE_QUERY_ID = FALSE", "001003"), ("FROM t PARTITION BY (a)", "001003"),
        ("FROM t PARTITION BY b FROM t", "001003"), ("FROM (DELETE FROM t)", "000002"),
        ("FROM (DELETE FROM t) VALIDATION_MODE = RETURN_ROWS", "000002"), ("FROM missing", "002003"),
        ("FROM @s", "001003"), ("t", "001003"), ("FROM (SELECT b::INT FROM t)", "100038"),
    ]:  # fmt: skip
        assert local.refused(f"COPY INTO @s/r {rest}").code == code
        assert files(local) == {}
        assert local.sql(COUNT) == [{"n": 2}]
    local.sql(f"CREATE STAGE folder URL = 'file://{local.outside}/'")
    for target in ("'s3://bucket/x'", "'azure://a/b'", f"'file://{local.outside}/x'", "@folder/x"):
        assert local.refused(f"COPY INTO {target} FROM t").code == "000002"
    assert list(local.outside.iterdir()) == []
    assert local.refused("CREATE PIPE p AS COPY INTO @s FROM t").code == "000002"


def test_parquet_has_no_timestamps_with_time_zones(local):
    for kind in ("TIMESTAMP_LTZ", "TIMESTAMP_TZ"):
        error = local.refused(f"COPY INTO @s/r FROM (SELECT '2026-01-02 03:04:05'::{kind}) {PARQUET}")
        assert error.code == "100171"
        assert f"not supported for unloading to Parquet. value get: {kind}" in error.message


def test_validation_mode_returns_the_rows_and_writes_nothing(local):
    rows = local.sql("COPY INTO @s/v FROM t VALIDATION_MODE = RETURN_ROWS")
    assert rows == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert files(local) == {}


def test_privileges_are_those_of_the_sessions_role(sql: SqlSessions):
    sql.run(
        "CREATE STAGE st", "CREATE TABLE secret (a INT)", "INSERT INTO secret VALUES (1)",
        "CREATE ROLE reader", "GRANT USAGE ON DATABASE LOCAL TO ROLE reader",
        "GRANT USAGE ON SCHEMA PUBLIC TO ROLE reader", "GRANT READ ON STAGE st TO ROLE reader",
        "GRANT ROLE reader TO USER demo",
    )  # fmt: skip
    assert sql.refused("COPY INTO @st/x FROM (SELECT 1)", role="READER").code == "003001"
    sql.run("GRANT WRITE ON STAGE st TO ROLE reader")
    assert sql.refused("COPY INTO @st/x FROM secret", role="READER").code == "002003"
    sql.run("GRANT SELECT ON TABLE secret TO ROLE reader")
    assert sql.run("COPY INTO @st/x FROM secret", role="READER")[0]["rows_unloaded"] == 1
    assert sql.refused("COPY INTO @%secret FROM secret", role="READER").code == "003001"


@pytest.mark.parametrize("options", [PLAIN, "", PARQUET], ids=["plain", "gzip", "parquet"])
def test_a_failure_behind_the_first_files_or_a_full_disk_leaves_none(local, monkeypatch, options):
    query = many(20_000, "RANDSTR(50, 1), 1 / (19999 - SEQ4())")
    error = local.refused(f"COPY INTO @s/f/ FROM {query} {options} MAX_FILE_SIZE = 1000")
    assert (error.code, error.message) == ("100051", "Division by zero")
    opened = unload.pa.OSFile
    monkeypatch.setattr(unload.pa, "OSFile", lambda _path, mode: opened("/dev/full", mode))
    error = local.refused(f"COPY INTO @s/f FROM t {options}")
    assert (error.code, error.sqlstate) == ("000603", "53100")
    assert (files(local), leftover(local)) == ({}, [])
    assert local.sql(COUNT) == [{"n": 2}]


def test_the_history_counts_rows_unloaded(local):
    running = Execution(local.session, "COPY INTO @s/h/ FROM t DETAILED_OUTPUT = TRUE")
    running.run()
    assert running.error is None
    [row] = local.sql(
        "SELECT rows_unloaded, rows_produced, rows_inserted FROM snowflake.account_usage.query_history "
        "WHERE query_type = 'UNLOAD'"
    )
    assert row == {"rows_unloaded": 2, "rows_produced": 1, "rows_inserted": 0}


def test_csv_is_written_as_the_file_format_sets(local):
    times = "SELECT DATE '2026-01-02', TIME '03:04:05'"
    for query, options, expected in [
        ("SELECT 1.50::NUMBER(5,2), 2.5::FLOAT, 3::FLOAT, TRUE, NULL", "", "1.50,2.5,3,true,\\N\n"),
        ("SELECT 'a,b', 'c\\\\d', 'e\\nf'", "", "a\\,b,c\\\\d,e\\\nf\n"),
        ("SELECT 'a\"b', 1, NULL, ''", "FIELD_OPTIONALLY_ENCLOSED_BY = '\"'", '"a""b",1,\\N,""\n'),
        ("SELECT 'a\"b\\\\'", "FIELD_OPTIONALLY_ENCLOSED_BY = '\"' ESCAPE = '\\\\'", '"a\\"b\\\\"\n'),
        ("SELECT 'a;b', 'c|'", "FIELD_DELIMITER = ';' RECORD_DELIMITER = '|' ESCAPE = '^'", "a^;b;c^||"),
        ("SELECT 'a,b'", "ESCAPE_UNENCLOSED_FIELD = NONE", "a,b\n"),
        ("SELECT NULL, '', 'x'", "NULL_IF = ('nil', 'none')", 'nil,"",x\n'),
        ("SELECT NULL, '', 'x'", "NULL_IF = () EMPTY_FIELD_AS_NULL = FALSE", ",,x\n"),
        ("SELECT 15, -1.5::FLOAT", "FIELD_DELIMITER = '1'", "\\15" + "1" + "-\\1.5\n"),
        ("SELECT TO_BINARY('AB01')", "", "AB01\n"),
        ("SELECT TO_BINARY('AB01')", "BINARY_FORMAT = BASE64", "qwE=\n"),
        ("SELECT TO_BINARY('6869')", "BINARY_FORMAT = UTF8", "hi\n"),
        ('SELECT PARSE_JSON(\'{"b": [1], "a": "x"}\')', "FIELD_DELIMITER = '|'", '{"a":"x","b":[1]}\n'),
        (times, "", "2026-01-02,03:04:05\n"),
        (times, "DATE_FORMAT = 'DD/MM/YY' TIME_FORMAT = 'HH24.MI'", "02/01/26,03.04\n"),
        (
            "SELECT '2026-01-02 03:04:05'::TIMESTAMP",
            "TIMESTAMP_FORMAT = 'YYYY\"T\"HH24MISS'",
            "2026T030405\n",
        ),
    ]:
        assert unloaded(local, query, f"FILE_FORMAT = (COMPRESSION = NONE {options})") == expected


def test_headers_are_the_names_of_the_columns(local):
    query = 'SELECT a, b AS "b,c", COUNT(*) OVER () FROM t WHERE a = 1'
    header = "A,b\\,c,COUNT(*) OVER ()\n"
    assert unloaded(local, query, f"{PLAIN} HEADER = TRUE") == f"{header}1,x,1\n"
    quoted = "FILE_FORMAT = (FIELD_OPTIONALLY_ENCLOSED_BY = '\"' COMPRESSION = NONE) HEADER = TRUE"
    assert unloaded(local, query, quoted).splitlines()[0] == '"A","b,c","COUNT(*) OVER ()"'
    local.sql(f"COPY INTO @s/p/ FROM ({query}) PARTITION BY ('x') {PLAIN} HEADER = TRUE")
    partition = content(local, f"p/x/data_{local.session.query_id}_0_0_0.csv")
    assert partition.decode().startswith(header)
    local.sql(f"COPY INTO @s/x FROM t {PARQUET} SINGLE = TRUE")
    local.sql(f"COPY INTO @s/y FROM t {PARQUET} SINGLE = TRUE HEADER = TRUE")
    names = [pq.read_schema(paths(local, name)[0]).names for name in ("x", "y")]
    assert names == [["_COL_0", "_COL_1"], ["A", "B"]]


COLUMNS = """
    n NUMBER(38,0), d NUMBER(38,10), f FLOAT, s VARCHAR, b BINARY, o BOOLEAN, dt DATE, ti TIME,
    ntz TIMESTAMP_NTZ, ltz TIMESTAMP_LTZ, tz TIMESTAMP_TZ, v VARIANT, ob OBJECT, ar ARRAY
"""
ROWS = """
    SELECT 99999999999999999999999999999999999999, 1234567890123456789.0123456789, 0.1::FLOAT, 'é"\\'€😀',
        TO_BINARY('00FF'), TRUE, '0001-02-03'::DATE, '23:59:59.123456'::TIME,
        '2026-01-02 03:04:05.678901'::TIMESTAMP_NTZ, '2026-01-02 03:04:05.678901 +0200'::TIMESTAMP_LTZ,
        '2026-07-02 03:04:05.678901 +0530'::TIMESTAMP_TZ, PARSE_JSON('"text"'),
        PARSE_JSON('{"a": {"b": [1, 2.5, "x,y\\\\n\\\\"q\\\\""]}, "n": 12345678901234567890}')::OBJECT,
        PARSE_JSON('[1, "a", true]')::ARRAY
    UNION ALL SELECT -1, -0.5, 1e300::FLOAT,
        'a,b|c;\\n"d"\\r\\n\\\\e\\\\', TO_BINARY('AB'), FALSE, '9999-12-31'::DATE,
        '00:00:00'::TIME, '1969-12-31 23:59:59.999999'::TIMESTAMP_NTZ,
        '1969-12-31 23:59:59 +0000'::TIMESTAMP_LTZ,
        '2026-11-01 01:30:00 -0500'::TIMESTAMP_TZ, PARSE_JSON('1.5'), PARSE_JSON('{}')::OBJECT,
        PARSE_JSON('[]')::ARRAY
    UNION ALL SELECT 0, 0, 0, '\\\\N', TO_BINARY('5C4E2C'), NULL, NULL, NULL, NULL, NULL, NULL,
        PARSE_JSON('{"k": "line\\\\nbreak"}'), NULL, NULL
    UNION ALL SELECT 7, 0, 0, '\\r', NULL, NULL, NULL, NULL, NULL, NULL, NULL, PARSE_JSON('true'), NULL, NULL
    UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
"""
FORMATS = (
    "ALTER SESSION SET TIMESTAMP_NTZ_OUTPUT_FORMAT = 'YYYY-MM-DD HH24:MI:SS.FF6' "
    "TIMESTAMP_LTZ_OUTPUT_FORMAT = 'YYYY-MM-DD\"T\"HH24:MI:SS.FF6TZH:TZM' "
    "TIMESTAMP_TZ_OUTPUT_FORMAT = 'YYYY-MM-DD HH24:MI:SS.FF6 TZHTZM' TIME_OUTPUT_FORMAT = 'HH24:MI:SS.FF6' "
    "TIMEZONE = 'Asia/Kolkata'"
)


@pytest.fixture
def types(local: LocalCatalog) -> LocalCatalog:
    local.sql(f"CREATE TABLE types ({COLUMNS})")
    local.sql(f"INSERT INTO types {ROWS}")
    local.sql(f"CREATE TABLE again ({COLUMNS})")
    local.sql(FORMATS)
    return local


def came_back(local: LocalCatalog, query: str, out: str, back: str, but: str = "NULL_COLUMN") -> None:
    """Unload a query and load it into the table AGAIN, in another time zone; the rows must be the same."""

    def rows_of(table: str, shown: str) -> list[Any]:
        return sorted((list(row.values()) for row in local.sql(f"SELECT {shown} FROM {table}")), key=repr)

    local.sql("REMOVE @s")
    local.sql("TRUNCATE TABLE again")
    local.sql("ALTER SESSION UNSET TIMEZONE")
    local.sql(f"COPY INTO @s/r/ FROM {query} {out}")
    local.sql("ALTER SESSION SET TIMEZONE = 'America/New_York'")
    [loaded] = local.sql(f"COPY INTO again FROM @s/r/ {back}")
    assert (loaded["status"], loaded["rows_loaded"]) == ("LOADED", 5)
    shown = "*" if but == "NULL_COLUMN" else f"* EXCLUDE ({but})"
    assert rows_of("again", "*") == rows_of("types", shown)


def test_every_type_comes_back_from_csv(types):
    for options in [
        "COMPRESSION = AUTO",
        # COPY INTO a table takes the text of NULL_IF for NULL in enclosed fields too.
        "FIELD_OPTIONALLY_ENCLOSED_BY = '\"' NULL_IF = ()",
        "FIELD_OPTIONALLY_ENCLOSED_BY = '''' ESCAPE = '\\\\' FIELD_DELIMITER = '|' NULL_IF = ('~')",
        "FIELD_DELIMITER = 'b' RECORD_DELIMITER = '€' ESCAPE_UNENCLOSED_FIELD = '^' NULL_IF = ('~')",
        "FIELD_OPTIONALLY_ENCLOSED_BY = '\"' RECORD_DELIMITER = '\\r\\n' COMPRESSION = ZSTD NULL_IF = ('')",
        "FIELD_DELIMITER = '\\t' COMPRESSION = BZ2 BINARY_FORMAT = BASE64 NULL_IF = ('~null~')",
    ]:
        file_format = f"FILE_FORMAT = (TYPE = CSV {options})"
        came_back(types, "types", file_format, file_format)


def test_every_type_comes_back_from_json_and_each_that_parquet_takes_from_it(types):
    # The engine's JSON has decimals of 17 digits at most.
    types.sql("UPDATE types SET d = 12345.0123456789 WHERE n > 7")
    names = [column.split()[0] for column in COLUMNS.replace("38,", "38;").split(",")]
    named = ", ".join(f"'{name}', {'TO_VARCHAR(b)' if name == 'b' else name}" for name in names)
    by_name = "MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
    came_back(types, f"(SELECT OBJECT_CONSTRUCT({named}) FROM types)", JSON, f"{JSON} {by_name}")
    left = "ltz, tz, v, ob, ar"
    types.sql(f"ALTER TABLE again DROP COLUMN {left}")
    query = f"(SELECT * EXCLUDE ({left}) FROM types)"
    back = f"FILE_FORMAT = (TYPE = PARQUET BINARY_AS_TEXT = FALSE) {by_name}"
    came_back(types, query, f"{PARQUET} HEADER = TRUE", back, but=left)
    types.sql(f"COPY INTO @s/x FROM (SELECT v, ob, ar FROM types WHERE n = -1) {PARQUET} SINGLE = TRUE")
    assert pq.read_table(paths(types, "x")[0]).to_pylist() == [
        {"_COL_0": "1.5", "_COL_1": "{}", "_COL_2": "[]"}
    ]


def test_json_has_one_document_a_line(local):
    local.put("in.json", b'{"b":\n 1,\n\n "a": "x\\ny"}\n[1,\r\n2]\n{"c": "text"}\n')
    local.sql("CREATE TABLE j (v VARIANT)")
    local.sql("COPY INTO j FROM @s/in.json FILE_FORMAT = (TYPE = JSON)")
    assert unloaded(local, "SELECT NULL::VARIANT", JSON) == "null\n"
    lines = unloaded(local, "SELECT v FROM j", JSON).splitlines()
    assert [json.loads(line) for line in lines] == [{"b": 1, "a": "x\ny"}, [1, 2], {"c": "text"}]
