"""Seeded runs of every way of loading, with faults, against a real local service; the table is the judge.

A run is one piece of work: tries of one task, what races with it, and one event of its life. Each try is a
forked process, so that it dies or stops for real: at a point of the Spark job, or before or after one of its
requests. What stops is taken for dead, as a scheduler does it, and goes on beside the next try or after it.
"""

import datetime as dt
import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from snowpipe_local.campaign import HUNG_SECONDS, MOST_TRIES, Hit, Try, drawn_faults, drawn_hit, until_green
from snowpipe_local.errors import SqlError

from airflow_provider_snowpipe.bulk.copy import RunIdentity
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
from airflow_provider_snowpipe.spark.driver import job
from airflow_provider_snowpipe.spark.driver.plan import JobPlan, WriteReport
from airflow_provider_snowpipe.spark.driver.report import RunReport
from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests import job_without_spark
from tests.faults.faulty_store import FaultyStore, drawn_store_faults
from tests.faults.lifecycle import LOST_TOKEN, REJECTED, Again, live_between, live_on
from tests.faults.worker import be_a_worker
from tests.local_service import LocalService
from tests.spark_deeds import Deeds, deeds_of, drawn_deed
from tests.spark_job import SparkJob
from tests.staged_files import put
from tests.stream_worker import TaskInstance

_LIMITS = BatchLimits(rows=20, requests_per_second=200.0)
_BAD = "not a number"
_CSV = "TYPE = CSV ERROR_ON_COLUMN_COUNT_MISMATCH = FALSE"  # a column may be added
_BROKEN = re.compile(r"^(?:AttributeError|ImportError|NameError|TypeError)\b.*", re.MULTILINE)
"""What no fault brings about: a try that does not fit the code that it calls proves nothing."""


