"""The check against columns: what it finds, and how little it reads of good rows."""

import json

import pyarrow.json as pj
import pytest

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.row_check import RowCheck
from airflow_provider_snowpipe.streaming.row_values import RowValues
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
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


def _rows(count, **changes):
    row = {"NAME": "a name", "AT": "2026-01-02T03:04:05Z", "PRICE": 1.25, "OK": True, "RAW": "aGk="}
    return [{"ID": number, **row, "BODY": {"ID": "x"}, **changes} for number in range(count)]


def _small(count):
    return [{key.lower(): value for key, value in row.items()} for row in _rows(count)]


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
    body = _body(_rows(1000))

    found = RowCheck(COLUMNS).check(body)

    assert (found.faults, len(parses), checked_alone) == ((), 1, [])
    assert found.good_rows() is body


def test_bad_row_is_found_among_good_ones_by_its_first_column():
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
        assert _faults(_body(rows)) == [(77, column, reason)]
    rows[77] = {**_rows(1)[0], "id": "x"}
    assert _faults(_body(rows)) == []


def test_line_that_is_no_object_spoils_no_other():
    good = _body(_rows(100))
    for line in (b"[1]", b'{"ID":1', b'{"ID":1}{"ID":2}', b"\xff", b'{"ID":1,"BODY":"\xff"}', b"null", b"  "):
        (fault,) = RowCheck(COLUMNS).check(good + line + b"\n" + good).faults
        assert (line, fault.row, fault.fault.column) == (line, 100, None)
    assert [row for row, *_ in _faults(b'{"ID":1}\n{"ID":\n2}\n{"ID":3}{"ID":4}\n{"ID":5}\n')] == [1, 2, 3]


def test_other_spelling_of_a_key_is_judged_as_the_same_column():
    rows = _rows(100)
    rows[50], rows[60] = {"id": "x"}, {"iD": 7}

    assert _faults(_body(rows)) == [(50, "ID", NO_NUMBER)]
    assert [row for row, *_ in _faults(b'{"ID":1}\n{"I\\u0044":"x"}\n')] == [1]


def test_source_that_changes_its_spelling_is_learned_again_and_still_judged(checked_alone):
    check = RowCheck(COLUMNS)
    check.check(_body(_rows(200)))
    small = _small(200)

    assert check.check(_body(small)).faults == ()
    assert checked_alone == []
    small[71]["id"] = "x"
    small[72] = {"ID": "x"}
    assert [one.row for one in check.check(_body(small)).faults] == [71, 72]


def test_spelling_that_changes_together_with_a_bad_value_hides_nothing():
    check = RowCheck(COLUMNS)
    check.check(_body(_rows(200)))
    mixed = _small(200)
    mixed[33] = {"ID": "x"}
    mixed[44]["id"] = "x"

    assert [one.row for one in check.check(_body(mixed)).faults] == [33, 44]


def test_columns_that_are_not_known_or_differ_only_in_case_are_refused():
    alike = [TableColumn("id", "NUMBER(38,0)"), TableColumn("ID", "NUMBER(38,0)")]
    refused(ConfigurationError, RowCheck, [alike], "'id' and 'ID'")
    refused(ConfigurationError, RowCheck, [()], "not known")


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
    rows, bad = _rows(4000), [3, 900, 901, 3999]
    for number in bad:
        rows[number]["ID"] = "x"

    found = RowCheck(COLUMNS).check(_body(rows))

    assert [one.row for one in found.faults] == bad
    assert len(parses) <= 2 + 2 * len(bad)
    assert len(checked_alone) <= 40 * len(bad)


def test_good_rows_are_left_byte_by_byte_and_line_numbers_count_blank_lines():
    body = b'\n{"ID":1}\r\n\r\n{"ID":"x"}\r\n\n{"ID":3}\n{"ID":"y"}'

    found = RowCheck(COLUMNS).check(body)
    nothing = RowCheck(COLUMNS).check(b"x\n\ny\n")

    assert [(one.row, one.line) for one in found.faults] == [(1, 3), (3, 6)]
    assert bytes(found.good_rows()) == b'\n{"ID":1}\r\n\r\n\n{"ID":3}\n'
    assert (len(nothing.faults), bytes(nothing.good_rows())) == (2, b"")


LOSSES = [
    ("NUMBER(38,0)", ["1", "12345678901234567890123", '"5"', "5.0", "1e3", "true"], ["4.75", "0.4", '"1.5"']),
    ("NUMBER(10,2)", ["1.25", "1.1", "7", "1.250"], ["1.255", '"0.001"']),
    ("FLOAT", ["0.1", "9007199254740992", "1e300", "1234567890123456768"], ["9007199254740993"]),
    ("DATE", ['"2024-02-28"', '"2024-02-28T00:00"', "0"], ['"2024-02-28T10:00:00"', '"2024-02-28 00:01"']),
    ("BOOLEAN", ["true", "0", "1", '"no"'], ["5", '"2"']),
    ("TIMESTAMP_NTZ(9)", ['"2024-02-28T10:00"'], ['"2024-02-28T10:00:00Z"', '"2024-02-28T10:00+02:00"']),
    ("VARCHAR(10)", ["1.10", '"x"', "true"], []),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "kept", "lost"), LOSSES)
@pytest.mark.parametrize("only_exact", [False, True])
def test_a_value_that_a_column_of_our_own_would_change_does_not_fit_it(kind, kept, lost, only_exact):
    values = [*kept * 20, *lost, *kept * 20]
    body = b"".join(f'{{"V":{value}}}\n'.encode() for value in values)

    for exact, expected in ((True, lost), (False, [])):
        check = RowCheck([TableColumn("V", kind, exact=exact)], only_exact=only_exact)
        found = check.check(body).faults
        assert [values[fault.row] for fault in found] == expected
        assert all(str(values[one.row]).strip('"') in one.fault.reason for one in found)


def test_only_what_would_change_is_at_fault_where_nothing_else_is_checked():
    check = RowCheck([TableColumn("V", "NUMBER(38,0)", nullable=False, exact=True)], only_exact=True)
    body = b'{"V":"no number"}\n{}\n[]\n{"V":null}\n\xff\n{"V":1.5}\n'

    assert [fault.row for fault in check.check(body).faults] == [5]


@pytest.mark.parametrize(
    "text", ["31-JAN-2024", "01/31/2024", "1/31/2024 10:00:00", "Wed, 31 Jan 2024 10:00:00 +0000"]
)
@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP_NTZ(9)", "TIMESTAMP_TZ(9)"])
def test_dates_in_other_forms_that_the_service_reads_are_sent(text, kind):
    check = RowCheck([TableColumn("V", kind)])

    assert not check.check(f'{{"V":"{text}"}}\n'.encode()).faults
    assert check.check(b'{"V":"31/01/2024"}\n{"V":"99-JAN-2024"}\n').faults
