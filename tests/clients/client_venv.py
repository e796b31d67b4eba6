"""Virtual environments of clients in the user's cache: few of them fit what the project's own one pins."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

from tests.java_options import cache_folder

CONNECTOR_5 = Path(__file__).parent / "connector-5-requirements.txt"
_CREATE_SECONDS = 400


class UnavailableError(Exception):
    """The environment cannot be made here; the text gives the reason."""


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


def _run(client: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CREATE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{client} cannot be installed: {error}") from error
    if done.returncode != 0:
        raise UnavailableError(f"{client} cannot be installed: {done.stderr.strip()[-300:]}")
