"""Tables that are replaced under a writer: no hang, no row in the wrong table, a clear status."""

from __future__ import annotations

import threading
import time

from snowpipe_local.testing import LocalService
from tests.streaming_rest import Rest, Writer


def test_replacing_a_table_under_a_writer_neither_hangs_nor_mixes_the_tables(
    crash_service: LocalService,
) -> None:
    # Without rate limits: a refusal of those would leave rows behind that are committed at any time.
    crash_service.sql("CREATE OR REPLACE TABLE replaced (n INTEGER)")
    refusals: list[str] = []
    stop = threading.Event()

    def write() -> None:
        rest = Rest(crash_service, "REPLACED")
        while not stop.is_set():
            writer = Writer(rest, "writer")
            first = 0 if writer.committed is None else int(writer.committed) + 1
            for n in range(first, first + 2000, 50):
                answer = writer.append(b"".join(b'{"n":%d}\n' % one for one in range(n, n + 50)), n + 49)
                if answer.status_code != 200:
                    refusals.append(answer.json()["code"])
                    break
            else:
                _wait(rest, str(first + 1999))

    writing = threading.Thread(target=write)
    writing.start()
    try:
        # On a slow machine eight are over before the writer has opened its channel.
        deadline, count = time.monotonic() + 120, 0
        while count < 8 or not (refusals or time.monotonic() > deadline):
            crash_service.sql("CREATE OR REPLACE TABLE replaced (n INTEGER)")
            count += 1
    finally:
        stop.set()
        writing.join(300)
    assert not writing.is_alive()
    assert set(refusals) == {"ERR_CHANNEL_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"}
    status = Rest(crash_service, "REPLACED").statuses("writer").get("writer", {})
    committed = status.get("last_committed_offset_token")
    (row,) = crash_service.sql("SELECT count(*) AS c, count(DISTINCT n) AS d, max(n) AS m FROM replaced")
    assert row["C"] == row["D"] == (0 if committed is None else int(committed) + 1)
    assert row["M"] == (None if committed is None else int(committed))


def _wait(rest: Rest, token: str) -> None:
    """Wait until the channel has committed the token, or is gone with its table."""
    deadline = time.monotonic() + 240
    while status := rest.statuses("writer").get("writer"):
        if status["last_committed_offset_token"] == token:
            return
        assert time.monotonic() < deadline, status
        time.sleep(0.02)
