"""What tasks report to Airflow's metrics, with a receiver instead of statsd."""

from airflow_provider_snowpipe.metrics import METRICS, count_change, count_load
from tests.metrics_receiver import receiver

__all__ = ["receiver"]


def test_a_load_reports_counts_latencies_and_lag_with_tags(receiver):
    count_load(
        pipe="DB.S.T-STREAMING",
        operator="Op",
        rows=5,
        raw_bytes=70,
        rejected=1,
        dead_lettered=4,
        retries=2,
        append_seconds=0.25,
        requests=4,
        request_seconds=0.2,
        longest_request=0.125,
        commit_seconds=1.5,
        commit_lag_ms=700,
        lag_channels=3,
    )

    assert {name: value for name, (value, _) in receiver.sent.items()} == {
        "snowpipe.rows": 5,
        "snowpipe.bytes": 70,
        "snowpipe.rejected": 1,
        "snowpipe.dead_lettered": 4,
        "snowpipe.retries": 2,
        "snowpipe.appends": 4,
        "snowpipe.append_time": 250.0,
        "snowpipe.append_latency": 50.0,
        "snowpipe.append_latency_max": 125.0,
        "snowpipe.commit_latency": 1500.0,
        "snowpipe.commit_lag": 700,
        "snowpipe.lag_channels": 3,
    }
    for _, tags in receiver.sent.values():
        assert tags == {"pipe": "DB.S.T-STREAMING", "operator": "Op"}


def test_what_was_not_measured_is_not_reported(receiver):
    count_load(pipe="P", operator="Op", rows=0, raw_bytes=0, rejected=0, run_seconds=2.0)

    assert "snowpipe.commit_latency" not in receiver.sent
    assert "snowpipe.append_latency" not in receiver.sent
    assert "snowpipe.append_latency_max" not in receiver.sent
    assert "snowpipe.commit_lag" not in receiver.sent
    assert receiver.sent["snowpipe.run"][0] == 2000.0


def test_a_change_of_a_channel_is_counted(receiver):
    count_change("reset", pipe="P", operator="Op")

    assert receiver.sent["snowpipe.channels_reset"][1] == {"pipe": "P", "operator": "Op"}


def test_the_list_of_metrics_is_what_tasks_report(receiver):
    count_load(
        pipe="P",
        operator="Op",
        rows=1,
        raw_bytes=1,
        rejected=0,
        append_seconds=0.5,
        requests=1,
        request_seconds=0.1,
        longest_request=0.1,
        commit_seconds=0.5,
        run_seconds=1.0,
        commit_lag_ms=5.0,
    )
    for what in ("opened", "dropped", "reset", "backed_up", "restored"):
        count_change(what, pipe="P", operator="Op")

    assert set(receiver.sent) == {f"snowpipe.{name}" for name in METRICS}
