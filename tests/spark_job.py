"""Runs the Spark job: a plan, a credentials file, and the job's ``main`` in this process or submitted."""

import io
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from airflow_provider_snowpipe.spark import job_file
from airflow_provider_snowpipe.spark.driver import job
from airflow_provider_snowpipe.spark.driver.credentials import write_credentials
from airflow_provider_snowpipe.spark.driver.plan import JobPlan
from airflow_provider_snowpipe.spark.driver.report import RunReport
from airflow_provider_snowpipe.spark.source import SourceSecrets, SourceSpec
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.checkpoints import shown
from tests.local_service import LocalService

SUBMIT_SECONDS = 900
SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")


@dataclass(frozen=True)
class Finished:
    """What a run left: exit code, output, report."""

    code: int
    out: str
    err: str
    report: RunReport | None

    @property
    def error_lines(self) -> list[str]:
        """The lines that a failed job prints; spark-submit passes its standard error on as output."""
        printed = self.out.splitlines() + self.err.splitlines()
        return [line for line in printed if line.startswith("snowpipe error: ")]


@dataclass
class Running:
    """A run under way; killed with all its processes when the block ends."""

    process: subprocess.Popen[str]
    report_path: Path
    out: Path
    err: Path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()

    def kill_all(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait(30)

    def wait(self, seconds: float = SUBMIT_SECONDS) -> Finished:
        code = self.process.wait(seconds)
        return Finished(code, self.out.read_text(), self.err.read_text(), _report(self.report_path))


def _report(path: Path) -> RunReport | None:
    return RunReport.from_json(path.read_text()) if path.exists() else None


@dataclass
class SparkJob:
    """One job on one table of a local service, run as often as a test likes."""

    service: LocalService
    directory: Path
    table: str
    source: SourceSpec
    options: dict[str, Any] = field(default_factory=dict)
    conf: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    launcher: tuple[str, ...] = (str(SPARK_SUBMIT),)
    start_process: Callable[..., Any] = subprocess.Popen
    secrets: SourceSecrets = field(default_factory=SourceSecrets)
    runs: int = 0
    spark: Any = None

    @property
    def pipe(self) -> PipeName:
        return PipeName.default_for_table("LOCAL", "PUBLIC", self.table)

    def channel(self, partition: str) -> str:
        return f"{self.options.get('channel_prefix', 'test')}_{self.table}_{partition}"

    def plan(self, **changes: Any) -> JobPlan:
        self.runs += 1
        work = self.directory / f"run{self.runs}"
        work.mkdir(parents=True)
        given = {
            "application": f"load {self.table}",
            "account_url": self.service.url,
            "ca_bundle": str(self.service.ca_file),
            "pipe": self.pipe,
            "channel_prefix": "test",
            "source_name": self.table,
            "source": self.source,
            "report_path": str(work / "report.json"),
            "credentials_path": str(work / "credentials.json"),
            "commit_timeout": 60.0,
        }
        return JobPlan(**{**given, **self.options, **changes})

    def start(self, *, master: str = "local[2]", **changes: Any) -> Running:
        work = self._written_plan(changes).parent
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        conf = {"spark.ui.enabled": "false", **self.conf}
        options = ["--master", master]
        options += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        submits = Path(self.launcher[0]).name == SPARK_SUBMIT.name
        command = [*self.launcher, *(options if submits else []), str(job_file())]
        with (work / "out").open("w") as out, (work / "err").open("w") as err:
            process = self.start_process(
                [*command, str(work / "plan.json")],
                env={**environment, **self.env},
                cwd=work,
                stdout=out,
                stderr=err,
                text=True,
                start_new_session=True,
            )
        return Running(process, work / "report.json", work / "out", work / "err")

    def run(self, **changes: Any) -> Finished:
        if self.spark is not None:
            return self._run_here(changes)
        with self.start(**changes) as running:
            return running.wait()

    def load(self, **changes: Any) -> Finished:
        """Run, which has to end well."""
        finished = self.run(**changes)
        assert finished.code == 0, finished.err[-3000:]
        return finished

    def _run_here(self, changes: dict[str, Any]) -> Finished:
        """Run what the submitted file runs, in the session that is there."""
        assert self.spark.getActiveSession() is not None, "the job would start and stop its own session"
        plan = self._written_plan(changes)
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = job.main([str(plan)])
        report = _report(plan.with_name("report.json"))
        return Finished(code, out.getvalue(), err.getvalue(), report)

    def _written_plan(self, changes: dict[str, Any]) -> Path:
        plan = self.plan(**changes)
        write_credentials(self.service.credentials, plan.credentials_path, self.secrets)
        path = Path(plan.report_path).with_name("plan.json")
        path.write_text(plan.to_json())
        return path

    def statuses(self, *partitions: str) -> dict[str, Any]:
        with self.service.client(self.table) as client:
            found = client.channel_statuses([self.channel(partition) for partition in partitions])
        return {partition: found[self.channel(partition)] for partition in partitions}

    def committed(self, *partitions: str) -> dict[str, str | None]:
        return {name: shown(status.committed) for name, status in self.statuses(*partitions).items()}


_numbers = itertools.count(1)


def numbered_name(prefix: str) -> str:
    """A name that no other test of this process has: a prefix of letters and a number."""
    return f"{prefix}{next(_numbers)}"


def new_table(service: LocalService, name: str) -> str:
    service.sql(f"CREATE TABLE LOCAL.PUBLIC.{name} (ID NUMBER, FILE VARCHAR, NOTE VARCHAR)")
    return name


def write_rows(path: Path, ids: Iterable[int], *, end: str = "\n") -> None:
    """Append numbered rows to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"ID": number, "FILE": path.name, "NOTE": ""}) for number in ids]
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(rows) + (end if rows else ""))
