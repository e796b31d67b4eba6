"""The token that records that files are being loaded by COPY or by a pipe."""

import datetime as dt

import pytest

from airflow_provider_snowpipe.streaming.copy_intent import CopyIntent
from airflow_provider_snowpipe.streaming.errors import OffsetTokenError
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset

SINCE = dt.datetime(2026, 3, 1, 12, 30, 1, 234567, dt.UTC)
WRITTEN = '"copy_to":"é.csv","since":"2026-03-01T12:30:01.234+00:00"'


@pytest.mark.parametrize(
    ("intent", "token"),
    [
        (CopyIntent(None, "é.csv", SINCE, 3), f'{{"copy_after":null,{WRITTEN},"rows":3}}'),
        (
            CopyIntent("a:5", "é.csv", SINCE, 0, "DB.S.P"),
            f'{{"copy_after":"a:5",{WRITTEN},"pipe":"DB.S.P","rows":0}}',
        ),
    ],
)
def test_intent_is_read_as_it_was_written(intent, token):
    read = CopyIntent.parse(token)

    assert str(intent) == str(read) == token
    assert read is not None
    assert (read.after, read.last_file) == (intent.after, intent.last_file)
    assert (read.pipe, read.rows_inserted) == (intent.pipe, intent.rows_inserted)
    assert read.since == SINCE.replace(microsecond=234000)


@pytest.mark.parametrize("channel", [None, "ch"])
def test_position_is_not_read_from_an_intent_and_the_remedy_is_the_load_that_began_it(channel):
    with pytest.raises(OffsetTokenError, match="run the load task") as refused:
        IntegerOffset.parse(str(CopyIntent("5", "a", SINCE, 0)), channel=channel)
    assert str(refused.value).startswith("a load" if channel is None else "channel 'ch': a load")


@pytest.mark.parametrize("token", [None, "", "a:5", "{}", '{"copy_to":"a"}'])
def test_other_tokens_are_no_intents(token):
    assert CopyIntent.parse(token) is None


@pytest.mark.parametrize(
    "token",
    [
        '{"copy_after":',
        '{"copy_after":"a"}',
        '{"copy_after":"a","copy_to":"b","since":5,"rows":1}',
        f'{{"copy_after":"a",{WRITTEN}}}',
    ],
)
def test_what_begins_like_an_intent_and_is_none_is_refused(token):
    with pytest.raises(OffsetTokenError, match="copy_after"):
        CopyIntent.parse(token)
