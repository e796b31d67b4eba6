"""What tasks report to Airflow's metrics, with a receiver instead of statsd."""

import re

from airflow_provider_snowpipe.metrics import METRICS, count_change, count_load
from airflow_provider_snowpipe.spark.driver.report import ChannelReport
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.metrics_receiver import receiver

__all__ = ["receiver"]

PIPE = PipeName("DB", "S", "T-STREAMING")


def test_a_load_reports_counts_latencies_and_lag_with_tags(receiver):
    sent = {"rows": 3, "bytes": 50, "append_seconds": 0.25, "commit_seconds": 1.5, "retries": 2}
    asked = {"requests": 3, "request_seconds": 0.15, "longest_request": 0.125}
    one = ChannelReport("a", "a", None, None, "5", 1, True, 700, **sent, **asked)
    late = {"target_token": "7", "rows": 1, "bytes": 10, "dead_lettered": 2}
    b = ChannelReport("b", "b", **late, append_seconds=0.125, requests=1, request_seconds=0.05)
    c = ChannelReport("c", "c", **late, commit_seconds=0.5)
    empty = ChannelReport("d", "d", latency_ms=600, files_found=2)

    count_load((one, b, c, empty), PIPE, "Op", waited=True, run_seconds=2.0)
    for what in ("opened", "dropped", "reset", "backed_up", "restored"):
        count_change(what, pipe="DB.S.T-STREAMING", operator="Op")

    assert set(receiver.sent) == {f"snowpipe.{name}" for name in METRICS}
    values = {name: value for name, (value, _) in receiver.sent.items()}
    loads = {name: values[name] for name in values if not re.search("channels_|backlog", name)}
    assert loads == {
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
        "snowpipe.run": 2000.0,
        "snowpipe.commit_lag": 700,
        "snowpipe.lag_channels": 2,
    }
    for _, tags in receiver.sent.values():
        assert tags == {"pipe": "DB.S.T-STREAMING", "operator": "Op"}


def test_what_was_not_measured_is_not_reported(receiver):
    report = ChannelReport("c", "c", target_token="5", commit_seconds=1.0)
    count_load((report,), PIPE, "Op", waited=False, run_seconds=2.0)
    unknown = {"snowpipe.commit_latency", "snowpipe.append_latency", "snowpipe.commit_lag"}
    assert not unknown & set(receiver.sent)
