from __future__ import annotations

import bz2
import datetime as dt
import gzip
import json
import threading
import zlib
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import orc
from snowpipe_local.engine.load_history import DAY_MS
from tests.local_catalog import LocalCatalog, local_catalog

CSV = "FILE_FORMAT = (TYPE = CSV FIELD_OPTIONALLY_ENCLOSED_BY = '\"')"
NOTHING = [{"status": "Copy executed with 0 files processed."}]


def begin(local):
    """Begin again, with what each test needs."""
    local.empty()
    local.sql("CREATE TABLE t (id INT, name VARCHAR(5))")


@pytest.fixture
def local(local):
    begin(local)
    return local


def ids(local: LocalCatalog, table: str = "t") -> list[int]:
    return [int(row["id"]) for row in local.sql(f"SELECT id FROM {table} ORDER BY id")]


# -- result and errors --------------------------------------------------------------------------------------


def test_the_result_has_a_row_for_each_file(local):
    local.put("in/a.csv", b"1,x\n2,y\n")
    local.put("in/b.csv", b"3,z\n")
    first, second = local.sql(f"COPY INTO t FROM @s/in {CSV}")
    assert first == {
        "file": "s/in/a.csv", "status": "LOADED", "rows_parsed": 2, "rows_loaded": 2, "error_limit": 1,
        "errors_seen": 0, "first_error": None, "first_error_line": None, "first_error_character": None,
        "first_error_column_name": None,
    }  # fmt: skip
    assert second["file"] == "s/in/b.csv"
    assert ids(local) == [1, 2, 3]


def test_abort_names_file_line_character_and_column_and_changes_nothing(local):
    local.put("a.csv", b"1,x\n")
    local.put("b.csv", b"2,y\n3,toolong\n")
    error = local.refused(f"COPY INTO t FROM @s {CSV}")
    assert error.code == "100074"
    assert "User character length limit (5) exceeded by string 'toolong'" in error.message
    assert "File 's/b.csv', line 2, character 3" in error.message
    assert 'column "T"["NAME":2]' in error.message
    assert ids(local) == []
    local.put("b.csv", b"2,y\n")
    assert len(local.sql(f"COPY INTO t FROM @s {CSV}")) == 2


def test_an_abort_at_the_second_file_keeps_nothing_of_the_first_in_an_open_transaction(local):
    local.put("a.csv", b"1,x\n")
    local.put("b.csv", b"2,toolong\n")
    local.sql("BEGIN")
    local.sql("INSERT INTO t VALUES (7, 'x')")
    assert local.refused(f"COPY INTO t FROM @s {CSV}").code == "100074"
    assert ids(local) == [7]
    local.sql("COMMIT")
    assert ids(local) == [7]


BAD = b'1,x\nbad,y\n2,toolong\n3,z,extra\n4\n5,"q"z\n6,ok\n'


def test_continue_loads_the_good_rows_and_counts_every_bad_one(local):
    local.put("a.csv", BAD)
    (row,) = local.sql(f"COPY INTO t FROM @s {CSV} ON_ERROR = CONTINUE")
    assert ids(local) == [1, 6]
    assert (row["status"], row["rows_parsed"], row["rows_loaded"]) == ("PARTIALLY_LOADED", 7, 2)
    assert (row["error_limit"], row["errors_seen"]) == (7, 5)
    assert row["first_error"] == "Numeric value 'bad' is not recognized"
    assert (row["first_error_line"], row["first_error_character"]) == (2, 1)
    assert row["first_error_column_name"] == '"T"["ID":1]'


def test_skip_file_gives_a_file_up_at_its_limit(local):
    for on_error, loaded in [
        ("SKIP_FILE", [9]), ("SKIP_FILE_5", [9]), ("SKIP_FILE_6", [1, 6, 9]), ("'SKIP_FILE_50%'", [9]),
        ("'SKIP_FILE_80%'", [1, 6, 9]),
    ]:  # fmt: skip
        begin(local)
        local.put("a.csv", BAD)
        local.put("b.csv", b"9,x\n")
        outcomes = local.sql(f"COPY INTO t FROM @s {CSV} ON_ERROR = {on_error}")
        assert ids(local) == loaded
        assert outcomes[0]["errors_seen"] == 5
        assert outcomes[0]["status"] == ("LOAD_FAILED" if loaded == [9] else "PARTIALLY_LOADED")


