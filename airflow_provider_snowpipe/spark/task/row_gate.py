"""The gate between source and channel: only rows that fit the table go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from airflow_provider_snowpipe.spark.submit.row_rules import RowRules
from airflow_provider_snowpipe.spark.task.dead_letters import DeadLetter, DeadLetterFolder, DeadLetterStore
from airflow_provider_snowpipe.streaming.arguments import OnUnknown
from airflow_provider_snowpipe.streaming.batch import Part, Undecoded
from airflow_provider_snowpipe.streaming.errors import EncodingError, UnfitRowsError
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.row_check import (
    NO_KEY,
    CheckedBlock,
    RowCheck,
    RowFault,
    UnknownKeys,
)
from airflow_provider_snowpipe.streaming.row_values import BlockLines
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

OpenDeadLetters = Callable[[str, str, type[Offset], Offset | None], DeadLetterStore]
"""Opens a store of dead letters, from its path, the channel, its offsets' format, the committed position."""


class Admission:
    """What every part of one channel passes before it is sent: its keys, then its values, as far as required.

    A part keeps its first and last position even where those rows are bad, so that the commit passes them;
    see :class:`~airflow_provider_snowpipe.streaming.batch.AdmittedParts` for parts without a good row.

    ``dead_lettered`` are the rows put aside so far, ``undecoded`` the records skipped so far because they
    cannot be decoded, ``unknown_columns`` the rows so far that have a key which matches no column, by key.

    :param rules: how values are checked, None if they are not
    :param columns: the table's columns, which keys are held against; none where they are not
    :param unknown_columns: what becomes of keys that match none of them
    :param channel: the channel's name
    :param offset_class: the format of its positions
    :param committed: the committed position when the channel was opened, None for NULL
    :param open_dead_letters: opens the dead letters' store
    :param skips_undecoded: True skips and counts records that cannot be decoded, where values are not checked
    :raises DeadLetterError: if the dead letters' store cannot be read
    """

    def __init__(
        self,
        rules: RowRules | None,
        columns: Sequence[TableColumn],
        unknown_columns: OnUnknown,
        channel: str,
        offset_class: type[Offset],
        committed: Offset | None,
        open_dead_letters: OpenDeadLetters = DeadLetterFolder,
        *,
        skips_undecoded: bool = False,
    ) -> None:
        self._channel, self._skips_undecoded = channel, skips_undecoded
        checks_keys = bool(columns) and unknown_columns != "ignore"
        self._keys = UnknownKeys(columns, unknown_columns, channel) if checks_keys else None
        self._values: RowCheck | None = None
        self._dead_letters: DeadLetterStore | None = None
        if rules is not None:
            self._values, self._application = RowCheck(rules.columns), rules.application
            if rules.dead_letter_path is not None:
                self._dead_letters = open_dead_letters(
                    rules.dead_letter_path, channel, offset_class, committed
                )
        self.dead_lettered = 0
        self.undecoded = 0
        self.unknown_columns: Mapping[str, int] = {}

    def admit(self, part: Part) -> Part | None:
        """The part with the rows that are to be sent, None if it has none.

        :param part: rows that follow those of the part before
        :raises EncodingError: if a record cannot be decoded, and is neither put aside nor skipped
        :raises UnknownColumnsError: if there is a row whose keys are to be refused
        :raises UnfitRowsError: if there is a row that does not fit and no store for it
        :raises DeadLetterError: if it cannot be put aside
        """
        if self._values is None:
            if part.undecoded and not self._skips_undecoded:
                raise _undecoded_error(self._channel, part.undecoded)
            self.undecoded += len(part.undecoded)
        strangers: Sequence[int] = ()
        if self._keys is not None:
            where = f"{part.start} to {part.end}"
            strangers = self._keys.check(part.body, part.rows, where)
            self.unknown_columns = self._keys.counts
            if self._dead_letters is None:
                self._keys.refuse(strangers, where)
        if self._values is None:
            return part if part.rows else None
        found = self._values.check(part.body)
        if strangers:
            found = _with_strangers(found, strangers)
        return self._fitting(part, found)

    def settle(self, committed: Offset | None) -> None:
        """Clear away what a shut-out attempt left among the rows that are committed now."""
        if self._dead_letters is not None and committed is not None:
            self._dead_letters.settle(committed)

    def _fitting(self, part: Part, found: CheckedBlock) -> Part | None:
        """The part with its good rows, once the others are put aside; None if it has none."""
        if found.faults or part.undecoded:
            self._put_aside(part, found)
        if self._dead_letters is not None:
            self._dead_letters.pass_by(part.start, part.end)
        rows = found.lines.rows - len(found.faults)
        if not rows:
            return None
        if not found.faults and not part.undecoded:
            return part
        return replace(part, body=found.good_rows(), rows=rows, positions=None, undecoded=())

    def _put_aside(self, part: Part, found: CheckedBlock) -> None:
        positions = list(row_positions(part, found.lines, found.faults))
        if part.undecoded and self._dead_letters is None:
            raise _undecoded_error(self._channel, part.undecoded)
        if self._dead_letters is None:
            first, position = found.faults[0], positions[0]
            where = (
                f"row {first.row + 1} of {part.start} to {part.end}"
                if position is None
                else f"row {position}"
            )
            raise UnfitRowsError(
                f"channel {self._channel!r}: {where} does not fit the table: {first.fault} "
                f"({len(found.faults)} such row(s) from {part.start} to {part.end}). Neither it nor a row "
                "after it was sent; fix the source or the table and run again, or put such rows aside with "
                "on_error (option onError) 'dead_letter'"
            )
        dead_letters = [
            DeadLetter(position, one.row, one.fault.column, one.fault.reason, found.lines.row(one.row))
            for position, one in zip(positions, found.faults, strict=True)
        ] + [
            DeadLetter(one.position, row, None, one.reason, one.payload, one.key, one.headers)
            for row, one in enumerate(part.undecoded, found.lines.rows)
        ]
        self._dead_letters.write(part.start, part.end, dead_letters, self._application)
        self.dead_lettered += len(dead_letters)


