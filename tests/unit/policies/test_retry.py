"""The retry policy, as Airflow's task runner asks it."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

import tests.airflow_connections  # noqa: F401  gives Airflow a home before it is imported

pytest.importorskip("airflow.sdk.definitions.retry_policy", reason="retry policies came with Airflow 3.3")

from airflow.sdk.definitions.retry_policy import RetryAction

from airflow_provider_snowpipe.policies.retry import SnowpipeRetryPolicy
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    ConfigurationError,
    RetriesExhaustedError,
    UncommittedRowsError,
)


def decide(error, own_delay=None, **options):
    context = None
    if own_delay is not None:
        context = {"task": SimpleNamespace(retry_delay=timedelta(seconds=own_delay))}
    return SnowpipeRetryPolicy(**options).evaluate(error, 1, 3, context)


def test_what_no_retry_can_fix_fails_and_reports_why():
    decision = decide(AuthenticationError("refused"))

    assert decision.action is RetryAction.FAIL
    assert "credentials" in decision.reason


def test_the_services_delay_is_honoured_up_to_a_limit():
    late = RetriesExhaustedError("busy", retry_after=90.0)

    assert decide(late).retry_delay == timedelta(seconds=90)
    assert decide(late, longest_delay=60).retry_delay == timedelta(seconds=60)


def test_a_longer_delay_of_the_task_is_kept():
    late = RetriesExhaustedError("busy", retry_after=90.0)

    assert decide(late, own_delay=300).retry_delay is None
    assert decide(late, own_delay=5).retry_delay == timedelta(seconds=90)


def test_rows_that_wait_for_their_commit_get_time():
    decision = decide(UncommittedRowsError("x", channel="c", http_status=409))

    assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, timedelta(seconds=30))


def test_errors_of_others_are_left_to_airflow():
    assert decide(ValueError("x")).action is RetryAction.DEFAULT


def test_it_survives_serialization():
    policy = SnowpipeRetryPolicy(longest_delay=7.0)

    assert SnowpipeRetryPolicy.deserialize(policy.serialize()).longest_delay == 7.0


def test_it_can_be_given_to_a_task_and_the_dag_is_serialized():
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    from airflow_provider_snowpipe.operators.channels import SnowpipeOpenChannelOperator

    with DAG("d", schedule=None) as dag:
        SnowpipeOpenChannelOperator(
            task_id="t", channel="c", table="T", retries=3, retry_policy=SnowpipeRetryPolicy()
        )

    (task,) = DagSerialization.to_dict(dag)["dag"]["tasks"]
    assert task["__var"]["has_retry_policy"] is True


def test_a_delay_of_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="longest_delay is 0"):
        SnowpipeRetryPolicy(longest_delay=0)
