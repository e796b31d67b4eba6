"""A first run sends rows and fails, its channel is lost, and the next try refuses to load them again."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from tests.kafka_topics import MockCluster, numbered, produce
from tests.loaded_folder import variables
from tests.local_connection import ids, make_table
from tests.spark_job import numbered_name, write_rows
from tests.stream_worker import execute
from tests.waiting import wait_until

__all__ = ["variables"]
NUMBERS = list(range(10))


@pytest.fixture
def files(tmp_path):
    write_rows(tmp_path / "src" / "a" / "1.ndjson", NUMBERS)
    return {"path": str(tmp_path / "src")}


@pytest.fixture
def connector():
    cluster = MockCluster()
    cluster.make_topic("t")
    produce(cluster.address, "t", numbered(NUMBERS), partition=0)
    yield {"kind": "kafka", "bootstrap_servers": cluster.address, "topics": ["t"], "connector_name": "c"}
    del cluster


@pytest.fixture
def table(tmp_path):
    pq.write_table(pa.table({"ID": NUMBERS}), tmp_path / "1.parquet")
    return {"kind": "table", "path": str(tmp_path / "1.parquet"), "offset_column": "ID"}


@pytest.mark.parametrize(
    "source", ["files", "connector", pytest.param("table", marks=[pytest.mark.spark, pytest.mark.nightly])]
)
def test_rows_of_a_first_run_are_not_loaded_again(source, admin_service, monkeypatch, request, variables):
    name, service = numbered_name("FIRST"), admin_service
    spark = {"AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"})}
    for key, value in {**service.env, **spark}.items():
        monkeypatch.setenv(key, value)
    given = {"table": name, "source": request.getfixturevalue(source), "commit_timeout": 3}
    given |= {"unknown_columns": "warn"}
    if source == "files":  # the task makes the table
        given |= {"create_table": "if_missing"}
    else:
        make_table(service, name)
    service.admin("faults", set="hold-commits")
    with pytest.raises(AirflowException, match="CommitTimeoutError"):
        execute(dict(given), None)
    service.admin("faults", clear=True)
    wait_until(lambda: ids(service, name) == NUMBERS)
    with service.client(name) as client:
        for one in service.sql(f"SHOW CHANNELS IN TABLE LOCAL.PUBLIC.{name}"):
            client.drop_channel(one["name"])

    with pytest.raises(AirflowFailException, match=r"SourcePositionError.*rebind='restart'"):
        execute(dict(given), None)

    assert ids(service, name) == NUMBERS
    service.sql(f"DELETE FROM LOCAL.PUBLIC.{name}")
    execute({**given, "rebind": "restart", "commit_timeout": 60}, None)
    assert ids(service, name) == NUMBERS
