"""Histories of a folder of growing files against a plain model: each row is read once.

A writer makes, extends, renames and removes files in any order, runs end or die, and the token of a channel
is what the last one has read. Removed are files whose rows are all committed.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.spark.sources.files.reader import FileSource
from airflow_provider_snowpipe.spark.sources.files.spec import FileSourceSpec, Ndjson
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits

TARGET = "account/pipe"


class History:
    """A folder, its rows, and what runs have read of it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.spec = FileSourceSpec(path=str(folder), **{"format": Ndjson(growing=True), **options})
        self.numbers = count()
        self.files: dict[Path, list[int]] = {}
        self.names: set[Path] = set()
        self.removable: set[int] = set()
        self.committed: dict[str, Any] = {}
        self.read: Counter[int] = Counter()
        self.written: set[int] = set()

    def write(self, name: str, rows: int) -> None:
        """Make a file, or extend it."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = [next(self.numbers) for _ in range(rows)]
        with path.open("a") as lines:
            lines.writelines(f'{{"ID": {one}}}\n' for one in new)
        self.files.setdefault(path, []).extend(new)
        self.written |= set(new)

    def rename(self, name: str, to: str) -> None:
        old, new = self.folder / name, self.folder / to
        old.rename(new)
        self.files[new] = self.files.pop(old)

    def run(self, most: int | None = None, rows: int = 1000) -> None:
        """Do what the driver does.

        :param most: dies after so many appends
        """
        for _ in range(3):
            source = FileSource(self.spec, "fail").for_target(TARGET)
            partitions = {one.name: one for one in source.partitions()}
            for name, one in partitions.items():
                one.check(self.committed.get(name))
            if source.claim(partitions, {name: self.committed.get(name) for name in partitions}):
                break
        else:
            raise AssertionError("the log was never written")
        appends = 0
        for name, one in partitions.items():
            resume_at = one.resume(self.committed.get(name))
            for part in () if resume_at is None else one.read(resume_at, BatchLimits(rows=rows)):
                if appends == most:
                    return
                appends += 1
                before = self.committed.get(name)
                assert before is None or part.start.follows(before), (before, part.start)
                self.committed[name] = part.end
                self.read.update(json.loads(line)["ID"] for line in bytes(part.body).splitlines())
        source.mark_complete({name: self.committed[name] for name in partitions if name in self.committed})
        self.removable = {row for rows_of in self.files.values() for row in rows_of}

    def assert_exact(self) -> None:
        assert self.read == Counter(self.written)


def _step(history: History, draw: random.Random) -> None:
    files = sorted(history.files)
    names = [str(one.relative_to(history.folder)) for one in files]
    new = f"{draw.choice('ab')}/{draw.choice(['log_', 'x', 'Z'])}{draw.randrange(30)}.ndjson"
    what = draw.choice(["make", "make", "extend", "extend", "rename", "remove", "run", "run", "die"])
    if what == "make" and history.folder / new not in history.names:
        history.names.add(history.folder / new)
        history.write(new, draw.randrange(5))
    elif what == "extend" and names:
        history.write(draw.choice(names), draw.randint(1, 5))
    elif what == "rename" and names:
        name = draw.choice(names)
        to = f"{name[:2]}r{draw.randrange(100)}.ndjson"
        if history.folder / to not in {*history.names, *files}:
            history.rename(name, to)
            history.names.discard(history.folder / name)  # another file may take it
    elif what == "remove":
        whole = [one for one in files if history.files[one] and set(history.files[one]) <= history.removable]
        for path in whole[: draw.randrange(2)]:
            path.unlink()
            history.names.add(path)
            del history.files[path]
    elif what == "run":
        history.run(rows=draw.choice([1, 2, 1000]))
        history.assert_exact()
    elif what == "die":
        history.run(draw.randrange(6), rows=draw.choice([1, 2, 1000]))


def _histories(seeds: range, folder: Path) -> None:
    for seed in seeds:
        history, draw = History(folder / str(seed)), random.Random(seed)
        history.folder.mkdir()
        for _ in range(draw.randint(5, 40)):
            _step(history, draw)
        history.run()
        history.assert_exact()


def test_every_row_is_read_once_whatever_becomes_of_its_file(tmp_path: Path) -> None:
    _histories(range(25), tmp_path)


@pytest.mark.nightly
def test_every_row_is_read_once_in_many_histories(tmp_path: Path) -> None:
    _histories(range(25, 2025), tmp_path)


@pytest.mark.parametrize("between", [False, True], ids=["at once", "a run between"])
def test_a_log_that_grows_and_is_rotated_is_read_on_under_its_new_name(tmp_path: Path, between: bool) -> None:
    history = History(tmp_path)
    history.write("a/app.log.ndjson", 3)
    history.run()
    history.write("a/app.log.ndjson", 2)
    history.rename("a/app.log.ndjson", "a/app.1.ndjson")
    if between:
        history.run()
    history.write("a/app.log.ndjson", 4)
    history.run()
    history.assert_exact()
    history.write("a/app.log.ndjson", 1)
    history.run()
    history.assert_exact()


class TestIgnored:
    """``on_changed_files="ignore"``."""

    @pytest.fixture
    def history(self, tmp_path: Path) -> History:
        found = History(tmp_path, on_changed_files="ignore")
        found.write("a/1.ndjson", 5)
        return found

    def overwrite(self, history: History) -> None:
        (history.folder / "a" / "1.ndjson").write_text('{"ID": 77}\n')

    def test_a_changed_file_is_named_and_left_out_and_others_are_read(
        self, history: History, caplog: pytest.LogCaptureFixture
    ) -> None:
        history.run()
        self.overwrite(history)
        history.write("a/2.ndjson", 2)
        history.run()
        history.assert_exact()
        assert "a/1.ndjson" in caplog.text

    def test_one_of_which_rows_are_missing_is_refused(self, history: History) -> None:
        history.run(2, rows=1)
        self.overwrite(history)
        with pytest.raises(SourcePositionError, match="changed"):
            history.run()


def test_many_entries_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    history = History(tmp_path)
    for _ in range(60):
        history.write("a/grows.ndjson", 1)
        history.run()
    history.assert_exact()
    assert history.committed["a"].line == 60