def _with_strangers(found: CheckedBlock, strangers: Sequence[int]) -> CheckedBlock:
    faults = {
        **{row: RowFault(row, found.lines.line_number(row), NO_KEY) for row in strangers},
        **{fault.row: fault for fault in found.faults},
    }
    return replace(found, faults=tuple(faults[row] for row in sorted(faults)))


def _undecoded_error(channel: str, undecoded: Sequence[Undecoded]) -> EncodingError:
    """Name the record that cannot be decoded, where nothing else is to become of it.

    :param channel: the channel's name
    :param undecoded: such records, at least one
    """
    return EncodingError(
        f"channel {channel!r}: {undecoded[0].reason} ({len(undecoded)} such record(s) up to "
        f"{undecoded[-1].position}). Neither it nor a row after it was sent: on_error (option onError) "
        "'dead_letter' puts such records aside, and 'continue' skips and counts them"
    )


def row_positions(part: Part, lines: BlockLines, faults: Sequence[RowFault]) -> Iterator[Offset | None]:
    """Find the positions of some rows of a part.

    :param part: the part
    :param lines: its rows
    :param faults: the rows asked for, in order
    :returns: for each its position, None where the part has gaps and does not know
    """
    if part.positions is not None:
        yield from (part.positions(one.row) for one in faults)
        return
    steps = part.start.steps_to(part.end)
    by_line = steps is not None and steps + 1 == lines.line_count
    if not by_line and (steps is None or steps + 1 != lines.rows):
        yield from (None for _ in faults)
        return
    at, position = 0, part.start
    for one in faults:
        index = one.line if by_line else one.row
        while at < index:
            position, at = position.next(), at + 1
        yield position
