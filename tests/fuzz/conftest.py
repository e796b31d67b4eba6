"""One service to be fuzzed; after each module it must be alive, unhurt, and its committed rows right."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.fuzz.wire import Wire
from tests.local_service import LocalService

_GUARD = "GUARD"
_HURT = re.compile(
    r"failed inside the service|Traceback|Exception in ASGI|^[-0-9]+ [:,0-9]+ ERROR ", re.IGNORECASE
)


@pytest.fixture(scope="session")
def _fuzzed_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    service = LocalService(tmp_path_factory.mktemp("fuzzed"), limits="off", admin=True)
    service.launch()
    yield service
    service.stop()


@pytest.fixture(scope="module")
def fuzzed(_fuzzed_process: LocalService) -> LocalService:
    _fuzzed_process.drop_everything()
    return _fuzzed_process


@pytest.fixture(scope="module")
def wire(fuzzed: LocalService) -> Iterator[Wire]:
    """The connection; the guard's rows are committed before the module and looked at after it."""
    wire = Wire(fuzzed)
    wire.rows(f"CREATE DATABASE {_GUARD}")
    wire.rows("CREATE TABLE GUARD.PUBLIC.KEPT (n INT)")
    pid = fuzzed.pid
    _append_to_guard(wire, range(100))
    yield wire
    wire.close()
    assert fuzzed.pid == pid
    assert wire.send("GET", "/health").json["status"] == "ready"
    assert wire.status("KEPT", "guard", _GUARD)["last_committed_offset_token"] == "99"
    _append_to_guard(wire, range(100, 200))
    counted = wire.rows(
        "SELECT count(*), min(n), max(n), count(DISTINCT n) FROM GUARD.PUBLIC.KEPT", database=_GUARD
    )
    assert counted == [["200", "0", "199", "200"]]
    wire.close()
    hurt = [line for line in fuzzed.log_file.read_text().splitlines(keepends=True) if _HURT.search(line)]
    assert not hurt, "".join(hurt[:5]) + fuzzed.log_file.read_text()[-4000:]


def wait_for_token(wire: Wire, table: str, channel: str, token: str | None, database: str = "LOCAL") -> None:
    """Wait until a channel's committed token is this one."""
    deadline = time.monotonic() + 120
    while wire.status(table, channel, database)["last_committed_offset_token"] != token:
        assert time.monotonic() < deadline, wire.status(table, channel, database)
        time.sleep(0.02)


def _append_to_guard(wire: Wire, numbers: range) -> None:
    opened = wire.open("KEPT", "guard", _GUARD)
    body = "".join(f'{{"n":{number}}}\n' for number in numbers).encode()
    query = {"continuationToken": opened["next_continuation_token"], "endOffsetToken": str(numbers[-1])}
    assert wire.append("KEPT", "guard", body, query, database=_GUARD).status == 200
    wait_for_token(wire, "KEPT", "guard", str(numbers[-1]), _GUARD)
