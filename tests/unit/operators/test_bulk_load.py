"""What ``SnowpipeBulkLoadOperator`` refuses before a driver starts, and the format of its COPY."""

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_snowpipe.bulk.run_files import RunManifest, WrittenFile
from airflow_provider_snowpipe.operators.bulk_load import (
    SnowpipeBulkLoadOperator,
    copied_value,
    copy_arguments,
)
from airflow_provider_snowpipe.spark.driver.plan import RowsToWrite, WritePlan
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, FilesRejectedError
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.file_pipes import task_context

TABLE = (TableColumn("ID", "NUMBER(38,0)"), TableColumn('a "b"', "VARCHAR(9)"), TableColumn("V", "VARIANT"))
FILES = (WrittenFile("a/1.parquet", 10, 3), WrittenFile("a/2.parquet", 10, 4))


def test_a_cluster_needs_a_folder_that_its_executors_see(set_connection):
    set_connection("spark_default", conn_type="spark", host="spark://master", port=7077)
    operator = SnowpipeBulkLoadOperator(task_id="bulk", source={"table": "t"}, table="T", stage="@S")

    def plan(*run: str) -> WritePlan:
        return WritePlan(*run, rows=RowsToWrite(table="t"))

    with (
        pytest.raises(AirflowFailException, match=r"'spark_default' is 'spark://master:7077'.*work_path"),
        operator.writing(task_context(), plan),
    ):
        pytest.fail("a driver was submitted")
    assert operator._run is None


def test_columns_are_matched_by_name_where_none_holds_json():
    arguments = copy_arguments(RunManifest("a", FILES, ("ID",)), lambda: TABLE, {"on_error": "CONTINUE"})
    form = {"type": "PARQUET", "use_logical_type": True, "binary_as_text": False}
    options = {"on_error": "CONTINUE", "file_format": form, "match_by_column_name": "CASE_SENSITIVE"}
    assert arguments == {"options": options}


def test_all_columns_are_named_where_one_holds_json():
    manifest = RunManifest("a", FILES, ("ID", 'a "b"', "V"), ("V",))
    arguments = copy_arguments(manifest, lambda: TABLE, {})
    assert arguments["columns"] == ["ID", 'a "b"', "V"]
    expressions = ['$1:"ID"::NUMBER(38,0)', '$1:"a ""b"""::VARCHAR(9)', 'PARSE_JSON($1:"V")']
    assert arguments["expressions"] == expressions
    with pytest.raises(ConfigurationError, match=r"'a \"b\"'.*run_key"):
        copy_arguments(manifest, lambda: TABLE[:1], {})


def loads(*rows: int, status: str = "LOADED") -> dict[str, Any]:
    return {
        f"f/a/{number}.parquet": {"status": status, "rows_loaded": count, "errors_seen": 0}
        for number, count in enumerate(rows, 1)
    }


def test_the_outcome_of_copy_is_compared_with_what_was_written():
    manifest = RunManifest("a", FILES)
    folder: Any = SimpleNamespace(location="@S/f", reference=SimpleNamespace(path="f"))
    assert copied_value(manifest, folder, loads(3, 4), "fail", "T")["rows_loaded"] == 7
    with pytest.raises(FilesRejectedError, match=r"2\.parquet.*4 rows"):
        copied_value(manifest, folder, loads(3, 5), "fail", "T")
    assert copied_value(manifest, folder, loads(3, 5), "report", "T")["rows_loaded"] == 8
    with pytest.raises(FilesRejectedError):
        copied_value(manifest, folder, loads(0, 0, status="LOAD_SKIPPED"), "fail", "T")
