"""What the operators of files refuse when a DAG is read, and what they stage."""

import datetime as dt
import re
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowFailException

from airflow_provider_snowpipe.operators.account_operator import CHOICE
from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.operators.file_pipe import SnowpipePipeOperator
from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.operators.stage_files import SnowpipeStageFilesOperator
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, NothingStagedError
from tests.unit.operators.account_in_task import task_context

CREATE = {"table": "T", "stage": "@S"}
STAGE = {"source": "/in", "stage": "@S"}


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
        (SnowpipeStageFilesOperator, {**STAGE, "if_staged": "never"}, "if_staged"),
        (SnowpipeStageFilesOperator, {**STAGE, "parallel": 100}, "parallel"),
    ],
)
def test_an_argument_that_is_not_taken_is_refused(kind, arguments, word):
    pipe = {} if kind is SnowpipeStageFilesOperator else {"pipe": "P"}
    with pytest.raises(ValueError, match=word):
        kind(task_id="t", **pipe, **arguments)


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


COPYING = {"table": "T", "stage": "@S"}
INGESTING: dict[str, Any] = {"pipe": "P", "files": ["a"]}
LOADING: dict[str, Any] = {"table": "T", "source": "@S"}
WRITING: dict[str, Any] = {"table": "T", "source": {"path": "/a", "format": "json"}}


def test_a_number_that_no_wait_and_no_file_can_have_is_refused_when_the_dag_is_read():
    for kind, arguments, name, value in (
        (SnowpipeCopyOperator, COPYING, "poll_interval", float("nan")),
        (SnowpipeIngestFilesOperator, INGESTING, "load_timeout", None),
        (SnowpipeIngestFilesOperator, INGESTING, "retry_seconds", -1.0),
        (SnowpipeLoadOperator, LOADING, "load_timeout", dt.timedelta(hours=1)),
        (SnowpipeBulkLoadOperator, WRITING, "parallel", "4"),
        (SnowpipeBulkLoadOperator, WRITING, "target_file_bytes", 0),
    ):
        made = kind
        with pytest.raises(ConfigurationError, match=f"{name} is {re.escape(repr(value))}"):
            made(task_id="t", **arguments, **{name: value})


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