def test_records_that_cannot_be_split_are_errors(local):
    for content, code, message, column in [
        (b"1,x\n2,y,z\n", "100080", "Number of columns in file (3) does not match", '"T"[3]'),
        (b"1,x\n2\n", "100080", "Number of columns in file (1) does not match", '"T"["NAME":2]'),
        (b"1,x\n\n", "100080", "Number of columns in file (1)", '"T"["NAME":2]'),
        (b"1,x\n2,\xff\n", "100016", "Invalid UTF8 detected in string '0xFF'", None),
        (b'1,x\n2,"y\n', "100016", "Unterminated enclosed field", None),
    ]:
        local.put("a.csv", content)
        error = local.refused(f"COPY INTO t FROM @s {CSV}")
        assert error.code == code
        assert message in error.message
        assert "line 2" in error.message
        assert column is None or column in error.message


def test_required_columns_need_a_value(local):
    local.sql("CREATE TABLE r (id INT NOT NULL, name VARCHAR)")
    local.put("a.csv", b",x\n")
    assert local.refused("COPY INTO r FROM @s").code == "100072"


def test_files_that_cannot_be_read_fail_alone(local):
    local.put("a.csv.gz", b"\x1f\x8bnot gzip")
    local.put("b.csv", b"1,x\n")
    assert local.refused("COPY INTO t FROM @s").code == "100085"
    failed, loaded = local.sql("COPY INTO t FROM @s ON_ERROR = SKIP_FILE")
    assert (failed["status"], loaded["status"]) == ("LOAD_FAILED", "LOADED")
    assert "Error decompressing file 'a.csv.gz'" in failed["first_error"]


def test_a_missing_file_aborts_or_fails_alone(local):
    local.put("a.csv", b"1,x\n")
    error = local.refused("COPY INTO t FROM @s FILES = ('a.csv', 'no.csv')")
    assert (error.code, ids(local)) == ("091016", [])
    outcomes = local.sql("COPY INTO t FROM @s FILES = ('a.csv', 'no.csv') ON_ERROR = CONTINUE")
    assert [row["status"] for row in outcomes] == ["LOADED", "LOAD_FAILED"]


# -- which files --------------------------------------------------------------------------------------------


def test_loaded_files_are_not_loaded_again_unless_changed_or_forced(local):
    local.put("a.csv", b"1,x\n")
    local.sql("COPY INTO t FROM @s")
    assert local.sql("COPY INTO t FROM @s") == NOTHING
    (named,) = local.sql("COPY INTO t FROM @s FILES = ('a.csv')")
    assert (named["file"], named["status"], named["rows_loaded"]) == ("s/a.csv", "LOAD_SKIPPED", 0)
    local.put("b.csv", b"2,x\n")
    outcomes = local.sql("COPY INTO t FROM @s FILES = ('a.csv', 'b.csv')")
    assert [(row["status"], row["first_error"]) for row in outcomes] == [
        ("LOADED", None), ("LOAD_SKIPPED", "File was loaded before."),
    ]  # fmt: skip
    local.put("a.csv", b"3,x\n")
    local.sql("COPY INTO t FROM @s")
    assert ids(local) == [1, 2, 3]
    local.sql("COPY INTO t FROM @s FORCE = TRUE")
    assert ids(local) == [1, 2, 2, 3, 3]


def test_truncating_or_replacing_a_table_forgets_its_files(local):
    for statement in ["TRUNCATE TABLE t", "CREATE OR REPLACE TABLE t (id INT, name VARCHAR)"]:
        local.put("a.csv", b"1,x\n")
        local.sql("COPY INTO t FROM @s")
        local.sql(statement)
        local.sql("COPY INTO t FROM @s")
        assert ids(local) == [1]


def test_a_renamed_table_keeps_its_history(local):
    local.put("a.csv", b"1,x\n")
    local.sql("COPY INTO t FROM @s")
    local.sql("ALTER TABLE t RENAME TO u")
    assert local.sql("COPY INTO u FROM @s") == NOTHING
    local.sql("CREATE TABLE t (id INT, name VARCHAR)")
    assert len(local.sql("COPY INTO t FROM @s")) == 1


def test_the_history_survives_a_restart(tmp_path):
    with local_catalog(tmp_path) as local:
        local.sql("CREATE TABLE t (id INT)")
        local.put("a.csv", b"1\n")
        local.sql("COPY INTO t FROM @s")
    with local_catalog(tmp_path) as local:
        assert local.sql("COPY INTO t FROM @s") == NOTHING


