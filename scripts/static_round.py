"""The static round of ``scripts/mutants.py --sample``: mutants that no unit test notices meet ruff and mypy.

A change that they refuse cannot be merged, as little as one that a test notices. mypy reads a copy in
which one mutant of each module is in place, then the next one of each: an error in a module is its mutant's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

MEANING = "F,B,RUF059"
"""The rules of ruff that are about meaning, as a name that nothing uses; others find how mutmut writes."""


def linted(package: str, changed: Mapping[str, Sequence[str]]) -> set[tuple[str, int]]:
    """The changes that ruff refuses, each by its module and its place among the module's changes.

    :param package: the folder of the modules
    :param changed: texts of each module, every one with another change
    :raises RuntimeError: if ruff refuses what has no change
    """
    if wrong := [
        module for module in changed if _lints(package, module, Path(package, f"{module}.py").read_text())
    ]:
        raise RuntimeError(f"ruff refuses without a mutant: {', '.join(wrong)}")
    return {
        (module, place)
        for module, texts in changed.items()
        for place, text in enumerate(texts)
        if _lints(package, module, text)
    }


def _lints(package: str, module: str, text: str) -> bool:
    """Whether ruff finds an error in the text of a module."""
    command = [
        "ruff",
        "check",
        "--quiet",
        "--select",
        MEANING,
        "--stdin-filename",
        f"{package}/{module}.py",
        "-",
    ]
    done = subprocess.run([sys.executable, "-m", *command], input=text, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"ruff ends with {done.returncode}: {done.stdout}{done.stderr}")
    return done.returncode == 1


def refused(package: str, changed: Mapping[str, Sequence[str]], folder: Path) -> set[tuple[str, int]]:
    """The changes that mypy refuses, each by its module and its place among the module's changes.

    :param package: the folder of the modules
    :param changed: texts of each module, every one with another change
    :param folder: for the copy
    :raises RuntimeError: if mypy refuses what has no change
    """
    shutil.copytree(package, folder / package)
    shutil.copy("pyproject.toml", folder)
    if wrong := _wrong(package, folder):
        raise RuntimeError(f"mypy refuses without a mutant: {', '.join(sorted(wrong))}")
    found: set[tuple[str, int]] = set()
    for turn in range(max(map(len, changed.values()), default=0)):
        placed = {module: texts[turn] for module, texts in changed.items() if turn < len(texts)}
        for module, text in placed.items():
            (folder / package / f"{module}.py").write_text(text)
        found |= {(module, turn) for module in _wrong(package, folder) & placed.keys()}
        for module in placed:
            shutil.copy(Path(package, f"{module}.py"), folder / package / f"{module}.py")
    return found


def _wrong(package: str, folder: Path) -> set[str]:
    """The modules in which mypy finds an error."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", "-p", package]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"mypy ends with {done.returncode}: {done.stdout}{done.stderr}")
    files = {line.partition(":")[0] for line in done.stdout.splitlines() if ": error:" in line}
    return {str(Path(file).relative_to(package).with_suffix("")) for file in files}
