"""Checks of rows against columns, by value and by key; columns as described, inferred, written as DDL."""

import json
from collections import Counter

import pyarrow as pa
import pyarrow.json as pj
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, UnknownColumnsError
from airflow_provider_snowpipe.streaming.key_check import KeyCheck, UnknownKeys
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.row_check import RowCheck
from airflow_provider_snowpipe.streaming.row_values import RowValues, columns_of_rows
from airflow_provider_snowpipe.streaming.table_schema import (
    ColumnType,
    TableColumn,
    add_columns,
    column_type,
    columns_of_describe,
    common_types,
    create_table_if_missing,
    missing_columns,
    table_of,
)
from tests.refusals import refused

COLUMNS = (
    TableColumn("ID", "NUMBER(6,0)", nullable=False),
    TableColumn("NAME", "VARCHAR(8)"),
    TableColumn("AT", "TIMESTAMP_NTZ(9)"),
    TableColumn("PRICE", "NUMBER(5,2)"),
    TableColumn("OK", "BOOLEAN"),
    TableColumn("RAW", "BINARY(4)"),
    TableColumn("BODY", "VARIANT"),
    TableColumn("NUMBERED", "NUMBER(38,0)", nullable=False, identity=True),
)
NO_NUMBER = "the value cannot be converted to NUMBER(6,0)"


def _rows(count):
    row = {"NAME": "a name", "AT": "2026-01-02T03:04:05Z", "PRICE": 1.25, "OK": True, "RAW": "aGk="}
    return [{"ID": number, **row, "BODY": {"ID": "x"}} for number in range(count)]


def _small(count):
    return [{key.lower(): value for key, value in row.items()} for row in _rows(count)]


def _body(*rows):
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def _faults(*rows):
    found = RowCheck(COLUMNS).check(_body(*rows)).faults
    return [(one.row, one.fault.column, one.fault.reason) for one in found]


@pytest.fixture
def checked_alone(monkeypatch):
    seen = []
    whole = RowValues.fault
    monkeypatch.setattr(RowValues, "fault", lambda self, line: seen.append(line) or whole(self, line))
    return seen


@pytest.fixture
def parses(monkeypatch):
    seen = []
    read = pj.read_json
    monkeypatch.setattr(pj, "read_json", lambda *given, **options: seen.append(1) or read(*given, **options))
    return seen


