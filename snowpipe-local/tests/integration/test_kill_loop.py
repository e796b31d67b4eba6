"""kill -9 of the local service again and again under six writers: rows and tokens agree every time.

``SNOWPIPE_KILLS`` sets how often it is killed: 2 by default, 60 in ``make nightly``.
"""

import os
import random
import threading
import time

import requests
from snowpipe_local.testing import LocalService
from tests.streaming_rest import Rest, Writer

from tests.conftest import ServiceFactory
from tests.waiting import wait_until

KILLS = int(os.environ.get("SNOWPIPE_KILLS", "2"))
MOST_APPENDS = 12
TOKEN = "last_committed_offset_token"
CHANNELS = [f"writer-{number}" for number in range(6)]


class Appending(threading.Thread):
    """Opens its channel and appends from after the committed token until the service is gone."""

    def __init__(self, service: LocalService, channel: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._rest = Rest(service, "T")
        self._channel = channel
        self._chance = random.Random(seed)
        self.refused: str | None = None
        self.sent = 0
        self.appends = 0

    def run(self) -> None:
        try:
            self._append()
        except requests.RequestException:
            return  # the service is gone
        except Exception as error:  # noqa: BLE001  whatever it is, the test fails with it
            self.refused = repr(error)

    def _append(self) -> None:
        writer = Writer(self._rest, self._channel)
        first = int(writer.committed) + 1 if writer.committed is not None else 0
        while True:
            self.sent = first + self._chance.choice((1, 20, 500, 5000))
            rows = (
                b'{"channel":"%s","id":%d}\n' % (self._channel.encode(), i) for i in range(first, self.sent)
            )
            answer = writer.append(b"".join(rows), self.sent - 1)
            if answer.status_code == 429:
                time.sleep(0.05)
                continue
            assert answer.status_code == 200, answer.text
            first = self.sent
            self.appends += 1


def _check(service: LocalService) -> dict[str, int]:
    """Compare tokens, counters and rows; return the committed rows of every channel, 0 before it is open."""
    counted = {
        row["CHANNEL"]: (row["N"], row["D"], row["M"])
        for row in service.sql(
            "SELECT channel, count(*) n, count(DISTINCT id) d, max(id) + 1 m FROM t GROUP BY channel"
        )
    }
    committed = dict.fromkeys(CHANNELS, 0)
    for name, status in Rest(service, "T").statuses(*CHANNELS).items():
        token = status[TOKEN]
        committed[name] = int(token) + 1 if token is not None else 0
        rows = committed[name]
        assert counted.get(name, (0, 0, 0)) == (rows, rows, rows), f"channel {name}, token {token}"
        assert (status["rows_inserted"], status["rows_error_count"]) == (rows, 0)
    return committed


def test_rows_and_tokens_agree_after_every_one_of_many_kills(service_factory: ServiceFactory) -> None:
    chance = random.Random(20261121)
    # Some rows wait on disk, so that the kills hit those as well.
    service = service_factory(limits="requests-per-second=0,bytes-per-second=0,queued-bytes-in-memory=200000")
    service.sql("CREATE TABLE t (channel VARCHAR, id INT)")
    before = dict.fromkeys(CHANNELS, 0)
    for kill in range(KILLS):
        writers = [Appending(service, name, kill * 100 + number) for number, name in enumerate(CHANNELS)]
        for writer in writers:
            writer.start()
        appends = chance.randrange(MOST_APPENDS)
        wait_until(
            lambda writers=writers, appends=appends: sum(each.appends for each in writers) >= appends,
            seconds=300,
            what=f"{appends} answered appends",
        )
        if kill == KILLS - 1:
            rest = Rest(service, "T")
            wait_until(
                lambda rest=rest: len([one for one in rest.statuses(*CHANNELS).values() if one[TOKEN]]) == 6,
                seconds=300,
                what="a commit of each",
            )
        service.kill()
        for writer in writers:
            writer.join(300)
            assert not writer.is_alive()
            assert writer.refused is None
        service.start()
        after = _check(service)
        for writer, (name, rows) in zip(writers, after.items(), strict=True):
            assert before[name] <= rows <= max(writer.sent, before[name]), f"kill {kill}, channel {name}"
        before = after
    assert min(before.values()) > 0
