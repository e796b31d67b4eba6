"""A folder in the user's cache with Airflow's OpenLineage provider, for one test's ``PYTHONPATH``.

In our own environment its listener would run in every other test's Airflow too.
"""

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

from tests.java_options import cache_folder

REQUIREMENTS = Path(__file__).parent / "openlineage-requirements.txt"
_INSTALL_SECONDS = 400


def openlineage_libraries() -> Path:
    """Return the folder, filling it on first use; what the packages need beside is in our environment.

    :raises subprocess.CalledProcessError: when the pinned packages cannot be installed.
    """
    tag = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    cache = cache_folder()
    folder = cache / f"openlineage-{tag}"
    complete = folder / "complete"
    with (cache / "openlineage.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
            arguments = ["--target", str(folder), "--requirement", str(REQUIREMENTS)]
            subprocess.run([*pip, *arguments], check=True, timeout=_INSTALL_SECONDS)
            complete.touch()
    return folder
