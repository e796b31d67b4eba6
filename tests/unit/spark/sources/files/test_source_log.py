"""The source log: histories of a folder of files against a plain model, and what a log is as files."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from airflow_provider_snowpipe.spark.sources.files.log_store import LogStore
from airflow_provider_snowpipe.spark.sources.files.reader import FilePartition, FileSource
from airflow_provider_snowpipe.spark.sources.files.spec import LOG_FOLDER, FileSourceSpec
from airflow_provider_snowpipe.spark.sources.files.storage import LocalStorage
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    SnowpipeError,
    SourceChangedError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import Offset

TARGET = "account/pipe"
NAMES = ("9.ndjson", "10.ndjson", "b.ndjson", "a.ndjson")
PARTITIONS = ("eu", "us")
SMALL = BatchLimits(rows=2)


class Loads:
    """A folder of files, and a table with a channel for each partition."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        self.folder = folder
        self.spec = FileSourceSpec(str(folder), **spec)
        self.table: list[int] = []
        self.committed: dict[str, Offset] = {}
        self.bindings: dict[str, str] = {}

    def source(self) -> FileSource:
        source = FileSource(self.spec, "fail")
        source.for_target(TARGET)
        return source

    def plan(self, meanwhile: Any = None) -> tuple[FileSource, dict[str, FilePartition]]:
        """Plan as a run does, until nobody has planned at the same time."""
        for _ in range(4):
            source = self.source()
            partitions = {one.name: one for one in source.partitions()}
            for name, one in partitions.items():
                if name in self.bindings and self.bindings[name] != one.binding.digest:
                    raise SourceChangedError(f"{name} has another binding")
                one.check(self.committed.get(name))
            if meanwhile is not None:
                meanwhile, work = None, meanwhile
                work()
            if source.claim(partitions, {name: self.committed.get(name) for name in partitions}):
                return source, partitions
        raise AssertionError("nothing is ever planned")

    def run(self, dies_after: int | None = None, meanwhile: Any = None) -> None:
        """Load what is new.

        :param dies_after: so many parts are committed then
        """
        source, partitions = self.plan(meanwhile)
        parts = 0
        for name, partition in partitions.items():
            resume_at = partition.resume(self.committed.get(name))
            for part in () if resume_at is None else partition.read(resume_at, SMALL):
                if parts == dies_after:
                    return
                parts += 1
                before = self.committed.get(name)
                assert before is None or part.start.follows(before)
                self.table += [
                    json.loads(line)["ID"] for line in bytes(part.body).splitlines() if line.strip()
                ]
                self.committed[name] = part.end
                self.bindings[name] = partition.binding.digest
        if dies_after is None:
            source.mark_complete(
                {name: self.committed[name] for name in partitions if name in self.committed}
            )


