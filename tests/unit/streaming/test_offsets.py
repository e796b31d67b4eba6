"""Positions: parse, order, next, follow; and the state machine of a channel."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming import errors
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
from airflow_provider_snowpipe.streaming.progress import ChannelProgress
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


def test_tokens_at_the_edges_of_their_formats_are_read_and_written():
    for text, offset in {
        **{digits: IntegerOffset(int(digits)) for digits in ("0", "1", "10", "9" * 19)},
        "a:0": FileLineOffset("a", 0),
        "a:b.log:20": FileLineOffset("a:b.log", 20),
        "17/a/b:c.log:20": UnitOffset(17, "a/b:c.log", 20),
        "t:0:0": topic("t", 0, 0),
        "a:b:3:20": topic("a:b", 3, 20),
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
        words = ("'c0'", repr(text[:200]), f"'{kind.format_name}'")
        refused(errors.OffsetTokenError, lambda given: kind.parse(given, channel="c0"), [text], *words)
        with pytest.raises(errors.OffsetTokenError, match=r"^offset token"):
            kind.parse(text)


def test_position_that_there_is_not_cannot_be_built_and_a_number_is_named():
    for kind, values, name in [
        (IntegerOffset, (-1,), ""),
        (FileLineOffset, ("a", -1), "line is -1: "),
        (FileLineOffset, ("", 0), ""),
        (TopicPartitionOffset, ("t", 0, -1), "offset is -1: "),
        (TopicPartitionOffset, ("", 0, 0), ""),
        (BatchRowOffset, (0, -1), "row is -1: "),
        (LexicographicOffset, ("",), ""),
        (UnitOffset, (0, "a", 1), "unit is 0: "),
        (UnitOffset, (1, "a", -1), "line is -1: "),
        (BatchDigestOffset, (1, -1, 1), ""),
        (BatchDigestOffset, (1, 1, 1 << 32), ""),
    ]:
        with pytest.raises(errors.ConfigurationError) as refusal:
            kind(*values)
        assert str(refusal.value).startswith(name)


FOLLOWING = [
    (FileLineOffset, ("a", 5), [("a", 7), ("b", 0)], []),
    (FileLineOffset, ("b", 5), [("a", 1)], []),
    (FileLineOffset, ("a", 17), [("b", 2), ("a", 1)], [("b", 1)]),
    (BatchRowOffset, (1, 5), [(1, 7), (1, 1), (2, 0)], [(3, 1)]),
    (BatchRowOffset, (2, 5), [(1, 1)], []),
    (IntegerOffset, (5,), [(5,), (7,)], []),
    (TopicPartitionOffset, ("t", 0, 5), [("t", 0, 7)], []),
    (LexicographicOffset, ("a",), [("a",)], [("c",)]),
    (share, (3, 7), [(3, 7), (3, 6), (3, 9), (3, 1), (4, 2), (2, 1), (2, 8)], [(3, 8), (4, 1), (9, 1)]),
    (share, (3, 0), [], [(3, 1)]),
    (UnitOffset, (3, "z", 9), [(4, "a", 0)], [(4, "a", 1), (4, "a", 21)]),
]


@pytest.mark.parametrize(("kind", "here", "others", "following"), FOLLOWING)
def test_only_what_comes_next_follows(kind, here, others, following):
    assert [one for one in (*others, *following) if kind(*one).follows(kind(*here))] == following
    assert LexicographicOffset("a").next() == LexicographicOffset("a\0")
    assert share(3, 7, final=True).next() == share(3, 8)
    assert str(UnitOffset(3, "a", 7).next()) == "3/a:8"


def test_distance_is_reported_only_where_the_format_knows_it():
    expected = {
        (IntegerOffset(7), IntegerOffset(10)): 3,
        (FileLineOffset("a", 7), FileLineOffset("a", 10)): 3,
        (FileLineOffset("a", 7), FileLineOffset("b", 10)): None,
        (topic("t", 1, 7), topic("t", 1, 10)): 3,
        (topic("t", 1, 7), topic("t", 2, 10)): None,
        (topic("t", 1, 7), topic("u", 1, 8)): None,
        (BatchRowOffset(1, 7), BatchRowOffset(1, 10)): 3,
        (BatchRowOffset(1, 7), BatchRowOffset(2, 10)): None,
        (share(1, 9), share(2, 12)): None,
    }
    assert {(here, target): here.steps_to(target) for here, target in expected} == expected


def test_numbers_are_ordered_as_numbers_and_texts_as_texts_within_one_format_and_partition():
    for earlier, later in [
        (IntegerOffset(9), IntegerOffset(10)),
        (FileLineOffset("a.log", 9), FileLineOffset("a.log", 10)),
        (LexicographicOffset("10"), LexicographicOffset("9")),
        (share(1, 9), share(2, 1)),
        (UnitOffset(9, "b", 5), UnitOffset(10, "a", 1)),
    ]:
        assert earlier < later
        assert not later < earlier
        assert not earlier < earlier
        assert later >= earlier
    assert share(2, 2) >= share(2, 2, final=True)
    assert UnitOffset(3, "a", 7) == UnitOffset(3, "b", 7)
    for one, other in [(IntegerOffset(1), BatchRowOffset(1, 1)), (topic("t", 1, 5), IntegerOffset(6))]:
        with pytest.raises(TypeError):
            _ = one < other
    for other in (topic("t", 2, 6), topic("u", 1, 6)):
        with pytest.raises(errors.OffsetTokenError, match="different"):
            _ = topic("t", 1, 5) < other


def test_formats_are_found_by_name_or_letter_and_a_callers_own_class_by_its_dotted_path():
    classes = [offset_class(name) for name in known_formats()]
    assert {one.format_name for one in classes} == known_formats()
    assert len({one.code for one in classes}) == 7
    assert {offset_class_of_code(one.code) for one in classes} == set(classes)
    assert offset_class_of_code("x") is None
    assert offset_class("airflow_provider_snowpipe.streaming.offsets.IntegerOffset") is IntegerOffset
    unknown = ["", "kafka", "no_such_module.Class", "json.JSONDecoder", "os.nothing", "..Class", None, 7]
    refused(errors.ConfigurationError, offset_class, [*unknown, "pathlib.Path"], "offset format")
    refused(errors.ConfigurationError, offset_class, ["nonsense"], "batch:row/digest, file:line")


def at(value):
    return None if value is None else IntegerOffset(value)


class TestProgress:
    def test_takes_rows_only_directly_after_the_last_ones_or_with_gaps_where_the_source_has_them(self):
        for committed, start, end in [(None, 0, 9), (None, 7, 7), (4, 5, 9)]:
            progress = ChannelProgress("c", at(committed))
            progress.accept(at(start), at(end))
            assert progress.sent == at(end)
            progress.accept(at(end + 1), at(end + 1))
        for committed, start, end in [(4, 4, 9), (4, 3, 9), (4, 6, 9), (4, 5, 4), (None, 5, 4)]:
            progress = ChannelProgress("c", at(committed))
            with pytest.raises(errors.ContinuityError, match="'c'"):
                progress.accept(at(start), at(end))
            assert (progress.sent, progress.committed) == (None, at(committed))
        progress = ChannelProgress("c", at(4), gaps_legal=True)
        for start, end in [(8, 9), (10, 11), (20, 20)]:
            progress.accept(at(start), at(end))
        assert progress.sent == at(20)
        with pytest.raises(errors.ContinuityError):
            progress.accept(at(20), at(21))

    def test_stays_or_advances_and_a_token_that_went_back_is_an_error(self):
        for before, after in [(None, None), (None, 0), (5, 5), (5, 6)]:
            progress = ChannelProgress("c", at(before))
            progress.observe(at(after))
            assert progress.committed == at(after)
        for before, after in [(5, 4), (5, None), (0, None)]:
            progress = ChannelProgress("c", at(before))
            with pytest.raises(errors.TokenWentBackError, match="'c'"):
                progress.observe(at(after))
            assert progress.committed == at(before)
