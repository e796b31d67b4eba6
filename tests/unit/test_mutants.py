import importlib.util
import sys
import tomllib
from pathlib import Path
from typing import ClassVar

import pytest

REPOSITORY = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("scripts_mutants", REPOSITORY / "scripts" / "mutants.py")
mutants = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = mutants  # dataclasses read their module from there
SPEC.loader.exec_module(mutants)

SOURCE = """
def later(a, b):
    return a > b


class Progress:
    def later(self, a, b):
        # the same line in two functions
        return a > b
"""
DIFF = """--- progress.py
+++ progress.py
@@ -1,3 +1,3 @@
 def later(self, a, b):
     # the same line in two functions
-    return a > b
+    return a >= b"""
NAME = "streaming/progress Progress.later | return a > b -> return a >= b"


def _mutant(outcome, diff=DIFF, function="Progress.later"):
    return mutants.Mutant("streaming/progress", function, outcome, diff)


def _judge(outcomes, accepted):
    found = [_mutant(outcome) for outcome in outcomes]
    return mutants.judge(found, accepted, {"streaming/progress": SOURCE})


def test_mutant_is_named_by_its_function_and_change():
    assert _mutant("survived").name == NAME


def test_line_is_searched_in_the_mutants_own_function():
    assert _mutant("survived").line(SOURCE) == 9
    assert _mutant("survived", function="later").line(SOURCE) == 3


def test_line_of_a_function_that_is_gone_is_the_first():
    assert _mutant("survived", function="Progress.gone").line(SOURCE) == 1


def test_name_stays_when_lines_move():
    moved = _mutant("survived", DIFF.replace("@@ -1,3 +1,3 @@", "@@ -21,3 +21,3 @@"))
    assert moved.name == NAME
    assert moved.line("\n\n" + SOURCE) == 11


def test_run_passes_when_all_are_killed():
    report, passed = _judge(["killed", "timeout"], {})
    assert passed
    assert "100.0 %" in report[-2]


@pytest.mark.parametrize("outcome", ["survived", "no tests"])
def test_survivor_that_is_on_no_list_fails_the_run(outcome):
    report, passed = _judge(["killed"] * 99 + [outcome], {})
    assert not passed
    assert report[0] == f"streaming/progress.py:9: {outcome}: on no list"
    assert "+    return a >= b" in report
    assert f'    "{NAME}",' in report


def test_report_names_a_survivor_as_the_lists_have_it():
    diff = DIFF.replace("a > b", "split('\"') or \\")
    mutant = _mutant("survived", diff)
    report, _ = mutants.judge([mutant], {}, {"streaming/progress": SOURCE})
    line = next(line for line in report if line.startswith('    "streaming'))

    text = f"[[accepted]]\nkind = 'gap'\nwhy = 'x'\nmutants = [\n{line}\n]"

    assert mutants.read_accepted(text) == {mutant.name: "gap"}


def test_survivor_on_a_list_passes():
    report, passed = _judge(["killed"] * 99 + ["survived"], {NAME: "gap"})
    assert passed
    assert "survivors: {'gap': 1}; without a verdict: 0" in report


@pytest.mark.parametrize(("killed", "survived", "passes"), [(9, 1, True), (89, 11, False)])
def test_nine_of_ten_have_to_die_even_when_all_survivors_are_listed(killed, survived, passes):
    assert _judge(["killed"] * killed + ["survived"] * survived, {NAME: "equivalent"})[1] is passes


@pytest.mark.parametrize("outcome", ["not checked", "suspicious", "segfault"])
def test_mutant_without_a_verdict_fails_the_run(outcome):
    assert not _judge(["killed"] * 99 + [outcome], {})[1]


def test_run_without_mutants_fails():
    assert not _judge([], {})[1]


def test_listed_mutant_that_was_killed_is_reported_as_the_line_to_delete():
    quoted = f'{NAME} or "b"'
    report, passed = _judge(["killed"], {NAME: "gap", quoted: "gap", "bulk/copy_run run | a -> b": "gap"})
    assert passed
    assert report[0].endswith("no longer there: 2")
    assert report[1:3] == [f'    "{NAME}",', f'    "{NAME} or \\"b\\"",']
    assert not any("copy_run" in line for line in report)


