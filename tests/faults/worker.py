"""The process of a try: it has Airflow's variables in a file, and dies or stops at one of its requests."""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import snowflake.connector.vendored.urllib3.connectionpool as connector_pool
import urllib3.connectionpool as pool
from snowpipe_local.campaign import Hit

from airflow_provider_snowpipe.operators import source_record
from tests.stream_worker import FileState


def be_a_worker(work: Callable[[], Any], log: Path, hit: Hit | None) -> None:
    code = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout = sys.stderr = os.fdopen(out, "w", buffering=1)  # pytest's own do not end here
        kept = FileState(log.with_name("variables"))
        put = {"get": lambda key, _: kept.get(key), "set": lambda key, value, **_: kept.set(key, value)}
        with _struck(hit), patch.object(source_record, "Variable", SimpleNamespace(**put)):
            work()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001  whatever it is, the parent reads of it in the log
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


@contextmanager
def _struck(hit: Hit | None) -> Iterator[None]:
    """Count the requests that leave this process, and do what is due at one of them."""
    hit = hit or Hit("kill", False, sys.maxsize)
    seen = -1 if hit.since else 0

    def counting(send: Callable[..., Any]) -> Callable[..., Any]:
        def sent(*given: Any, **named: Any) -> Any:
            nonlocal seen
            seen += seen >= 0
            is_due = seen == hit.nth
            if is_due and not hit.after:
                os.kill(os.getpid(), hit.signal)
            answer = send(*given, **named)
            if seen < 0 and any(hit.since in str(one) for one in (*given, *named.values())):
                seen = 0
            if is_due and hit.after:
                os.kill(os.getpid(), hit.signal)
            return answer

        return sent

    ours, connectors = pool.HTTPConnectionPool, connector_pool.HTTPConnectionPool
    with (
        patch.object(ours, "urlopen", counting(ours.urlopen)),
        patch.object(connectors, "urlopen", counting(connectors.urlopen)),
    ):
        yield
