"""Seeded runs of every way of loading, with faults, against a real local service; the table is the judge.

A run is one piece of work: tries of one task, and what races with it. Each try is a forked process, so that
it dies or stops for real: at a point of the Spark job, or before or after one of its requests. What stops is
taken for dead, as a scheduler does it, and goes on later, beside the next try or after it.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import re
import resource
import signal
import sys
import time
import traceback
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import snowflake.connector.vendored.urllib3.connectionpool as connector_pool
import urllib3.connectionpool as pool
from snowpipe_local.campaign import (
    HUNG_SECONDS,
    MOST_TRIES,
    Hit,
    Try,
    drawn_faults,
    drawn_hit,
    until_green,
)
from snowpipe_local.errors import SqlError

from airflow_provider_snowpipe.bulk.copy import RunIdentity
from airflow_provider_snowpipe.bulk.file_pipe import SubmittedFile
from airflow_provider_snowpipe.bulk.run_files import WrittenFile, run_folder
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.operators.bulk_driver import RunStage
from airflow_provider_snowpipe.operators.bulk_load import BulkRun
from airflow_provider_snowpipe.operators.channels import SnowpipeResetOffsetOperator
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator, copy_into
from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.operators.offsets import (
    SnowpipeBackupOffsetsOperator,
    SnowpipeRestoreOffsetsOperator,
)
from airflow_provider_snowpipe.operators.submission import targets_of
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.spark.driver import job
from airflow_provider_snowpipe.spark.driver import run as driver
from airflow_provider_snowpipe.spark.driver.plan import JobPlan, WriteReport
from airflow_provider_snowpipe.spark.driver.report import RunReport
from airflow_provider_snowpipe.spark.source import SourceSecrets, SourceSpec
from airflow_provider_snowpipe.spark.sources.files.spec import FileSourceSpec
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests import job_without_spark
from tests.file_loads import TaskInstance
from tests.local_service import LocalService
from tests.memory_source import MemoryPartition, MemorySource, MemorySpec
from tests.spark_deeds import POINTS, Deed, deeds_of
from tests.spark_job import SparkJob
from tests.staged_files import put

_LIMITS = BatchLimits(rows=20, requests_per_second=200.0)
_BAD = "not a number"
FOREIGN = "foreign pipe"
_BROKEN = re.compile(r"^(?:AttributeError|ImportError|NameError|TypeError)\b.*", re.MULTILINE)
"""What no fault brings about: a try that does not fit the code that it calls proves nothing."""


def start_try(work: Callable[[], Any], log: Path, hit: Hit | None = None) -> Try:
    """Start one try of a task in a forked process."""
    pid = os.fork()
    if pid == 0:
        _be_a_worker(work, log, hit)
    return Try(pid, log)


def _be_a_worker(work: Callable[[], Any], log: Path, hit: Hit | None) -> None:
    code = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout = sys.stderr = os.fdopen(out, "w", buffering=1)  # pytest's own do not end here
        with _struck(hit):
            work()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001  whatever it is, the parent reads of it in the log
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


@contextmanager
def _struck(hit: Hit | None) -> Iterator[None]:
    """Count the requests that leave this process, and do what is due at one of them."""
    seen = 0 if hit is None or not hit.since else -1

    def counting(send: Callable[..., Any]) -> Callable[..., Any]:
        def sent(*given: Any, **named: Any) -> Any:
            nonlocal seen
            seen += seen >= 0
            due = hit is not None and seen == hit.nth
            if due and not hit.after:
                os.kill(os.getpid(), hit.signal)
            answer = send(*given, **named)
            if (
                seen < 0
                and hit is not None
                and any(hit.since in str(one) for one in (*given, *named.values()))
            ):
                seen = 0
            if due and hit.after:
                os.kill(os.getpid(), hit.signal)
            return answer

        return sent

    kinds = (pool.HTTPConnectionPool, connector_pool.HTTPConnectionPool)
    with (
        patch.object(kinds[0], "urlopen", counting(kinds[0].urlopen)),
        patch.object(kinds[1], "urlopen", counting(kinds[1].urlopen)),
    ):
        yield


@dataclass
class Run:
    """One run: its table, what has to be in it, and what went wrong.

    :param expected: the numbers of the rows that have to be there once
    :param optional: those that may be there once
    """

    seed: int
    path: str
    service: LocalService
    folder: Path
    conn_id: str
    draw: random.Random
    expected: set[int] = field(default_factory=set)
    optional: set[int] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)
    green: bool = False
    tries: int = 0
    notes: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.table = f"C{self.seed}"
        self.stage = f"{self.table}_STAGE"
        self.service.sql(f"CREATE OR REPLACE TABLE {self.table} (ID INTEGER, NAME VARCHAR)")

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def start(self, work: Callable[[], Any], hit: Hit | None = None) -> Try:
        self.tries += 1
        if hit is not None:
            self.faults.append(str(hit))
        return start_try(work, self.log, hit)

    def do(self, work: Callable[[], Any]) -> int:
        """Do something that nothing strikes; its exit code."""
        code = self.start(work).wait()
        assert code is not None
        return code

    def present(self) -> Counter[int]:
        for _ in range(MOST_TRIES):
            with suppress(SqlError):  # a refusal that was meant for the task
                return Counter(int(row["ID"]) for row in self.service.sql(f"SELECT ID FROM {self.table}"))
        raise AssertionError(f"table {self.table} cannot be read")

    def claim(self, rows: Sequence[int] | None = None) -> None:
        """A try, or a sensor, reports that rows are committed: those that are not there now are early."""
        self.green = True
        self.wrong["early"] += len(set(self.expected if rows is None else rows) - set(self.present()))

    def judge(self) -> None:
        """Compare the table with the source."""
        found = self.present()
        if self.green:
            self.wrong["lost"] += len(self.expected - set(found))
        twice = sum(count - 1 for count in found.values())
        if twice and FOREIGN in self.faults:
            # Nobody can keep a pipe of somebody else out: the error that names the files is asked for there.
            self.notes.append(f"{twice} rows doubled by a foreign pipe, and an error reports it")
        elif twice and "own token is overwritten" in self.log.read_text():
            # Nothing can compare and set in one step: who stops between the two finds out and reports it.
            self.notes.append(
                f"{twice} rows doubled, and an error reports that a stream's token was overwritten"
            )
        else:
            self.wrong["doubled"] += twice
        self.wrong["doubled"] += sum(found[one] for one in set(found) - self.expected - self.optional)
        if broken := _BROKEN.search(self.log.read_text()):
            self.wrong["broken"] += 1
            self.notes.append(broken[0])

    def serve_badly(self) -> None:
        """Let the service refuse, delay or lose some answers."""
        some = drawn_faults(self.draw)
        if some:
            self.faults += [one.partition("=")[0] for one in some]
            self.service.admin("faults", set=",".join(some))

    def hit(self, requests: int) -> Hit | None:
        """Draw what strikes the next try, which makes about so many requests."""
        return drawn_hit(self.draw, requests)

    def until_green(self, work: Callable[[int], Any], requests: int, final: Sequence[str] = ()) -> bool:
        """Try again until a try succeeds; one that stops goes on beside the next one, or at the end.

        :param work: a try, by its number
        :param requests: about so many requests a try makes
        :param final: classes of errors after which nobody tries again
        :returns: False where it ended with one of them, or never succeeded
        """
        return until_green(
            lambda number, hit: self.start(partial(work, number), hit),
            self.draw,
            [self.hit(requests), self.hit(requests)],
            self.claim,
            lambda: any(name in self.log.read_text() for name in final),
        )

    def context(self, number: int, run: str = "r1") -> Any:
        began = SimpleNamespace(
            start_date=_timestamp(self.began), run_type="manual", run_after=_timestamp(self.began)
        )
        return {"ti": TaskInstance(run, number, None), "dag_run": began}


def _timestamp(seconds: float) -> Any:
    import datetime as dt

    return dt.datetime.fromtimestamp(seconds, dt.UTC)


def _write(file: Path, ids: Sequence[int], *, bad: Sequence[int] = ()) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.writelines(json.dumps(_row(number, number in bad)) + "\n" for number in ids)


def _row(number: int, bad: bool = False) -> dict[str, Any]:
    return {"ID": _BAD if bad else number, "NAME": "x"}


# The stream: the real driver and sink, from files or from a source in memory with numbers for positions.


@dataclass
class Stream:
    """The job of one run, started as often as it takes."""

    run: Run
    spec: SourceSpec
    memory: MemorySource | None = None
    prefix: str = "p"
    drives: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def plan(self) -> JobPlan:
        self.drives += 1
        run = self.run
        job = SparkJob(run.service, run.folder / "runs", run.table, self.spec, runs=self.drives - 1)
        return job.plan(channel_prefix=self.prefix, source_name="s", limits=_LIMITS, **self.options)

    def start(self, deeds: Path) -> tuple[Try, Path]:
        plan = self.plan()
        return self.run.start(partial(self._drive, plan, deeds)), Path(plan.report_path)

    def _drive(self, plan: JobPlan, deeds: Path) -> None:
        os.environ.update({"DEEDS": str(deeds), "TASK_ATTEMPTS": "3", "READ_SECONDS": "5"})
        key = (self.run.service.credentials, SourceSecrets())
        with patch.object(job, "read_plan", lambda _: plan), patch.object(job, "_credentials", lambda _: key):
            if self.memory is not None:
                memory = self.memory
                with patch.object(driver, "open_source", lambda *_: memory):
                    raise SystemExit(job_without_spark.drive("plan"))
            raise SystemExit(job_without_spark.drive("plan"))


def _reported(runs: Path) -> int:
    """Rejected rows that the drivers have reported as an error."""
    found = [RunReport.from_json(one.read_text()) for one in runs.glob("*/report.json")]
    failed = [one for one in found if one.error_type == "RowsRejectedError"]
    return sum(channel.rejected for one in failed for channel in one.channels)


def _error_of(report: Path) -> str | None:
    return RunReport.from_json(report.read_text()).error_type if report.exists() else None


def _stream(run: Run, kind: str) -> None:
    draw = run.draw
    variant = draw.choice(["plain", "plain", "rejected", "rejected", "two-drivers", "sensor"])
    if kind == "files":
        variant = draw.choice([variant, "late", "grown"])
    bad = [draw.randrange(60), draw.randrange(1_000, 1_060)] if variant == "rejected" else []
    source = run.folder / "source"
    partitions = {"a": range(60), "b": range(1_000, 1_060)}
    if kind == "files":
        for name, ids in partitions.items():
            _write(source / name / "1.ndjson", ids[:30], bad=bad)
            _write(source / name / "2.ndjson", ids[30:], bad=bad)
        stream = Stream(run, FileSourceSpec(path=str(source)))
    else:
        own = [MemoryPartition(name, [_row(one, one in bad) for one in ids], rows_per_part=7)
               for name, ids in partitions.items()]  # fmt: skip
        stream = Stream(run, MemorySpec(), MemorySource(own))
    run.expected = {one for ids in partitions.values() for one in ids} - set(bad)
    stream.options["wait_for_commit"] = waits = variant != "sensor"
    if variant != "plain":
        run.faults.append(variant)
    deeds = [_deed(draw) for _ in range(draw.randrange(3))]
    run.faults += [deed.what for deed in deeds]
    folder = run.folder / "deeds"
    deeds_of(folder, deeds)
    run.serve_badly()
    report = _drive_until_green(run, stream, folder, beside=variant == "two-drivers")
    reported = _reported(run.folder / "runs")
    if report is None:
        if not reported:
            run.notes.append("never green")
        return
    run.wrong["silent"] += max(0, len(bad) - reported)
    if not waits:
        _sensed(run, report)
    elif variant in ("late", "grown"):
        _late(run, stream, folder, source / "a" / ("0.ndjson" if variant == "late" else "1.ndjson"))


def _deed(draw: random.Random) -> Deed:
    what = draw.choice(["raise", "kill-worker", "kill-driver", "stall"])
    point = draw.choice([one for one in POINTS if what != "raise" or one != "commit-wait"])
    return Deed(what, point, draw.choice("ab"), draw.randrange(0, 60, 20) if point == "row" else 0)


def _drive_until_green(run: Run, stream: Stream, deeds: Path, *, beside: bool = False) -> RunReport | None:
    """Start drivers until one succeeds; one whose task stalls goes on beside the next one."""
    stalled: list[tuple[Try, Path]] = []
    found: RunReport | None = None
    for number in range(MOST_TRIES):
        one, report = stream.start(deeds)
        if beside and number == 0:
            stalled.append(stream.start(deeds))
        if _stalls(one, deeds):
            stalled.append((one, report))
            (deeds / "released").touch() if run.draw.random() < 0.5 else None
            continue
        code = one.wait()
        if code == 0:
            found = RunReport.from_json(report.read_text())
            break
        if code == 1 and _error_of(report) in ("RowsRejectedError", "SourcePositionError"):
            break
    (deeds / "released").touch()
    for one, report in stalled:
        if one.wait() == 0 and found is None:
            found = RunReport.from_json(report.read_text())
    if found is not None and stream.options.get("wait_for_commit", True):
        run.claim()
    return found


def _stalls(one: Try, deeds: Path) -> bool:
    """Wait until a driver ends or a task of it stalls that nobody has released; True for the latter."""
    notes, deadline = deeds / "notes", time.monotonic() + HUNG_SECONDS
    known = notes.read_text().count('"stall"') if notes.exists() else 0
    while time.monotonic() < deadline:
        pid, status = os.waitpid(one.pid, os.WNOHANG)
        if pid:
            one.code = os.waitstatus_to_exitcode(status)
            return False
        if (
            notes.exists()
            and notes.read_text().count('"stall"') > known
            and not (deeds / "released").exists()
        ):
            return True
        time.sleep(0.005)
    return False


def _sensed(run: Run, report: RunReport) -> None:
    """A sensor takes the targets; when it ends, all rows are there."""
    name = (
        "unit/file:line"
        if report.channels[0].target_token and ":" in report.channels[0].target_token
        else "integer"
    )
    targets = targets_of(report, name, "abort")
    sensor = partial(
        SnowpipeCommitSensor, task_id="s", targets=targets, table=run.table, snowflake_conn_id=run.conn_id,
        poke_interval=0.05, timeout=60,
    )  # fmt: skip
    if run.do(lambda: sensor().execute(run.context(1))) == 0:
        run.claim()
    else:
        run.notes.append("the sensor failed")


def _late(run: Run, stream: Stream, deeds: Path, file: Path) -> None:
    """A file whose name is before the committed one's appears or grows: the next run loads its rows."""
    _write(file, range(5_000, 5_010))
    run.expected |= set(range(5_000, 5_010))
    run.green = False
    if _drive_until_green(run, stream, deeds) is None:
        run.notes.append("the late rows were refused")


