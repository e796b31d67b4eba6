"""The admin socket: faults at run time, failed-over pipes, invalid channels, checkpoints."""

import json
import socket
import stat

import psutil
import pytest
from snowpipe_local.admin import MAX_LINE_BYTES, address_of
from snowpipe_local.errors import ServiceError
from snowpipe_local.testing import LocalService
from tests.streaming_rest import Rest, Writer

from tests.waiting import wait_until

PIPE = "LOCAL.PUBLIC.T-STREAMING"


@pytest.fixture
def service(crash_service: LocalService) -> LocalService:
    crash_service.sql("CREATE TABLE t (id INT)")
    return crash_service


def _row(number: int) -> tuple[bytes, int]:
    """A line with a number, and that number as its token."""
    return b'{"id":%d}\n' % number, number


def test_faults_are_added_shown_and_cleared_at_run_time(service: LocalService) -> None:
    service.admin("faults", set="answer-append=429x2,kill-after-commit=9,answer-status=404html")
    lost = Rest(service, "T").bulk_status("c")
    assert (lost.status_code, lost.headers["Content-Type"].partition(";")[0]) == (404, "text/html")
    writer = Writer(Rest(service, "T"))
    assert [writer.append(*_row(1)).status_code for _ in range(3)] == [429, 429, 200]
    wait_until(lambda: service.admin("faults")["faults"] == ["kill-after-commit=8"])
    done = service.cli("admin", "faults", "--clear", "--set", "commit-delay=0.5")
    assert json.loads(done.stdout) == {"faults": ["commit-delay=0.5"]}
    assert service.admin("faults", clear=True) == {"faults": []}


def test_an_invalidated_channel_must_be_opened_again_and_keeps_its_token(service: LocalService) -> None:
    rest = Rest(service, "T")
    writer = Writer(rest)
    writer.commit(*_row(1))
    service.admin("invalidate", pipe=PIPE, channel="c")
    refused = writer.append(*_row(2))
    assert (refused.status_code, "REOPENED" in refused.json()["code"]) == (409, True)
    assert Writer(rest).committed == "1"
    with pytest.raises(ServiceError, match="nobody"):
        service.admin("invalidate", pipe=PIPE, channel="nobody")


def test_rows_and_tokens_survive_a_death_during_a_checkpoint_and_the_socket_is_made_again(
    service: LocalService,
) -> None:
    writer = Writer(Rest(service, "T"))
    for number in range(5):
        writer.commit(*_row(number))
    service.admin("faults", set="kill-during-checkpoint=1")
    process = psutil.Process(service.pid)
    with pytest.raises(ServiceError):
        service.admin("checkpoint")
    assert process.wait(timeout=300) == -9
    service.kill()
    address = service.data_dir / "admin.sock"
    assert address.exists()
    service.start()
    mode = address.stat().st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
    assert Rest(service, "T").committed("c") == "4"
    assert service.sql("SELECT count(*) n, max(id) m FROM t") == [{"N": 5, "M": 4}]
    assert service.admin("checkpoint") == {"databases": {"LOCAL": True}}
    service.stop()
    assert not address.exists()


def test_a_wrong_line_is_answered_with_what_is_wrong(local_service: LocalService) -> None:
    pipe = "LOCAL.PUBLIC.NOPE-STREAMING"
    for line in (
        "nonsense", "[]", "{}", '{"command":"format"}', '{"command":"clock","move":"soon"}',
        '{"command":"clock","move":-1}', '{"command":"clock","speed":2}',
        '{"command":"faults","set":"nonsense=1"}', '{"command":"faults","set":7}',
        '{"command":"failover","pipe":"T"}', '{"command":"failover"}',
        f'{{"command":"invalidate","pipe":"{pipe}","channel":"c"}}',
        f'{{"command":"invalidate","pipe":"{pipe}","channel":"ELASTIC"}}',
        '{"command":"' + "x" * MAX_LINE_BYTES + '"}',
    ):  # fmt: skip
        with (
            socket.socket(socket.AF_UNIX) as connection,
            address_of(local_service.data_dir / "admin.sock") as address,
        ):
            connection.settimeout(240)
            connection.connect(address)
            connection.sendall(line.encode() + b"\n")
            answer = json.loads(connection.makefile("rb").readline())
        assert (answer["ok"], bool(answer["error"])) == (False, True), line[:80]
    assert local_service.admin("faults") == {"faults": []}
