"""A run that finds no new row ends without Spark; a script stands in for it and counts its starts."""

import datetime as dt
import gzip
import json
from dataclasses import replace
from unittest.mock import Mock

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_snowpipe.operators import client_job, source_record
from airflow_provider_snowpipe.operators.client_job import DriverMemory
from airflow_provider_snowpipe.operators.source_record import LoadedSource, SeenChannel, SourceRecord
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.operators.submission import targets_of, value_of
from airflow_provider_snowpipe.spark.driver.report import RunReport
from airflow_provider_snowpipe.spark.driver.run import Run
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource
from airflow_provider_snowpipe.spark.sources.registry import open_source, source_spec
from airflow_provider_snowpipe.spark.sources.tables.spec import TableSource
from airflow_provider_snowpipe.spark.submit import local_spark
from airflow_provider_snowpipe.streaming.checkpoint import Binding
from airflow_provider_snowpipe.streaming.errors import (
    PipeNotFoundError,
    RecordUnavailableError,
    RetriesExhaustedError,
)
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.progress import ChannelStatus
from tests.airflow_version import AIRFLOW
from tests.checkpoints import loaded, shown, source_of
from tests.fake_snowpipe import PIPE, URL, error
from tests.loaded_folder import variables
from tests.memory_source import InProcessSpark
from tests.source_log import taken, unit_offset, unit_token
from tests.unit.operators.conftest import StreamLab

__all__ = ["variables"]

DRIVER = """#!/bin/bash
echo -n x >> NOTES/runs; cp "${@: -1}" NOTES/plan.json; exit 1
"""
TARGET = PIPE.address(URL)
CHANNELS = {"p_src_a": "2.ndjson:2", "p_src_b": "1.ndjson:1"}


class Lab(StreamLab):
    """A load of files all of which the first run has committed."""

    def __init__(self, folder, make, snowpipe):
        self.source, self.snowpipe = folder / "src", snowpipe
        super().__init__(folder, make, source={"path": str(self.source)})
        self.script(DRIVER)
        for name, rows in (("a/1.ndjson", 3), ("a/2.ndjson", 2), ("b/1.ndjson", 1)):
            self.write(name, rows)
        for channel, position in CHANNELS.items():
            self.stands(channel, position)

    def stands(self, channel, position):
        """Let a channel have committed its partition up to a position."""
        spec = FileSource(path=str(self.source))
        found = taken(spec, TARGET)[channel[-1]]
        state = loaded(unit_offset(found, position), 5, binding=found.binding)
        self.snowpipe.channel(channel, **state)

    def write(self, name, rows, mode="w"):
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.write('{"ID": 1}\n' * rows)
        return path

    def starts_spark(self, **options):
        """Run, and return whether Spark was started, which then fails."""
        try:
            self.execute(**options)
        except AirflowException:
            assert self.starts == 1
            return True
        assert self.starts == 0
        return False


@pytest.fixture
def lab(tmp_path, temporary_files, set_connection, make, snowpipe):
    set_connection("spark_default", conn_type="spark", host="local[2,4]")
    return Lab(tmp_path, make, snowpipe)


def test_value_and_targets_are_those_of_a_driver_that_finds_no_row(lab):
    operator = lab.operator(name="app")
    plan = operator._plan(
        operator._pipe_hook(), {"credentials_variable": "NONE"}, {}, DriverMemory({}, durable=False)
    )
    run = Run(plan, lab.snowpipe.client())
    run.prepare()
    run.load(InProcessSpark())
    run.verify()
    by_driver = RunReport("app", run.channels, 1.5)
    opened = lab.snowpipe.did("open")

    value = lab.execute(name="app")

    assert value.pop("source") == str(lab.source)
    assert {**value, "seconds": 1.5} == value_of(by_driver, PIPE, "unit/file:line")
    assert lab.ti.xcoms["targets"] == targets_of(by_driver, "unit/file:line", "abort")
    assert {name: shown(one["token"]) for name, one in lab.ti.xcoms["targets"].items()} == CHANNELS
    assert lab.starts == 0
    assert lab.snowpipe.did("open") == opened