# Tasks without Spark.


def _append(run: Run) -> None:
    bad = [run.draw.randrange(40)] if run.draw.random() < 0.4 else []
    rows = [_row(one, one in bad) for one in range(40)]
    run.expected = set(range(40)) - set(bad)
    run.faults += ["rejected"] if bad else []
    run.serve_badly()

    def work(number: int) -> None:
        task = SnowpipeAppendRowsOperator(
            task_id="t", rows=rows, channel="c", batch=1, table=run.table, snowflake_conn_id=run.conn_id,
            commit_timeout=20,
        )  # fmt: skip
        task.execute(run.context(number))

    is_green = run.until_green(work, 8, ["RowsRejectedError"])
    if is_green and bad and "RowsRejectedError" not in run.log.read_text():
        run.wrong["silent"] += 1
    elif not run.green and not bad:
        run.notes.append("never green")


def _staged(run: Run, names: Sequence[str], start: int = 0) -> dict[str, list[int]]:
    """Put files of ten rows into the run's stage; the rows of each."""
    files = {name: list(range(start + 10 * n, start + 10 * n + 10)) for n, name in enumerate(names)}
    text = {name: "".join(f"{one},x\n" for one in ids) for name, ids in files.items()}
    put(run.service, run.folder / "staged", run.stage, text)
    return files


