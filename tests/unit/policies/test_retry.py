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

LATE = RetriesExhaustedError("busy", retry_after=90.0)
WAITS = UncommittedRowsError("x", channel="c", http_status=409)


@pytest.mark.parametrize(
    ("error", "own_delay", "options", "action", "delay"),
    [
        (LATE, None, {}, RetryAction.RETRY, 90),
        (LATE, None, {"longest_delay": 60}, RetryAction.RETRY, 60),
        (LATE, 300, {}, RetryAction.RETRY, None),
        (LATE, 5, {}, RetryAction.RETRY, 90),
        (WAITS, None, {}, RetryAction.RETRY, 30),
        (AuthenticationError("refused"), None, {}, RetryAction.FAIL, None),
        (ValueError("x"), None, {}, RetryAction.DEFAULT, None),
    ],
    ids=["service", "limit", "longer", "shorter", "rows wait", "for good", "others"],
)
def test_error_decides_whether_and_when_to_retry(error, own_delay, options, action, delay):
    """A longer delay of the task is kept, a shorter one is not."""
    policy = SnowpipeRetryPolicy(**options)
    policy = SnowpipeRetryPolicy.deserialize(policy.serialize())
    context = {"task": SimpleNamespace(retry_delay=timedelta(seconds=own_delay))} if own_delay else None
    decision = policy.evaluate(error, 1, 3, context)
    assert (decision.action, decision.retry_delay) == (action, delay and timedelta(seconds=delay))
    assert action is not RetryAction.FAIL or "credentials" in decision.reason


def test_it_can_be_given_to_a_task_and_the_dag_is_serialized():
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    from airflow_provider_snowpipe.operators.channels import SnowpipeOpenChannelOperator

    policy = {"retries": 3, "retry_policy": SnowpipeRetryPolicy()}
    with DAG("d", schedule=None) as dag:
        SnowpipeOpenChannelOperator(task_id="t", channel="c", table="T", **policy)

    (task,) = DagSerialization.to_dict(dag)["dag"]["tasks"]
    assert task["__var"]["has_retry_policy"] is True
    with pytest.raises(ConfigurationError, match="longest_delay is 0"):
        SnowpipeRetryPolicy(longest_delay=0)
