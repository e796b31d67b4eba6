"""COPY INTO a table: its result and errors, the files that it chooses, their formats, and its history."""

import bz2
import datetime as dt
import gzip
import json
import zlib
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import orc
from snowpipe_local.engine.load_history import DAY_MS
from tests.local_catalog import LocalCatalog

CSV = "FILE_FORMAT = (TYPE = CSV FIELD_OPTIONALLY_ENCLOSED_BY = '\"')"
BY_NAME = "MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
NOTHING = [{"status": "Copy executed with 0 files processed."}]


@pytest.fixture
def local(local):
    local.sql("CREATE TABLE t (id INT, name VARCHAR(5))")
    return local


def ids(local: LocalCatalog, table: str = "t") -> list[int]:
    return [int(row["id"]) for row in local.sql(f"SELECT id FROM {table} ORDER BY id")]


def stage(local: LocalCatalog, columns: str, content: bytes, file_format: str, options: str = "") -> str:
    """Make the table C and the only file for it, and return the statement that loads it."""
    local.sql(f"CREATE OR REPLACE TABLE c ({columns})")
    local.put("c/file", content)
    return f"COPY INTO c FROM @s/c FILE_FORMAT = ({file_format}) {options}"


def copied(
    local: LocalCatalog, columns: str, content: bytes, file_format: str, options: str = "", shown: str = "*"
) -> list[tuple[Any, ...]]:
    """Load a file into a new table, and return its rows."""
    local.sql(stage(local, columns, content, file_format, options))
    return local.values(f"SELECT {shown} FROM c ORDER BY 1 NULLS LAST")


def written(table: pa.Table, kind: str) -> bytes:
    """Return a table as a file of JSON, Parquet or ORC."""
    if kind == "JSON":
        return "\n".join(json.dumps(row) for row in table.to_pylist()).encode()
    sink = pa.BufferOutputStream()
    (pq if kind == "PARQUET" else orc).write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())


def test_abort_names_the_place_and_keeps_nothing_of_any_file_also_in_an_open_transaction(local):
    local.put("a.csv", b"1,x\n")
    local.put("b.csv", b"2,y\n3,toolong\n")
    local.sql("BEGIN")
    local.sql("INSERT INTO t VALUES (7, 'x')")
    error = local.refused(f"COPY INTO t FROM @s {CSV}")
    assert error.code == "100074"
    assert "User character length limit (5) exceeded by string 'toolong'" in error.message
    assert "File 's/b.csv', line 2, character 3" in error.message
    assert 'column "T"["NAME":2]' in error.message
    assert ids(local) == [7]
    local.sql("COMMIT")
    assert ids(local) == [7]
    local.put("b.csv", b"2,y\n")
    assert len(local.sql(f"COPY INTO t FROM @s {CSV}")) == 2


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


@pytest.mark.parametrize(
    ("on_error", "loads"),
    [("SKIP_FILE_5", False), ("SKIP_FILE_6", True), ("'SKIP_FILE_50%'", False), ("'SKIP_FILE_80%'", True)],
)
def test_skip_file_gives_a_file_up_at_its_limit(local, on_error, loads):
    local.put("a.csv", BAD)
    local.put("b.csv", b"9,x\n")
    first, _ = local.sql(f"COPY INTO t FROM @s {CSV} ON_ERROR = {on_error}")
    assert ids(local) == ([1, 6, 9] if loads else [9])
    assert (first["errors_seen"], first["status"]) == (5, "PARTIALLY_LOADED" if loads else "LOAD_FAILED")


