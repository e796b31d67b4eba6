"""Pages: their Python blocks and the gallery's DAGs make the tasks that they show, links lead somewhere."""

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
from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.row_gate import SCHEMA
from tests.airflow_version import AIRFLOW

pytestmark = pytest.mark.skipif(AIRFLOW < (3, 3), reason="the pages show what Airflow 3.3 has")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OF_SPARK = """
add-a-source connection develop-offline read-kafka-in-spark read-object-storage spark-data-source
"""
"""How-to pages whose blocks make no tasks."""
PAGES = [
    *(page for page in (DOCS / "how-to").glob("*.md") if page.stem not in OF_SPARK.split()),
    *(DOCS / "migration").glob("*.md"),
    *(DOCS / page for page in ("reference/sources.md", "tutorial/trickle-or-flood.md")),
]


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
        blocks = re.findall(r"^ *```python\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
        for block in blocks:
            try:
                run(textwrap.dedent(block), known)
            except Exception as error:
                error.add_note(f"{page}: {block}")
                raise


def test_the_columns_of_dead_letter_files_are_those_of_the_page():
    page = (DOCS / "how-to" / "handle-bad-rows.md").read_text()
    table = page.partition("| column | value |")[2].partition("\n\n")[0]
    assert re.findall(r"`(\w+)`", re.sub(r"\|[^|]*\|$", "|", table, flags=re.MULTILINE)) == SCHEMA.names


GALLERY = sorted((DOCS / "examples" / "gallery").glob("*.py"))


@pytest.mark.parametrize("file", GALLERY, ids=lambda file: file.stem)
def test_a_dag_of_the_gallery_has_tasks_and_is_on_the_page(file):
    dag = runpy.run_path(str(file))[file.stem]()
    assert dag.dag_id == file.stem
    assert dag.tasks
    assert f"examples/gallery/{file.stem}.py" in (DOCS / "gallery.md").read_text()


def test_stream_of_the_kafka_page_goes_on_from_the_channels_of_a_job():
    text = (DOCS / "how-to" / "read-kafka-in-spark.md").read_text()
    (stream,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    options = dict(re.findall(r'\.option\("(\w+)", "(.*)"\)', stream.split("writeStream")[1]))
    sink = WriteOptions.parse(options)
    source = source_spec({"kind": "kafka", "bootstrap_servers": "k1:9092", "topics": ["orders"]})
    assert sink.channel("orders_3") == source.channel("shop", source.default_name, "orders_3")
    assert (sink.channel_column, sink.offset_column) == ("channel", "offset")
    assert set(sink.omit_columns) == {"channel", "offset"}
    sink.refuse_unknown_spread()


REPOSITORY = "https://github.com/airflow-provider-snowpipe/airflow-provider-snowpipe/blob/main/"
WORDS = 45_700
"""Of the pages of both distributions; it only goes down."""
OF_THE_INDEX = ROOT / "snowpipe-local" / "README.md"
"""Has no relative link: a package index shows it as it is."""
ALL_PAGES = [
    page
    for root in (ROOT, ROOT / "snowpipe-local")
    for page in (*root.glob("*.md"), *(root / "docs").rglob("*.md"))
    if "_build" not in page.parts
]


def prose(page):
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page):
    """Fragments of a page's headings, as GitHub and MyST make them."""
    found = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    headings = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", one) for one in found)
    return {re.sub(r"[^\w -]", "", one.strip().lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_within_the_repository_leads_to_a_file_and_a_heading(page):
    wrong = []
    pictures = re.findall(r"^```{image} (\S+)", page.read_text(), re.MULTILINE)
    for link in pictures + re.findall(r"\]\(([^)\s]+)", prose(page)):
        path, _, anchor = link.removeprefix(REPOSITORY).partition("#")
        if path.startswith(("http:", "https:")):
            continue
        base = ROOT if link.startswith(REPOSITORY) else page.parent
        target = base / path if path else page
        leads_nowhere = not target.is_file() or (anchor and anchor not in anchors(target))
        if leads_nowhere or (page == OF_THE_INDEX and not link.startswith("https:")):
            wrong.append(link)
    assert wrong == []


def test_the_pages_of_both_distributions_keep_their_budget_of_words():
    service = ROOT / "snowpipe-local"
    pages = [*(ROOT / "docs").rglob("*.md"), *(service / "docs").glob("*.md")]
    pages += [ROOT / "README.md", service / "README.md"]
    words = {page: len(page.read_text().split()) for page in pages if "_build" not in page.parts}
    most = {page: 900 if page.parent.name == "how-to" else 2_500 for page in words}
    assert sum(words.values()) <= WORDS
    assert [str(page) for page, number in words.items() if number > most[page]] == []
