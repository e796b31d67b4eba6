"""What Airflow's OpenLineage provider emits for our tasks: a real run, a real listener, events in a file."""

from __future__ import annotations

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
_RUN_SECONDS = 1200
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
    for name, row in (("source", '{"ID":%d,"NAME":"x"}\n'), ("spoiled", '{"ID":"no %d"}\n')):
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
        "SPARK_CONF_DIR": str(conf_file),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "ROWS_FILE": str(rows),
        "SOURCE": str(folder / "source"),
        "SPOILED": str(folder / "spoiled"),
    }
    environment.pop("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", None)
    for arguments in (["-m", "airflow", "db", "migrate"], [str(dags / "lineage.py")]):
        done = subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    found = [json.loads(line) for line in written.read_text().splitlines()]
    return {(event["job"]["name"].removeprefix("lineage."), event["eventType"]): event for event in found}


def _channels(event: dict[str, Any]) -> dict[str, Any]:
    facet: dict[str, Any] = event["run"]["facets"]["snowpipe_channels"]
    assert facet["pipe"] == "LOCAL.PUBLIC.T-STREAMING"
    return {
        channel.pop("channel"): {**channel, "toOffset": shown(channel["toOffset"])}
        for channel in facet["channels"]
    }


def _table(dataset: dict[str, Any]) -> tuple[str, str]:
    return dataset["namespace"], dataset["name"]


def test_an_append_reports_its_file_its_table_and_how_much_it_loaded(events: Events) -> None:
    event = events["append", "COMPLETE"]
    (source,) = event["inputs"]
    assert (source["namespace"], Path(source["name"]).name) == ("file", "rows.ndjson")
    (table,) = event["outputs"]
    assert table["namespace"].startswith("snowflake://")
    assert table["name"] == "LOCAL.PUBLIC.T"
    statistics = table["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"]) == (2, 40)
    assert event["run"]["facets"]["snowpipe_channels"]["offsetFormat"] == "batch:row"
    assert _channels(event) == {"small": {"toOffset": "1:2", "rows": 2, "rejected": 0}}


def test_a_sensor_reads_the_table_that_it_waited_for(events: Events) -> None:
    event = events["wait", "COMPLETE"]
    assert [_table(found) for found in event["inputs"]] == [
        _table(events["append", "COMPLETE"]["outputs"][0])
    ]
    assert event["outputs"] == []
    assert _channels(event)["small"]["toOffset"] == "1:2"


def test_a_stream_reports_its_directory_and_the_offsets_of_each_channel(events: Events) -> None:
    event = events["load", "COMPLETE"]
    (source,) = event["inputs"]
    assert (source["namespace"], Path(source["name"]).name) == ("file", "source")
    (table,) = event["outputs"]
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 10
    assert _channels(event) == {
        f"load_source_{part}": {
            "toOffset": f"{part}_01.ndjson:5",
            "rows": 5,
            "rejected": 0,
        }
        for part in ("p1", "p2")
    }


def test_a_load_by_copy_reports_the_same_as_a_stream(events: Events) -> None:
    event = events["copied", "COMPLETE"]
    assert [_table(found) for found in event["inputs"]] == [
        _table(found) for found in events["load", "COMPLETE"]["inputs"]
    ]
    (table,) = event["outputs"]
    assert _table(table) == _table(events["load", "COMPLETE"]["outputs"][0])
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 10
    assert table["outputFacets"]["outputStatistics"]["size"] > 0
    assert _channels(event) == {
        f"copied_source_{part}": {"toOffset": f"{part}_01.ndjson:5", "rows": 5} for part in ("p1", "p2")
    }


def test_a_copy_reports_its_stage_and_its_rows(events: Events) -> None:
    event = events["staged", "COMPLETE"]
    (stage,) = event["inputs"]
    (table,) = event["outputs"]
    assert stage["namespace"] == table["namespace"]
    assert (stage["name"], table["name"]) == ("LOCAL.PUBLIC.LINEAGE_FILES/day", "LOCAL.PUBLIC.T")
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 3
    assert "snowpipe_channels" not in event["run"]["facets"]


def test_a_stream_that_failed_reports_what_it_had_sent(events: Events) -> None:
    event = events["spoiled", "FAIL"]
    (table,) = event["outputs"]
    assert table["name"] == "LOCAL.PUBLIC.T"
    assert sum(channel["rejected"] for channel in _channels(event).values()) > 0


def test_the_spark_application_knows_the_task_that_started_it(events: Events, conf_file: Path) -> None:
    run_id = events["load", "COMPLETE"]["run"]["runId"]
    texts = [file.read_text() for file in (conf_file / "events").iterdir()]
    parents = [text for text in texts if f'"spark.openlineage.parentRunId":"{run_id}"' in text]
    assert len(parents) == 1
    assert '"spark.openlineage.parentJobName":"lineage.load"' in parents[0]


def test_no_secret_is_in_any_event(events: Events, local_service: LocalService) -> None:
    text = json.dumps(list(events.values()))
    assert "PRIVATE KEY" not in text
    assert local_service.key_file.read_text().splitlines()[1] not in text
