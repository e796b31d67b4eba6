"""What a channel's offset token holds while COPY or a file pipe loads files of its partition.

The token is where streaming and the loading of files meet. Before files are loaded, the channel's token is
replaced by an intent: where the stream stood, up to which file the load goes, and which pipe does it. A
writer that finds it cannot read it as a position and stops, so that no row is sent that is being loaded
otherwise. Whoever finds it later finishes the load the same way, since COPY loads no file twice and neither
does one pipe, and replaces it by the position of the last loaded row.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from typing import Self

from airflow_provider_snowpipe.streaming.errors import OffsetTokenError

_MARK = '{"copy_after":'


@dataclass(frozen=True, slots=True)
class CopyIntent:
    """A load of files that has begun, or is about to.

    :param after: the committed offset token before it, None for NULL
    :param last_file: name of the last file that it loads
    :param since: when it began; earlier loads of these files are not its own
    :param rows_inserted: rows that had been streamed into the channel; more of them later mean that somebody
        streamed in spite of the intent
    :param binding: whose files these are and how their rows are numbered, as checkpoints have it
    :param pipe: the file pipe that was given them, and may still load them; None for COPY
    """

    after: str | None
    last_file: str
    since: dt.datetime
    rows_inserted: int
    binding: str
    pipe: str | None = None

    @classmethod
    def parse(cls, token: str | None) -> Self | None:
        """Read an offset token, None where it is no intent.

        :raises OffsetTokenError: if it begins as an intent does and is none
        """
        if not is_copy_intent(token):
            return None
        try:
            found = json.loads(str(token))
            since = dt.datetime.fromisoformat(found["since"])
            return cls(
                found["copy_after"],
                found["copy_to"],
                since,
                found["rows"],
                found["binding"],
                found.get("pipe"),
            )
        except (ValueError, KeyError, TypeError):
            raise OffsetTokenError(
                f"offset token {str(token)[:200]!r} begins like that of a load under way and is none: reset "
                "the channel's token to the last row that is in the table"
            ) from None

    def __str__(self) -> str:
        values = {
            "copy_after": self.after,
            "copy_to": self.last_file,
            "since": self.since.isoformat(timespec="milliseconds"),
            "binding": self.binding,
            **({} if self.pipe is None else {"pipe": self.pipe}),
            "rows": self.rows_inserted,
        }
        return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def is_copy_intent(token: str | None) -> bool:
    """True for a token that stands for files being loaded by COPY or by a pipe."""
    return token is not None and token.startswith(_MARK)