def test_files_older_than_the_history_are_uncertain(local):
    local.put("a.csv", b"1,x\n")
    local.sql("COPY INTO t FROM @s")
    local.catalog.clock.move(65 * DAY_MS / 1000)
    assert local.sql("COPY INTO t FROM @s") == NOTHING
    (row,) = local.sql("COPY INTO t FROM @s LOAD_UNCERTAIN_FILES = TRUE")
    assert row["status"] == "LOADED"
    assert ids(local) == [1, 1]


def test_a_file_that_is_staged_after_the_clock_was_moved_is_loaded(local):
    local.put("a.csv", b"1,x\n")
    local.sql("COPY INTO t FROM @s")
    local.catalog.clock.move(65 * DAY_MS / 1000)
    local.sql("COPY INTO @s/b.csv FROM (SELECT 2, 'y') SINGLE = TRUE FILE_FORMAT = (COMPRESSION = NONE)")
    (row,) = [row for row in local.sql("COPY INTO t FROM @s") if row["status"] == "LOADED"]

    assert row["file"] == "s/b.csv"
    assert ids(local) == [1, 2]


def test_pattern_prefix_and_size_limit_choose_files(local):
    for name in ("in/a1.csv", "in/a2.csv", "in/b.txt", "out/a3.csv"):
        local.put(name, name[-5].replace("b", "9").encode() + b",x\n")
    local.sql("COPY INTO t FROM @s PATTERN = '.*/b[.].*'")
    assert ids(local) == [9]
    (row,) = local.sql("COPY INTO t FROM @s/in/a SIZE_LIMIT = 3")
    assert row["file"] == "s/in/a1.csv"
    local.sql("COPY INTO t FROM @s/in")
    assert ids(local) == [1, 2, 9]


def test_purge_removes_loaded_files_only(local):
    good, bad = local.put("a.csv", b"1,x\n"), local.put("b.csv", b"bad,x\n")
    local.sql("COPY INTO t FROM @s PURGE = TRUE ON_ERROR = SKIP_FILE")
    assert (good.exists(), bad.exists()) == (False, True)


def test_return_failed_only_shows_files_with_errors(local):
    local.put("a.csv", b"1,x\n")
    local.put("b.csv", b"bad,x\n2,y\n")
    (row,) = local.sql("COPY INTO t FROM @s RETURN_FAILED_ONLY = TRUE ON_ERROR = CONTINUE")
    assert row["file"] == "s/b.csv"


# -- formats ------------------------------------------------------------------------------------------------


def test_compressed_files_are_read(local):
    for name, compress in [
        ("a.csv.gz", gzip.compress), ("a.csv.bz2", bz2.compress),
        ("a.csv.zst", zstandard.ZstdCompressor().compress), ("a.csv.deflate", zlib.compress),
        ("a.csv.br", lambda data: pa.Codec("brotli").compress(data, asbytes=True)), ("a", gzip.compress),
    ]:  # fmt: skip
        begin(local)
        local.put(name, compress(b"1,x\n2,y\n"))
        local.sql("COPY INTO t FROM @s")
        assert ids(local) == [1, 2]


def test_text_becomes_every_type(local):
    local.sql(
        "CREATE TABLE all_types (n NUMBER(12,2), f FLOAT, b BOOLEAN, s VARCHAR, x BINARY, d DATE, t TIME, "
        "ntz TIMESTAMP_NTZ, ltz TIMESTAMP_LTZ, v VARIANT, o OBJECT, a ARRAY)"
    )
    local.put(
        "a.csv",
        b'1.255,1e3,yes,"a ""b""",4142,01/31/2026,23:59:59,2026-01-02 03:04:05.678,2026-01-02T03:04:05+01:00,'
        b'"{""k"":1}","{}",[1]\n',
    )
    local.sql(f"COPY INTO all_types FROM @s {CSV}")
    (row,) = local.sql("SELECT * FROM all_types")
    assert row == {
        "n": Decimal("1.26"), "f": 1000.0, "b": True, "s": 'a "b"', "x": b"AB", "d": dt.date(2026, 1, 31),
        "t": dt.time(23, 59, 59), "ntz": dt.datetime(2026, 1, 2, 3, 4, 5, 678000),
        "ltz": dt.datetime(2026, 1, 2, 2, 4, 5, tzinfo=dt.UTC), "v": '{"k":1}', "o": "{}", "a": "[1]",
    }  # fmt: skip


