"""The mutation run of make mutants: each line of the exactly-once core changes, and a unit test has to fail.

    python scripts/mutants.py [--tests PATH]… [--processes N] [MODULE]…      a module: streaming/progress

mutmut changes one expression at a time in a copy (``mutants/``; the working tree is never touched) and runs
the unit tests that reach it, of those that lie in the same folder as the module: ``tests/unit/streaming`` for
``streaming/progress``. The modules, the tests and what is left as it is are ``[tool.mutmut]`` of
pyproject.toml. A mutant that no test notices has to be on a list of tests/mutants.toml, with the reason. Exit
code 1: a survivor that is on no list, a mutant without a verdict, or less than 90 % killed. Survivors, and
what is on a list in vain, are printed as whole lines of that file, to be added or deleted.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "airflow_provider_snowpipe"
ACCEPTED = ROOT / "tests" / "mutants.toml"
KINDS = ("equivalent", "gap")
KILLED_AT_LEAST = 90.0
# mutmut's words for an outcome; others ("not checked", "suspicious", "segfault") are no verdict.
KILLED = ("killed", "timeout")
SURVIVED = ("survived", "no tests")


@dataclass(frozen=True)
class Mutant:
    """One changed expression and the outcome of its tests.

    :param module: the file below the package without its ending, as ``streaming/progress``
    :param function: the function, or ``Class.method``
    :param outcome: mutmut's word
    :param diff: the change as a unified diff of the function
    """

    module: str
    function: str
    outcome: str
    diff: str = ""

    def changed(self, sign: str) -> list[str]:
        """The lines that the change removes (``-``) or adds (``+``)."""
        lines = self.diff.splitlines()[2:]
        return [line[1:].strip() for line in lines if line.startswith(sign)]

    @property
    def name(self) -> str:
        """What the lists call this mutant: its function and the change, which stays when lines move."""
        old, new = (" ".join(self.changed(sign)) for sign in ("-", "+"))
        return f"{self.module} {self.function} | {old} -> {new}"

    def line(self, source: str) -> int:
        """The line that is changed in the text of the module."""
        first, last = span_of(source, self.function)
        expected = (self.changed("-") or [""])[0]
        lines = source.splitlines()
        return next((n for n in range(first, last + 1) if lines[n - 1].strip() == expected), first)


def span_of(source: str, function: str) -> tuple[int, int]:
    """The first and the last line of a function in a module's text; line 1 when it is not there."""
    body: Sequence[ast.stmt] = ast.parse(source).body
    node: ast.stmt | None = None
    for part in function.split("."):
        node = next((n for n in body if getattr(n, "name", None) == part), None)
        body = getattr(node, "body", [])
    return (node.lineno, node.end_lineno or node.lineno) if node else (1, 1)


def read_accepted(text: str) -> dict[str, str]:
    """The mutants that may survive, each with its kind.

    :param text: the lists in TOML: ``[[accepted]]`` with ``kind``, ``why`` and ``mutants``
    :raises ValueError: if a list has no reason or an unknown kind, or a mutant is named twice
    """
    kinds: dict[str, str] = {}
    for entry in tomllib.loads(text).get("accepted", []):
        if entry.get("kind") not in KINDS or not entry.get("why", "").strip():
            raise ValueError(f"each list needs a kind of {KINDS} and a reason: {entry}")
        for name in entry["mutants"]:
            if name in kinds:
                raise ValueError(f"named twice: {name}")
            kinds[name] = entry["kind"]
    return kinds


def judge(
    mutants: Sequence[Mutant], accepted: Mapping[str, str], sources: Mapping[str, str]
) -> tuple[list[str], bool]:
    """The report of a run, line by line, and whether it passes.

    :param mutants: all mutants of the run
    :param accepted: the mutants that may survive, each with its kind
    :param sources: the text of each module
    """
    modules = sorted({mutant.module for mutant in mutants})
    survivors = [mutant for mutant in mutants if mutant.outcome in SURVIVED]
    undecided = [mutant for mutant in mutants if mutant.outcome not in KILLED + SURVIVED]
    lines = {id(mutant): mutant.line(sources[mutant.module]) for mutant in survivors + undecided}
    kinds = {id(mutant): accepted.get(mutant.name, "on no list") for mutant in survivors}
    report: list[str] = []
    for mutant in sorted(survivors + undecided, key=lambda mutant: (mutant.module, lines[id(mutant)])):
        where = f"{PACKAGE}/{mutant.module}.py:{lines[id(mutant)]}"
        report.append(f"{where}: {mutant.outcome}: {kinds.get(id(mutant), 'no verdict')}")
        report += [*mutant.diff.splitlines()[2:], listed_as(mutant.name), ""]
    alive = {mutant.name for mutant in survivors}
    gone = [name for name in accepted if name.split(" ")[0] in modules and name not in alive]
    if gone:
        report.append(f"on a list of {ACCEPTED.name} in vain, killed now or no longer there: {len(gone)}")
        report += [listed_as(name) for name in gone]
    report += [f"{module:32} {counts([m for m in mutants if m.module == module])}" for module in modules]
    report.append(f"{'all':32} {counts(mutants)}")
    report.append(f"survivors: {dict(Counter(kinds.values()))}; without a verdict: {len(undecided)}")
    listed = "on no list" not in kinds.values()
    return report, killed_percent(mutants) >= KILLED_AT_LEAST and listed and not undecided


def listed_as(name: str) -> str:
    """The whole line that a mutant has in tests/mutants.toml."""
    return f"    {json.dumps(name, ensure_ascii=False)},"


def killed_percent(mutants: Sequence[Mutant]) -> float:
    """The share of mutants that a test noticed, in percent."""
    return 100 * sum(mutant.outcome in KILLED for mutant in mutants) / len(mutants) if mutants else 0.0