def _copy(run: Run) -> None:
    force = run.draw.random() < 0.5
    run.service.sql(f"CREATE OR REPLACE STAGE {run.stage} FILE_FORMAT = (TYPE = CSV)")
    files = _staged(run, ["1.csv", "2.csv"])
    run.expected = {one for ids in files.values() for one in ids}
    run.serve_badly()
    comes = run.draw.randrange(3)  # before which try a file comes late; 0 for none
    run.faults += ["late file"] if comes else []
    run.faults += ["force"] if force else []
    late = set(range(500, 510))

    def work(number: int, name: str = "r1") -> None:
        options = {"force": True} if force else {}
        task = SnowpipeCopyOperator(
            task_id="t", table=run.table, stage=f"@{run.stage}", options=options, deferrable=False,
            snowflake_conn_id=run.conn_id,
        )  # fmt: skip
        task.execute(run.context(number, name))

    if comes:
        run.optional = late

    def with_late(number: int) -> None:
        if number == comes:
            _staged(run, ["9.csv"], 500)
        work(number)

    if not run.until_green(with_late, 22):
        run.notes.append("never green")
    elif not force:
        if comes:
            _staged(run, ["9.csv"], 500)
            run.expected |= late
        if run.do(partial(work, 1, "r2")) == 0:
            run.claim()
        else:
            run.notes.append("the next run failed")


