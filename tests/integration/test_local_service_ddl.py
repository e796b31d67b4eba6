"""Tables that are replaced under a writer: no hang, no row in the wrong table, a clear status."""

from __future__ import annotations

import threading
import time

from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.errors import ChannelError, SnowpipeError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from tests.local_service import LocalService


def test_replacing_a_table_under_a_writer_neither_hangs_nor_mixes_the_tables(
    local_service: LocalService,
) -> None:
    local_service.sql("CREATE OR REPLACE TABLE replaced (n INTEGER)")
    limits = BatchLimits(rows=50, requests_per_second=1000, age_seconds=30)
    refusals: list[SnowpipeError] = []
    stop = threading.Event()

    def write() -> None:
        with local_service.client("REPLACED") as client:
            while not stop.is_set():
                try:
                    channel = Channel.open(client, "writer", IntegerOffset, limits=limits)
                    committed = channel.progress.committed
                    start = 0 if committed is None else committed.next().value
                    for n in range(start, start + 2000):
                        channel.append(b'{"n":%d}\n' % n, IntegerOffset(n), IntegerOffset(n), rows=1)
                    channel.wait_for_commit(timeout=240)
                    channel.close()
                except ChannelError as error:
                    refusals.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        # On a slow machine eight are over before the writer has opened its channel.
        deadline, count = time.monotonic() + 120, 0
        while count < 8 or not (refusals or time.monotonic() > deadline):
            local_service.sql("CREATE OR REPLACE TABLE replaced (n INTEGER)")
            count += 1
    finally:
        stop.set()
        writer.join(300)
    assert not writer.is_alive()
    assert refusals
    with local_service.client("REPLACED") as client:
        committed = client.channel_statuses(["writer"])["writer"].committed
    (row,) = local_service.sql("SELECT count(*) AS c, count(DISTINCT n) AS d, max(n) AS m FROM replaced")
    assert row["C"] == row["D"] == (0 if committed is None else int(committed) + 1)
    assert row["M"] == (None if committed is None else int(committed))
