"""The bulk path with packages of Spark that a cluster would bring: S3 as ``s3a://``, and Avro."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.ledger import Ledger
from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
from airflow_provider_snowpipe.operators.stage_files import SnowpipeStageFilesOperator
from tests.airflow_connections import SetConnection, set_connection
from tests.airflow_version import AIRFLOW
from tests.conftest import ServiceFactory
from tests.file_pipes import task_context
from tests.local_connection import connect, ids
from tests.local_service import LocalService
from tests.maven_jars import AVRO, S3A, S3A_NEEDS, maven_closure, maven_jars
from tests.s3_service import KEY_ID, SECRET, S3Service, s3_service, see_s3
from tests.spark_in_task import submit_in_process

__all__ = ["set_connection"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class DiedError(BaseException):
    """Stands for a worker that dies at this very step."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Service]:
    with s3_service() as service:
        service.put("lake", {})
        yield service


@pytest.fixture
def spark_with_s3(s3: S3Service, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session that reaches the store; a service that starts now does, too."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    maven_jars(S3A)
    maven_closure(*S3A_NEEDS)
    settings = {
        "endpoint": f"http://{s3.endpoint}",
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "input.stream.type": "classic",
        "access.key": KEY_ID,
        "secret.key": SECRET,
    }
    for name, value in settings.items():
        spark.sparkContext._jsc.hadoopConfiguration().set(f"fs.s3a.{name}", value)
    return spark


@pytest.fixture
def worker_sees_s3(s3: S3Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with a file system for ``s3://``, which the provider of Amazon would bring."""
    see_s3(s3, monkeypatch)


# Daily, test_bulk_load_operator has an external stage, and test_iceberg_in_s3 a bucket.
@pytest.mark.nightly
@pytest.mark.skipif(AIRFLOW < (3, 2), reason="before Airflow 3.2 a provider has to bring each storage")
@pytest.mark.usefixtures("worker_sees_s3")
def test_an_external_stage_in_s3_is_written_into_as_s3a_and_loaded_once(
    s3: S3Service,
    spark_with_s3: Any,
    service_factory: ServiceFactory,
    set_connection: SetConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = service_factory(options=("--s3-endpoint", f"http://{s3.endpoint}"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(service.ca_file))
    set_connection("spark_default", conn_type="spark", host="local[2]")
    conn_id = connect(service, set_connection)
    submitted = submit_in_process(monkeypatch, spark_with_s3)
    service.sql("CREATE TABLE FLOOD (ID NUMBER, NAME VARCHAR)")
    service.sql("CREATE STAGE LAKE URL = 's3://lake/base/'")

    def load(try_number: int) -> dict[str, Any]:
        return SnowpipeBulkLoadOperator(
            task_id="bulk",
            source={"query": "SELECT /*+ REPARTITION(4) */ id AS ID, 'x' AS NAME FROM range(500)"},
            table="FLOOD",
            stage="@LAKE/in",
            storage_url="s3a://lake/base",
            target_file_bytes=1_000,
            deferrable=False,
            snowflake_conn_id=conn_id,
        ).execute(task_context(try_number=try_number))

    def die(*_: Any) -> None:
        raise DiedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "plan", die)
        with pytest.raises(DiedError):
            load(1)
    left = {key for key in s3.keys("lake") if key.endswith(".parquet")}

    done = load(2)

    assert ids(service, "FLOOD") == list(range(500))
    assert [plan.folder.split("//lake/base/in/")[0] for plan in submitted] == ["s3a:", "s3a:"]
    assert len(done["files"]) > 1
    assert left
    assert not any(path.endswith(name.rpartition("/")[2]) for path in done["files"] for name in left)
    assert s3.keys("lake") == []
    assert load(3) == done
    assert len(submitted) == 2


@pytest.mark.nightly  # test_compact_files combines files daily
def test_small_avro_files_become_one_with_every_row(
    spark: Any,
    local_service: LocalService,
    set_connection: SetConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fastavro = pytest.importorskip("fastavro", reason="needs the extra avro")
    maven_jars(AVRO)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(local_service.ca_file))
    set_connection("spark_default", conn_type="spark", host="local[2]")
    conn_id = connect(local_service, set_connection)
    submit_in_process(monkeypatch, spark)
    local_service.sql("CREATE OR REPLACE STAGE AVRO_DAY")
    names = [{"name": "ID", "type": "long"}, {"name": "NAME", "type": ["null", "string"]}]
    schema = {"type": "record", "name": "Row", "fields": names}
    rows = [{"ID": number, "NAME": None if number % 7 == 0 else f"ä {number}"} for number in range(60)]
    (tmp_path / "in").mkdir()
    for number in range(20):
        with (tmp_path / "in" / f"{number:03}.avro").open("wb") as file:
            fastavro.writer(file, schema, rows[number * 3 : number * 3 + 3])

    done = SnowpipeStageFilesOperator(
        task_id="stage",
        source=str(tmp_path / "in"),
        stage="@AVRO_DAY/in",
        compact=True,
        snowflake_conn_id=conn_id,
    ).execute(task_context())

    (name,) = done["files"]
    assert done["combined"] == 20
    assert name.endswith(".avro")
    (tmp_path / "out").mkdir()
    import snowflake.connector

    with snowflake.connector.connect(**local_service.connector_arguments) as connection:
        connection.cursor().execute(f"GET @AVRO_DAY/in/{name} 'file://{tmp_path}/out/'")
    (found,) = (tmp_path / "out").iterdir()
    read = spark.read.format("avro").load(str(found)).orderBy("ID").collect()
    assert [row.asDict() for row in read] == rows
