"""One accepted append: its rows, in memory or on disk, on their way to the commit."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_snowpipe.local.engine.lines import EMPTY, Lines, split_lines
from airflow_provider_snowpipe.local.engine.spool import Spool, SpoolFile

if TYPE_CHECKING:
    from airflow_provider_snowpipe.local.engine.channel import Channel


@dataclass(slots=True)
class Append:
    """One accepted append on its way to the commit.

    :param start_token: the client's token of the first row, or None.
    :param end_token: the client's token of the last row; None does not move the committed token.
    :param received_at: ``time.monotonic()`` of the request.
    :param upload: file of a file-mode append, deleted after the commit.
    :param parked: the rows while they wait on disk; ``lines`` is empty meanwhile.
    :param durable: resolved at the commit; only elastic appends wait for it.
    """

    channel: Channel
    client_sequencer: int
    row_sequencer: int
    request_id: str
    lines: Lines
    start_token: str | None
    end_token: str | None
    received_at: float
    upload: SpoolFile | None = None
    parked: SpoolFile | None = None
    durable: Future[None] = field(default_factory=Future)
    _size: int = field(init=False)

    def __post_init__(self) -> None:
        self._size = len(self.lines.body)

    @property
    def size(self) -> int:
        """Bytes of the rows, wherever they are."""
        return self._size

    def park(self, spool: Spool) -> None:
        """Move the rows from memory to disk."""
        self.parked = spool.park(self.lines.body)
        self.lines = Lines(b"", EMPTY, self.lines.rejected)

    def restore(self) -> None:
        """Bring the rows back into memory.

        :raises SpoolError: when they cannot be read.
        """
        if self.parked is not None:
            self.lines = dataclasses.replace(split_lines(self.parked.read()), rejected=self.lines.rejected)
            self.unpark()

    def unpark(self) -> None:
        """Delete the rows on disk."""
        if self.parked is not None:
            self.parked.remove()
            self.parked = None