class TestValues:
    def test_good_rows_are_parsed_once_and_few_bad_ones_cost_few_parses(self, checked_alone, parses):
        rows, bad = _rows(4000), [3, 900, 901, 3999]
        found = RowCheck(COLUMNS).check(body := _body(*rows))
        assert (found.faults, len(parses), checked_alone) == ((), 1, [])
        assert found.good_rows() is body
        for number in bad:
            rows[number]["ID"] = "x"
        assert [row for row, *_ in _faults(*rows)] == bad
        assert len(parses) <= 3 + 2 * len(bad)
        assert len(checked_alone) <= 40 * len(bad)

    def test_bad_row_is_found_among_good_ones_by_its_first_column(self):
        for changes, column, reason in [
            ({"ID": None}, "ID", "a value is required (NOT NULL)"),
            ({"ID": 1_000_000}, "ID", NO_NUMBER),
            ({"ID": 999_999.5}, "ID", NO_NUMBER),
            ({"NAME": "nine char"}, "NAME", "the value is longer than VARCHAR(8)"),
            ({"AT": "2026-02-30"}, "AT", "the value cannot be converted to TIMESTAMP_NTZ(9)"),
            ({"PRICE": "1,25"}, "PRICE", "the value cannot be converted to NUMBER(5,2)"),
            ({"PRICE": [1]}, "PRICE", "the value cannot be converted to NUMBER(5,2)"),
            ({"OK": "perhaps"}, "OK", "the value cannot be converted to BOOLEAN"),
            ({"RAW": "aGVsbG8="}, "RAW", "the value is longer than BINARY(4)"),
            ({"NUMBERED": None}, "NUMBERED", "a value is required (NOT NULL)"),
        ]:
            rows = _rows(200)
            rows[77].update(changes)
            assert _faults(*rows) == [(77, column, reason)]

    def test_line_that_is_no_object_spoils_no_other(self):
        good = _rows(100)
        torn = (b"[1]", b'{"ID":1', b'{"ID":1}{"ID":2}', b"\xff", b'{"ID":1,"BODY":"\xff"}', b"null", b"  ")
        for line in torn:
            ((row, column, _),) = _faults(*good, line, *good)
            assert (line, row, column) == (line, 100, None)
        assert [row for row, *_ in _faults(b'{"ID":1}\n{"ID":\n2}\n{"ID":3}{"ID":4}\n{"ID":5}')] == [1, 2, 3]

    def test_other_spelling_of_a_key_is_judged_as_the_same_column(self):
        rows = _rows(100)
        rows[40]["id"], rows[50], rows[60] = "x", {"id": "x"}, {"iD": 7}
        assert _faults(*rows) == [(50, "ID", NO_NUMBER)]
        assert [row for row, *_ in _faults(b'{"ID":1}\n{"I\\u0044":"x"}')] == [1]

    def test_source_that_changes_its_spelling_is_learned_again_and_hides_nothing(self, checked_alone):
        def faults(check, rows):
            return [one.row for one in check.check(_body(*rows)).faults]

        bad = _small(200)
        bad[71], bad[72] = {**bad[71], "id": "x"}, {"ID": "x"}
        for first in (_small(200), bad):
            check = RowCheck(COLUMNS)
            assert faults(check, _rows(200)) == []
            assert faults(check, first) == ([] if first is not bad else [71, 72])
            assert first is bad or checked_alone == []
            assert faults(check, bad) == [71, 72]

    def test_column_that_is_written_in_its_own_way_is_learned_once(self, checked_alone, parses):
        for kind, texts in [
            ("NUMBER(38,0)", '"1" 2 "3" 4.5'),
            ("BOOLEAN", "1 0"),
            ("TIMESTAMP_NTZ(9)", "1767312000 1767312001"),
            ("VARCHAR(4)", "12 13"),
        ]:
            body = "".join(f'{{"C":{text}}}\n' for text in texts.split() * 100).encode()
            assert RowCheck([TableColumn("C", kind)]).check(body).faults == ()
            assert (checked_alone, parses.pop(), parses) == ([], 1, [])

    def test_good_rows_are_left_byte_by_byte_and_line_numbers_count_blank_lines(self):
        found = RowCheck(COLUMNS).check(b'\n{"ID":1}\r\n\r\n{"ID":"x"}\r\n\n{"ID":3}\n{"ID":"y"}')
        nothing = RowCheck(COLUMNS).check(b"x\n\ny\n")
        assert [(one.row, one.line) for one in found.faults] == [(1, 3), (3, 6)]
        assert bytes(found.good_rows()) == b'\n{"ID":1}\r\n\r\n\n{"ID":3}\n'
        assert (len(nothing.faults), bytes(nothing.good_rows())) == (2, b"")

    @pytest.mark.parametrize("only_exact", [False, True])
    @pytest.mark.parametrize(
        ("kind", "kept", "lost"),
        [
            ("NUMBER(38,0)", '1 12345678901234567890123 "5" 5.0 1e3 true', '4.75 0.4 "1.5"'),
            ("NUMBER(10,2)", "1.25 1.1 7 1.250", '1.255 "0.001"'),
            (
                "FLOAT",
                "0.1 9007199254740992 1e300 1234567890123456768 0.30000000000000004",
                "9007199254740993 12345678901234567.89 0.1234567890123456789 1e400",
            ),
            ("DATE", '"2024-02-28" "2024-02-28T00:00" 0', '"2024-02-28T10:00:00" "2024-02-28T00:01"'),
            ("BOOLEAN", 'true 0 1 "no"', '5 "2"'),
            ("TIMESTAMP_NTZ(9)", '"2024-02-28T10:00"', '"2024-02-28T10:00:00Z" "2024-02-28T10:00+02:00"'),
            ("VARCHAR(10)", '1.10 "x" true', ""),
        ],
    )
    def test_a_value_that_a_column_of_our_own_would_change_does_not_fit_it(
        self, kind, kept, lost, only_exact
    ):
        values = [*kept.split() * 20, *lost.split(), *kept.split() * 20]
        body = b"".join(f'{{"V":{value}}}\n'.encode() for value in values)
        for exact, expected in ((True, lost.split()), (False, [])):
            found = RowCheck([TableColumn("V", kind, exact=exact)], only_exact=only_exact).check(body).faults
            assert [values[fault.row] for fault in found] == expected
            assert all(str(values[one.row]).strip('"') in one.fault.reason for one in found)

    def test_only_what_would_change_is_at_fault_where_nothing_else_is_checked(self):
        check = RowCheck([TableColumn("V", "NUMBER(38,0)", nullable=False, exact=True)], only_exact=True)
        body = b'{"V":"no number"}\n{}\n[]\n{"V":null}\n\xff\n{"V":1.5}\n'
        assert [fault.row for fault in check.check(body).faults] == [5]
        alike = [TableColumn("id", "NUMBER(38,0)"), TableColumn("ID", "NUMBER(38,0)")]
        refused(ConfigurationError, RowCheck, [alike], "'id' and 'ID'")
        refused(ConfigurationError, RowCheck, [()], "not known")

    @pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP_NTZ(9)", "TIMESTAMP_TZ(9)"])
    def test_dates_in_other_forms_that_the_service_reads_are_sent(self, kind):
        check = RowCheck([TableColumn("V", kind)])
        for text in ("31-JAN-2024", "01/31/2024", "1/31/2024 10:00:00", "Wed, 31 Jan 2024 10:00:00 +0000"):
            assert not check.check(_body({"V": text})).faults
        assert check.check(_body({"V": "31/01/2024"}, {"V": "99-JAN-2024"})).faults


