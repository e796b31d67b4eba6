"""Checkpoints for tests: the source that they are of, tokens by their positions, and positions by tokens."""

from typing import Any

from airflow_provider_snowpipe.streaming.checkpoint import Binding, ChannelSource, is_checkpoint, position_of
from airflow_provider_snowpipe.streaming.offsets import (
    BatchDigestOffset,
    BatchRowOffset,
    FileLineOffset,
    IntegerOffset,
    Offset,
    UnitOffset,
)


def binding_of(partition: str = "p", reading: str = "") -> Binding:
    """What the positions of a partition of the tests' source mean."""
    return Binding(f"rows in memory, partition {partition!r}", reading)


def source_of(positions: type[Offset] = FileLineOffset, **changes: Any) -> ChannelSource:
    """Partition ``p`` of the tests' source, as run ``r1`` writes it."""
    return ChannelSource(**{"positions": positions, "binding": binding_of(), "run": "r1", **changes})


def at(position: Offset | str | int) -> Offset:
    """A position: a number, ``batch:row``, or ``file:line``."""
    if isinstance(position, Offset):
        return position
    head, colon, _ = str(position).partition(":")
    if not colon:
        return IntegerOffset.parse(str(position))
    return (BatchRowOffset if head.isdigit() else FileLineOffset).parse(str(position))


def token(position: Offset | str | int, rows: int = 0, errors: int = 0, **changes: Any) -> str:
    offset = at(position)
    return source_of(type(offset), **changes).token(offset, rows, errors)


def loaded(
    position: Offset | str | int | None, rows: int = 0, rejected: int = 0, errors: int = 0, **changes: Any
) -> dict[str, Any]:
    """The state of a channel that has loaded up to a position, for ``FakeSnowpipe.channel``."""
    if position is None:
        return {}
    return {
        "committed": token(position, rows, errors, **changes),
        "rows_inserted": rows - rejected,
        "rows_error_count": rejected,
    }


def shown(text: str | None) -> str | None:
    """The position of a checkpoint as text, without a unit's number and a digest; another text as it is."""
    if text is None or not is_checkpoint(text):
        return text
    position = position_of(text)
    if isinstance(position, BatchDigestOffset):
        return f"{position.batch}:{position.row}"
    return f"{position.file}:{position.line}" if isinstance(position, UnitOffset) else str(position)
