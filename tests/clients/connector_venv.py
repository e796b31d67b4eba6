"""A virtual environment with connector 5 in the user's cache: other needs of the provider pin connector 4."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

from tests.java_options import cache_folder

REQUIREMENTS = Path(__file__).parent / "connector-5-requirements.txt"
_CREATE_SECONDS = 400


class UnavailableError(Exception):
    """The environment cannot be made here; the text says why."""


def connector_5_python() -> Path:
    """Return the interpreter of the environment, made on first use for these requirements and this Python.

    :raises UnavailableError: when the pinned packages cannot be installed.
    """
    tag = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    cache = cache_folder()
    folder = cache / f"connector-5-{tag}"
    python, complete = folder / "bin" / "python", folder / "complete"
    with (cache / "connector-5.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            _run([sys.executable, "-m", "venv", "--clear", str(folder)])
            _run([str(python), "-m", "pip", "install", "--quiet", "--requirement", str(REQUIREMENTS)])
            complete.touch()
    return python


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CREATE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"connector 5 cannot be installed: {error}") from error
    if done.returncode != 0:
        raise UnavailableError(f"connector 5 cannot be installed: {done.stderr.strip()[-300:]}")
