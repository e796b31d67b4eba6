"""What operators of files and channels refuse when a DAG is read, and what they stage."""

import datetime as dt
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowFailException

from airflow_provider_snowpipe.operators.account_operator import CHOICE
from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
from airflow_provider_snowpipe.operators.channels import (
    SnowpipeOpenChannelOperator,
    SnowpipeResetOffsetOperator,
)
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.operators.file_pipe import SnowpipePipeOperator
from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.operators.stage_files import SnowpipeStageFilesOperator
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, NothingStagedError
from tests.unit.operators.account_in_task import task_context

CREATE = {"table": "T", "stage": "@S"}
NEEDED: dict[Any, dict[str, Any]] = {
    SnowpipePipeOperator: {"pipe": "P"},
    SnowpipeIngestFilesOperator: {"pipe": "P"},
    SnowpipeStageFilesOperator: {"source": "/in", "stage": "@S"},
    SnowpipeCopyOperator: {"table": "{{ params.table }}", "stage": "@S"},
    SnowpipeLoadOperator: {"table": "T", "source": "@S"},
    SnowpipeBulkLoadOperator: {**CREATE, "source": {"path": "/a", "format": "json"}},
    SnowpipeOpenChannelOperator: {"table": "T", "channel": "c"},
    SnowpipeResetOffsetOperator: {"table": "T", "channel": "c", "offset_token": "a:1"},
}


@pytest.mark.parametrize(
    ("kind", "arguments", "word"),
    [
        (SnowpipePipeOperator, {"action": "make"}, "'make'"),
        (SnowpipePipeOperator, {"action": "create", "stage": "@S"}, "table"),
        (SnowpipePipeOperator, {"action": "create", **CREATE, "prefix": "in/"}, "prefix"),
        (SnowpipePipeOperator, {"action": "drop", "if_exists": "replace"}, "force"),
        (SnowpipePipeOperator, {"action": "refresh", "on_nothing": "skip"}, "on_nothing"),
        (SnowpipeIngestFilesOperator, {}, "stage"),
        (SnowpipeIngestFilesOperator, {"files": ["a"], "prefix": "in/"}, "prefix"),
        (SnowpipeIngestFilesOperator, {"files": ["a"], "on_unmatched": "skip"}, "on_unmatched"),
        (SnowpipeIngestFilesOperator, {"files": ["a"], "load_timeout": None}, "load_timeout is None"),
        (SnowpipeIngestFilesOperator, {"files": ["a"], "retry_seconds": -1.0}, r"retry_seconds is -1\.0"),
        (SnowpipeStageFilesOperator, {"if_staged": "never"}, "if_staged"),
        (SnowpipeStageFilesOperator, {"parallel": 100}, "parallel"),
        (SnowpipeCopyOperator, {"on_rejected": "skip"}, "on_rejected"),
        (SnowpipeCopyOperator, {"on_nothing": "skip"}, "on_nothing"),
        (SnowpipeCopyOperator, {"files": ["a"], "prefix": "b"}, "files"),
        (SnowpipeCopyOperator, {"columns": "ID"}, "columns"),
        (SnowpipeCopyOperator, {"expressions": ["$1", 2]}, "expressions"),
        (SnowpipeCopyOperator, {"validation_mode": "RETURN_ERRORS", "expressions": ["$1"]}, "expressions"),
        (SnowpipeCopyOperator, {"poll_interval": float("nan")}, "poll_interval is nan"),
        (SnowpipeLoadOperator, {"load_timeout": dt.timedelta(hours=1)}, "load_timeout is datetime"),
        (SnowpipeBulkLoadOperator, {"parallel": "4"}, "parallel is '4'"),
        (SnowpipeBulkLoadOperator, {"target_file_bytes": 0}, "target_file_bytes is 0"),
        (SnowpipeBulkLoadOperator, {"parallel": 0}, "parallel"),
        (SnowpipeBulkLoadOperator, {"options": {"file_format": "F"}}, "file_format"),
        (SnowpipeBulkLoadOperator, {"options": {"force": True}}, "force"),
        (SnowpipeBulkLoadOperator, {"options": {"purge": True}}, "keep_files"),
        (SnowpipeBulkLoadOperator, {"conn_id": "spark"}, "conn_id"),
        (SnowpipeOpenChannelOperator, {"if_exists": "x"}, "if_exists"),
        (SnowpipeOpenChannelOperator, {"pipe": "P"}, "both"),
        (SnowpipeOpenChannelOperator, {"uncommitted_timeout": -1}, "uncommitted_timeout"),
        (SnowpipeResetOffsetOperator, {"observe_seconds": float("nan")}, "observe_seconds"),
    ],
)
def test_an_argument_that_is_not_taken_is_refused(kind, arguments, word):
    with pytest.raises(ConfigurationError, match=word):
        kind(task_id="t", **NEEDED[kind], **arguments)


