"""Waiting in one thread until files are loaded, and the errors of a wait that ends badly."""

from __future__ import annotations

import logging
import time
from typing import Any

from airflow_provider_snowpipe.bulk.files_watch import FilesFailure, FilesWatch
from airflow_provider_snowpipe.bulk.load_history import LoadHistory, look_at
from airflow_provider_snowpipe.streaming.commit_wait import WaitState
from airflow_provider_snowpipe.streaming.errors import FilesRejectedError, SnowpipeError

log = logging.getLogger(__name__)


def wait_for_loads(
    history: LoadHistory, watch: FilesWatch, *, timeout: float, interval: float
) -> dict[str, dict[str, Any]]:
    """Look at load history until every file's load has ended.

    :param history: the source
    :param watch: which files, and what is accepted
    :param timeout: seconds for all of it
    :param interval: seconds between two looks
    :return: what became of each file, by its path
    :raises FilesRejectedError: if one did not load as a whole
    :raises FilesNotLoadedError: if the time is over
    """
    deadline = time.monotonic() + timeout
    while True:
        verdict = watch.see(look_at(history, [watch.question]), time.time())
        if verdict.state is WaitState.COMPLETE:
            return dict(verdict.results)
        if verdict.state is WaitState.WAITING and time.monotonic() >= deadline:
            verdict = watch.expired(timeout)
        if verdict.state is WaitState.FAILED:
            raise load_failure(str(verdict.reason), verdict.message)
        log.info("%s", verdict)
        time.sleep(min(interval, max(0.0, deadline - time.monotonic())))


def load_failure(reason: str, message: str) -> SnowpipeError:
    """The error for a wait that ended badly.

    :param reason: a value of :class:`FilesFailure`
    :param message: what happened, in words
    """
    text = f"{reason}: {message}"
    kind = FilesFailure(reason).error_class
    return FilesRejectedError(text, files=(), rejected=0) if kind is FilesRejectedError else kind(text)