def test_what_a_record_cannot_be_has_its_own_code_and_names_the_value(local):
    two, quoted = "id INT, name VARCHAR(5)", "FIELD_OPTIONALLY_ENCLOSED_BY = '\"'"
    for columns, content, code, named in [
        (two, b"1,x\n2,y,z\n", "100080", "Number of columns in file (3) does not match"),
        (two, b"1,x\n2\n", "100080", 'Number of columns in file (1) does not match "C"["NAME":2]'),
        (two, b"1,x\n\n", "100080", "Number of columns in file (1)"),
        (two, b"1,x\n2,\xff\n", "100016", "Invalid UTF8 detected in string '0xFF'"),
        (two, b'1,x\n2,"y\n', "100016", "Unterminated enclosed field"),
        ("id INT NOT NULL, name VARCHAR", b"1,x\n,x\n", "100072", "ID"),
        ("v NUMBER(4,0)", b"1\n12345\n", "100038", "12345"), ("v FLOAT", b"1\nx\n", "100038", "x"),
        ("v BOOLEAN", b"1\nmaybe\n", "100037", "maybe"), ("v VARIANT", b"1\n{\n", "100069", "{"),
        ("v DATE", b"2026-12-31\n2026-13-01\n", "100040", "2026-13-01"),
        ("v TIME", b"01:00\n25:00\n", "100108", "25:00"),
        ("v TIMESTAMP_NTZ", b"2026-12-31\nsoon\n", "100035", "soon"),
        ("v BINARY", b"AA\nzz\n", "100115", "zz"), ("v OBJECT", b"{}\n[1]\n", "100071", "OBJECT"),
    ]:  # fmt: skip
        error = local.refused(stage(local, columns, content, quoted))
        assert error.code == code, content
        assert "line 2" in error.message
        assert all(part in error.message for part in named.split(" match ")), error.message


def test_files_that_cannot_be_read_or_found_fail_alone(local):
    local.put("a.csv.gz", b"\x1f\x8bnot gzip")
    local.put("b.csv", b"1,x\n")
    assert local.refused("COPY INTO t FROM @s").code == "100085"
    assert local.refused("COPY INTO t FROM @s FILES = ('b.csv', 'no.csv')").code == "091016"
    assert ids(local) == []
    failed, loaded = local.sql("COPY INTO t FROM @s ON_ERROR = SKIP_FILE")
    assert (failed["status"], loaded["status"]) == ("LOAD_FAILED", "LOADED")
    assert "Error decompressing file 'a.csv.gz'" in failed["first_error"]
    many = ", ".join(["'x'"] * 1001)
    assert "maximum is 1000" in local.refused(f"COPY INTO t FROM @s FILES = ({many})").message
    assert local.refused("COPY INTO t FROM @s PATTERN = '['").sqlstate == "2201B"
    local.put("c.csv", b"2,x\n")
    outcomes = local.sql("COPY INTO t FROM @s FILES = ('c.csv', 'no.csv') ON_ERROR = CONTINUE")
    assert [row["status"] for row in outcomes] == ["LOADED", "LOAD_FAILED"]
    local.put("a.parquet", b"no")
    assert local.refused("COPY INTO t FROM @s/a.p FILE_FORMAT = (TYPE = PARQUET) " + BY_NAME).code == "100152"


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


def test_the_history_is_that_of_the_table_under_any_name_until_it_is_emptied(local):
    local.put("a.csv", b"1,x\n")
    for statement in ("TRUNCATE TABLE t", "CREATE OR REPLACE TABLE t (id INT, name VARCHAR)"):
        local.sql("COPY INTO t FROM @s")
        local.sql(statement)
        local.sql("COPY INTO t FROM @s")
        assert ids(local) == [1]
    local.sql("ALTER TABLE t RENAME TO u")
    assert local.sql("COPY INTO u FROM @s") == NOTHING
    local.sql("CREATE TABLE t (id INT, name VARCHAR)")
    assert len(local.sql("COPY INTO t FROM @s")) == 1


def test_files_older_than_the_history_are_uncertain_and_those_staged_on_the_moved_clock_are_new(local):
    local.put("a.csv", b"1,x\n")
    local.sql("COPY INTO t FROM @s")
    local.catalog.clock.move(65 * DAY_MS / 1000)
    assert local.sql("COPY INTO t FROM @s") == NOTHING
    local.sql("COPY INTO @s/b.csv FROM (SELECT 2, 'y') SINGLE = TRUE FILE_FORMAT = (COMPRESSION = NONE)")
    (row,) = [row for row in local.sql("COPY INTO t FROM @s") if row["status"] == "LOADED"]
    assert row["file"] == "s/b.csv"
    local.sql("COPY INTO t FROM @s LOAD_UNCERTAIN_FILES = TRUE")
    assert ids(local) == [1, 1, 2]


