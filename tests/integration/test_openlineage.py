"""What Airflow's OpenLineage provider emits for our tasks: a real run, a real listener, events in a file."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import shown
from tests.clients.openlineage_libraries import openlineage_libraries
from tests.local_service import LocalService
from tests.staged_files import put

# Eight tasks in an Airflow of its own with packages of its own; the facets are proved daily in
# tests/unit/test_lineage.py and by the tests of the operators.
pytestmark = pytest.mark.nightly

REPOSITORY = Path(__file__).parents[2]
Events = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def conf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark writes the settings that its driver saw."""
    folder = tmp_path_factory.mktemp("spark")
    (folder / "events").mkdir()
    (folder / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.dir file://{folder / 'events'}\n"
        "spark.eventLog.compress false\nspark.eventLog.rolling.enabled false\n"
    )
    return folder


@pytest.fixture(scope="module")
def events(local_service: LocalService, tmp_path_factory: pytest.TempPathFactory, conf_file: Path) -> Events:
    """The events of one run of the DAG, by task and type."""
    folder = tmp_path_factory.mktemp("openlineage")
    local_service.sql("CREATE TABLE t (ID INT, NAME VARCHAR)")
    local_service.sql("CREATE STAGE LINEAGE_FILES")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REQUESTS_CA_BUNDLE", str(local_service.ca_file))
        put(local_service, folder / "staged", "LINEAGE_FILES", {"day/a.csv": "7,x\n8,x\n9,x\n"})
    rows = folder / "rows.ndjson"
    rows.write_text('{"ID":1,"NAME":"a"}\n{"ID":2,"NAME":"b"}\n')
    good = '{"ID":%d,"NAME":"x"}\n'
    for name, row in (("source", good), ("copied", good), ("spoiled", '{"ID":"no %d"}\n')):
        for part in ("p1", "p2"):
            (folder / name / part).mkdir(parents=True)
            (folder / name / part / f"{part}_01.ndjson").write_text("".join(row % n for n in range(5)))
    written = folder / "events.jsonl"
    dags = folder / "dags"
    dags.mkdir()
    (dags / "lineage.py").symlink_to(REPOSITORY / "tests" / "clients" / "openlineage_dag.py")
    environment = {
        **local_service.process_env(),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(openlineage_libraries())]),
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
            {"type": "file", "log_file_path": str(written), "append": True}
        ),
        "AIRFLOW__OPENLINEAGE__NAMESPACE": "tests",
        # The listener gives up after ten seconds by default; a busy machine may need more.
        "AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT": "60",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2,4]"}),
        "AIRFLOW__SNOWPIPE__LOCAL_ROWS_WITHOUT_SPARK": "False",
        "SPARK_CONF_DIR": str(conf_file),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "ROWS_FILE": str(rows),
        "SOURCE": str(folder / "source"),
        "SPOILED": str(folder / "spoiled"),
        "COPIED": str(folder / "copied"),
    }
    environment.pop("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", None)
    for arguments in (["-m", "airflow", "db", "migrate"], [str(dags / "lineage.py")]):
        command = [sys.executable, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    found = [json.loads(line) for line in written.read_text().splitlines()]
    return {(event["job"]["name"].removeprefix("lineage."), event["eventType"]): event for event in found}


def _channels(event: dict[str, Any]) -> dict[str, tuple[str | None, int]]:
    """Position and rows of each channel."""
    facet: dict[str, Any] = event["run"]["facets"]["snowpipe_channels"]
    assert facet["pipe"] == "LOCAL.PUBLIC.T-STREAMING"
    return {one["channel"]: (shown(one["toOffset"]), one.get("rows", 0)) for one in facet["channels"]}


def _names(datasets: list[dict[str, Any]]) -> list[str]:
    return [f"{one['namespace'].partition(':')[0]}:{Path(one['name']).name}" for one in datasets]


TABLE = "snowflake:LOCAL.PUBLIC.T"
PARTS = ("p1", "p2")


@pytest.mark.parametrize(
    ("task", "inputs", "rows", "channels"),
    [
        ("append", "file:rows.ndjson", 2, {"small": ("1:2", 2)}),
        ("load", "file:source", 10, {f"load_source_{one}": (f"{one}_01.ndjson:5", 5) for one in PARTS}),
        ("copied", "file:copied", 10, None),
        ("staged", "snowflake:day", 3, None),
    ],
)
def test_a_load_reports_its_source_its_table_and_how_much_it_loaded(
    events: Events, task: str, inputs: str, rows: int, channels: dict[str, tuple[str, int]] | None
) -> None:
    event = events[task, "COMPLETE"]
    assert (_names(event["inputs"]), _names(event["outputs"])) == ([inputs], [TABLE])
    (table,) = event["outputs"]
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == rows
    if channels is None:
        assert "snowpipe_channels" not in event["run"]["facets"]
    else:
        assert _channels(event) == channels
        assert table["outputFacets"]["outputStatistics"]["size"] > 0


def test_a_sensor_reads_the_table_and_a_stream_that_failed_reports_what_it_had_sent(events: Events) -> None:
    event = events["wait", "COMPLETE"]
    assert (_names(event["inputs"]), event["outputs"]) == ([TABLE], [])
    assert _channels(event)["small"][0] == "1:2"
    event = events["spoiled", "FAIL"]
    assert _names(event["outputs"]) == [TABLE]
    assert sum(one["rejected"] for one in event["run"]["facets"]["snowpipe_channels"]["channels"]) > 0


def test_the_spark_application_knows_the_task_that_started_it_and_no_event_has_a_secret(
    events: Events, conf_file: Path, local_service: LocalService
) -> None:
    run_id = events["load", "COMPLETE"]["run"]["runId"]
    texts = [file.read_text() for file in (conf_file / "events").iterdir()]
    (parent,) = [text for text in texts if f'"spark.openlineage.parentRunId":"{run_id}"' in text]
    assert '"spark.openlineage.parentJobName":"lineage.load"' in parent
    text = json.dumps(list(events.values()))
    assert "PRIVATE KEY" not in text
    assert local_service.key_file.read_text().splitlines()[1] not in text
