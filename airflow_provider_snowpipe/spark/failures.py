"""The error that ended a Spark job, in the words of the task that met it."""

from __future__ import annotations

import re

from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    ConfigurationError,
    ContinuityError,
    EncodingError,
    OffsetTokenError,
    SnowpipeError,
    SourcePositionError,
    UnfitRowsError,
)

_RAISED = re.compile(
    r"^airflow_provider_snowpipe[\w.]*\.(?P<kind>\w+): (?P<text>.*?)(?=\n\s*\n|\n\s+at |\s*SQLSTATE: |\Z)",
    re.MULTILINE | re.DOTALL,
)

_MISSING = re.compile(r"^ModuleNotFoundError: No module named '(?P<module>[\w.]+)'", re.MULTILINE)
_PLAIN: dict[str, type[SnowpipeError]] = {
    kind.__name__: kind
    for kind in (
        AuthenticationError,
        ConfigurationError,
        ContinuityError,
        EncodingError,
        OffsetTokenError,
        SourcePositionError,
        UnfitRowsError,
    )
}


class TaskFailedError(SnowpipeError):
    """A task failed, with the error that it raised.

    :param error_type: class name of the task's error
    """

    def __init__(self, message: str, *, error_type: str) -> None:
        super().__init__(message)
        self.error_type = error_type


def error_of_task(text: str) -> TaskFailedError | None:
    """Find our own error in the text of the exception by which Spark reports a failed job.

    :param text: the text, a Java exception around a Python traceback
    :return: the last error of ours in it, or that a module is missing there; None for any other error
    """
    found = list(_RAISED.finditer(text))
    if not found:
        missing = _MISSING.search(text)
        return None if missing is None else _not_installed(missing["module"])
    return TaskFailedError(" ".join(found[-1]["text"].split()), error_type=found[-1]["kind"])


def _not_installed(module: str) -> TaskFailedError:
    return TaskFailedError(
        f"the executors' Python has no module {module!r}: install airflow-provider-snowpipe[spark] in the "
        "environment that PYSPARK_PYTHON names on every host, in the driver's version",
        error_type=ConfigurationError.__name__,
    )


def error_type_of(error: SnowpipeError) -> str:
    """The class name to show for an error, that of the task's error where a task raised it."""
    return error.error_type if isinstance(error, TaskFailedError) else type(error).__name__


def final_error(error_type: str, text: str) -> SnowpipeError:
    """Build the error that a task reported as its result.

    :param error_type: its class name
    :param text: its text
    """
    kind = _PLAIN.get(error_type)
    return TaskFailedError(text, error_type=error_type) if kind is None else kind(text)