class Histories(RuleBasedStateMachine):
    """Files come, grow, change, go and get other names between the runs of one load."""

    growing = False

    def __init__(self) -> None:
        super().__init__()
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self._temporary.name)
        self.loads = Loads(self.folder, format={"type": "ndjson", "growing": self.growing})
        self.ids = 0
        self.green = False
        self.replaced: dict[Path, tuple[bytes, os.stat_result]] = {}
        for partition in PARTITIONS:
            (self.folder / partition).mkdir()

    def teardown(self) -> None:
        self._temporary.cleanup()

    def files(self) -> list[Path]:
        return sorted(path for name in PARTITIONS for path in (self.folder / name).iterdir())

    def lines(self, count: int) -> bytes:
        self.ids += count
        return b"".join(b'{"ID": %d}\n' % number for number in range(self.ids - count, self.ids))

    def file(self, data: st.DataObject) -> Path:
        return data.draw(st.sampled_from(self.files()))

    @rule(
        partition=st.sampled_from(PARTITIONS), name=st.sampled_from(NAMES), count=st.integers(0, 5),
        unfinished=st.booleans(),
    )  # fmt: skip
    def write(self, partition: str, name: str, count: int, unfinished: bool) -> None:
        """Add rows to a file, or begin it; the last line may lack its end for now where files grow."""
        path = self.folder / partition / name
        content = path.read_bytes() if path.exists() else b""
        if content and not content.endswith(b"\n"):
            content += b"\n"
        content += self.lines(count)
        if unfinished:
            content = content.removesuffix(b"\n")
        path.write_bytes(content) if not path.exists() else self._append(path, content)
        self.green = False

    def _append(self, path: Path, content: bytes) -> None:
        size = path.stat().st_size
        with path.open("ab") as out:
            out.write(content[size:])

    @precondition(lambda self: self.files())
    @rule(data=st.data(), longer=st.integers(-1, 2))
    def replace(self, data: st.DataObject, longer: int) -> None:
        """Put other rows into a file."""
        path = self.file(data)
        self.replaced.setdefault(path, (path.read_bytes(), path.stat()))
        rows = path.read_bytes().count(b"\n") + longer
        path.write_bytes(self.lines(max(0, rows)))
        self.green = False

    @precondition(lambda self: self.replaced)
    @rule(data=st.data())
    def bring_back(self, data: st.DataObject) -> None:
        """Put the former content back, with its time."""
        path = data.draw(st.sampled_from(sorted(self.replaced)))
        content, found = self.replaced.pop(path)
        path.write_bytes(content)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
        self.green = False

    @precondition(lambda self: self.files())
    @rule(data=st.data(), name=st.sampled_from((*NAMES, "z.ndjson")))
    def rename(self, data: st.DataObject, name: str) -> None:
        path = self.file(data)
        if not (path.parent / name).exists() and path not in self.replaced:
            path.rename(path.parent / name)
            self.green = False

    @precondition(lambda self: self.files() and self.green)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """After a load that succeeded."""
        path = self.file(data)
        path.unlink()
        self.replaced.pop(path, None)

    @rule(dies_after=st.none() | st.integers(0, 4), races=st.booleans())
    def run(self, dies_after: int | None, races: bool) -> None:
        there = {
            json.loads(line)["ID"]
            for path in self.files()
            for line in path.read_bytes().splitlines(keepends=True)
            if line.strip() and (line.endswith(b"\n") or not self.growing)
        }

        def other() -> None:
            (self.folder / "us" / f"late{self.ids}.ndjson").write_bytes(self.lines(1))
            self.loads.plan()

        try:
            self.loads.run(dies_after, other if races else None)
        except SnowpipeError:
            return
        self.green = dies_after is None and not races
        if dies_after is None:
            assert there <= set(self.loads.table), "rows are lost"

    @invariant()
    def no_row_is_there_twice(self) -> None:
        twice = [row for row, count in Counter(self.loads.table).items() if count > 1]
        assert not twice


class GrowingHistories(Histories):
    """The same while something appends to the last file."""

    growing = True


@pytest.mark.parametrize("machine", [Histories, GrowingHistories])
@pytest.mark.parametrize("examples", [30, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_no_history_ends_with_success_and_rows_that_differ(machine, examples):
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=25))


@pytest.fixture
def loads(tmp_path):
    for partition in PARTITIONS:
        (tmp_path / partition).mkdir()
    return Loads(tmp_path)


def write(loads: Loads, name: str, *ids: int) -> Path:
    path = loads.folder / name
    with path.open("a") as out:
        out.writelines(f'{{"ID": {one}}}\n' for one in ids)
    return path


def test_lines_of_a_file_that_grew_are_those_of_the_whole_file(loads):
    write(loads, "eu/a.ndjson", 1, 2)
    loads.run()
    write(loads, "eu/b.ndjson", 3)
    loads.run()
    write(loads, "eu/a.ndjson", 4, 5)
    loads.run()

    assert (str(loads.committed["eu"]), loads.table) == ("3/a.ndjson:4", [1, 2, 3, 4, 5])


def test_last_line_that_was_taken_without_its_end_may_get_it_and_no_more(loads):
    path = write(loads, "eu/a.ndjson", 1)
    path.write_bytes(path.read_bytes() + b'{"ID": 2}')
    loads.run()
    write(loads, "eu/b.ndjson", 3)
    path.write_bytes(path.read_bytes() + b'\n{"ID": 4}')
    loads.run()
    assert (str(loads.committed["eu"]), loads.table) == ("3/b.ndjson:1", [1, 2, 4, 3])

    path.write_bytes(path.read_bytes() + b', "A": 1}\n')
    with pytest.raises(SnowpipeError, match="complete"):
        loads.run()


