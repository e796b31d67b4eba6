"""What every application of ours does around its work: Spark is started, and its end is said in words."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Protocol, Self

from airflow_provider_snowpipe.spark.connect import is_connect
from airflow_provider_snowpipe.spark.driver import start_spark
from airflow_provider_snowpipe.spark.failures import error_type_of
from airflow_provider_snowpipe.spark.report_place import report_place
from airflow_provider_snowpipe.spark.ui_address import UI_FILE, UiAddresses
from airflow_provider_snowpipe.spark.versions import require_same_spark
from airflow_provider_snowpipe.streaming.errors import SnowpipeError


class Submitted(Protocol):
    """As much of a plan as this module needs."""

    @property
    def application(self) -> str:
        """The Spark application's name."""

    @property
    def report_path(self) -> str:
        """Where the report goes; empty for none."""


class JobSession:
    """The job's Spark session: started when somebody first needs it, stopped with the block at the latest.

    :param plan: what the job is to do
    """

    def __init__(self, plan: Submitted) -> None:
        self._plan = plan
        self._session: Any = None
        self._ours = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Any:
        """Start Spark, or give the session that runs."""
        if self._session is None:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            self._ours = not _has_session()
            self._session = start_spark(self._plan.application)
            if not is_connect(self._session):
                require_same_spark(self._session)
                _announce_ui(self._plan, UiAddresses.of_context(self._session.sparkContext))
        return self._session

    def executors(self) -> Any:
        """What runs tasks: the session's context, or the session itself over Spark Connect."""
        session = self.start()
        return session if is_connect(session) else session.sparkContext

    def stop(self) -> None:
        """Stop Spark if it was started here; what was started keeps its result."""
        session, self._session = self._session, None
        if session is not None and self._ours:
            session.stop()


def leave(plan: Submitted, name: str, text: str) -> None:
    """Write a file where the report goes, if it goes anywhere.

    :param plan: what the job is to do
    :param name: the file's name
    :param text: what it holds
    """
    if plan.report_path:
        report_place(plan.report_path).write(name, text)


def clear_report(plan: Submitted) -> None:
    """Make sure that a report found afterwards is this run's.

    :param plan: what the job is to do
    :raises ConfigurationError: if none can be written there
    """
    if not plan.report_path:
        return
    place = report_place(plan.report_path)
    place.check()
    place.remove(Path(plan.report_path).name)


def complain(error: SnowpipeError) -> int:
    """Say what went wrong in one line on standard error, in the words by which the task finds it.

    :param error: the error
    :return: the exit code
    """
    print(f"snowpipe error: {error_type_of(error)}: {error}", file=sys.stderr, flush=True)
    return 1


def _has_session() -> bool:
    """True where the platform has started Spark for us, and stops it, too."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def _announce_ui(plan: Submitted, addresses: UiAddresses) -> None:
    leave(plan, UI_FILE, addresses.to_json())
    print(f"snowpipe ui {addresses.running or 'is switched off'}", flush=True)