def test_text_that_is_no_value_has_its_own_error(local):
    for kind, text, code in [
        ("NUMBER(4,0)", b"12345", "100038"), ("FLOAT", b"x", "100038"), ("BOOLEAN", b"maybe", "100037"),
        ("DATE", b"2026-13-01", "100040"), ("TIME", b"25:00", "100108"), ("TIMESTAMP_NTZ", b"soon", "100035"),
        ("BINARY", b"zz", "100115"), ("VARIANT", b"{", "100069"), ("OBJECT", b"[1]", "100071"),
        ("VARCHAR(2)", b"abc", "100074"),
    ]:  # fmt: skip
        begin(local)
        local.sql(f"CREATE TABLE c (v {kind})")
        local.put("a.csv", text + b"\n")
        error = local.refused("COPY INTO c FROM @s")
        assert error.code == code
        assert kind == "OBJECT" or text.decode() in error.message


def test_formats_of_dates_and_binaries_are_obeyed(local):
    local.sql("CREATE TABLE f (d DATE, t TIMESTAMP_NTZ, x BINARY)")
    local.put("a.csv", b"31.01.2026|2026/01/02 15h04 07.5|aGk=\n")
    local.sql(
        "COPY INTO f FROM @s FILE_FORMAT = (TYPE = CSV FIELD_DELIMITER = '|' DATE_FORMAT = 'DD.MM.YYYY' "
        "TIMESTAMP_FORMAT = 'YYYY/MM/DD HH24\"h\"MI SS.FF' BINARY_FORMAT = BASE64)"
    )
    assert local.sql("SELECT * FROM f") == [
        {"d": dt.date(2026, 1, 31), "t": dt.datetime(2026, 1, 2, 15, 4, 7, 500000), "x": b"hi"}
    ]


def test_too_long_text_is_cut_when_asked(local):
    local.put("a.csv", b"1,abcdefgh\n")
    local.sql("COPY INTO t FROM @s ENFORCE_LENGTH = FALSE")
    assert local.sql("SELECT name FROM t") == [{"name": "abcde"}]


def test_json_fills_one_variant_or_columns_by_name(local):
    local.sql("CREATE TABLE j (v VARIANT)")
    local.put("a.json", b'{"ID":1,"name":"x"}\n{"Id":2,"more":true}\n')
    local.sql("COPY INTO j FROM @s FILE_FORMAT = (TYPE = JSON)")
    assert [json.loads(row["v"]) for row in local.sql("SELECT v FROM j")] == [
        {"ID": 1, "name": "x"}, {"Id": 2, "more": True},
    ]  # fmt: skip
    local.sql("COPY INTO t FROM @s FILE_FORMAT = (TYPE = JSON) MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE")
    assert local.sql("SELECT * FROM t ORDER BY id") == [
        {"id": Decimal(1), "name": "x"}, {"id": Decimal(2), "name": None},
    ]  # fmt: skip
    assert local.refused("COPY INTO t FROM @s FILE_FORMAT = (TYPE = JSON) FORCE = TRUE").code == "002007"


def test_a_broken_json_line_is_one_error(local):
    local.put("a.json", b'{"id":1}\n{"id":\n{"id":"x"}\n{"id":4}\n')
    (row,) = local.sql(
        "COPY INTO t FROM @s FILE_FORMAT = (TYPE = JSON) MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE "
        "ON_ERROR = CONTINUE"
    )
    assert (row["rows_loaded"], row["errors_seen"], row["first_error_line"]) == (2, 2, 2)
    assert row["first_error"].startswith("Error parsing JSON")


def test_csv_with_a_header_is_matched_by_name_and_gets_metadata_but_no_defaults(local):
    local.sql("CREATE TABLE h (id INT, name VARCHAR, f VARCHAR, n INT, d INT DEFAULT 7)")
    local.put("in/a.csv", b"Name,other,ID\nx,1,5\n")
    local.sql(
        "COPY INTO h FROM @s FILE_FORMAT = (TYPE = CSV PARSE_HEADER = TRUE) MATCH_BY_COLUMN_NAME = "
        "CASE_INSENSITIVE INCLUDE_METADATA = (f = METADATA$FILENAME, n = METADATA$FILE_ROW_NUMBER)"
    )
    assert local.sql("SELECT * FROM h") == [
        {"id": Decimal(5), "name": "x", "f": "in/a.csv", "n": Decimal(1), "d": None}
    ]
    assert "PARSE_HEADER" in local.refused("COPY INTO h FROM @s FILE_FORMAT = (PARSE_HEADER = TRUE)").message
    local.sql("CREATE FILE FORMAT headed PARSE_HEADER = TRUE")
    assert "PARSE_HEADER" in local.refused("SELECT $1 FROM @s (FILE_FORMAT => headed)").message


