"""The archive of the classes of Spark's JVM on a local master, which saves a third of what a start takes."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Self

_QUIET = ("-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr")
"""An archive that does not fit is skipped; the JVM would report it on standard output."""
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
        cls, environment: Mapping[str, str], binary: str, driver_class_path: str | None, reads: str
    ) -> Self | None:
        """Name the archive of a Java, a class path and a kind of job, in this package's folder of the cache.

        :param environment: the variables that ``spark-submit`` runs with, ``JAVA_HOME`` among them
        :param binary: ``spark-submit``, as it is started
        :param reads: what the job reads, since a query needs classes that files do not
        :return: None where there is no folder that nobody else can write, or a variable sets options of Java
        """
        if any(name in environment for name in _JAVA_VARIABLES):
            return None
        class_path = [*_jars(binary, environment), driver_class_path or ""]
        class_path += [environment.get(name, "") for name in _CLASS_PATH_VARIABLES]
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(cache, "airflow-provider-snowpipe")
        try:
            java = Path(environment["JAVA_HOME"], "bin", "java").resolve(strict=True)
            known = java.stat()
            # The wrapper of a wheel's Java is made for each load, and names where that Java is.
            wraps = known.st_size < _WRAPPER_BYTES
            which = java.read_bytes() if wraps else (str(java), known.st_mtime_ns, known.st_size)
            # An empty entry would stand for the working directory, whose time changes with every file there.
            known_paths = [Path(one) for one in class_path if one]
            entries = [(str(one), one.stat().st_mtime_ns if one.exists() else 0) for one in known_paths]
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


def _jars(binary: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Folders that may have the jars of the Spark that a ``spark-submit`` belongs to."""
    program = shutil.which(binary, path=environment.get("PATH"))
    wheel = find_spec("pyspark")
    if environment.get("SPARK_HOME"):
        yield f"{environment['SPARK_HOME']}/jars"
    if program is not None:
        yield str(Path(program).resolve().parent.parent / "jars")
    if wheel is not None and wheel.submodule_search_locations:
        yield f"{wheel.submodule_search_locations[0]}/jars"
