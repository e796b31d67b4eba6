"""Outlet events as a task finds them: by asset, which Airflow 3.1 cannot hash."""

from collections.abc import Callable
from typing import Any


class OutletEvents:
    """The events of a task, made when they are first asked for."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self.made: dict[str, Any] = {}

    def __getitem__(self, outlet: Any) -> Any:
        return self.made.setdefault(outlet.uri, self._make())
