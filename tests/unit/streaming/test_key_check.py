"""Keys of rows that match no column of the table."""

import json

import pytest

from airflow_provider_snowpipe.streaming.errors import UnknownColumnsError
from airflow_provider_snowpipe.streaming.key_check import KeyCheck, UnknownKeys
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

COLUMNS = (TableColumn("ID", "NUMBER(38,0)"), TableColumn("kind", "VARCHAR"), TableColumn("V", "VARIANT"))
BLOCK = [{"ID": row, "KIND": "x"} for row in range(9)]


def _body(*rows):
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def _check(*rows, check=None):
    return (check or KeyCheck(COLUMNS)).check(_body(*rows), len(rows))


@pytest.fixture
def read(monkeypatch):
    """The rows of each block that was read."""
    blocks = []
    plain = KeyCheck._read
    monkeypatch.setattr(
        KeyCheck, "_read", lambda self, lines: (blocks.append(lines.rows), plain(self, lines))[1]
    )
    return blocks


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
        assert (dict(found.unknown), tuple(found.strangers)) == (unknown, strangers)


@pytest.mark.parametrize(
    ("first", "then", "is_read"),
    [
        (BLOCK, BLOCK, False),
        (BLOCK, BLOCK[:4], False),
        (BLOCK, [*BLOCK[:-1], {"ID": 1}], True),
        (BLOCK, [*BLOCK[:-1], {"ID": 1, "KIMD": 2}], True),
        (BLOCK, [*BLOCK[:-1], {"ID": 1, "KIND": "x", "KIMD": 2}], True),
        (BLOCK, [{"ID": 1, "KIMD": 2}, *BLOCK[1:]], True),
        (BLOCK, [*BLOCK[:5], {"ID": 1, "KIMD": "x"}, *BLOCK[6:]], True),  # in the middle
        # Not all rows have all keys, so their number shows nothing of the next block.
        ([{"ID": 1}, {"ID": 2, "KIND": "x", "V": 3}], [{"ID": 1}, {"ID": 2, "KIND": "x", "V": 3}], True),
        ([{"ID": 1, "KIND": None}], [{"ID": 1, "KIND": None}], True),
        # A text in the form of a key.
        ([{"ID": 1, "KIND": '":'}] * 2, [{"ID": 1, "KIND": "a", "KIMD": 2}] * 2, True),
        ([{}], [{}], True),
    ],
)
def test_a_block_is_read_unless_it_is_like_the_one_before(read, first, then, is_read):
    check = KeyCheck(COLUMNS)
    _check(*first, check=check)
    found = _check(*then, check=check).unknown
    assert read == [len(first), len(then)][: 1 + is_read]
    assert dict(found) == dict(_check(*then).unknown)


def test_block_that_is_like_the_one_before_counts_all_its_rows_unread(read):
    check = KeyCheck(COLUMNS)
    rows = [{"ID": row, "KIMD": "x"} for row in range(100)]

    counted = [dict(_check(*rows, check=check).unknown) for _ in range(2)]

    assert (counted, read) == ([{"KIMD": 100}] * 2, [100])


def test_hidden_swap_is_found_by_fail_in_every_block_and_by_warn_in_the_eighth(read):
    alike = [{"ID": row, "KIND": "x"} for row in range(100)]
    swapped = [{"ID": 1, "KIMD": "x"} if row == 30 else one for row, one in enumerate(alike)]
    warns, fails = KeyCheck(COLUMNS), KeyCheck(COLUMNS, reads_all=True)
    for check in (warns, fails):
        _check(*alike, check=check)

    assert [dict(_check(*swapped, check=warns).unknown) for _ in range(8)].count({"KIMD": 1}) == 1
    assert dict(_check(*swapped, check=fails).unknown) == {"KIMD": 1}
    read.clear()
    seventeen = KeyCheck(COLUMNS)
    for _ in range(17):
        _check(*BLOCK, check=seventeen)
    assert len(read) == 3


def test_the_end_of_a_block_hides_no_row():
    for end in (b"", b"\r\n", b"\n\n"):
        check = KeyCheck(COLUMNS)
        _check(*BLOCK, check=check)
        body = _body(*BLOCK[:-1]) + b'{"ID":1,"KIMD":2}' + end
        assert dict(check.check(body, len(BLOCK)).unknown) == {"KIMD": 1}


def test_some_rows_stand_for_a_block_that_arrow_cannot_read():
    rows = [b'{"ID":', *({"ID": 1, f"K{number}": 1} for number in range(99))]
    assert len(_check(*rows).unknown) == 63


class TestPolicies:
    def test_fail_reads_every_block_and_refuses_the_first_unknown_key_with_the_columns(self, read):
        keys = UnknownKeys(COLUMNS, "fail", "ch")
        for _ in range(3):
            keys.check(_body(*BLOCK), len(BLOCK), "1 to 9")
        assert len(read) == 3
        with pytest.raises(UnknownColumnsError, match="KIMD") as caught:
            keys.check(_body({"ID": 1, "KIMD": 2}), 1, "2 to 2")
        assert all(word in str(caught.value) for word in ("'ch'", "2 to 2", "ID, kind, V", "evolve_columns"))

    @pytest.mark.parametrize(
        ("columns", "words"), [(20, "C18, C19. "), (21, "C19 and 1 more. "), (22, "C19 and 2 more. ")]
    )
    def test_the_columns_that_there_are_are_named_up_to_twenty(self, columns, words):
        keys = UnknownKeys([TableColumn(f"C{number}", "VARCHAR") for number in range(columns)], "fail", "ch")
        with pytest.raises(UnknownColumnsError) as caught:
            keys.check(_body({"KIMD": 1}), 1, "1 to 1")
        assert words in str(caught.value)

    def test_names_are_bounded_in_number_and_length_and_counted_over_the_blocks(self):
        many, two = (UnknownKeys(COLUMNS, "warn", "ch") for _ in range(2))
        for row in range(30):
            many.check(_body({"ID": 1, f"{row}{'x' * 500}": 2}), 1, "")
        assert len(many.counts) == 20
        assert max(map(len, many.counts)) <= 101
        long, longer = "x" * 100, "x" * 101
        for _ in range(2):
            two.check(_body({"ID": 1, long: 2}, {"ID": 1, longer: 2}), 2, "")
        assert two.counts == {long: 2, f"{long}…": 2}
