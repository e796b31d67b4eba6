"""Keys of rows that match no column of the table."""

import json

import pytest

from airflow_provider_snowpipe.streaming.errors import UnknownColumnsError
from airflow_provider_snowpipe.streaming.key_check import KeyCheck, UnknownKeys
from airflow_provider_snowpipe.streaming.table_columns import TableColumn

COLUMNS = (TableColumn("ID", "NUMBER(38,0)"), TableColumn("kind", "VARCHAR"), TableColumn("V", "VARIANT"))


def _body(*rows):
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def _look(*rows, check=None):
    return (check or KeyCheck(COLUMNS)).look(_body(*rows), len(rows))


@pytest.mark.parametrize(
    ("rows", "unknown", "strangers"),
    [
        ([{"ID": 1, "KIND": "x"}, {"Id": 2, "kind": None}], {}, ()),
        ([{"ID": 1, "KIMD": "x"}, {"id": 2, "KIMD": "y"}, {"id": 3}], {"KIMD": 2}, ()),
        ([{"ID": 1, "V": {"a": {"b": 1}, "KIMD": 2}, "KIND": '"X": 1'}], {}, ()),
        ([{"ID": 1, "NEVER": None}, {"ID": 2, "NEVER": None}], {"NEVER": 2}, ()),
        ([{"ID": 1}, {}, {"A": 1, "B": 2}, {"ID": None}, {"A": 3}], {"A": 2, "B": 1}, (2, 4)),
        ([{"schema": {}, "payload": {"ID": 1}}], {"schema": 1, "payload": 1}, (0,)),
        ([{"ID": 1, "KIMD": "x"}, {"ID": "2", "KIMD": 5}, {"A": 1}], {"KIMD": 2, "A": 1}, (2,)),
        ([{"ID": 1, "KIMD": "x"}, b'{"ID":', b"\xff"], {"KIMD": 1}, ()),
        ([b'{ "ID" : 1 , "KIMD" : 2 }'], {"KIMD": 1}, ()),
    ],
    ids=["none", "some", "nested", "null", "strangers", "envelope", "types differ", "broken", "spaces"],
)
def test_keys_are_counted_by_the_rows_that_have_them_and_rows_without_a_known_key_are_found(
    rows, unknown, strangers
):
    found = _look(*rows)

    assert (dict(found.unknown), tuple(found.strangers)) == (unknown, strangers)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"ID": 5, "KIND": "x", "KIMD": "y"}, {"KIMD": 1}),
        ({"ID": 5, "KIMD": "y"}, {"KIMD": 1}),
    ],
    ids=["a key more", "another key in the last row"],
)
def test_block_that_differs_from_the_one_before_is_read(changed, expected):
    check = KeyCheck(COLUMNS)
    alike = [{"ID": row, "KIND": "x"} for row in range(100)]
    for _ in range(3):
        assert _look(*alike, check=check).unknown == {}

    assert dict(_look(*alike[:-1], changed, check=check).unknown) == expected


def test_block_that_is_like_the_one_before_counts_all_its_rows_unread(monkeypatch):
    check = KeyCheck(COLUMNS)
    rows = [{"ID": row, "KIMD": "x"} for row in range(100)]
    first = _look(*rows, check=check)
    monkeypatch.setattr(check, "_read", None)

    assert first.unknown == _look(*rows, check=check).unknown == {"KIMD": 100}


def test_hidden_swap_is_found_by_fail_in_every_block_and_by_warn_in_the_eighth():
    alike = [{"ID": row, "KIND": "x"} for row in range(100)]
    swapped = [{"ID": 1, "KIMD": "x"} if row == 30 else one for row, one in enumerate(alike)]
    warns, fails = KeyCheck(COLUMNS), KeyCheck(COLUMNS, reads_all=True)
    for check in (warns, fails):
        _look(*alike, check=check)

    assert [dict(_look(*swapped, check=warns).unknown) for _ in range(8)].count({"KIMD": 1}) == 1
    assert dict(_look(*swapped, check=fails).unknown) == {"KIMD": 1}


def test_policy_fail_refuses_the_first_unknown_key_and_names_it_with_the_columns():
    keys = UnknownKeys(COLUMNS, "fail", "ch")
    keys.look(_body({"ID": 1}), 1, "1 to 1")
    with pytest.raises(UnknownColumnsError, match="KIMD") as caught:
        keys.look(_body({"ID": 1, "KIMD": 2}), 1, "2 to 2")
    assert all(word in str(caught.value) for word in ("'ch'", "2 to 2", "ID, kind, V", "evolve_columns"))


def test_names_are_bounded_in_number_and_length():
    keys = UnknownKeys(COLUMNS, "warn", "ch")
    for row in range(30):
        keys.look(_body({"ID": 1, f"{row}{'x' * 500}": 2}), 1, "")
    assert len(keys.counts) == 20
    assert max(map(len, keys.counts)) <= 101
