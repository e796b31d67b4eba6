"""Rooms that must be usable alone are: they import where the others' libraries are not installed."""

import ast
import json
import pkgutil
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE = "airflow_provider_snowpipe"
ABSENT = {
    "streaming": ["airflow", "pyspark", "snowflake", "snowpipe_local", f"{PACKAGE}.spark"],
    "bulk": ["airflow", "pyspark", "snowflake", "snowpipe_local", f"{PACKAGE}.spark"],
    "routing": ["airflow", "pyspark", "snowflake", "snowpipe_local", f"{PACKAGE}.bulk", f"{PACKAGE}.spark"],
    "spark": ["airflow", "snowflake", "snowpipe_local", f"{PACKAGE}.hooks"],
}
ARCHIVED = ("spark.driver", "spark.sources", "spark.task", "spark.data_source")
NOT_ARCHIVED = ["airflow", f"{PACKAGE}.routing", f"{PACKAGE}.sources", f"{PACKAGE}.hooks"]
IMPORT_WITHOUT = """
import importlib, json, os, sys, traceback
import cryptography.x509, jwt, numpy, pyarrow.compute, requests  # once for all that need them
class Absent:
    def __init__(self, words):
        self.words = words
        for name in filter(self.holds, list(sys.modules)):
            del sys.modules[name]
    def holds(self, name):
        return any(name == word or name.startswith(word + ".") for word in self.words)
    def find_spec(self, name, path=None, target=None):
        if self.holds(name):
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)
found = []
for absent, required in json.loads(sys.argv[1]):
    read, write = os.pipe()
    if os.fork() == 0:
        result = "imported"
        try:
            sys.meta_path.insert(0, Absent(absent))
            for name in required:
                importlib.import_module(name)
        except BaseException:
            result = traceback.format_exc()[-4000:]
        os.write(write, result.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as report:
        found.append(report.read())
    os.wait()
print(json.dumps(found))
"""


def _modules(room):
    spec = find_spec(f"{PACKAGE}.{room}")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    found = pkgutil.walk_packages(spec.submodule_search_locations, f"{PACKAGE}.{room}.")
    return [module.name for module in found if not module.name.endswith("__main__")]


