"""Keys of an author's mapping that nothing takes: named with their value, unless that may be a secret."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.copy import CopyOptions
from airflow_provider_snowpipe.streaming.arguments import known_arguments
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
