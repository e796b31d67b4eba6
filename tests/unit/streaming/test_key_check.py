"""Keys of rows that match no column of the table."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming.errors import UnknownColumnsError
from airflow_provider_snowpipe.streaming.key_check import KeyCheck, UnknownKeys
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

COLUMNS = (TableColumn("ID", "NUMBER(38,0)"), TableColumn("kind", "VARCHAR"), TableColumn("V", "VARIANT"))
BLOCK = [{"ID": row, "KIND": "x"} for row in range(9)]


def _body(*rows):
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def _check(*rows):
    return KeyCheck(COLUMNS).check(_body(*rows))


def test_keys_are_counted_by_the_rows_that_have_them_and_rows_without_a_known_key_are_found():
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
        ([{"KIMD": 1}], {"KIMD": 1}, (0,)),
        ([{"ID": 1, "A": 1}, {"KIND": "x", "A": 1}, {"A": 1}, {"ID": None, "A": 1}], {"A": 4}, (2,)),
        # Longer than a block of Arrow's own.
        ([{"ID": 1, "KIND": "x" * 2_000_000}, {"ID": 2, "KIMD": "y" * 2_000_000}], {"KIMD": 1}, ()),
    ]:
        found = _check(*rows)
        assert (dict(found.unknown), tuple(found.faults)) == (unknown, strangers)


@pytest.mark.parametrize("end", [b"", b"\r\n", b"\n\n"])
def test_the_end_of_a_block_hides_no_row(end):
    assert dict(KeyCheck(COLUMNS).check(_body(*BLOCK) + b'{"ID":1,"KIMD":2}' + end).unknown) == {"KIMD": 1}


@pytest.mark.parametrize("at", [0, 500, 4_321, 9_999])
def test_one_row_among_many_is_found_whatever_its_columns_hold(at):
    """A VARIANT of several types is one that Arrow's own reader of JSON refuses."""
    rows = [{"ID": row, "V": [row, "text", {"ID": row}, [row]][row % 4]} for row in range(10_000)]
    for wrong, unknown in [({"NEVER": 1}, {"NEVER": 1}), ({"ID": 1, "NEVER": 1}, {"NEVER": 1})]:
        found = _check(*rows[:at], wrong, *rows[at + 1 :])
        assert (dict(found.unknown), list(found.faults)) == (unknown, [] if "ID" in wrong else [at])


@pytest.mark.parametrize(
    ("row", "column"),
    [
        (b'{"id":1,"ID":2}', "ID"),
        (b'{"ID":5,"V":1,"ID":6}', "ID"),
        (b'{"v":{"v":1,"V":2},"V":null}', "V"),
        (b'{ "Kind" : "a" ,\t"KIND"\t: "b" }', "kind"),
        (b'{"kind":"a","k\\u0069nd":"b"}', "kind"),
        (b'{"ID":1,"V":{"ID":2,"id":3}}', None),
        (b'{"ID":1,"V":[{"ID":2},"\\"ID\\":"]}', None),
        (b'{"ID":1,"ID":', None),
        (b'[{"ID":1,"ID":2}]', None),
    ],
)
def test_two_keys_of_a_row_for_one_column_are_found(row, column):
    faults = _check({"ID": 1}, row, {"ID": 2, "V": {}}).faults
    assert [(one, fault.column and fault.column.upper()) for one, fault in faults.items()] == (
        [(1, column.upper())] if column else []
    )


TEXT = st.text(alphabet='ID"\\{}[]:,x \u00e9\u2028', max_size=4)
VALUE = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.dictionaries(TEXT, VALUE, max_size=4), max_size=5), st.booleans(), st.booleans())
def test_keys_are_those_that_a_parser_of_json_finds(rows, is_ascii, is_compact):
    forms = {"ensure_ascii": is_ascii, "separators": (",", ":") if is_compact else (" , ", " : ")}
    body = b"".join(json.dumps(row, **forms).encode() + b"\n" for row in rows)

    found = KeyCheck((TableColumn("ID", "VARIANT"),)).check(body)

    expected = Counter(key for row in rows for key in row if key.upper() != "ID")
    keys = [[key.upper() for key in row] for row in rows]
    assert dict(found.unknown) == dict(expected)
    bad = [row for row, one in enumerate(keys) if one.count("ID") > 1 or (one and "ID" not in one)]
    assert sorted(found.faults) == bad


class TestPolicies:
    def test_fail_refuses_the_first_unknown_key_with_the_columns(self):
        keys = UnknownKeys(COLUMNS, "fail", "ch")
        for _ in range(3):
            assert not keys.check(_body(*BLOCK), "1 to 9")
        with pytest.raises(UnknownColumnsError, match="KIMD") as caught:
            keys.check(_body({"ID": 1, "KIMD": 2}), "2 to 2")
        assert all(
            word in str(caught.value)
            for word in ("'ch'", "2 to 2", "ID, kind, V", "evolve_columns", "'warn'")
        )

    @pytest.mark.parametrize(
        ("columns", "words"), [(20, "C18, C19. "), (21, "C19 and 1 more. "), (22, "C19 and 2 more. ")]
    )
    def test_the_columns_that_there_are_are_named_up_to_twenty(self, columns, words):
        keys = UnknownKeys([TableColumn(f"C{number}", "VARCHAR") for number in range(columns)], "fail", "ch")
        with pytest.raises(UnknownColumnsError) as caught:
            keys.check(_body({"KIMD": 1}), "1 to 1")
        assert words in str(caught.value)

    def test_names_are_bounded_in_number_and_length_and_counted_over_the_blocks(self):
        many, two = (UnknownKeys(COLUMNS, "warn", "ch") for _ in range(2))
        for row in range(30):
            many.check(_body({"ID": 1, f"{row}{'x' * 500}": 2}), "")
        assert len(many.counts) == 20
        assert max(map(len, many.counts)) <= 101
        long, longer = "x" * 100, "x" * 101
        for _ in range(2):
            two.check(_body({"ID": 1, long: 2}, {"ID": 1, longer: 2}), "")
        assert two.counts == {long: 2, f"{long}…": 2}
