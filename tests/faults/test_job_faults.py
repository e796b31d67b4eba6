"""The job when a task, its driver or the service dies or refuses: each row is in the table once, in order.

Tasks and drivers are processes that die for real; Java is left out (see ``tests/job_without_spark.py``).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.errors import UncommittedRowsError
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset
from tests.checkpoints import source_of
from tests.job_without_spark import without_spark
from tests.local_service import LocalService
from tests.spark_deeds import POINTS, Deed, Deeds, deeds_of
from tests.spark_groups import GROUPS, ROWS, assert_exact, grouped_job, seeds
from tests.spark_job import Finished, SparkJob, ids_in, write_rows
from tests.waiting import wait_until

_MOST_RUNS = 8


def _at_night(*params: object) -> list[object]:
    """More of what the other parameters of a test prove daily; the seeds of the night draw all of it, too."""
    return [pytest.param(one, marks=pytest.mark.nightly) for one in params]


@pytest.fixture
def job(admin_service: LocalService, tmp_path: Path) -> SparkJob:
    return without_spark(grouped_job(admin_service, tmp_path), tmp_path / "deeds")


@pytest.fixture
def at(job: SparkJob) -> Callable[..., Deeds]:
    """Let something happen in the job's runs."""
    return lambda *each: deeds_of(Path(job.env["DEEDS"]), each)


def _assert_reported(finished: Finished) -> None:
    """The report is of a run that loaded all groups."""
    assert finished.code == 0, finished.err[-3000:]
    assert finished.report is not None
    found = [(one.partition, one.rows, one.committed) for one in finished.report.channels]
    assert found == [(group, ROWS, True) for group in GROUPS]


class TestTask:
    @pytest.mark.parametrize(
        "death",
        [
            Deed("kill-worker", "row", "b", row=300),
            Deed("kill-worker", "commit-wait", "b"),
            Deed("raise", "row", "b", row=200),
            *_at_night(
                *(Deed("kill-worker", point, "b") for point in POINTS if point not in ("row", "commit-wait"))
            ),
        ],
        ids=lambda death: f"{death.what}-{death.point}",
    )
    def test_is_repeated_whatever_ended_it(
        self, job: SparkJob, at: Callable[..., Deeds], death: Deed
    ) -> None:
        job.service.admin("faults", set="commit-delay=1")
        deeds = at(death)

        finished = job.run()

        _assert_reported(finished)
        assert_exact(job)
        assert len(deeds.notes(death.what)) == 1
        attempts = [note["attempt"] for note in deeds.notes("began") if note["partition"] == "b"]
        assert attempts == [0, 1]

    def test_that_dies_every_time_ends_the_run_and_the_next_one_goes_on(
        self, job: SparkJob, at: Callable[..., Deeds]
    ) -> None:
        at(*[Deed("kill-worker", "row", "b", row=200)] * 4)

        failed = job.run()

        assert failed.code == 1
        assert failed.report is not None
        assert failed.report.error_type == "ExecutorLostError"
        assert job.run().code == 0
        assert_exact(job)


