"""The generated reference has what users can name, as the code has it; pages name what is there."""

import argparse
import ast
import importlib
import inspect
import json
import re
import runpy
import sys
import textwrap
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests

import tests.airflow_connections  # noqa: F401  gives Airflow a home before it is imported
from airflow_provider_snowpipe import sources
from airflow_provider_snowpipe.get_provider_info import get_provider_info
from airflow_provider_snowpipe.routing.planner import DataShape, LoadPolicy, plan_load
from airflow_provider_snowpipe.spark.driver.plan import JobPlan
from tests.airflow_version import AIRFLOW

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
ERRORS = {
    "SP00": "SnowpipeError",
    "SP01": "ConfigurationError",
    "SP02": "OffsetTokenError",
    "SP03": "SourcePositionError",
    "SP04": "SourceMissingError",
    "SP05": "PartlyStreamedError",
    "SP06": "SourceUnavailableError",
    "SP07": "ContinuityError",
    "SP08": "EncodingError",
    "SP09": "AuthenticationError",
    "SP10": "RetriesExhaustedError",
    "SP11": "WriterActiveError",
    "SP12": "OffsetTokenMovedError",
    "SP13": "ApiError",
    "SP14": "PipeNotFoundError",
    "SP15": "PipeFailedOverError",
    "SP16": "ChannelError",
    "SP17": "ChannelFencedError",
    "SP18": "ChannelInvalidError",
    "SP19": "UncommittedRowsError",
    "SP20": "SqlError",
    "SP21": "UnfitRowsError",
    "SP22": "UnknownColumnsError",
    "SP23": "DeadLetterError",
    "SP24": "NothingStagedError",
    "SP25": "StagedFileDiffersError",
    "SP26": "PipeBusyError",
    "SP27": "PipeNotRunningError",
    "SP28": "FilesNotLoadedError",
    "SP29": "WaitRefusedError",
    "SP30": "TokenWentBackError",
    "SP31": "ExecutorLostError",
    "SP32": "CommitTimeoutError",
    "SP33": "RowsRejectedError",
    "SP34": "FilesGivenTwiceError",
    "SP35": "FilesRejectedError",
    "SP36": "SourceChangedError",
    "SP37": "ImbalanceError",
    "SP38": "AuditError",
    "SP39": "RecordUnavailableError",
}
"""Codes stay: people write them down. A new class takes the next one."""


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


def test_an_argument_of_an_operator_has_type_default_and_mark(generated):
    found = generated.parameters(named(f"{PACKAGE}.operators.stream.SnowpipeStreamOperator"))

    assert found["commit_timeout"].facts == "``float``, default ``600.0``"
    assert found["source"].facts == "``SourceSpec | Mapping[str, Any]``, required, template field"
    assert found["deferrable"].default == "Airflow's setting ``[operators] default_deferrable``"
    assert found["on_error"].default == "``'abort'``"


def python_blocks(page):
    return [
        textwrap.dedent(one)
        for one in re.findall(r"^ *```python\n(.*?)^ *```$", page.read_text(), re.M | re.S)
    ]


def test_what_the_examples_of_the_pages_give_is_an_argument_of_the_reference(generated):
    known = {path.rpartition(".")[2]: named(path) for path in ENTRIES}
    unknown = []
    for page, block in ((one, block) for one in PAGES for block in python_blocks(one)):
        for call in ast.walk(ast.parse(block)):
            is_name = isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
            kind = known.get(call.func.id) if is_name else None
            if not inspect.isclass(kind):
                continue
            taken = set(generated.parameters(kind))
            for base in kind.__mro__:
                if not base.__module__.startswith(PACKAGE) and "__init__" in vars(base):
                    taken |= set(inspect.signature(base.__init__).parameters)
            given = {one.arg for one in call.keywords if one.arg}
            unknown += [f"{page.name}: {kind.__name__}({name})" for name in given - taken]

    assert unknown == []


def test_what_the_examples_of_the_pages_import_and_call_is_there():
    missing = []
    for page, block in ((one, block) for one in PAGES for block in python_blocks(one)):
        tree, known = ast.parse(block), {}
        for one in ast.walk(tree):
            if isinstance(one, ast.ImportFrom) and str(one.module).startswith(PACKAGE):
                if one.module == f"{PACKAGE}.policies.retry" and AIRFLOW < (3, 3):
                    continue
                module = importlib.import_module(one.module)
                names = [name.name for name in one.names if not hasattr(module, name.name)]
                missing += [f"{page.name}: {one.module}.{name}" for name in names]
                known |= {name.asname or name.name: getattr(module, name.name, None) for name in one.names}
        missing += [
            f"{page.name}: {one.value.id}.{one.attr}"
            for one in ast.walk(tree)
            if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name)
            if inspect.isclass(known.get(one.value.id)) and not hasattr(known[one.value.id], one.attr)
        ]

    assert missing == []


def test_each_error_has_a_code_that_stays_and_a_remedy_of_its_own(generated):
    found = generated.error_classes()

    assert {one.error_id: one.__name__ for one in found} == ERRORS
    assert [one for one in found if "error_id" not in vars(one) or "remedy" not in vars(one)] == []
    assert len({one.remedy for one in found}) == len(found)


