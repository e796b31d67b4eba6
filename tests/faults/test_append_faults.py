"""The append task when its worker is killed around an append: the next try loads every row once."""

from __future__ import annotations

import os
import signal
from multiprocessing import get_context
from typing import Any

import pytest

from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from tests.airflow_connections import SetConnection, set_connection
from tests.local_connection import committed, connect, context, ids, make_table
from tests.local_service import LocalService

__all__ = ["set_connection"]

ROWS = [{"ID": number, "NAME": "x"} for number in range(50)]
_APPEND = SnowpipeClient.append_rows


@pytest.mark.parametrize("received", [False, True])
def test_the_next_try_appends_what_the_killed_worker_had_not(
    admin_service: LocalService,
    set_connection: SetConnection,
    monkeypatch: pytest.MonkeyPatch,
    received: bool,
) -> None:
    def die(*given: Any, **named: Any) -> None:
        if received:
            _APPEND(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    table = make_table(admin_service, f"APPENDED_{received}".upper())
    conn_id = connect(admin_service, set_connection)
    operator = SnowpipeAppendRowsOperator(
        task_id="append", rows=ROWS, channel="c", table=table, snowflake_conn_id=conn_id
    )
    with monkeypatch.context() as patch:
        patch.setattr(SnowpipeClient, "append_rows", die)
        worker = get_context("fork").Process(target=operator.execute, args=(context(),))
        worker.start()
        worker.join(120)
    assert worker.exitcode == -signal.SIGKILL

    value = operator.execute(context())

    assert ids(admin_service, table) == [row["ID"] for row in ROWS]
    assert (value["rows"], value["skipped"]) == ((0, 50) if received else (50, 0))
    assert committed(admin_service, table, "c") == value["to"]
