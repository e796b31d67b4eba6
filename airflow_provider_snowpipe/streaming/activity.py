"""Telling whether somebody writes to a channel, from two looks at it.

The service does not say when a channel was last written to. What it does say moves with every write: the
committed token and the row counter (status), the number of openings and of appends (``SHOW CHANNELS``). Two
looks with the same numbers mean that nobody wrote in between. A writer that was idle all that time is not
seen, so whoever changes a token opens the channel first, which shuts such a writer out.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_snowpipe.streaming.listing import ListedChannel
from airflow_provider_snowpipe.streaming.status import ChannelStatus


@dataclass(frozen=True, slots=True)
class ChannelLook:
    """What one moment shows of a channel.

    :param status: the answer to a status request
    :param listed: its row in ``SHOW CHANNELS``, None where the role may not see it
    """

    status: ChannelStatus
    listed: ListedChannel | None = None


def signs_of_a_writer(before: ChannelLook, after: ChannelLook) -> list[str]:
    """Say what moved between two looks at a channel; empty when nothing did.

    :param before: the earlier look
    :param after: the later one
    """
    moved = [
        ("the committed token", before.status.committed or "NULL", after.status.committed or "NULL"),
        ("the number of rows read", before.status.rows_parsed, after.status.rows_parsed),
    ]
    if before.listed is not None and after.listed is not None:
        moved += [
            ("the number of openings", before.listed.client_sequencer, after.listed.client_sequencer),
            ("the number of appends", before.listed.row_sequencer, after.listed.row_sequencer),
        ]
    return [f"{what} went from {old} to {new}" for what, old, new in moved if old != new]
