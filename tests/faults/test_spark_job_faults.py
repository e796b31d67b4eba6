"""The job when something dies: whatever is killed, every row is in the table once."""

import pytest

from airflow_provider_snowpipe.spark.files.spec import FileSourceSpec
from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.errors import UncommittedRowsError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset
from tests.spark_job import SparkJob, ids_in, new_table, wait_until, write_rows

pytestmark = pytest.mark.spark

ROWS = 6000
SLOW = BatchLimits(rows=100, requests_per_second=3.0)
"""Thirty appends to a channel, three a second: a run that can be interrupted."""


@pytest.fixture
def source(tmp_path):
    for index, group in enumerate(("a", "b")):
        for file in range(3):
            begin = index * 3000 + file * 1000
            write_rows(tmp_path / "source" / group / f"{file}.ndjson", range(begin, begin + 1000))
    return FileSourceSpec(path=str(tmp_path / "source"))


def _job(service, tmp_path, source):
    return SparkJob(service, tmp_path / "runs", new_table(service, "T"), source, {"limits": SLOW})


def _under_way(job):
    """True when a channel has committed something, and not yet everything."""
    tokens = [token for token in job.committed("a", "b").values() if token is not None]
    assert "2.ndjson:1000" not in tokens, "the run was over before it could be interrupted"
    return bool(tokens)


def _all_there_once(job):
    assert ids_in(job.service, job.table) == list(range(ROWS))
    assert set(job.committed("a", "b").values()) == {"2.ndjson:1000"}


@pytest.mark.parametrize("victim", ["jvm", "everything"])
def test_killed_driver_is_resumed_by_the_next_run(service_factory, tmp_path, source, victim):
    job = _job(service_factory(), tmp_path, source)
    with job.start() as running:
        wait_until(lambda: _under_way(job), seconds=300, what="the first commit of the first run")
        (running.kill_driver if victim == "jvm" else running.kill_all)()
        found = job.committed("a", "b")
        assert running.process.returncode == -9

        finished = job.run(limits=BatchLimits())

    assert finished.code == 0, finished.err[-3000:]
    _all_there_once(job)
    assert any(token is not None for token in found.values())
    assert 0 < finished.report.rows < ROWS


def test_killed_service_is_waited_for_or_the_run_is_repeated(service_factory, tmp_path, source):
    service = service_factory()
    job = _job(service, tmp_path, source)
    with job.start(master="local[2,4]") as running:
        wait_until(lambda: _under_way(job), seconds=300, what="the first commit of the first run")
        service.kill()
        service.restart()
        finished = running.wait()
    if finished.code != 0:
        finished = job.run(limits=BatchLimits())

    assert finished.code == 0, finished.err[-3000:]
    _all_there_once(job)


def test_rows_received_but_not_committed_at_a_crash_are_sent_again(service_factory, tmp_path, source):
    service = service_factory(faults="commit-delay=3600")
    job = _job(service, tmp_path, source)
    with service.client(job.table) as client:
        client.pipe_info()
        writer = Channel.open(client, job.channel("a"), FileLineOffset)
        body = (tmp_path / "source" / "a" / "0.ndjson").read_bytes()
        writer.append(body, FileLineOffset("0.ndjson", 1), FileLineOffset("0.ndjson", 1000), rows=1000)
        writer.flush()
        assert writer.counters.rows == 1000, "the append did not return"
        with pytest.raises(UncommittedRowsError):
            client.open_channel(job.channel("a"), fail_on_uncommitted_rows=True)
        writer.close(flush=False)
    assert job.committed("a", "b") == {"a": None, "b": None}
    assert ids_in(service, job.table) == []
    service.kill()
    service.restart(faults=None)

    finished = job.run(limits=BatchLimits())

    assert finished.code == 0, finished.err[-3000:]
    assert finished.report.rows == ROWS
    _all_there_once(job)


def test_fenced_run_ends_with_the_reason_and_the_next_one_completes(service_factory, tmp_path, source):
    job = _job(service_factory(), tmp_path, source)
    with job.start() as running:
        wait_until(lambda: _under_way(job), seconds=300, what="the first commit of the first run")
        with job.service.client(job.table) as client:
            client.open_channel(job.channel("a"), fail_on_uncommitted_rows=False)
        fenced = running.wait()

    assert fenced.code == 1
    (line,) = fenced.error_lines
    assert line.startswith(
        f"snowpipe error: ChannelFencedError: channel {job.channel('a')!r}: another writer"
    )
    assert fenced.report.error_type == "ChannelFencedError"
    assert "Traceback" not in fenced.out

    assert job.run(limits=BatchLimits()).code == 0
    _all_there_once(job)


def test_two_runs_at_once_leave_every_row_once(service_factory, tmp_path, source):
    job = _job(service_factory(), tmp_path, source)
    with job.start() as first:
        wait_until(lambda: _under_way(job), seconds=300, what="the first commit of the first run")
        second = job.run()
        one = first.wait()

    assert second.code == 0, second.err[-3000:]
    if one.code != 0:
        assert one.error_lines[-1].startswith(
            ("snowpipe error: ChannelFencedError", "snowpipe error: ChannelInvalidError")
        )
    _all_there_once(job)
