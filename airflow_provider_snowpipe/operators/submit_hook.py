"""What Airflow's Spark hook has no public way for: no other file uses a private member of it.

They are those of the Spark provider 6.3.4. The hook alone resolves the Spark connection; the operator that
makes it gives it all its settings; and its own ``submit`` starts a process that dies with the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook


class SubmitHook:
    """The Spark hook of one submission."""

    def __init__(self, hook: SparkSubmitHook) -> None:
        self._hook = hook

    @property
    def master(self) -> str:
        """The master of the Spark connection."""
        return str(self._hook._connection["master"])

    @property
    def binary(self) -> str:
        """``spark-submit``, or what the operator or the connection name instead."""
        return str(self._hook._connection["spark_binary"])

    @property
    def deploy_mode(self) -> str | None:
        """``client`` or ``cluster``, as operator or connection set it; None where neither does."""
        mode: str | None = self._hook._connection["deploy_mode"]
        return mode

    @property
    def is_on_nodes(self) -> bool:
        """True for YARN and Kubernetes, whose executors have a Python of their own."""
        return bool(self._hook._is_yarn or self._hook._is_kubernetes)

    @property
    def properties_file(self) -> str | None:
        """The author's properties file."""
        return self._hook._properties_file

    @property
    def driver_class_path(self) -> str | None:
        """The author's class path of the driver."""
        return self._hook._driver_class_path

    @property
    def arguments(self) -> list[str]:
        """The application's arguments."""
        return [str(one) for one in self._hook._application_args or ()]

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
