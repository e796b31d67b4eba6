"""Keys of an author's mapping that nothing takes: named with their value, unless that may be a secret."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.copy import CopyOptions
from airflow_provider_snowpipe.streaming.arguments import SentRows, known_arguments
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


def test_unknown_key_is_named_with_its_value_and_the_keys_there_are() -> None:
    with pytest.raises(ConfigurationError) as raised:
        known_arguments(CopyOptions, {"forced": True}, "options")

    assert all(one in str(raised.value) for one in ("options", "'forced'", "True", "force"))


@pytest.mark.parametrize(
    "given",
    [
        {"credentials": {"aws_secret_key": "hunter2"}},
        {"CREDENTIALS": "hunter2"},
        {"encryption": {"master_key": "hunter2"}},
        {"forced": {"aws_token": "hunter2"}},
        {"password": "hunter2"},
    ],
)
def test_value_that_may_be_a_secret_is_not_shown(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as raised:
        known_arguments(CopyOptions, given, "options")

    assert next(iter(given)) in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_rows_that_are_sent_later_are_added_up_and_the_longest_request_stays() -> None:
    first = SentRows(
        rows=1,
        bytes=2,
        append_seconds=3.0,
        commit_seconds=4.0,
        requests=5,
        request_seconds=6.0,
        longest_request=7.0,
        retries=8,
        dead_lettered=9,
        undecoded=10,
        unknown_columns={"A": 11},
    )
    later = SentRows(rows=100, bytes=100, longest_request=0.5, unknown_columns={"A": 100, "B": 1})

    together = first.and_then(later)

    expected = {"rows": 101, "bytes": 102, "unknown_columns": {"A": 111, "B": 1}}
    assert together.counts() == {**first.counts(), **expected}
    assert later.and_then(first).longest_request == 7.0
