"""The source log: histories of a folder of files against a plain model, and what a log is as files."""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st

from airflow_provider_snowpipe.spark.sources.files.log_store import LogStore
from airflow_provider_snowpipe.spark.sources.files.partition import FilePartition
from airflow_provider_snowpipe.spark.sources.files.reader import FileSource
from airflow_provider_snowpipe.spark.sources.files.spec import LOG_FOLDER
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource as FileSourceSpec
from airflow_provider_snowpipe.spark.sources.files.storage import LocalStorage
from airflow_provider_snowpipe.streaming.errors import SnowpipeError, SourceChangedError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import Offset

TARGET = "account/pipe"
NAMES = ("9.ndjson", "10.ndjson", "b.ndjson", "a.ndjson")
PARTITIONS = ("eu", "us")
SMALL = BatchLimits(rows=2)
CORRECTION = '{"ID": 7}\n'


class Loads:
    """A folder of files, and a table with a channel for each partition."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        self.folder = folder
        self.table: list[int] = []
        self.committed: dict[str, Offset] = {}
        self.bindings: dict[str, str] = {}
        self.use(**spec)

    def use(self, **spec: Any) -> None:
        self.spec = FileSourceSpec(str(self.folder), **spec)

    def source(self) -> FileSource:
        source = FileSource(self.spec, "fail")
        source.for_target(TARGET)
        return source

    def write(self, name: str, *ids: int) -> Path:
        path = self.folder / name
        with path.open("a") as out:
            out.writelines(f'{{"ID": {one}}}\n' for one in ids)
        return path

    def load(self, **ids: int | list[int]) -> Path:
        """Write rows into a file of the partition eu, and load what is new."""
        ((name, found),) = ids.items()
        path = self.write(f"eu/{name}.ndjson", *(found if isinstance(found, list) else [found]))
        self.run()
        return path

    def rename(self, old: str, new: str) -> None:
        (self.folder / f"eu/{old}.ndjson").rename(self.folder / f"eu/{new}.ndjson")

    def log(self) -> Path:
        (log,) = (self.folder / LOG_FOLDER).iterdir()
        return log

    def plan(
        self, meanwhile: Callable[[], object] | None = None
    ) -> tuple[FileSource, dict[str, FilePartition]]:
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

    def run(self, dies_after: int | None = None, meanwhile: Callable[[], object] | None = None) -> None:
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
                lines = filter(bytes.strip, bytes(part.body).splitlines())
                self.table += [json.loads(line)["ID"] for line in lines]
                self.committed[name] = part.end
                self.bindings[name] = partition.binding.digest
        if dies_after is None:
            source.mark_complete(
                {one: self.committed[one] for one in partitions if one in self.committed}, {}
            )


class Histories(stateful.RuleBasedStateMachine):
    """Files come, grow, change, go and get other names between the runs of one load."""

    growing = False

    def __init__(self) -> None:
        super().__init__()
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self._temporary.name, "in")
        self.folder.mkdir()
        self.loads = Loads(self.folder)
        self.clean("keep")
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

    @stateful.rule(
        partition=st.sampled_from(PARTITIONS), name=st.sampled_from(NAMES), count=st.integers(0, 5),
        unfinished=st.booleans(),
    )  # fmt: skip
    def write(self, partition: str, name: str, count: int, unfinished: bool) -> None:
        """Add rows to a file, or begin it; the last line may lack its end for now where files grow."""
        path = self.folder / partition / name
        content = path.read_bytes() if path.exists() else b""
        added = b"" if not content or content.endswith(b"\n") else b"\n"
        added += self.lines(count)
        with path.open("ab") as out:
            out.write(added.removesuffix(b"\n") if unfinished else added)
        self.green = False

    @stateful.precondition(lambda self: self.files())
    @stateful.rule(data=st.data(), longer=st.integers(-1, 2))
    def replace(self, data: st.DataObject, longer: int) -> None:
        """Put other rows into a file."""
        path = self.file(data)
        self.replaced.setdefault(path, (path.read_bytes(), path.stat()))
        rows = path.read_bytes().count(b"\n") + longer
        path.write_bytes(self.lines(max(0, rows)))
        self.green = False

    @stateful.rule(policy=st.sampled_from(["keep", "archive", "delete"]))
    def clean(self, policy: str) -> None:
        """Choose what becomes of files whose rows are committed."""
        path = str(self.folder.with_name("done")) if policy == "archive" else None
        form = {"type": "ndjson", "growing": self.growing}
        self.loads.use(format=form, after_commit=policy, archive_path=path)

    @stateful.precondition(lambda self: self.files() and self.green)
    @stateful.rule(data=st.data(), seconds=st.integers(-9, 9))
    def skew(self, data: st.DataObject, seconds: int) -> None:
        """Give a file the time of another clock; it keeps its name, or would be a new file."""
        path = self.file(data)
        self.replaced.setdefault(path, (path.read_bytes(), path.stat()))
        os.utime(path, ns=(0, path.stat().st_mtime_ns + seconds * 10**9))

    @stateful.precondition(lambda self: [*self.folder.glob(f"{LOG_FOLDER}/*/e*")])
    @stateful.rule()
    def lose_an_entry(self) -> None:
        """Lose the log's last entry; it comes back where that is refused."""
        last = max(self.folder.glob(f"{LOG_FOLDER}/*/e*"))
        data = last.read_bytes()
        last.unlink()
        self.run(None, False)
        if not last.exists():
            last.write_bytes(data)

    @stateful.precondition(lambda self: self.replaced)
    @stateful.rule(data=st.data())
    def bring_back(self, data: st.DataObject) -> None:
        """Put the former content back, with its time."""
        path = data.draw(st.sampled_from(sorted(self.replaced)))
        content, found = self.replaced.pop(path)
        path.write_bytes(content)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
        self.green = False

    @stateful.precondition(lambda self: self.files())
    @stateful.rule(data=st.data(), name=st.sampled_from((*NAMES, "z.ndjson")))
    def rename(self, data: st.DataObject, name: str) -> None:
        path = self.file(data)
        if not (path.parent / name).exists() and path not in self.replaced:
            path.rename(path.parent / name)
            self.green = False

    @stateful.precondition(lambda self: self.files() and self.green)
    @stateful.rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """After a load that succeeded."""
        path = self.file(data)
        path.unlink()
        self.replaced.pop(path, None)

    @stateful.rule(dies_after=st.none() | st.integers(0, 4), races=st.booleans())
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
        self.replaced = {path: one for path, one in self.replaced.items() if path.exists()}
        self.green = dies_after is None and not races
        if dies_after is None:
            assert there <= set(self.loads.table), "rows are lost"

    @stateful.invariant()
    def no_row_is_there_twice(self) -> None:
        twice = [row for row, count in Counter(self.loads.table).items() if count > 1]
        assert not twice


