"""One service to be fuzzed; after each module it must be alive, unhurt, and its committed rows right."""

import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from hypothesis import HealthCheck, settings
from snowpipe_local.testing import LocalService
from tests.fuzz.wire import Wire

from tests.waiting import wait_until

_GUARD = "GUARD"
# Of a writer between two commits.
_PAUSE_SECONDS = 0.1
_RSS_BYTES = 1.5e9
_HURT = re.compile(
    r"failed inside the service|Traceback|Exception in ASGI|^[-0-9]+ [:,0-9]+ ERROR ", re.IGNORECASE
)


_ASKED = os.environ.get("SNOWPIPE_FUZZ_CASES")
_CASES = int(_ASKED or 100)


def cases(share: float) -> settings:
    """Return the settings of a test that takes this share of the cases, which are always the same ones.

    ``SNOWPIPE_FUZZ_CASES=20000`` asks for shares of that many, with new random values (``make nightly``).
    """
    return settings(
        max_examples=max(1, round(_CASES * share)),
        derandomize=_ASKED is None,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="session")
def _fuzzed_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    service = LocalService(tmp_path_factory.mktemp("fuzzed"), limits="off", admin=True)
    service.start()
    yield service
    service.stop()


@pytest.fixture(scope="module")
def fuzzed(_fuzzed_process: LocalService) -> LocalService:
    _fuzzed_process.drop_everything()
    return _fuzzed_process


class HonestWriter:
    """Appends ten rows after the other to a channel of its own, and waits for each commit, until the end."""

    def __init__(self, service: LocalService, number: int, ended: threading.Event) -> None:
        self._wire = Wire(service)
        self._number = number
        self._ended = ended

    def write(self) -> int:
        """Write until the end; how many rows were committed."""
        channel, committed = f"writer{self._number}", 0
        continuation = self._wire.open("KEPT", channel, _GUARD)["next_continuation_token"]
        while not (committed and self._ended.wait(_PAUSE_SECONDS)):
            rows = range(committed, committed + 10)
            body = "".join(f'{{"w":{self._number},"n":{row}}}\n' for row in rows).encode()
            query = {"continuationToken": continuation, "endOffsetToken": str(rows.stop)}
            answer = self._wire.append("KEPT", channel, body, query, database=_GUARD)
            assert answer.status == 200, answer
            continuation = answer.json["next_continuation_token"]
            wait_for_token(self._wire, "KEPT", channel, str(rows.stop), _GUARD)
            committed = rows.stop
        self._wire.close()
        return committed


@pytest.fixture(scope="module")
def wire(fuzzed: LocalService) -> Iterator[Wire]:
    """The connection; two honest writers commit rows beside it, which are counted after the module."""
    wire = Wire(fuzzed)
    wire.rows(f"CREATE DATABASE {_GUARD}")
    wire.rows("CREATE TABLE GUARD.PUBLIC.KEPT (w INT, n INT)")
    pid = fuzzed.pid
    ended = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(HonestWriter(fuzzed, number, ended).write) for number in (1, 2)]
        yield wire
        ended.set()
    committed = [str(writer.result()) for writer in writers]
    wire.close()
    assert fuzzed.pid == pid
    assert wire.send("GET", "/health").json["status"] == "ready"
    counted = wire.rows(
        "SELECT w, count(*), min(n), max(n) + 1, count(DISTINCT n) FROM KEPT GROUP BY w ORDER BY w",
        database=_GUARD,
    )
    assert counted == [[str(w), rows, "0", rows, rows] for w, rows in enumerate(committed, 1)]
    wire.close()
    assert psutil.Process(pid).memory_info().rss < _RSS_BYTES
    hurt = [line for line in fuzzed.log_file.read_text().splitlines(keepends=True) if _HURT.search(line)]
    assert not hurt, "".join(hurt[:5]) + fuzzed.log_file.read_text()[-4000:]


def wait_for_token(wire: Wire, table: str, channel: str, token: str | None, database: str = "LOCAL") -> None:
    """Wait until a channel's committed token is this one."""
    wait_until(
        lambda: wire.status(table, channel, database)["last_committed_offset_token"] == token,
        what=f"token {token} of channel {channel}",
    )