FEW = (TableColumn("ID", "NUMBER(38,0)"), TableColumn("kind", "VARCHAR"), TableColumn("V", "VARIANT"))

TEXT = st.text(alphabet='ID"\\{}[]:,x \u00e9\u2028', max_size=4)
VALUE = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def _keys(*rows):
    return KeyCheck(FEW).check(_body(*rows))


class TestKeys:
    def test_are_counted_by_the_rows_that_have_them_and_rows_without_a_known_key_are_found(self):
        for rows, unknown, strangers in [
            ([{"ID": 1, "KIND": "x"}, {"Id": 2, "kind": None}], {}, ()),
            ([{"ID": 1, "KIMD": "x"}, {"id": 2, "KIMD": "y"}, {"id": 3}], {"KIMD": 2}, ()),
            ([{"ID": 1, "V": {"a": {"b": 1}, "KIMD": 2}, "KIND": '"X": 1'}], {}, ()),
            ([{"ID": 1, "NEVER": None}, {"ID": 2, "NEVER": None}], {"NEVER": 2}, ()),
            ([{"ID": 1}, {}, {"A": 1, "B": 2}, {"ID": None}, {"A": 3}], {"A": 2, "B": 1}, (2, 4)),
            ([{"schema": {}, "payload": {"ID": 1}}], {"schema": 1, "payload": 1}, (0,)),
            ([{"ID": 1, "KIMD": "x"}, {"ID": "2", "KIMD": 5}, {"A": 1}], {"KIMD": 2, "A": 1}, (2,)),
            ([{"ID": 1, "KIMD": "x"}, b'{"ID":', b"\xff"], {"KIMD": 1}, ()),
            ([b'{ "ID" : 1 , "KIMD" : 2 }'], {"KIMD": 1}, ()),
            ([{"ID": 1, "A": 1}, {"KIND": "x", "A": 1}, {"A": 1}, {"ID": None, "A": 1}], {"A": 4}, (2,)),
            # Longer than a block of Arrow's own.
            ([{"ID": 1, "KIND": "x" * 2_000_000}, {"ID": 2, "KIMD": "y" * 2_000_000}], {"KIMD": 1}, ()),
        ]:
            found = _keys(*rows)
            assert (dict(found.unknown), tuple(found.faults)) == (unknown, strangers)
        for end in (b"", b"\r\n", b"\n\n"):
            last = _body(*[{"ID": row, "KIND": "x"} for row in range(9)]) + b'{"ID":1,"KIMD":2}' + end
            assert dict(KeyCheck(FEW).check(last).unknown) == {"KIMD": 1}

    @pytest.mark.parametrize("at", [0, 500, 4_321, 9_999])
    def test_of_one_row_among_many_are_found_whatever_its_columns_hold(self, at):
        """A VARIANT of several types is one that Arrow's own reader of JSON refuses."""
        rows = [{"ID": row, "V": [row, "text", {"ID": row}, [row]][row % 4]} for row in range(10_000)]
        for wrong in ({"NEVER": 1}, {"ID": 1, "NEVER": 1}):
            found = _keys(*rows[:at], wrong, *rows[at + 1 :])
            assert (dict(found.unknown), list(found.faults)) == ({"NEVER": 1}, [] if "ID" in wrong else [at])

    def test_two_of_a_row_for_one_column_are_found(self):
        for row, column in {
            b'{"id":1,"ID":2}': "ID",
            b'{"ID":5,"V":1,"ID":6}': "ID",
            b'{"v":{"v":1,"V":2},"V":null}': "V",
            b'{ "Kind" : "a" ,\t"KIND"\t: "b" }': "kind",
            b'{"kind":"a","k\\u0069nd":"b"}': "kind",
            b'{"ID":1,"V":{"ID":2,"id":3}}': None,
            b'{"ID":1,"V":[{"ID":2},"\\"ID\\":"]}': None,
            b'{"ID":1,"ID":': None,
            b'{"ID":1}{"ID":2}': None,
            b'"ID":1': None,
            b'[{"ID":1,"ID":2}]': None,
        }.items():
            faults = _keys({"ID": 1}, row, {"ID": 2, "V": {}}).faults
            found = {one: fault.column and fault.column.upper() for one, fault in faults.items()}
            assert found == ({1: column.upper()} if column else {})

    @settings(max_examples=100)
    @given(st.lists(st.dictionaries(TEXT, VALUE, max_size=4), max_size=5), st.booleans(), st.booleans())
    def test_are_those_that_a_parser_of_json_finds(self, rows, is_ascii, is_compact):
        forms = {"ensure_ascii": is_ascii, "separators": (",", ":") if is_compact else (" , ", " : ")}
        body = b"".join(json.dumps(row, **forms).encode() + b"\n" for row in rows)
        found = KeyCheck((TableColumn("ID", "VARIANT"),)).check(body)
        assert dict(found.unknown) == dict(Counter(key for row in rows for key in row if key.upper() != "ID"))
        keys = [[key.upper() for key in row] for row in rows]
        bad = [row for row, one in enumerate(keys) if one.count("ID") > 1 or (one and "ID" not in one)]
        assert sorted(found.faults) == bad

    def test_that_are_unknown_are_refused_by_fail_with_the_columns(self):
        keys = UnknownKeys(FEW, "fail", "ch")
        assert not keys.check(_body({"ID": 1, "KIND": "x"}), "1 to 9")
        words = ("'ch'", "2 to 2", "KIMD", "ID, kind, V", "evolve_columns", "'warn'")
        unknown = _body({"ID": 1, "KIMD": 2})
        refused(UnknownColumnsError, lambda body: keys.check(body, "2 to 2"), [unknown], *words)

    def test_that_are_unknown_are_bounded_in_number_and_length_and_counted_over_the_blocks(self):
        many, two = (UnknownKeys(FEW, "warn", "ch") for _ in range(2))
        for row in range(30):
            many.check(_body({"ID": 1, f"{row}{'x' * 500}": 2}), "")
        assert len(many.counts) == 20
        assert max(map(len, many.counts)) <= 101
        long, longer = "x" * 100, "x" * 101
        for _ in range(2):
            two.check(_body({"ID": 1, long: 2}, {"ID": 1, longer: 2}), "")
        assert two.counts == {long: 2, f"{long}…": 2}


