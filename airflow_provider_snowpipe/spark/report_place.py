"""The folder in which a driver leaves its report: on its own machine, or where Hadoop reaches it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

from airflow_provider_snowpipe.spark.report import write_whole
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


def is_url(path: str) -> bool:
    """True for what Hadoop reads and writes, ``hdfs://…`` or ``s3a://…``; False for a path.

    :param path: a plan's ``report_path``
    """
    return "://" in path


def report_place(report_path: str) -> LocalPlace | HadoopPlace:
    """The folder of a report.

    :param report_path: an absolute path or a URL
    """
    if is_url(report_path):
        return HadoopPlace(report_path.rpartition("/")[0])
    return LocalPlace(Path(report_path).parent)


class LocalPlace:
    """A folder of the driver's machine, or one that is mounted there.

    :param folder: the folder, which exists
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, text: str) -> None:
        """Write a file so that a reader sees all of it or nothing.

        :param name: the file's name
        :param text: what it holds
        """
        write_whole(text, self._folder / name)

    def read(self, name: str) -> str | None:
        """Read a file, None if there is none.

        :param name: the file's name
        """
        path = self._folder / name
        return path.read_text("utf-8") if path.is_file() else None

    def remove(self, name: str) -> None:
        """Remove a file, if it is there.

        :param name: the file's name
        """
        (self._folder / name).unlink(missing_ok=True)

    def check(self) -> None:
        """See that a report can be written.

        :raises ConfigurationError: if it cannot
        """
        if not self._folder.is_dir() or not os.access(self._folder, os.W_OK):
            raise ConfigurationError(
                f"the plan's report goes into {str(self._folder)!r}: this directory does not exist where the "
                "driver runs, or cannot be written there"
            )


class HadoopPlace:
    """A folder at a URL, made when something is written; the JVM beside the driver reads and writes it.

    :param folder: its URL
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def write(self, name: str, text: str) -> None:
        """Write a file so that a reader sees all of it or nothing: under another name, then renamed.

        :param name: the file's name
        :param text: what it holds
        :raises ConfigurationError: if it cannot be written
        """
        partial, target = (self._path(one) for one in (f".{name}.{uuid4().hex}", name))
        files = self._files(target)
        stream = files.create(partial, True)
        stream.write(bytearray(text.encode()))
        stream.close()
        # No file system renames onto a file that exists; of two attempts of a driver the last word counts.
        files.delete(target, False)
        if not files.rename(partial, target):
            files.delete(partial, False)
            raise ConfigurationError(f"{self._folder}/{name} cannot be written: a rename there was refused")

    def read(self, name: str) -> str | None:
        """Read a file, None if there is none.

        :param name: the file's name
        """
        path = self._path(name)
        files = self._files(path)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def remove(self, name: str) -> None:
        """Remove a file, if it is there.

        :param name: the file's name
        """
        path = self._path(name)
        self._files(path).delete(path, False)

    def check(self) -> None:
        """See that a report can be written.

        :raises ConfigurationError: if it cannot; with the file system's own words
        """
        from py4j.protocol import Py4JJavaError

        probe = f".probe.{uuid4().hex}"
        try:
            self.write(probe, "")
            self.remove(probe)
        except Py4JJavaError as error:
            raise ConfigurationError(
                f"the plan's report goes to {self._folder}, which the driver cannot write "
                f"({str(error.java_exception)[:300]}): name a work_path that the cluster reaches, with what "
                "its Hadoop needs for this kind of address"
            ) from None

    def _path(self, name: str) -> Any:
        return _jvm().org.apache.hadoop.fs.Path(f"{self._folder}/{name}")

    def _files(self, path: Any) -> Any:
        return path.getFileSystem(_jvm().org.apache.spark.deploy.SparkHadoopUtil.get().conf())


def _jvm() -> Any:
    """The JVM of the driver, which is there before Spark starts and after it has stopped."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    return SparkContext._jvm
