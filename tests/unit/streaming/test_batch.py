"""When a batch is closed, what it is expected to compress to, and how fast batches follow each other."""

import random
from itertools import pairwise
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming import batch as batch_module
from airflow_provider_snowpipe.streaming.batch import Compressor, OpenBatch, Part
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from tests.refusals import refused


def _part(first, rows):
    """Rows that compress to about half, since they are hexadecimal digits."""
    texts = (random.Random(number).randbytes(500).hex() for number in range(first, first + rows))
    body = b"".join(b'{"N":"%s"}\n' % text.encode() for text in texts)
    return Part(body, IntegerOffset(first), IntegerOffset(first + rows - 1), rows)


def _line(position, size):
    """One row of so many bytes that do not compress."""
    body = random.Random(position).randbytes(size - 1) + b"\n"
    return Part(body, IntegerOffset(position), IntegerOffset(position), 1)


class TestCompressor:
    @settings(max_examples=15)
    @given(
        st.lists(st.tuples(st.integers(1, 4000), st.booleans()), min_size=1, max_size=30),
        st.sampled_from(["zstd", "gzip", "none"]),
    )
    def test_batches_hold_every_row_once_in_order_and_fit_the_wire(self, sizes, compression):
        bodies = [b"a" * size + b"\n" if same else bytes(_line(0, size + 1).body) for size, same in sizes]
        parts = [Part(body, IntegerOffset(n), IntegerOffset(n), 1) for n, body in enumerate(bodies)]

        batches = Compressor(BatchLimits(wire_bytes=5000, compression=compression)).close(parts)

        assert all(len(one.body) <= 5000 for one in batches)
        assert all(right.start == left.end.next() for left, right in pairwise(batches))
        assert sum(one.rows for one in batches) == len(parts)
        raw = (
            one.body if one.encoding is None else pa.decompress(one.body, one.raw_bytes, one.encoding, True)
            for one in batches
        )
        assert b"".join(raw) == b"".join(bodies)

    @pytest.mark.parametrize(("compression", "ratio"), [("none", 1.0), ("gzip", 2.0), ("zstd", 2.0)])
    def test_first_batch_shows_how_well_rows_compress(self, compression, ratio):
        part = _part(0, 4)
        compressor = Compressor(BatchLimits(wire_bytes=len(part.body), compression=compression))
        assert compressor.ratio == ratio
        (batch,) = compressor.close([part])
        assert (type(batch.body), batch.encoding) == (bytes, None if compression == "none" else compression)
        assert compressor.ratio == batch.raw_bytes / len(batch.body)

    def test_unusable_limits_and_a_row_above_the_wire_limit_are_refused(self):
        wrong = [("wire_bytes", 5_000_000), ("rows", 0), ("compression", "lz4")]
        wrong += [("bytes_per_second", 0), ("age_seconds", -1)]
        refused(ConfigurationError, lambda limit: BatchLimits(**dict([limit])), wrong)
        too_large = [[_line(3, 9000)]]
        refused(ConfigurationError, Compressor(BatchLimits(wire_bytes=5000)).close, too_large, "rows 3 to 3")

    def test_batch_that_does_not_fit_is_cut_and_its_compression_expected_of_the_next(self):
        compressor = Compressor(BatchLimits(wire_bytes=20_000))
        parts = [_part(10 * number, 10) for number in range(4)]
        whole = b"".join(bytes(part.body) for part in parts)
        ratio = len(whole) / len(pa.Codec("zstd", compression_level=1).compress(whole, asbytes=True))

        batches = compressor.close(parts)

        found = [(batch.start.value, batch.end.value, batch.rows) for batch in batches]
        assert found == [(0, 19, 20), (20, 39, 20)]
        for batch in batches:
            ratio += 0.3 * (batch.raw_bytes / len(batch.body) - ratio)
        assert compressor.ratio == pytest.approx(ratio)


