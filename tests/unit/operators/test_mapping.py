"""Mapped instances get channels of their own, or an error."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, task_group

from airflow_provider_snowpipe.operators.account_operator import require_distinct_channels
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.operators.channels import SnowpipeOpenChannelOperator
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.local_connection import context


def check(kind: Any, partial: dict[str, Any], expand: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Run the check in the first mapped instance."""
    with DAG("d", schedule=None):
        start = kind.partial(task_id="t", **partial)
        mapped = start.expand(**expand) if isinstance(expand, dict) else start.expand_kwargs(expand)
    first = {k: v[0] for k, v in expand.items()} if isinstance(expand, dict) else expand[0]
    require_distinct_channels(mapped.unmap(first), context(map_index=0))


@pytest.mark.parametrize(
    ("partial", "expand"),
    [
        ({"table": "T"}, {"channel": ["a", "b"]}),
        ({"channel": "c"}, {"table": ["T", "U"]}),
        ({"table": "T", "channel": "c_{{ ti.map_index }}"}, {"offset_token": ["a:1", "a:1"]}),
        ({"table": "T"}, [{"channel": "a"}, {"channel": "b"}]),
        ({}, [{"channel": "a", "table": "T"}, {"channel": "a", "table": "U"}]),
        ({"table": "T"}, {"channel": ["a", "b"], "offset_token": ["a:1"]}),
    ],
)
def test_different_channels_are_fine(partial, expand):
    check(SnowpipeOpenChannelOperator, partial, expand)


@pytest.mark.parametrize(
    ("partial", "expand", "text"),
    [
        ({"table": "T", "channel": "c"}, {"offset_token": ["a:1", "a:2"]}, "mapped over offset_token"),
        ({"table": "T"}, {"channel": ["a", "a"]}, "channel='a'"),
        ({"table": "T"}, {"channel": ["a", "b"], "offset_token": ["a:1", "a:2"]}, "over offset_token"),
        ({"table": "T"}, [{"channel": "a"}, {"channel": "a"}], "channel='a'"),
    ],
)
def test_one_channel_for_two_instances_is_refused(partial, expand, text):
    with pytest.raises(ConfigurationError, match=text):
        check(SnowpipeOpenChannelOperator, partial, expand)


ARGUMENT = "the group's argument"


def check_in_group(**given: Any) -> None:
    """Run the check in the second instance of a mapped group, whose function has the argument ``one``."""
    with DAG("d", schedule=None) as dag:

        @task_group
        def each(one: Any) -> None:
            arguments = {name: one if value == ARGUMENT else value for name, value in given.items()}
            SnowpipeAppendRowsOperator(task_id="t", rows=one, **arguments)

        each.expand(one=["a", "b"])
    require_distinct_channels(dag.task_dict["each.t"], context(map_index=1))


@pytest.mark.parametrize(
    "given",
    [
        {"table": "T"},
        {"table": "T", "channel": ARGUMENT},
        {"table": ARGUMENT, "channel": "c"},
        {"table": "T", "channel": "c_{{ ti.map_index }}"},
        {"table": "T", "channel": "{{ ti.xcom_pull('each.name', map_indexes=ti.map_index) }}"},
    ],
)
def test_different_channels_of_a_mapped_group_are_fine(given):
    check_in_group(**given)


@pytest.mark.parametrize("channel", ["c", "c_{{ ds }}"])
def test_one_channel_for_all_instances_of_a_mapped_group_is_refused(channel):
    """The second instance's rows would pass for those of the first: they have the same batch."""
    with pytest.raises(ConfigurationError, match="every instance would use channel='c"):
        check_in_group(table="T", channel=channel)


def test_one_channel_outside_of_a_mapped_group_is_fine():
    with DAG("d", schedule=None) as dag:
        SnowpipeAppendRowsOperator(task_id="t", rows=[], table="T", channel="c")

    require_distinct_channels(dag.task_dict["t"], context())