def test_renamed_file_is_the_same_and_a_new_one_may_take_its_name(loads):
    write(loads, "eu/a.log.ndjson", 1, 2)
    loads.run(dies_after=0)
    for number in (3, 5):
        (loads.folder / "eu/a.log.ndjson").rename(loads.folder / f"eu/a.log.{number}.ndjson")
        write(loads, "eu/a.log.ndjson", number)
        loads.run()
    write(loads, "eu/a.log.3.ndjson", 7)
    loads.run()

    assert sorted(loads.table) == [1, 2, 3, 5, 7]


def test_files_that_swap_their_names_are_the_same(loads):
    for name, number in (("a", 1), ("b", 2)):
        write(loads, f"eu/{name}.ndjson", number)
    loads.run()
    for _ in range(2):
        for old, new in (("a", "x"), ("b", "a"), ("x", "b")):
            (loads.folder / f"eu/{old}.ndjson").rename(loads.folder / f"eu/{new}.ndjson")
        loads.run()
        write(loads, "eu/a.ndjson", len(loads.table) + 1)
        loads.run()

    assert loads.table == [1, 2, 3, 4]


def test_file_that_is_copied_and_cut_goes_on_under_both_names(loads):
    path = write(loads, "eu/a.ndjson", 1, 2, 3)
    loads.run()
    (loads.folder / "eu/a.1.ndjson").write_bytes(path.read_bytes())
    path.write_bytes(b"")
    loads.run()
    write(loads, "eu/a.ndjson", 4)
    loads.run()

    assert loads.table == [1, 2, 3, 4]


def test_file_that_is_gone_is_normal_where_its_rows_were_committed_and_an_error_where_not(loads):
    path = write(loads, "eu/a.ndjson", 1, 2, 3)
    write(loads, "eu/b.ndjson", 4)
    loads.run(dies_after=1)
    path.unlink()
    with pytest.raises(SnowpipeError, match=r"a\.ndjson"):
        loads.run()
    write(loads, "eu/a.ndjson", 1, 2, 3)
    loads.run()
    path.unlink()
    write(loads, "us/a.ndjson", 5)
    loads.run()

    assert sorted(loads.table) == [1, 2, 3, 4, 5]


def test_corrected_file_is_loaded_where_no_row_of_it_is_committed(loads):
    path = write(loads, "eu/a.ndjson", 1, 2, 3)
    loads.run(dies_after=0)
    path.write_text('{"ID": 7}\n')
    loads.run()

    assert loads.table == [7]


@pytest.mark.parametrize(("policy", "rows"), [("reload", [1, 2, 7]), ("ignore", [1, 2])])
def test_changed_file_is_loaded_again_or_left_out_as_its_policy_is(loads, policy, rows):
    path = write(loads, "eu/a.ndjson", 1, 2)
    loads.run()
    path.write_text('{"ID": 7}\n')
    with pytest.raises(SnowpipeError, match=r"a\.ndjson"):
        loads.run()
    loads.spec = FileSourceSpec(str(loads.folder), on_changed_files=policy)
    loads.run()
    loads.run()

    assert loads.table == rows


@pytest.mark.parametrize(
    "spec",
    [
        {"pattern": "*.nd*"},
        {"partitions": "all", "pattern": "**/*.ndjson"},
        {"format": "text", "pattern": "*.ndjson"},
    ],
)
def test_files_that_another_load_of_the_table_has_are_refused(loads, spec):
    write(loads, "eu/a.ndjson", 1)
    loads.run()
    other = Loads(loads.folder, **spec)
    other.bindings = dict(loads.bindings)
    with pytest.raises(SnowpipeError, match=r"loaded into this table|another binding"):
        other.run()
    assert other.table == []


def test_lost_log_is_another_source_and_an_older_one_is_refused(loads):
    write(loads, "eu/a.ndjson", 1)
    loads.run()
    (log,) = (loads.folder / LOG_FOLDER).iterdir()
    before = {path.name: path.read_bytes() for path in log.iterdir()}
    write(loads, "eu/b.ndjson", 2)
    loads.run()
    for path in log.iterdir():
        if path.name not in before:
            path.unlink()
    (loads.folder / "eu/b.ndjson").unlink()
    with pytest.raises(SnowpipeError, match="earlier state"):
        loads.run()
    for path in log.iterdir():
        path.unlink()
    with pytest.raises(SourceChangedError):
        loads.run()
    assert loads.table == [1, 2]


