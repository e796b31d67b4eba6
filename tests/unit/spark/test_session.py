"""The job's Spark: its settings and layout, shared sessions, versions, and an end that waits for Spark."""

import os
import pickle
from contextlib import suppress
from datetime import date
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from unittest.mock import MagicMock, call
from uuid import UUID

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException

from airflow_provider_snowpipe.spark.driver import session as module
from airflow_provider_snowpipe.spark.sources.files.partition import Resume
from airflow_provider_snowpipe.spark.sources.tables import plan_order
from airflow_provider_snowpipe.spark.task.sink import PartitionResult, Versions
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset


class RemoteSession:
    """Stands for a session of Spark Connect."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self, refused=None):
        self.added, self.release_session_on_close, self.stopped, self._refused = [], True, 0, refused

    def addArtifacts(self, path, *, pyfile):  # noqa: N802 - PySpark's name
        if self._refused:
            raise self._refused
        self.added.append((Path(path).name, Path(path).is_file(), pyfile))

    def stop(self):
        self.stopped += 1


PACKAGE = ("airflow_provider_snowpipe.zip", True, True)
SETTINGS = [call.appName("app"), call.config("spark.sql.session.timeZone", "UTC")]
START = call.getOrCreate()


@pytest.fixture
def start(monkeypatch):
    """Starts Spark by a builder that gives these sessions; returns the session and what was asked."""
    pytest.importorskip("grpc", reason="the extra 'connect' is not installed")

    def start(*sessions, remote=None, running=None):
        builder, first = MagicMock(), sessions[0] if isinstance(sessions[0], RemoteSession) else None
        for step in (builder.appName, builder.config, builder.remote):
            step.return_value = builder
        builder.getOrCreate.side_effect = sessions
        monkeypatch.setattr("pyspark.sql.SparkSession.builder", builder)
        monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: running)
        monkeypatch.setattr("pyspark.sql.connect.session.SparkSession.getActiveSession", lambda: first)
        monkeypatch.delenv("SPARK_REMOTE", raising=False)
        if remote:
            monkeypatch.setenv("SPARK_REMOTE", remote)
        return module.start_spark("app"), builder.mock_calls

    return start


def test_session_gets_the_settings_of_exactly_once(start):
    own = object()
    assert start(own) == (own, [*SETTINGS, call.config("spark.speculation", "false"), START])


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("sc://host:1", "sc://host:1/;session_id="),
        ("sc://host:1/;use_ssl=true;", "sc://host:1/;use_ssl=true;session_id="),
    ],
)
def test_jobs_over_connect_share_a_session_of_the_day(start, monkeypatch, remote, address):
    found = []
    for day in ("2026-03-01", "2026-03-01", "2026-03-02"):
        clock = SimpleNamespace(now=lambda zone, day=day: date.fromisoformat(day))
        monkeypatch.setattr(module, "datetime", clock)
        shared, asked = start(RemoteSession(), remote=remote)
        assert (shared.added, shared.release_session_on_close, shared.stopped) == ([PACKAGE], False, 0)
        asked_for = asked[2].args[0]
        assert asked == [*SETTINGS, call.remote(asked_for), START]
        assert asked_for.startswith(address)
        found.append(asked_for.removeprefix(address))

    assert [str(UUID(one)) for one in found] == found
    assert found[0] == found[1] != found[2]


def test_session_that_the_address_names_is_used_and_left(start):
    named, asked = start(RemoteSession(), remote="sc://host/;session_id=mine")
    assert asked[2:] == [call.remote("sc://host/;session_id=mine"), START]
    assert (named.added, named.release_session_on_close) == ([PACKAGE], False)


@pytest.mark.parametrize("refusal", ["closed", "package"])
def test_job_has_a_session_of_its_own_where_the_shared_one_takes_no_job(start, refusal):
    closed = PySparkException("(SparkSQLException) [INVALID_HANDLE.SESSION_CLOSED] The handle is invalid.")
    shared, own = RemoteSession(PySparkException("[ARTIFACT_ALREADY_EXISTS]")), RemoteSession()
    started, asked = start(closed if refusal == "closed" else shared, own, remote="sc://host")
    assert started is own
    assert asked[-2:] == [call.remote("sc://host"), START]
    assert (own.added, own.release_session_on_close) == ([PACKAGE], True)
    assert shared.stopped == (refusal == "package")
    assert shared.release_session_on_close == (refusal == "closed")


def test_session_that_runs_already_gets_the_package_and_stays_as_it_is(start):
    running = RemoteSession()
    assert start(running, remote="sc://host", running=running) == (running, [*SETTINGS, START])
    assert (running.added, running.release_session_on_close) == ([PACKAGE], True)


class Context:
    """Stands for a Spark context; ``stop`` returns when PySpark's server of accumulators has noticed."""

    version, uiWebUrl, applicationId = pyspark.__version__, None, "app-1"

    def __init__(self):
        self.stopped, self.noticed = [], Event()
        self._jsc = SimpleNamespace(stop=lambda: self.stopped.append("JVM"))

    def getConf(self):  # noqa: N802 - PySpark's name
        return SimpleNamespace(get=lambda _, default=None: default)

    def stop(self):
        self.noticed.wait()
        self.stopped.append("Python")


