"""The runner of stages behind ``make``, and the lists of accepted mutants."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tomllib

import pytest

from scripts import second_round
from scripts.run_stages import REPOSITORY, STAGES, WORKERS, Run, Stage, read_run, summary


@pytest.fixture
def execute(tmp_path):
    def run(*stages, minutes=10):
        environment = {**os.environ, "HERE": str(tmp_path), "PYTHON": sys.executable}
        return Run(stages, minutes, tmp_path / "stages", environment).execute()

    return run


def test_failed_stage_leaves_the_others_to_run(execute, capfd):
    failed, passed = execute(Stage("bad", "echo because; exit 3"), Stage("good", "true"))
    assert (failed.failed, passed.failed) == (True, False)
    assert "3" in failed.result
    assert "because" in capfd.readouterr().out
    assert "FAILED: bad: failed: exit 3" in summary([failed, passed], 1)


def test_stage_that_takes_too_long_is_stopped_with_its_processes(execute, tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts ``make test &``
    try:
        command = "trap 'touch $HERE/int; exit 1' INT; sleep 600 & wait"
        (outcome,) = execute(Stage("long", command, minutes=0.01))
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcome.result.startswith("stopped")
    assert (tmp_path / "int").exists()


def test_every_committed_stage_can_be_read_and_every_make_target_is_in_its_help():
    content = tomllib.loads(STAGES.read_text())
    makefile = (REPOSITORY / "Makefile").read_text()
    shown = subprocess.run(["make", "help"], cwd=REPOSITORY, capture_output=True, text=True).stdout
    assert {one for run in content["run"].values() for one in run["stages"]} == set(content["stage"])
    assert set(re.findall(r"\[36m([a-z-]+)", shown)) == set(re.findall(r"^\.PHONY: (.*)$", makefile, re.M))
    for name in content["run"]:
        stages, _ = read_run(content, name)
        assert all(stage.command and 1 <= stage.workers <= WORKERS for stage in stages)
    with pytest.raises(SystemExit, match="nonsense"):
        read_run(content, "test", ["nonsense"])


SPEC = importlib.util.spec_from_file_location("scripts_mutants", REPOSITORY / "scripts" / "mutants.py")
mutants = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = mutants  # dataclasses read their module from there
SPEC.loader.exec_module(mutants)


@pytest.mark.parametrize(
    ("distribution", "package"), [(".", "airflow_provider_snowpipe"), ("snowpipe-local", "snowpipe_local")]
)
def test_shares_of_killed_mutants_name_modules_that_exist(distribution, package):
    folder = REPOSITORY / distribution
    shares = mutants.read_shares((folder / mutants.SHARES).read_text())
    assert shares
    assert all((folder / package / f"{module}.py").is_file() for module in shares)


def test_a_module_below_its_share_fails_the_run():
    alive, killed = mutants.Mutant("m", "f", "survived"), mutants.Mutant("m", "f", "killed")
    assert mutants.judge([killed] * 19 + [alive], {"m": 95}, {"m": "x = 1"})[1]
    report, passed = mutants.judge([killed] * 18 + [alive] * 2, {"m": 95}, {"m": "x = 1"})
    assert not passed
    assert "below their share: m; without a verdict: 0" in report


def test_a_mutant_that_lives_meets_the_tests_that_reach_its_function_and_then_those_beside(tmp_path):
    unit = "tests/unit/a.py::one"
    seconds = {unit: 1.0, "i.py::near": 3.0, "i.py::slow": 31.0, "i.py::here": 9.0, "j.py::far": 1.0}
    outcomes = {name: (taken, True) for name, taken in seconds.items()} | {"i.py::bad": (1.0, False)}
    (tmp_path / "outcomes.json").write_text(json.dumps(outcomes))
    reached = [("x_f", "collection"), ("x_f", "i.py::here"), ("x_f", "i.py::bad"), ("x_g", "j.py::far")]
    (tmp_path / "7.tsv").write_text("\n".join(map("\t".join, reached)))
    notes = second_round.Notes()
    notes.add(tmp_path)
    notes.reached["x_f"].add(unit)

    assert (notes.seconds, notes.failed) == (seconds, ["i.py::bad"])
    assert notes.tests_of("x_f__mutmut_1") == [unit, "i.py::here", "i.py::near"]
    assert notes.tests_of("x_h__mutmut_1") == []


def test_a_mutant_is_killed_by_a_test_that_fails_or_does_not_end(tmp_path, monkeypatch):
    monkeypatch.setattr(second_round, "COPY", tmp_path)
    monkeypatch.syspath_prepend(REPOSITORY / "scripts")
    tests = "import os, time\ndef test_it(): assert os.environ['MUTANT_UNDER_TEST'] == 'good'\n"
    (tmp_path / "test_it.py").write_text(f"{tests}def test_long(): time.sleep(600)\n")
    for key, test, seconds, outcome in [
        ("good", "test_it", 60.0, "survived"),
        ("bad", "test_it", 60.0, "integration"),
        ("good", "test_long", 2.0, "timeout"),
    ]:
        found = second_round._outcome(key, [f"test_it.py::{test}"], tmp_path / "log", seconds)
        assert (test, found) == (test, outcome), (tmp_path / "log").read_text()


def test_a_mutant_that_ruff_or_strict_types_refuse_cannot_be_merged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(REPOSITORY / "scripts")
    (tmp_path / "pyproject.toml").write_text("[tool.mypy]\nstrict = true\n")
    (tmp_path / "p").mkdir()
    (tmp_path / "p/m.py").write_text(
        "class A:\n    @staticmethod\n    def f(x: int) -> int:\n        return x + 1\n"
    )
    diff = "---\n+++\n@@ -2,2 +2,2 @@\n def f(x: int) -> int:\n-    return x + 1\n+    return "
    changes = ("x - 1", "None", "x + 2", "x + len(f'')")
    found = [mutants.Mutant("m", "A.f", "survived", diff + new, new) for new in changes]
    outcomes = mutants.checked(found, "p", tmp_path / "types")
    assert [one.outcome for one in outcomes] == ["survived", "types", "survived", "lint"]
    assert "        return x - 1\n" in found[0].placed((tmp_path / "p/m.py").read_text())
