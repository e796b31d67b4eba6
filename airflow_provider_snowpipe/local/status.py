"""What the service is doing: databases, pipes and channels with what is committed and what still waits."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

from airflow_provider_snowpipe.local.catalog import Catalog
from airflow_provider_snowpipe.local.engine.channel import Channel
from airflow_provider_snowpipe.local.engine.committer import Backlog
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.faults import Faults

Json = dict[str, Any]


def snapshot(catalog: Catalog, faults: Faults) -> Json:
    """Return the state of all databases as a JSON object.

    Times are ISO 8601 by the service's clock; sizes are bytes of rows, uncompressed.
    """
    now = dt.datetime.fromtimestamp(catalog.clock.now(), dt.UTC)
    return {
        "now": now.isoformat(timespec="milliseconds"),
        "clock_moved_seconds": catalog.clock.moved_seconds,
        "databases": [_database(database, faults) for database in catalog.databases],
    }


def _database(database: Database, faults: Faults) -> Json:
    backlog = database.committer.backlog()
    channels: dict[tuple[str, str], list[Json]] = {}
    for channel in database.channels:
        described = _channel(database, channel, backlog.get(channel))
        channels.setdefault((channel.pipe.key.schema, channel.pipe.key.name), []).append(described)
    return {
        "name": database.name,
        "recent_commits": [
            {
                "channels": record.channels,
                "appends": record.appends,
                "bytes": record.size,
                "own": record.own,
                "seconds": round(record.seconds, 4),
            }
            for record in database.committer.records
        ],
        "pipes": [
            {
                "schema": pipe.key.schema,
                "name": pipe.key.name,
                "table": pipe.table,
                "failed_over": faults.has_failed_over(database.name, pipe.key.schema, pipe.key.name),
                "channels": channels.get((pipe.key.schema, pipe.key.name), []),
            }
            for pipe in database.pipes
        ],
    }


def _channel(database: Database, channel: Channel, backlog: Backlog | None) -> Json:
    status, (rate, own) = channel.status(), database.committer.arrival(channel)
    return {
        "name": channel.name,
        "status": status["channel_status_code"],
        "committed_token": status["last_committed_offset_token"],
        "rows_inserted": status["rows_inserted"],
        "rows_error_count": status["rows_error_count"],
        "last_error_message": status["last_error_message"],
        "uncommitted_appends": backlog.appends if backlog else 0,
        "uncommitted_bytes": backlog.size if backlog else 0,
        "lag_seconds": round(time.monotonic() - backlog.received_at, 3) if backlog else 0.0,
        "bytes_per_second": round(rate),
        "own_commits": own,
    }
