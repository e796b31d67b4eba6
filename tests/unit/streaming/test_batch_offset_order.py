"""What follows what in the tokens of micro-batches."""

from __future__ import annotations

import pytest

from airflow_provider_snowpipe.streaming.offsets import BatchDigestOffset


def _token(batch: int, row: int, *, final: bool = False) -> BatchDigestOffset:
    return BatchDigestOffset(batch, row, 4, 0x9F3AC1D2, "5d41402a", final=final)


@pytest.mark.parametrize(
    ("previous", "token", "follows"),
    [
        ((3, 7), (3, 8), True),
        ((3, 7), (3, 7), False),
        ((3, 7), (3, 6), False),
        ((3, 7), (3, 9), False),
        ((3, 0), (3, 1), True),
        ((3, 7), (3, 1), False),
        ((3, 7), (4, 1), True),
        ((3, 7), (9, 1), True),
        ((3, 7), (4, 2), False),
        ((3, 7), (2, 1), False),
        ((3, 7), (2, 8), False),
    ],
)
def test_next_row_of_a_share_and_first_row_of_a_later_batch_follow(
    previous: tuple[int, int], token: tuple[int, int], follows: bool
) -> None:
    assert _token(*token).follows(_token(*previous)) is follows


def test_row_after_the_last_one_of_a_share_is_not_called_the_last() -> None:
    assert _token(3, 7, final=True).next() == _token(3, 8)
