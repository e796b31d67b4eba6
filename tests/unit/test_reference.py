"""The generated reference has what users can name, as the code has it; pages name what is there."""

import importlib
import inspect
import json
import re
import sys
from pathlib import Path

import pytest

import tests.airflow_connections  # noqa: F401  gives Airflow a home before it is imported
from airflow_provider_snowpipe import sources
from airflow_provider_snowpipe.get_provider_info import get_provider_info
from airflow_provider_snowpipe.routing.planner import DataShape, LoadPolicy, plan_load
from airflow_provider_snowpipe.spark.driver.plan import JobPlan

pytest.importorskip("sphinx", reason="the documentation is built where the package is developed")
jsonschema = pytest.importorskip("jsonschema")

PACKAGE = "airflow_provider_snowpipe"
DOCS = Path(__file__).parents[2] / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts]
ENTRIES = re.findall(
    r"^\.\. auto(?:class|function):: (\S+)$",
    "\n".join(page.read_text() for page in DOCS.glob("reference/*.md")),
    re.MULTILINE,
)
ERRORS = """
SnowpipeError ConfigurationError OffsetTokenError SourcePositionError SourceMissingError PartlyStreamedError
SourceUnavailableError ContinuityError EncodingError AuthenticationError RetriesExhaustedError
WriterActiveError OffsetTokenMovedError ApiError PipeNotFoundError PipeFailedOverError ChannelError
ChannelFencedError ChannelInvalidError UncommittedRowsError SqlError UnfitRowsError UnknownColumnsError
DeadLetterError NothingStagedError StagedFileDiffersError PipeBusyError PipeNotRunningError
FilesNotLoadedError WaitRefusedError TokenWentBackError ExecutorLostError CommitTimeoutError
RowsRejectedError FilesGivenTwiceError FilesRejectedError SourceChangedError ImbalanceError AuditError
RecordUnavailableError
"""
"""In the order of their codes, SP00 first, which stay: people write them down."""


@pytest.fixture(scope="module")
def generated():
    sys.path.insert(0, str(DOCS))
    try:
        yield importlib.import_module("generated_reference")
    finally:
        sys.path.remove(str(DOCS))


def named(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def public_names():
    info = get_provider_info()
    for kind in ("hooks", "operators", "sensors", "triggers"):
        for module in (name for entry in info[kind] for name in entry["python-modules"]):
            for name, found in vars(importlib.import_module(module)).items():
                if inspect.isclass(found) and found.__module__ == module and name.startswith("Snowpipe"):
                    yield f"{module}.{name}"
    yield from (f"{PACKAGE}.sources.{name}" for name in sources.__all__)
    yield from (entry["class-name"] for entry in info["task-decorators"])
    yield from (entry["factory"] for entry in info["asset-uris"])
    yield from [*info["notifications"], *info["queues"]]


def test_all_that_the_metadata_names_has_an_entry():
    expected = set(public_names())
    assert len(expected) > 30
    assert sorted(expected - set(ENTRIES)) == []


def test_an_entry_has_every_argument_and_marks_the_templates(generated):
    for path in (path for path in ENTRIES if not path.endswith("_task")):
        found = generated.parameters(named(path))
        others = set()
        for base in named(path).__mro__ if inspect.isclass(named(path)) else ():
            if not base.__module__.startswith(PACKAGE):
                others |= {*getattr(base, "template_fields", ())}
        assert [(path, name) for name, one in found.items() if not one.text] == []
        templates = set(getattr(named(path), "template_fields", ()))
        assert [(path, name) for name in templates - set(found) - others] == []
        assert {name for name, one in found.items() if one.templated} == templates & set(found), path


def test_each_error_has_a_code_that_stays_and_a_remedy_of_its_own(generated):
    found = generated.error_classes()
    expected = {f"SP{at:02}": one for at, one in enumerate(ERRORS.split())}
    assert {one.error_id: one.__name__ for one in found} == expected
    assert [one for one in found if "error_id" not in vars(one) or "remedy" not in vars(one)] == []
    assert len({one.remedy for one in found}) == len(found)
    named_by_pages = {
        name
        for page in PAGES
        for name in re.findall(r"^\| SP\d\d \| `(\w+Error)` \|", page.read_text(), re.M)
    }
    assert named_by_pages <= set(ERRORS.split())


@pytest.mark.parametrize("name", ["load-plan", "job-plan"])
def test_the_schema_of_a_plan_is_that_of_the_classes(name, generated):
    assert schema_of(name) == generated.SCHEMAS[name](), "run python docs/generated_reference.py"


def schema_of(name):
    return json.loads((DOCS / "reference" / f"{name}.schema.json").read_text())


JOB = {
    "plan_version": 2,
    "application": "load",
    "account_url": "https://127.0.0.1:4433",
    "pipe": {"database": "DB", "schema": "S", "pipe": "T-STREAMING"},
    "channel_prefix": "p",
    "credentials_variable": "SNOWPIPE_CREDENTIALS",
}


@pytest.mark.parametrize(
    "source",
    [
        {"path": "/data/flights", "format": {"type": "ndjson", "growing": True}, "partitions": "all"},
        {"kind": "kafka", "bootstrap_servers": "b:9092", "topics": ["orders"], "metadata": ["offset"]},
        {"kind": "table", "table": "lake.orders", "offset_column": "ID", "ranges": [10, 20]},
        {"kind": "delta", "path": "/lake/orders", "order_by": "ID"},
        {"kind": "iceberg", "table": "sales.orders"},
    ],
)
def test_plans_are_what_their_schemas_describe(source):
    page = (DOCS / "how-to" / "run-elsewhere.md").read_text()
    (shown,) = [one for one in re.findall(r"```json\n(.*?)```", page, re.S) if "plan_version" in one]
    job = JobPlan.from_json(json.dumps({**JOB, "source": source}))
    routed = plan_load(DataShape(bytes=1e9, freshness=1), LoadPolicy(path="copy")).as_json()
    foreign = {"path": "/data", "format": {"type": "parquet", "delimiter": ";"}}

    for plan in ({**JOB, "source": source}, json.loads(job.to_json()), json.loads(shown)):
        jsonschema.validate(plan, schema_of("job-plan"))
    jsonschema.validate(routed, schema_of("load-plan"))
    for schema, wrong in (
        ("job-plan", {**JOB, "source": {**source, "surprise": 1}}),
        ("job-plan", {**JOB, "source": foreign}),
        ("load-plan", {**routed, "surprise": 1}),
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema_of(schema))


def test_each_setting_that_the_code_reads_is_on_the_page():
    page = (DOCS / "reference" / "configuration.md").read_text()
    read = {
        found
        for file in (DOCS.parent / PACKAGE).rglob("*.py")
        for found in re.findall(r"\bconf\.get\w*\(\s*\"(\w+)\",\s*\"(\w+)\"", file.read_text())
    }
    rows = [row for row in page.splitlines() if row.startswith("| `[")]

    assert {section for section, _ in read} > {"snowpipe", "operators"}
    assert {("snowpipe", name) for name in get_provider_info()["config"]["snowpipe"]["options"]} <= read
    assert [
        (section, name)
        for section, name in sorted(read)
        if not any(f"[{section}]" in row and re.search(rf"\b{name}\b", row) for row in rows)
    ] == []
