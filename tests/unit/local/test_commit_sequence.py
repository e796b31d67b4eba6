"""What a commit leaves out: nothing may move a token past rows that are lost."""

from __future__ import annotations

import dataclasses
import time

from airflow_provider_snowpipe.local.engine.append import Append
from airflow_provider_snowpipe.local.engine.channel import ELASTIC, ROW_SEQ_GAP, Channel
from airflow_provider_snowpipe.local.engine.committed import Committed
from airflow_provider_snowpipe.local.engine.ingest import _drop_out_of_sequence
from airflow_provider_snowpipe.local.engine.lines import split_lines
from airflow_provider_snowpipe.local.engine.pipe import Pipe, PipeKey

PIPE = Pipe(PipeKey("PUBLIC", "T-STREAMING"), "T", "key", 0)
STORED = Committed(1, 2, 5, "5", 0, 0, 0, None, None, None, None, None, 0)


def appends(name: str, *places: tuple[int, int]) -> list[Append]:
    channel = Channel("LOCAL", PIPE, name, dataclasses.replace(STORED))
    lines = split_lines(b"{}\n")
    return [Append(channel, c, r, "r", lines, None, "t", time.monotonic()) for c, r in places]


def test_appends_that_follow_the_stored_state_are_committed() -> None:
    group = appends("c", (2, 5), (2, 6), (2, 7))
    assert _drop_out_of_sequence(group) == group


def test_appends_after_a_lost_one_are_not_committed_and_the_channel_must_be_reopened() -> None:
    group = appends("c", (2, 6), (2, 7))
    assert _drop_out_of_sequence(group) == []
    assert group[0].channel.status()["channel_status_code"] == ROW_SEQ_GAP
    assert group[0].channel.status()["last_committed_offset_token"] == "5"


def test_appends_of_an_older_session_are_not_committed() -> None:
    assert _drop_out_of_sequence(appends("c", (1, 5))) == []


def test_the_elastic_channel_has_no_order_to_keep() -> None:
    group = appends(ELASTIC, (2, 9), (2, 7))
    assert _drop_out_of_sequence(group) == group
