"""Jars from Maven Central, fetched by ``mvn`` into its own cache; what cannot be had skips the test."""

from __future__ import annotations

import os
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


def maven_closure(folder: Path, *coordinates: str) -> list[Path]:
    """Fetch jars and what they need at run time; skip the test where that cannot be done.

    :param folder: for the project that asks Maven for them
    :param coordinates: ``group:artifact:version``
    """
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, artifact, version in (one.split(":") for one in coordinates)
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><dependencies>{wanted}</dependencies></project>"
    )
    found = folder / "classpath"
    _maven(
        ", ".join(coordinates),
        *("-f", str(folder / "pom.xml"), "dependency:build-classpath", "-Dmdep.includeScope=runtime"),
        f"-Dmdep.outputFile={found}",
    )
    return [Path(jar) for jar in found.read_text().split(os.pathsep)]


def _jar(coordinates: str) -> Path:
    group, artifact, version = coordinates.split(":")
    jar = _REPOSITORY.joinpath(*group.split("."), artifact, version, f"{artifact}-{version}.jar")
    if not jar.exists():
        _maven(coordinates, "dependency:get", f"-Dartifact={coordinates}", "-Dtransitive=false")
    return jar


def _maven(wanted: str, *arguments: str) -> None:
    if shutil.which("mvn") is None:
        pytest.skip(f"there is no mvn to fetch {wanted}")
    command = ["mvn", "-q", "-B", f"-Dmaven.repo.local={_REPOSITORY}", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{wanted}: no answer from Maven Central in {_FETCH_SECONDS} s")
    if done.returncode != 0:
        pytest.skip(f"{wanted} cannot be fetched: {done.stdout[-300:]}")
