import pytest

from airflow_provider_snowpipe.streaming.arguments import check_one_of
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


def test_known_value_passes():
    check_one_of("on_error", "abort", ("abort", "continue"))


@pytest.mark.parametrize("value", ["Abort", None, ["abort"]])
def test_other_value_is_named_with_what_there_is(value):
    with pytest.raises(ConfigurationError) as refused:
        check_one_of("on_error", value, {"abort": 1, "continue": 2})

    assert str(refused.value) == f"on_error is {value!r}: it must be one of ['abort', 'continue']"