class TestDriver:
    @pytest.mark.parametrize("point", ["received", *_at_night(*(one for one in POINTS if one != "received"))])
    def test_that_is_killed_is_resumed_while_its_tasks_still_run(
        self, job: SparkJob, at: Callable[..., Deeds], point: str
    ) -> None:
        job.service.admin("faults", set="commit-delay=1")
        deeds = at(Deed("kill-driver", point, "b", row=300 if point == "row" else 0))
        with job.start() as first:
            assert first.process.wait(120) == -9
            finished = job.run()
            left = [note["pid"] for note in deeds.notes("began")]
            wait_until(
                lambda: not any(map(psutil.pid_exists, left)), seconds=120, what="the end of all tasks"
            )

        assert len(deeds.notes("kill-driver")) == 1
        assert finished.code == 0, finished.err[-3000:]
        assert_exact(job)

    def test_that_meets_another_writer_ends_with_the_reason_and_the_next_run_completes(
        self, job: SparkJob, at: Callable[..., Deeds]
    ) -> None:
        job.env["TASK_ATTEMPTS"] = "1"
        deeds = at(Deed("stall", "row", "b", row=200))
        with job.start() as running:
            wait_until(lambda: bool(deeds.notes("stall")), seconds=120, what="a task that stands still")
            with job.service.client(job.table) as client:
                client.open_channel(job.channel("b"), fail_on_uncommitted_rows=False)
            deeds.release()
            fenced = running.wait()

        assert fenced.code == 1
        (line,) = fenced.error_lines
        assert line.startswith(f"snowpipe error: ChannelFencedError: channel {job.channel('b')!r}")
        assert fenced.report is not None
        assert fenced.report.error_type == "ChannelFencedError"
        assert "Traceback" not in fenced.out

        assert job.run().code == 0
        assert_exact(job)

    def test_whose_channel_is_dropped_ends_and_doubles_no_row(
        self, job: SparkJob, at: Callable[..., Deeds]
    ) -> None:
        deeds = at(Deed("stall", "row", "b", row=200))
        with job.start() as running:
            wait_until(lambda: bool(deeds.notes("stall")), seconds=120, what="a task that stands still")
            wait_until(lambda: job.committed("b")["b"] is not None, seconds=120, what="a commit")
            with job.service.client(job.table) as client:
                client.drop_channel(job.channel("b"))
            deeds.release()
            dropped = running.wait()

        assert dropped.code == 1
        (line,) = dropped.error_lines
        channel = job.channel("b")
        assert line.startswith(f"snowpipe error: TokenWentBackError: channel {channel!r} was dropped")
        found = ids_in(job.service, job.table)
        assert len(found) == len(set(found))

    def test_beside_another_one_on_the_same_channels_leaves_every_row_once(
        self, job: SparkJob, at: Callable[..., Deeds]
    ) -> None:
        deeds = at(Deed("stall", "row", "a", row=100), Deed("stall", "received", "b"))
        with job.start() as first:
            wait_until(lambda: len(deeds.notes("stall")) == 2, seconds=120, what="two tasks that stand still")
            with job.start() as second:
                wait_until(
                    lambda: len(deeds.notes("began")) > len(GROUPS),
                    seconds=120,
                    what="the other's tasks",
                )
                deeds.release()
                ended = [first.wait(), second.wait()]
        for one in ended:
            if one.code != 0:
                assert one.report is not None
                assert one.report.error_type in {"ChannelFencedError", "ChannelInvalidError"}
        if all(one.code for one in ended):
            assert job.run().code == 0

        assert_exact(job)

    def test_loads_groups_that_come_and_go_between_runs_once(self, job: SparkJob, tmp_path: Path) -> None:
        source = tmp_path / "source"
        assert job.run().code == 0

        shutil.move(source / "b", tmp_path / "b")
        write_rows(source / "d" / "0.ndjson", range(30_000, 30_010))
        write_rows(source / "a" / "3.ndjson", range(ROWS, ROWS + 10))
        second = job.run().report
        shutil.move(tmp_path / "b", source / "b")
        write_rows(source / "b" / "2.ndjson", range(10_000 + ROWS, 10_000 + ROWS + 10))
        third = job.run().report

        assert second is not None
        assert third is not None
        assert [(one.partition, one.rows) for one in second.channels] == [("a", 10), ("c", 0), ("d", 10)]
        assert [one.rows for one in third.channels] == [0, 10, 0, 0]
        expected = {*range(30_000, 30_010), *range(20_000, 20_000 + ROWS)}
        expected |= {begin + row for begin in (0, 10_000) for row in range(ROWS + 10)}
        assert ids_in(job.service, job.table) == sorted(expected)


