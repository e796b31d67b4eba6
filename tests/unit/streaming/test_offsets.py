"""Offset tokens: parse, order, next, follow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, OffsetTokenError
from airflow_provider_snowpipe.streaming.offsets import (
    BatchRowOffset,
    FileLineOffset,
    IntegerOffset,
    LexicographicOffset,
    Offset,
    TopicPartitionOffset,
    offset_class,
)

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
counts = st.integers(0, 10**18)
offsets = st.one_of(
    st.builds(IntegerOffset, counts),
    st.builds(FileLineOffset, names, counts),
    st.builds(TopicPartitionOffset, names, counts, counts),
    st.builds(BatchRowOffset, counts, counts),
    st.builds(LexicographicOffset, names),
)


@given(offsets)
def test_a_token_reads_back_as_the_position_it_was_written_from(offset: Offset) -> None:
    assert type(offset).parse(str(offset)) == offset


@pytest.mark.parametrize(
    ("here", "target", "steps"),
    [
        (IntegerOffset(7), IntegerOffset(10), 3),
        (FileLineOffset("a", 7), FileLineOffset("a", 10), 3),
        (FileLineOffset("a", 7), FileLineOffset("b", 10), None),
        (TopicPartitionOffset("t", 1, 7), TopicPartitionOffset("t", 1, 10), 3),
        (TopicPartitionOffset("t", 1, 7), TopicPartitionOffset("t", 2, 10), None),
        (BatchRowOffset(1, 7), BatchRowOffset(1, 10), 3),
        (BatchRowOffset(1, 7), BatchRowOffset(2, 10), None),
        (LexicographicOffset("a"), LexicographicOffset("b"), None),
    ],
    ids=str,
)
def test_distance_is_reported_only_where_the_format_knows_it(
    here: Offset, target: Offset, steps: int | None
) -> None:
    assert here.steps_to(target) == steps


@given(offsets)
def test_next_is_later_and_follows_directly(offset: Offset) -> None:
    assert offset < offset.next()
    assert offset.next() > offset
    assert offset.next().follows(offset)
    assert not offset.follows(offset.next())


@given(st.builds(FileLineOffset, names, counts), st.builds(FileLineOffset, names, counts))
def test_file_lines_are_ordered_by_file_and_then_line(a: FileLineOffset, b: FileLineOffset) -> None:
    assert (a < b) == ((a.file, a.line) < (b.file, b.line))
    assert (a <= b) == (not b < a)


def test_the_order_of_numbers_is_not_the_order_of_their_text() -> None:
    assert IntegerOffset(9) < IntegerOffset(10)
    assert FileLineOffset("a.log", 9) < FileLineOffset("a.log", 10)
    assert BatchRowOffset(9, 5) < BatchRowOffset(10, 1)
    assert LexicographicOffset("10") < LexicographicOffset("9")


def test_a_file_name_may_hold_colons() -> None:
    assert FileLineOffset.parse("a:b.log:20") == FileLineOffset("a:b.log", 20)
    assert TopicPartitionOffset.parse("a:b:3:20") == TopicPartitionOffset("a:b", 3, 20)


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (IntegerOffset, ""),
        (IntegerOffset, "-1"),
        (IntegerOffset, "+1"),
        (IntegerOffset, "1.0"),
        (IntegerOffset, "007"),
        (IntegerOffset, " 7"),
        (IntegerOffset, "\u0667"),
        (IntegerOffset, "9" * 30),
        (FileLineOffset, "a.log"),
        (FileLineOffset, "a.log:"),
        (FileLineOffset, ":3"),
        (FileLineOffset, "a.log:x"),
        (TopicPartitionOffset, "orders:5"),
        (TopicPartitionOffset, "orders:a:5"),
        (BatchRowOffset, "5"),
        (BatchRowOffset, "5:6:7"),
        (LexicographicOffset, ""),
    ],
)
def test_an_unparsable_token_names_channel_token_and_format(cls: type[Offset], text: str) -> None:
    with pytest.raises(OffsetTokenError) as caught:
        cls.parse(text, channel="c0")
    message = str(caught.value)
    assert "'c0'" in message
    assert repr(text[:200]) in message
    assert cls.format_name in message


def test_positions_of_different_formats_or_partitions_have_no_order() -> None:
    with pytest.raises(TypeError):
        _ = IntegerOffset(1) < BatchRowOffset(1, 1)  # type: ignore[operator]
    with pytest.raises(OffsetTokenError, match="different partitions"):
        _ = TopicPartitionOffset("t", 1, 5) < TopicPartitionOffset("t", 2, 6)


def test_the_first_line_of_a_later_file_follows_any_line_of_an_earlier_one() -> None:
    assert FileLineOffset("b.log", 1).follows(FileLineOffset("a.log", 17))
    assert not FileLineOffset("b.log", 2).follows(FileLineOffset("a.log", 17))
    assert BatchRowOffset(3, 1).follows(BatchRowOffset(1, 9))
    assert not IntegerOffset(12).follows(IntegerOffset(10))


def test_a_callers_own_class_is_found_by_its_dotted_path() -> None:
    path = "airflow_provider_snowpipe.streaming.offsets.IntegerOffset"
    assert offset_class(path) is IntegerOffset


@pytest.mark.parametrize(
    "name", ["", "kafka", "no_such_module.Class", "json.JSONDecoder", "os.nothing", "..Class", None, 7]
)
def test_an_unknown_format_is_refused_with_the_known_ones(name: object) -> None:
    with pytest.raises(ConfigurationError, match="offset format"):
        offset_class(name)
