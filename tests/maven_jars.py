"""Jars from Maven Central, fetched by ``mvn`` into its own cache; what cannot be had skips the test."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_FETCH_SECONDS = 240
_REPOSITORY = Path.home() / ".m2" / "repository"


def maven_jars(*coordinates: str) -> list[Path]:
    """Fetch jars, without what they depend on; skip the test where that cannot be done.

    :param coordinates: ``group:artifact:version``
    """
    return [_jar(one) for one in coordinates]


def _jar(coordinates: str) -> Path:
    group, artifact, version = coordinates.split(":")
    jar = _REPOSITORY.joinpath(*group.split("."), artifact, version, f"{artifact}-{version}.jar")
    if not jar.exists():
        if shutil.which("mvn") is None:
            pytest.skip(f"{coordinates} is not in Maven's cache, and there is no mvn to fetch it")
        command = ["mvn", "-q", "-B", f"-Dmaven.repo.local={_REPOSITORY}", "dependency:get"]
        command += [f"-Dartifact={coordinates}", "-Dtransitive=false"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"{coordinates}: no answer from Maven Central in {_FETCH_SECONDS} s")
        if done.returncode != 0 or not jar.exists():
            pytest.skip(f"{coordinates} cannot be fetched: {done.stdout[-300:]}")
    return jar
