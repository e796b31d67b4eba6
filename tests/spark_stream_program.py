"""A program that streams through ``format("snowpipe")``, submitted so that it can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.spark_job import SPARK_SUBMIT
from tests.spark_session import Door, spark_environment
from tests.waiting import wait_until

_RUN_SECONDS = 900
_FIRST_COMMIT_SECONDS = 600
_HELD = "slow-append=0x4,slow-append=600x4"
"""Four appends are answered, the next ones are held up until the faults are cleared."""
KILL_POINTS = ("in the middle of a batch", "between write and commit")


class StreamProgram:
    """Runs of a program on one table, one folder of files and one checkpoint.

    It is called as ``PROGRAM FOLDER CHECKPOINT name=value...`` with the options of the write.

    :param path: the program
    :param door: the table
    :param folder: for the source, the checkpoint and what the runs print
    :param options: of the write
    """

    def __init__(self, path: Path, door: Door, folder: Path, options: Mapping[str, Any]) -> None:
        self._path = path
        self._options = dict(options)
        self.door = door
        self.folder = folder
        self.source, self.checkpoint = folder / "source", folder / "checkpoint"
        self.source.mkdir()
        self._files_put = 0

    def put(self, name: str, text: str) -> None:
        """Add a file to the source; Spark takes files in the order of their times."""
        self._files_put += 1
        (self.source / name).write_text(text, encoding="utf-8")
        os.utime(self.source / name, (self._files_put, self._files_put))

    def start(self, name: str, checkpoint: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a run in a process group of its own, its output beside the source."""
        options = [f"{key}={value}" for key, value in self.door.options(**self._options).items()]
        environment = {**os.environ, **spark_environment(self.folder)}
        with (self.folder / name).open("w") as log:
            return subprocess.Popen(
                [
                    str(SPARK_SUBMIT),
                    *("--master", "local[2,4]", "--conf", "spark.ui.enabled=false"),
                    *(str(self._path), str(self.source), str(checkpoint or self.checkpoint), *options),
                ],
                env=environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, name: str, checkpoint: Path | None = None, *, code: int = 0) -> str:
        """Run to the end.

        :param name: of the file for what it prints
        :param checkpoint: another one than the usual one
        :param code: the exit code that it must have
        :return: what it printed
        """
        process = self.start(name, checkpoint)
        try:
            found = process.wait(_RUN_SECONDS)
        finally:
            kill_all(process)
        printed = (self.folder / name).read_text()
        assert found == code, printed[-4000:]
        return printed

    def run_until_killed(self, name: str, kill_point: str) -> None:
        """Start a run and kill it with all its processes.

        :param name: of the file for what it prints
        :param kill_point: one of :data:`KILL_POINTS`
        """
        service = self.door.service
        if kill_point == KILL_POINTS[0]:
            service.admin("faults", set=_HELD)
        process = self.start(name)

        def held() -> bool:
            assert process.poll() is None, (self.folder / name).read_text()[-4000:]
            return bool(self.tokens()) and len(service.admin("faults")["faults"]) < 4

        try:
            if kill_point == KILL_POINTS[0]:
                wait_until(held, seconds=_FIRST_COMMIT_SECONDS, what="appends that are held up")
            else:
                wait_until(lambda: bool(self.tokens()), seconds=_FIRST_COMMIT_SECONDS, what="a commit")
                service.admin("faults", set="slow-status=60x500")
                wait_until(
                    lambda: any("-end~" in token for token in self.tokens()),
                    seconds=300,
                    what="the commit of all rows of a channel, which no task can observe",
                )
        finally:
            kill_all(process)
            service.admin("faults", clear=True)

    def tokens(self) -> list[str]:
        """The committed tokens that there are, read in a way that no fault of the streaming API delays."""
        shown = self.door.service.sql(f"SHOW CHANNELS LIKE '{self.door.prefix}_%'")
        return [row["offset_token"] for row in shown if row["offset_token"]]


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill a process's group, if it is still there."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(120)
