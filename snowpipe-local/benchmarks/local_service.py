"""Ratios of the local service in one run on one core: commits, small bodies, ``select 1``, memory.

* NDJSON committed by the engine in groups of 8 to 16 MB, against DuckDB's own typed ``json_transform`` of the
  same bytes into a temporary table (processor seconds of this process);
* bodies of 64 KB committed in groups, against one commit a body (wall time, since each commit waits for the
  disk; nobody lingers);
* the round trip of ``select 1`` with the Python connector, against the same answer given statically by the
  same HTTP stack (wall time, the client is included in both);
* resident memory of a service under load for five minutes, with a steady amount of data, after a warm-up.

The rounds of the two sides are interleaved. Only the ratios mean something: of medians, and for the first the
median of the ratios of neighbouring rounds, since some rounds see a checkpoint and some a busy machine.

    python benchmarks/local_service.py --rounds 9 --soak-seconds 300
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import duckdb
import psutil
import requests
import uvicorn
from snowpipe_local.catalog import Catalog
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.engine.channel import Append
from snowpipe_local.engine.lines import arrow_lines, split_lines
from snowpipe_local.environment import client_session
from snowpipe_local.faults import Faults
from snowpipe_local.fronts.http import (
    Receive,
    Response,
    Scope,
    Send,
    in_thread,
    read_body,
    request_of,
    respond,
)
from snowpipe_local.limits import Limits
from snowpipe_local.sql import front
from snowpipe_local.sql.session import Session, use_schema
from snowpipe_local.testing import LocalService
from tests.streaming_rest import Rest, continuation

COLUMNS = (
    "id NUMBER(18,0), seq NUMBER(18,0), host VARCHAR, path VARCHAR, agent VARCHAR, country VARCHAR, "
    "session VARCHAR, amount NUMBER(12,2), at TIMESTAMP_NTZ, ok BOOLEAN, payload VARIANT"
)
GROUP = 12 << 20
_WARM_UP = 0.4
TARGETS = {
    "commit of NDJSON / typed parse": (">=", 0.70),
    "64 KB bodies in groups / one commit a body": (">=", 14.0),
    "select 1 / static answer": ("<=", 1.3),
    "growth of memory over a soak": ("<=", 0.05),
}


@dataclass(frozen=True)
class Ratio:
    """One measured ratio and the medians behind it."""

    name: str
    value: float
    detail: str

    def is_met(self) -> bool:
        """True when the target is reached."""
        sign, target = TARGETS[self.name]
        return self.value >= target if sign == ">=" else self.value <= target

    def as_json(self) -> dict[str, Any]:
        """As the provider's benchmarks print theirs."""
        sign, target = TARGETS[self.name]
        values = {"what": self.name, "measured": self.value, "required": target, "detail": self.detail}
        return {**values, "at_most": sign == "<="}

    def line(self) -> str:
        """One line for the reader."""
        sign, target = TARGETS[self.name]
        verdict = "met   " if self.is_met() else "MISSED"
        return f"{verdict} {self.name}: {self.value:.2f} (target {sign} {target}); {self.detail}"


def events(first: int, size: int) -> bytes:
    """NDJSON of about ``size`` bytes, some 300 bytes a row."""
    chance = random.Random(first)  # noqa: S311 - data, no secret
    rows: list[bytes] = []
    total, number = 0, first
    while total < size:
        row = {
            "id": number,
            "seq": number * 7919 % 1_000_003,
            "host": f"host-{number % 97}.example.org",
            "path": f"/shop/item/{chance.randrange(10**6)}/view",
            "agent": ("Mozilla/5.0 (X11; Linux x86_64)", "curl/8.5.0", "okhttp/4.12")[number % 3],
            "country": ("DE", "US", "JP", "BR", "IN")[number % 5],
            "session": f"{chance.getrandbits(64):016x}",
            "amount": round(chance.random() * 500, 2),
            "at": f"2026-03-{1 + number % 28:02}T{number % 24:02}:15:{number % 60:02}.{number % 1000:03}",
            "ok": number % 4 != 0,
            "payload": {"tags": ["a", "b"], "n": number % 11},
        }
        rows.append(json.dumps(row).encode() + b"\n")
        total += len(rows[-1])
        number += 1
    return b"".join(rows)


