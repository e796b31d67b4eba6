from __future__ import annotations

import random

from airflow_provider_snowpipe.streaming.batch import Compressor, Part
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset


def _part(first: int, rows: int) -> Part:
    """Rows that compress to about half, since they are hexadecimal digits."""
    body = b"".join(
        b'{"N":"%s"}\n' % random.Random(number).randbytes(500).hex().encode()
        for number in range(first, first + rows)
    )
    return Part(body, IntegerOffset(first), IntegerOffset(first + rows - 1), rows)


def test_first_batch_tells_how_large_the_second_may_be() -> None:
    limits = BatchLimits(wire_bytes=100_000)
    compressor = Compressor(limits)
    (batch,) = compressor.close([_part(0, 50)])
    ratio = batch.raw_bytes / len(batch.body)
    assert compressor.raw_target == int(limits.wire_bytes * 0.85 * ratio)


def test_later_batches_move_the_expectation_step_by_step() -> None:
    compressor = Compressor(BatchLimits(wire_bytes=100_000))
    compressor.close([_part(0, 50)])
    expected = compressor.raw_target
    same = Part(b'{"N":"x"}\n' * 100, IntegerOffset(50), IntegerOffset(149), 100)
    (batch,) = compressor.close([same])
    ratio = len(same.body) / len(batch.body)
    assert expected < compressor.raw_target < 0.85 * 100_000 * ratio
