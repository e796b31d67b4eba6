"""What is durable about a channel, and how one more append advances it."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_snowpipe.local.engine.append import Append


@dataclass(frozen=True, slots=True)
class Committed:
    """What is durable about one channel; one row of the hidden table ``channels``.

    ``active_on_ms`` is the service's time of the last opening or commit; the channel expires by it.
    """

    channel_id: int
    client_sequencer: int
    row_sequencer: int
    offset_token: str | None
    rows_inserted: int
    rows_parsed: int
    rows_error_count: int
    last_error_offset_upper_bound: str | None
    last_error_message: str | None
    last_error_timestamp_ms: int | None
    latency_ms: int | None
    last_request_id: str | None
    created_on_ms: int
    active_on_ms: int = 0


def advance(
    committed: Committed, append: Append, rejected: int, message: str | None, *, now_ms: int
) -> Committed:
    """Return the durable state after one more append.

    :param rejected: rows of the append that were skipped.
    :param message: reason of the last of them, without the value.
    :param now_ms: the service's time of the commit, epoch milliseconds.
    """
    latency = int((time.monotonic() - append.received_at) * 1000)
    token = append.end_token if append.end_token else committed.offset_token
    moved = dataclasses.replace(
        committed,
        client_sequencer=append.client_sequencer,
        row_sequencer=append.row_sequencer + 1,
        offset_token=token,
        rows_parsed=committed.rows_parsed + append.lines.parsed,
        rows_inserted=committed.rows_inserted + append.lines.parsed - rejected,
        latency_ms=latency,
        last_request_id=append.request_id,
        active_on_ms=now_ms,
    )
    if rejected == 0:
        return moved
    return dataclasses.replace(
        moved,
        rows_error_count=committed.rows_error_count + rejected,
        last_error_offset_upper_bound=token,
        last_error_message=message,
        last_error_timestamp_ms=now_ms,
    )
