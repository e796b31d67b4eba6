"""Start a DAG when rows are committed, with no schedule and no sensor in between.

The DAG ``commit_driven_meters`` appends readings to a channel. This one is scheduled by the channel
itself: an asset watcher follows its commits, and each commit starts a run, whoever wrote the rows.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator
from airflow.sdk import AssetWatcher, dag, task

from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.triggers.offset import SnowpipeOffsetTrigger

# The account, database and schema of the connection "snowflake_default"; these are those of snowpipe-local.
SCHEMA = {"account": "LOCAL", "database": "LOCAL", "schema": "PUBLIC"}
TABLE, CHANNEL = "METER_READINGS", "commit_driven_meters"

readings = snowpipe_asset(
    **SCHEMA,
    table=TABLE,
    channel=CHANNEL,
    name="meter_readings_committed",
    watchers=[
        AssetWatcher(
            name="commits",
            trigger=SnowpipeOffsetTrigger(
                table=TABLE,
                channel=CHANNEL,
                start="beginning",  # the watch may be older than the table, or younger than its first rows
                poll_interval=2,
            ),
        )
    ],
)


@dag(
    schedule=[readings],
    catchup=False,
    max_active_runs=1,
    tags=["snowpipe", "example"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
)
def commit_driven_totals() -> None:
    """Work on what was committed."""

    @task
    def committed(triggering_asset_events: Any) -> dict[str, Any]:
        """What started this run: an event may come twice, then with the same id."""
        events = {
            event.extra["payload"]["id"]: event.extra["payload"]
            for events_of_asset in triggering_asset_events.values()
            for event in events_of_asset
        }
        last = list(events.values())[-1]
        return {
            "rows": sum(event["rows"] for event in events.values()),
            "token": last["channels"][CHANNEL]["token"],
        }

    total = SQLExecuteQueryOperator(
        task_id="total",
        conn_id="snowflake_default",
        # The result is the same however often it is made.
        sql=f'SELECT COUNT(*), SUM(KWH) FROM "{TABLE}"',  # noqa: S608
        split_statements=False,
    )
    committed() >> total


commit_driven_totals()