class TestService:
    @pytest.mark.parametrize(
        "faults",
        [
            "drop-append-response=2,drop-append-response=7,drop-append-response=8",
            *_at_night(
                "answer-append=503x2,answer-append=408,answer-append=500,answer-append=404html,answer-append=429@1",
                "answer-open=503x2,answer-status=503x2,answer-pipe-info=429,answer-token=500,answer-hostname=503",
            ),
        ],
    )
    def test_that_refuses_for_a_while_is_asked_again_within_the_attempt(
        self, job: SparkJob, at: Callable[..., Deeds], faults: str
    ) -> None:
        job.service.admin("faults", set=faults)
        deeds = at()

        finished = job.run()

        _assert_reported(finished)
        assert_exact(job)
        assert len(deeds.notes("began")) == len(GROUPS)
        assert job.service.admin("faults")["faults"] == []

    @pytest.mark.parametrize(
        "faults",
        [
            "commit-delay=1,drop-append-response=3,invalidate-channel=6",
            *_at_night("answer-append=409,answer-open=409", "answer-append=410x2"),
        ],
    )
    def test_that_loses_a_channel_gets_it_opened_by_the_next_attempt(
        self, job: SparkJob, at: Callable[..., Deeds], faults: str
    ) -> None:
        job.service.admin("faults", set=faults)
        deeds = at()

        finished = job.run()

        _assert_reported(finished)
        assert_exact(job)
        assert len(deeds.notes("began")) > len(GROUPS)

    def test_that_answers_an_append_too_late_counts_it_once(self, job: SparkJob) -> None:
        job.env["READ_SECONDS"] = "1"
        job.service.admin("faults", set="slow-append=2x2")

        finished = job.run()

        _assert_reported(finished)
        assert finished.report is not None
        assert sum(one.retries for one in finished.report.channels) >= 2
        assert_exact(job)

    def test_that_is_killed_and_comes_back_has_every_row_once(
        self, job: SparkJob, at: Callable[..., Deeds]
    ) -> None:
        deeds = at(Deed("stall", "row", "b", row=200), Deed("stall", "received", "c"))
        with job.start(commit_timeout=10.0) as running:  # a task waits for rows that are lost
            wait_until(lambda: len(deeds.notes("stall")) == 2, seconds=120, what="two tasks that stand still")
            job.service.kill()
            deeds.release()
            job.service.start()
            finished = running.wait()
        if finished.code != 0:
            finished = job.run()

        assert finished.code == 0, finished.err[-3000:]
        assert_exact(job)

    def test_that_is_killed_before_it_commits_gets_the_rows_again(
        self, job: SparkJob, tmp_path: Path
    ) -> None:
        job.service.admin("faults", set="commit-delay=3600")
        with job.service.client(job.table) as client:
            client.pipe_info()
            writer = Channel.open(client, job.channel("a"), source_of())
            body = (tmp_path / "source" / "a" / "0.ndjson").read_bytes()
            last = ROWS // 3
            writer.append(body, FileLineOffset("0.ndjson", 1), FileLineOffset("0.ndjson", last), rows=last)
            writer.flush()
            assert writer.counters.rows == last, "the append did not return"
            with pytest.raises(UncommittedRowsError):
                client.open_channel(job.channel("a"), fail_on_uncommitted_rows=True)
            writer.close(flush=False)
        assert job.committed("a") == {"a": None}
        job.service.kill()
        job.service.start()

        finished = job.run()

        _assert_reported(finished)
        assert_exact(job)

    def test_that_fails_over_ends_the_run_and_the_next_one_goes_on(
        self, job: SparkJob, at: Callable[..., Deeds]
    ) -> None:
        pipe = str(job.pipe).replace('"', "")
        deeds = at(Deed("stall", "row", "b", row=200))
        with job.start() as running:
            wait_until(lambda: bool(deeds.notes("stall")), seconds=120, what="a task that stands still")
            job.service.admin("failover", pipe=pipe)
            deeds.release()
            failed = running.wait()
        job.service.admin("failover", pipe=pipe, back=True)

        assert failed.report is not None
        assert failed.report.error_type == "PipeFailedOverError"
        assert job.run().code == 0
        assert_exact(job)

    def test_that_refuses_the_credentials_ends_the_run_and_the_next_one_goes_on(self, job: SparkJob) -> None:
        job.service.admin("faults", set="answer-append=401x1")

        failed = job.run()

        assert failed.report is not None
        assert failed.report.error_type == "AuthenticationError"
        assert job.run().code == 0
        assert_exact(job)


@pytest.mark.parametrize("seed", seeds(rounds=1))
def test_rows_stay_exact_under_faults_at_seeded_points(
    job: SparkJob, at: Callable[..., Deeds], seed: int
) -> None:
    draw = random.Random(seed)
    deeds = at(*[_drawn_death(draw) for _ in range(3)])
    refusals = [_drawn_refusal(draw) for _ in range(draw.randrange(4))]
    job.service.admin("faults", set=",".join([*refusals, f"commit-delay={draw.choice([0.1, 0.5, 1])}"]))

    codes: list[int] = []
    while 0 not in codes:
        finished = job.run()
        codes.append(finished.code)
        assert len(codes) <= _MOST_RUNS, finished.err[-3000:]

    assert_exact(job)
    assert any((deeds.folder / f"deed-{number}").exists() for number in range(3)), deeds.each


def _drawn_death(draw: random.Random) -> Deed:
    what = draw.choice(["raise", "kill-worker", "kill-driver"])
    point = draw.choice([point for point in POINTS if what != "raise" or point != "commit-wait"])
    return Deed(what, point, draw.choice(GROUPS), draw.randrange(0, ROWS, 50) if point == "row" else 0)


def _drawn_refusal(draw: random.Random) -> str:
    append = draw.randrange(1, 30)
    call = draw.choice(["append", "open", "status"])
    return draw.choice(
        [
            f"drop-append-response={append}",
            f"invalidate-channel={append}",
            f"answer-{call}={draw.choice(['503', '429@1', '408', '500', '404html'])}x{draw.randrange(1, 4)}",
            f"answer-{draw.choice(['append', 'open'])}={draw.choice(['409', '410'])}x1",
            f"slow-{call}={draw.choice([0.2, 1])}x{draw.randrange(1, 4)}",
        ]
    )