@pytest.mark.parametrize(
    ("name", "rows", "mode"),
    [
        ("a/3.ndjson", 1, "w"),
        ("b/1.ndjson", 1, "a"),
        ("c/1.ndjson", 1, "w"),
        ("a/2.ndjson", 0, "w"),
        ("a/1.ndjson", 1, "a"),
    ],
)
def test_spark_is_started_for(lab, name, rows, mode):
    if name == "a/1.ndjson":
        lab.execute()
    lab.write(name, rows, mode)
    assert lab.starts_spark()


@pytest.mark.parametrize("reason", ["a query", "a busy service", "too many files", "another log"])
def test_spark_is_started_where_the_rows_are_not_known(lab, monkeypatch, tmp_path, reason):
    options = {}
    if reason == "a query":
        options = {"source": {"kind": "table", "table": "T", "offset_column": "ID"}}
    elif reason == "a busy service":
        lab.snowpipe.fault(before="status", error=error(503))
    elif reason == "too many files":
        monkeypatch.setattr("airflow_provider_snowpipe.spark.driver.run._QUICK_SECONDS", -1.0)
    else:
        monkeypatch.setenv("AIRFLOW__SNOWPIPE__LOG_PATH", str(tmp_path / "logs"))
        lab.snowpipe.channels.clear()

    assert lab.starts_spark(**options)
    plan = json.loads((lab.notes / "plan.json").read_text())
    assert plan["source"].get("log_path") == (str(tmp_path / "logs") if reason == "another log" else None)


