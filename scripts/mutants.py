"""The mutation run: expressions change one at a time, and a unit test has to fail.

    python scripts/mutants.py [MODULE]…                 the exactly-once core, or modules: streaming/progress
    python scripts/mutants.py --sample 400 [--seed 7]   so many of all mutants of the folders of ``SAMPLED``;
                                                        those that live meet ruff and strict types
                                                        (``static_round.py``), then the integration tests
                                                        (``second_round.py``)

It runs in the folder of a distribution, whose tests/mutants.toml has the modules of the core, and whose
pyproject.toml has ``[tool.mutmut]``: the tests, and what is left as it is. mutmut makes the mutants in a copy
(``mutants/``; the working tree is never touched) and finds out which tests reach which function.
``one_collection.py`` runs them: the likeliest and quickest first, and for so long only (``SECONDS``).

Exit code 1: a module in which a smaller share is killed than tests/mutants.toml says, less than 90 % of all,
or a mutant without a verdict. The lines for that file are printed: a share there only goes up.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import math
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

SHARES = Path("tests", "mutants.toml")
KILLED_AT_LEAST = 90.0
SAMPLED = ("streaming", "spark", "bulk", "operators", "sensors", "routing")
SKIN = ("operators", "cli")
"""Folders with tests of whole ways through the others."""
BESIDE = (
    *("assets", "decorators", "hooks", "links", "notifications", "plugins", "policies", "queues", "triggers"),
    *("test_lineage.py", "test_metrics.py", "test_sources.py", "test_walks.py"),
)
"""Unit tests of what stands on the folders of ``SAMPLED``."""
SECONDS = 2.0
# mutmut's words for an outcome, those of the static round and that of the second; others are no verdict.
KILLED = ("killed", "timeout", "segfault", "lint", "types", "integration")
SURVIVED = ("survived", "no tests")


@dataclass(frozen=True)
class Mutant:
    """One changed expression and the outcome of its tests.

    :param module: the file below the package without its ending, as ``streaming/progress``
    :param function: the function, or ``Class.method``
    :param outcome: mutmut's word
    :param diff: the change as a unified diff of the function
    :param key: mutmut's name of it
    """

    module: str
    function: str
    outcome: str
    diff: str = ""
    key: str = ""

    def changed(self, sign: str) -> list[str]:
        """The lines that the change removes (``-``) or adds (``+``)."""
        lines = self.diff.splitlines()[2:]
        return [line[1:].strip() for line in lines if line.startswith(sign)]

    def line(self, source: str) -> int:
        """The line that is changed in the text of the module."""
        first, last = span_of(source, self.function)
        expected = (self.changed("-") or [""])[0]
        lines = source.splitlines()
        return next((n for n in range(first, last + 1) if lines[n - 1].strip() == expected), first)

    def placed(self, source: str) -> str:
        """The text of the module with the change."""
        lines = source.splitlines()
        first, last = span_of(source, self.function)
        for hunk in self.diff.split("\n@@ ")[:0:-1]:
            body = hunk.splitlines()[1:]
            old = [line[1:].strip() for line in body if line[:1] != "+"]
            # A decorator stands above the function's line.
            places = range(max(first - 4, 0), last)
            at = next(n for n in places if [one.strip() for one in lines[n : n + len(old)]] == old)
            kept = iter(lines[at : at + len(old)])
            margin = "    " * self.function.count(".")
            new = [(one, margin + one[1:] if one[:1] == "+" else next(kept)) for one in body]
            lines[at : at + len(old)] = [text for one, text in new if one[:1] != "-"]
        return "\n".join(lines) + "\n"


def span_of(source: str, function: str) -> tuple[int, int]:
    """The first and the last line of a function in a module's text; line 1 when it is not there."""
    body: Sequence[ast.stmt] = ast.parse(source).body
    node: ast.stmt | None = None
    for part in function.split("."):
        node = next((n for n in body if getattr(n, "name", None) == part), None)
        body = getattr(node, "body", [])
    return (node.lineno, node.end_lineno or node.lineno) if node else (1, 1)


def read_shares(text: str) -> dict[str, int]:
    """How many percent of each module's mutants are to be killed at least, from TOML: ``[killed]``."""
    return {str(module): int(percent) for module, percent in tomllib.loads(text)["killed"].items()}


@dataclass(frozen=True)
class Sample:
    """Some of all mutants, the same ones for the same seed and the same source.

    :param size: how many
    """

    size: int
    seed: int

    def of(self, names: Sequence[str]) -> tuple[str, ...]:
        """So many of these names, or all where there are fewer."""
        draw = random.Random(self.seed)  # noqa: S311 - keeps no secret
        return tuple(draw.sample(sorted(names), min(self.size, len(names))))


