"""What a file pipe says of itself: ``SYSTEM$PIPE_STATUS`` as a value."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_provider_snowpipe.streaming.errors import SqlError

RUNNING, PAUSED = "RUNNING", "PAUSED"
_BROKEN = ("STOPPED_", "STALLED_")


@dataclass(frozen=True, slots=True)
class PipeStatus:
    """The state of one file pipe (page "SYSTEM$PIPE_STATUS").

    :param execution_state: ``RUNNING``, ``PAUSED``, ``READ_ONLY``, ``FAILING_OVER``, ``STOPPED_…`` or
        ``STALLED_…``
    :param pending_files: files in the pipe's queue that are not loaded yet
    :param oldest_pending_path: the file that waits longest
    :param oldest_pending_at: since when it waits
    :param last_ingested_path: the file that was loaded last
    :param last_ingested_at: when that was
    :param notification_channel: where events of new files come from, None without ``AUTO_INGEST``
    :param error: why the pipe does not load, in Snowflake's words
    :param told: everything that Snowflake said, by its own names
    """

    execution_state: str
    pending_files: int = 0
    oldest_pending_path: str | None = None
    oldest_pending_at: dt.datetime | None = None
    last_ingested_path: str | None = None
    last_ingested_at: dt.datetime | None = None
    notification_channel: str | None = None
    error: str | None = None
    told: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, text: object) -> Self:
        """Read what the function answers.

        :param text: the JSON text
        :raises SqlError: if it is something else
        """
        try:
            told = json.loads(str(text))
            state = str(told["executionState"])
        except (ValueError, KeyError, TypeError):
            raise SqlError(
                f"SYSTEM$PIPE_STATUS answered {str(text)[:80]!r}, which is no state of a pipe: check that "
                "the account URL leads to Snowflake"
            ) from None
        return cls(
            execution_state=state,
            pending_files=int(told.get("pendingFileCount") or 0),
            oldest_pending_path=_text(told.get("oldestPendingFilePath")),
            oldest_pending_at=_timestamp(told.get("oldestFileTimestamp")),
            last_ingested_path=_text(told.get("lastIngestedFilePath")),
            last_ingested_at=_timestamp(told.get("lastIngestedTimestamp")),
            notification_channel=_text(told.get("notificationChannelName")),
            error=_text(told.get("error")) or _text(told.get("fault")),
            told=told,
        )

    @property
    def is_running(self) -> bool:
        """True when files that are submitted are loaded."""
        return self.execution_state == RUNNING

    @property
    def is_paused(self) -> bool:
        """True when somebody has paused the pipe; files may be submitted, and wait."""
        return self.execution_state == PAUSED

    @property
    def is_broken(self) -> bool:
        """True when the pipe cannot load before something is fixed."""
        return self.execution_state.startswith(_BROKEN)

    def __str__(self) -> str:
        words = [self.execution_state, f"{self.pending_files:,} files wait"]
        if self.oldest_pending_at is not None:
            words.append(f"the oldest since {self.oldest_pending_at.isoformat()}")
        if self.error:
            words.append(f"error: {' '.join(self.error.split())[:300]}")
        return ", ".join(words)

    def result(self) -> dict[str, Any]:
        """The state as JSON, for a task's value."""
        return {
            "execution_state": self.execution_state,
            "pending_files": self.pending_files,
            "oldest_pending_path": self.oldest_pending_path,
            "oldest_pending_at": _written(self.oldest_pending_at),
            "last_ingested_path": self.last_ingested_path,
            "last_ingested_at": _written(self.last_ingested_at),
            "notification_channel": self.notification_channel,
            "error": self.error,
        }


def _text(value: object) -> str | None:
    return None if value is None or value == "" else str(value)


def _timestamp(value: object) -> dt.datetime | None:
    """A timestamp in ISO 8601; None for one that is written otherwise, which ``told`` still has."""
    if not isinstance(value, str):
        return None
    try:
        found = dt.datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


def _written(timestamp: dt.datetime | None) -> str | None:
    return None if timestamp is None else timestamp.isoformat()
