"""Dead letters in an object store: credentials from the environment, files whole, one file for each row."""

import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.checked_values import RowRules
from airflow_provider_snowpipe.streaming.errors import DeadLetterError
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.row_gate import Admission
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.s3_service import KEY_ID, SECRET, s3_service

COLUMNS = (TableColumn("ID", "NUMBER(38,0)"),)
BAD = b'{"ID":"x"}\n'


def _part(position: int) -> Part:
    return Part(BAD + b'{"ID":1}\n', IntegerOffset(position), IntegerOffset(position + 1), 2)


def test_files_are_written_replaced_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with s3_service() as s3:
        s3.put("lake", {})
        settings = f"scheme=http&endpoint_override={s3.endpoint}&region=us-east-1"
        address = f"s3://lake/dead?{settings}"
        rules = RowRules(COLUMNS, address, "app", "D.S.P")
        killed = Admission(rules, (), "ignore", "a/b", IntegerOffset, None)
        for position in (1, 3, 5):
            killed.admit(_part(position))

        again = Admission(rules, (), "ignore", "a/b", IntegerOffset, IntegerOffset(2))
        again.admit(Part(b'{"ID":1}\n' * 2 + BAD * 2, IntegerOffset(3), IntegerOffset(6), 4))
        again.settle(IntegerOffset(6))

        keys = [key for key in s3.keys("lake") if key.endswith(".parquet")]
        assert keys == ["dead/a%2Fb/1.parquet", "dead/a%2Fb/3.parquet"]
        files, root = fs.FileSystem.from_uri(address)
        dead_letters = [pq.read_table(f"lake/{key}", filesystem=files).to_pylist() for key in keys]
        assert root == "lake/dead"
        assert [[one["position"] for one in rows] for rows in dead_letters] == [["1"], ["5", "6"]]

        nowhere = RowRules(COLUMNS, f"s3://nowhere/dead?{settings}", "app")
        with pytest.raises(DeadLetterError) as refused:
            Admission(nowhere, (), "ignore", "c", IntegerOffset, None).admit(_part(1))
    assert "s3://nowhere/dead" in str(refused.value)
    assert SECRET not in str(refused.value)