@pytest.fixture(scope="module")
def imported():
    """What importing the modules of each group came to, where others are absent; each in its own process."""
    groups = {
        **{room: (absent, _modules(room)) for room, absent in ABSENT.items()},
        **{f"archived {room}": (NOT_ARCHIVED, _modules(room)) for room in ARCHIVED},
        "absent": (["airflow"], [f"{PACKAGE}.hooks.snowpipe"]),
        "metadata": (["airflow", "pyarrow", "requests", "numpy"], [f"{PACKAGE}.get_provider_info"]),
    }
    assert all(modules for _, modules in groups.values())
    command = [sys.executable, "-c", IMPORT_WITHOUT, json.dumps(list(groups.values()))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return dict(zip(groups, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("room", list(ABSENT))
def test_every_module_of_a_room_imports_without_the_other_rooms(room, imported):
    assert imported[room] == "imported"


@pytest.mark.parametrize("room", ARCHIVED)
def test_what_runs_from_the_packages_archive_imports_without_the_rooms_that_it_lacks(room, imported):
    assert imported[f"archived {room}"] == "imported"


def test_an_import_of_something_absent_is_noticed(imported):
    assert "airflow is not installed here" in imported["absent"] or "airflow." in imported["absent"]
    assert "ModuleNotFoundError" in imported["absent"]


@pytest.mark.parametrize("distribution", [".", "snowpipe-local"])
def test_tests_import_the_helpers_of_their_own_distribution(distribution):
    # Both folders of tests are "tests" to Python: a helper of the other one would be found as well.
    folder = ROOT / distribution
    text = "\n".join(file.read_text("utf-8") for file in (folder / "tests").rglob("*.py"))
    modules = set(re.findall(r"^\s*(?:from|import) tests\.([\w.]+)", text, re.MULTILINE))
    modules |= set(re.findall(r"^\s*from tests import (\w+)", text, re.MULTILINE))

    assert len(modules) > 3
    paths = {module: folder / "tests" / module.replace(".", "/") for module in modules}
    assert [name for name, path in paths.items() if not path.with_suffix(".py").is_file()] == []


def test_provider_metadata_imports_without_anything_installed(imported):
    assert imported["metadata"] == "imported"


def test_private_members_of_airflows_spark_hook_are_used_in_one_file():
    texts = {path.name: path.read_text("utf-8") for path in (ROOT / PACKAGE).rglob("*.py")}
    used = {
        name
        for name, text in texts.items()
        if "SubmitHook" in text and re.search(r"[hH]ook(\([^()]*\))?\._[a-z]", text)
    }

    assert used == {"submission.py"}


def test_private_members_of_airflows_spark_operator_are_used_in_one_file():
    spec = find_spec("airflow.providers.apache.spark.operators.spark_submit")
    assert spec is not None
    members = {
        name
        for name in _named(ast.parse(Path(str(spec.origin)).read_text("utf-8")))
        if re.match(r"_[a-z]", name)
    }
    derived = {"SparkSubmitOperator", "SparkDriverOperator", "BulkDriverOperator"}
    used = {
        f"{path.name}: {name}"
        for path in (ROOT / PACKAGE / "operators").glob("*.py")
        for made in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(made, ast.ClassDef) and derived & {ast.unparse(base) for base in made.bases}
        for name in members & set(_named(made))
    }

    assert used == {
        f"spark_job.py: {name}"
        for name in ("_hook", "_get_hook", "_deploy_mode", "_yarn_rm_auth", "_spark_binary")
    }


ROOT = Path(__file__).parents[2]
NOT_OURS = re.compile(
    r"\b(mend(s|ed|ing)?|moments?|patience|complain(s|ed|ing)?|in our words|lent|wanted|told apart|two looks"
    r"|foret(ells?|old))\b",
    re.I,
)
"""There are words of Airflow's and Snowflake's documentation for it: fix, timestamp, retry budget, raise."""
NOT_OF_A_PAGE = re.compile(r"\b(say(s|ing)?|said|tell(s|ing)?|told|wants?)\b", re.I)
"""A page states or describes, a log shows, an option sets, an error reports."""
NOT_A_NAME = {
    *("mend", "mended", "moment", "moments", "patience", "complain", "complaint", "wanted", "told"),
    *("say", "says", "said", "saying", "tells", "telling", "foretell", "look", "looks", "hear", "hears"),
    *("place", "places", "placed", "lend", "lent"),
}
"""Words that are no part of a name: fixed, a timestamp, required, reported, polled, registered."""
IN_A_NAME = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(sorted(NOT_A_NAME))})(?![A-Za-z0-9])", re.I)
"""Is in the text of every file with such a name: the others need not be parsed."""
PROGRAMS = (PACKAGE, "pyspark_snowpipe", "tests", "benchmarks", "dags", "demo", "scripts")


def _named(tree):
    for node in ast.walk(tree):
        for field in ("name", "attr", "id", "arg"):
            if isinstance(name := getattr(node, field, None), str):
                yield name


def _texts():
    package = [one for one in (ROOT / PACKAGE).rglob("*") if one.suffix in (".py", ".html")]
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "snowpipe-local").glob("docs/*.md")]
    return [*package, *pages, *ROOT.glob("*/README.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize(
    "text", ["mend the file", "some moments", "their patience", "in our words", "two looks"]
)
def test_a_word_of_our_own_is_noticed(text):
    assert NOT_OURS.search(text)


@pytest.mark.parametrize("text", ["the log says why", "events tell it", "say `force=True`", "it is told"])
def test_a_word_that_no_page_uses_is_noticed(text):
    assert NOT_OF_A_PAGE.search(text)


def test_pages_state_and_describe():
    pages = [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "snowpipe-local").glob("**/*.md"),
        *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")),
    ]
    found = [
        f"{page.relative_to(ROOT)}:{number}: {line.strip()}"
        for page in pages
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if NOT_OF_A_PAGE.search(line)
    ]
    assert found == []