@dataclass
class Run:
    """One run: its table, what has to be in it, and what went wrong.

    :param expected: the numbers of the rows that have to be there once
    :param optional: those that may be there once
    """

    seed: int
    service: LocalService
    store: FaultyStore
    folder: Path
    conn_id: str
    events: Sequence[str]
    expected: set[int] = field(default_factory=set)
    optional: set[int] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)
    green: bool = False
    tries: int = 0
    notes: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    bucket: str = ""
    again: Again | None = None
    mark: int | None = None
    ends: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.path, self.draw = path_of(self.seed), random.Random(self.seed)
        self.turn = sum(divmod(self.seed, len(PATHS)))
        self.table = f"C{self.seed}"
        self.stage, self.pipe = f"{self.table}_STAGE", f"{self.table}_PIPE"
        self.log, self.deeds = self.folder / "log", deeds_of(self.folder / "deeds", [])
        self.service.sql(f"CREATE OR REPLACE TABLE {self.table} (ID INTEGER, NAME VARCHAR)")

    def start(self, work: Callable[[], Any], hit: Hit | None = None) -> Try:
        self.tries += 1
        self.faults += [str(hit)] if hit else []
        pid = os.fork()
        if pid == 0:
            be_a_worker(work, self.log, hit)
        return Try(pid, self.log)

    def do(self, work: Callable[[], Any]) -> bool:
        """Do something that nothing strikes; True when it succeeds."""
        return self.start(work).wait() == 0

    def present(self) -> Counter[int]:
        return Counter(int(row["ID"]) for row in self.sql(f"SELECT ID FROM {self.table}"))

    def sql(self, statement: str) -> list[dict[str, Any]]:
        waiting = self.service.admin("faults")["faults"]  # they are meant for the task
        self.service.admin("faults", clear=True)
        result = self.service.sql(statement)
        if waiting:
            self.service.admin("faults", set=",".join(waiting))
        return result

    def claim(self) -> None:
        """A try, or a sensor, reports that rows are committed: those that are not there now are early."""
        self.green = True
        self.wrong["early"] += len(self.expected - set(self.present()))

    def said(self, *names: str) -> bool:
        """True where an error of such a name was logged since the last event."""
        return any(name in self.log.read_text()[self.mark :] for name in names)

    def judge(self) -> None:
        found, log = self.present(), self.log.read_text()
        if self.green:
            self.wrong["lost"] += len(self.expected - set(found))
        twice = sum(count - 1 for count in found.values())
        if twice and "own token is overwritten" in log:
            # Nothing can compare and set in one step: who stops between the two finds out and reports it.
            self.notes.append("rows are doubled, and an error reports that a stream's token was overwritten")
            twice = 0
        self.wrong["doubled"] += twice
        self.wrong["doubled"] += sum(found[one] for one in set(found) - self.expected - self.optional)
        if broken := _BROKEN.search(log):
            self.wrong["broken"] += 1
            self.notes.append(broken[0])

    def serve_badly(self) -> None:
        """Let the service refuse, delay or lose some answers."""
        if some := drawn_faults(self.draw):
            self.faults += [one.partition("=")[0] for one in some]
            self.service.admin("faults", set=",".join(some))

    def disturb_store(self) -> None:
        if self.bucket and (some := drawn_store_faults(self.draw)):
            self.faults += sorted({f"S3 {one}" for one in some if one})
            self.store.disturb(some)

    def until_green(self, work: Callable[[int], Any], requests: int, final: Sequence[str] = ()) -> bool:
        """Try again until a try succeeds, which makes about so many requests, or ends with a final error."""
        tries: list[Try] = []

        def start(number: int, hit: Hit | None) -> Try:
            if self.again and self.mark is None and tries and tries[0].code is not None:
                live_between(self, self.again)
            tries.append(self.start(partial(work, number), hit))
            return tries[-1]

        is_green = until_green(
            start,
            self.draw,
            [drawn_hit(self.draw, requests) for _ in range(2 if self.mark is None else 1)],
            self.claim,
            lambda: self.said(*final, *self.ends),
        )
        if not is_green and not self.said(*final, *self.ends):
            self.notes.append("never green")
        return is_green

    def task(self, kind: Any, **options: Any) -> Callable[..., None]:
        """Tries of a task, by their number and the id of the DAG run."""

        def work(number: int = 1, run: str = "r1") -> None:
            began = dt.datetime.fromtimestamp(self.began, dt.UTC)
            started = dt.datetime.now(dt.UTC)
            ti = TaskInstance(task_id=kind.__name__, run_id=run, try_number=number, start_date=started)
            operator = kind(task_id="t", table=self.table, snowflake_conn_id=self.conn_id, **options)
            dag_run = SimpleNamespace(start_date=began, run_type="manual", run_after=began)
            operator.execute({"ti": ti, "dag_run": dag_run})

        return work

    def later(self, work: Callable[..., None], run: str = "r1", requests: int = 22) -> Callable[[], bool]:
        """Run a task without Spark again: later tries of its run, or another run."""
        errors = [LOST_TOKEN, REJECTED]
        return partial(self.until_green, lambda number: work(number + MOST_TRIES, run), requests, errors)

    def stage_files(self, *names: str, first: int = 0) -> set[int]:
        """Put files of ten rows into the stage; the rows."""
        ids = {name: range(first + 10 * n, first + 10 * n + 10) for n, name in enumerate(names)}
        text = {name: "".join(f"{one},x\n" for one in some) for name, some in ids.items()}
        put(self.service, self.folder / "staged", self.stage, text)
        return {one for some in ids.values() for one in some}

    @property
    def source(self) -> str:
        return f"s3://{self.bucket}/source" if self.bucket else str(self.folder / "source")

    def write(self, name: str, ids: Sequence[int], bad: Sequence[int] = ()) -> None:
        lines = "".join(json.dumps(_row(number, number in bad)) + "\n" for number in ids)
        if self.bucket:
            self.store.put(self.bucket, {f"source/{name}": lines.encode()})
        else:
            file = self.folder / "source" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(lines)


def _row(number: int, is_bad: bool) -> dict[str, Any]:
    return {"ID": _BAD if is_bad else number, "NAME": "x"}


