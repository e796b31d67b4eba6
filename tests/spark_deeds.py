"""Faults at crash points of the job: something dies, fails or stands still at a chosen point of a load.

The job is the real one with its real source and sink; a fault (``Deed``) only decides when. Whatever is
pickled here reaches executors by name, so that they need this repository on their ``PYTHONPATH``.
"""

import dataclasses
import json
import os
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from airflow_provider_snowpipe.spark.driver import rounds
from airflow_provider_snowpipe.spark.task import sink
from airflow_provider_snowpipe.spark.task.sink import PartitionResult, PartitionWork, SinkSettings
from airflow_provider_snowpipe.streaming.auth import ScopedToken
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.checkpoints import shown
from tests.waiting import wait_until

POINTS = ("start", "row", "written", "received", "commit-wait", "committed")
"""Before the open; before a row is read; all rows are appended; all are received by the service; a
status has shown that they are not committed yet; their commit was seen, and the driver does not know yet."""
_STALL_SECONDS = 600.0
_DEATH_SECONDS = 10.0


class DeedError(Exception):
    """What a deed raises."""


@dataclass(frozen=True)
class Deed:
    """Something that happens once.

    :param what: ``raise`` an exception; ``kill-worker``, ``kill-executor`` or ``kill-driver``; ``freeze``:
        kill the executor and its daemon, and stop the worker, which lives on as a zombie until somebody
        continues it; ``stall``: wait until :meth:`Deeds.release`
    :param point: when
    :param partition: in whose task
    :param row: for the point ``row``: after how many rows of the attempt
    """

    what: str
    point: str
    partition: str
    row: int = 0

    def __str__(self) -> str:
        return f"{self.what}-{self.point}"


def drawn_deed(
    draw: random.Random, kinds: Sequence[str], partitions: Sequence[str], rows: Sequence[int]
) -> Deed:
    """A deed of one of these kinds; one that raises would not end the wait for a commit."""
    what = draw.choice(kinds)
    point = draw.choice([one for one in POINTS if (what, one) != ("raise", "commit-wait")])
    return Deed(what, point, draw.choice(partitions), draw.choice(rows) if point == "row" else 0)


@dataclass(frozen=True)
class Deeds:
    """The deeds of one test, with what its tasks write down in a folder that they share with the driver."""

    folder: Path
    each: tuple[Deed, ...] = ()

    def reach(self, point: str, partition: str, rows: int = 0) -> None:
        """Do what is due at a point of a partition's load."""
        for number, deed in enumerate(self.each):
            at_hand = deed.point == point and deed.partition == partition and rows >= deed.row
            if at_hand and self._claim(f"deed-{number}"):
                self.note(event=deed.what, partition=partition, point=point)
                self._do(deed)

    def note(self, **facts: Any) -> None:
        """Write down what happened, one line in one write."""
        line = json.dumps({"pid": os.getpid(), **facts}) + "\n"
        with (self.folder / "notes").open("ab", buffering=0) as notes:
            notes.write(line.encode())

    def notes(self, event: str) -> list[dict[str, Any]]:
        """What was written down of one kind of event."""
        path = self.folder / "notes"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line["event"] == event]

    @property
    def is_released(self) -> bool:
        return (self.folder / "released").exists()

    def release(self) -> None:
        """Let stalled tasks go on."""
        (self.folder / "released").touch()

    def note_driver(self, *pids: int) -> None:
        """Remember the processes of the driver, which a deed may kill."""
        (self.folder / "driver").write_text(json.dumps(pids))

    def _claim(self, name: str) -> bool:
        try:
            (self.folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _do(self, deed: Deed) -> None:
        if deed.what == "raise":
            raise DeedError(f"{deed.point} of {deed.partition}")
        if deed.what == "stall":
            wait_until(lambda: self.is_released, seconds=_STALL_SECONDS, what="a release")
            return
        for victim in self._victims(deed.what):
            victim.kill()
            # A daemon that outlives its JVM would take this worker with it.
            psutil.wait_procs([victim], _DEATH_SECONDS)
        if deed.what == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)

    def _victims(self, what: str) -> list[psutil.Process]:
        if what == "kill-driver":
            return [psutil.Process(pid) for pid in json.loads((self.folder / "driver").read_text())]
        if what == "kill-worker":
            return [psutil.Process()]
        daemon, executor, *_ = psutil.Process().parents()
        assert "CoarseGrainedExecutorBackend" in " ".join(executor.cmdline()), executor.cmdline()
        return [executor] if what == "kill-executor" else [daemon, executor]


def load_with_deeds(
    deeds: Deeds, settings: SinkSettings, token: ScopedToken, work: PartitionWork
) -> PartitionResult:
    """Do what the job's task does, past the points of the deeds."""
    from pyspark import TaskContext

    context, name = TaskContext.get(), work.partition.name
    facts = {"partition": name, "attempt": context.attemptNumber() if context else 0}
    deeds.note(event="began", **facts)
    deeds.reach("start", name)
    kind = type(work.partition)
    read, wait, flush = kind.read, Channel.wait_for_commit, Channel.flush
    ask = SnowpipeClient.channel_statuses

    def read_past_points(partition: Any, position: Any, limits: BatchLimits) -> Iterator[Part]:
        rows = 0
        for part in read(partition, position, limits):
            deeds.reach("row", name, rows)
            yield part
            rows += part.rows

    def wait_past_points(channel: Channel, *args: Any, **kwargs: Any) -> Any:
        def ask_past_point(client: SnowpipeClient, names: Any) -> Any:
            found = ask(client, names)
            if shown(found[channel.name].committed) != str(channel.progress.sent):
                deeds.reach("commit-wait", name)
            return found

        deeds.reach("received", name)
        with patch.object(SnowpipeClient, "channel_statuses", ask_past_point):
            found = wait(channel, *args, **kwargs)
        deeds.reach("committed", name)
        return found

    def flush_past_point(channel: Channel) -> None:
        deeds.reach("written", name)
        flush(channel)

    with (
        patch.object(kind, "read", read_past_points),
        patch.object(Channel, "wait_for_commit", wait_past_points),
        patch.object(Channel, "flush", flush_past_point),
    ):
        try:
            result = sink.load_partition(settings, token, work)
        except Exception as error:
            deeds.note(event="failed", error=type(error).__name__, **facts)
            raise
    deeds.note(event="ended", **facts)
    return result


@contextmanager
def doing(deeds: Deeds) -> Iterator[None]:
    """Let the tasks of every job of this process pass the points of the deeds."""
    with patch.object(rounds, "load_partition", partial(load_with_deeds, deeds)):
        yield


def deeds_of(folder: Path, each: Sequence[Deed]) -> Deeds:
    """Deeds with a folder of their own, for tasks of this process and for those of a job that reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "deeds.json").write_text(json.dumps([dataclasses.asdict(deed) for deed in each]))
    return Deeds(folder, tuple(each))


def read_deeds(folder: Path) -> Deeds:
    """The deeds that :func:`deeds_of` put into a folder."""
    return Deeds(folder, tuple(Deed(**deed) for deed in json.loads((folder / "deeds.json").read_text())))