BY_NAME = "MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"


def test_null_if_and_trim_space_count_by_name(local):
    for kind in ["JSON", "PARQUET", "ORC"]:
        begin(local)
        table = pa.table({"ID": [1, 2], "NAME": [" a ", "NULL"], "V": ["x", "NULL"]})
        sink = pa.BufferOutputStream()
        if kind == "JSON":
            sink.write("\n".join(json.dumps(row) for row in table.to_pylist()).encode())
        else:
            (pq if kind == "PARQUET" else orc).write_table(table, sink)
        local.put("n/a", sink.getvalue().to_pybytes())
        local.sql("CREATE TABLE n (id INT, name VARCHAR, v VARIANT)")
        cleaned = f"TYPE = {kind} TRIM_SPACE = TRUE NULL_IF = ('NULL', '2')"
        local.sql(f"COPY INTO n FROM @s/n FILE_FORMAT = ({cleaned}) {BY_NAME}")
        assert local.sql("SELECT id, name, v::VARCHAR AS v FROM n ORDER BY id NULLS LAST") == [
            {"id": Decimal(1), "name": "a", "v": "x"}, {"id": None, "name": None, "v": None},
        ]  # fmt: skip


def test_a_column_without_a_field_of_its_name_is_null(local):
    local.sql("CREATE TABLE n (id INT, d INT DEFAULT 7)")
    local.put("n/a.json", b'{"id": 1}\n{"id": 2, "d": 3}\n')
    local.sql(f"COPY INTO n FROM @s/n FILE_FORMAT = (TYPE = JSON) {BY_NAME}")
    assert [row["d"] for row in local.sql("SELECT d FROM n ORDER BY id")] == [None, Decimal(3)]


def test_columns_that_a_load_would_have_to_add_are_refused(local):
    local.sql("CREATE TABLE n (id INT) ENABLE_SCHEMA_EVOLUTION = TRUE")
    local.put("n/a.json", b'{"id": 1}\n')
    copy = f"COPY INTO n FROM @s/n FILE_FORMAT = (TYPE = JSON) {BY_NAME} ON_ERROR = CONTINUE"
    assert local.sql(copy)[0]["status"] == "LOADED"
    local.put("n/b.json", b'{"id": 2, "more": 3}\n')
    error = local.refused(copy)
    assert (error.code, "more" in error.message) == ("000002", True)
    assert ids(local, "n") == [1]


def test_a_key_that_is_there_twice_is_an_error_unless_allowed(local):
    local.sql("CREATE TABLE n (v VARIANT)")
    local.put("n/a.json", b'{"a": 1, "a": 2}\n')
    assert local.refused("COPY INTO n FROM @s/n FILE_FORMAT = (TYPE = JSON)").code == "100069"
    local.sql("COPY INTO n FROM @s/n FILE_FORMAT = (TYPE = JSON ALLOW_DUPLICATE = TRUE)")
    assert local.sql("SELECT v:a::INT AS a FROM n") == [{"a": Decimal(2)}]


def test_binary_of_parquet_is_no_text_when_asked(local):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"B": [b"abc"]}), sink)
    local.put("n/a", sink.getvalue().to_pybytes())
    local.sql("CREATE TABLE n (v VARIANT)")
    local.sql("COPY INTO n FROM @s/n FILE_FORMAT = (TYPE = PARQUET BINARY_AS_TEXT = FALSE)")
    assert local.sql("SELECT v:B::VARCHAR AS b FROM n") == [{"b": "616263"}]


def test_a_year_of_two_digits_and_an_offset_without_room_for_it(local):
    local.sql("CREATE TABLE n (d DATE, t TIMESTAMP_NTZ)")
    local.put("n/a.csv", b"12/31/69,31.12.2024 23:00 -0500\n12/31/70,31.12.2024 23:00 +0530\n")
    local.sql(
        "COPY INTO n FROM @s/n FILE_FORMAT = (DATE_FORMAT = 'MM/DD/YY' "
        "TIMESTAMP_FORMAT = 'DD.MM.YYYY HH24:MI TZHTZM')"
    )
    assert [(row["d"].year, str(row["t"])) for row in local.sql("SELECT * FROM n ORDER BY d DESC")] == [
        (2069, "2024-12-31 23:00:00"), (1970, "2024-12-31 23:00:00"),
    ]  # fmt: skip