def test_log_may_be_elsewhere_and_is_named_where_it_cannot_be_written(loads, tmp_path_factory):
    write(loads, "eu/a.ndjson", 1)
    elsewhere = tmp_path_factory.mktemp("log")
    loads.spec = FileSourceSpec(str(loads.folder), log_path=str(elsewhere))
    loads.run()
    assert not (loads.folder / LOG_FOLDER).exists()
    assert len(list(elsewhere.iterdir())) == 1

    (elsewhere / "file").write_text("")
    loads.spec = FileSourceSpec(str(loads.folder), log_path=str(elsewhere / "file"))
    with pytest.raises(SnowpipeError, match="log_path"):
        loads.run()


def events(numbers: range) -> list[dict[str, Any]]:
    return [{"event": "committed", "number": number, "after_line": 0} for number in numbers]


def test_of_racing_planners_one_at_a_time_adds_an_entry_and_none_is_lost_by_snapshots(tmp_path):
    store = LogStore(LocalStorage(str(tmp_path / "log")), "/in", TARGET)

    def add(worker: int) -> int:
        added = 0
        while added < 20:
            log = store.read()
            added += (
                store.append(log, events(range(worker * 100 + added, worker * 100 + added + 1))) is not None
            )
        return added

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(add, range(4))) == 80

    log = store.read()
    assert log.number == 80
    assert sorted(log.committed()) == sorted(worker * 100 + one for worker in range(4) for one in range(20))
    assert len(list((tmp_path / "log").iterdir())) < 30


def test_entry_of_a_planner_that_read_before_a_snapshot_is_void(tmp_path):
    store = LogStore(LocalStorage(str(tmp_path / "log")), "/in", TARGET)
    early = store.append(store.read(), events(range(1)))
    log = early
    for number in range(1, 30):
        log = store.append(log, events(range(number, number + 1)))

    assert store.append(early, events(range(99, 100))) is None
    assert sorted(store.read().committed()) == list(range(30))


@pytest.mark.parametrize("damage", ["cut", "lost", "other"])
def test_damaged_log_is_an_error_that_names_it(loads, damage):
    for number in range(3):
        write(loads, f"eu/{number}.ndjson", number)
        loads.run()
    (log,) = (loads.folder / LOG_FOLDER).iterdir()
    second = sorted(log.iterdir())[1]
    if damage == "lost":
        second.unlink()
    elif damage == "cut":
        second.write_bytes(second.read_bytes()[:50])
    else:
        other = LogStore(LocalStorage(str(loads.folder / "x")), "/in", TARGET)
        added = other.append(other.append(other.read(), events(range(1))), events(range(1)))
        assert added is not None
        second.write_bytes(sorted((loads.folder / "x").iterdir())[1].read_bytes())
    with pytest.raises(SnowpipeError, match="damaged"):
        loads.run()


@pytest.mark.parametrize("policy", ["archive", "delete"])
def test_files_are_cleaned_up_when_all_of_them_is_committed(loads, tmp_path_factory, policy):
    done = tmp_path_factory.mktemp("done")
    options = {"archive_path": str(done)} if policy == "archive" else {}
    loads.spec = FileSourceSpec(str(loads.folder), after_commit=policy, **options)
    paths = [write(loads, f"eu/{name}.ndjson", number, number + 1) for number, name in ((1, "a"), (3, "b"))]
    loads.run(dies_after=1)
    assert all(path.exists() for path in paths)
    write(loads, "eu/a.ndjson", 5)
    loads.run()
    assert not any(path.exists() for path in paths)
    archived = [path.relative_to(done).as_posix() for path in sorted(done.rglob("*.ndjson"))]
    assert archived == (["eu/a.ndjson", "eu/b.ndjson"] if policy == "archive" else [])

    write(loads, "us/c.ndjson", 6)
    loads.run()
    loads.run()
    assert loads.table == [1, 2, 3, 4, 5, 6]


def test_committed_file_is_kept_for_its_retention_and_while_it_grows(loads):
    loads.spec = FileSourceSpec(str(loads.folder), after_commit="delete", retention=3600)
    path = write(loads, "eu/a.ndjson", 1)
    loads.run()
    loads.spec = FileSourceSpec(
        str(loads.folder), after_commit="delete", format={"type": "ndjson", "growing": True}
    )
    path.write_bytes(path.read_bytes() + b'{"ID": 2}')
    loads.run()
    assert path.exists()

    path.write_bytes(path.read_bytes() + b"\n")
    loads.run()
    assert (path.exists(), loads.table) == (False, [1, 2])


