"""Secrets of a source on their way: from the credentials file to the driver, and on to its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SourceSecrets:
    """Passwords and keys by name. Pickled to executors inside the partitions; the repr shows names only.

    :param values: the secrets
    """

    values: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"SourceSecrets({', '.join(sorted(self.values))})"

    def __bool__(self) -> bool:
        return bool(self.values)
