"""Positions: parse, order, next, follow."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, OffsetTokenError
from airflow_provider_snowpipe.streaming.offsets import (
    BatchDigestOffset,
    BatchRowOffset,
    FileLineOffset,
    IntegerOffset,
    LexicographicOffset,
    TopicPartitionOffset,
    UnitOffset,
    known_formats,
    offset_class,
    offset_class_of_code,
)
from tests.refusals import refused

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
counts = st.integers(0, 10**18)
offsets = st.one_of(
    st.builds(IntegerOffset, counts),
    st.builds(FileLineOffset, names, counts),
    st.builds(UnitOffset, counts.map(lambda count: count + 1), names, counts),
    st.builds(TopicPartitionOffset, names, counts, counts),
    st.builds(BatchRowOffset, counts, counts),
    st.builds(LexicographicOffset, names),
)


def topic(name, partition, offset):
    return TopicPartitionOffset(name, partition, offset)


def share(batch, row, **more):
    return BatchDigestOffset(batch, row, 0x9F3AC1D2, **more)


@settings(max_examples=50)
@given(offsets)
def test_a_token_reads_back_and_the_next_one_is_later_and_follows_directly(offset):
    assert type(offset).parse(str(offset)) == offset
    assert offset < offset.next()
    assert offset.next() > offset
    assert offset.next().follows(offset)
    assert not offset.follows(offset.next())


@settings(max_examples=50)
@given(st.builds(FileLineOffset, names, counts), st.builds(FileLineOffset, names, counts))
def test_file_lines_are_ordered_by_file_and_then_line(a, b):
    assert (a < b) == ((a.file, a.line) < (b.file, b.line))
    assert (a <= b) == (not b < a)


def test_tokens_at_the_edges_of_their_formats_are_read_and_written():
    for text, offset in {
        **{digits: IntegerOffset(int(digits)) for digits in ("0", "1", "10", "9" * 19)},
        "a:0": FileLineOffset("a", 0),
        "a:b.log:20": FileLineOffset("a:b.log", 20),
        "17/a/b:c.log:20": UnitOffset(17, "a/b:c.log", 20),
        "t:0:0": topic("t", 0, 0),
        "a:b:3:20": topic("a:b", 3, 20),
        "0:0": BatchRowOffset(0, 0),
        "x": LexicographicOffset("x"),
        "17:5000/9f3ac1d2-end": share(17, 5000, final=True),
        "0:1/00000000": BatchDigestOffset(0, 1, 0),
    }.items():
        read = type(offset).parse(text)
        assert (read, str(read)) == (offset, text)
    assert str(BatchDigestOffset.parse(BatchDigestOffset.example)) == BatchDigestOffset.example


UNREADABLE = {
    IntegerOffset: ["", "-1", "+1", "1.0", "00", "007", " 7", "\u0667", "²", "1" * 20, "9" * 30],
    FileLineOffset: ["a.log", "a.log:", ":3", "a.log:x"],
    TopicPartitionOffset: ["orders:5", ":1:2", "t::2", "t:1:", "1:2", "t:x:2", "t:1:x"],
    BatchRowOffset: ["5", "5:6:7", ":2", "1:", "x:2", "1:x"],
    LexicographicOffset: [""],
    BatchDigestOffset: [
        *("", "17:5000", "17:5000/9F3AC1D2", "17:5000/9f3ac1d", "017:5000/9f3ac1d2"),
        *("17:5000/9f3ac1d2-fin", "17:5000/9f3ac1d2\n", "-1:5000/9f3ac1d2", "17:5000/4-9f3ac1d2-5d41402a-0"),
    ],
    UnitOffset: ["a.log:3", "0/a.log:3", "01/a.log:3", "1/a.log", "1/:3", "/a:3", "1/a:x", ""],
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_an_unparsable_token_names_channel_token_and_format(kind):
    for text in UNREADABLE[kind]:
        refused(
            OffsetTokenError, lambda given: kind.parse(given, channel="c0"), [text],
            "'c0'", repr(text[:200]), f"'{kind.format_name}'",
        )  # fmt: skip
        with pytest.raises(OffsetTokenError, match=r"^offset token"):
            kind.parse(text)


def test_position_that_there_is_not_cannot_be_built_and_a_number_is_named():
    for make, name in [
        (lambda: IntegerOffset(-1), ""),
        (lambda: FileLineOffset("a", -1), "line is -1: "),
        (lambda: FileLineOffset("", 0), ""),
        (lambda: topic("t", -1, 0), "partition is -1: "),
        (lambda: topic("t", 0, -1), "offset is -1: "),
        (lambda: topic("", 0, 0), ""),
        (lambda: BatchRowOffset(-1, 0), "batch is -1: "),
        (lambda: BatchRowOffset(0, -1), "row is -1: "),
        (lambda: LexicographicOffset(""), ""),
        (lambda: UnitOffset(0, "a", 1), "unit is 0: "),
        (lambda: UnitOffset(1, "", 1), ""),
        (lambda: UnitOffset(1, "a", -1), "line is -1: "),
        *((lambda change=change: BatchDigestOffset(**{**SHARE, **change}), "") for change in NO_SHARE),
    ]:
        with pytest.raises(ConfigurationError) as refusal:
            make()
        assert str(refusal.value).startswith(name)


SHARE = {"batch": 1, "row": 1, "digest": 1}
NO_SHARE = [{"batch": -1}, {"row": -1}, {"digest": 1 << 32}]


def test_only_what_comes_next_follows():
    expected = {
        (FileLineOffset("a", 5), FileLineOffset("a", 7)): False,
        (FileLineOffset("b", 5), FileLineOffset("a", 1)): False,
        (FileLineOffset("a", 5), FileLineOffset("a", 1)): False,
        (FileLineOffset("a", 5), FileLineOffset("b", 0)): False,
        (FileLineOffset("a", 17), FileLineOffset("b", 1)): True,
        (FileLineOffset("a", 17), FileLineOffset("b", 2)): False,
        (BatchRowOffset(1, 5), BatchRowOffset(1, 7)): False,
        (BatchRowOffset(2, 5), BatchRowOffset(1, 1)): False,
        (BatchRowOffset(1, 5), BatchRowOffset(1, 1)): False,
        (BatchRowOffset(1, 5), BatchRowOffset(2, 0)): False,
        (BatchRowOffset(1, 5), BatchRowOffset(3, 1)): True,
        (IntegerOffset(5), IntegerOffset(5)): False,
        (IntegerOffset(10), IntegerOffset(12)): False,
        (topic("t", 0, 5), topic("t", 0, 7)): False,
        (LexicographicOffset("a"), LexicographicOffset("c")): True,
        (LexicographicOffset("a"), LexicographicOffset("a")): False,
        **{
            (share(3, 7), share(*token)): follows
            for token, follows in {
                (3, 8): True, (3, 7): False, (3, 6): False, (3, 9): False, (3, 1): False,
                (4, 1): True, (9, 1): True, (4, 2): False, (2, 1): False, (2, 8): False,
            }.items()
        },
        (share(3, 0), share(3, 1)): True,
    }  # fmt: skip
    assert {(one, later): later.follows(one) for one, later in expected} == expected


def test_distance_is_reported_only_where_the_format_knows_it():
    expected = {
        (IntegerOffset(7), IntegerOffset(10)): 3,
        (FileLineOffset("a", 7), FileLineOffset("a", 10)): 3,
        (FileLineOffset("a", 7), FileLineOffset("b", 10)): None,
        (topic("t", 1, 7), topic("t", 1, 10)): 3,
        (topic("t", 1, 5), topic("t", 1, 5)): 0,
        (topic("t", 1, 7), topic("t", 2, 10)): None,
        (topic("t", 1, 7), topic("u", 1, 8)): None,
        (BatchRowOffset(1, 7), BatchRowOffset(1, 10)): 3,
        (BatchRowOffset(1, 7), BatchRowOffset(2, 10)): None,
        (LexicographicOffset("a"), LexicographicOffset("b")): None,
        (share(1, 9), share(1, 12)): 3,
        (share(1, 9), share(2, 12)): None,
    }
    assert {(here, target): here.steps_to(target) for here, target in expected} == expected


def test_numbers_are_ordered_as_numbers_and_texts_as_texts():
    for earlier, later in [
        (IntegerOffset(9), IntegerOffset(10)),
        (FileLineOffset("a.log", 9), FileLineOffset("a.log", 10)),
        (BatchRowOffset(9, 5), BatchRowOffset(10, 1)),
        (LexicographicOffset("10"), LexicographicOffset("9")),
        (topic("t", 1, 5), topic("t", 1, 6)),
        (share(1, 9), share(2, 1)),
        (share(2, 1), share(2, 2)),
    ]:
        assert earlier < later
        assert not later < earlier
        assert not earlier < earlier
        assert later >= earlier
    assert share(2, 2) >= share(2, 2, final=True)


def test_positions_of_different_formats_or_partitions_have_no_order():
    for one, other in [
        (IntegerOffset(1), BatchRowOffset(1, 1)),
        (topic("t", 1, 5), IntegerOffset(6)),
    ]:
        with pytest.raises(TypeError):
            _ = one < other
    for one, other in [
        (topic("t", 1, 5), topic("t", 2, 6)),
        (topic("t", 1, 5), topic("u", 1, 6)),
    ]:
        with pytest.raises(OffsetTokenError, match="different"):
            _ = one < other


def test_next_position_is_the_smallest_one_behind():
    assert LexicographicOffset("a").next() == LexicographicOffset("a\0")
    assert share(3, 7, final=True).next() == share(3, 8)
    assert str(UnitOffset(3, "a", 7).next()) == "3/a:8"


def test_units_are_ordered_by_their_numbers_whatever_their_files_are_called():
    assert UnitOffset(9, "b", 5) < UnitOffset(10, "a", 1)
    assert UnitOffset(3, "a", 7) == UnitOffset(3, "b", 7)
    assert [UnitOffset(4, "a", number).follows(UnitOffset(3, "z", 9)) for number in (0, 1, 21)] == [
        False,
        True,
        True,
    ]


def test_formats_are_found_by_name_and_a_callers_own_class_by_its_dotted_path():
    assert {offset_class(name).format_name for name in known_formats()} == known_formats()
    assert len(known_formats()) == 7
    assert offset_class("airflow_provider_snowpipe.streaming.offsets.IntegerOffset") is IntegerOffset
    unknown = ["", "kafka", "no_such_module.Class", "json.JSONDecoder", "os.nothing", "..Class", None, 7]
    refused(ConfigurationError, offset_class, [*unknown, "pathlib.Path"], "offset format")
    refused(ConfigurationError, offset_class, ["nonsense"], "batch:row/digest, file:line")


def test_every_format_has_a_letter_of_its_own_by_which_a_checkpoint_names_it():
    classes = [offset_class(name) for name in known_formats()]

    assert {offset_class_of_code(one.code) for one in classes} == set(classes)
    assert offset_class_of_code("x") is None