LONG_TEXT = "VARCHAR(16777216)"


def test_type_is_read_as_describe_table_writes_it():
    for text, found in {
        "NUMBER(12,2)": ColumnType("NUMBER", precision=12, scale=2),
        "number( 12 , 2 )": ColumnType("NUMBER", precision=12, scale=2),
        "bigint": ColumnType("NUMBER", precision=38, scale=0),
        "DOUBLE  PRECISION": ColumnType("FLOAT"),
        "VARCHAR(40)": ColumnType("VARCHAR", length=40),
        "STRING": ColumnType("VARCHAR", length=16_777_216),
        "VARCHAR(10) COLLATE 'en'": ColumnType("VARCHAR", length=10),
        "TIMESTAMP_NTZ(3)": ColumnType("TIMESTAMP_NTZ", precision=3),
        "TIME": ColumnType("TIME", precision=9),
        "ARRAY(NUMBER(38,0))": ColumnType("ARRAY"),
        "VARIANT": ColumnType("VARIANT"),
    }.items():
        assert (text, ColumnType.parse(text)) == (text, found)
        assert ColumnType.parse(str(found)) == found
    unknown = ["", "NUMBR", "VARCHAR(x)", "NUMBER(1,2,3)", "VARCHAR(4) NOT NULL"]
    refused(ConfigurationError, ColumnType.parse, unknown, "unknown", "DESCRIBE")