class GrowingHistories(Histories):
    growing = True


@pytest.mark.parametrize("machine", [Histories, GrowingHistories])
@pytest.mark.parametrize("examples", [100, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_no_history_ends_with_success_and_rows_that_differ(machine, examples):
    stateful.run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=25 if examples > 100 else 20)
    )


@pytest.fixture
def loads(tmp_path):
    for partition in PARTITIONS:
        (tmp_path / partition).mkdir()
    return Loads(tmp_path)


class TestFilesThatAreTheSame:
    def test_that_grow_are_read_on_in_the_order_of_many_entries(self, loads):
        for number in range(30):
            loads.write(f"eu/{'b' if number == 10 else 'a'}.ndjson", number)
            loads.run()
        assert (str(loads.committed["eu"]), loads.table) == ("30/a.ndjson:29", list(range(30)))

    def test_whose_last_line_was_taken_without_its_end_may_get_it_and_no_more(self, loads):
        path = loads.write("eu/a.ndjson", 1)
        path.write_bytes(path.read_bytes() + b'{"ID": 2}')
        loads.run()
        loads.write("eu/b.ndjson", 3)
        path.write_bytes(path.read_bytes() + b'\n{"ID": 4}')
        loads.run()
        assert (str(loads.committed["eu"]), loads.table) == ("3/b.ndjson:1", [1, 2, 4, 3])
        path.write_bytes(path.read_bytes() + b', "A": 1}\n')
        with pytest.raises(SnowpipeError, match="complete"):
            loads.run()

    def test_without_a_row_are_known_as_loaded(self, loads):
        path = loads.write("eu/a.ndjson", 1)
        blank = loads.folder / "eu/b.ndjson"
        blank.write_text("\n\n")
        loads.run()
        path.unlink()
        blank.unlink()
        loads.load(c=2)
        assert loads.table == [1, 2]

    def test_blanks_behind_the_rows_of_csv_are_no_change(self, loads):
        loads.use(format="csv")
        for content in ("ID\n1\n", "ID\n1\n\n", "ID\n1\n\n2\n"):
            (loads.folder / "eu/a.csv").write_text(content)
            loads.run()
        assert loads.table == ["1", "2"]


