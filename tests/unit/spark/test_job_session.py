"""The job's Spark: a context alone where no query runs, and an end that waits for nothing but Spark."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from airflow_provider_snowpipe.spark.driver import session as module
from airflow_provider_snowpipe.spark.driver.session import JobSession


class Context:
    """Stands for a Spark context; ``stop`` returns when PySpark's server of accumulators has noticed."""

    def __init__(self, settings: Any = None) -> None:
        self.settings = dict(settings.getAll()) if settings else {}
        self.version, self.uiWebUrl, self.applicationId = pyspark.__version__, None, "app-1"
        self.stopped: list[str] = []
        self.noticed = Event()
        self._jsc = SimpleNamespace(stop=lambda: self.stopped.append("JVM"))

    def getConf(self) -> Any:  # noqa: N802 - PySpark's name
        return SimpleNamespace(get=lambda _, default=None: default)

    def stop(self) -> None:
        self.noticed.wait()
        self.stopped.append("Python")


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What PySpark starts."""
    started = SimpleNamespace(contexts=[], sessions=[], active=None)

    def context(settings: Any) -> Context:
        started.contexts.append(Context(settings))
        return started.contexts[-1]

    def session(application: str) -> Any:
        inner = Context()
        found = SimpleNamespace(sparkContext=inner, version=inner.version, stop=inner.stop, name=application)
        started.sessions.append(found)
        return found

    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    monkeypatch.setattr("pyspark.SparkContext.getOrCreate", context)
    monkeypatch.setattr(module, "start_spark", session)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: started.active)
    return started


PLAN: Any = SimpleNamespace(application="app", report_path="")


def test_tasks_run_on_the_context_of_a_session_that_a_source_has_asked_for(spark):
    job = JobSession(PLAN)

    started = job.start()

    assert job.executors() is started.sparkContext
    assert (spark.contexts, spark.sessions) == ([], [started])


@pytest.mark.parametrize("name", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"])
def test_tasks_over_spark_connect_get_a_session(spark, monkeypatch, name):
    monkeypatch.setenv(name, "1")

    JobSession(PLAN).executors()

    assert (spark.contexts, len(spark.sessions)) == ([], 1)


@pytest.mark.parametrize("begin", [JobSession.executors, JobSession.start])
def test_stop_waits_for_spark_and_not_for_the_poll_of_pyspark(spark, begin):
    with JobSession(PLAN) as job:
        begin(job)
        job.stop()

    [context] = spark.contexts or [spark.sessions[0].sparkContext]
    assert context.stopped == ["JVM"]
    context.noticed.set()
