"""A cached virtual environment with connector 5: in ours the provider's other needs pin connector 4."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "connector-5-requirements.txt"
_CACHE = Path(__file__).parents[2] / ".cache"
_CREATE_SECONDS = 400


class UnavailableError(Exception):
    """The environment cannot be made here; the text says why."""


def connector_5_python() -> Path:
    """Return the interpreter of the environment, making the environment on first use.

    :raises UnavailableError: when the pinned packages cannot be installed.
    """
    tag = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = _CACHE / f"connector-5-{tag}"
    python, complete = folder / "bin" / "python", folder / "complete"
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / "connector-5.lock").open("w") as lock:
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
