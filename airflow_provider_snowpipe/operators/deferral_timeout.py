"""How a task learns that it was deferred for too long, in the words of each Airflow."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import AirflowException

try:
    from airflow.sdk.exceptions import TaskDeferralTimeout
except ImportError:
    try:
        from airflow.exceptions import TaskDeferralTimeout  # type: ignore[no-redef]  # Airflow 3.1
    except ImportError:
        from airflow.exceptions import TaskDeferralError as TaskDeferralTimeout  # type: ignore[no-redef]


def is_deferral_timeout(error: AirflowException) -> bool:
    """True when a deferral's own time was over, and not when its trigger failed.

    Airflow 2 has one error for both, whose text is ``Trigger/execution timeout`` (observed with 2.11.2).

    :param error: what resuming the task has raised
    """
    return isinstance(error, TaskDeferralTimeout) and "timeout" in str(error)