def test_changed_file_that_is_left_out_is_not_cleaned_up(loads):
    path = write(loads, "eu/a.ndjson", 1)
    loads.run()
    path.write_text('{"ID": 7}\n')
    loads.spec = FileSourceSpec(str(loads.folder), after_commit="delete", on_changed_files="ignore")
    loads.run()

    assert (path.exists(), loads.table) == (True, [1])


def test_archive_name_that_is_taken_gets_the_number_of_the_unit(loads, tmp_path_factory):
    done = tmp_path_factory.mktemp("done")
    (done / "eu").mkdir()
    (done / "eu/a.ndjson").write_text("before")
    loads.spec = FileSourceSpec(str(loads.folder), after_commit="archive", archive_path=str(done))
    write(loads, "eu/a.ndjson", 1)
    loads.run()

    assert sorted(path.name for path in (done / "eu").iterdir()) == ["a.ndjson", "a.ndjson.1"]


@pytest.mark.parametrize(
    "spec",
    [
        {"after_commit": "archive"},
        {"archive_path": "/done"},
        {"after_commit": "archive", "archive_path": "/in/done"},
        {"after_commit": "archive", "archive_path": "s3://b/done"},
        {"after_commit": "delete", "retention": -1},
    ],
    ids=str,
)
def test_cleaning_that_cannot_be_is_refused(spec):
    with pytest.raises(ConfigurationError, match=r"archive_path|retention"):
        FileSourceSpec("/in", **spec)


def test_units_that_another_run_planned_are_not_marked_by_this_one(loads):
    """A second run plans and commits while the first one reads."""
    write(loads, "eu/a.ndjson", 1)
    first, partitions = loads.plan()
    write(loads, "eu/b.ndjson", 2, 3)
    loads.run(dies_after=2)
    first.mark_complete({"eu": loads.committed["eu"]})
    loads.run()

    assert loads.table == [1, 2, 3]
    assert sorted(partitions["eu"].group.committed) == []


@pytest.mark.parametrize("policy", ["fail", "ignore", "reload"])
def test_correction_of_a_file_whose_rows_were_in_flight_is_refused(loads, policy):
    path = write(loads, "eu/a.ndjson", 1, 2, 3)
    loads.spec = FileSourceSpec(str(loads.folder), on_changed_files=policy)
    loads.run(dies_after=1)
    seen, loads.committed = dict(loads.committed), {}
    path.write_text('{"ID": 7}\n')
    _, partitions = loads.plan()
    loads.committed = seen

    with pytest.raises(SnowpipeError, match="replaced"):
        partitions["eu"].resume(seen["eu"])
    with pytest.raises(SnowpipeError):
        loads.run()


def test_rows_that_were_not_committed_when_their_file_was_replaced_are_missed_by_reload(loads):
    path = write(loads, "eu/a.ndjson", 1, 2, 3)
    loads.spec = FileSourceSpec(str(loads.folder), on_changed_files="reload")
    loads.run(dies_after=1)
    path.write_text('{"ID": 7}\n')
    with pytest.raises(SnowpipeError, match="replaced"):
        loads.run()


def test_name_of_a_file_that_was_deleted_may_be_used_again(loads):
    loads.spec = FileSourceSpec(str(loads.folder), after_commit="delete")
    for number in (1, 2):
        path = write(loads, "eu/a.ndjson", number)
        loads.run()
        assert not path.exists()
    write(loads, "eu/a.ndjson", 2)
    loads.run()

    assert loads.table == [1, 2, 2]


def test_rows_that_are_loaded_again_are_not_cleaned_up_before_they_are_committed(loads):
    path = write(loads, "eu/a.ndjson", 1, 2, 3)
    loads.run()
    loads.spec = FileSourceSpec(str(loads.folder), after_commit="delete")
    loads.committed = {}
    source, _ = loads.plan()
    source.mark_complete({})

    assert path.exists()


def test_file_that_is_ignored_is_named_and_is_refused_where_rows_of_it_are_missing(loads, caplog):
    path = write(loads, "eu/a.ndjson", 1, 2, 3)
    loads.spec = FileSourceSpec(str(loads.folder), on_changed_files="ignore")
    loads.run(dies_after=1)
    before = path.read_bytes()
    path.write_text('{"ID": 7}\n')
    with pytest.raises(SnowpipeError):
        loads.run()
    path.write_bytes(before)
    loads.run()
    path.write_text('{"ID": 7}\n')
    loads.run()

    assert loads.table == [1, 2, 3]
    assert "a.ndjson" in caplog.text


