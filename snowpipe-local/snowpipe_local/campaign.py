"""``snowpipe-local campaign``: a DAG or a program, run again and again under seeded faults.

A round is one run of it on a service of its own. Each try is a process that dies or stops for real, while the
service holds one of its requests up, before or after its effect. What stops is taken for dead, as a scheduler
does it, and goes on later, beside the next try or after it. What the tables hold in the end is compared with
what they hold after a run without faults.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from snowpipe_local.admin import ask
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.environment import check_ready, run_statement, variables
from snowpipe_local.errors import ConfigurationError, ServiceError
from snowpipe_local.tables import quote_path

MOST_TRIES = 8
HUNG_SECONDS = 120.0
_READY_SECONDS = 240.0
_LONGEST_TRY_SECONDS = 1_800.0
_SETTLE_SECONDS = 30.0
_POLL_SECONDS = 0.005
_WATCH_SECONDS = 0.05
_LOG_TAIL = 2_000
_MARK = "SNOWPIPE_CAMPAIGN_ROUND"
_CALLS = ("append", "open", "status", "statement", "put", "insert-files")
_PLAN_KEYS = frozenset({"command", "env", "init"})
_WRONGS = ("lost", "doubled", "unexpected", "early", "unfinished")

# Runs in a process of its own: this package knows no Airflow. Every try has the same logical date and run id.
_DAG_PROGRAM = """
import datetime, json, sys

path, dag_id, conf = sys.argv[1:]
try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:
    from airflow.models.dagbag import DagBag

bag = DagBag(dag_folder=path)
for file, error in bag.import_errors.items():
    sys.exit(f"{file} cannot be imported: {error}")
if dag_id:
    found = [bag.dags[dag_id]] if dag_id in bag.dags else []
else:
    found = list(bag.dags.values())
if len(found) != 1:
    sys.exit(f"{path} has the DAGs {sorted(bag.dags)}: choose one by --dag-id")
when = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
try:
    run = found[0].test(run_after=when, logical_date=when, run_conf=json.loads(conf))
except TypeError:
    run = found[0].test(execution_date=when, run_conf=json.loads(conf))