def _ingest(run: Run) -> None:
    pipe = f"{run.table}_PIPE"
    run.service.sql(f"CREATE OR REPLACE STAGE {run.stage} FILE_FORMAT = (TYPE = CSV)")
    run.service.sql(f"CREATE OR REPLACE PIPE {pipe} AS COPY INTO {run.table} FROM @{run.stage}")
    files = _staged(run, ["1.csv", "2.csv"])
    run.expected = {one for ids in files.values() for one in ids}
    run.serve_badly()

    def work(number: int) -> None:
        task = SnowpipeIngestFilesOperator(
            task_id="t", pipe=pipe, stage=f"@{run.stage}", table=run.table, poll_interval=0.1,
            load_timeout=30, snowflake_conn_id=run.conn_id, deferrable=False,
        )  # fmt: skip
        task.execute(run.context(number))

    if not run.until_green(work, 22):
        run.notes.append("never green")


def _two_loaders(run: Run) -> None:
    """COPY and a pipe are given the same files at once, and tried again until one has loaded them."""
    pipe = f"{run.table}_PIPE"
    run.service.sql(f"CREATE OR REPLACE STAGE {run.stage} FILE_FORMAT = (TYPE = CSV)")
    run.service.sql(f"CREATE OR REPLACE PIPE {pipe} AS COPY INTO {run.table} FROM @{run.stage}")
    files = _staged(run, ["1.csv", "2.csv"])
    run.expected = {one for ids in files.values() for one in ids}
    run.serve_badly()

    def context(task: str, number: int) -> Any:
        found = run.context(number)
        found["ti"].task_id = task
        return found

    def copy(number: int) -> None:
        task = SnowpipeCopyOperator(
            task_id="c", table=run.table, stage=f"@{run.stage}", deferrable=False,
            snowflake_conn_id=run.conn_id,
        )  # fmt: skip
        task.execute(context("c", number))

    def ingest(number: int) -> None:
        task = SnowpipeIngestFilesOperator(
            task_id="i", pipe=pipe, stage=f"@{run.stage}", table=run.table, poll_interval=0.1,
            load_timeout=30, snowflake_conn_id=run.conn_id, deferrable=False,
        )  # fmt: skip
        task.execute(context("i", number))

    def give(_: int) -> None:
        client = SnowpipeBulkHook(run.conn_id, pipe=pipe).get_file_pipe_client()
        client.insert_files([SubmittedFile(name) for name in files], str(uuid.uuid4()))
        client.close()

    if run.draw.random() < 0.3:
        run.faults.append(FOREIGN)
        _meet(run, partial(copy, 1), partial(give, 1), None)
        _judge_beside_foreign(run, pipe, copy)
        return
    _meet(run, *(partial(one, 1) for one in run.draw.sample([copy, ingest], 2)), run.hit(40))
    for number in range(2, MOST_TRIES):
        if run.do(partial(copy, number)) == 0 or run.do(partial(ingest, number)) == 0:
            run.claim()
            return
    run.notes.append("never green")