def test_names_and_texts_use_the_words_of_airflow_and_snowflake():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in _texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if NOT_OURS.search(line)
    ]
    names = {
        f"{path.relative_to(ROOT)}: {name}"
        for folder in PROGRAMS
        for path in (ROOT / folder).rglob("*.py")
        if IN_A_NAME.search(text := path.read_text(encoding="utf-8"))
        for name in _named(ast.parse(text))
        if NOT_A_NAME.intersection(name.lower().split("_"))
    }
    assert (found, sorted(names)) == ([], [])


def _imports():
    """The modules of ours that each module of ours imports, wherever in its text, but for types alone."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / PACKAGE).rglob("*.py")
    }
    return {
        name: {one for one in _imported(ast.parse(path.read_text(encoding="utf-8")), paths) if one != name}
        for name, path in paths.items()
    }


def _imported(tree, known):
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module in known:
            names = [f"{node.module}.{one.name}" for one in node.names]
            yield from (name if name in known else str(node.module) for name in names)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name in known)
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):  # no expression imports
            yield from _imported(node, known)


def _circles(imports):
    """Modules that import each other, over others or not."""
    left = {name: set(others) for name, others in imports.items()}
    while ends := [name for name, others in left.items() if not others & left.keys()]:
        for name in ends:
            del left[name]
    reached = {name: _reached(name, left) for name in left}
    return sorted(
        {tuple(sorted(b for b in left if b in reached[a] and a in reached[b])) for a in left} - {()}
    )


def _reached(name, imports):
    found = set()
    ahead = [name]
    while ahead:
        new = imports.get(ahead.pop(), set()) - found
        found |= new
        ahead += new
    return found


def test_a_circle_is_noticed():
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}) == [("b", "c")]


def test_no_files_import_each_other():
    imports = _imports()

    assert f"{PACKAGE}.streaming.errors" in imports[f"{PACKAGE}.streaming.offsets"]
    assert _circles(imports) == []


COMPOSED = {("stage_files.py", "BulkDriverOperator")}
"""Airflow's resumable submission of a Spark job is an operator: who only sometimes needs Spark holds one."""


def test_operators_build_no_other_operators():
    built = {
        (path.name, ast.unparse(call.func))
        for path in (ROOT / PACKAGE / "operators").glob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id.endswith("Operator")
    }

    assert built == COMPOSED


def _is_one_object(node):
    """True for what there is one of: None, True, False, a class, a member of a class."""
    if isinstance(node, ast.Constant):
        return node.value is None or isinstance(node.value, bool)
    name = ast.unparse(node)
    if isinstance(node, ast.Call):
        return name.startswith(("type(", "get_origin("))
    return name in ("int", "str", "float", "bytes", "list", "dict") or any(
        one.lstrip("_")[:1].isupper() for one in name.split(".")
    )


def _mistaken_for_equal(text):
    """Comparisons by identity of values that may be equal and two, and numbers of which 0 gives way."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            both = [node.left, *node.comparators]
            for one, how, other in zip(both, node.ops, both[1:], strict=False):
                if isinstance(how, ast.Is | ast.IsNot) and not (_is_one_object(one) or _is_one_object(other)):
                    yield ast.unparse(node)
        elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            last = node.values[-1]
            number = isinstance(last, ast.Constant) and type(last.value) in (int, float) and last.value
            if number and isinstance(node.values[-2], ast.Attribute):
                yield ast.unparse(node)


def test_values_are_compared_by_equality_and_zero_is_a_number():
    bad = "a is b; a.name is not other; kind.precision or 38"
    good = "a is None; a is State.DONE; type(a) is type(b); a is _FIRST; kind.scale or 0; crc(a) or 1"
    found = {
        (path.name, one)
        for path in (ROOT / PACKAGE).rglob("*.py")
        for one in _mistaken_for_equal(path.read_text(encoding="utf-8"))
    }

    assert len(list(_mistaken_for_equal(bad))) == 3
    assert not list(_mistaken_for_equal(good))
    assert found == {("probes.py", "self.files.interval or 1.0")}  # which is not divided by