def test_pattern_prefix_and_size_limit_choose_files(local):
    for name, number in (("in/a1.csv", 1), ("in/a2.csv", 2), ("in/b.txt", 9), ("out/a3.csv", 3)):
        local.put(name, b"%d,x\n" % number)
    local.sql("COPY INTO t FROM @s PATTERN = '.*/b[.].*'")
    assert ids(local) == [9]
    (row,) = local.sql("COPY INTO t FROM @s/in/a SIZE_LIMIT = 3")
    assert row["file"] == "s/in/a1.csv"
    local.sql("COPY INTO t FROM @s/in")
    assert ids(local) == [1, 2, 9]


def test_purge_removes_loaded_files_and_the_result_may_show_the_others_only(local):
    good, bad = local.put("a.csv", b"1,x\n"), local.put("b.csv", b"bad,x\n")
    (row,) = local.sql("COPY INTO t FROM @s PURGE = TRUE ON_ERROR = SKIP_FILE RETURN_FAILED_ONLY = TRUE")
    assert row["file"] == "s/b.csv"
    assert (good.exists(), bad.exists()) == (False, True)


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("a.csv.gz", gzip.compress),
        ("a.csv.bz2", bz2.compress),
        ("a.csv.zst", zstandard.ZstdCompressor().compress),
        ("a.csv.deflate", zlib.compress),
        ("a.csv.br", lambda data: pa.Codec("brotli").compress(data, asbytes=True)),
        ("a", gzip.compress),
    ],
)
def test_compressed_files_are_read(local, name: str, compress: Callable[[bytes], bytes]):
    local.put(name, compress(b"1,x\n2,y\n"))
    local.sql("COPY INTO t FROM @s")
    assert ids(local) == [1, 2]


def test_formats_of_times_and_binaries_are_obeyed(local):
    for columns, content, file_format, expected in [
        ("d DATE, x BINARY", b"31.01.2026|aGk=\n",
         "FIELD_DELIMITER = '|' DATE_FORMAT = 'DD.MM.YYYY' BINARY_FORMAT = BASE64",
         [(dt.date(2026, 1, 31), b"hi")]),
        ("t TIMESTAMP_NTZ", b"2026/01/02 15h04 07.5\n",
         "TIMESTAMP_FORMAT = 'YYYY/MM/DD HH24\"h\"MI SS.FF'", [(dt.datetime(2026, 1, 2, 15, 4, 7, 500000),)]),
        ("d DATE", b"12/31/69\n12/31/70\n", "DATE_FORMAT = 'MM/DD/YY'",
         [(dt.date(1970, 12, 31),), (dt.date(2069, 12, 31),)]),
        ("t TIMESTAMP_NTZ", b"31.12.2024 23:00 +0530\n", "TIMESTAMP_FORMAT = 'DD.MM.YYYY HH24:MI TZHTZM'",
         [(dt.datetime(2024, 12, 31, 23),)]),
        # An hour of twelve alone is before noon.
        ("t TIME", b"12:30\n11:30\n", "TIME_FORMAT = 'HH12:MI'", [(dt.time(0, 30),), (dt.time(11, 30),)]),
    ]:  # fmt: skip
        assert copied(local, columns, content, f"TYPE = CSV {file_format}") == expected


def test_too_long_text_is_cut_when_asked(local):
    assert copied(local, "s VARCHAR(5)", b"abcdefgh\n", "TYPE = CSV", "ENFORCE_LENGTH = FALSE") == [
        ("abcde",)
    ]


def test_json_fills_one_variant_or_columns_by_name(local):
    content = b'{"ID":1,"name":"x", "x": [1, 2]}\n{"Id":2,"more":true}\n'
    found = copied(local, "v VARIANT", content, "TYPE = JSON")
    assert [json.loads(value) for (value,) in found] == [
        {"ID": 1, "name": "x", "x": [1, 2]}, {"Id": 2, "more": True},
    ]  # fmt: skip
    # A column without a field of its name is null, whatever its default.
    columns = "id INT, name VARCHAR DEFAULT 'y'"
    assert copied(local, columns, content, "TYPE = JSON", BY_NAME) == [(1, "x"), (2, None)]
    assert local.refused("COPY INTO c FROM @s/c FILE_FORMAT = (TYPE = JSON) FORCE = TRUE").code == "002007"