def _meet(run: Run, one: Callable[[], None], two: Callable[[], None], hit: Hit | None) -> None:
    """Let one stop at a request while two begins, and go on before two has ended or after it."""
    slow = run.start(one, Hit("stop", run.draw.random() < 0.5, run.draw.randint(1, 40)))
    stopped = [slow] if slow.wait() is None else []
    beside = run.start(two, hit)
    if stopped and run.draw.random() < 0.3:
        os.kill(slow.pid, signal.SIGCONT)
    stopped += [beside] if beside.wait() is None else []
    for each in stopped:
        each.go_on()


def _judge_beside_foreign(run: Run, pipe: str, copy: Callable[[int], None]) -> None:
    """When the pipe has loaded all, the next try of COPY has to show whether the rows are twice."""
    deadline = time.monotonic() + HUNG_SECONDS
    while time.monotonic() < deadline:
        with suppress(SqlError):  # a refusal that was meant for the task
            (row,) = run.service.sql(f"SELECT SYSTEM$PIPE_STATUS('{pipe}') AS STATUS")
            if json.loads(next(iter(row.values())))["pendingFileCount"] == 0:
                break
        time.sleep(0.05)
    run.log.write_text("")
    is_green = any(run.do(partial(copy, number)) == 0 for number in range(2, 5))
    is_twice = max(run.present().values(), default=0) > 1
    if is_twice and (is_green or "were loaded twice" not in run.log.read_text()):
        run.wrong["silent"] += 1
    if not is_green and not is_twice and f"pipe LOCAL.PUBLIC.{pipe}" not in run.log.read_text():
        run.notes.append("COPY is refused, and no pipe is named")