ARROW = pa.table(
    {
        "ID": pa.array([1, 2, None], pa.int32()), "name": ["x", None, "z"],
        "AMOUNT": pa.array([Decimal("1.10"), Decimal("2.25"), None], pa.decimal128(10, 2)),
        "AT": pa.array([0, 1_000_000, None], pa.timestamp("us")), "DAY": pa.array([0, 1, None], pa.date32()),
        "RAW": pa.array([b"hi", b"\xff", None]), "NESTED": pa.array([{"k": [1, 2]}, None, None]),
    }
)  # fmt: skip


def test_parquet_and_orc_fill_columns_by_name(local):
    for kind in ["PARQUET", "ORC"]:
        local.sql(
            "CREATE OR REPLACE TABLE p (id INT, name VARCHAR, amount NUMBER(10,2), at TIMESTAMP_NTZ, "
            "day DATE, raw BINARY, nested VARIANT)"
        )
        target = local.put("a.bin", b"")
        (pq if kind == "PARQUET" else orc).write_table(ARROW, target)
        local.sql(
            f"COPY INTO p FROM @s FILE_FORMAT = (TYPE = {kind}) MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
        )
        rows = local.sql("SELECT * FROM p ORDER BY id NULLS LAST")
        assert rows[0] == {
            "id": Decimal(1), "name": "x", "amount": Decimal("1.10"), "at": dt.datetime(1970, 1, 1),
            "day": dt.date(1970, 1, 1), "raw": b"hi", "nested": '{"k":[1,2]}',
        }  # fmt: skip
        assert rows[1]["raw"] == b"\xff"
        assert rows[2]["name"] == "z"


def test_a_parquet_record_has_the_keys_with_a_value(local):
    pq.write_table(pa.table({"N": [{"k": "v"}, {"l": [None, {"m": 1}]}]}), local.put("a.parquet", b""))
    local.sql("CREATE TABLE n (n VARIANT)")
    local.sql("COPY INTO n FROM (SELECT $1:N FROM @s) FILE_FORMAT = (TYPE = PARQUET)")
    local.sql(
        "COPY INTO n FROM @s FILE_FORMAT = (TYPE = PARQUET) FORCE = TRUE "
        "MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
    )
    assert [row["n"] for row in local.sql("SELECT n FROM n ORDER BY n:k NULLS LAST")] == [
        '{"k":"v"}', '{"k":"v"}', '{"l":[null,{"m":1}]}', '{"l":[null,{"m":1}]}',
    ]  # fmt: skip


def test_parquet_by_expression_and_as_one_variant(local):
    pq.write_table(ARROW.select(["ID", "name", "NESTED"]), local.put("a.parquet", b""))
    local.sql(
        "COPY INTO t FROM (SELECT $1:ID::INT + 10, $1:NESTED:k[1] FROM @s) FILE_FORMAT = (TYPE = PARQUET)"
    )
    assert local.sql("SELECT * FROM t WHERE id IS NOT NULL ORDER BY id")[0] == {
        "id": Decimal(11), "name": "2",
    }  # fmt: skip
    local.sql("CREATE TABLE v (v VARIANT)")
    local.sql("COPY INTO v FROM @s FILE_FORMAT = (TYPE = PARQUET)")
    assert json.loads(local.sql("SELECT v FROM v LIMIT 1")[0]["v"]) == {
        "ID": 1, "name": "x", "NESTED": {"k": [1, 2]},
    }  # fmt: skip


def test_avro_and_xml_are_refused(local):
    for kind in ("AVRO", "XML"):
        error = local.refused(f"COPY INTO t FROM @s FILE_FORMAT = (TYPE = {kind})")
        assert (error.code, kind in error.message) == ("000002", True)


def test_a_file_that_is_not_parquet_is_an_error(local):
    local.sql("CREATE TABLE v (v VARIANT)")
    local.put("a.parquet", b"no")
    assert local.refused("COPY INTO v FROM @s FILE_FORMAT = (TYPE = PARQUET)").code == "100152"


# -- transformations ----------------------------------------------------------------------------------------


def test_expressions_fill_columns(local):
    local.sql("CREATE TABLE e (f VARCHAR, n INT, a INT, u VARCHAR, v VARIANT)")
    local.put("in/a.csv", b'7,x-y,"{""k"":{""m"":1}}"\n')
    local.sql(
        "COPY INTO e (f, n, a, u, v) FROM (SELECT METADATA$FILENAME, METADATA$FILE_ROW_NUMBER, "
        "s.$1::INT + 1, "
        f"UPPER(SPLIT_PART($2, '-', 2)), PARSE_JSON($3):k FROM @s/in s) {CSV}"
    )
    assert local.sql("SELECT * FROM e") == [
        {"f": "in/a.csv", "n": Decimal(1), "a": Decimal(8), "u": "Y", "v": '{"m":1}'}
    ]


