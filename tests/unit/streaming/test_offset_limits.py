"""Offset tokens at the edges of their formats."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, OffsetTokenError
from airflow_provider_snowpipe.streaming.offsets import (
    BatchRowOffset,
    FileLineOffset,
    IntegerOffset,
    LexicographicOffset,
    Offset,
    TopicPartitionOffset,
    known_formats,
    offset_class,
)


@pytest.mark.parametrize("digits", ["0", "1", "10", "9" * 19])
def test_number_of_up_to_nineteen_digits_is_read(digits: str) -> None:
    assert IntegerOffset.parse(digits) == IntegerOffset(int(digits))


@pytest.mark.parametrize("digits", ["00", "01", "1" * 20, "٣", "²"])
def test_number_of_another_form_is_refused(digits: str) -> None:
    with pytest.raises(OffsetTokenError):
        IntegerOffset.parse(digits)


@pytest.mark.parametrize(
    ("kind", "text", "offset"),
    [
        (FileLineOffset, "a:0", FileLineOffset("a", 0)),
        (TopicPartitionOffset, "t:0:0", TopicPartitionOffset("t", 0, 0)),
        (BatchRowOffset, "0:0", BatchRowOffset(0, 0)),
        (LexicographicOffset, "0", LexicographicOffset("0")),
    ],
)
def test_smallest_position_is_a_position(kind: type[Offset], text: str, offset: Offset) -> None:
    assert kind.parse(text) == offset
    assert str(offset) == text


@pytest.mark.parametrize(
    "arguments",
    [
        (IntegerOffset, -1),
        (FileLineOffset, "a", -1),
        (FileLineOffset, "", 0),
        (TopicPartitionOffset, "t", -1, 0),
        (TopicPartitionOffset, "t", 0, -1),
        (TopicPartitionOffset, "", 0, 0),
        (BatchRowOffset, -1, 0),
        (BatchRowOffset, 0, -1),
        (LexicographicOffset, ""),
    ],
)
def test_position_below_the_smallest_is_refused(arguments: tuple[type[Offset], object]) -> None:
    kind, *values = arguments
    with pytest.raises(ConfigurationError):
        kind(*values)


@pytest.mark.parametrize("text", [":1:2", "t::2", "t:1:", "1:2", "t:x:2", "t:1:x"])
def test_partition_token_needs_all_its_parts(text: str) -> None:
    with pytest.raises(OffsetTokenError):
        TopicPartitionOffset.parse(text)


@pytest.mark.parametrize("text", [":2", "1:", "x:2", "1:x"])
def test_batch_token_needs_both_numbers(text: str) -> None:
    with pytest.raises(OffsetTokenError):
        BatchRowOffset.parse(text)


@pytest.mark.parametrize(
    ("previous", "later", "follows"),
    [
        (FileLineOffset("a", 5), FileLineOffset("a", 7), False),
        (FileLineOffset("b", 5), FileLineOffset("a", 1), False),
        (FileLineOffset("a", 5), FileLineOffset("a", 1), False),
        (FileLineOffset("a", 5), FileLineOffset("b", 0), False),
        (BatchRowOffset(1, 5), BatchRowOffset(1, 7), False),
        (BatchRowOffset(2, 5), BatchRowOffset(1, 1), False),
        (BatchRowOffset(1, 5), BatchRowOffset(1, 1), False),
        (BatchRowOffset(1, 5), BatchRowOffset(2, 0), False),
        (BatchRowOffset(1, 5), BatchRowOffset(3, 1), True),
        (IntegerOffset(5), IntegerOffset(5), False),
        (TopicPartitionOffset("t", 0, 5), TopicPartitionOffset("t", 0, 7), False),
        (LexicographicOffset("a"), LexicographicOffset("c"), True),
        (LexicographicOffset("a"), LexicographicOffset("a"), False),
    ],
)
def test_only_what_comes_next_follows(previous: Offset, later: Offset, follows: bool) -> None:
    assert later.follows(previous) is follows


def test_partitions_are_compared_by_topic_and_number() -> None:
    here = TopicPartitionOffset("t", 1, 5)

    assert here < TopicPartitionOffset("t", 1, 6)
    assert not here < TopicPartitionOffset("t", 1, 5)
    assert here.steps_to(TopicPartitionOffset("t", 1, 5)) == 0
    assert here.steps_to(TopicPartitionOffset("u", 1, 6)) is None
    with pytest.raises(OffsetTokenError):
        _ = here < TopicPartitionOffset("u", 1, 6)
    with pytest.raises(TypeError):
        _ = here < IntegerOffset(6)


def test_every_known_format_has_its_class() -> None:
    assert {offset_class(name).format_name for name in known_formats()} == known_formats()
    assert len(known_formats()) == 9


def test_class_that_is_no_offset_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        offset_class("pathlib.Path")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: FileLineOffset("a", -1), "line"),
        (lambda: TopicPartitionOffset("t", -1, 0), "partition"),
        (lambda: TopicPartitionOffset("t", 0, -1), "offset"),
        (lambda: BatchRowOffset(-1, 0), "batch"),
        (lambda: BatchRowOffset(0, -1), "row"),
    ],
)
def test_negative_numbers_are_refused_by_name(make: Callable[[], Offset], name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} is -1: "):
        make()


def test_next_text_is_the_smallest_one_behind() -> None:
    assert LexicographicOffset("a").next() == LexicographicOffset("a\0")
