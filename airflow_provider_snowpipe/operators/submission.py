"""What surrounds one ``spark-submit`` of the job: its environment, its name, its error, what it has sent."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_snowpipe.assets.events import LoadedChannel
from airflow_provider_snowpipe.links.snowpipe import shown_error, shown_rows, unloaded_value
from airflow_provider_snowpipe.spark.submit.local_spark import OLDEST_JAVA, ensure_java_home
from airflow_provider_snowpipe.streaming.commits import FailureReason
from airflow_provider_snowpipe.streaming.errors import (
    CommitTimeoutError,
    ConfigurationError,
    RowsRejectedError,
    SnowpipeError,
    error_class,
    error_line,
)
from airflow_provider_snowpipe.streaming.progress import ChannelTarget
from airflow_provider_snowpipe.triggers.application import spark_connection

if TYPE_CHECKING:
    import subprocess

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
    from airflow_provider_snowpipe.spark.driver.plan import WriteReport
    from airflow_provider_snowpipe.spark.driver.report import RunReport
    from airflow_provider_snowpipe.spark.submit.source import SubmittedLoad
    from airflow_provider_snowpipe.streaming.auth import Credentials
    from airflow_provider_snowpipe.streaming.names import PipeName


_JOB_ERROR = re.compile(r"^.*?snowpipe error: (?P<kind>\w+): (?P<text>.*)$", re.MULTILINE)
SPARK_CONNECT = "spark_connect"
"""Type of a connection to a Spark Connect server (``SparkConnectHook`` of Airflow's Spark provider)."""
log = logging.getLogger(__name__)

_UNUSABLE_IN_NAME = re.compile(r"[^A-Za-z0-9_.:+-]+")


def application_name(ti: Any) -> str:
    """Name the Spark application of a task instance, the same on every try.

    :param ti: the task instance; its ``map_index`` is -1 or None where the task is not mapped
    """
    mapped = [str(ti.map_index)] if ti.map_index is not None and ti.map_index >= 0 else []
    parts = ["snowpipe", ti.dag_id, ti.task_id, ti.run_id, *mapped]
    return ".".join(_UNUSABLE_IN_NAME.sub("-", part) for part in parts)


def launch_environment(cache_dir: Path, *, executor_python: str = sys.executable) -> dict[str, str]:
    """Make the environment in which ``spark-submit`` and the driver find Java, Python and Spark.

    The scripts that lie beside this Python come first on ``PATH``, also where the virtual environment was
    never activated.

    :param cache_dir: a private directory, for the wrapper of a Java runtime from a wheel
    :raises ConfigurationError: if there is no Java 17 or later
    """
    java = ensure_java_home(cache_dir)
    if java is None:
        raise ConfigurationError(
            f"no Java {OLDEST_JAVA} or later on this machine, which Spark needs: install one, set JAVA_HOME, "
            "or install airflow-provider-snowpipe[spark], which brings one"
        )
    return {
        "PATH": search_path(),
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": executor_python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


_OF_AIRFLOW = re.compile(r"_*AIRFLOW_(?!CTX_|HOME$)", re.IGNORECASE)


def worker_environment() -> dict[str, str]:
    """The worker's variables for a Spark driver: without Airflow's own, which hold connections and keys."""
    return {name: value for name, value in os.environ.items() if not _OF_AIRFLOW.match(name)}


def search_path() -> str:
    """``PATH`` of the driver: the scripts that lie beside this Python come first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def require_spark_submit(binary: str, path: str) -> None:
    """Refuse to start where the program is missing that submits the job.

    :param binary: ``spark-submit``, or what the connection names instead
    :raises ConfigurationError: if it is not there
    """
    if shutil.which(binary, path=path) is None:
        raise ConfigurationError(
            f"there is no {binary} on this worker, which starts the Spark job: install "
            "airflow-provider-snowpipe[spark], which brings it, or put the bin directory of an unpacked "
            "Spark on PATH. Nothing was started"
        )


def connect_url(conn_id: str) -> str | None:
    """The address of a Spark Connect server, with the token that it asks for; None for another connection.

    :raises ConfigurationError: if there is no such connection, it names no server, or its client is missing
    """
    connection = spark_connection(conn_id)
    if connection.conn_type != SPARK_CONNECT:
        return None
    missing = [name for name in ("pyspark", "grpc") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"{' and '.join(missing)} cannot be imported on this worker, without which there is no client of "
            f"the Spark Connect server of {conn_id!r}: install airflow-provider-snowpipe[connect]. Nothing "
            "was started"
        )
    from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

    host = connection.host or ""
    if not host or "/" in host.removeprefix("sc://"):
        raise ConfigurationError(
            f"the host of the Spark Connect connection {conn_id!r} is {host!r}: give the server's name, and "
            "its port in the field of the port (15002 is Spark's own)"
        )
    return SparkConnectHook(conn_id).get_connection_url()


def job_error(report: RunReport | WriteReport | None, output: str) -> tuple[str, bool] | None:
    """Find the job's own words for its failure.

    :param output: the end of what ``spark-submit`` printed
    :return: the error in one line, and whether a retry is pointless; None if the job did not report it
    """
    if report is not None and report.error is not None:
        kind, text = report.error_type or "SnowpipeError", report.error
    else:
        found = list(_JOB_ERROR.finditer(output))
        if not found:
            return None
        kind, text = found[-1]["kind"], found[-1]["text"]
    return error_line(kind, text), not error_class(kind).retryable


def report_lines(report: RunReport) -> list[str]:
    """Lay a run report out as a table, one line for each channel."""
    header = ("channel", "rows", "bytes", "rejected", "dead letters", "from", "to", "committed")
    rows = [
        (
            channel.channel,
            f"{channel.rows:,}",
            f"{channel.bytes:,}",
            channel.rejected_words,
            f"{channel.dead_lettered:,}",
            channel.from_token or "NULL",
            channel.to_token or "NULL",
            "yes" if channel.owes_nothing else "no",
        )
        for channel in report.channels
    ]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]


def settled(credentials: Credentials) -> Credentials:
    """Turn credentials that fetch a token into the token: the driver has no Airflow connection."""
    from airflow_provider_snowpipe.hooks.connection import OAuthClient
    from airflow_provider_snowpipe.streaming.auth import OAuthToken

    return OAuthToken(credentials.bearer()) if isinstance(credentials, OAuthClient) else credentials


def report_of(text: str | None) -> RunReport | None:
    """Read a run report, None if the driver has left none."""
    from airflow_provider_snowpipe.spark.driver.report import RunReport

    if text is None:
        return None
    report = RunReport.from_json(text)
    return replace(report, unloaded=shown_rows(report.unloaded))


def targets_of(report: RunReport, offset_format: str, on_error: str) -> dict[str, dict[str, Any]]:
    """What the run owes on each channel, as a commit sensor takes it; a channel without a new row as well.

    :param on_error: ``continue`` accepts skipped rows
    """
    return {
        channel.channel: ChannelTarget(
            token=channel.target_token,
            offset_format=offset_format,
            errors=None if on_error == "continue" else channel.rejected_before,
            rows=channel.rows,
        ).to_json()
        for channel in report.channels
    }


def loaded_channels(report: RunReport) -> list[LoadedChannel]:
    """What asset events and lineage may report of the run; a partition without a row owes no commit."""
    return [
        LoadedChannel(
            channel.channel,
            channel.to_token,
            channel.owes_nothing,
            channel.rows,
            channel.partition,
            channel.unknown_columns,
            channel.from_token,
            channel.rejected,
        )
        for channel in report.channels
    ]


def value_of(
    report: RunReport, pipe: PipeName, offset_format: str, path: str | None = None
) -> dict[str, Any]:
    """The task's value: what the run did, channel by channel.

    :param path: the folder of its dead letters
    """
    return {
        "application": report.application,
        "pipe": str(pipe),
        "offset_format": offset_format,
        "rows": report.rows,
        "bytes": report.bytes,
        "dead_lettered": report.dead_lettered,
        "undecoded": report.undecoded,
        "unknown_columns": report.unknown_columns,
        "unloaded": unloaded_value(report.unloaded, path, report.application),
        "seconds": report.seconds,
        "backlog": None if report.backlog is None else report.backlog.row(),
        "channels": {
            channel.channel: {
                "from": channel.from_token,
                "to": channel.to_token,
                "rows": channel.rows,
                "bytes": channel.bytes,
                "rejected": channel.rejected,
                "dead_lettered": channel.dead_lettered,
                "undecoded": channel.undecoded,
                "committed": channel.owes_nothing,
                "latency_ms": channel.latency_ms,
                "last_error": shown_error(channel.last_error),
            }
            for channel in report.channels
        },
    }


# -- What a driver has sent, while its task waits for the commit without a worker ------------------------


def settle_load(
    load: SubmittedLoad,
    hook: SnowpipeHook,
    *,
    on_error: str,
    awaited: bool,
    observe: Callable[[RunReport, str], None] = lambda *_: None,
) -> SubmittedLoad:
    """Ask what is committed, and hold a committed load to the rules of a driver that waits itself.

    :param on_error: anything but ``continue`` refuses skipped rows
    :param awaited: True where everything must be committed by now
    :param observe: gets the report with what is committed, before it is held to a rule
    :raises AirflowException: if a channel is behind although it was awaited, or the service skipped rows
    """
    now = hook.channel_statuses(load.channels)
    observe(load.seen(now).report, load.offset_format)
    try:
        return load.settled(hook.pipe_name(), now, on_error=on_error, awaited=awaited)
    except CommitTimeoutError as error:
        raise end_of_task(error) from error
    except RowsRejectedError as error:
        log.error("%s", error)
        hook.report_rejected(now)
        raise end_of_task(error) from error


def end_of_task(error: SnowpipeError) -> AirflowException:
    """Put an error of ours in the words and the class that a failed driver gives the task."""
    text = error_line(type(error).__name__, error)
    return AirflowException(text) if error.retryable else AirflowFailException(text)


def end_of_wait(event: Mapping[str, Any]) -> AirflowException:
    """The error for a commit trigger's event of failure.

    :param event: with ``reason`` and ``message``
    """
    retryable = FailureReason(event["reason"]).error_class.retryable
    kind = AirflowException if retryable else AirflowFailException
    return kind(f"{event['reason']}: {event['message']}")


# -- What Airflow's Spark hook has no public way for: no other file uses a private member of it ----------


class SubmitHook:
    """The Spark hook of one submission.

    The private members are those of the Spark provider 6.3.4. The hook alone resolves the Spark connection;
    the operator that makes it gives it all its settings; and its own ``submit`` starts a process that dies
    with the worker.
    """

    def __init__(self, hook: SparkSubmitHook) -> None:
        self._hook = hook
        self.master = str(hook._connection["master"])
        self.binary = str(hook._connection["spark_binary"])
        """``spark-submit``, or what the operator or the connection name instead."""
        self.deploy_mode: str | None = hook._connection["deploy_mode"]
        """``client`` or ``cluster``, as operator or connection set it; None where neither does."""
        self.is_on_nodes = bool(hook._is_yarn or hook._is_kubernetes)
        """True for YARN and Kubernetes, whose executors have a Python of their own."""
        self.properties_file: str | None = hook._properties_file
        self.driver_class_path: str | None = hook._driver_class_path
        self.arguments = [str(one) for one in hook._application_args or ()]

    @property
    def env(self) -> Mapping[str, str]:
        """The author's variables of the process, known when :meth:`command` has been called."""
        return self._hook._env or {}

    @property
    def conf(self) -> Mapping[str, Any]:
        """The Spark settings."""
        return self._hook._conf

    @conf.setter
    def conf(self, settings: Mapping[str, Any]) -> None:
        self._hook._conf = dict(settings)

    def add_py_files(self, address: str) -> None:
        """Bring a file of code to driver and executors; an empty address is none."""
        self._hook._py_files = ",".join(filter(None, [self._hook._py_files, address]))

    def add_file(self, address: str) -> None:
        """Bring a file to driver and executors."""
        self._hook._files = ",".join(filter(None, [self._hook._files, address]))

    def leave_following(self) -> None:
        """Have the hook follow no driver: it would submit again what the cluster calls failed.

        What the cluster calls so may have committed everything.
        """
        self._hook._is_yarn_cluster_mode = False
        self._hook._track_driver_via_k8s_api = False

    def submit_by(self, submit: Callable[..., None]) -> None:
        """Replace the hook's own ``submit``."""
        self._hook.submit = submit  # type: ignore[method-assign]

    def command(self, application: str) -> list[str]:
        """The command line of ``spark-submit``."""
        return self._hook._build_spark_submit_command(application)

    @property
    def process(self) -> Any:
        """The process of ``spark-submit``, which the hook's own ``on_kill`` stops; None before it."""
        return self._hook._submit_sp

    @process.setter
    def process(self, process: subprocess.Popen[str]) -> None:
        self._hook._submit_sp = process

    def log(self, lines: Iterator[str]) -> None:
        """Log the output of ``spark-submit`` to its end."""
        self._hook._process_spark_submit_log(lines)

    def has_submitted(self) -> None:
        """Run the author's commands that come after a submission."""
        self._hook._run_post_submit_commands()

    def failure(self, command: Sequence[str], code: int) -> str:
        """The hook's own text of a submission that failed, without passwords."""
        shown = self._hook._mask_cmd(list(command))
        return f"Cannot execute: {shown}. Error code is: {code}.{self._hook._submit_log_tail}"
