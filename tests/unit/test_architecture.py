"""Rooms that must be usable alone are: they import where the others' libraries are not installed."""

import ast
import json
import pkgutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PACKAGE = "airflow_provider_snowpipe"
ABSENT = {
    "streaming": ["airflow", "pyspark", "snowflake", "snowpipe_local", f"{PACKAGE}.spark"],
    "bulk": ["airflow", "pyspark", "snowflake", "snowpipe_local", f"{PACKAGE}.spark"],
    "routing": ["airflow", "pyspark", "snowflake", "snowpipe_local", f"{PACKAGE}.bulk", f"{PACKAGE}.spark"],
    "spark": ["airflow", "snowflake", "snowpipe_local", f"{PACKAGE}.hooks"],
}
ARCHIVED = ("spark.driver", "spark.sources", "spark.task", "spark.data_source")
NOT_ARCHIVED = ["airflow", f"{PACKAGE}.routing", f"{PACKAGE}.sources", f"{PACKAGE}.hooks"]
PYSPARKS_CLASSES = f"{PACKAGE}.spark.data_source.source"
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
    folder = ROOT / PACKAGE / room.replace(".", "/")
    found = pkgutil.walk_packages([str(folder)], f"{PACKAGE}.{room}.")
    return [module.name for module in found if not module.name.endswith("__main__")]


def test_rooms_import_where_what_they_must_do_without_is_absent():
    """Each group of modules in a process of its own; the last one needs what is absent."""
    groups = {
        **{room: (absent, _modules(room)) for room, absent in ABSENT.items()},
        **{f"archived {room}": (NOT_ARCHIVED, _modules(room)) for room in ARCHIVED},
        "spark, before it starts": (["pyspark"], sorted({*_modules("spark")} - {PYSPARKS_CLASSES})),
        "metadata": (["airflow", "pyarrow", "requests", "numpy"], [f"{PACKAGE}.get_provider_info"]),
        "absent": (["airflow"], [f"{PACKAGE}.hooks.snowpipe"]),
    }
    assert all(modules for _, modules in groups.values())
    command = [sys.executable, "-c", IMPORT_WITHOUT, json.dumps(list(groups.values()))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    *found, absent = json.loads(done.stdout)
    assert dict(zip(groups, found, strict=False)) == dict.fromkeys(list(groups)[:-1], "imported")
    assert "ModuleNotFoundError" in absent


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
    found = {
        (path.name, one)
        for path in (ROOT / PACKAGE).rglob("*.py")
        for one in _mistaken_for_equal(path.read_text(encoding="utf-8"))
    }
    assert len(list(_mistaken_for_equal("a is b; a.name is not other; kind.precision or 38"))) == 3
    assert found == {("probes.py", "self.files.interval or 1.0")}  # which is not divided by


def test_no_files_import_each_other():
    graph = grimp.build_graph(PACKAGE, exclude_type_checking_imports=True, cache_dir=None)
    assert graph.find_modules_directly_imported_by(f"{PACKAGE}.streaming.offsets")
    # It raises CycleError, with the circle.
    TopologicalSorter({one: graph.find_modules_directly_imported_by(one) for one in graph.modules}).prepare()