@pytest.mark.parametrize("name", ["load-plan", "job-plan"])
def test_the_schema_of_a_plan_is_that_of_the_classes(name, generated):
    assert schema_of(name) == generated.SCHEMAS[name](), "run python docs/generated_reference.py"


def schema_of(name):
    return json.loads((DOCS / "reference" / f"{name}.schema.json").read_text())


def test_a_plan_is_what_the_schema_describes():
    schema = schema_of("load-plan")
    for shape, policy in [
        ({"bytes": 1e6}, {}),
        ({"bytes": 0, "rows": 0}, {}),
        ({"bytes": 1e9, "freshness": 1}, {"path": "copy"}),
        ({"bounded": False, "arrival_rate": 1e6, "freshness": 10}, {}),
        ({"files": {"count": 5000, "bytes": 5e8, "format": "CSV", "staged": True}}, {}),
        ({"files": {"count": 10, "bytes": 5e8, "interval": 30}, "bounded": False}, {"has_pipe": True}),
    ]:
        plan = plan_load(DataShape.from_json(shape), LoadPolicy(**policy)).as_json()

        jsonschema.validate(plan, schema)
        with pytest.raises(jsonschema.ValidationError, match="surprise"):
            jsonschema.validate({**plan, "surprise": 1}, schema)


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
    ids=["files", "kafka", "table", "delta", "iceberg"],
)
def test_the_plan_of_a_job_is_what_its_schema_describes(source):
    schema = schema_of("job-plan")
    plan = JobPlan.from_json(json.dumps({**JOB, "source": source}))

    jsonschema.validate({**JOB, "source": source}, schema)
    jsonschema.validate(json.loads(plan.to_json()), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**JOB, "source": {**source, "surprise": 1}}, schema)


def test_the_schema_refuses_an_option_of_another_format():
    source = {"path": "/data", "format": {"type": "parquet", "delimiter": ";"}}

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**JOB, "source": source}, schema_of("job-plan"))


def test_the_plan_of_the_page_is_what_the_schema_describes():
    page = (DOCS / "how-to" / "run-elsewhere.md").read_text()
    (plan,) = [one for one in re.findall(r"```json\n(.*?)```", page, re.S) if "plan_version" in one]

    jsonschema.validate(json.loads(plan), schema_of("job-plan"))


def test_each_field_of_the_connection_is_in_the_table(generated):
    (kind,) = get_provider_info()["connection-types"]
    table = generated.connection_fields()

    assert [name for name in kind["conn-fields"] if f"| extra `{name}` |" not in table] == []


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


def test_each_argument_of_a_command_is_in_the_reference(generated):
    def arguments(parser):
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    yield from arguments(command)
            elif action.dest != "help":
                yield from action.option_strings or [action.dest]

    found = set(arguments(named(f"{PACKAGE}.cli.definition.parser")()))
    text = generated.airflow_commands()

    assert len(found) > 10
    assert [name for name in sorted(found) if not re.search(rf"{re.escape(name)}\b", text)] == []


def test_release_that_first_names_a_class_is_its_own(generated):
    changelog = """# Changelog
## [Unreleased]
- `NewOperator`, `SomeSensor` waits longer.
## [0.2.0] - 2026-12-01
- `SomeSensor`.
## [0.1.0] - 2026-11-01
- `FirstHook`.
"""
    versions = {"NewOperator": "0.3.0", "SomeSensor": "0.2.0", "FirstHook": "0.1.0", "New": "0.1.0"}
    found = {name: generated.added_in(name, changelog, "0.3.0") for name in versions}
    assert found == versions


def test_the_release_in_the_docstring_stays(generated):
    own, without = ["First line.", "", ".. versionadded:: 7.1"], ["First line."]
    for lines in (own, without):
        generated._process_docstring(
            None, "class", f"{PACKAGE}.sources.FileSource", sources.FileSource, None, lines
        )

    versions = [[line for line in lines if "versionadded" in line] for lines in (own, without)]
    assert versions == [[".. versionadded:: 7.1"], [f".. versionadded:: {generated.__version__}"]]


_THEIRS = b"""# Sphinx inventory version 2
# Project: Somebody's
# Version: 1
# The remainder of this file is compressed using zlib.
""" + zlib.compress(b"airflow.sdk.BaseOperator py:class 1 moved.html#$ -\n")


@pytest.mark.parametrize(
    ("content", "page"), [(_THEIRS, "moved.html"), (b"<html>", "api.html"), (None, "api.html")]
)
def test_names_of_others_are_links_with_a_network_and_without(monkeypatch, content, page):
    def get(address, timeout):
        assert address.endswith("/objects.inv")
        if content is None:
            raise requests.ConnectionError
        return SimpleNamespace(content=content)

    monkeypatch.setenv("AIRFLOW_HOME", "")
    monkeypatch.setenv("AIRFLOW__LOGGING__LOGGING_LEVEL", "WARNING")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(requests, "get", get)

    from sphinx.util.inventory import InventoryFile

    address, file = runpy.run_path(str(DOCS / "conf.py"))["intersphinx_mapping"]["airflow-sdk"]

    known = InventoryFile.loads(Path(file).read_bytes(), uri=address).data["py:class"]
    assert known["airflow.sdk.BaseOperator"].uri == f"{address}{page}#airflow.sdk.BaseOperator"
    assert known["airflow.sdk.BaseSensorOperator"].uri.startswith(f"{address}api.html#")