class Engine:
    """The engine inside this process, without the committer's waiting."""

    def __init__(self, folder: Path) -> None:
        self.catalog = Catalog(folder, Faults(), Limits(0.0, 0.0, 0))
        self.database = self.catalog.database("LOCAL")
        session = Session(self.catalog, "DEMO")
        use_schema(session, "LOCAL", "PUBLIC")
        front.execute(session, f"CREATE TABLE t ({COLUMNS})")
        session.close()
        self.table = self.database.tables.find("PUBLIC", "T")
        pipe = self.database.pipes.resolve("PUBLIC", "T-STREAMING")
        self._channel = self.database.channels.open(
            pipe, "c", offset_token=None, fail_on_uncommitted_rows=False
        )

    def commit(self, bodies: list[bytes]) -> None:
        """Commit bodies of one channel in one group."""
        stored = self._channel.committed
        group = [
            Append(
                self._channel,
                stored.client_sequencer,
                stored.row_sequencer + index,
                f"r{index}",
                split_lines(body),
                None,
                f"{stored.row_sequencer + index}",
                time.monotonic(),
            )
            for index, body in enumerate(bodies)
        ]
        self.database.commit(group)
        if self._channel.committed.row_sequencer != stored.row_sequencer + len(bodies):
            raise SystemExit("a commit failed: no result")


