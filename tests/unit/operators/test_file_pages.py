"""The how-to pages about files: their snippets make tasks that belong together, and name what is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG

from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.operators.file_pipe import SnowpipePipeOperator
from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from airflow_provider_snowpipe.operators.stage_files import SnowpipeStageFilesOperator
from airflow_provider_snowpipe.sensors.files_loaded import SnowpipeFilesLoadedSensor
from airflow_provider_snowpipe.streaming import errors

DOCS = Path(__file__).parents[3] / "docs"
KNOWN = (
    SnowpipeBulkLoadOperator,
    SnowpipeCopyOperator,
    SnowpipeFilesLoadedSensor,
    SnowpipeIngestFilesOperator,
    SnowpipePipeOperator,
    SnowpipeStageFilesOperator,
)
PAGES = {
    "bulk-load.md": {"load", "by_day", "each", "lake"},
    "stage-files.md": {"stage", "copy", "combine"},
    "manage-pipes.md": {"pipe", "pause", "resume", "refresh", "change_table"},
    "submit-files.md": {"ingest", "loaded"},
}


@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_of_a_page_make_the_tasks_of_one_dag(page):
    snippets = re.findall(r"^```python\n(.*?)^```$", (DOCS / "how-to" / page).read_text(), re.M | re.S)
    with DAG("page", schedule=None) as dag:
        names: dict[str, Any] = {kind.__name__: kind for kind in KNOWN}
        if "change_table" in PAGES[page]:
            names["change_table"] = SnowpipePipeOperator(task_id="change_table", pipe="P", action="status")
        for snippet in snippets:
            exec(snippet, names)  # noqa: S102  a page of this repository

    assert set(dag.task_dict) == PAGES[page]


@pytest.mark.parametrize("page", PAGES)
def test_every_error_that_a_page_names_exists(page):
    named = set(re.findall(r"^\| SP\d\d \| `(\w+Error)` \|", (DOCS / "how-to" / page).read_text(), re.M))

    assert len(named) >= 5
    assert [name for name in named if not hasattr(errors, name)] == []
