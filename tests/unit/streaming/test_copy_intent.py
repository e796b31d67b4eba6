"""The token that records that files are being loaded by COPY or by a pipe."""

import datetime as dt

from airflow_provider_snowpipe.streaming.checkpoint import position_of
from airflow_provider_snowpipe.streaming.copy_intent import CopyIntent
from airflow_provider_snowpipe.streaming.errors import OffsetTokenError
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset, LexicographicOffset
from airflow_provider_snowpipe.streaming.progress import ChannelStatus
from tests.checkpoints import source_of
from tests.refusals import refused

SINCE = dt.datetime(2026, 3, 1, 12, 30, 1, 234567, dt.UTC)
WRITTEN = '"copy_to":"é.csv","since":"2026-03-01T12:30:01.234+00:00","binding":"b1"'


def test_intent_is_read_as_it_is_written():
    for intent, token in [
        (CopyIntent(None, "é.csv", SINCE, 0, "b1"), f'{{"copy_after":null,{WRITTEN},"rows":0}}'),
        (
            CopyIntent("a:5", "é.csv", SINCE, 7, "b1", "DB.S.P"),
            f'{{"copy_after":"a:5",{WRITTEN},"pipe":"DB.S.P","rows":7}}',
        ),
    ]:
        read = CopyIntent.parse(token)

        assert str(intent) == str(read) == token
        assert (read.after, read.last_file) == (intent.after, intent.last_file)
        assert (read.pipe, read.rows_inserted) == (intent.pipe, intent.rows_inserted)
        assert read.since == SINCE.replace(microsecond=234000)


def test_position_is_not_read_from_an_intent_and_the_remedy_is_the_load_that_began_it():
    intent = str(CopyIntent("5", "a", SINCE, 0, "b1"))
    found = ChannelStatus("ch", "SUCCESS", intent)
    reads = (
        lambda text: source_of(IntegerOffset).start(found),
        lambda text: source_of(IntegerOffset, is_bare=True).start(found),
        lambda text: source_of(LexicographicOffset, rebind="continue").start(found),
        lambda text: source_of(LexicographicOffset, rebind="restart").start(found),
        lambda text: position_of(text, LexicographicOffset, channel="ch"),
        lambda text: position_of(text, channel="ch"),
    )
    for read in reads:
        refused(OffsetTokenError, read, [intent], "channel 'ch': a load", "run the load task")


def test_other_tokens_are_no_intents_and_what_begins_like_one_and_is_none_is_refused():
    others = [None, "", "a:5", "{}", '{"copy_to":"a"}']
    assert [CopyIntent.parse(token) for token in others] == [None] * 5
    torn = ['{"copy_after":', '{"copy_after":"a"}', '{"copy_after":"a","copy_to":"b","since":5}']
    refused(OffsetTokenError, CopyIntent.parse, torn, "copy_after")
