"""What Airflow's database holds of assets and runs, for which its API takes long or has no words."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

from conftest import Stack


def events_of(stack: Stack, asset: str) -> list[dict[str, Any]]:
    """The extras of an asset's events, oldest first."""
    statement = (
        "SELECT e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id WHERE a.name = ? ORDER BY e.id"
    )
    return [json.loads(extra) for (extra,) in query(stack, statement, asset)]


def partitions_of(stack: Stack, asset: str) -> list[str]:
    """The partition keys of an asset's events, oldest first."""
    statement = (
        "SELECT e.partition_key FROM asset_event e JOIN asset a ON a.id = e.asset_id WHERE a.name = ? "
        "ORDER BY e.id"
    )
    return [key for (key,) in query(stack, statement, asset)]


def query(stack: Stack, statement: str, value: str) -> list[tuple[str, ...]]:
    """The rows of a query with one value."""
    uri = f"file:{stack.airflow.home / 'airflow.db'}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=30)) as connection:
        return connection.execute(statement, (value,)).fetchall()