@pytest.mark.parametrize(("ending", "limit", "starts"), [("", 20, False), ("", 19, True), (".gz", 159, True)])
def test_file_that_takes_long_to_read_is_left_to_spark(lab, monkeypatch, ending, limit, starts):
    monkeypatch.setattr("airflow_provider_snowpipe.spark.sources.files.partition._BYTES_A_SECOND", limit)
    path = lab.write("a/2.ndjson", 2)
    if ending:
        path.with_suffix(".ndjson.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    source = {"path": str(lab.source), "pattern": f"*.ndjson{ending}"}
    position = f"2.ndjson{ending}:2"
    lab.snowpipe.channels["p_src_a"].committed = unit_token(FileSource(**source), TARGET, "a", position, 5)
    assert lab.starts_spark(source=source) is starts


@pytest.mark.skipif(AIRFLOW < (3, 3), reason="Airflow keeps a task's state since 3.3")
def test_rejected_rows_that_nobody_has_reported_are_left_to_the_driver(lab):
    lab.snowpipe.channels["p_src_a"].rows_error_count = 3
    assert lab.starts_spark()


def test_source_that_is_split_otherwise_than_before_is_refused(lab, variables):
    """Its rows would have new channels, without a token, and be in the table twice."""
    lab.execute()
    whole = {"path": str(lab.source), "pattern": "**/*.ndjson", "partitions": "all"}
    with pytest.raises(AirflowFailException, match="SourceChangedError"):
        lab.execute(source=whole)
    assert lab.starts == 0
    assert lab.starts_spark(source=whole, rebind="restart")


def test_rebind_without_a_new_row_is_in_the_token_of_the_next_run(lab):
    found = taken(FileSource(path=str(lab.source)), TARGET)["a"]
    before = replace(found.binding, reading="text")
    token = loaded(unit_offset(found, "2.ndjson:2"), 5, binding=before)["committed"]
    lab.snowpipe.channels["p_src_a"].committed = token
    assert not lab.starts_spark(rebind="continue")
    assert not lab.starts_spark()
    assert shown(lab.snowpipe.channels["p_src_a"].committed) == "2.ndjson:2"


def test_record_that_is_there_and_cannot_be_read_is_an_error(lab, variables, monkeypatch):
    """An expired channel would look like that of a new partition. Airflow gives the default in that case."""
    lab.execute()

    def silent(prefix):
        raise ConnectionError("no route")

    with monkeypatch.context() as patch:
        patch.setattr(source_record.Variable, "get", staticmethod(lambda key, default=None: default))
        with pytest.raises(RecordUnavailableError):
            lab.execute()
        patch.setattr(source_record.Variable, "keys", staticmethod(silent))
        with pytest.raises(RecordUnavailableError, match="no route"):
            lab.execute()
    key = next(one for one in variables if one.startswith(source_record.VARIABLE_PREFIX))
    variables[key] = "{}"
    with pytest.raises(AirflowFailException, match=key):
        lab.execute()
    assert lab.starts == 0


def test_channels_of_new_partitions_are_made_and_recorded_before_spark_starts(lab, variables, monkeypatch):
    def last():
        return SourceRecord.read(TARGET, FileSource(path=str(lab.source))).last_checkpoints() or {}

    lab.write("c/1.ndjson", 1)
    with monkeypatch.context() as patch:
        patch.setattr(source_record.Variable, "set", Mock(side_effect=ConnectionError("no route")))
        with pytest.raises(RecordUnavailableError, match="no route"):
            lab.execute()
    assert lab.starts == 0
    assert lab.starts_spark()
    ((channel, token),) = last().values()
    assert (channel, "NULL-1700000000000" in token) == ("p_src_c", True)
    del lab.snowpipe.channels["p_src_c"]
    lab.stands("p_src_c", "1.ndjson:1")
    lab.execute()
    assert {name: shown(one) for name, one in last().values()} == {**CHANNELS, "p_src_c": "1.ndjson:1"}


def test_what_two_tasks_leave_of_one_source_at_a_time_is_all_kept(variables):
    spec, now = FileSource(path="/data"), dt.datetime.now(dt.UTC)
    how = LoadedSource({}, "text", "", "p_", ("DB", "S", "P"), "c", "dag", "task")
    first, second = (SourceRecord.read(TARGET, spec) for _ in range(2))
    tokens = [loaded(IntegerOffset(7), 5, binding=Binding(one))["committed"] for one in "ab"]
    first.write([SeenChannel("p_a", tokens[0], rows_before=1)], (), now, how)
    for _ in range(2):  # a task may write what it has left more than once
        second.write([SeenChannel("p_b", tokens[1], rows_before=2), SeenChannel("bare", "41")], (), now, how)
    mark = source_of(IntegerOffset, binding=Binding("c")).begun(ChannelStatus("p_c", "SUCCESS"))
    for seen, most in [("p_c", mark), 4], [("p_b", ""), 4], [("p_c", None), 4], [("p_c", ""), 3]:
        SourceRecord.read(TARGET, spec).write([SeenChannel(*seen)], (), now, how)
        assert len(SourceRecord.read(TARGET, spec).channels) == most
    left = SourceRecord.read(TARGET, spec).channels
    found = {key: (one.channel, one.token, one.rows_before) for key, one in left.items()}
    expected = [("p_a", tokens[0], 1), ("p_b", tokens[1], 2), ("bare", "41", 0)]
    assert (list(found.values()), list(found)[-1]) == (expected, "bare")
    words = "/data (text), loaded by task 'task' of DAG 'dag'"
    assert [source_record.source_of_binding(one) for one in (next(iter(left)), "0" * 10)] == [words, None]
    later = now + dt.timedelta(days=1)
    seen = [SeenChannel("p_a", tokens[0], 3), SeenChannel("p_b", tokens[1]), SeenChannel("bare", "42")]
    SourceRecord.read(TARGET, spec).write(seen, ["p_b"], later, how)
    found = [(one.since, one.rows_before) for one in SourceRecord.read(TARGET, spec).channels.values()]
    assert found == [(now, 4), (later, 2), (later, 0)], "as before, renewed, and moved"
    queries = [
        TableSource(query=text, name="q", offset_column="ID")
        for text in ("SELECT 1", "SELECT 2", "SELECT  1 ")
    ]
    others = [SourceRecord.read(TARGET, one).key for one in queries]
    keys = [SourceRecord.read(pipe, spec).key for pipe in (TARGET, f"{TARGET}2")] + others
    assert len(set(keys)) == 4, (keys, "the same query with other spaces is the same")
    assert len({SourceRecord.read(TARGET, FileSource(path=one)).key for one in ("/data", "/d/../data/")}) == 1
    assert FileSource(path="s3a://b/in/").address == FileSource(path="s3://b/in").address


class TestLocalMaster:
    """A load that is known to be small is one of Python alone."""

    @pytest.fixture(autouse=True)
    def rows_without_spark(self, monkeypatch, lab):
        """A process that leaves no report stands in for Python."""
        monkeypatch.delenv("AIRFLOW__SNOWPIPE__LOCAL_ROWS_WITHOUT_SPARK")
        program = lab.notes.parent / "python"
        program.write_text(f'#!/bin/sh\ncp "$2" {lab.notes}/plan.json; env > {lab.notes}/env; exit 1\n')
        program.chmod(0o755)
        monkeypatch.setattr(client_job.sys, "executable", str(program))

    def local_master(self, lab, **options):
        """Run, and return the master whose tasks the driver runs itself; None where Spark runs."""
        with pytest.raises(AirflowException):
            lab.execute(**options)
        if lab.starts:
            return None
        return json.loads((lab.notes / "plan.json").read_text())["local_master"]

    def test_few_rows_need_neither_spark_nor_java(self, lab, monkeypatch):
        monkeypatch.setattr(local_spark, "find_java", lambda: pytest.fail("asks for Java"))
        monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "s3cret")
        lab.write("a/3.ndjson", 1)
        assert self.local_master(lab, spark_binary="missing", env_vars={"MORE": "yes"}) == "local[2,4]"
        variables = (lab.notes / "env").read_text()
        assert ("MORE=yes" in variables, "s3cret" in variables) == (True, False)
        assert lab.snowpipe.did("open") == []

    @pytest.mark.parametrize("reason", ["another master", "many rows", "the setting"])
    def test_spark_is_started_for(self, lab, set_connection, monkeypatch, reason):
        lab.write("a/3.ndjson", 1)
        set_connection("other", conn_type="spark", host="spark://host", port=7077)
        if reason == "many rows":
            monkeypatch.setattr("airflow_provider_snowpipe.spark.driver.run._SMALL_BYTES", 9)
        if reason == "the setting":
            monkeypatch.setenv("AIRFLOW__SNOWPIPE__LOCAL_ROWS_WITHOUT_SPARK", "False")
        conn_id = "other" if reason == "another master" else "spark_default"
        assert self.local_master(lab, spark_conn_id=conn_id) is None

    def test_table_that_the_run_has_to_make_counts_all_of_a_source(self, lab, monkeypatch):
        monkeypatch.setattr(SnowpipeStreamOperator, "_prepare", lambda *_: None)
        lab.snowpipe.fault(before="status", error=PipeNotFoundError("no table", http_status=404))
        with pytest.raises(AirflowException):
            lab.execute(create_table="if_missing")
        assert lab.starts == 0

    def test_service_that_is_away_for_long_ends_the_try(self, lab, monkeypatch):
        """Without Java the error that Spark cannot start would end the task for good."""
        lab.snowpipe.fault(before="status", error=RetriesExhaustedError("no answer"))
        with pytest.raises(AirflowException, match="RetriesExhaustedError") as raised:
            lab.execute()
        assert not isinstance(raised.value, AirflowFailException)
        assert lab.starts == 0


def test_bookmark_of_a_group_moves_as_the_drivers(lab):
    pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")
    from tests.kafka_topics import MockCluster, group_offsets, numbered, produce

    cluster = MockCluster()
    cluster.make_topic("t")
    produce(cluster.address, "t", numbered(range(20)), partition=lambda row: row % 2)
    source = {"kind": "kafka", "bootstrap_servers": cluster.address, "topics": ["t"], "group_id": "g"}
    lab.snowpipe.channels.clear()
    for partition in open_source(source_spec(source), "fail").partitions()[:2]:
        lab.snowpipe.channel(f"p_{partition.name}", **loaded("9", 10, binding=partition.binding))

    assert not lab.starts_spark(source=source)
    assert group_offsets(cluster.address, "g", "t", 4) == [10, 10, 0, 0]