class Stream:
    """The job of one run with the real driver and sink, started as often as it takes."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._job = SparkJob(run.service, run.folder / "runs", run.table, FileSource(path=run.source))

    def start(self) -> tuple[Try, Path]:
        plan = self._job.plan(channel_prefix="p", source_name="s", limits=_LIMITS)
        return self.run.start(partial(self._drive, plan)), Path(plan.report_path)

    def _drive(self, plan: JobPlan) -> None:
        settings = {"DEEDS": str(self.run.deeds.folder), "TASK_ATTEMPTS": "3", "READ_SECONDS": "5"}
        os.environ.update(settings)
        secrets = self.run.store.options if self.run.bucket else SourceSecrets()
        key = (self.run.service.credentials, secrets)
        with patch.object(job, "read_plan", lambda _: plan), patch.object(job, "_credentials", lambda _: key):
            raise SystemExit(job_without_spark.drive("plan"))

    def until_green(self, beside: bool = False) -> bool:
        """Start drivers until one succeeds; one whose task stalls goes on beside the next one."""
        run, stalled = self.run, list[Try]()
        codes: list[int | None] = []
        for number in range(MOST_TRIES):
            one, report = self.start()
            if beside and number == 0:
                stalled.append(self.start()[0])
            if _stalls(one, run.deeds):
                stalled.append(one)
                if run.draw.random() < 0.5:
                    run.deeds.release()
                continue
            codes.append(one.wait())
            error = RunReport.from_json(report.read_text()).error_type if report.exists() else None
            if codes[-1] == 0 or error in ("RowsRejectedError", "SourcePositionError"):
                break
        run.deeds.release()
        codes += [one.wait() for one in stalled]
        if 0 in codes:
            run.claim()
        elif not self.reported():
            run.notes.append("the stream never succeeded")
        return 0 in codes

    def again(self) -> Again:
        return Again("channel", self.until_green, self.until_green, self.add)

    def add(self) -> set[int]:
        self.run.store.disturb([])  # a listing that is old does not show the file
        self.run.write("a/8.ndjson", range(8_000, 8_010))
        return set(range(8_000, 8_010))

    def reported(self) -> int:
        """Rejected rows that the drivers have reported as an error."""
        files = (self.run.folder / "runs").glob("*/report.json")
        found = [RunReport.from_json(one.read_text()) for one in files]
        failed = [one for one in found if one.error_type == "RowsRejectedError"]
        return sum(channel.rejected for one in failed for channel in one.channels)


def _stalls(one: Try, deeds: Deeds) -> bool:
    """Wait until a driver ends or a task of it stalls that nobody has released; True for the latter."""
    deadline, known = time.monotonic() + HUNG_SECONDS, len(deeds.notes("stall"))
    while time.monotonic() < deadline:
        pid, status = os.waitpid(one.pid, os.WNOHANG)
        if pid:
            one.code = os.waitstatus_to_exitcode(status)
            return False
        if len(deeds.notes("stall")) > known and not deeds.is_released:
            return True
        time.sleep(0.005)
    return False


def _stream_from_s3(run: Run) -> None:
    run.bucket = f"lake{run.seed}"
    _stream(run)


def _stream(run: Run) -> None:
    draw, partitions = run.draw, {"a": range(60), "b": range(1_000, 1_060)}
    variant = ("two-drivers", "late", "plain", "rejected")[(run.seed + run.seed // 7) % 4]
    bad = [draw.randrange(60), draw.randrange(1_000, 1_060)] if variant == "rejected" else []
    run.expected = {one for ids in partitions.values() for one in ids} - set(bad)
    run.faults += [variant] if variant != "plain" else []
    for name, ids in partitions.items():
        run.write(f"{name}/1.ndjson", ids[:30], bad)
        run.write(f"{name}/2.ndjson", ids[30:], bad)
    stream = Stream(run)
    what = ("raise", "kill-worker", "kill-driver", "stall")
    drawn = [drawn_deed(draw, what, "ab", range(0, 60, 20)) for _ in range(draw.randrange(3))]
    run.faults += [deed.what for deed in drawn]
    deeds_of(run.deeds.folder, drawn)
    run.serve_badly()
    run.disturb_store()
    if not stream.until_green(beside=variant == "two-drivers"):
        return
    run.wrong["silent"] += max(0, len(bad) - stream.reported())
    if variant == "late":
        # A file whose name is before the committed one's appears: the next run that lists it loads its rows.
        late = set(range(5_000, 5_010))
        run.write("a/0.ndjson", sorted(late))
        if run.bucket:
            run.optional |= late
            run.disturb_store()
            stream.until_green()
            run.store.disturb([])
        run.green, run.expected = False, run.expected | late
        stream.until_green()
    run.again = stream.again()


# Tasks without Spark.


def _append(run: Run) -> None:
    bad = [run.draw.randrange(40)] if run.draw.random() < 0.4 else []
    run.expected = set(range(40)) - set(bad)
    run.faults += ["rejected"] if bad else []
    run.serve_badly()
    rows = [_row(one, one in bad) for one in range(40)]
    given = {"channel": "c", "commit_timeout": 20}
    work = run.task(SnowpipeAppendRowsOperator, rows=rows, batch=1, **given)
    more = run.task(SnowpipeAppendRowsOperator, rows=[_row(100, False)], batch=2, **given)
    run.again = Again("channel", run.later(work), run.later(more, "r2"), lambda: {100}, "later batch")
    is_green = run.until_green(work, 8, ["RowsRejectedError"])
    if is_green and bad and "RowsRejectedError" not in run.log.read_text():
        run.wrong["silent"] += 1
    elif not run.green and not bad:
        run.notes.append("never green")


def _copy(run: Run) -> None:
    is_forced, comes = run.draw.random() < 0.5, run.draw.randrange(3)
    """Before which try a file comes late; 0 for none."""
    run.service.sql(f"CREATE OR REPLACE STAGE {run.stage} FILE_FORMAT = ({_CSV})")
    run.expected = run.stage_files("1.csv", "2.csv")
    run.faults += (["late file"] if comes else []) + (["force"] if is_forced else [])
    run.optional = set(range(500, 510)) if comes else set()
    run.serve_badly()
    work = run.task(
        SnowpipeCopyOperator,
        stage=f"@{run.stage}",
        options={"force": True} if is_forced else {},
        deferrable=False,
    )

    def with_late(number: int) -> None:
        if number == comes:
            run.stage_files("9.csv", first=500)
        work(number)

    add = partial(run.stage_files, "8.csv", first=800)
    run.again = Again("copy", run.later(work), None if is_forced else run.later(work, "r3"), add)
    if run.until_green(with_late, 22) and not is_forced:
        run.expected |= run.stage_files("9.csv", first=500) if comes else set()
        if run.do(partial(work, 1, "r2")):
            run.claim()
        else:
            run.notes.append("the next run failed")


def _with_pipe(run: Run) -> tuple[Callable[..., None], Callable[..., None]]:
    """Files in a stage with a pipe; tasks that load them by COPY and by the pipe."""
    run.service.sql(f"CREATE OR REPLACE STAGE {run.stage} FILE_FORMAT = ({_CSV})")
    run.service.sql(f"CREATE OR REPLACE PIPE {run.pipe} AS COPY INTO {run.table} FROM @{run.stage}")
    run.expected = run.stage_files("1.csv", "2.csv")
    run.serve_badly()
    given = {"stage": f"@{run.stage}", "deferrable": False}
    by_pipe = {"pipe": run.pipe, "poll_interval": 0.1, "load_timeout": 30}
    return (
        run.task(SnowpipeCopyOperator, **given),
        run.task(SnowpipeIngestFilesOperator, **given, **by_pipe),
    )


def _ingest(run: Run) -> None:
    work = _with_pipe(run)[1]
    add = partial(run.stage_files, "8.csv", first=800)
    run.again = Again("pipe", run.later(work), run.later(work, "r2"), add)
    run.until_green(work, 22)


def _two_loaders(run: Run) -> None:
    """COPY and a pipe are given the same files at once, and tried again until one has loaded them.

    One stops at a request while the other begins, and goes on before that has ended or after it.
    """
    tasks = _with_pipe(run)
    one, two = run.draw.sample(tasks, 2)
    slow = run.start(one, Hit("stop", run.draw.random() < 0.5, run.draw.randint(1, 40)))
    stopped = [slow] if slow.wait() is None else []
    beside = run.start(two, drawn_hit(run.draw, 40))
    if stopped and run.draw.random() < 0.3:
        slow.send(signal.SIGCONT)
    stopped += [beside] if beside.wait() is None else []
    for each in stopped:
        each.go_on()
    for number in range(2, MOST_TRIES):
        for way, each in zip(("copy", "pipe"), tasks, strict=True):
            if run.do(partial(each, number)):
                run.claim()
                run.again = Again(way, run.later(each))
                return
    run.notes.append("never green")


def _bulk(run: Run) -> None:
    run.service.sql(f"CREATE OR REPLACE STAGE {run.stage}")
    run.expected = set(range(30))
    run.serve_badly()
    names = ("d", f"r{run.seed}", "load", "-1")
    options = {"file_format": {"type": "PARQUET"}, "match_by_column_name": "CASE_INSENSITIVE"}

    @contextmanager
    def write(number: int) -> Iterator[WriteReport]:
        attempt = f"a{number}-{os.getpid()}"
        folder = run.folder / attempt
        folder.mkdir(parents=True)
        files = [folder / f"part-{attempt}-{part}.parquet" for part in range(2)]
        for part, file in enumerate(files):
            ids = list(range(15 * part, 15 * part + 15))
            pq.write_table(pa.table({"ID": ids, "NAME": ["x"] * 15}), file)
        written = tuple(WrittenFile(file.name, file.stat().st_size, 15) for file in files)
        yield WriteReport("app", folder.as_uri(), attempt, written)

    def work(number: int, _: str = "") -> None:
        hook = SnowpipeBulkHook(run.conn_id, table=run.table)
        stage = RunStage(hook, f"@{run.stage}", run_folder(names, *hook.database_and_schema(), run.table))
        identity = RunIdentity(names, dt.datetime(2026, 1, 1, tzinfo=dt.UTC), number)
        copy = copy_into(hook, run.table, stage.location, options)
        BulkRun(hook, stage, run.table, identity, "the same rows", lambda _: copy).load(
            partial(write, number)
        )
        if number % 2:
            stage.sweep()

    run.again = Again("copy", run.later(work))
    run.until_green(work, 50)


def _load(run: Run, way: str) -> None:
    """COPY or a pipe instead of a stream, and the stream itself beside it."""
    for number in range(3):
        run.write(f"a/{number}.ndjson", range(20 * number, 20 * number + 20))
    run.expected = set(range(60))
    run.service.sql(f"CREATE OR REPLACE STAGE {run.stage}")
    run.service.sql(
        f"CREATE OR REPLACE PIPE {run.pipe} AS COPY INTO {run.table} FROM @{run.stage}/in "
        "FILE_FORMAT = (TYPE = JSON) MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
    )
    by_pipe = {"file_pipe": run.pipe, "poll_interval": 0.1, "load_timeout": 30} if way == "pipe" else {}
    names = {"channel_prefix": "p", "source_name": "s", "source": {"path": str(run.folder / "source")}}
    stream, races = Stream(run), run.draw.choice(["none", "first", "beside"])
    run.serve_badly()
    beside = []
    if races != "none":
        run.faults.append(f"stream {races}")
        beside.append(stream.start()[0])
        if races == "first":
            beside[0].wait()
    work = run.task(SnowpipeLoadOperator, path=way, deferrable=False, **names, **by_pipe)
    run.again = Again("folder", run.later(work), run.later(work, "r2"), stream.add)
    run.until_green(work, 40, ["PartlyStreamedError", "FilesGivenTwiceError"])
    for one in beside:
        one.wait()
    if beside:
        stream.until_green()
    elif not run.green:
        run.notes.append("never green")


def _offsets(run: Run) -> None:
    """A restore or a reset that stops, and goes on when another one and a stream have moved the token."""
    stream, kind = Stream(run), run.draw.choice(["restore", "reset"])
    run.faults.append(kind)
    run.write("a/1.ndjson", range(30))
    run.expected = set(range(30))
    if not stream.until_green():
        return
    path, offset_format = str(run.folder / "backup.json"), "unit/file:line"
    if kind == "restore":
        backup = run.task(
            SnowpipeBackupOffsetsOperator, path=path, channels=["p_s_a"], offset_format=offset_format
        )
        assert run.do(backup)
        with run.service.client(run.table) as client:
            client.drop_channel("p_s_a")
    run.write("a/2.ndjson", range(30, 60))
    if kind == "reset":
        run.expected = set(range(60))
        if not stream.until_green():
            return
        run.service.sql(f"DELETE FROM {run.table} WHERE ID >= 30")
    common = {"observe_seconds": 0.05, "offset_format": offset_format}
    move = (
        run.task(SnowpipeRestoreOffsetsOperator, path=path, **common)
        if kind == "restore"
        else run.task(SnowpipeResetOffsetOperator, channel="p_s_a", offset_token="1/1.ndjson:30", **common)
    )
    # A reset goes by the token that it has read: one that stops before that is a later reset.
    since = "" if kind == "restore" else "bulk-channel-status"
    slow = run.start(move, Hit("stop", run.draw.random() < 0.5, run.draw.randint(1, 12), since))
    stops = slow.wait() is None
    if stops and not run.do(partial(move, 2)):
        run.notes.append("the token was not moved")
    if stops and run.draw.random() < 0.5:
        slow.send(signal.SIGCONT)
    run.expected = set(range(60))
    run.green = False
    is_loaded = stream.until_green()
    if stops:
        slow.go_on()
    if is_loaded:
        stream.until_green()
    run.again = stream.again()


PATHS: dict[str, Callable[[Run], None]] = {
    "stream": _stream,
    "stream from S3": _stream_from_s3,
    "append": _append,
    "copy": _copy,
    "ingest": _ingest,
    "copy beside pipe": _two_loaders,
    "bulk load": _bulk,
    "load by copy": partial(_load, way="copy"),
    "load by pipe": partial(_load, way="pipe"),
    "restore or reset": _offsets,
}


def path_of(seed: int) -> str:
    return list(PATHS)[seed % len(PATHS)]


def judged(run: Run) -> Run:
    """Make a run, let an event happen to it, and judge it before and after."""
    service = run.service
    try:
        PATHS[run.path](run)
        run.judge()
        if run.again and run.green and not run.wrong.total():
            live_on(run, run.again)
            run.judge()
    except (AssertionError, SqlError) as error:
        run.wrong["broken"] += 1
        run.notes.append(str(error)[:1_000])
    finally:
        service.admin("faults", clear=True)
    service.sql(f"DROP TABLE {run.table}")
    service.sql(f"DROP STAGE IF EXISTS {run.stage}")
    return run
