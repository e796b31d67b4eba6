"""Sizes of files: toward a target, by whole numbers of files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_snowpipe.bulk.run_files import (
    TARGET_FILE_BYTES,
    block_bytes,
    check_target,
    file_count,
    is_well_cut,
    packed_bytes,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

MB = 1_000_000


@given(total=st.integers(100 * MB, 10**15))
def test_with_the_default_target_files_have_100_to_250_megabytes(total: int) -> None:
    each = total / file_count(total, TARGET_FILE_BYTES)

    assert 100 * MB <= each <= 250 * MB


@pytest.mark.parametrize(
    ("sizes", "well"),
    [
        ([], True),
        ([5], True),
        ([239 * MB], True),
        ([251 * MB], False),
        ([120 * MB] * 40, True),
        ([99 * MB] * 40, False),
        ([1 * MB] * 2, False),
        ([160 * MB, 160 * MB, 10 * MB], True),
        ([160 * MB, 160 * MB, 400 * MB], False),
    ],
    ids=[
        "none",
        "one",
        "one-large",
        "too-large",
        "small-enough",
        "too-small",
        "two-tiny",
        "rest",
        "one-huge",
    ],
)
def test_files_are_written_again_where_they_are_too_large_or_too_many(sizes: list[int], well: bool) -> None:
    assert is_well_cut(sizes, TARGET_FILE_BYTES) is well


@given(total=st.integers(1, 10**13), target=st.integers(1_000, 10**9))
def test_a_pack_has_room_for_an_even_share_and_a_row_group_is_a_small_part_of_it(
    total: int, target: int
) -> None:
    assert packed_bytes(total, target) >= total / file_count(total, target)
    assert (64 << 10) <= block_bytes(target) <= (128 << 20)


@pytest.mark.parametrize("target", [0, 999, -1, 1e9, True, "160MB"], ids=repr)
def test_a_target_that_no_file_can_have_is_refused(target: object) -> None:
    with pytest.raises(ConfigurationError, match="target_file_bytes is"):
        check_target(target)  # type: ignore[arg-type]
