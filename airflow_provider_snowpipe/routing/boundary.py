"""Where streaming ends and COPY begins in a series of files, so that no row is lost or loaded twice between.

A partition is a series of files that are read in the order of their names. Its channel's committed offset
token says up to which row it is in the table; COPY takes whole files. So COPY may take only files of which no
row is committed, in their order, and only when the file that the token lies in has no row left.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from airflow_provider_snowpipe.streaming.errors import PartlyStreamedError, SourcePositionError
from airflow_provider_snowpipe.streaming.offsets import CopyIntent, FileLineOffset


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """How far a partition's rows are in the table.

    :param partition: its name
    :param channel: its channel
    :param files: names of its files that are not empty, in order
    :param committed: the last row that is in, None for none; under an intent, the last one before the COPY
    :param has_rest: True where the file of that row has more rows
    :param intent: the load of files that has begun and is not known to have ended
    :param token: the channel's committed offset token as it is stored, None for NULL
    :param rows_inserted: rows that were streamed into the channel and are visible
    """

    partition: str
    channel: str
    files: tuple[str, ...]
    committed: FileLineOffset | None = None
    has_rest: bool = False
    intent: CopyIntent | None = None
    token: str | None = None
    rows_inserted: int = 0

    @property
    def untouched(self) -> tuple[str, ...]:
        """The files of which no row is committed."""
        if self.committed is None:
            return self.files
        cut = bisect_right if self.committed.line else bisect_left
        return self.files[cut(self.files, self.committed.file) :]

    @property
    def is_done(self) -> bool:
        """True when no row is left."""
        return not (self.untouched or self.has_rest or self.intent)


def share_of_copy(position: PartitionPosition, *, growing: bool = False) -> tuple[str, ...]:
    """The files that COPY may take: all that no stream has begun.

    :param position: the partition
    :param growing: True while something appends to the last file, which is left to the stream
    :raises PartlyStreamedError: if a file is streamed in part
    :raises SourcePositionError: if a file has changed since a COPY began, or is gone
    """
    committed = position.committed
    if committed is not None and position.has_rest and position.intent is not None:
        raise SourcePositionError(
            f"channel {position.channel!r}: file {committed.file!r} of partition {position.partition!r} has "
            f"got rows after row {committed.line} since a COPY of the files after it began: those would be "
            "passed over. Cut them off, or move them to a file of their own after the others"
        )
    if committed is not None and position.has_rest:
        raise PartlyStreamedError(
            f"channel {position.channel!r}: file {committed.file!r} of partition {position.partition!r} is "
            f"streamed up to row {committed.line}, and has more: COPY takes whole files, so that its first "
            f"{committed.line} rows would be loaded twice. Finish it with path='stream'; nothing was loaded"
        )
    promised = promised_files(position)
    free = position.untouched[len(promised) :]
    if growing and free and free[-1] == position.files[-1]:
        free = free[:-1]
    return promised + free


def promised_files(position: PartitionPosition) -> tuple[str, ...]:
    """The files of a COPY that has begun, which has to be finished before anything else is loaded.

    :param position: the partition
    :raises SourcePositionError: if the last of them is not there any more
    """
    if position.intent is None:
        return ()
    files, last = position.untouched, position.intent.last_file
    if last not in files:
        raise SourcePositionError(
            f"channel {position.channel!r}: a COPY of the files up to {last!r} of partition "
            f"{position.partition!r} began at {position.intent.since:%Y-%m-%d %H:%M:%S %Z} and is not known "
            "to have ended, and that file is not in the source any more: bring it back, or reset the "
            f"channel's offset token on purpose, to {position.intent.after or 'the first row'!r} if the "
            "files are not in the table. Nothing was loaded"
        )
    return files[: files.index(last) + 1]