def test_described_columns_keep_defaults_and_identities_apart():
    rows = [
        {"name": "ID", "type": "NUMBER(38,0)", "kind": "COLUMN", "null?": "N",
         "default": "IDENTITY START 1 INCREMENT 1 NOORDER"},
        {"name": "at", "type": "DATE", "kind": "COLUMN", "null?": "Y", "default": "CURRENT_DATE()"},
        {"name": "V", "type": "VARCHAR(3)", "kind": "VIRTUAL", "null?": "Y", "default": None},
        {"name": 'say "hi"', "type": "VARCHAR(3)", "kind": "COLUMN", "null?": "N", "default": None},
    ]  # fmt: skip

    number, date, text = columns_of_describe(rows)

    assert number == TableColumn("ID", "NUMBER(38,0)", nullable=False, identity=True)
    assert date == TableColumn("at", "DATE", default="CURRENT_DATE()")
    assert (number.fills_itself, date.fills_itself, text.fills_itself) == (True, True, False)
    assert text.ddl == '"say ""hi""" VARCHAR(3) NOT NULL'


def test_type_is_inferred_from_all_values_of_a_column():
    for values, kind in [
        ("1 2", "NUMBER(38,0)"),
        ('"2026-01-02"', "DATE"),
        ('"2026-01-02" "2026-01-02T03:04:05"', "TIMESTAMP_NTZ(9)"),
        ('"2026-01-02T03:04:05.123456789Z" "2026-01-02T03:04+02:00"', "TIMESTAMP_TZ(9)"),
        ('"x" 1', LONG_TEXT),
        ('{"a":1} [1] "x"', "VARIANT"),
        ("null", LONG_TEXT),
        # Numbers that a float would cut make a number of their digits.
        ("1 0.1", "FLOAT"),
        ("123456789012345678.91", "NUMBER(38,2)"),
        ("9007199254740993 0.125", "NUMBER(38,3)"),
        ("0.12345678901234567890123456789012345678 1000.5", "FLOAT"),
    ]:
        (column,) = columns_of_rows(f'{{"c":{value}}}'.encode() for value in values.split())
        assert (values, column.type) == (values, kind)


def test_columns_come_in_the_order_of_the_rows_and_in_capital_letters():
    found = columns_of_rows([b'{"b":1}', b"torn", b"[1]", b'{"a":"x","B":2}'])
    assert found == (TableColumn("B", "NUMBER(38,0)"), TableColumn("A", LONG_TEXT))
    refused(ConfigurationError, columns_of_rows, [[b"{}", b"x"]], "inferred")


def test_statements_take_every_name_letter_by_letter():
    table = table_of(PipeName('D"B', "s", "T-STREAMING"))
    columns = [TableColumn('A"; DROP', "NUMBER(38,0)"), TableColumn("b", "DATE")]
    assert create_table_if_missing(table, columns) == (
        'CREATE TABLE IF NOT EXISTS "D""B"."s"."T" ("A""; DROP" NUMBER(38,0), "b" DATE)'
    )
    assert add_columns(table, columns[1:]) == 'ALTER TABLE "D""B"."s"."T" ADD COLUMN "b" DATE'
    refused(ConfigurationError, table_of, [PipeName("D", "S", "MINE")], "default pipe")
    have, new = [TableColumn("Id", "NUMBER(38,0)")], TableColumn("N", "DATE")
    assert missing_columns([TableColumn("ID", "FLOAT"), new], have) == (new,), "whatever their case"


def test_type_of_a_schema_is_the_columns_and_two_agree_on_one_that_takes_both():
    for arrow, kind in {
        pa.decimal128(9, 2): "NUMBER(9,2)",
        pa.decimal256(50, 2): None,
        pa.large_binary(): "BINARY(8388608)",
        pa.binary(16): "BINARY(8388608)",
        pa.timestamp("us"): "TIMESTAMP_NTZ(9)",
        pa.time64("us"): "TIME(9)",
        pa.map_(pa.string(), pa.int32()): "VARIANT",
        pa.null(): None,
    }.items():
        assert (arrow, column_type(arrow)) == (arrow, kind)
    one = {"A": "NUMBER(9,2)", "B": "NUMBER(9,2)", "C": "DATE", "D": "DATE"}
    other = {"A": "NUMBER(12,4)", "B": "FLOAT", "C": "VARIANT", "D": "BOOLEAN", "E": "DATE"}
    assert list(common_types(one, other).values()) == ["NUMBER(12,4)", "FLOAT", "VARIANT", LONG_TEXT, "DATE"]
