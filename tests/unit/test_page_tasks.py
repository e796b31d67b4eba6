"""Python blocks of pages that no other test runs, and the gallery's DAGs, make the tasks that they show."""

import importlib
import pkgutil
import re
import runpy
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import DAG

import airflow_provider_snowpipe
from airflow_provider_snowpipe import sources
from airflow_provider_snowpipe.operators.channels import SnowpipeDropChannelOperator
from tests.airflow_version import AIRFLOW

pytestmark = pytest.mark.skipif(AIRFLOW < (3, 3), reason="the pages show what Airflow 3.3 has")

DOCS = Path(__file__).parents[2] / "docs"
HOW_TO = (
    *(
        "append-rows",
        "audit-loads",
        "copy-files",
        "handle-bad-rows",
        "keep-offsets",
        "load-by-router",
        "manage-channels",
    ),
    *("observe", "react-to-commits", "retry", "run-elsewhere", "run-on-kubernetes", "run-on-yarn"),
    *("stream-files", "wait-for-commit", "wait-for-files"),
)
MIGRATION = ("airbyte-dlt", "copy-operator", "kafka-connector", "streaming-sdk")
PAGES = [
    *(f"how-to/{page}.md" for page in HOW_TO),
    *(f"migration/{page}.md" for page in MIGRATION),
    *("reference/sources.md", "tutorial/trickle-or-flood.md"),
]
ELSEWHERE = "pyarrow.dataset"
"""In a block that reads files: tests/integration/test_how_to_bad_rows.py runs it."""


def names():
    """What a page uses without importing it in each of its blocks."""
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
    from airflow.sdk import task

    found = {name: getattr(sources, name) for name in sources.__all__}
    for room in ("operators", "sensors", "notifications"):
        folder = Path(airflow_provider_snowpipe.__file__).parent / room
        for module in pkgutil.iter_modules([str(folder)]):
            members = vars(importlib.import_module(f"airflow_provider_snowpipe.{room}.{module.name}"))
            found |= {name: one for name, one in members.items() if name.startswith("Snowpipe")}
    return found | {
        "SmtpNotifier": SimpleNamespace,
        "SparkSubmitOperator": SparkSubmitOperator,
        "fetch": lambda: [{"ID": 1}],
        "files": ["2013-01-01/EWR.csv"],
        "measure": lambda: [{"ID": 1}],
        "task": task,
    }


def run(block, known):
    """Run a block in a DAG; a name that is nowhere is a task that the page is not about."""
    from airflow.providers.standard.operators.empty import EmptyOperator  # Airflow 2 has none

    others = set()
    while True:
        with DAG("page", schedule=None):
            others_tasks = {name: EmptyOperator(task_id=f"other_{name}") for name in others}
            try:
                exec(block, known | others_tasks)  # noqa: S102  a page of this repository
            except NameError as error:
                if error.name in others:
                    raise
                others.add(error.name)
            else:
                return


def test_each_block_of_a_page_makes_its_tasks(monkeypatch):
    monkeypatch.setattr(SnowpipeDropChannelOperator, "dry_run", lambda _: None)
    known = names()
    for page in PAGES:
        text = (DOCS / page).read_text()
        blocks = re.findall(r"^ *```python\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
        for block in blocks:
            if ELSEWHERE not in block:
                try:
                    run(textwrap.dedent(block), known)
                except Exception as error:
                    error.add_note(f"{page}: {block}")
                    raise
        assert blocks, page


def test_an_argument_that_is_not_there_is_noticed():
    with pytest.raises(TypeError, match="surprise"):
        run("SnowpipeCopyOperator(task_id='copy', table='T', stage='@S', surprise=1) >> other", names())


GALLERY = sorted((DOCS / "examples" / "gallery").glob("*.py"))


@pytest.mark.parametrize("file", GALLERY, ids=lambda file: file.stem)
def test_a_dag_of_the_gallery_has_tasks_and_is_on_the_page(file):
    dag = runpy.run_path(str(file))[file.stem]()

    assert dag.dag_id == file.stem
    assert dag.tasks
    assert f"examples/gallery/{file.stem}.py" in (DOCS / "gallery.md").read_text()