def counts(mutants: Sequence[Mutant]) -> str:
    """How many mutants there are and how many were killed, in words."""
    outcomes = Counter(mutant.outcome for mutant in mutants)
    return f"{killed_percent(mutants):5.1f} % of {len(mutants):5} killed {dict(sorted(outcomes.items()))}"


def run(modules: Sequence[str], tests: Sequence[str], processes: int) -> list[Mutant]:
    """Run mutmut anew and collect what it found. It is made for one run in a process.

    :param modules: mutate these
    :param tests: the unit tests that they are shown to
    :param processes: how many mutants are tested at a time
    """
    # Not above: the unit test of this script runs where mutmut is not installed.
    import mutmut.__main__ as mutmut_cli
    import mutmut.workers.isolation as mutmut_workers
    from mutmut.configuration import config
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code
    from mutmut.utils.format_utils import orig_function_and_class_names_from_key
    from one_collection import CollectedOnce

    mutmut_workers.PytestRunner = CollectedOnce
    # Workers that make the mutants take the modules from the settings below, not anew from pyproject.toml.
    multiprocessing.set_start_method("fork", force=True)
    shutil.rmtree(ROOT / "mutants", ignore_errors=True)
    settings = config()
    settings.only_mutate = [f"{PACKAGE}/{module}.py" for module in modules]
    selected = settings.pytest_add_cli_args_test_selection
    selected[:] = [*tests, *(option for option in selected if not option.startswith("tests/"))]

    def outcomes(names: tuple[str, ...]) -> list[tuple[Any, str, str]]:
        with _quiet() as printed:
            try:
                mutmut_cli._run(names, processes)
            except SystemExit:  # the tests fail without a mutant
                print(printed.getvalue() if printed else "", file=sys.stderr)
                raise
        made = mutmut_cli.collect_source_file_mutation_data(mutant_names=())[0]
        return [(data, key, status_by_exit_code[outcome]) for data, key, outcome in made]

    tried = outcomes(())
    undecided = tuple(key for _, key, status in tried if status not in KILLED + SURVIVED)
    if undecided:  # on a busy machine a worker may end without an answer
        tried = outcomes(undecided)
    found: list[Mutant] = []
    for data, key, status in tried:
        function, owner = orig_function_and_class_names_from_key(key)
        diff = "" if status in KILLED else get_diff_for_mutant(key, path=data.path)
        module = str(Path(data.path).relative_to(PACKAGE).with_suffix(""))
        found.append(Mutant(module, f"{owner}.{function}" if owner else function, status, diff))
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO | None]:
    """Keep mutmut's progress for a terminal; without one, give its output instead."""
    if sys.stdout.isatty():
        yield None
        return
    printed = io.StringIO()
    # mutmut puts this one back where the tests' output ends.
    kept, sys.__stdout__ = sys.__stdout__, printed
    try:
        with contextlib.redirect_stdout(printed):
            yield printed
    finally:
        sys.__stdout__ = kept


def run_all(
    settings: Mapping[str, Sequence[str]], modules: Iterable[str], tests: Sequence[str], processes: int
) -> Iterator[list[Mutant]]:
    """Run mutmut once for each folder of modules, with the tests of that folder.

    Tests of another folder reach a module as well; they are slow, and nearly all that they notice its own
    tests do too.

    :param settings: ``[tool.mutmut]`` of pyproject.toml
    :param modules: mutate these alone; all of pyproject.toml when empty
    :param tests: run these unit tests alone; those of pyproject.toml when empty
    :param processes: how many mutants are tested at a time
    """
    for folder, own in groupby(
        sorted(chosen(modules, settings["only_mutate"])), lambda one: one.split("/")[0]
    ):
        selected = [
            path
            for path in settings["pytest_add_cli_args_test_selection"]
            if path.split("/")[2:3] == [folder]
        ]
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
            yield apart.submit(run, list(own), tests or selected, processes).result()


def chosen(modules: Iterable[str], all_files: Sequence[str]) -> list[str]:
    """The modules named, or all.

    :param modules: as ``streaming/progress``
    :param all_files: the files of pyproject.toml
    :raises SystemExit: if a module is not one of them
    """
    known = [file.removeprefix(f"{PACKAGE}/").removesuffix(".py") for file in all_files]
    named = [module.removesuffix(".py") for module in modules]
    unknown = [module for module in named if module not in known]
    if unknown:
        raise SystemExit(f"not in [tool.mutmut] of pyproject.toml: {', '.join(unknown)}")
    return named or known


def main() -> int:
    """Run, report, and return the exit code."""
    parser = argparse.ArgumentParser(description="The mutation run of the exactly-once core.")
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    parser.add_argument("--tests", action="append", default=[], metavar="PATH", help="these unit tests alone")
    parser.add_argument("--processes", type=int, default=4, help="how many mutants are tested at a time")
    options = parser.parse_args()
    accepted = read_accepted(ACCEPTED.read_text())
    began = time.monotonic()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        # A mutant that is stopped leaves its tests' files behind.
        os.environ["TMPDIR"] = folder
        mutants: list[Mutant] = []
        passed = True
        for found in run_all(settings, options.modules, options.tests, options.processes):
            sources = {one.module: (ROOT / PACKAGE / f"{one.module}.py").read_text() for one in found}
            report, good = judge(found, accepted, sources)
            print("\n".join(report), f"{time.monotonic() - began:.0f} s", sep="\n", flush=True)
            mutants += found
            passed = passed and good
    print(f"{'whole run':32} {counts(mutants)}")
    print(f"{time.monotonic() - began:.0f} s; {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