class TestStaging:
    """Files of this machine in a stage of the fake account."""

    def stage(self, source, **arguments):
        operator = SnowpipeStageFilesOperator(
            task_id="stage", snowflake_conn_id="account", source=source, stage="@S", **arguments
        )
        return operator.execute(task_context())

    @pytest.fixture
    def folder(self, tmp_path, account):
        (tmp_path / "in").mkdir()
        for name in ("a.csv", "b.csv", "c.txt"):
            (tmp_path / "in" / name).write_text("1,x\n")
        return tmp_path / "in"

    def test_two_files_that_get_one_name_are_refused(self, account, folder):
        (folder / "a.csv.gz").write_bytes(b"")
        self.stage(str(folder))
        with pytest.raises(AirflowFailException, match=r"a.csv.gz"):
            self.stage(str(folder), auto_compress=True)
        (folder.parent / "two").mkdir()
        (folder.parent / "two" / "a.csv").write_text("2,x\n")
        with pytest.raises(AirflowFailException, match="two files"):
            self.stage([str(folder), str(folder.parent / "two")])

    def test_files_and_folders_may_be_listed_and_narrowed(self, account, folder):
        one = folder.parent / "one.csv"
        one.write_text("2,x\n")
        done = self.stage(f'["{folder}", "file://{one}"]', pattern="*.csv")
        assert done["files"] == sorted(account.stages["S"]) == ["a.csv", "b.csv", "one.csv"]

    def test_no_file_is_an_error_or_a_report(self, folder):
        with pytest.raises(NothingStagedError, match=r"'\*\.gz'"):
            self.stage(str(folder), pattern="*.gz")
        with pytest.raises(NothingStagedError, match="below"):
            self.stage(str(folder / "nowhere"))
        done = self.stage(str(folder), pattern="*.gz", on_nothing="report")
        assert (done["files"], done["uploaded"], done["bytes_uploaded"]) == ([], [], 0)

    def test_a_name_that_is_staged_is_left_or_replaced_or_fails(self, account, folder):
        names = ["a.csv", "b.csv", "c.txt"]
        self.stage(str(folder))
        assert self.stage(str(folder), if_staged="fail")["skipped"] == names
        (folder / "b.csv").write_text("2,longer\n")
        assert self.stage(str(folder), if_staged="skip")["uploaded"] == []
        with pytest.raises(AirflowFailException, match="content"):
            self.stage(str(folder), if_staged="fail")
        assert account.stages["S"]["b.csv"] != b"2,longer\n"
        assert self.stage(str(folder), if_staged="overwrite")["uploaded"] == names
        assert account.stages["S"]["b.csv"] == b"2,longer\n"

    @pytest.mark.parametrize(
        "spark_options", [{"driver_memry": "1g", "conf": {"k": "hunter2"}}, {"application": "x.py"}, [1]]
    )
    def test_spark_options_that_cannot_be_are_named_without_a_value(self, account, folder, spark_options):
        (folder / "c.txt").unlink()
        with pytest.raises(AirflowFailException, match="spark_options") as refused:
            self.stage(str(folder), compact={"header": False}, spark_options=spark_options)
        assert str(next(iter(spark_options))) in str(refused.value)
        assert "hunter2" not in str(refused.value)
        assert account.stages.get("S", {}) == {}


@pytest.mark.parametrize(
    ("kind", "given", "names"),
    [
        (SnowpipeCopyOperator, {"table": "T", "stage": "@S"}, CHOICE),
        (SnowpipeIngestFilesOperator, {"pipe": "P", "stage": "@S"}, CHOICE),
        (SnowpipePipeOperator, {"pipe": "P", "action": "refresh"}, ("prefix",)),
        (SnowpipeStageFilesOperator, {"source": __file__, "stage": "@S"}, ("pattern",)),
        (SnowpipeLoadOperator, {"table": "T"}, ("source",)),
        (SnowpipeCopyOperator, {"table": "T"}, ("stage",)),
    ],
)
def test_a_choice_of_files_that_is_rendered_to_none_does_not_choose_all(account, kind, given, names):
    account.put("a", "a1")
    for name in names:
        with DAG("d", schedule=None, render_template_as_native_obj=True):
            task = kind(task_id="t", snowflake_conn_id="account", **given, **{name: "{{ nothing }}"})
        task.render_template_fields({"nothing": None})
        with pytest.raises(AirflowFailException, match=f"{name} .*None"):
            task.execute(task_context())
    assert account.rows == []
