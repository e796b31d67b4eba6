"""Keys and values of an author's arguments that nothing takes: named, unless the value may be a secret."""

import pytest

from airflow_provider_snowpipe.bulk.copy import CopyOptions
from airflow_provider_snowpipe.streaming.arguments import SentRows, check_one_of, known_arguments
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.refusals import refused


def test_one_of_several_values_is_named_with_what_there_is():
    check_one_of("on_error", "abort", ("abort", "continue"))
    for value in ("Abort", None, ["abort"]):
        with pytest.raises(ConfigurationError) as raised:
            check_one_of("on_error", value, {"abort": 1, "continue": 2})
        assert str(raised.value) == f"on_error is {value!r}: it must be one of ['abort', 'continue']"


def test_unknown_key_is_named_with_the_keys_there_are_and_its_value_unless_that_may_be_a_secret():
    def read(given):
        known_arguments(CopyOptions, given, "options")

    refused(ConfigurationError, read, [{"forced": True}], "options", "'forced'", "True", "force")
    for given in (
        {"credentials": {"aws_secret_key": "hunter2"}},
        {"CREDENTIALS": "hunter2"},
        {"encryption": {"master_key": "hunter2"}},
        {"forced": {"aws_token": "hunter2"}},
        {"password": "hunter2"},
    ):
        (error,) = refused(ConfigurationError, read, [given], next(iter(given)))
        assert "hunter2" not in str(error)


def test_rows_that_are_sent_later_are_added_up_and_the_longest_request_stays():
    numbers = dict(rows=1, bytes=2, append_seconds=3.0, commit_seconds=4.0, requests=5, request_seconds=6.0)
    more = dict(longest_request=7.0, retries=8, dead_lettered=9, undecoded=10, unknown_columns={"A": 11})
    first = SentRows(**numbers, **more)
    later = SentRows(rows=100, bytes=100, longest_request=0.5, unknown_columns={"A": 100, "B": 1})

    together = first.and_then(later)

    expected = {"rows": 101, "bytes": 102, "unknown_columns": {"A": 111, "B": 1}}
    assert together.counts() == {**first.counts(), **expected}
    assert later.and_then(first).longest_request == 7.0
