"""Clients as they are published, in the user's cache: Python environments of their own, and jars.

Few of the Python clients fit the versions that the project's own environment pins.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

CONNECTOR_5 = Path(__file__).parent / "connector-5-requirements.txt"
_CREATE_SECONDS = 400
_MAVEN = Path.home() / ".m2" / "repository"


class UnavailableError(Exception):
    """The client cannot be fetched here; the text gives the reason."""


def cache_folder() -> Path:
    """Return the folder of these tests in the user's cache, made if it is missing."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "snowpipe-local"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def connector_5_python() -> Path:
    """Return the interpreter of the environment with connector 5.

    :raises UnavailableError: when the pinned packages cannot be installed.
    """
    return client_python("connector-5", CONNECTOR_5.read_text())


def client_python(client: str, requirements: str) -> Path:
    """Return the interpreter of a client's environment, made on first use for its packages and this Python.

    :param client: names the environment
    :param requirements: text of a requirements file
    :raises UnavailableError: when the packages cannot be installed.
    """
    tag = hashlib.sha256(requirements.encode() + sys.version.encode()).hexdigest()[:12]
    cache = cache_folder()
    folder = cache / f"{client}-{tag}"
    python, complete = folder / "bin" / "python", folder / "complete"
    with (cache / f"{client}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            uv = [sys.executable, "-m", "uv"]
            _run(client, [*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)])
            listed = folder / "requirements.txt"
            listed.write_text(requirements)
            install = [*uv, "pip", "install", "--quiet", "--python", str(python)]
            _run(client, [*install, "--requirement", str(listed)])
            complete.touch()
    return python


def maven_jar(coordinates: str) -> Path:
    """Return a jar of Maven Central without what it depends on; ``mvn`` fetches it into its own cache.

    :param coordinates: ``group:artifact:version``
    :raises UnavailableError: when it cannot be fetched.
    """
    group, artifact, version = coordinates.split(":")
    jar = _MAVEN.joinpath(*group.split("."), artifact, version, f"{artifact}-{version}.jar")
    if not jar.exists():
        if shutil.which("mvn") is None:
            raise UnavailableError(f"there is no mvn to fetch {coordinates}")
        fetch = ["mvn", "-q", "-B", f"-Dmaven.repo.local={_MAVEN}", "dependency:get"]
        _run(coordinates, [*fetch, f"-Dartifact={coordinates}", "-Dtransitive=false"])
    return jar


def _run(client: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CREATE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{client} cannot be installed: {error}") from error
    if done.returncode != 0:
        raise UnavailableError(f"{client} cannot be installed: {done.stderr.strip()[-300:]}")
