"""What a rescheduled sensor knows from one look to the next, each of which is a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
    from airflow_provider_snowpipe.streaming.commit_watch import CommitWatch

_KEY = "snowpipe_commit_watch"


class RescheduleMemory:
    """A watch's memory in the task's state, which Airflow has since 3.3.

    Before that there is none: errors in a row are not counted, and ``stall_timeout`` is refused.

    :param context: the task's context
    :param sensor: the sensor that waits
    :raises ConfigurationError: if the sensor needs a memory and Airflow has none
    """

    def __init__(self, context: Context, sensor: SnowpipeCommitSensor) -> None:
        values: Any = context
        self._store = values.get("task_state_store")
        self._try_number = getattr(values.get("ti"), "try_number", 1)
        if self._store is None and sensor.stall_timeout is not None:
            raise ConfigurationError(
                f"stall_timeout is {sensor.stall_timeout:g} in the mode 'reschedule', where each look is a "
                "new process, and this Airflow keeps no task state between them (3.3 does): use "
                "deferrable=True or the mode 'poke'"
            )

    def restore(self, watch: CommitWatch) -> None:
        """Give a new watch what this try's earlier looks knew.

        :param watch: the watch
        """
        kept = None if self._store is None else self._store.get(_KEY)
        if kept is not None and kept["try_number"] == self._try_number:
            watch.recall(kept)

    def keep(self, watch: CommitWatch, *, done: bool) -> None:
        """Keep what this look found out for the next one.

        :param watch: the watch
        :param done: True when there is no next one
        """
        if self._store is None:
            return
        if done:
            self._store.delete(_KEY)
        else:
            self._store.set(_KEY, {**watch.memory(), "try_number": self._try_number})