@pytest.mark.parametrize(("stop_at", "taken"), [(102.0, 2), (102.5, 3), (100.0, 0), (104.0, 4)])
def test_parts_are_taken_until_their_time_is_over(monkeypatch, stop_at, taken):
    now, lines = [100.0], [_line(position, 10) for position in range(4)]
    monkeypatch.setattr(batch_module, "time", SimpleNamespace(time=lambda: now[0]))

    def one_a_second():
        for line in lines:
            yield line
            now[0] += 1.0

    parts = batch_module.AdmittedParts(one_a_second(), lambda part: part, stop_at)

    assert list(parts) == lines[:taken]
    assert parts.complete is (taken == len(lines))


@pytest.mark.parametrize(
    ("admitted", "expected", "passed"),
    [
        ("", [], 3), ("0", [(0, 3)], None), ("3", [(0, 3)], None), ("12", [(0, 1), (2, 3)], None),
        ("03", [(0, 2), (3, 3)], None), ("2", [(0, 3)], None),
    ],
)  # fmt: skip
def test_parts_without_an_admitted_row_belong_to_their_neighbours(admitted, expected, passed):
    lines = [_line(position, 10) for position in range(4)]
    parts = batch_module.AdmittedParts(lines, lambda part: part if str(part.start) in admitted else None)
    assert [(part.start.value, part.end.value) for part in parts] == expected
    assert parts.passed == (None if passed is None else IntegerOffset(passed))
    assert parts.complete


class TestOpenBatch:
    def test_it_is_taken_when_the_next_rows_would_not_fit(self):
        limits, part = BatchLimits(rows=3, wire_bytes=1000), _line(0, 850)
        assert OpenBatch(limits).take(1.0, following=851) == [], "nothing is in it"
        for (ratio, following), is_taken in {
            (0.998, 0): True, (1.0, 0): False, (1.0, 1): True, (2.0, 850): False, (2.0, 851): True
        }.items():  # fmt: skip
            batch = OpenBatch(limits)
            batch.add(part)
            assert batch.take(ratio, following) == ([part] if is_taken else [])
            assert batch.parts == ([] if is_taken else [part])

    def test_it_begins_again_when_it_was_taken_with_the_age_of_its_first_rows(self, monkeypatch):
        now = [50.0]
        monkeypatch.setattr(batch_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
        batch, parts = OpenBatch(BatchLimits(age_seconds=4.0, raw_bytes=200)), [_line(0, 100), _line(1, 100)]
        for part in parts:
            batch.add(part)
            now[0] += 3.0
        assert batch.closes_at == 54.0

        assert batch.take() == parts
        assert (batch.take(), batch.closes_at) == ([], None)
        last = _line(2, 200)
        batch.add(last)
        assert (batch.take(1.0), batch.closes_at) == ([], 60.0)
        assert batch.take() == [last]


class TestPace:
    def sent(self, raw_bytes, seconds, **limits):
        """The timestamps of the appends of a writer that always has the next one ready."""
        now = [100.0]
        pace = batch_module.Pace(BatchLimits(**limits), lambda: now[0])
        timestamps = []
        while now[0] < 100.0 + seconds:
            wait = pace.take(raw_bytes)
            if wait > 0:
                now[0] += max(wait, 1e-6)
                continue
            timestamps.append(now[0] - 100.0)
        return timestamps

    def test_bytes_and_requests_keep_their_rate_over_time(self):
        timestamps = self.sent(10_000_000, 10.0, bytes_per_second=20e6)
        assert timestamps[:6] == [0.0, 0.0, 0.0, 0.0, pytest.approx(0.0), pytest.approx(0.5)]
        for seconds in (5.0, 60.0):
            sent = len(self.sent(3_000_000, seconds, bytes_per_second=20e6)) * 3_000_000
            assert 20e6 * seconds < sent <= 20e6 * (seconds + batch_module.BURST_SECONDS) + 3_000_000
        for raw_bytes, rate, limits in [(100, 10.0, {}), (10**9, 5.0, {"bytes_per_second": None})]:
            sent = len(self.sent(raw_bytes, 30.0, requests_per_second=rate, **limits))
            assert sent == pytest.approx(rate * (30.0 + batch_module.BURST_SECONDS), abs=2)
