import pytest

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, OffsetTokenError
from airflow_provider_snowpipe.streaming.offsets import (
    BatchDigestOffset,
    IntegerLayoutOffset,
    IntegerOffset,
    LexicographicOffset,
    TextLayoutOffset,
    offset_class,
)


def _token(batch, row, **more):
    return BatchDigestOffset(batch, row, 4, 0x9F3AC1D2, "5d41402a", **more)


@pytest.mark.parametrize(
    "text", ["17:5000/4-9f3ac1d2-5d41402a-0", "0:1/0-00000000-00000000-12-end", BatchDigestOffset.example]
)
def test_token_is_written_as_it_was_read(text):
    assert str(BatchDigestOffset.parse(text)) == text


def test_token_is_parsed_into_batch_rows_and_digest():
    token = BatchDigestOffset.parse("17:5000/4-9f3ac1d2-5d41402a-3-end")

    assert token == _token(17, 5000, rejected_before=3, final=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "17:5000",
        "17:5000/4-9F3AC1D2-5d41402a-0",
        "17:5000/4-9f3ac1d-5d41402a-0",
        "017:5000/4-9f3ac1d2-5d41402a-0",
        "17:5000/4-9f3ac1d2-5d41402a-0-fin",
        "17:5000/4-9f3ac1d2-5d41402a-0\n",
        "-1:5000/4-9f3ac1d2-5d41402a-0",
    ],
)
def test_another_text_is_refused_with_channel_and_format(text):
    with pytest.raises(OffsetTokenError, match=r"channel 'c'.*'batch:row/digest'"):
        BatchDigestOffset.parse(text, channel="c")


@pytest.mark.parametrize("change", [{"batch": -1}, {"row": -1}, {"digest": 1 << 32}, {"writer": "x"}])
def test_values_that_have_no_token_are_refused(change):
    values = {"batch": 1, "row": 1, "partitions": 1, "digest": 1, "writer": "00000000", **change}
    with pytest.raises(ConfigurationError):
        BatchDigestOffset(**values)


def test_order_is_that_of_batches_and_rows():
    assert _token(1, 9) < _token(2, 1) < _token(2, 2)
    assert _token(2, 2) >= _token(2, 2, final=True)
    assert _token(1, 9).next() == _token(1, 10)
    assert _token(2, 1).follows(_token(1, 9))
    assert not _token(2, 2).follows(_token(1, 9))
    assert _token(1, 9).steps_to(_token(1, 12)) == 3
    assert _token(1, 9).steps_to(_token(2, 12)) is None


@pytest.mark.parametrize(
    ("kind", "text", "position"),
    [
        (IntegerLayoutOffset, "120455/4", IntegerOffset(120455)),
        (TextLayoutOffset, "a/b/12", LexicographicOffset("a/b")),
    ],
)
def test_layout_token_is_a_position_and_a_number_of_partitions(kind, text, position):
    token = kind.parse(text)

    assert (token.position, str(token)) == (position, text)
    assert token < token.next()
    assert offset_class(kind.format_name) is kind


@pytest.mark.parametrize("text", ["5", "/4", "x/4", "5/", "5/0", "5/04", "5/-1"])
def test_layout_token_of_another_form_is_refused(text):
    with pytest.raises(OffsetTokenError, match="integer/partitions"):
        IntegerLayoutOffset.parse(text)


def test_positions_of_different_layouts_have_no_order():
    with pytest.raises(OffsetTokenError, match="different numbers of partitions"):
        assert IntegerLayoutOffset.parse("5/4") < IntegerLayoutOffset.parse("6/8")


def test_formats_are_found_by_name():
    assert offset_class("batch:row/digest") is BatchDigestOffset
    with pytest.raises(ConfigurationError, match="batch:row/digest, file:line"):
        offset_class("nonsense")