def judge(
    mutants: Sequence[Mutant], shares: Mapping[str, int], sources: Mapping[str, str]
) -> tuple[list[str], bool]:
    """The report of a run, line by line, and whether it passes.

    :param mutants: all mutants of the run
    :param shares: the percent of a module's mutants that are to be killed; another module has no bound
    :param sources: the text of each module
    """
    of_module = {m: [one for one in mutants if one.module == m] for m in sorted({m.module for m in mutants})}
    report: list[str] = []
    for module, own in of_module.items():
        alive = [mutant for mutant in own if mutant.outcome not in KILLED]
        lines = {id(mutant): mutant.line(sources[module]) for mutant in alive}
        for mutant in sorted(alive, key=lambda mutant: lines[id(mutant)]):
            report += [
                f"{module}.py:{lines[id(mutant)]}: {mutant.outcome}",
                *mutant.diff.splitlines()[2:],
                "",
            ]
    report += [f"{module:34} {counts(own)}" for module, own in of_module.items()]
    report.append(f"{'all':34} {counts(mutants)}")
    percent = {module: math.floor(killed_percent(own)) for module, own in of_module.items()}
    report += [
        f'"{module}" = {now}  # was {shares[module]}'
        for module, now in percent.items()
        if module in shares and now != shares[module]
    ]
    below = [module for module, now in percent.items() if now < shares.get(module, 0)]
    undecided = sum(mutant.outcome not in KILLED + SURVIVED for mutant in mutants)
    report.append(f"below their share: {', '.join(below) or 'none'}; without a verdict: {undecided}")
    return report, killed_percent(mutants) >= KILLED_AT_LEAST and not below and not undecided


def killed_percent(mutants: Sequence[Mutant]) -> float:
    """The share of mutants that a test noticed, in percent."""
    return 100 * sum(mutant.outcome in KILLED for mutant in mutants) / len(mutants) if mutants else 0.0


def counts(mutants: Sequence[Mutant]) -> str:
    """How many mutants there are and how many were killed, in words."""
    outcomes = Counter(mutant.outcome for mutant in mutants)
    return f"{killed_percent(mutants):5.1f} % of {len(mutants):5} killed {dict(sorted(outcomes.items()))}"


def run(
    package: str, files: Sequence[str], tests: Sequence[str], sample: Sample | None, processes: int
) -> list[Mutant]:
    """Run mutmut and collect what it found. It is made for one run in a process.

    :param package: the folder of the modules
    :param files: patterns of the files that are mutated
    :param tests: the unit tests that the mutants are shown to, and pytest's options
    :param sample: which of the mutants are tried; None is all
    :param processes: how many mutants are tested at a time
    """
    # Not above: the unit test of this script runs where mutmut is not installed.
    import mutmut.__main__ as mutmut_cli
    import mutmut.workers.isolation as mutmut_workers
    from mutmut.configuration import config
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.mutation.trampoline import set_mutant_under_test
    from mutmut.stats import status_by_exit_code
    from mutmut.utils.format_utils import orig_function_and_class_names_from_key
    from one_collection import CollectedOnce

    mutmut_workers.PytestRunner = CollectedOnce
    # Workers that make the mutants take the modules from the settings below, not from pyproject.toml.
    multiprocessing.set_start_method("fork", force=True)
    shutil.rmtree("mutants", ignore_errors=True)
    settings = config()
    settings.only_mutate = list(files)
    settings.pytest_add_cli_args_test_selection[:] = tests

    def mutants() -> list[tuple[Any, str, int | None]]:
        return mutmut_cli.collect_source_file_mutation_data(mutant_names=())[0]

    def outcomes(names: tuple[str, ...]) -> dict[str, tuple[Any, str]]:
        with _quiet() as printed:
            try:
                mutmut_cli._run(names, processes)
            except SystemExit:  # the tests fail without a mutant
                print(printed.getvalue() if printed else "", file=sys.stderr)
                raise
        # mutmut takes 255 for a test that ran out of time; here it is a process that ended otherwise.
        words = {**status_by_exit_code, 255: "no answer"}
        return {
            key: (data, words.get(code, "suspicious")) for data, key, code in mutants() if code is not None
        }

    def described(key: str, data: Any, status: str) -> Mutant:
        function, owner = orig_function_and_class_names_from_key(key)
        diff = "" if status in KILLED else get_diff_for_mutant(key, path=data.path)
        module = str(Path(data.path).relative_to(package).with_suffix(""))
        return Mutant(module, f"{owner}.{function}" if owner else function, status, diff, key)

    names: tuple[str, ...] = ()
    if sample:
        set_mutant_under_test("mutant_generation")
        Path("mutants").mkdir()
        with _quiet():
            mutmut_cli.copy_src_dir()
            mutmut_cli.create_mutants(processes)
        names = sample.of([key for _, key, _ in mutants()])
    CollectedOnce.seconds = SECONDS
    tried = outcomes(names)
    # On a busy machine a worker may end without an answer, and tests take longer.
    settings.timeout_constant *= 3
    sure = (*SURVIVED, *(word for word in KILLED if word != "timeout" or not sample))
    if again := tuple(key for key, (_, status) in tried.items() if status not in sure):
        tried = outcomes(again)
    return [described(key, *outcome) for key, outcome in tried.items()]


