"""What a rescheduled sensor knows from one look to the next, each of which is a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class Watch(Protocol):
    """A wait that can go on in another process."""

    def memory(self) -> dict[str, Any]:
        """What it has to know there; JSON."""

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on from that."""


class RescheduleMemory:
    """A watch's memory in the task's state, which Airflow has since 3.3.

    Before that there is none: errors in a row are not counted, and ``stall_timeout`` is refused.

    :param context: the task's context
    :param key: the name of the memory in the task's state
    :param stall_timeout: what the sensor's ``stall_timeout`` is, which needs a memory
    :raises ConfigurationError: if the sensor needs a memory and Airflow has none
    """

    def __init__(self, context: Context, key: str, stall_timeout: float | None = None) -> None:
        values: Any = context
        self._key = key
        self._store = values.get("task_state_store")
        self._try_number = getattr(values.get("ti"), "try_number", 1)
        if self._store is None and stall_timeout is not None:
            raise ConfigurationError(
                f"stall_timeout is {stall_timeout:g} in the mode 'reschedule', where each look is a "
                "new process, and this Airflow keeps no task state between them (3.3 does): use "
                "deferrable=True or the mode 'poke'"
            )

    def kept(self) -> dict[str, Any] | None:
        """What this try's earlier looks knew, None where there was none or nothing is kept."""
        kept: dict[str, Any] | None = None if self._store is None else self._store.get(self._key)
        return kept if kept is not None and kept["try_number"] == self._try_number else None

    def restore(self, watch: Watch) -> None:
        """Give a new watch what this try's earlier looks knew.

        :param watch: the watch
        """
        kept = self.kept()
        if kept is not None:
            watch.recall(kept)

    def keep(self, watch: Watch, *, done: bool) -> None:
        """Keep what this look found out for the next one.

        :param watch: the watch
        :param done: True when there is no next one
        """
        if self._store is None:
            return
        if done:
            self._store.delete(self._key)
        else:
            self._store.set(self._key, {**watch.memory(), "try_number": self._try_number})