def test_a_field_may_be_quoted_as_snowpark_writes_it(local):
    local.put("quoted.csv", b"1,x\n")
    local.sql("CREATE TABLE quoted (id INT, name VARCHAR)")
    local.sql('COPY INTO quoted (name, id) FROM (SELECT "$2", CAST("$1" AS INT) FROM @s/quoted.csv)')
    assert local.sql("SELECT * FROM quoted") == [{"id": 1, "name": "x"}]
    assert local.refused('COPY INTO quoted FROM (SELECT "$0", 1 FROM @s)').code == "000904"


def test_a_key_that_is_there_twice_at_any_depth_is_an_error_unless_allowed(local):
    for content, allowed in [
        (b'{"a": 1, "a": 2}\n', '{"a":2}'), (b'{"b": [{"a": 1, "a": 2}]}\n', '{"b":[{"a":2}]}'),
        (b'{"a": {"a": {"b": 1, "b": 1}}}\n', '{"a":{"a":{"b":1}}}'),
    ]:  # fmt: skip
        statement = stage(local, "v VARIANT", b'{"a":{"a":0},"b":{"a":0}}\n{"a"\n' + content, "TYPE = JSON")
        assert local.refused(statement).code == "100069"
        (row,) = local.sql(f"{statement} ON_ERROR = CONTINUE")
        assert (row["rows_loaded"], row["errors_seen"]) == (1, 2)
        assert copied(local, "v VARIANT", content, "TYPE = JSON ALLOW_DUPLICATE = TRUE") == [(allowed,)]


def test_csv_with_a_header_is_matched_by_name_and_gets_metadata_but_no_defaults(local):
    columns = "id INT, name VARCHAR, f VARCHAR, n INT, d INT DEFAULT 7"
    metadata = "INCLUDE_METADATA = (f = METADATA$FILENAME, n = METADATA$FILE_ROW_NUMBER)"
    content, header = b"Name,other,ID\nx,1,5\n", "TYPE = CSV PARSE_HEADER = TRUE"
    assert copied(local, columns, content, header, f"{BY_NAME} {metadata}") == [(5, "x", "c/file", 1, None)]
    local.sql("CREATE FILE FORMAT headed PARSE_HEADER = TRUE")
    for statement in (
        f"COPY INTO c FROM @s FILE_FORMAT = ({header})",
        "SELECT $1 FROM @s (FILE_FORMAT => headed)",
    ):
        assert "PARSE_HEADER" in local.refused(statement).message


@pytest.mark.parametrize("kind", ["JSON", "PARQUET", "ORC"])
def test_null_if_and_trim_space_count_by_name(local, kind):
    content = written(pa.table({"ID": [1, 2], "NAME": [" a ", "NULL"], "V": ["x", "NULL"]}), kind)
    cleaned = f"TYPE = {kind} TRIM_SPACE = TRUE NULL_IF = ('NULL', '2')"
    columns, shown = "id INT, name VARCHAR, v VARIANT", "id, name, v::VARCHAR"
    assert copied(local, columns, content, cleaned, BY_NAME, shown) == [(1, "a", "x"), (None, None, None)]


def test_columns_that_a_load_would_have_to_add_are_refused(local):
    local.sql("CREATE TABLE n (id INT) ENABLE_SCHEMA_EVOLUTION = TRUE")
    local.put("n/a.json", b'{"id": 1}\n')
    copy = f"COPY INTO n FROM @s/n FILE_FORMAT = (TYPE = JSON) {BY_NAME} ON_ERROR = CONTINUE"
    assert local.sql(copy)[0]["status"] == "LOADED"
    local.put("n/b.json", b'{"id": 2, "more": 3}\n')
    error = local.refused(copy)
    assert (error.code, "more" in error.message) == ("000002", True)
    assert ids(local, "n") == [1]


ARROW = pa.table(
    {
        "ID": pa.array([1, 2, None], pa.int32()), "name": ["x", None, "z"],
        "AMOUNT": pa.array([Decimal("1.10"), Decimal("2.25"), None], pa.decimal128(10, 2)),
        "AT": pa.array([0, 1_000_000, None], pa.timestamp("us")), "DAY": pa.array([0, 1, None], pa.date32()),
        "RAW": pa.array([b"hi", b"\xff", None]), "NESTED": pa.array([{"k": [1, 2]}, None, None]),
    }
)  # fmt: skip


