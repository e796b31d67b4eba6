"""``airflow snowpipe files rebuild`` against a local service: the next run loads what was not committed."""

import json
import os
import shutil
import time

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_snowpipe.cli.definition import parser
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.spark.sources.files.partition import FilePartition
from airflow_provider_snowpipe.spark.sources.files.spec import LOG_FOLDER, Ndjson
from airflow_provider_snowpipe.streaming.errors import SnowpipeError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.loaded_folder import new, variables
from tests.local_connection import ids
from tests.unit.operators.account_in_task import task_context

__all__ = ["new", "variables"]


@pytest.fixture
def load(new):
    new.run()
    return new


def lose_log(load):
    shutil.rmtree(load.folder / LOG_FOLDER)


def rebuild(load, *more):
    pipe = ("--conn-id", load.conn_id, "--table", load.table, "-y", *more)
    words = ("files", "rebuild", str(load.folder), *pipe)
    given = parser().parse_args(words)
    given.func(given)


def rows(load):
    return sorted(ids(load.service, load.table))


def all_rows(load):
    """The rows of all files that were ever written."""
    files = load.folder.rglob("*.ndjson")
    return sorted(json.loads(line)["ID"] for one in files for line in one.read_text().splitlines())


def test_files_that_came_later_are_loaded_and_no_committed_one_again(load):
    load.write("a/10.ndjson")
    load.write("c/1.ndjson")
    load.run()
    lose_log(load)
    for name in ("a/0.ndjson", "a/3.ndjson", "b/0.ndjson", "d/1.ndjson"):
        load.write(name)
    rebuild(load)
    load.run()
    load.run()
    assert rows(load) == all_rows(load)
    assert load.audit() == []
    load.write("a/3.ndjson")
    load.run()
    assert rows(load) == all_rows(load)


def test_a_channel_that_stands_in_the_middle_goes_on_there(load, monkeypatch):
    """The run before ends in the middle of a file, once three rows of the partition are sent."""
    for name in ("a/3.ndjson", "a/4.ndjson"):
        load.write(name)
    read = FilePartition.read

    def stopping(self, resume_at, _):
        for number, part in enumerate(read(self, resume_at, BatchLimits(rows=1))):
            if self.name == "a" and number == 4:
                raise SourcePositionError("stopped")
            yield part

    with monkeypatch.context() as patched:
        patched.setattr(FilePartition, "read", stopping)
        load.rules = {"limits": BatchLimits(rows=1)}
        with pytest.raises(SnowpipeError, match="stopped"):
            load.run()
    load.rules = {}
    lose_log(load)
    with pytest.raises(SystemExit, match="--unchanged"):
        rebuild(load)
    rebuild(load, "--unchanged")
    load.run()
    assert rows(load) == all_rows(load)


def test_what_cannot_be_known_is_refused_and_nothing_is_written(load):
    lose_log(load)
    first, last = load.folder / "a/1.ndjson", load.folder / "a/2.ndjson"
    good, text = first.read_text(), last.read_text()
    for change, named in (
        (lambda: first.write_text('{"ID": 70}\n'), "changed"),
        (first.unlink, "gone"),
        (lambda: [first.write_text(good), last.unlink()], "2.ndjson.* gone"),
        (lambda: last.write_text(text), "2.ndjson.* written"),
    ):
        change()
        with pytest.raises(SystemExit, match=named):
            rebuild(load)
        assert not (load.folder / LOG_FOLDER).exists()


def test_a_last_file_that_may_have_grown_needs_an_agreement_since_another_may_have_its_name(new):
    new.form = Ndjson(growing=True)
    new.run()
    lose_log(new)
    new.write("a/2.ndjson", rows=2)
    os.utime(new.folder / "a/2.ndjson", (time.time() + 60, time.time() + 60))
    with pytest.raises(SystemExit, match=r"2\.ndjson.*--unchanged"):
        rebuild(new)
    assert not (new.folder / LOG_FOLDER).exists()
    rebuild(new, "--unchanged")
    new.run()
    assert rows(new) == all_rows(new)


def test_a_table_that_shows_the_files_of_rows_decides_where_others_are_gone(new):
    new.sql("ALTER TABLE {T} ADD COLUMN SRC VARCHAR, NR INTEGER")
    new.metadata = {"SRC": "filename", "NR": "file_row_number"}
    new.run()
    before = all_rows(new)
    lose_log(new)
    for name in ("a/2.ndjson", "b/1.ndjson"):
        (new.folder / name).unlink()
    for name in ("a/0.ndjson", "a/3.ndjson"):
        new.write(name)
    rebuild(new)
    new.run()
    new.run()
    assert rows(new) == sorted({*before, *all_rows(new)})

    lose_log(new)
    new.sql("DELETE FROM {T} WHERE SRC = 'a/1.ndjson' AND NR = 3")
    with pytest.raises(SystemExit, match="row 2 only"):
        rebuild(new)


ADD, TAKE = "INSERT INTO {{T}} (SRC, NR, ID) VALUES ('c/1.ndjson', {}, -1)", "DELETE FROM {T} WHERE ID = -1"
CHANGES = [
    (ADD.format(2), TAKE, "twice: 1 row of c/1.ndjson"), (ADD.format(9), TAKE, "1 more are there"),
    ("UPDATE {T} SET SRC = 'x' WHERE SRC = 'c/1.ndjson' AND NR = 2",
     "UPDATE {T} SET SRC = 'c/1.ndjson' WHERE SRC = 'x'", "1 are not in the table"),
]  # fmt: skip


@pytest.mark.parametrize(
    "metadata", [{"SRC": "filename", "NR": "file_row_number"}, pytest.param(None, marks=pytest.mark.nightly)]
)
def test_what_copy_has_loaded_is_known_to_the_new_log(new, metadata):
    load, load.metadata = new, metadata
    load.sql("ALTER TABLE {T} ADD COLUMN SRC VARCHAR, NR INTEGER")
    load.run()

    def copy(ledger=None):
        task = SnowpipeLoadOperator(
            task_id="copy", source=load.source().as_json(), path="copy", table=load.table,
            channel_prefix="d", snowflake_conn_id=load.conn_id, ledger_table=ledger,
        )  # fmt: skip
        task.execute(task_context())

    for name, ledger in (("a/0.ndjson", None), ("c/1.ndjson", f"{load.table}_LOADS")):
        load.write(name)
        copy(ledger)
    for change, undo, words in CHANGES if metadata else ():
        load.sql(change)
        assert [words in one for one in load.audit("rows")].count(True) == 1
        load.sql(undo)
    lose_log(load)
    for name in ("a/3.ndjson", "c/0.ndjson"):
        load.write(name)
    (load.folder / "c/1.ndjson").rename(load.folder / "c/9.ndjson")
    for again in (load.run, copy):
        with pytest.raises((SnowpipeError, AirflowFailException), match="files rebuild"):
            again()
    rebuild(load)
    copy()
    load.write("a/0.ndjson")
    load.run()
    copy()
    assert rows(load) == all_rows(load)
    assert load.audit("rows") == []


def test_a_log_that_is_there_is_left_alone_and_an_interrupted_rebuild_is_finished(load, monkeypatch):
    with pytest.raises(SystemExit, match="not lost"):
        rebuild(load)
    lose_log(load)
    tokens = load.hook().channel_statuses(["d_src_a"])
    rebuild(load)
    load.hook().set_offset_token("d_src_a", str(tokens["d_src_a"].committed))
    rebuild(load)
    load.write("a/3.ndjson")
    load.run()
    assert rows(load) == all_rows(load)