def test_lists_are_read_with_their_kinds():
    text = f"""
    [[accepted]]
    kind = "gap"
    why = "needs a process"
    mutants = ['{NAME}']
    """
    assert mutants.read_accepted(text) == {NAME: "gap"}


@pytest.mark.parametrize(
    "text",
    [
        "kind = 'gap'\nmutants = []",
        "kind = 'gap'\nwhy = ' '\nmutants = []",
        "kind = 'boring'\nwhy = 'x'\nmutants = []",
        "kind = 'gap'\nwhy = 'x'\nmutants = ['a', 'a']",
    ],
)
def test_list_without_kind_or_reason_is_refused(text):
    with pytest.raises(ValueError, match=r"kind|twice"):
        mutants.read_accepted(f"[[accepted]]\n{text}")


@pytest.mark.parametrize("distribution", [".", "snowpipe-local"])
def test_lists_of_a_distribution_name_modules_that_are_mutated(distribution):
    folder = REPOSITORY / distribution
    settings = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["mutmut"]
    modules = mutants.chosen([], settings["only_mutate"])
    names = mutants.read_accepted((folder / mutants.ACCEPTED).read_text())

    assert {name.split(" ")[0] for name in names} <= set(modules)
    assert all((folder / file).is_file() for file in settings["only_mutate"])


def test_survivors_of_a_sample_are_shown_and_on_no_list():
    found = [_mutant("killed")] * 9 + [_mutant("survived")]
    report, passed = mutants.judge(found, None, {"streaming/progress": SOURCE})

    assert passed
    assert report[0] == "streaming/progress.py:9: survived: on no list"


def test_sample_comes_again_with_its_seed():
    names = [f"mutant {number}" for number in range(100)]
    sample = mutants.Sample(10, 7).of(names)

    assert len(set(sample)) == 10
    assert mutants.Sample(10, 7).of(names[::-1]) == sample
    assert mutants.Sample(10, 8).of(names) != sample
    assert sorted(mutants.Sample(1000, 7).of(names)) == sorted(names)


def test_tests_of_the_folders_of_the_modules_are_chosen_with_all_options():
    selection = ["tests/unit/bulk", "tests/unit/spark", "--ignore=tests/unit/spark/x.py", "-m", "not spark"]

    assert mutants.tests_of(selection, ["spark"]) == selection[1:]
    assert mutants.tests_of(["tests/unit/test_spool.py"], ["engine"]) == ["tests/unit/test_spool.py"]


class TestOneCollection:
    SECONDS: ClassVar = {"t/test_other.py::a": 0.1, "t/test_channel_x.py::b": 3.0, "t/test_other.py::c": 0.2}

    @pytest.fixture
    def one_collection(self, monkeypatch):
        pytest.importorskip("mutmut", reason="mutmut is not installed")
        monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
        return importlib.import_module("one_collection")

    def test_likely_tests_come_first_and_the_quickest_of_them(self, one_collection):
        ordered = one_collection.in_order(
            self.SECONDS,
            self.SECONDS,
            {"t/test_other.py::c": 2},
            "package.streaming.channel.x_open__mutmut_3",
        )

        assert ordered == ["t/test_other.py::c", "t/test_channel_x.py::b", "t/test_other.py::a"]

    def test_first_tests_are_run_within_a_limit_and_one_at_least(self, one_collection):
        names = list(self.SECONDS)

        assert one_collection.within(3.2, names, self.SECONDS) == names[:2]
        assert one_collection.within(0.01, names, self.SECONDS) == names[:1]
        assert one_collection.within(None, names, self.SECONDS) == names


def test_modules_are_chosen_from_those_of_pyproject():
    files = [
        "airflow_provider_snowpipe/streaming/progress.py",
        "airflow_provider_snowpipe/streaming/http.py",
    ]
    assert mutants.chosen([], files) == ["streaming/progress", "streaming/http"]
    assert mutants.chosen(["streaming/http.py"], files) == ["streaming/http"]
    with pytest.raises(SystemExit):
        mutants.chosen(["streaming/other"], files)
