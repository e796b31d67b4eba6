"""The state machine of one channel: what is committed, what was sent, what is still owed.

Pure and single-threaded: whoever appends calls :meth:`ChannelProgress.accept`, whoever reads a status calls
:meth:`ChannelProgress.observe`, and a channel's owner does both from one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_snowpipe.streaming.errors import ContinuityError, TokenWentBackError
from airflow_provider_snowpipe.streaming.offsets import Offset


@dataclass(frozen=True, slots=True)
class Progress:
    """What one channel has durably committed, and what a run still owes it.

    :param committed: the committed position, None for NULL
    :param target: the position that proves the run complete
    """

    committed: Offset | None
    target: Offset

    def is_complete(self) -> bool:
        """True when the committed position is at or past the target; NULL is never complete."""
        return self.committed is not None and self.committed >= self.target


@dataclass(slots=True)
class ChannelProgress:
    """All offset state of one channel during one session.

    *Committed* is what the service has proved. *Sent* is what it has received and may still lose. A *gap* is
    a place where the next rows do not follow the last ones directly; it is legal only in a source that skips
    positions (Kafka compaction, transaction markers). The counter says how often that happened, it does not
    say that rows were lost.

    :param channel: the channel's name, for errors
    :param committed: the committed position at open, None for NULL
    :param gaps_legal: True when the source may skip positions
    """

    channel: str
    committed: Offset | None
    gaps_legal: bool = False
    sent: Offset | None = field(init=False, default=None)
    gaps: int = field(init=False, default=0)

    @property
    def position(self) -> Offset | None:
        """The last position that this session knows to be with the service, sent or committed."""
        return self.sent if self.sent is not None else self.committed

    def accept(self, start: Offset, end: Offset) -> None:
        """Take the rows from ``start`` to ``end`` as the next ones, or refuse them.

        :param start: position of the first row
        :param end: position of the last row
        :raises ContinuityError: if the rows do not come after the last ones, skip positions where that is
            not legal, or end before they start
        """
        if end < start:
            raise ContinuityError(
                f"channel {self.channel!r}: rows end at {end}, before they start at {start}; nothing was sent"
            )
        last = self.position
        if last is not None and start <= last:
            raise ContinuityError(
                f"channel {self.channel!r}: rows start at {start}, but {last} was already taken; nothing was "
                "sent. Resume from just after the committed token, in the source's order"
            )
        if last is not None and not start.follows(last):
            if not self.gaps_legal:
                raise ContinuityError(
                    f"channel {self.channel!r}: rows start at {start}, but the last one taken was {last} and "
                    "this source has no gaps; nothing was sent. Rows between the two are missing"
                )
            self.gaps += 1
        self.sent = end

    def observe(self, committed: Offset | None) -> None:
        """Take over the committed position of a status answer.

        :param committed: the position read, None for NULL
        :raises TokenWentBackError: if it is behind one that was already seen
        """
        if committed is not None and (self.committed is None or committed >= self.committed):
            self.committed = committed
            return
        if committed == self.committed:
            return
        raise TokenWentBackError(
            f"channel {self.channel!r}: the committed token went from {self.committed} back to "
            f"{'NULL' if committed is None else committed}; the channel was reset or recreated while this "
            "run was writing. Find out who did it, then run again: it resumes from the token found then"
        )
