"""Triggers as Airflow's database holds them, kept in files: what one release stores, the next must read.

For a new trigger, or before a release that gave a trigger new arguments, write its stored form, made with
:func:`stored`, into a new file of ``tests/unit/triggers/serialized``::

    print(json.dumps([stored(SnowpipeCommitTrigger(targets={"c": "a:1"}, …))], indent=2))

A file of a former release is never changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

FORMS = ("serde", "base_serialization")
"""Airflow stores the first since 3.2 and the second before; a newer one reads both."""
FILES = sorted((Path(__file__).parent / "unit" / "triggers" / "serialized").glob("*.json"))


def stored(trigger: BaseTrigger) -> dict[str, Any]:
    """What Airflow stores of a trigger, in both forms; needs Airflow 3.2 or later."""
    from airflow.sdk.serde import serialize
    from airflow.serialization.serialized_objects import BaseSerialization

    classpath, kwargs = trigger.serialize()
    forms = {"serde": serialize(kwargs), "base_serialization": BaseSerialization.serialize(kwargs)}
    return {"classpath": classpath, "kwargs": kwargs, "stored": forms}


def entries(file: Path) -> list[Mapping[str, Any]]:
    """The triggers of one file."""
    found: list[Mapping[str, Any]] = json.loads(file.read_text())
    return found
