"""The state store of the assets that a trigger is watched by."""

from __future__ import annotations

from typing import Any


class AssetStates:
    """One state in the stores of all assets that share a trigger.

    Watchers with the same arguments are one trigger to Airflow, and an event of it goes to all of their
    assets in one transaction. The state is written to each, so that it outlives any of them.

    :param accessors: one for each asset
    """

    def __init__(self, accessors: list[Any]) -> None:
        self._accessors = accessors

    async def aget(self, key: str) -> Any:
        """Read a value, None if no asset has it."""
        for accessor in self._accessors:
            value = await accessor.aget(key)
            if value is not None:
                return value
        return None

    async def aset(self, key: str, value: Any) -> None:
        """Write a value to every asset."""
        for accessor in self._accessors:
            await accessor.aset(key, value)


def store_of(accessors: Any) -> AssetStates | None:
    """Find the stores behind what Airflow 3.3 gives an event trigger.

    :param accessors: ``BaseEventTrigger.asset_state_store``; None where nobody watches
    """
    if accessors is None:
        return None
    # Airflow 3.3.2 has no public way to list them; by itself the object serves a single asset only.
    by_name: dict[str, Any] = getattr(accessors, "_by_name", {})
    return AssetStates([by_name[name] for name in sorted(by_name)] or [accessors])