def _bulk(run: Run) -> None:
    run.service.sql(f"CREATE OR REPLACE STAGE {run.stage}")
    run.expected = set(range(30))
    run.serve_badly()
    names = ("d", f"r{run.seed}", "load", "-1")

    def work(number: int) -> None:
        hook = SnowpipeBulkHook(run.conn_id, table=run.table)
        stage = RunStage(hook, f"@{run.stage}", run_folder(names, *hook.database_and_schema(), run.table))
        options = {"file_format": {"type": "PARQUET"}, "match_by_column_name": "CASE_INSENSITIVE"}
        identity = RunIdentity(names, dt.datetime(2026, 1, 1, tzinfo=dt.UTC), number)
        bulk = BulkRun(
            hook,
            stage,
            run.table,
            identity,
            "the same rows",
            lambda _: copy_into(hook, run.table, stage.location, options),
        )

        @contextmanager
        def write() -> Iterator[WriteReport]:
            attempt = f"a{number}-{os.getpid()}"
            files = []
            for part in range(2):
                file = run.folder / attempt / f"part-{attempt}-{part}.parquet"
                file.parent.mkdir(exist_ok=True, parents=True)
                ids = list(range(15 * part, 15 * part + 15))
                pq.write_table(pa.table({"ID": ids, "NAME": ["x"] * 15}), file)
                files.append(WrittenFile(file.name, file.stat().st_size, 15))
            yield WriteReport("app", (run.folder / attempt).as_uri(), attempt, tuple(files))

        bulk.load(write)
        if number % 2:
            stage.sweep()

    if not run.until_green(work, 50):
        run.notes.append("never green")


