"""A sent load over the deferral of its task."""

import json
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.operators.client_job import DriverMemory
from airflow_provider_snowpipe.operators.submission import settle_load
from airflow_provider_snowpipe.spark.driver.report import ChannelReport, RunReport
from airflow_provider_snowpipe.spark.submit.source import SubmittedLoad
from tests.fake_snowpipe import PIPE, snowpipe
from tests.stream_worker import FileState

__all__ = ["snowpipe"]

COUNTS = {"rows": 10, "bytes": 50, "rejected": 0, "errors_before": 5, "rejected_before": 3}
SENT = ChannelReport("c", "p", None, "9", "9", committed=False, **COUNTS)


def kept():
    load = SubmittedLoad(RunReport("app", (SENT,), 1.5), "integer")
    again = SubmittedLoad.of(json.loads(json.dumps(load.to_kept())))
    assert again == load
    return again


@pytest.fixture
def settle(snowpipe):
    client = snowpipe.client()
    hook = SimpleNamespace(channel_statuses=client.channel_statuses, pipe_name=lambda: PIPE)
    hook.get_client = lambda: nullcontext(client)
    hook.report_rejected = partial(SnowpipeHook.report_rejected, hook)

    def run(load, *, on_error="abort", awaited=True):
        return settle_load(load, hook, on_error=on_error, awaited=awaited)

    return run


@pytest.mark.parametrize("committed", [None, "8"])
def test_event_of_success_is_not_believed_without_the_committed_token(snowpipe, settle, committed):
    snowpipe.channel("c", committed=committed, rows_error_count=3)
    with pytest.raises(AirflowException, match="CommitTimeoutError") as behind:
        settle(kept())
    assert type(behind.value) is AirflowException
    assert not settle(kept(), awaited=False).is_committed


@pytest.mark.parametrize("on_error", ["abort", "dead_letter"])
@pytest.mark.parametrize("awaited", [False, True])
def test_rows_that_earlier_tries_had_rejected_count_after_the_deferral(snowpipe, settle, awaited, on_error):
    snowpipe.channel("c", committed="9", rows_error_count=5)
    with pytest.raises(AirflowFailException, match=r"RowsRejectedError.*skipped 2"):
        settle(kept(), on_error=on_error, awaited=awaited)
    (channel,) = settle(kept(), on_error="continue", awaited=awaited).report.channels
    assert channel.rejected == 2


class TestMemory:
    def test_it_is_forgotten_with_the_driver_and_there_is_none_without_durability(self, tmp_path):
        store = FileState(tmp_path / "state.json")
        memory = DriverMemory({"task_state_store": store}, durable=True)
        memory.keep_sent(kept())
        memory.forget()
        assert memory.sent() is None
        for context in ({}, {"task_state_store": store}):
            memory = DriverMemory(context, durable=False)
            memory.keep_sent(kept())
            assert (memory.sent(), memory.location()) == (None, None)

    @pytest.mark.parametrize(("max_tries", "is_known"), [(2, True), (4, False)])
    def test_it_is_awaited_by_a_retry_and_not_after_the_task_was_cleared(self, tmp_path, max_tries, is_known):
        """Cleared, it has more tries, and its source may have more rows than were sent."""
        store = FileState(tmp_path / "state.json")

        def memory(number, most):
            ti = SimpleNamespace(try_number=number, max_tries=most)
            return DriverMemory({"ti": ti, "task_state_store": store}, durable=True)

        memory(1, 2).keep_sent(kept())
        assert (memory(2, max_tries).sent() is not None) is is_known