def checked(found: Sequence[Mutant], package: str, folder: Path) -> list[Mutant]:
    """Show those that live to ruff and to mypy."""
    from static_round import linted, refused

    print(f"{'first round':34} {counts(found)}", flush=True)
    alive: dict[str, list[Mutant]] = {}
    for one in found:
        if one.outcome in SURVIVED:
            alive.setdefault(one.module, []).append(one)
    texts = {module: Path(package, f"{module}.py").read_text() for module in alive}
    changed = {module: [one.placed(texts[module]) for one in own] for module, own in alive.items()}
    rounds = {"lint": linted(package, changed), "types": refused(package, changed, folder)}
    wrong = {alive[module][place].key: word for word, places in rounds.items() for module, place in places}
    return [replace(one, outcome=wrong.get(one.key, one.outcome)) for one in found]


def met_again(found: Sequence[Mutant], package: str, folder: Path, processes: int) -> list[Mutant]:
    """Show those that live to the integration tests."""
    from second_round import second_round

    print(f"{'lint and types':34} {counts(found)}", flush=True)
    alive = [one.key for one in found if one.outcome in SURVIVED]
    outcomes = second_round(package, alive, folder, processes)
    return [replace(one, outcome=outcomes.get(one.key, one.outcome)) for one in found]


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


def tests_of(selection: Sequence[str], folders: Iterable[str]) -> list[str]:
    """The selected tests of some folders and of those that use all of them, and all options.

    Tests of another folder reach a module as well; nearly all that they notice its own tests do too.

    :param selection: paths of tests, and options of pytest
    :param folders: of ``tests/unit``; a selected file that lies in none of its folders belongs to all
    """
    of_folders = {f"tests/unit/{folder}" for folder in (*folders, *SKIN)}
    return [one for one in selection if not one.startswith("tests/") or one in of_folders or ".py" in one]


def chosen(modules: Iterable[str], known: Iterable[str]) -> list[str]:
    """The modules named, or all.

    :param modules: as ``streaming/progress``
    :param known: the modules of tests/mutants.toml
    :raises SystemExit: if a module is not one of them
    """
    known = list(known)
    named = [module.removesuffix(".py") for module in modules]
    unknown = [module for module in named if module not in known]
    if unknown:
        raise SystemExit(f"not in {SHARES}: {', '.join(unknown)}")
    return named or known


def main() -> int:
    """Run, report, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    parser.add_argument("--sample", type=int, metavar="N", help="try N mutants of all modules")
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")), help="of the sample")
    parser.add_argument("--processes", type=int, default=3, help="how many mutants are tested at a time")
    options = parser.parse_args()
    began = time.monotonic()
    settings = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["mutmut"]
    (package,) = settings["source_paths"]
    selection = settings["pytest_add_cli_args_test_selection"]
    shares = {} if options.sample else read_shares(SHARES.read_text())
    sample = Sample(options.sample, options.seed) if options.sample else None
    if sample:
        files = [f"{package}/{folder}/*" for folder in SAMPLED]
        tests = [
            *(f"tests/unit/{one}" for one in (*SAMPLED, *BESIDE) if one not in SKIN),
            *tests_of(selection, ()),
        ]
        print(f"{options.sample} mutants, --seed {options.seed}", flush=True)
    else:
        modules = chosen(options.modules, shares)
        files = [f"{package}/{module}.py" for module in modules]
        tests = tests_of(selection, {module.partition("/")[0] for module in modules})
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        # A mutant that is stopped leaves its tests' files behind.
        os.environ["TMPDIR"] = folder
        found = run(package, files, tests, sample, options.processes)
        if sample:
            found = checked(found, package, Path(folder, "types"))
            found = met_again(found, package, Path(folder), options.processes)
    sources = {one.module: Path(package, f"{one.module}.py").read_text() for one in found}
    report, passed = judge(found, shares, sources)
    print(
        "\n".join(report), f"{time.monotonic() - began:.0f} s; {'passed' if passed else 'FAILED'}", sep="\n"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
