"""Tokens made of another format's position: with a number of partitions, with a digest."""

from __future__ import annotations

import pytest

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, OffsetTokenError
from airflow_provider_snowpipe.streaming.offsets import (
    FileLineOffset,
    IntegerLayoutOffset,
    IntegerOffset,
    TextLayoutOffset,
    VerifiedFileLineOffset,
)
from airflow_provider_snowpipe.streaming.progress import ChannelProgress

DIGEST = "9f3a1200c4d5e6f7"


def _rows(position: int, partitions: int = 4) -> IntegerLayoutOffset:
    return IntegerLayoutOffset(IntegerOffset(position), partitions)


def _line(file: str, line: int, digest: str = "") -> VerifiedFileLineOffset:
    return VerifiedFileLineOffset(file, line, digest)


@pytest.mark.parametrize("partitions", [1, 9, 10, 2000])
def test_layout_token_keeps_its_number_of_partitions(partitions: int) -> None:
    assert IntegerLayoutOffset.parse(f"5/{partitions}") == _rows(5, partitions)
    assert _rows(5, partitions).next() == _rows(6, partitions)


def test_layout_token_follows_and_counts_as_its_position_does() -> None:
    assert _rows(8).follows(_rows(7))
    assert not _rows(9).follows(_rows(7))
    assert _rows(7).steps_to(_rows(10)) == 3
    assert TextLayoutOffset.parse("a/4").steps_to(TextLayoutOffset.parse("b/4")) is None
    assert _rows(7).sort_key() == IntegerOffset(7).sort_key()


def test_layout_tokens_of_one_number_are_ordered() -> None:
    assert _rows(9) < _rows(10)
    assert not _rows(10) < _rows(10)
    assert not _rows(11) < _rows(10)
    assert _rows(10) >= _rows(10)


def test_layout_token_has_no_order_with_another_format() -> None:
    with pytest.raises(TypeError):
        _ = _rows(1) < IntegerOffset(2)
    with pytest.raises(TypeError):
        _ = _rows(1) < TextLayoutOffset.parse("b/8")


@pytest.mark.parametrize("text", ["5/٤", "5/x", "x/4", "5/0", "5/04", "5/" + "9" * 5000])
def test_layout_token_that_cannot_be_read_names_its_channel(text: str) -> None:
    with pytest.raises(OffsetTokenError, match="'c'"):
        IntegerLayoutOffset.parse(text, channel="c")


def test_digest_is_read_and_written() -> None:
    token = VerifiedFileLineOffset.parse(f"a:b@c.log@{DIGEST}:20")

    assert (token.file, token.line, token.digest) == ("a:b@c.log", 20, DIGEST)
    assert str(token) == f"a:b@c.log@{DIGEST}:20"


@pytest.mark.parametrize("name", ["a.log", "a@9f3a", f"a@{DIGEST.upper()}", f"@{DIGEST}"])
def test_name_without_a_digest_is_a_plain_file(name: str) -> None:
    token = VerifiedFileLineOffset.parse(f"{name}:20")

    assert (token.file, token.line, token.digest) == (name, 20, "")
    assert str(token) == f"{name}:20"


def test_digest_does_not_matter_to_order_and_equality() -> None:
    assert _line("a", 7, DIGEST) == _line("a", 7)
    assert _line("a", 7, DIGEST) < _line("a", 8) < _line("b", 1, DIGEST)
    assert _line("a", 7, DIGEST).sort_key() == ("a", 7)


def test_verified_lines_follow_and_count_as_lines_do() -> None:
    here = _line("a", 7, DIGEST)

    assert here.next() == _line("a", 8)
    assert here.next().digest == ""
    assert here.next().follows(here)
    assert _line("b", 1).follows(here)
    assert not _line("b", 2).follows(here)
    assert here.steps_to(_line("a", 10)) == 3
    assert here.steps_to(_line("b", 10)) is None
    assert here.plain == FileLineOffset("a", 7)


@pytest.mark.parametrize("text", ["a.log", f"a@{DIGEST}", f"a@{DIGEST}:x", ":3", ""])
def test_verified_line_that_cannot_be_read_names_channel_and_format(text: str) -> None:
    with pytest.raises(OffsetTokenError, match=r"'c'.*'file:line/digest'"):
        VerifiedFileLineOffset.parse(text, channel="c")


@pytest.mark.parametrize(("file", "line"), [("", 1), ("a", -1)])
def test_verified_line_that_no_file_has_cannot_be_built(file: str, line: int) -> None:
    with pytest.raises(ConfigurationError):
        _line(file, line)


def test_progress_keeps_the_digest_that_the_service_reported_last() -> None:
    progress = ChannelProgress("c", _line("a", 7))

    progress.observe(_line("a", 7, DIGEST))

    assert str(progress.committed) == f"a@{DIGEST}:7"