def _load(run: Run, way: str) -> None:
    """COPY or a pipe instead of a stream, and the stream itself beside it."""
    source, pipe = run.folder / "source", f"{run.table}_PIPE"
    for number in range(3):
        _write(source / "a" / f"{number}.ndjson", range(20 * number, 20 * number + 20))
    run.expected = set(range(60))
    arguments: dict[str, Any] = {"path": way}
    if way == "pipe":
        run.service.sql(f"CREATE OR REPLACE STAGE {run.stage}")
        run.service.sql(
            f"CREATE OR REPLACE PIPE {pipe} AS COPY INTO {run.table} FROM @{run.stage}/in "
            "FILE_FORMAT = (TYPE = JSON) MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
        )
        arguments |= {"file_pipe": pipe, "poll_interval": 0.1, "load_timeout": 30}
    stream = Stream(run, FileSourceSpec(path=str(source)))
    deeds = run.folder / "deeds"
    deeds_of(deeds, [])
    races = run.draw.choice(["none", "first", "beside"])
    run.serve_badly()

    def work(number: int, name: str = "r1") -> None:
        task = SnowpipeLoadOperator(
            task_id="load", snowflake_conn_id=run.conn_id, channel_prefix="p", source_name="s",
            source={"path": str(source)}, table=run.table, deferrable=False, **arguments,
        )  # fmt: skip
        task.execute(run.context(number, name))

    beside: list[Try] = []
    if races != "none":
        run.faults.append(f"stream {races}")
        one = stream.start(deeds)[0]
        beside.append(one)
        if races == "first":
            one.wait()
    run.until_green(work, 40, ["PartlyStreamedError", "FilesGivenTwiceError"])
    for one in beside:
        one.wait()
    if races == "none":
        if not run.green:
            run.notes.append("never green")
        return
    if _drive_until_green(run, stream, deeds) is None:
        run.notes.append("the stream was refused at last")


def _offsets(run: Run) -> None:
    """A restore or a reset that stops, and goes on when another one and a stream have moved the token."""
    source, path = run.folder / "source", run.folder / "backup.json"
    _write(source / "a" / "1.ndjson", range(30))
    stream = Stream(run, FileSourceSpec(path=str(source)))
    deeds = run.folder / "deeds"
    deeds_of(deeds, [])
    run.expected = set(range(30))
    if _drive_until_green(run, stream, deeds) is None:
        run.notes.append("never green")
        return
    kind = run.draw.choice(["restore", "reset"])
    run.faults.append(kind)
    common = {
        "task_id": "t",
        "table": run.table,
        "snowflake_conn_id": run.conn_id,
        "offset_format": "unit/file:line",
    }
    backup = partial(SnowpipeBackupOffsetsOperator, path=str(path), channels=["p_s_a"], **common)
    if kind == "restore":
        assert run.do(lambda: backup().execute(run.context(1))) == 0
        with run.service.client(run.table) as client:
            client.drop_channel("p_s_a")
    more = set(range(30, 60))
    _write(source / "a" / "2.ndjson", sorted(more))
    if kind == "reset":
        run.expected |= more
        if _drive_until_green(run, stream, deeds) is None:
            run.notes.append("never green")
            return
        run.service.sql(f"DELETE FROM {run.table} WHERE ID >= 30")

    def move(number: int) -> None:
        task: Any
        if kind == "restore":
            task = SnowpipeRestoreOffsetsOperator(path=str(path), observe_seconds=0.05, **common)
        else:
            task = SnowpipeResetOffsetOperator(
                channel="p_s_a", offset_token="1/1.ndjson:30", observe_seconds=0.05, **common
            )
        task.execute(run.context(number))

    # A reset goes by the token that it has read: one that stops before that is a later reset.
    since = "" if kind == "restore" else "bulk-channel-status"
    hit = Hit("stop", run.draw.random() < 0.5, run.draw.randint(1, 12), since)
    slow = run.start(partial(move, 1), hit)
    _beside_a_slow_one(run, slow, partial(move, 2), partial(_drive_until_green, run, stream, deeds))


