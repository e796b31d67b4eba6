"""The check against columns: what it finds, and how little it reads of good rows."""

import json

import pyarrow.json as pj
import pytest

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.row_check import RowCheck
from airflow_provider_snowpipe.streaming.row_values import RowValues
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

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


def _rows(count, **changes):
    row = {"NAME": "a name", "AT": "2026-01-02T03:04:05Z", "PRICE": 1.25, "OK": True, "RAW": "aGk="}
    return [{"ID": number, **row, "BODY": {"ID": "x"}, **changes} for number in range(count)]


def _body(rows, end="\n"):
    return "".join(json.dumps(row) + end for row in rows).encode()


def _faults(body, columns=COLUMNS):
    return [(one.row, one.fault.column, one.fault.reason) for one in RowCheck(columns).check(body).faults]


@pytest.fixture
def checked_alone(monkeypatch):
    """The rows that are checked one by one."""
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


def test_good_rows_are_parsed_once_and_none_is_checked_alone(checked_alone, parses):
    check = RowCheck(COLUMNS)
    body = _body(_rows(1000))

    found = check.check(body)

    assert (found.faults, len(parses), checked_alone) == ((), 1, [])
    assert found.good_rows() is body


@pytest.mark.parametrize(
    ("changes", "column", "reason"),
    [
        ({"ID": None}, "ID", "a value is required (NOT NULL)"),
        ({"ID": 1_000_000}, "ID", "the value cannot be converted to NUMBER(6,0)"),
        ({"ID": 999_999.5}, "ID", "the value cannot be converted to NUMBER(6,0)"),
        ({"NAME": "nine char"}, "NAME", "the value is longer than VARCHAR(8)"),
        ({"AT": "2026-02-30"}, "AT", "the value cannot be converted to TIMESTAMP_NTZ(9)"),
        ({"PRICE": "1,25"}, "PRICE", "the value cannot be converted to NUMBER(5,2)"),
        ({"PRICE": [1]}, "PRICE", "the value cannot be converted to NUMBER(5,2)"),
        ({"OK": "perhaps"}, "OK", "the value cannot be converted to BOOLEAN"),
        ({"RAW": "aGVsbG8="}, "RAW", "the value is longer than BINARY(4)"),
        ({"id": "x"}, None, None),
        ({"NUMBERED": None}, "NUMBERED", "a value is required (NOT NULL)"),
    ],
)
def test_bad_row_is_found_among_good_ones_by_its_first_column(changes, column, reason):
    rows = _rows(200)
    rows[77].update(changes)

    assert _faults(_body(rows)) == ([] if column is None else [(77, column, reason)])


@pytest.mark.parametrize(
    "line", [b"[1]", b'{"ID":1', b'{"ID":1}{"ID":2}', b"\xff", b'{"ID":1,"BODY":"\xff"}', b"null", b"  "]
)
def test_line_that_is_no_object_spoils_no_other(line):
    good = _body(_rows(100))

    (fault,) = RowCheck(COLUMNS).check(good + line + b"\n" + good).faults

    assert (fault.row, fault.fault.column) == (100, None)


def test_torn_and_glued_lines_do_not_hide_each_other():
    assert [row for row, *_ in _faults(b'{"ID":1}\n{"ID":\n2}\n{"ID":3}{"ID":4}\n{"ID":5}\n')] == [1, 2, 3]


def test_other_spelling_of_a_key_is_judged_as_the_same_column():
    rows = _rows(100)
    rows[50] = {"id": "x"}
    rows[60] = {"iD": 7}

    assert _faults(_body(rows)) == [(50, "ID", "the value cannot be converted to NUMBER(6,0)")]


def test_source_that_changes_its_spelling_is_learned_anew_and_still_judged(checked_alone):
    check = RowCheck(COLUMNS)
    check.check(_body(_rows(200)))
    small = [{key.lower(): value for key, value in row.items()} for row in _rows(200)]

    assert check.check(_body(small)).faults == ()
    assert checked_alone == []
    small[71]["id"] = "x"
    small[72] = {"ID": "x"}
    assert [one.row for one in check.check(_body(small)).faults] == [71, 72]


def test_spelling_that_changes_together_with_a_bad_value_hides_nothing():
    check = RowCheck(COLUMNS)
    check.check(_body(_rows(200)))
    mixed = [{key.lower(): value for key, value in row.items()} for row in _rows(200)]
    mixed[33] = {"ID": "x"}
    mixed[44]["id"] = "x"

    assert [one.row for one in check.check(_body(mixed)).faults] == [33, 44]


def test_columns_that_differ_only_in_case_are_refused():
    with pytest.raises(ConfigurationError, match="'id' and 'ID' differ only in case"):
        RowCheck([TableColumn("id", "NUMBER(38,0)"), TableColumn("ID", "NUMBER(38,0)")])


def test_key_written_with_escapes_is_judged_as_the_same_column():
    assert [row for row, *_ in _faults(b'{"ID":1}\n{"I\\u0044":"x"}\n')] == [1]


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("NUMBER(38,0)", ['"1"', "2", '"3"', "4.5"]),
        ("FLOAT", ['"1"', "2"]),
        ("BOOLEAN", ["1", "0"]),
        ("TIMESTAMP_NTZ(9)", ["1767312000", "1767312001"]),
        ("VARCHAR(4)", ["12", "13"]),
    ],
)
def test_source_that_writes_a_column_in_its_own_way_is_learned_once(checked_alone, parses, kind, texts):
    lines = [f'{{"C":{texts[number % len(texts)]}}}\n' for number in range(400)]
    check = RowCheck([TableColumn("C", kind)])

    assert check.check("".join(lines).encode()).faults == ()
    assert (checked_alone, len(parses)) == ([], 1)


def test_few_bad_rows_cost_few_parses_and_few_checks(checked_alone, parses):
    rows = _rows(4000)
    bad = [3, 900, 901, 3999]
    for number in bad:
        rows[number]["ID"] = "x"
    check = RowCheck(COLUMNS)

    found = check.check(_body(rows))

    assert [one.row for one in found.faults] == bad
    assert len(parses) <= 2 + 2 * len(bad)
    assert len(checked_alone) <= 40 * len(bad)


def test_good_rows_are_left_byte_by_byte_and_line_numbers_count_blank_lines():
    body = b'\n{"ID":1}\r\n\r\n{"ID":"x"}\r\n\n{"ID":3}\n{"ID":"y"}'

    found = RowCheck(COLUMNS).check(body)

    assert [(one.row, one.line) for one in found.faults] == [(1, 3), (3, 6)]
    assert bytes(found.good_rows()) == b'\n{"ID":1}\r\n\r\n\n{"ID":3}\n'


def test_nothing_is_left_of_a_block_of_bad_rows():
    found = RowCheck(COLUMNS).check(b"x\n\ny\n")

    assert (len(found.faults), bytes(found.good_rows())) == (2, b"")


def test_columns_that_are_not_known_are_asked_for():
    with pytest.raises(ConfigurationError, match="the table's columns are not known"):
        RowCheck(())
