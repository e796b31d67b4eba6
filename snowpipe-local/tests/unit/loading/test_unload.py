"""COPY INTO a stage: what it writes, and that COPY INTO a table reads it as it was."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import threading
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard
from snowpipe_local.errors import SqlError
from snowpipe_local.sql import unload
from snowpipe_local.sql.execution import Execution
from tests.local_catalog import LocalCatalog
from tests.unit.sql_sessions import SqlSessions

PLAIN = "FILE_FORMAT = (COMPRESSION = NONE)"
QUOTED = "FILE_FORMAT = (TYPE = CSV FIELD_OPTIONALLY_ENCLOSED_BY = '\"')"
JSON = "FILE_FORMAT = (TYPE = JSON COMPRESSION = NONE)"
PARQUET = "FILE_FORMAT = (TYPE = PARQUET)"


def begin(local):
    """Begin again, with what each test needs."""
    local.empty()
    local.sql("CREATE TABLE t (a INT, b VARCHAR)")
    local.sql("INSERT INTO t VALUES (1, 'x'), (2, 'y')")


@pytest.fixture
def local(local):
    begin(local)
    return local


def files(local: LocalCatalog, path: str = "@s") -> dict[str, int]:
    return {row["name"]: row["size"] for row in local.sql(f"LIST {path}")}


def content(local: LocalCatalog, name: str) -> bytes:
    [path] = (local.folder / "data" / "staged" / "files").glob(f"*/{name}")
    return path.read_bytes()


def unloaded(local: LocalCatalog, query: str, options: str = PLAIN) -> str:
    """Unload a query into one file of text, and return it."""
    local.sql(f"COPY INTO @s/one FROM ({query}) {options} SINGLE = TRUE OVERWRITE = TRUE")
    return content(local, "one").decode()


# -- names and results --------------------------------------------------------------------------------------


def test_a_table_becomes_a_compressed_csv_file_and_both_sizes_are_counted(local):
    assert local.sql("COPY INTO @s/u/ FROM t") == [{"rows_unloaded": 2, "input_bytes": 8, "output_bytes": 28}]
    assert files(local) == {"s/u/data_0_0_0.csv.gz": 28}
    assert gzip.decompress(content(local, "u/data_0_0_0.csv.gz")) == b"1,x\n2,y\n"


def test_a_file_is_named_by_path_format_and_compression(local):
    for target, options, name in [
        ("@s", "", "s/data_0_0_0.csv.gz"), ("@s/in/x", "", "s/in/x_0_0_0.csv.gz"),
        ("'@s/in/x y'", "", "s/in/x y_0_0_0.csv.gz"),
        ("@s/u/", "FILE_FORMAT = (COMPRESSION = NONE)", "s/u/data_0_0_0.csv"),
        ("@s/u/", "FILE_FORMAT = (COMPRESSION = BZ2)", "s/u/data_0_0_0.csv.bz2"),
        ("@s/u/", "FILE_FORMAT = (COMPRESSION = ZSTD)", "s/u/data_0_0_0.csv.zst"),
        ("@s/u/", "FILE_FORMAT = (COMPRESSION = NONE FILE_EXTENSION = '.dat')", "s/u/data_0_0_0.dat"),
        ("@s/u/", PARQUET, "s/u/data_0_0_0.snappy.parquet"),
        ("@s/u/", "FILE_FORMAT = (TYPE = PARQUET COMPRESSION = NONE)", "s/u/data_0_0_0.parquet"),
        ("@s/u/", "FILE_FORMAT = (TYPE = PARQUET SNAPPY_COMPRESSION = FALSE)", "s/u/data_0_0_0.parquet"),
        ("@s/u/", "SINGLE = TRUE", "s/u/data"), ("@s/u/out.csv", "SINGLE = TRUE", "s/u/out.csv"),
    ]:  # fmt: skip
        begin(local)
        local.sql(f"COPY INTO {target} FROM t {options}")
        assert list(files(local)) == [name]


def test_each_compression_is_that_of_the_name(local):
    for word, decompress in (
        ("GZIP", gzip.decompress), ("BZ2", bz2.decompress),
        ("ZSTD", lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
    ):  # fmt: skip
        local.sql(
            f"COPY INTO @s/c FROM t FILE_FORMAT = (COMPRESSION = {word}) SINGLE = TRUE OVERWRITE = TRUE"
        )
        assert decompress(content(local, "c")) == b"1,x\n2,y\n"
    assert local.refused("COPY INTO @s/d FROM t FILE_FORMAT = (COMPRESSION = DEFLATE)").code == "000002"
    error = local.refused("COPY INTO @s/d FROM t FILE_FORMAT = (TYPE = PARQUET COMPRESSION = LZO)")
    assert (error.code, "LZO" in error.message) == ("000002", True)


def test_the_stages_of_tables_and_users_are_targets_too(local):
    local.sql("COPY INTO @%t/a FROM t")
    local.sql("COPY INTO @~/b/ FROM (SELECT 1)")
    assert list(files(local, "@%t")) == ["a_0_0_0.csv.gz"]
    assert list(files(local, "@~")) == ["b/data_0_0_0.csv.gz"]


def test_the_format_of_the_stage_is_the_default_and_a_named_one_is_found(local):
    local.sql("CREATE FILE FORMAT pipes TYPE = CSV FIELD_DELIMITER = '|' COMPRESSION = NONE")
    local.sql("CREATE STAGE p FILE_FORMAT = (FORMAT_NAME = pipes)")
    for options in ("", "FILE_FORMAT = (FORMAT_NAME = pipes)", "FILE_FORMAT = 'PIPES'"):
        local.sql(f"COPY INTO @p FROM t {options} OVERWRITE = TRUE")
        assert content(local, "data_0_0_0.csv") == b"1|x\n2|y\n"


def test_detailed_output_has_a_row_for_each_file(local):
    assert local.sql(f"COPY INTO @s/d/ FROM t {PLAIN} DETAILED_OUTPUT = TRUE") == [
        {"file_name": "data_0_0_0.csv", "file_size": 8, "row_count": 2}
    ]
    assert local.sql("COPY INTO @s/e FROM (SELECT 1 WHERE FALSE) DETAILED_OUTPUT = TRUE") == []


def test_no_rows_make_no_file(local):
    for options in ("", "SINGLE = TRUE", "HEADER = TRUE", PARQUET):
        found = local.sql(f"COPY INTO @s/n/ FROM (SELECT * FROM t WHERE FALSE) {options}")
        assert found == [{"rows_unloaded": 0, "input_bytes": 0, "output_bytes": 0}]
    assert files(local) == {}


def test_files_of_the_location_are_kept_unless_they_are_overwritten(local):
    local.sql(f"COPY INTO @s/u/ FROM t {PLAIN}")
    error = local.refused(f"COPY INTO @s/u FROM (SELECT 3) {PLAIN}")
    assert (error.code, error.message) == (
        "001030",
        "Files already existing at the unload destination: @s/u. Use overwrite option to force unloading.",
    )
    # Only its own name blocks a single file.
    local.sql(f"COPY INTO @s/u/x FROM (SELECT 4) {PLAIN} SINGLE = TRUE")
    assert local.refused(f"COPY INTO @s/u/x FROM (SELECT 5) {PLAIN} SINGLE = TRUE").code == "001030"
    local.sql(f"COPY INTO @s/u/ FROM (SELECT 6) {PLAIN} OVERWRITE = TRUE")
    assert content(local, "u/data_0_0_0.csv") == b"6\n"
    assert content(local, "u/x") == b"4\n"


def test_overwrite_that_fails_leaves_the_files_as_they_were(local):
    local.put("u/data_0_0_0.csv", b"old\n")
    local.put("u/data_0_0_2.csv/in_the_way", b"x")
    before = files(local)
    query = "SELECT seq8() FROM TABLE(GENERATOR(ROWCOUNT => 10000))"
    error = local.refused(f"COPY INTO @s/u/ FROM ({query}) {PLAIN} MAX_FILE_SIZE = 1 OVERWRITE = TRUE")
    assert "data_0_0_2.csv" in error.message
    assert files(local) == before
    assert content(local, "u/data_0_0_0.csv") == b"old\n"
    assert not list((local.folder / "data" / "staged" / "incoming").iterdir())


def test_a_file_that_arrives_meanwhile_is_kept_too(local, monkeypatch):
    def late(session, made, tree, run=unload._run):
        local.put("u/data_0_0_0.csv", b"earlier\n")
        return run(session, made, tree)

    monkeypatch.setattr(unload, "_run", late)
    assert local.refused(f"COPY INTO @s/u/ FROM t {PLAIN}").code == "001030"
    assert content(local, "u/data_0_0_0.csv") == b"earlier\n"


def test_a_file_is_not_put_where_a_folder_is(local):
    local.put("u/x/y.csv", b"1\n")
    error = local.refused(f"COPY INTO @s/u/x FROM t {PLAIN} SINGLE = TRUE OVERWRITE = TRUE")
    assert error.code == "001003"
    assert "'u/x' cannot be a file" in error.message
    assert list(files(local)) == ["s/u/x/y.csv"]


def test_the_query_id_makes_names_unique(local):
    for _ in range(2):
        local.sql("COPY INTO @s/q/ FROM t INCLUDE_QUERY_ID = TRUE")
        assert f"s/q/data_{local.session.query_id}_0_0_0.csv.gz" in files(local)
    assert len(files(local)) == 2


def test_max_file_size_splits_between_sets_of_rows(local):
    query = "SELECT SEQ4() AS n, RANDSTR(20, 1) AS s FROM TABLE(GENERATOR(ROWCOUNT => 10000))"
    [found] = local.sql(f"COPY INTO @s/m/ FROM ({query}) {PLAIN} MAX_FILE_SIZE = 60000 HEADER = TRUE")
    names = sorted(files(local))
    assert names == [f"s/m/data_0_0_{number}.csv" for number in range(len(names))]
    assert len(names) > 2
    assert sum(files(local).values()) == found["output_bytes"]
    lines = [content(local, name[2:]).decode().splitlines() for name in names]
    assert {each[0] for each in lines} == {"N,S"}
    numbers = [int(line.split(",")[0]) for each in lines for line in each[1:]]
    assert numbers == list(range(10000))


def test_a_single_file_has_max_file_size_at_most(local):
    query = "SELECT SEQ4() FROM TABLE(GENERATOR(ROWCOUNT => 10000))"
    error = local.refused(f"COPY INTO @s/m FROM ({query}) {PLAIN} SINGLE = TRUE MAX_FILE_SIZE = 1000")
    assert (
        "Max file size (1000) exceeded for unload single file mode. Actual file size 48890." in error.message
    )
    assert files(local) == {}


def test_parquet_has_groups_of_many_rows_and_is_split_as_well(local):
    query = "SELECT SEQ4() AS n, RANDSTR(20, 1) AS s FROM TABLE(GENERATOR(ROWCOUNT => 20000))"
    local.sql(f"COPY INTO @s/one/ FROM ({query}) {PARQUET}")
    [path] = (local.folder / "data" / "staged" / "files").glob("*/one/*")
    assert pq.ParquetFile(path).num_row_groups == 1
    local.sql(f"COPY INTO @s/many/ FROM ({query}) {PARQUET} MAX_FILE_SIZE = 100000")
    parts = sorted((local.folder / "data" / "staged" / "files").glob("*/many/*"))
    assert len(parts) > 1
    assert sum(pq.read_metadata(part).num_rows for part in parts) == 20000


# -- partitions ---------------------------------------------------------------------------------------------


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
    query = "SELECT MOD(SEQ4(), 3) AS m, RANDSTR(20, 1) AS s FROM TABLE(GENERATOR(ROWCOUNT => 20000))"
    options = f"{PARQUET} MAX_FILE_SIZE = 100000 HEADER = TRUE"
    local.sql(f"COPY INTO @s/p/ FROM ({query}) PARTITION BY TO_VARCHAR(m) {options}")
    rows: dict[str, int] = {}
    for path in sorted((local.folder / "data" / "staged" / "files").glob("*/p/*/*")):
        table = pq.read_table(path)
        assert table.column_names == ["M", "S"]
        assert {str(value) for value in table["M"].to_pylist()} == {path.parent.name}
        rows[path.parent.name] = rows.get(path.parent.name, 0) + table.num_rows
    assert rows == {"0": 6667, "1": 6667, "2": 6666}


def test_a_partition_does_not_leave_its_location(local):
    for value in ["../x", "/", "a//b", "a\\\\b", ""]:
        error = local.refused(f"COPY INTO @s/p/ FROM t PARTITION BY '{value}' {PLAIN}")
        assert "invalid file path" in error.message
        assert files(local) == {}


# -- refused ------------------------------------------------------------------------------------------------


def test_what_it_does_not_take_is_refused_and_leaves_no_file(local):
    for rest, code in [
        ("FROM t NO_SUCH_OPTION = 1", "001420"), ("FROM t ON_ERROR = CONTINUE", "001420"),
        ("FROM t STORAGE_INTEGRATION = x", "001420"), ("FROM t OVERWRITE = 'TRUE'", "001008"),
        ("FROM t SINGLE = MAYBE", "001008"), ("FROM t MAX_FILE_SIZE = 0", "001008"),
        ("FROM t MAX_FILE_SIZE = 5368709121", "001008"), ("FROM t VALIDATION_MODE = RETURN_ERRORS", "001008"),
        ("FROM t FILE_FORMAT = (TYPE = PARQUET FILE_EXTENSION = 'x')", "001420"),
        ("FROM t FILE_FORMAT = (TYPE = AVRO)", "000002"), ("FROM t FILE_FORMAT = (TYPE = JSON)", "000002"),
        ("FROM (SELECT b FROM t) FILE_FORMAT = (TYPE = JSON)", "000002"),
        ("FROM t INCLUDE_QUERY_ID = TRUE SINGLE = TRUE", "001003"),
        ("FROM t INCLUDE_QUERY_ID = TRUE OVERWRITE = TRUE", "001003"),
        ("FROM t PARTITION BY (b) SINGLE = TRUE", "001003"),
        ("FROM t PARTITION BY (b) OVERWRITE = TRUE", "001003"),
        ("FROM t PARTITION BY (b) INCLUDE_QUERY_ID = FALSE", "001003"), ("FROM t PARTITION BY (a)", "001003"),
        ("FROM t PARTITION BY (b), (b)", "001003"), ("FROM t PARTITION BY b FROM t", "001003"),
        ("FROM t SINGLE = TRUE PARTITION BY (b)", "001003"), ("FROM (DELETE FROM t)", "000002"),
        ("FROM (DELETE FROM t) VALIDATION_MODE = RETURN_ROWS", "000002"), ("FROM missing", "002003"),
        ("FROM @s", "001003"), ("t", "001003"),
    ]:  # fmt: skip
        assert local.refused(f"COPY INTO @s/r {rest}").code == code
        assert files(local) == {}
        assert local.sql("SELECT COUNT(*) AS n FROM t") == [{"n": 2}]


def test_locations_outside_of_the_service_are_refused(local):
    local.sql(f"CREATE STAGE folder URL = 'file://{local.outside}/'")
    for target in ("'s3://bucket/x'", "'azure://a/b'", f"'file://{local.outside}/x'", "@folder/x"):
        assert local.refused(f"COPY INTO {target} FROM t").code == "000002"
    assert list(local.outside.iterdir()) == []


def test_parquet_has_no_timestamps_with_time_zones(local):
    for kind in ("TIMESTAMP_LTZ", "TIMESTAMP_TZ"):
        error = local.refused(f"COPY INTO @s/r FROM (SELECT '2026-01-02 03:04:05'::{kind}) {PARQUET}")
        assert error.code == "100171"
        assert error.message == (
            "Error encountered when unloading to PARQUET: TIMESTAMP_TZ and LTZ types are not supported for "
            f"unloading to Parquet. value get: {kind}"
        )


def test_validation_mode_returns_the_rows_and_writes_nothing(local):
    assert local.sql("COPY INTO @s/v FROM t VALIDATION_MODE = RETURN_ROWS") == [
        {"a": 1, "b": "x"}, {"a": 2, "b": "y"},
    ]  # fmt: skip
    assert files(local) == {}


def test_a_pipe_does_not_unload(local):
    assert local.refused("CREATE PIPE p AS COPY INTO @s FROM t").code == "000002"


def test_privileges_are_those_of_the_sessions_role(tmp_path):
    sessions = SqlSessions(tmp_path)
    sessions.run(
        "CREATE STAGE st", "CREATE TABLE secret (a INT)", "INSERT INTO secret VALUES (1)",
        "CREATE ROLE reader",
        "GRANT USAGE ON DATABASE LOCAL TO ROLE reader", "GRANT USAGE ON SCHEMA PUBLIC TO ROLE reader",
        "GRANT READ ON STAGE st TO ROLE reader", "GRANT ROLE reader TO USER demo",
    )  # fmt: skip
    statement = "COPY INTO @st/x FROM (SELECT 1)"
    assert sessions.refused(statement, role="READER").code == "003001"
    sessions.run("GRANT WRITE ON STAGE st TO ROLE reader")
    assert sessions.refused("COPY INTO @st/x FROM secret", role="READER").code == "002003"
    sessions.run("GRANT SELECT ON TABLE secret TO ROLE reader")
    assert sessions.run("COPY INTO @st/x FROM secret", role="READER")[0]["rows_unloaded"] == 1
    assert sessions.refused("COPY INTO @%secret FROM secret", role="READER").code == "003001"
    sessions.close()


# -- failures -----------------------------------------------------------------------------------------------


def leftover(local: LocalCatalog) -> list[str]:
    return [path.name for path in (local.folder / "data" / "staged" / "incoming").iterdir()]


def test_an_error_behind_the_first_files_leaves_none(local):
    for options in [PLAIN, "", PARQUET]:
        query = "SELECT RANDSTR(50, 1), 1 / (19999 - SEQ4()) FROM TABLE(GENERATOR(ROWCOUNT => 20000))"
        error = local.refused(f"COPY INTO @s/f/ FROM ({query}) {options} MAX_FILE_SIZE = 1000")
        assert (error.code, error.message) == ("100051", "Division by zero")
        assert (files(local), leftover(local)) == ({}, [])
        # The session goes on, also in its transaction.
        assert local.sql("SELECT COUNT(*) AS n FROM t") == [{"n": 2}]


def test_a_failed_unload_leaves_the_transaction_open(local):
    local.sql("BEGIN")
    local.sql("INSERT INTO t VALUES (3, 'z')")
    assert local.refused("COPY INTO @s/f FROM (SELECT 1 / 0)").code == "100051"
    local.sql(f"COPY INTO @s/g FROM t {PLAIN}")
    assert content(local, "g_0_0_0.csv") == b"1,x\n2,y\n3,z\n"
    local.sql("ROLLBACK")
    assert local.sql("SELECT COUNT(*) AS n FROM t") == [{"n": 2}]


def test_a_full_disk_is_reported_as_one(local, monkeypatch):
    opened = unload.pa.OSFile
    monkeypatch.setattr(unload.pa, "OSFile", lambda _path, mode: opened("/dev/full", mode))
    for options in (PLAIN, "", PARQUET):
        error = local.refused(f"COPY INTO @s/f FROM t {options}")
        assert (error.code, error.sqlstate) == ("000603", "53100")
    assert (files(local), leftover(local)) == ({}, [])


def test_an_unload_can_be_cancelled_while_it_writes(local):
    rows = "TABLE(GENERATOR(ROWCOUNT => 20000000))"
    running = Execution(local.session, f"COPY INTO @s/f/ FROM (SELECT SEQ8() FROM {rows})")
    thread = threading.Thread(target=running.run)
    thread.start()
    while not leftover(local):
        assert thread.is_alive(), running.error
    assert running.cancel()
    thread.join()
    assert getattr(running.error, "code", "") == "000604"
    assert (files(local), leftover(local)) == ({}, [])


def test_files_are_private(local):
    local.sql("COPY INTO @s/f FROM t SINGLE = TRUE")
    [path] = (local.folder / "data" / "staged" / "files").glob("*/f")
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_the_history_counts_rows_unloaded(local):
    running = Execution(local.session, "COPY INTO @s/h/ FROM t DETAILED_OUTPUT = TRUE")
    running.run()
    assert running.error is None
    [row] = local.sql(
        "SELECT query_type, rows_unloaded, rows_produced, rows_inserted "
        "FROM snowflake.account_usage.query_history WHERE query_type = 'UNLOAD'"
    )
    assert row == {"query_type": "UNLOAD", "rows_unloaded": 2, "rows_produced": 1, "rows_inserted": 0}


# -- CSV ----------------------------------------------------------------------------------------------------


def test_csv_is_written_as_the_file_format_sets(local):
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
        (
            'SELECT PARSE_JSON(\'{"b": [1, null], "a": "x"}\')', "FIELD_DELIMITER = '|'",
            '{"a":"x","b":[1,null]}\n',
        ),
        ("SELECT DATE '2026-01-02', TIME '03:04:05'", "", "2026-01-02,03:04:05\n"),
        (
            "SELECT DATE '2026-01-02', TIME '03:04:05'", "DATE_FORMAT = 'DD/MM/YY' TIME_FORMAT = 'HH24.MI'",
            "02/01/26,03.04\n",
        ),
        (
            "SELECT '2026-01-02 03:04:05'::TIMESTAMP", "TIMESTAMP_FORMAT = 'YYYYMMDD\"T\"HH24MISS'",
            "20260102T030405\n",
        ),
    ]:  # fmt: skip
        assert unloaded(local, query, f"FILE_FORMAT = (COMPRESSION = NONE {options})") == expected


def test_headers_are_the_names_of_the_columns(local):
    query = 'SELECT a, b AS "b,c", COUNT(*) OVER () FROM t WHERE a = 1'
    assert unloaded(local, query, f"{PLAIN} HEADER = TRUE") == "A,b\\,c,COUNT(*) OVER ()\n1,x,1\n"
    assert unloaded(local, query, f"{QUOTED[:-1]} COMPRESSION = NONE) HEADER = TRUE").splitlines()[0] == (
        '"A","b,c","COUNT(*) OVER ()"'
    )
    local.sql(f"COPY INTO @s/p/ FROM ({query}) PARTITION BY ('x') {PLAIN} HEADER = TRUE")
    assert content(local, f"p/x/data_{local.session.query_id}_0_0_0.csv").startswith(
        b"A,b\\,c,COUNT(*) OVER ()\n"
    )


def test_parquet_has_the_names_of_columns_only_with_header(local):
    local.sql(f"COPY INTO @s/x FROM t {PARQUET} SINGLE = TRUE")
    local.sql(f"COPY INTO @s/y FROM t {PARQUET} SINGLE = TRUE HEADER = TRUE")
    folder = local.folder / "data" / "staged" / "files"
    names = [pq.read_schema(next(folder.glob(f"*/{name}"))).names for name in ("x", "y")]
    assert names == [["_COL_0", "_COL_1"], ["A", "B"]]


def test_times_are_written_as_the_session_does(local):
    query = (
        "SELECT '2026-01-02 03:04:05.678'::TIMESTAMP_NTZ, '2026-01-02 03:04:05.678 +0200'::TIMESTAMP_LTZ, "
        "'2026-01-02 03:04:05.678 +0530'::TIMESTAMP_TZ"
    )
    assert unloaded(local, query).rstrip("\n").split(",") == [
        "2026-01-02 03:04:05.678", "2026-01-02 01:04:05.678 +0000", "2026-01-02 03:04:05.678 +0530",
    ]  # fmt: skip
    local.sql("ALTER SESSION SET TIMEZONE = 'America/New_York'")
    local.sql("ALTER SESSION SET TIMESTAMP_LTZ_OUTPUT_FORMAT = 'YYYY-MM-DD HH24:MI TZH:TZM'")
    local.sql("ALTER SESSION SET TIMESTAMP_NTZ_OUTPUT_FORMAT = 'MM/DD/YYYY'")
    local.sql("ALTER SESSION SET DATE_OUTPUT_FORMAT = 'DD-MON-YYYY'")
    assert unloaded(local, f"{query}, DATE '2026-01-02'") == (
        "01/02/2026,2026-01-01 20:04 -05:00,2026-01-02 03:04:05.678 +0530,02-Jan-2026\n"
    )


# -- round trips --------------------------------------------------------------------------------------------

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


def rows_of(local: LocalCatalog, table: str, but: str = "") -> list[Any]:
    shown = "*" if not but else f"* EXCLUDE ({but})"
    return sorted((list(row.values()) for row in local.sql(f"SELECT {shown} FROM {table}")), key=repr)


@pytest.fixture
def types(local: LocalCatalog) -> LocalCatalog:
    local.sql(f"CREATE TABLE types ({COLUMNS})")
    local.sql(f"INSERT INTO types {ROWS}")
    local.sql(f"CREATE TABLE again ({COLUMNS})")
    local.sql(FORMATS)
    return local


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
        types.sql("TRUNCATE TABLE again")
        types.sql("REMOVE @s")
        types.sql("ALTER SESSION UNSET TIMEZONE")
        types.sql(f"COPY INTO @s/r/ FROM types FILE_FORMAT = (TYPE = CSV {options})")
        types.sql("ALTER SESSION SET TIMEZONE = 'America/New_York'")
        [loaded] = types.sql(f"COPY INTO again FROM @s/r/ FILE_FORMAT = (TYPE = CSV {options})")
        assert (loaded["status"], loaded["rows_loaded"]) == ("LOADED", 5)
        assert rows_of(types, "again") == rows_of(types, "types")


def test_every_type_comes_back_from_json(types):
    # The engine's JSON has decimals of 17 digits at most.
    types.sql("UPDATE types SET d = 12345.0123456789 WHERE n > 7")
    named = ", ".join(
        f"'{name}', {'TO_VARCHAR(b)' if name == 'b' else name}"
        for name in ("n", "d", "f", "s", "b", "o", "dt", "ti", "ntz", "ltz", "tz", "v", "ob", "ar")
    )
    types.sql(f"COPY INTO @s/r/ FROM (SELECT OBJECT_CONSTRUCT({named}) FROM types) {JSON}")
    types.sql("ALTER SESSION SET TIMEZONE = 'America/New_York'")
    [loaded] = types.sql(f"COPY INTO again FROM @s/r/ {JSON} MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE")
    assert (loaded["status"], loaded["rows_loaded"]) == ("LOADED", 5)
    assert rows_of(types, "again") == rows_of(types, "types")


def test_every_type_that_parquet_takes_comes_back_from_it(types):
    types.sql("ALTER TABLE again DROP COLUMN ltz, tz, v, ob, ar")
    types.sql(
        f"COPY INTO @s/r/ FROM (SELECT * EXCLUDE (ltz, tz, v, ob, ar) FROM types) {PARQUET} HEADER = TRUE"
    )
    [loaded] = types.sql(
        "COPY INTO again FROM @s/r/ FILE_FORMAT = (TYPE = PARQUET BINARY_AS_TEXT = FALSE) "
        "MATCH_BY_COLUMN_NAME = CASE_SENSITIVE"
    )
    assert (loaded["status"], loaded["rows_loaded"]) == ("LOADED", 5)
    assert rows_of(types, "again") == rows_of(types, "types", but="ltz, tz, v, ob, ar")


def test_parquet_has_the_text_of_json(types):
    types.sql(f"COPY INTO @s/r FROM (SELECT v, ob, ar FROM types WHERE n = -1) {PARQUET} SINGLE = TRUE")
    [path] = (types.folder / "data" / "staged" / "files").glob("*/r")
    assert pq.read_table(path).to_pylist() == [{"_COL_0": "1.5", "_COL_1": "{}", "_COL_2": "[]"}]


def test_null_and_empty_text_are_different_in_enclosed_fields(local):
    local.sql("CREATE TABLE e (a VARCHAR, b VARCHAR)")
    for name, options in (
        ("x", "FIELD_OPTIONALLY_ENCLOSED_BY = '\"'"),
        ("y", "FIELD_OPTIONALLY_ENCLOSED_BY = '\"' NULL_IF = ()"), ("z", "EMPTY_FIELD_AS_NULL = FALSE"),
    ):  # fmt: skip
        local.sql("TRUNCATE TABLE e")
        local.sql(f"COPY INTO @s/{name}/ FROM (SELECT NULL, '') FILE_FORMAT = ({options})")
        local.sql(f"COPY INTO e FROM @s/{name}/ FILE_FORMAT = ({options})")
        assert local.sql("SELECT * FROM e") == [{"a": None, "b": ""}]


def test_json_has_one_document_a_line(local):
    local.put("in.json", b'{"b":\n 1,\n\n "a": "x\\ny"}\n[1,\r\n2]\n{"c": "text"}\n')
    local.sql("CREATE TABLE j (v VARIANT)")
    local.sql("COPY INTO j FROM @s/in.json FILE_FORMAT = (TYPE = JSON)")
    assert unloaded(local, "SELECT NULL::VARIANT", JSON) == "null\n"
    lines = unloaded(local, "SELECT v FROM j", JSON).splitlines()
    assert [json.loads(line) for line in lines] == [{"b": 1, "a": "x\ny"}, [1, 2], {"c": "text"}]


def test_bound_values_and_variables_are_taken(local):
    local.sql("SET least = 2")
    local.sql(f"COPY INTO @s/b/ FROM (SELECT * FROM t WHERE a >= $least AND b = ?) {PLAIN}", "y")
    assert content(local, "b/data_0_0_0.csv") == b"2,y\n"


def test_views_and_staged_files_are_read_as_any_query_does(local):
    local.sql("CREATE VIEW w AS SELECT a * 10 AS a FROM t")
    local.sql(f"COPY INTO @s/w/ FROM w {PLAIN}")
    assert content(local, "w/data_0_0_0.csv") == b"10\n20\n"
    local.sql("COPY INTO @s/again/ FROM (SELECT $1 FROM @s/w/) SINGLE = TRUE " + PLAIN)
    assert content(local, "again/data") == b"10\n20\n"


def test_the_error_of_the_engine_is_snowflakes(local):
    with pytest.raises(SqlError, match="Numeric"):
        local.sql("COPY INTO @s/f FROM (SELECT b::INT FROM t)")
