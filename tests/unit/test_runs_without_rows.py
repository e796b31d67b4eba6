"""A run without rows is green from end to end: in the README's DAG, and in each example that can have one."""

import re
import runpy
from pathlib import Path

import pytest

from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.streaming.progress import ChannelTarget
from tests.airflow_connections import statuses
from tests.airflow_version import AIRFLOW
from tests.example_dags import DAGS_FOLDER, runs_here
from tests.local_connection import TaskInstance

if AIRFLOW < (3, 0):
    pytest.skip("the README's DAG imports airflow.sdk", allow_module_level=True)

README = Path(__file__).parents[2] / "README.md"
WAITING = {"README": "ship_logs", "flights_to_snowflake": "flights_to_snowflake", "catch_up": "catch_up"}
"""What has a task that waits for the commits of a stream, and the function that makes its DAG."""


def dag_of(name):
    if name == "README":
        (text,) = re.findall(r"```python\n(.+?)```", README.read_text(), re.DOTALL)
        names = {}
        exec(text, names)  # noqa: S102  the project's own page
    else:
        names = runpy.run_path(str(DAGS_FOLDER / f"{name}.py"))
    return names[WAITING.get(name, name)]()


@pytest.mark.parametrize("name", [name for name in WAITING if name == "README" or runs_here(name)])
def test_sensor_succeeds_at_once_where_the_stream_sent_nothing(service, service_connection, name):
    for committed, channels in [(None, ("c1", "c2")), ("a.ndjson:7", ("c1", "c2")), (None, ())]:
        owed = ChannelTarget(token=committed, offset_format="file:line", errors=2, rows=0)
        (sensor,) = [one for one in dag_of(name).tasks if isinstance(one, SnowpipeCommitSensor)]
        sensor.table, sensor.snowflake_conn_id = "T", service_connection
        sensor.targets = {channel: owed.to_json() for channel in channels}
        status = {"last_committed_offset_token": committed, "rows_error_count": 2}
        service.on("bulk-channel-status", statuses(**dict.fromkeys(channels, status)))
        assert sensor.execute({"ti": TaskInstance()}) == dict.fromkeys(channels, committed)
