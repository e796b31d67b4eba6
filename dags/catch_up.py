"""Every five minutes, load the lines that have come since the run before, and no line twice.

A log shipper keeps a folder for each host and appends to the newest file in it; it may be in the middle of
a line. A run asks each host's channel for its committed offset token, starts at the line after it and ends
at the last whole line. So a run that was skipped, failed or stopped leaves nothing to do by hand: the next
one loads what it left. Without new lines a run sends nothing.

The shipper is played by the first task; switch ``ship_lines`` to 0 where a real one writes to ``data_dir``.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import Param, dag, task
from airflow.providers.common.sql.operators.sql import SQLCheckOperator, SQLExecuteQueryOperator

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.sources import FileSource, Ndjson

CREATE_TABLE = 'CREATE TABLE IF NOT EXISTS "{{ params.table }}" (HOST VARCHAR, LINE INTEGER)'
NO_LINE_TWICE = "SELECT COUNT(*) = COUNT(DISTINCT HOST || ':' || LINE) FROM \"{{ params.table }}\""
DATA_DIR = str(Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "shipped")


@dag(
    schedule="*/5 * * * *",
    catchup=False,  # a run loads everything that is there, whichever interval it is for
    max_active_runs=1,  # a channel has one writer
    tags=["snowpipe", "example"],
    doc_md=__doc__,
    render_template_as_native_obj=True,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    params={
        "table": Param("SHIPPED", type="string", pattern="^[A-Z_][A-Z0-9_]*$", description="Target table"),
        "data_dir": Param(DATA_DIR, type="string", description="A folder for each host, seen by the driver"),
        "ship_lines": Param(1000, type="integer", minimum=0, description="Lines to write first, per host"),
    },
)
def catch_up() -> None:
    """Create, ship, stream, wait for the commit, check."""

    @task
    def ship(params: dict[str, Any], ds_nodash: str | None = None) -> None:
        """Play the shipper: write more lines to today's file of each host, and begin one."""
        import json
        from datetime import UTC, datetime

        today = ds_nodash or datetime.now(UTC).strftime("%Y%m%d")
        for host in ("web1", "web2"):
            folder = Path(params["data_dir"]) / host
            folder.mkdir(parents=True, exist_ok=True)
            number = sum(file.read_text().count("\n") for file in folder.glob("*.ndjson"))
            newest = folder / f"{today}.ndjson"
            if not params["ship_lines"]:
                if not any(folder.glob("*.ndjson")):
                    newest.touch()  # a host without a file would be no partition
                continue
            whole, _, _begun = newest.read_text().rpartition("\n") if newest.exists() else ("", "", "")
            lines = [json.dumps({"HOST": host, "LINE": number + n}) for n in range(params["ship_lines"])]
            newest.write_text("\n".join(filter(None, [whole, *lines])) + '\n{"HOST": "w')

    create_table = SQLExecuteQueryOperator(
        task_id="create_table", conn_id="snowflake_default", sql=CREATE_TABLE, split_statements=False
    )
    stream = SnowpipeStreamOperator(
        task_id="stream",
        source=FileSource(path="{{ params.data_dir }}", format=Ndjson(growing=True)),
        source_name="shipped",
        table="{{ params.table }}",
    )
    wait_for_commit = SnowpipeCommitSensor(
        task_id="wait_for_commit",
        targets=stream.output["targets"],
        table="{{ params.table }}",
        deferrable=True,
    )
    no_line_twice = SQLCheckOperator(task_id="no_line_twice", conn_id="snowflake_default", sql=NO_LINE_TWICE)
    [create_table, ship()] >> stream >> wait_for_commit >> no_line_twice


catch_up()
