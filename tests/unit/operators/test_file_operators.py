"""What the operators of files refuse when a DAG is read, before any template is rendered."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_snowpipe.operators.file_pipe import ACTIONS, SnowpipePipeOperator
from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from airflow_provider_snowpipe.operators.stage_files import SnowpipeStageFilesOperator
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

CREATE = {"table": "T", "stage": "@S"}


@pytest.mark.parametrize("action", [name for name in ACTIONS if name != "create"])
def test_every_action_needs_no_more_than_the_pipe(action: str) -> None:
    assert SnowpipePipeOperator(task_id="pipe", pipe="P", action=action).action == action


@pytest.mark.parametrize(
    ("action", "arguments", "words"),
    [
        ("make", {}, r"action is 'make'.*'create', 'alter'"),
        ("create", {"stage": "@S"}, r"table is None .*needs both"),
        ("create", {**CREATE, "prefix": "in/"}, r"prefix is 'in/', which action='create' does not take"),
        ("create", {**CREATE, "if_exists": "maybe"}, "if_exists is 'maybe'"),
        ("drop", {"if_exists": "replace"}, r"action='drop' does not take: it takes force"),
        ("pause", {"force": True}, "takes none beside pipe"),
        ("refresh", {"on_nothing": "skip"}, "on_nothing is 'skip'"),
        ("status", {"comment": ""}, "comment is ''"),
    ],
    ids=["unknown", "no-table", "prefix", "if_exists", "drop", "pause", "on_nothing", "comment"],
)
def test_an_argument_that_the_action_does_not_take_is_refused(
    action: str, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        SnowpipePipeOperator(task_id="pipe", pipe="P", action=action, **arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "no files and no stage"),
        ({"files": ["a"], "prefix": "in/"}, r"prefix is 'in/' .* without stage"),
        ({"files": ["a"], "stage": "@S", "pattern": ".*"}, "files is .* beside prefix or pattern"),
        ({"files": ["a"], "on_failed": "skip"}, "on_failed is 'skip'"),
        ({"files": ["a"], "on_unmatched": "skip"}, "on_unmatched is 'skip'"),
        ({"files": ["a"], "max_consecutive_errors": 0}, "max_consecutive_errors is 0"),
    ],
    ids=["nothing", "prefix", "both", "on_failed", "on_unmatched", "errors"],
)
def test_files_for_a_pipe_are_said_in_one_way(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        SnowpipeIngestFilesOperator(task_id="ingest", pipe="P", **arguments)


@pytest.mark.parametrize("source", ["", "[1]", '["a"', [], [""], {"a": 1}.values()], ids=repr)
def test_a_source_that_is_no_address_is_refused(source: Any) -> None:
    operator = SnowpipeStageFilesOperator(task_id="stage", source=source, stage="@S")

    with pytest.raises(ConfigurationError, match="give an address or a list of addresses"):
        operator.preview()
