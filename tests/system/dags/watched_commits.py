"""DAGs that commits start, by each of the rules that a watcher knows; the triggerer is killed meanwhile."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.triggers.offset import SnowpipeOffsetTrigger

TABLE = "WATCHED"
PLACE = {"account": "LOCAL", "database": "LOCAL", "schema": "PUBLIC", "table": TABLE}
EVERY, PASSES = 7, "40"


def watchers(**rule: Any) -> list[AssetWatcher]:
    trigger = SnowpipeOffsetTrigger(
        table=TABLE, offset_format="integer", poll_interval=0.5, list_interval=5, **rule
    )
    return [AssetWatcher(name="commits", trigger=trigger)]


rows = snowpipe_asset(
    **PLACE, name="watched_rows", watchers=watchers(channel_prefix="watched_", every_rows=EVERY)
)
moves = snowpipe_asset(
    **PLACE, name="watched_moves", channel="watched_a", watchers=watchers(channel="watched_a")
)
# A URI is one asset, so that another rule on the same table needs another one.
passes = Asset(name="watched_passes", watchers=watchers(channel_prefix="watched_", passes=PASSES))

for asset in (rows, moves, passes):
    with DAG(asset.name, schedule=[asset], catchup=False, max_active_runs=1):

        @task
        def count(triggering_asset_events: Any) -> int:
            return sum(len(events) for events in triggering_asset_events.values())

        count()