class TestJobSession:
    PLAN = SimpleNamespace(application="app", report_path="")

    @pytest.fixture
    def spark(self, monkeypatch):
        started = SimpleNamespace(contexts=[], sessions=[])

        def context(settings):
            started.contexts.append(Context())
            return started.contexts[-1]

        def session(application):
            inner = Context()
            found = SimpleNamespace(sparkContext=inner, version=inner.version, stop=inner.stop)
            started.sessions.append(found)
            return found

        for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PYSPARK_PYTHON", "python3")
        monkeypatch.setattr("pyspark.SparkContext.getOrCreate", context)
        monkeypatch.setattr(module, "start_spark", session)
        monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
        return started

    def test_tasks_run_on_the_context_of_a_session_that_a_source_has_asked_for(self, spark):
        job = module.JobSession(self.PLAN)
        started = job.start()
        assert job.executors() is started.sparkContext
        assert (spark.contexts, spark.sessions) == ([], [started])

    @pytest.mark.parametrize("name", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"])
    def test_tasks_over_spark_connect_get_a_session(self, spark, monkeypatch, name):
        monkeypatch.setenv(name, "1")
        module.JobSession(self.PLAN).executors()
        assert (spark.contexts, len(spark.sessions)) == ([], 1)

    @pytest.mark.parametrize("begin", [module.JobSession.executors, module.JobSession.start])
    def test_stop_waits_for_spark_and_not_for_the_poll_of_pyspark(self, spark, begin):
        with module.JobSession(self.PLAN) as job:
            begin(job)
            job.stop()
        [context] = spark.contexts or [spark.sessions[0].sparkContext]
        assert context.stopped == ["JVM"]
        context.noticed.set()


def test_executor_or_jvm_of_another_version_is_refused_with_both_and_patch_releases_and_vendors_are_fine():
    driver = Versions("4.2.0", "1.0")
    for executor, message in [
        (Versions("4.1.2", "1.0"), "an executor runs PySpark 4.1.2, the driver 4.2.0"),
        (Versions("4.2.0", "0.9"), "an executor has airflow-provider-snowpipe 0.9, the driver 1.0"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            executor.require(driver)
    with pytest.raises(ConfigurationError, match=r"pyspark==3\.5\.1"):
        module.require_same_spark(SimpleNamespace(version="3.5.1"))
    Versions("4.2.1.vendor3", "1.0").require(driver)
    module.require_same_spark(SimpleNamespace(version=f"{pyspark.__version__}-vendor"))


class Server:
    """A server of Spark Connect that answers every job with the same result."""

    def __init__(self, result):
        self.result = pickle.dumps(result)

    def __getattr__(self, name):
        return lambda *_: self

    def collect(self):
        return [{"id": 0, "result": self.result}]


def test_results_of_our_tasks_are_read():
    loaded = PartitionResult("c", FileLineOffset("a.ndjson", 7), unknown_columns={"NOTE": 2})
    for result in (loaded, Resume(1, 7, 90), None):
        assert module.one_connect_task_each(Server(result), str, ["item"]) == [result]


def test_results_come_in_the_order_of_their_items():
    class Running(Server):
        def mapInArrow(self, run, _):  # noqa: N802
            batches = [pa.record_batch({"id": [at]}) for at in (1, 0)]
            self.rows = [row for batch in run(iter(batches)) for row in batch.to_pylist()]
            return self

        def collect(self):
            return self.rows

    assert module.one_connect_task_each(Running(None), str.upper, ["a", "b"]) == ["A", "B"]


class Call:
    def __init__(self, function, *arguments):
        self.called = function, arguments

    def __reduce__(self):
        return self.called


@pytest.mark.parametrize(
    "call",
    [Call(os.mkdir, "made"), Call(module.one_connect_task_each, None, None, []), Call(pickle.loads, b"N.")],
)
def test_result_that_calls_something_here_is_refused_by_its_name(call, tmp_path, monkeypatch):
    """A server may be somebody else's, and this process has the private key."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=call.called[0].__name__):
        module.one_connect_task_each(Server(call), str, ["item"])
    assert list(tmp_path.iterdir()) == []


ADAPTIVE, SORTED, SIZE, COST, ZONE = plan_order.PINNED


class Session:
    def __init__(self):
        self.conf = self
        self.settings = {ADAPTIVE: "true", SORTED: "true", SIZE: "128MB", COST: "4MB", ZONE: "Europe/Oslo"}
        self.get, self.set = self.settings.get, self.settings.__setitem__


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_layout_is_pinned_inside_the_block_and_the_own_settings_come_back(error):
    session = Session()
    own = dict(session.settings)

    def ask():
        assert session.settings == {**plan_order.PINNED, ADAPTIVE: "true"}
        if error:
            raise error

    with suppress(RuntimeError), plan_order.pinned_layout(session):
        assert session.settings == plan_order.PINNED
        with suppress(RuntimeError), plan_order.free_layout(session):
            ask()
        assert session.settings == plan_order.PINNED
        if error:
            raise error

    assert session.settings == own


def test_settings_that_differ_are_reported_however_spark_spells_them():
    session = Session()
    assert plan_order.unpinned(session) == {ADAPTIVE: "true", SIZE: "128MB", COST: "4MB", ZONE: "Europe/Oslo"}
    plan_order.pin_layout(session)
    assert plan_order.unpinned(session) == {}
    session.settings |= {ADAPTIVE: "FALSE", SIZE: f"{1 << 40}b", COST: f"{1 << 40}B", ZONE: "utc"}
    assert plan_order.unpinned(session) == {}
    session.settings |= {ADAPTIVE: "falseb", SIZE: f"{1 << 40}x", ZONE: "UTCb"}
    assert plan_order.unpinned(session) == {ADAPTIVE: "falseb", SIZE: f"{1 << 40}x", ZONE: "UTCb"}