class TestFilesThatChanged:
    def test_are_gone_after_their_rows_were_committed_or_missing(self, loads):
        path = loads.write("eu/a.ndjson", 1, 2, 3)
        loads.write("eu/b.ndjson", 4)
        loads.run(dies_after=1)
        path.unlink()
        with pytest.raises(SnowpipeError, match=r"a\.ndjson"):
            loads.run()
        loads.load(a=[1, 2, 3])
        path.unlink()
        loads.write("us/a.ndjson", 5)
        loads.run()
        assert sorted(loads.table) == [1, 2, 3, 4, 5]

    def test_before_a_row_was_committed_are_loaded_as_they_are_now(self, loads):
        path = loads.write("eu/a.ndjson", 1, 2, 3)
        loads.run(dies_after=0)
        path.write_text(CORRECTION)
        loads.run()
        assert loads.table == [7]

    @pytest.mark.parametrize(("policy", "rows"), [("reload", [1, 2, 7]), ("ignore", [1, 2])])
    def test_are_loaded_again_or_left_out_and_named(self, loads, caplog, policy, rows):
        path = loads.load(a=[1, 2])
        path.write_text(CORRECTION)
        with pytest.raises(SnowpipeError, match=r"a\.ndjson"):
            loads.run()
        loads.use(on_changed_files=policy, after_commit="delete")
        loads.run()
        loads.run()
        assert (loads.table, path.exists()) == (rows, policy == "ignore")
        assert ("a.ndjson" in caplog.text) is (policy == "ignore")

    @pytest.mark.parametrize("policy", ["fail", "ignore", "reload"])
    def test_while_rows_of_them_are_missing_are_refused_also_in_flight(self, loads, policy):
        path = loads.write("eu/a.ndjson", 1, 2, 3)
        loads.use(on_changed_files=policy)
        loads.run(dies_after=1)
        seen = dict(loads.committed)
        path.write_text(CORRECTION)
        with pytest.raises(SnowpipeError, match="replaced" if policy == "reload" else None):
            loads.run()

        loads.committed = {}  # as a status of before the commit has it
        _, partitions = loads.plan()
        loads.committed = seen
        with pytest.raises(SnowpipeError, match="replaced"):
            partitions["eu"].resume(seen["eu"])
        with pytest.raises(SnowpipeError):
            loads.run()


class TestOtherLoads:
    @pytest.mark.parametrize(
        "spec",
        [
            {"pattern": "*.nd*"},
            {"partitions": "all", "pattern": "**/*.ndjson"},
            {"format": "text", "pattern": "*.ndjson"},
        ],
    )
    def test_of_the_same_files_into_the_table_are_refused(self, loads, spec):
        loads.load(a=1)
        other = Loads(loads.folder, **spec)
        other.bindings = dict(loads.bindings)
        with pytest.raises(SnowpipeError, match=r"table|binding"):
            other.run()
        assert other.table == []

    def test_of_a_file_by_a_second_link_are_refused(self, loads):
        (loads.folder / "eu/b.ndjson").hardlink_to(loads.write("eu/a.ndjson", 1))
        with pytest.raises(SnowpipeError, match="twice"):
            loads.run()

    def test_of_the_same_files_by_another_log_are_refused(self, loads, tmp_path_factory):
        loads.load(a=1)
        elsewhere = tmp_path_factory.mktemp("elsewhere")
        for again in (
            Loads(loads.folder / "eu", partitions="all"),
            Loads(loads.folder, log_path=str(elsewhere)),
        ):
            with pytest.raises(SourceChangedError, match="source log"):
                again.run()
            assert again.table == []
        (elsewhere / "link").symlink_to(loads.folder)
        linked = Loads(elsewhere / "link")
        linked.run()
        assert str(linked.committed["eu"]) == "1/a.ndjson:1"
        loads.write("us/a.ndjson", 2)
        Loads(loads.folder / "us", partitions="all").run()
        with pytest.raises(SourceChangedError, match="source log"):
            loads.run()

    def test_by_another_channel_take_a_partition_only_by_rebinding(self, loads):
        loads.write("eu/1.ndjson", 1)

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
        assert claims(planned(), "e_eu", rebind="continue")
        for log, last in (("another", 1), (planned()[0].log.log_id, 9)):
            with pytest.raises(SourceChangedError, match=log):
                claims(planned(), "e_eu", logs={log: last})
        restart: dict[str, Any] = {"logs": {"another": 1}, "rebind": "restart"}
        assert not claims(planned(), "e_eu", **restart)  # the log says now that it is in its place
        assert claims(planned(), "e_eu", **restart)
        with pytest.raises(SourceChangedError, match="'e_eu'"):
            claims(planned(), "d_eu")