@pytest.mark.parametrize("kind", ["PARQUET", "ORC"])
def test_parquet_and_orc_fill_columns_by_name(local, kind):
    columns = (
        "id INT, name VARCHAR, amount NUMBER(10,2), at TIMESTAMP_NTZ, day DATE, raw BINARY, nested VARIANT"
    )
    rows = copied(local, columns, written(ARROW, kind), f"TYPE = {kind}", BY_NAME)
    epoch = dt.datetime(1970, 1, 1)
    assert rows[0] == (1, "x", Decimal("1.10"), epoch, epoch.date(), b"hi", '{"k":[1,2]}')
    assert (rows[1][5], rows[2][1]) == (b"\xff", "z")


def test_a_record_of_parquet_has_the_keys_with_a_value_and_binary_as_text_unless_asked(local):
    content = written(pa.table({"N": [{"k": "v"}, {"l": [None, {"m": 1}]}], "B": [b"abc", None]}), "PARQUET")
    expected = [('{"k":"v"}',), ('{"l":[null,{"m":1}]}',)]
    assert copied(local, "n VARIANT", content, "TYPE = PARQUET", BY_NAME) == expected
    local.sql("COPY INTO c FROM (SELECT $1:N FROM @s/c) FILE_FORMAT = (TYPE = PARQUET) FORCE = TRUE")
    assert sorted(local.values("SELECT n FROM c")) == sorted(expected * 2)
    whole = copied(local, "v VARIANT", content, "TYPE = PARQUET", shown="v:B::VARCHAR, v:N.k::VARCHAR")
    assert whole == [("abc", "v"), (None, None)]
    hexadecimal = copied(
        local, "v VARIANT", content, "TYPE = PARQUET BINARY_AS_TEXT = FALSE", shown="v:B::VARCHAR"
    )
    assert hexadecimal[0] == ("616263",)


def test_expressions_fill_columns(local):
    local.sql("CREATE TABLE e (f VARCHAR, n INT, a INT, u VARCHAR, v VARIANT)")
    local.put("in/a.csv", b'7,x-y,"{""k"":{""m"":1}}"\n')
    local.sql(
        "COPY INTO e (f, n, a, u, v) FROM (SELECT METADATA$FILENAME, METADATA$FILE_ROW_NUMBER, "
        f"s.$1::INT + 1, UPPER(SPLIT_PART($2, '-', 2)), PARSE_JSON($3):k FROM @s/in s) {CSV}"
    )
    assert local.values("SELECT * FROM e") == [("in/a.csv", 1, 8, "Y", '{"m":1}')]


def test_a_failing_expression_is_an_error_of_its_row(local):
    local.put("a.csv", b"1,x\nbad,y\n3,z\n")
    (row,) = local.sql("COPY INTO t FROM (SELECT $1::INT * 2, $2 FROM @s) ON_ERROR = CONTINUE")
    assert (row["rows_loaded"], row["errors_seen"]) == (2, 1)
    assert ids(local) == [2, 6]


def test_options_may_stand_inside_of_the_select(local):
    local.put("a.json", b'{"a":{"b":5}}\n')
    local.put("b.csv", b"1,x\n")
    options = "FILE_FORMAT => (TYPE = JSON), PATTERN => '.*[.]json'"
    local.sql(f"COPY INTO t (id) FROM (SELECT t.$1:a.b FROM @s ({options}) t)")
    assert ids(local) == [5]


def test_bound_values_and_identifier_are_replaced(local):
    local.put("a.csv", b"1,x\nbad,y\n")
    (row,) = local.sql("COPY INTO identifier(?) /* note */ (id, name) FROM @s ON_ERROR=?", '"T"', "continue")
    assert row["rows_loaded"] == 1


def test_validation_returns_every_error_and_loads_nothing(local):
    local.put("a.csv", BAD)
    local.put("b.csv", b"x,y\n")
    errors = local.sql(f"COPY INTO t FROM @s {CSV} VALIDATION_MODE = RETURN_ERRORS")
    assert [(row["file"], row["line"], row["row_number"]) for row in errors] == [
        *(("s/a.csv", line, line) for line in range(2, 7)), ("s/b.csv", 1, 1),
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