def test_a_sequence_in_an_expression_is_refused(local):
    local.sql("CREATE SEQUENCE seq")
    assert local.refused("COPY INTO t (id) FROM (SELECT seq.NEXTVAL FROM @s)").code == "000002"


def test_a_failing_expression_is_an_error_of_its_row(local):
    local.put("a.csv", b"1,x\nbad,y\n3,z\n")
    (row,) = local.sql("COPY INTO t FROM (SELECT $1::INT * 2, $2 FROM @s) ON_ERROR = CONTINUE")
    assert (row["rows_loaded"], row["errors_seen"]) == (2, 1)
    assert ids(local) == [2, 6]


def test_options_may_stand_inside_of_the_select(local):
    local.put("a.json", b'{"a":{"b":5}}\n')
    local.put("b.csv", b"1,x\n")
    local.sql(
        "COPY INTO t (id) FROM (SELECT t.$1:a.b FROM @s (FILE_FORMAT => (TYPE = JSON), "
        "PATTERN => '.*[.]json') t)"
    )
    assert ids(local) == [5]


def test_wrong_statements_are_refused(local):
    for statement, code in [
        ("COPY INTO nowhere FROM @s", "002003"), ("COPY INTO t FROM @nowhere", "002003"),
        ("COPY INTO t (other) FROM @s", "000904"), ("COPY INTO t FROM (SELECT $1 FROM @s)", "002020"),
        ("COPY INTO t FROM (SELECT $1, nonsense FROM @s)", "000904"),
        ("COPY INTO t FROM (SELECT $1, count($2) FROM @s)", "002079"),
        ("COPY INTO t FROM (SELECT $1, $2 FROM @s WHERE $1 > 1)", "000002"),
        ("COPY INTO t FROM @s MATCH_BY_COLUMN_NAME = CASE_SENSITIVE", "001003"),
        ("COPY INTO t FROM @s ON_ERROR = PANIC", "001008"),
        ("COPY INTO t FROM @s ON_ERROR = SKIP_FILE_0", "001008"),
        ("COPY INTO t FROM @s ON_ERROR = SKIP_FILE_50%", "001003"),
        ("COPY INTO t FROM @s SIZE_LIMIT = 0", "001008"), ("COPY INTO t FROM @s FORCE = 1", "001008"),
        ("COPY INTO t FROM @s FRCE = TRUE", "001420"), ("COPY INTO t FROM @s PATTERN = '['", "2201B"),
        ("COPY INTO t FROM @s FILE_FORMAT = (TYPE = CSV STRIP_OUTER_ARRAY = TRUE)", "001420"),
        ("COPY INTO t FROM @s nonsense", "001003"),
    ]:  # fmt: skip
        local.put("a.csv", b"1,x\n")
        error = local.refused(statement)
        assert code in (error.code, error.sqlstate)
        assert ids(local) == []


def test_at_most_a_thousand_files_are_named(local):
    names = ", ".join(f"'{n}.csv'" for n in range(1001))
    assert "maximum is 1000" in local.refused(f"COPY INTO t FROM @s FILES = ({names})").message


def test_bound_values_and_identifier_are_replaced(local):
    local.put("a.csv", b"1,x\nbad,y\n")
    (row,) = local.sql("COPY INTO identifier(?) /* note */ (id, name) FROM @s ON_ERROR=?", '"T"', "continue")
    assert row["rows_loaded"] == 1


def test_without_from_the_table_stage_is_loaded(local):
    assert local.sql("COPY INTO t") == NOTHING


# -- transactions and safety --------------------------------------------------------------------------------


def test_a_rolled_back_copy_leaves_neither_rows_nor_history(local):
    local.put("a.csv", b"1,x\n")
    local.sql("BEGIN")
    local.sql("COPY INTO t FROM @s")
    assert ids(local) == [1]
    local.sql("ROLLBACK")
    assert ids(local) == []
    local.sql("COPY INTO t FROM @s")
    assert ids(local) == [1]