class TestLog:
    def test_of_an_earlier_state_is_refused_and_a_lost_one_is_another_source(self, loads):
        loads.load(a=1)
        log = loads.log()
        before = set(log.iterdir())
        added = [loads.load(b=2), loads.load(d=3)]
        for path in {*log.iterdir()} - before:
            path.unlink()

        def refuse():
            with pytest.raises(SnowpipeError, match="earlier state"):
                loads.run()

        refuse()
        loads.write("eu/c.ndjson", 4)  # it takes a number that was given to another file
        refuse()
        for path in (*added, loads.folder / "eu/c.ndjson"):
            path.unlink()
        refuse()
        for path in log.iterdir():
            path.unlink()
        with pytest.raises(SourceChangedError):
            loads.run()
        assert loads.table == [1, 2, 3]

    def test_may_be_elsewhere_and_is_named_where_it_cannot_be_written(self, loads, tmp_path_factory):
        loads.write("eu/a.ndjson", 1)
        elsewhere = tmp_path_factory.mktemp("log")
        loads.use(log_path=str(elsewhere))
        loads.run()
        assert not (loads.folder / LOG_FOLDER).exists()
        assert len(list(elsewhere.iterdir())) == 1
        (elsewhere / "file").write_text("")
        loads.use(log_path=str(elsewhere / "file"))
        with pytest.raises(SnowpipeError, match="log_path"):
            loads.run()

    def test_ahead_of_a_token_that_was_set_back_loads_its_rows_again(self, loads):
        loads.write("eu/a.ndjson", 1, 2, 3)
        loads.write("eu/b.ndjson", 4)
        loads.run(dies_after=1)
        behind = loads.committed["eu"]
        loads.run()
        loads.committed["eu"] = behind
        (partition,) = loads.source().partitions()
        assert not partition.is_done(behind)
        loads.run()
        assert loads.table == [1, 2, 3, 4, 3, 4]


def events(*numbers: int) -> list[dict[str, Any]]:
    return [{"event": "committed", "number": number, "after_line": 0} for number in numbers]


def test_of_racing_planners_one_at_a_time_adds_an_entry_and_none_is_lost_by_snapshots(tmp_path):
    store = LogStore(LocalStorage(str(tmp_path / "log")), "/in", TARGET)
    early = store.append(store.read(), events(999))

    def add(worker: int) -> int:
        added = 0
        while added < 10:
            added += store.append(store.read(), events(worker * 100 + added)) is not None
        return added

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(add, range(4))) == 40

    expected = [*(worker * 100 + one for worker in range(4) for one in range(10)), 999]
    log = store.read()
    assert (log.number, sorted(log.committed())) == (41, expected)
    assert len(list((tmp_path / "log").iterdir())) < 30
    assert store.append(early, events(1_000)) is None  # a snapshot took the place of its entry
    assert sorted(store.read().committed()) == expected


class TestCleaning:
    @pytest.mark.parametrize("policy", ["archive", "delete"])
    def test_comes_when_all_of_the_files_is_committed(self, loads, tmp_path_factory, policy):
        done = tmp_path_factory.mktemp("done")
        (done / "eu").mkdir()
        (done / "eu/b.ndjson").write_text("an older one")
        loads.use(after_commit=policy, **({"archive_path": str(done)} if policy == "archive" else {}))
        paths = [loads.write(f"eu/{name}.ndjson", at, at + 1) for at, name in ((1, "a"), (3, "b"))]
        loads.run(dies_after=1)
        assert all(path.exists() for path in paths)
        loads.load(a=5)
        assert not any(path.exists() for path in paths)
        archived = {path.relative_to(done).as_posix() for path in done.rglob("*.*")} - {"eu/b.ndjson"}
        assert archived == ({"eu/a.ndjson", "eu/b.ndjson.2"} if policy == "archive" else set())

        loads.write("eu/a.ndjson", 5)  # a name that was used
        loads.run()
        loads.run()
        assert loads.table == [1, 2, 3, 4, 5, 5]

    def test_waits_for_the_retention_and_the_end_of_a_line_that_grows(self, loads):
        loads.use(after_commit="delete", retention=3600)
        path = loads.load(a=1)
        loads.use(after_commit="delete", format={"type": "ndjson", "growing": True})
        path.write_bytes(path.read_bytes() + b'{"ID": 2}')
        loads.run()
        assert path.exists()
        path.write_bytes(path.read_bytes() + b"\n")
        loads.run()
        assert (path.exists(), loads.table) == (False, [1, 2])

    def test_waits_for_rows_that_are_loaded_again(self, loads):
        path = loads.load(a=[1, 2, 3])
        loads.use(after_commit="delete")
        loads.committed = {}
        source, _ = loads.plan()
        source.mark_complete({}, {})
        assert path.exists()