sys.exit(0 if getattr(run.state, "value", run.state) == "success" else 1)
"""


@dataclass(frozen=True)
class Hit:
    """What strikes a try at one of its requests.

    :param what: ``kill`` or ``stop``
    :param after: True when the request has had its effect
    :param nth: which request, from 1
    :param since: part of the URL of the request from which on they are counted, itself not among them
    """

    what: str
    after: bool
    nth: int
    since: str = ""

    def __str__(self) -> str:
        return f"{self.what} {'after' if self.after else 'before'} a request"

    @property
    def signal(self) -> int:
        """The signal that does it."""
        return signal.SIGKILL if self.what == "kill" else signal.SIGSTOP


class Try:
    """One try of a task or a DAG in a process of its own, which may stop.

    :param pid: the process, a child of this one
    :param group: True where signals go to the process group that it leads
    :param seconds: after which a try counts as hanging
    :param observe: called repeatedly during the wait
    """

    def __init__(
        self,
        pid: int,
        log: Path,
        *,
        group: bool = False,
        seconds: float = HUNG_SECONDS,
        observe: Callable[[], None] = lambda: None,
    ) -> None:
        self.pid = pid
        self.log = log
        self.code: int | None = None
        self._group = group
        self._seconds = seconds
        self._observe = observe

    def send(self, what: int) -> None:
        """Send it a signal."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, what) if self._group else os.kill(self.pid, what)

    def wait(self) -> int | None:
        """Wait for its end: the exit code; None where it has stopped.

        :raises AssertionError: if it hangs; it is killed then
        """
        deadline = time.monotonic() + self._seconds
        while self.code is None and time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                return None
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            else:
                self._observe()
                time.sleep(_POLL_SECONDS)
        if self.code is None:
            self.send(signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise AssertionError(f"a try hangs: {self.log.read_text()[-_LOG_TAIL:]}")
        return self.code

    def go_on(self) -> int | None:
        """Let a stopped one go on, to its end."""
        self.send(signal.SIGCONT)
        return self.wait()


def drawn_hit(draw: random.Random, requests: int) -> Hit | None:
    """Draw what strikes the next try; three times in ten nothing."""
    if draw.random() < 0.3:
        return None
    what = draw.choice(["kill", "kill", "stop"])
    return Hit(what, draw.random() < 0.5, draw.randint(1, requests))


def drawn_faults(draw: random.Random) -> list[str]:
    """Draw what the service does badly: none to two faults, each as for ``serve --faults``."""
    return [_drawn_fault(draw) for _ in range(draw.choice([0, 1, 1, 2]))]


def _drawn_fault(draw: random.Random) -> str:
    call = draw.choice(_CALLS)
    code = draw.choice(["503", "429@1", "500"]) if call != "statement" else "503"
    return draw.choice(
        [
            f"drop-append-response={draw.randrange(1, 6)}",
            f"answer-{call}={code}x{draw.randrange(1, 3)}",
            f"slow-{call}={draw.choice([0.05, 0.3])}x{draw.randrange(1, 4)}",
            f"commit-delay={draw.choice([0.1, 0.3])}",
            f"invalidate-channel={draw.randrange(1, 6)}",
        ]
    )


def until_green(
    start: Callable[[int, Hit | None], Try],
    draw: random.Random,
    hits: list[Hit | None],
    on_green: Callable[[], None],
    gives_up: Callable[[], bool] = lambda: False,
) -> bool:
    """Try again until a try succeeds; one that stops goes on beside the next one, or at the end.

    :param start: starts a try, by its number and by what strikes it
    :param on_green: called whenever a try has succeeded
    :param gives_up: whether an error has happened after which nobody tries again
    :return: False where no try succeeded
    """
    stopped: list[Try] = []
    ended = False
    for number in range(1, MOST_TRIES + 1):
        one = start(number, hits.pop() if hits else None)
        if stopped and draw.random() < 0.5:
            stopped[-1].send(signal.SIGCONT)
        code = one.wait()
        if code is None:
            stopped.append(one)
        elif code == 0:
            on_green()
            ended = True
            break
        elif code > 0 and gives_up():
            break
    for one in stopped:
        if one.go_on() == 0:
            on_green()
            ended = True
    return ended


Rows = Counter[str]
"""Rows with their table, as JSON, and how often each is there."""


@dataclass
class Round:
    """What became of one round.

    :param seed: draws its faults again
    :param lost: rows that never came although a try succeeded
    :param doubled: rows that are there more often than without faults
    :param early: rows that came only after a try had succeeded
    """

    seed: int
    faults: list[str] = field(default_factory=list)
    tries: int = 0
    seconds: float = 0.0
    lost: int = 0
    doubled: int = 0
    unexpected: int = 0
    early: int = 0
    unfinished: int = 0

    @property
    def is_right(self) -> bool:
        """True where the tables hold what they hold without faults, and did when a try succeeded."""
        return not any(getattr(self, name) for name in _WRONGS)

    def judge(self, expected: Rows, found: Rows) -> None:
        """Compare what is there in the end with what has to be."""
        for row, times in (found - expected).items():
            if row in expected:
                self.doubled += times
            else:
                self.unexpected += times
        missing = (expected - found).total()
        self.early = max(0, self.early - missing)
        self.lost = 0 if self.unfinished else missing

    def words(self) -> str:
        """The verdict in one line."""
        wrong = ", ".join(f"{getattr(self, name)} {name}" for name in _WRONGS if getattr(self, name))
        struck = ", ".join(self.faults) or "no fault"
        return f"seed {self.seed}: {wrong or 'right'} ({self.tries} tries, {self.seconds:.0f} s; {struck})"


@dataclass
class Work:
    """What a campaign runs again and again.

    :param init: file of SQL statements that each service runs first
    :param compare: queries whose rows are compared; all rows of all tables without any
    :param conn_ids: ids of connections that lead to the service, beside ``snowflake_default``
    :param airflow_home: copied for each run, None for a program that needs no Airflow
    """

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    init: Path | None = None
    compare: Sequence[str] = ()
    conn_ids: Sequence[str] = ()
    airflow_home: Path | None = None

    def environment(self, home: DataDirectory, folder: Path, mark: str) -> dict[str, str]:
        """The environment of a run: nothing of the caller's Airflow, so that nothing of it is loaded into."""
        given = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
        if spark := os.environ.get("AIRFLOW_CONN_SPARK_DEFAULT"):
            given["AIRFLOW_CONN_SPARK_DEFAULT"] = spark
        service = variables(home)
        for conn_id in self.conn_ids:
            service[f"AIRFLOW_CONN_{conn_id.upper()}"] = service["AIRFLOW_CONN_SNOWFLAKE_DEFAULT"]
        airflow = _airflow_settings(folder / "airflow")
        return {**given, **airflow, **service, **self.env, _MARK: mark}


class Run:
    """One run of some work on a service of its own, in a folder of its own."""

    def __init__(self, work: Work, folder: Path) -> None:
        self._work = work
        self._folder = folder
        self._mark = uuid.uuid4().hex
        self.home = DataDirectory(folder / "service")
        self.log = folder / "log"
        self.tries = 0

    @contextmanager
    def service(self) -> Iterator[None]:
        """A service, and in the end none of the processes of this run."""
        self.home.root.mkdir(parents=True)
        if self._work.airflow_home:
            shutil.copytree(self._work.airflow_home, self._folder / "airflow")
        command = [sys.executable, "-m", "snowpipe_local.cli", "serve", "--admin"]
        command += ["--data-dir", str(self.home.root)]
        command += ["--init", str(self._work.init)] if self._work.init else []
        with (self._folder / "service.log").open("wb") as log:
            service = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603
        try:
            self._wait_until_ready(service)
            yield
        finally:
            self._end_all()
            service.terminate()
            try:
                service.wait(_READY_SECONDS)
            except subprocess.TimeoutExpired:
                service.kill()
                service.wait()

    def _wait_until_ready(self, service: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while service.poll() is None and time.monotonic() < deadline:
            with suppress(ServiceError):
                check_ready(self.home)
                return
            time.sleep(_WATCH_SECONDS)
        raise ServiceError(f"the service did not start: {_tail(self._folder / 'service.log')}")

    def _end_all(self) -> None:
        """End what the tries have left: drivers of Spark outlive the task that started them."""
        for pid in psutil.pids():
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.environ().get(_MARK) == self._mark:
                    process.kill()

    def start(self, hit: Hit | None = None) -> Try:
        """Start a try, and have the service hold up the request at which it is struck."""
        self.tries += 1
        self.arm(hit)
        with self.log.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603  what the user asks for
                self._work.command,
                env=self._work.environment(self.home, self._folder, self._mark),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        process.returncode = 0  # Try waits for it
        observe = _Watch(self, process.pid, hit) if hit else (lambda: None)
        return Try(process.pid, self.log, group=True, seconds=_LONGEST_TRY_SECONDS, observe=observe)

    def arm(self, hit: Hit | None) -> None:
        """Have the service hold up a request from now on, and none that was to be held up before.

        :param hit: the request; None for none
        """
        kept = [one for one in self.admin("faults")["faults"] if not one.startswith("hold-")]
        if hit:
            kept.append(f"hold-{'answer' if hit.after else 'request'}={hit.nth}")
        self.serve_badly(kept)

    def serve_badly(self, faults: Sequence[str]) -> None:
        """Have the service do these faults, and no others.

        :param faults: each as for ``serve --faults``
        """
        self.admin("faults", clear=True, **({"set": ",".join(faults)} if faults else {}))

    def admin(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command to the service's admin socket."""
        return ask(self.home.admin_socket, command, arguments)

    def rows(self) -> Rows:
        """The rows that are compared."""
        if self._work.compare:
            return Rows(row for query in self._work.compare for row in self._fetch(query, query))
        found: list[str] = []
        for table in json.loads(self._sql("SHOW TABLES IN DATABASE LOCAL")):
            path = quote_path(table["database_name"], table["schema_name"], table["name"])
            found += self._fetch(f"SELECT * FROM {path}", path)  # noqa: S608  quoted
        return Rows(found)

    def _fetch(self, query: str, name: str) -> list[str]:
        return [f"{name} {json.dumps(row, sort_keys=True)}" for row in json.loads(self._sql(query))]

    def _sql(self, statement: str) -> str:
        for left in reversed(range(MOST_TRIES)):
            try:
                return run_statement(self.home, statement, "json")
            except ServiceError:  # a refusal that was meant for a try
                if not left:
                    raise
        raise AssertionError


class _Watch:
    """Strikes a try while the service holds up its request, then lets the request go on."""

    def __init__(self, run: Run, pid: int, hit: Hit) -> None:
        self._run, self._pid, self._hit = run, pid, hit
        self._next, self._done = 0.0, False

    def __call__(self) -> None:
        if self._done or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _WATCH_SECONDS
        if self._run.admin("requests")["held"]:
            self._done = True
            with suppress(ProcessLookupError):
                os.killpg(self._pid, self._hit.signal)
            self._run.arm(None)


class Campaign:
    """Rounds of some work.

    :param folder: for services and logs; that of a wrong round stays
    """

    def __init__(self, work: Work, folder: Path) -> None:
        self._work = work
        self._folder = folder
        self._expected = Rows()
        self._requests = 0

    def prepare(self) -> int:
        """Run twice without faults; how many rows have to be there.

        :raises ServiceError: if that fails, leaves no rows, or not the same ones
        """
        (first, self._requests), (second, _) = self._faultless("first"), self._faultless("second")
        if not first:
            raise ConfigurationError("the run leaves no rows in the tables: there is nothing to compare")
        if first != second:
            (row, _), *_ = ((first - second) + (second - first)).items()
            raise ConfigurationError(
                "two runs without faults leave different rows, so that none can be judged; compare what is "
                f"the same by --compare 'SELECT …'. For example: {row[:200]}"
            )
        self._expected = first
        return first.total()

    def _faultless(self, name: str) -> tuple[Rows, int]:
        run = Run(self._work, self._folder / name)
        with run.service():
            before = run.admin("requests")["requests"]
            code = run.start().wait()
            if code != 0:
                raise ConfigurationError(f"the run fails without faults ({code}): {_tail(run.log)}")
            requests = run.admin("requests")["requests"] - before
            return self._settled(run, Rows()), requests

    def round(self, seed: int) -> Round:
        """Run once, under the faults that a seed draws."""
        began, draw = time.monotonic(), random.Random(seed)  # noqa: S311  repeats a round
        one = Round(seed)
        run = Run(self._work, self._folder / str(seed))
        with run.service():
            bad = drawn_faults(draw)
            run.serve_badly(bad)
            hits = [drawn_hit(draw, self._requests) for _ in range(2)]
            one.faults = [
                *(fault.partition("=")[0] for fault in bad),
                *(str(hit) for hit in hits[::-1] if hit),
            ]

            def claim() -> None:
                run.arm(None)
                one.early = max(one.early, (self._expected - run.rows()).total())

            try:
                ended = until_green(lambda _, hit: run.start(hit), draw, hits, claim)
            except AssertionError:
                ended = False
            one.unfinished = int(not ended)
            run.serve_badly([])
            one.judge(self._expected, self._settled(run, self._expected))
            one.tries = run.tries
        one.seconds = time.monotonic() - began
        if one.is_right:
            shutil.rmtree(self._folder / str(seed))
        return one

    def _settled(self, run: Run, expected: Rows) -> Rows:
        """What is there once nothing waits for its commit any more."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            waits = any(
                channel["uncommitted_appends"]
                for database in run.admin("status")["databases"]
                for pipe in database["pipes"]
                for channel in pipe["channels"]
            )
            found = run.rows()
            if (not waits and not expected - found) or time.monotonic() > deadline:
                return found
            time.sleep(_WATCH_SECONDS)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-_LOG_TAIL:].strip() if log.exists() else ""


def _airflow_settings(home: Path) -> dict[str, str]:
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
    }


def _new_airflow(home: Path) -> None:
    """Make an Airflow with a database of its own.

    :raises ServiceError: if there is no Airflow, or it cannot
    """
    home.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"],
        env={**env, **_airflow_settings(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ServiceError(f"airflow db migrate ended with {done.returncode}: {done.stderr[-_LOG_TAIL:]}")


def run_command(arguments: argparse.Namespace) -> int:
    """Run a campaign, print a line for each round and the verdict; 1 if a round was wrong.

    :raises ServiceError: if it cannot be run
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what a round has started ends with it
    folder = Path(tempfile.mkdtemp(prefix="snowpipe-campaign-"))
    try:
        campaign = Campaign(_work(arguments, folder), folder)
        count = campaign.prepare()
    except ServiceError:
        shutil.rmtree(folder)
        raise
    print(f"without faults: {count} rows, twice the same", flush=True)
    deadline = time.monotonic() + arguments.minutes * 60
    rounds: list[Round] = []
    while not rounds or (time.monotonic() < deadline and len(rounds) != arguments.rounds):
        rounds.append(campaign.round(arguments.seed + len(rounds)))
        print(rounds[-1].words(), flush=True)
    wrong = [one for one in rounds if not one.is_right]
    counts = ", ".join(f"{sum(getattr(one, name) for one in rounds)} {name}" for name in _WRONGS)
    print(f"{len(rounds)} rounds from seed {arguments.seed}: {counts}")
    if not wrong:
        shutil.rmtree(folder)
        return 0
    print(
        f"wrong: seeds {', '.join(str(one.seed) for one in wrong)}; their logs and services are in {folder}"
    )
    return 1


def _work(arguments: argparse.Namespace, folder: Path) -> Work:
    env = dict(_pair(text) for text in arguments.env)
    work = partial(Work, compare=arguments.compare, conn_ids=arguments.conn_id)
    if arguments.plan:
        plan = _plan(arguments.plan)
        init = arguments.init or (arguments.plan.parent / plan["init"] if "init" in plan else None)
        return work(plan["command"], {**plan.get("env", {}), **env}, _file(init))
    dag = _file(arguments.dag)
    try:
        json.loads(arguments.conf)
    except ValueError as error:
        raise ConfigurationError(f"--conf is not JSON: {error}") from error
    home = folder / "airflow"
    _new_airflow(home)
    command = [sys.executable, "-c", _DAG_PROGRAM, str(dag), arguments.dag_id or "", arguments.conf]
    paths = [str(dag.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    # dag.test() of Airflow 3 writes what it finds in the folder of DAGs to the database first.
    env = {"PYTHONPATH": os.pathsep.join(paths), "AIRFLOW__CORE__DAGS_FOLDER": str(dag.parent), **env}
    return work(command, env, _file(arguments.init), airflow_home=home)


def _plan(path: Path) -> dict[str, Any]:
    try:
        plan = json.loads(_file(path).read_text())
    except ValueError as error:
        raise ConfigurationError(f"--plan {path} is not JSON: {error}") from error
    if not isinstance(plan, dict) or set(plan) - _PLAN_KEYS or not plan.get("command"):
        raise ConfigurationError(f'--plan {path}: give {{"command": [..]}}, and "env" and "init" if needed')
    return plan


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigurationError(f"--env {text}: write NAME=VALUE")
    return name, value


def _file(path: Path | None) -> Any:
    """The absolute path of a file; None for None.

    :raises ConfigurationError: if it is not there
    """
    if path is None:
        return None
    if not path.expanduser().is_file():
        raise ConfigurationError(f"{path} is not a file")
    return path.expanduser().resolve()