def test_concurrent_statements_load_each_file_once(local):
    for number in range(20):
        local.put(f"{number:02}.csv", f"{number},x\n".encode())
    sessions = [local.new_session() for _ in range(4)]
    threads = [
        threading.Thread(target=local.sql, args=("COPY INTO t FROM @s",), kwargs={"session": session})
        for session in sessions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session in sessions:
        session.close()
    assert ids(local) == list(range(20))


def test_sql_cannot_read_files_of_the_machine_or_of_stages(local):
    for query in [
        "SELECT * FROM read_csv('{path}')", "SELECT * FROM '{path}'", "SELECT * FROM read_text('{path}')",
        "SELECT * FROM glob('{path}')", "SELECT read_blob('{path}')", 'SELECT * FROM "{path}"',
        "COPY INTO t FROM 'file://{path}'",
    ]:  # fmt: skip
        staged = local.put("a.csv", b"1,x\n")
        for path in ("/etc/passwd", str(staged)):
            assert local.refused(query.format(path=path)).code != "000603"
        assert ids(local) == []


# -- validation ---------------------------------------------------------------------------------------------


def test_validation_returns_every_error_and_loads_nothing(local):
    local.put("a.csv", BAD)
    local.put("b.csv", b"x,y\n")
    errors = local.sql(f"COPY INTO t FROM @s {CSV} VALIDATION_MODE = RETURN_ERRORS")
    assert [(row["file"], row["line"], row["row_number"]) for row in errors] == [
        ("s/a.csv", 2, 2), ("s/a.csv", 3, 3), ("s/a.csv", 4, 4), ("s/a.csv", 5, 5), ("s/a.csv", 6, 6),
        ("s/b.csv", 1, 1),
    ]  # fmt: skip
    assert errors[0]["error"] == "Numeric value 'bad' is not recognized"
    assert (errors[0]["code"], errors[0]["sql_state"]) == (100038, "22018")
    assert (errors[0]["column_name"], errors[0]["rejected_record"]) == ('"T"["ID":1]', "bad,y")
    assert ids(local) == []
    local.sql(f"COPY INTO t FROM @s/a {CSV} ON_ERROR = CONTINUE")
    assert len(local.sql(f"COPY INTO t FROM @s {CSV} VALIDATION_MODE = RETURN_ERRORS")) == 1
    assert len(local.sql(f"COPY INTO t FROM @s {CSV} VALIDATION_MODE = RETURN_ALL_ERRORS")) == 6


def test_validation_returns_the_first_rows_or_their_error(local):
    local.put("a.csv", b"1,x\n2,y\nbad,z\n")
    assert local.sql("COPY INTO t FROM @s VALIDATION_MODE = RETURN_2_ROWS") == [
        {"id": Decimal(1), "name": "x"}, {"id": Decimal(2), "name": "y"},
    ]  # fmt: skip
    assert local.refused("COPY INTO t FROM @s VALIDATION_MODE = RETURN_3_ROWS").code == "100038"
    assert local.refused("COPY INTO t FROM @s VALIDATION_MODE = RETURN_SOME").code == "001008"
    assert ids(local) == []


def test_blanks_between_the_values_of_an_array_do_not_count(local):
    for name, content, options in [
        ("v.csv", b'"[1, 2, ""a b"", 12345678901234567890.12345]"\n', CSV),
        ("v.json", b'[1, 2,\t"a b", 12345678901234567890.12345]\n', "FILE_FORMAT = (TYPE = JSON)"),
    ]:
        begin(local)
        local.sql("CREATE TABLE v (v VARIANT)")
        local.put(name, content)
        local.sql(f"COPY INTO v FROM @s {options}")
        equal = "v = PARSE_JSON('[1,2,\"a b\",12345678901234567890.12345]')"
        assert local.sql(f"SELECT v, {equal} AS is_equal FROM v") == [
            {"v": '[1,2,"a b",12345678901234567890.12345]', "is_equal": True}
        ]


def test_an_hour_of_twelve_alone_is_before_noon(local):
    local.sql("CREATE OR REPLACE TABLE hours (t TIME, n TIMESTAMP_NTZ)")
    local.put("hours.csv", b"12:30,2026-01-02 12:30\n11:30,2026-01-02 11:30\n")
    options = "TYPE = CSV TIME_FORMAT = 'HH12:MI' TIMESTAMP_FORMAT = 'YYYY-MM-DD HH12:MI'"
    local.sql(f"COPY INTO hours FROM @s/hours.csv FILE_FORMAT = ({options})")
    rows = local.sql("SELECT t::VARCHAR AS t, HOUR(n) AS n FROM hours ORDER BY 1")
    assert [(row["t"], row["n"]) for row in rows] == [("00:30:00", 0), ("11:30:00", 11)]
