"""What a channel's offset token says while COPY loads files of its partition.

The token is the one place where streaming and COPY meet. Before COPY is submitted, the channel's token is
replaced by an intent: where the stream stood, and up to which file COPY goes. A writer that finds it cannot
read it as a position and stops, so that no row is sent that COPY may be loading. Whoever finds it later
finishes the COPY, which loads no file twice, and puts the position of the last copied row in its place.
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
    """A COPY that has begun, or is about to.

    :param after: the committed offset token before it, None for NULL
    :param last_file: name of the last file that it loads
    :param since: when it began; earlier loads of these files are not its own
    """

    after: str | None
    last_file: str
    since: dt.datetime

    @classmethod
    def parse(cls, token: str | None) -> Self | None:
        """Read an offset token, None where it is no intent.

        :param token: the token as the service stores it
        :raises OffsetTokenError: if it begins as an intent does and is none
        """
        if not is_copy_intent(token):
            return None
        try:
            found = json.loads(str(token))
            return cls(found["copy_after"], found["copy_to"], dt.datetime.fromisoformat(found["since"]))
        except (ValueError, KeyError, TypeError):
            raise OffsetTokenError(
                f"offset token {str(token)[:200]!r} begins like that of a COPY under way and is none: reset "
                "the channel's token to the last row that is in the table"
            ) from None

    def __str__(self) -> str:
        values = {
            "copy_after": self.after,
            "copy_to": self.last_file,
            "since": self.since.isoformat(timespec="milliseconds"),
        }
        return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def is_copy_intent(token: str | None) -> bool:
    """True for a token that stands for a COPY under way.

    :param token: the token as the service stores it
    """
    return token is not None and token.startswith(_MARK)