def _beside_a_slow_one(run: Run, slow: Try, move: Callable[[], Any], drive: Callable[[], Any]) -> None:
    """Let a move of a token stop, do it again, stream; the first goes on before that or after."""
    stops = slow.wait() is None
    if stops and run.do(move) != 0:
        run.notes.append("the token was not moved")
    if stops and run.draw.random() < 0.5:
        os.kill(slow.pid, signal.SIGCONT)
    run.expected |= set(range(30, 60))
    run.green = False
    found = drive()
    if stops:
        slow.go_on()
    if found is None or drive() is None:
        run.notes.append("the stream was refused at last")


PATHS: dict[str, Callable[[Run], None]] = {
    "stream files": partial(_stream, kind="files"),
    "stream memory": partial(_stream, kind="memory"),
    "append": _append,
    "copy": _copy,
    "ingest": _ingest,
    "copy beside pipe": _two_loaders,
    "bulk load": _bulk,
    "load by copy": partial(_load, way="copy"),
    "load by pipe": partial(_load, way="pipe"),
    "restore or reset": _offsets,
}
KINDS = ("lost", "doubled", "early", "silent", "broken")


def path_of(seed: int) -> str:
    """The path of a seed's run; they follow each other."""
    return list(PATHS)[seed % len(PATHS)]


def one_run(seed: int, service: LocalService, folder: Path, conn_id: str) -> Run:
    """Do the run of a seed."""
    path = path_of(seed)
    folder.mkdir(parents=True)
    run = Run(seed, path, service, folder, conn_id, random.Random(seed))
    try:
        PATHS[path](run)
        run.judge()
    except (AssertionError, SqlError) as error:
        run.wrong["broken"] += 1
        run.notes.append(str(error)[:1_000])
    finally:
        service.admin("faults", clear=True)
        run.seconds = time.time() - run.began
    service.sql(f"DROP TABLE {run.table}")
    with suppress(SqlError):
        service.sql(f"DROP STAGE {run.stage}")
    return run


def report(runs: Sequence[Run], seconds: float) -> str:
    """One page: runs, tries and rows by path and by fault, and what went wrong."""
    used = sum(resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime
               for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))  # fmt: skip
    lines = [f"{len(runs)} runs, seeds {runs[0].seed} to {runs[-1].seed}, in {seconds:.0f} s; "
             f"{used:.0f} CPU seconds without the service"]  # fmt: skip
    by: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by[f"0{run.path}"].append(run)
        for fault in set(run.faults) or {"none"}:
            by[f"1{fault}"].append(run)
    lines.append(
        f"{'path or fault':<26}{'runs':>6}{'tries':>7}{'rows':>9}{'seconds':>9}"
        + "".join(f"{kind:>8}" for kind in KINDS)
    )
    for name, some in [*sorted(by.items()), ("2all", list(runs))]:
        wrong = sum((run.wrong for run in some), Counter())
        rows = sum(len(run.expected) for run in some)
        tries, counts = sum(run.tries for run in some), "".join(f"{wrong[kind]:>8}" for kind in KINDS)
        lines.append(
            f"{name[1:]:<26}{len(some):>6}{tries:>7}{rows:>9}{sum(run.seconds for run in some):>9.0f}{counts}"
        )
    ends: dict[tuple[str, str], list[int]] = defaultdict(list)
    for run in runs:
        for note in run.notes:
            ends[run.path, note.splitlines()[0][:90]].append(run.seed)
    lines += [
        f"{len(seeds)} x {path}: {note} (seeds {seeds[:8]})" for (path, note), seeds in sorted(ends.items())
    ]
    for run in runs:
        if any(run.wrong.values()):
            lines.append(f"FAILED seed {run.seed} ({run.path}): {dict(+run.wrong)}; {', '.join(run.faults)}")
    return "\n".join(lines)