def test_many_entries_are_read_in_the_order_of_their_numbers(loads):
    for number in range(60):
        write(loads, "eu/a.ndjson", number)
        loads.run()
    assert loads.table == list(range(60))
    assert str(loads.committed["eu"]) == "60/a.ndjson:60"


def test_token_that_was_set_back_loads_again_what_the_log_has_as_committed(loads):
    write(loads, "eu/a.ndjson", 1, 2, 3)
    write(loads, "eu/b.ndjson", 4)
    loads.run(dies_after=1)
    behind = loads.committed["eu"]
    loads.run()
    loads.committed["eu"] = behind
    (partition,) = loads.source().partitions()

    assert not partition.is_done(behind)
    loads.run()
    assert loads.table == [1, 2, 3, 4, 3, 4]


def test_earlier_log_is_refused_also_where_new_files_take_its_numbers(loads):
    write(loads, "eu/a.ndjson", 1)
    loads.run()
    (log,) = (loads.folder / LOG_FOLDER).iterdir()
    before = {path.name for path in log.iterdir()}
    for name, number in (("b", 2), ("d", 3)):
        write(loads, f"eu/{name}.ndjson", number)
        loads.run()
    for path in log.iterdir():
        if path.name not in before:
            path.unlink()
    write(loads, "eu/c.ndjson", 4)
    with pytest.raises(SnowpipeError, match="earlier state"):
        loads.run()


def test_record_of_csv_that_was_not_complete_is_a_change_and_blanks_of_its_rules_are_rows(loads):
    loads.spec = FileSourceSpec(str(loads.folder), format="csv")
    path = loads.folder / "eu/a.csv"
    path.write_text("ID\n1\n")
    loads.run()
    path.write_text("ID\n1\n\n")
    loads.run()
    path.write_text("ID\n1\n\n2\n")
    loads.run()
    assert loads.table == ["1", "2"]


def test_file_without_a_row_is_known_as_loaded(loads):
    path = write(loads, "eu/a.ndjson", 1)
    blank = loads.folder / "eu/b.ndjson"
    blank.write_text("\n\n")
    loads.run()
    path.unlink()
    blank.unlink()
    write(loads, "eu/c.ndjson", 2)
    loads.run()

    assert loads.table == [1, 2]


@pytest.mark.parametrize("other", ["folder", "log_path", "link"])
def test_files_that_another_log_of_the_pipe_has_are_refused(loads, tmp_path_factory, other):
    write(loads, "eu/a.ndjson", 1)
    loads.run()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    if other == "folder":
        again = Loads(loads.folder / "eu", partitions="all")
    elif other == "log_path":
        again = Loads(loads.folder, log_path=str(elsewhere))
    else:
        (elsewhere / "link").symlink_to(loads.folder)
        again = Loads(elsewhere / "link")
        again.run()
        assert str(again.committed["eu"]) == "1/a.ndjson:1"
        return
    with pytest.raises(SourceChangedError, match="source log"):
        again.run()
    assert again.table == []


def test_a_partition_that_was_given_to_a_new_channel_is_not_given_to_another_one(tmp_path: Path) -> None:
    (tmp_path / "eu").mkdir()
    (tmp_path / "eu" / "1.ndjson").write_text('{"ID": 1}\n')
    loads = Loads(tmp_path)

    def planned() -> tuple[FileSource, FilePartition]:
        source = loads.source()
        return source, source.partitions()[0]

    def claims(plan: tuple[FileSource, FilePartition], channel: str, **options: Any) -> bool:
        return plan[0].claim({channel: plan[1]}, {channel: None}, **options)

    one, other = planned(), planned()
    assert claims(one, "d_eu")
    assert not claims(other, "e_eu")  # the log has an entry now
    with pytest.raises(SourceChangedError, match="'d_eu'"):
        claims(planned(), "e_eu")
    assert claims(planned(), "d_eu")
    assert claims(planned(), "e_eu", rebinds=True)
    with pytest.raises(SourceChangedError, match="'e_eu'"):
        claims(planned(), "d_eu")