def ratio_of_commits(rounds: int) -> Ratio:
    """Commit against the typed parse."""
    bodies = [events(number * 10**6, GROUP // 3) for number in range(18)]
    groups = [bodies[start : start + 3] for start in range(0, len(bodies), 3)]
    size = sum(map(len, bodies))
    with tempfile.TemporaryDirectory(prefix="snowpipe-bench-") as folder:
        engine = Engine(Path(folder))
        assert engine.table is not None
        spec = json.dumps({column.name.lower(): column.type.duckdb for column in engine.table.columns})
        peer = duckdb.connect(":memory:", config={"threads": 1})
        parsed_lines = f"SELECT unnest(json_transform(l, '{spec}')) FROM lines"  # noqa: S608
        parsing = f"CREATE OR REPLACE TEMP TABLE parsed AS {parsed_lines}"

        def parse() -> None:
            for group in groups:
                peer.register("lines", arrow_lines([split_lines(body) for body in group]))
                peer.execute(parsing)

        def commit() -> None:
            for group in groups:
                engine.commit(group)

        parses, commits = interleaved(rounds, time.process_time, parse, commit)
        engine.catalog.close()
    parsed, committed = statistics.median(parses), statistics.median(commits)
    # Neighbouring turns see the same machine, whatever else it does for a while.
    ratio = statistics.median(map(truediv, parses, commits))
    # Most rounds see no checkpoint; the mean shows what one costs when it is shared by all.
    detail = (
        f"{size / 1e6 / committed:.0f} against {size / 1e6 / parsed:.0f} MB/CPU-s, "
        f"{sum(parses) / sum(commits):.2f} with the share of the checkpoints"
    )
    return Ratio("commit of NDJSON / typed parse", ratio, detail)


def ratio_of_small_bodies(rounds: int) -> Ratio:
    """Group commit of 64 KB bodies against one commit a body."""
    bodies = [events(number * 10**6, 64 << 10) for number in range(128)]
    with tempfile.TemporaryDirectory(prefix="snowpipe-bench-") as folder:
        engine = Engine(Path(folder))

        def together() -> None:
            for _ in range(4):
                engine.commit(bodies)

        def alone() -> None:
            for body in bodies[:64]:
                engine.commit([body])

        grouped, single = map(statistics.median, interleaved(rounds, time.perf_counter, together, alone))
        engine.catalog.close()
    grouped_rate, single_rate = 4 * len(bodies) / grouped, 64 / single
    detail = f"{grouped_rate:.0f} against {single_rate:.0f} bodies/s, groups of 128"
    return Ratio("64 KB bodies in groups / one commit a body", grouped_rate / single_rate, detail)


def interleaved(
    rounds: int, clock: Callable[[], float], first: Callable[[], None], second: Callable[[], None]
) -> tuple[list[float], list[float]]:
    """Return the costs of two things, measured in turns after a round that warms up."""
    costs: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for work, seen in zip((first, second), costs, strict=True):
            began = clock()
            work()
            if number:
                seen.append(clock() - began)
    return costs


def ratio_of_round_trips(service: LocalService, scratch: Path, rounds: int, calls: int = 200) -> Ratio:
    """``select 1`` with the connector, against a server that only repeats the recorded answers."""
    os.environ["REQUESTS_CA_BUNDLE"] = os.environ["SSL_CERT_FILE"] = str(service.ca_file)
    recorded = scratch / "recorded.json"
    recorded.write_text(json.dumps(_record(service)))
    command = [
        sys.executable,
        __file__,
        "--static-answers",
        str(recorded),
        "--data-dir",
        str(service.data_dir),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as static:
        try:
            assert static.stdout is not None
            port = int(static.stdout.readline())
            real, floor = _connect(service, service.port), _connect(service, port)
            with real.cursor() as one, floor.cursor() as other:
                costs = interleaved(
                    rounds * calls, time.perf_counter, lambda: _select(one), lambda: _select(other)
                )
            real.close()
        finally:
            static.terminate()
    asked, answered = map(statistics.median, costs)
    detail = f"{asked * 1000:.2f} against {answered * 1000:.2f} ms"
    return Ratio("select 1 / static answer", asked / answered, detail)


def _connect(service: LocalService, port: int) -> Any:
    import snowflake.connector

    return snowflake.connector.connect(
        account=service.account,
        user=service.user,
        password=DataDirectory(service.data_dir).password_file.read_text().strip(),
        host="127.0.0.1",
        port=port,
        database="LOCAL",
        schema="PUBLIC",
        login_timeout=30,
        network_timeout=30,
    )


def _select(cursor: Any) -> None:
    if cursor.execute("select 1").fetchall() != [(1,)]:
        raise SystemExit("select 1 is not 1: no result")


def _record(service: LocalService) -> dict[str, Any]:
    """Return the service's answers to a login and to ``select 1``."""
    home = DataDirectory(service.data_dir)
    login = {
        "LOGIN_NAME": service.user,
        "PASSWORD": home.password_file.read_text().strip(),
        "ACCOUNT_NAME": service.account,
        "CLIENT_APP_ID": "PythonConnector",
        "CLIENT_APP_VERSION": "4.8.1",
    }
    with client_session(home) as http:
        path = "/session/v1/login-request"
        opened = http.post(service.url + path, json={"data": login}, timeout=30).json()
        headers = {"Authorization": f'Snowflake Token="{opened["data"]["token"]}"'}
        path = "/queries/v1/query-request"
        answer = http.post(service.url + path, json={"sqlText": "select 1"}, headers=headers, timeout=30)
    return {"login-request": opened, "query-request": answer.json()}


def serve_static(recorded: Path, home: DataDirectory) -> None:
    """Answer with recorded JSON through the service's own HTTP stack, until terminated."""
    answers = {name: Response.of_json(value) for name, value in json.loads(recorded.read_text()).items()}
    otherwise = Response.of_json({"data": None, "code": None, "message": None, "success": True})

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = request_of(scope, await read_body(receive, 1 << 20))
        last = request.segments[-1]
        await respond(send, await in_thread(lambda: answers.get(last, otherwise)))

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(
        application,
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        ssl_certfile=str(home.tls_dir / "server.pem"),
        ssl_keyfile=str(home.tls_dir / "server.key"),
    )
    uvicorn.Server(config).run(sockets=[listener])


def ratio_of_memory(service: LocalService, seconds: float) -> Ratio:
    """Growth of the peak of resident memory from the first half of a soak to the second."""
    service.sql(f"CREATE TABLE soak ({COLUMNS})")
    stop, failures = threading.Event(), list[str]()
    writers = [
        threading.Thread(target=_soak, args=(service, f"c{n}", stop, failures), daemon=True) for n in range(4)
    ]
    for writer in writers:
        writer.start()
    # The allocator's arenas fill up over the first cycles of the write-ahead log.
    for _ in _samples(service, seconds * _WARM_UP):
        pass
    samples = list(_samples(service, seconds))
    stop.set()
    for writer in writers:
        writer.join(60)
    if failures:
        raise SystemExit(f"the soak failed: {failures[0]}")
    # Memory rises with the write-ahead log and falls with every checkpoint, about once in a hundred seconds;
    # so the peaks of the halves are compared, not single samples.
    half = len(samples) // 2
    first, second = (max(size for _, size in part) for part in (samples[:half], samples[half:]))
    committed = Rest(service, "SOAK").statuses("c0", "c1", "c2", "c3")
    rows = sum(status["rows_inserted"] for status in committed.values())
    detail = (
        f"peak {second / 2**20:.0f} MB after {first / 2**20:.0f} MB, {seconds:.0f} s after a warm-up of "
        f"{seconds * _WARM_UP:.0f} s, {rows} rows"
    )
    return Ratio("growth of memory over a soak", second / first - 1, detail)


def _soak(service: LocalService, channel: str, stop: threading.Event, failures: list[str]) -> None:
    body = events(0, 256 << 10)
    rest = Rest(service, "SOAK")
    try:
        token, number = continuation(rest.open(channel)), 0
        while not stop.wait(0.25):
            token = continuation(rest.append(channel, token, body, str(number)))
            number += 1
            rest.statuses(channel)
    except (requests.RequestException, AssertionError) as error:
        failures.append(f"{channel}: {error}")


def _samples(service: LocalService, seconds: float) -> Iterator[tuple[float, float]]:
    process = psutil.Process(service.pid)
    began = time.monotonic()
    cleared = began
    while (now := time.monotonic()) - began < seconds:
        yield now - began, float(process.memory_info().rss)
        if now - cleared > 15:
            # A steady amount of data: DuckDB rightly keeps more of a larger table in memory.
            service.sql("TRUNCATE TABLE soak")
            cleared = now
        time.sleep(min(1.0, seconds / 20))


def main() -> None:
    """Measure and print the ratios as text and as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--soak-seconds", type=float, default=300.0, help="0 leaves the soak out")
    parser.add_argument("--static-answers", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--data-dir", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    # Before DuckDB counts the cores; child processes inherit it.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if options.static_answers:
        serve_static(options.static_answers, DataDirectory(options.data_dir))
        return
    ratios = [ratio_of_commits(options.rounds), ratio_of_small_bodies(options.rounds)]
    with tempfile.TemporaryDirectory(prefix="snowpipe-bench-") as scratch:
        service = LocalService(Path(scratch) / "service", limits="off")
        service.start()
        try:
            ratios.append(ratio_of_round_trips(service, Path(scratch), options.rounds))
            if options.soak_seconds:
                ratios.append(ratio_of_memory(service, options.soak_seconds))
        finally:
            service.stop()
    for ratio in ratios:
        print(ratio.line())
    results = [ratio.as_json() for ratio in ratios]
    print(json.dumps({"rounds": options.rounds, "load": os.getloadavg()[0], "results": results}))
    sys.exit(not all(ratio.is_met() for ratio in ratios))


if __name__ == "__main__":
    main()
