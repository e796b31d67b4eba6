"""Histories of a folder that is streamed, copied and given to a pipe, in turn and at once: each row is once.

Between and during the loads anything happens: workers die at any call, or stall and are overtaken by a load
that takes another way, files come, grow, change, go and get other names.
"""

import itertools
import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from hypothesis import settings, stateful
from hypothesis import strategies as st

from airflow_provider_snowpipe.spark.sources.files.reader import FileSource
from airflow_provider_snowpipe.streaming.checkpoint import ChannelSource
from airflow_provider_snowpipe.streaming.errors import SnowpipeError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import UnitOffset
from tests.fake_account import AFTER, BEFORE, CrashError
from tests.unit.operators.account_in_task import task_context
from tests.unit.operators.unit_load import Load

WAYS = st.sampled_from(["stream", "copy", "pipe"])
CALLS = [None, "LEDGER", "PLAN", "LIST", "PUT", "submit", "insertFiles", "HISTORY", "AGE", "status"]
FAULT = st.none() | st.tuples(st.sampled_from(CALLS), st.sampled_from([BEFORE, AFTER]), st.integers(1, 12))
NAMES = st.sampled_from(["a/1", "a/2", "a/10", "b/1", "b/x"])


class Histories(stateful.RuleBasedStateMachine):
    key: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.temporary, self.patch = tempfile.mkdtemp(), pytest.MonkeyPatch()
        self.patch.setattr("time.sleep", lambda _: None)
        self.load = Load(Path(self.temporary, "files"), self.patch, self.key)
        self.runs, self.ids = itertools.count(1), itertools.count(1)
        self.green, self.is_whole = False, True

    def teardown(self) -> None:
        try:
            if self.is_whole:
                self.do("stream")
                assert self.do("copy"), self.error
        finally:
            self.patch.undo()
            shutil.rmtree(self.temporary)

    def files(self) -> list[Path]:
        return sorted(self.load.folder.glob("*/*.ndjson"))

    def lines(self, count: int) -> str:
        return "".join(json.dumps({"ID": next(self.ids)}) + "\n" for _ in range(count))

    @stateful.rule(name=NAMES, count=st.integers(1, 3))
    def write(self, name: str, count: int) -> None:
        """Begin a file, or append to it."""
        path = self.load.folder / f"{name}.ndjson"
        path.parent.mkdir(exist_ok=True)
        self.load.append(f"{name}.ndjson", self.lines(count))
        self.green = False

    @stateful.precondition(lambda self: self.files())
    @stateful.rule(data=st.data(), count=st.integers(1, 3))
    def replace(self, data: st.DataObject, count: int) -> None:
        data.draw(st.sampled_from(self.files())).write_text(self.lines(count))
        self.green = self.is_whole = False

    @stateful.precondition(lambda self: self.files())
    @stateful.rule(data=st.data(), name=NAMES)
    def rename(self, data: st.DataObject, name: str) -> None:
        path = data.draw(st.sampled_from(self.files()))
        other = path.with_name(f"{name[2:]}.ndjson")
        if not other.exists():
            path.rename(other)
            self.green = False

    @stateful.precondition(lambda self: self.files() and self.green)
    @stateful.rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.files())).unlink()
        self.is_whole = False  # another file of its name counts as changed

    @stateful.rule(metadata=st.sampled_from([{}, {"AT": "start_scan_time", "ROW": "file_row_number"}]))
    def edit(self, metadata: dict[str, str]) -> None:
        """Rows are staged in place of files for columns about the files."""
        self.load.metadata = metadata

    @stateful.rule(way=WAYS, fault=FAULT, dies_after=st.none() | st.integers(0, 3))
    def run(self, way: str, fault: tuple[str | None, str, int] | None, dies_after: int | None) -> None:
        if fault is not None:
            self.load.account.fault(fault[0], fault[1], CrashError(), fault[2])
        self.do(way, dies_after)

    @stateful.rule(way=WAYS, other=WAYS, nth=st.integers(1, 25))
    def overtake(self, way: str, other: str, nth: int) -> None:
        """A worker stalls before a call: another one does all of its work meanwhile."""
        self.load.account.meanwhile(None, BEFORE, lambda: self.do(other), nth)
        self.do(way)

    def do(self, way: str, dies_after: int | None = None) -> bool:
        """Load what is new; True for success, after which all rows of the files are there."""
        there = {json.loads(line)["ID"] for path in self.files() for line in path.read_text().splitlines()}
        try:
            if way == "stream":
                self.stream(dies_after)
            else:
                self.load.path = way
                self.load.run(f"r{next(self.runs)}")
            self.green = way != "stream" or dies_after is None
        except (CrashError, AirflowException, SnowpipeError) as error:
            self.green, self.error = False, error
        self.load.account.faults.clear()
        if self.green:
            assert not there - self.rows().keys(), "rows are lost"
        return self.green

    def stream(self, dies_after: int | None) -> None:
        """Do what the load operator and the Spark driver do on the way of a stream."""
        operator, channels = self.load.operator(path="stream"), self.load.channels
        units = operator.units()
        if units.source.given():
            operator._file_loading(task_context(f"r{next(self.runs)}")).finish(units)
        spec = operator.source_files()
        assert spec is not None
        source = FileSource(spec, "fail")
        source.for_target(self.load.target)
        for _ in range(9):
            found = {f"p_s_{one.name}": one for one in source.partitions()}
            sources = {name: ChannelSource(UnitOffset, one.binding) for name, one in found.items()}
            sessions = {name: channels.open_channel(name).continuation_token for name in found}
            statuses = channels.channel_statuses([*found]).items()
            starts = {name: sources[name].start(one) for name, one in statuses}
            for name, one in found.items():
                one.check(starts[name].position)
            if source.claim(found, {name: one.position for name, one in starts.items()}):
                break
        sent = 0
        for name, one in found.items():
            rows, resume_at = starts[name].rows, one.resume(starts[name].position)
            for part in () if resume_at is None else one.read(resume_at, BatchLimits(rows=2)):
                if sent == dies_after:
                    return
                sent, lines = sent + 1, [line for line in bytes(part.body).decode().splitlines() if line]
                rows += len(lines)
                session = int(sessions[name].split("_")[0])
                if not channels.stream(name, sources[name].token(part.end, rows, 0), *lines, session=session):
                    raise CrashError
        statuses = channels.channel_statuses([*found]).items()
        source.mark_complete(
            {found[name].name: sources[name].start(one).position for name, one in statuses}, {}
        )

    @stateful.invariant()
    def no_row_is_there_twice(self) -> None:
        assert [row for row, count in self.rows().items() if count > 1] == []

    def rows(self) -> Counter[int]:
        return Counter(json.loads(row)["ID"] for row in self.load.account.rows)


@pytest.mark.parametrize("histories", [25, pytest.param(2_000, marks=pytest.mark.nightly)])
def test_no_history_ends_green_with_rows_that_differ(histories: int, key_pair: Any) -> None:
    machine = type("Machine", (Histories,), {"key": key_pair})
    stateful.run_state_machine_as_test(
        machine, settings=settings(max_examples=histories, stateful_step_count=12)
    )
