"""Audit and backlog against a real local service: what was changed by hand, and what waits, is found."""

import json
import os
import time
from dataclasses import replace

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_snowpipe.cli.definition import parser
from airflow_provider_snowpipe.notifications.lag import REPORT_KEY, SnowpipeLagNotifier
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.operators.audit import AUDIT_KEY, SnowpipeAuditOperator
from airflow_provider_snowpipe.sources import KafkaSource
from airflow_provider_snowpipe.spark.submit.audit import ChannelAudit, TableRows, positions_query
from airflow_provider_snowpipe.streaming.admin import drop_channel
from airflow_provider_snowpipe.streaming.checkpoint import Checkpoint
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.loaded_folder import new, variables
from tests.local_connection import context
from tests.waiting import wait_until

__all__ = ["new", "variables"]


@pytest.fixture
def load(new):
    new.run()
    assert new.audit() == []
    return new


def test_rows_and_files_that_were_changed_by_hand_are_found(load):
    load.sql("DELETE FROM {T} WHERE ID = 0")
    assert load.differs("1 fewer")
    assert load.audit("balance") == []
    load.sql("INSERT INTO {T} (ID) VALUES (100), (101)")
    assert load.differs("1 more")
    assert load.audit(other_rows=1) == []
    load.sql("DELETE FROM {T} WHERE ID = 101")
    path = load.folder / "a/1.ndjson"
    path.write_text(path.read_text().replace("0", "7"))
    assert load.differs("changed")
    assert load.audit("balance") == []


def test_a_token_that_was_set_by_hand_and_a_channel_that_was_recreated_are_found(load):
    def token(channel):
        return str(load.hook().channel_statuses([channel])[channel].committed)

    now = Checkpoint.parse(token("d_src_a"))
    position = type(now.position).parse("2/2.ndjson:1")
    for rows in (6, 4):
        load.hook().set_offset_token("d_src_a", str(replace(now, position=position, rows=rows)))
        assert load.differs("a'", "balance")
    load.hook().set_offset_token("d_src_a", "2.ndjson:1")
    assert load.differs("not a checkpoint", "balance")
    load.hook().set_offset_token("d_src_a", str(now))
    of_b = token("d_src_b")
    with load.service.client(load.table) as client:
        drop_channel(client, "d_src_b")
        assert load.differs("no token", "balance")
        client.open_channel("d_src_b", offset_token=of_b)
    assert load.differs("3 fewer rows", "balance")


@pytest.mark.parametrize("how", ["reset", pytest.param("restart", marks=pytest.mark.nightly)])
def test_rows_that_were_deleted_and_loaded_again_are_no_difference_and_doubled_ones_are(new, how):
    new.sql("ALTER TABLE {T} ADD COLUMN SRC VARCHAR, NR INTEGER")
    new.metadata = {"SRC": "filename", "NR": "file_row_number"}
    new.run()
    now = Checkpoint.parse(str(new.hook().channel_statuses(["d_src_a"])["d_src_a"].committed))
    first = replace(now, position=type(now.position).parse("1/1.ndjson:1"))
    token, low, rebind = (
        (first, 1, None) if how == "reset" else (replace(now, binding="0" * 16), 0, "restart")
    )
    new.hook().set_offset_token("d_src_a", str(token))
    new.sql(f"DELETE FROM {{T}} WHERE ID BETWEEN {low} AND 5")
    new.run(rebind=rebind)
    assert new.audit() == new.audit("rows") == []
    new.sql("INSERT INTO {T} SELECT * FROM {T} WHERE ID = 2")
    assert new.differs("")
    assert new.differs("", "rows")
    new.sql("INSERT INTO {T} SELECT * FROM {T} WHERE ID BETWEEN 3 AND 5")
    assert any("twice" in one for one in new.audit("rows"))
    assert new.differs("")


def test_rows_that_wait_another_channel_and_what_cannot_be_compared_are_no_difference(load):
    def notes(depth):
        operator = SnowpipeAuditOperator(
            task_id="audit", table=load.table, depth=depth, snowflake_conn_id=load.conn_id
        )
        return json.dumps(operator.execute(context())["pipes"])

    load.write("a/3.ndjson")
    assert load.audit() == []
    load.run("renamed", rebind="continue")
    assert load.audit() == []
    assert "metadata" in notes("rows")
    load.folder.rename(load.folder.with_name("elsewhere"))
    assert "not read" in notes("counts")


def test_rows_that_were_put_aside_are_counted(load, tmp_path):
    load.rules = {
        "on_error": "dead_letter",
        "dead_letter_path": str(tmp_path / "aside"),
        "columns": (TableColumn("ID", "NUMBER(38,0)"), TableColumn("NAME", "TEXT")),
    }
    load.write("a/3.ndjson", '{"ID": "x"}', '{"ID": "y"}')
    load.run()
    assert load.audit() == []
    load.run("renamed", rebind="continue")
    load.write("a/3.ndjson", '{"ID": "z"}')
    load.run("renamed")
    assert load.audit() == []
    for file in (tmp_path / "aside").rglob("*.parquet"):
        file.unlink()
    assert load.differs("a'")


def test_rows_that_an_earlier_channel_rejected_were_not_deleted(load):
    load.rules = {"on_error": "continue"}
    load.write("a/3.ndjson", '{"ID": "x"}')
    load.run()
    load.run("renamed", rebind="continue")
    assert load.audit() == []


def test_rows_of_a_channel_that_was_restored_are_those_of_the_one_before(load):
    now = Checkpoint.parse(str(load.hook().channel_statuses(["d_src_a"])["d_src_a"].committed))
    with load.service.client(load.table) as client:
        drop_channel(client, "d_src_a")
        client.open_channel("d_src_a", offset_token=str(replace(now, rows=0)))
    assert load.differs("", "counts")
    for name in ("a/3.ndjson", "a/4.ndjson"):
        load.write(name)
        load.run()
        assert load.audit() == []


@pytest.mark.parametrize("waits", [True, False])
def test_a_channel_of_appends_by_a_column_is_audited_with_its_last_checkpoint(load, waits):
    append = SnowpipeAppendRowsOperator(
        task_id="append", table=load.table, channel="c", rows=[{"ID": 100}], token_column="ID",
        snowflake_conn_id=load.conn_id, wait_for_commit=waits,
    )  # fmt: skip
    append.execute(context())
    wait_until(lambda: load.audit() == [])
    assert load.audit() == load.audit("rows") == []
    with load.service.client(load.table) as client:
        drop_channel(client, "c")
    assert load.differs("'c'", "balance")


class TestRows:
    """Depth ``rows``: by file and row number, where counts agree as well."""

    @pytest.fixture
    def load(self, new):
        new.sql("ALTER TABLE {T} ADD COLUMN SRC VARCHAR, NR INTEGER")
        new.metadata = {"SRC": "filename", "NR": "file_row_number"}
        new.run()
        assert new.audit("rows") == []
        return new

    def test_nothing_differs_after_files_came_grew_and_were_renamed(self, load):
        load.write("a/0.ndjson")
        load.write("a/2.ndjson", "", rows=1)
        load.run()
        (load.folder / "b/1.ndjson").rename(load.folder / "b/2.ndjson")
        load.write("b/2.ndjson")
        load.run()
        assert load.audit("rows") == []

    def test_rows_of_two_folders_with_files_of_the_same_names_are_not_taken_for_doubled(self, load):
        load.folder = load.folder.with_name("other")
        load.write("a/1.ndjson")
        load.run("e")
        assert load.audit("rows") == []
        load.sql("DELETE FROM {T} WHERE SRC = 'b/1.ndjson' AND NR = 2")
        assert any("number 2 of b/1.ndjson" in one for one in load.audit("rows"))

    def test_a_row_that_was_deleted_and_one_that_is_doubled_are_found_by_file_and_number(self, load):
        load.sql("DELETE FROM {T} WHERE SRC = 'a/1.ndjson' AND NR = 2")
        load.sql("INSERT INTO {T} SELECT * FROM {T} WHERE SRC = 'b/1.ndjson' AND NR = 3")
        assert load.audit("counts") == []
        found = load.audit("rows")
        (missing,) = (one for one in found if "not in" in one)
        assert ("'d_src_a'" in missing, "number 2 of a/1.ndjson" in missing) == (True, True)
        assert ["b/1.ndjson" in one and "number 3" in one for one in found if "twice" in one] == [True]
        assert len(found) == 2


def test_a_record_of_a_topic_that_is_doubled_and_one_that_is_missing_are_found(load):
    load.sql("CREATE TABLE IF NOT EXISTS {T}_K (T VARCHAR, P INTEGER, O INTEGER)")
    load.sql("INSERT INTO {T}_K VALUES ('t', 0, 5), ('t', 0, 6), ('t', 0, 6), ('t', 0, 9), ('t', 1, 5)")
    metadata = {"T": "topic", "P": "partition", "O": "offset"}
    columns = KafkaSource(bootstrap_servers="b:1", topics=["t"], metadata=metadata).row_columns
    query = positions_query(f'"LOCAL"."PUBLIC"."{load.table}_K"', columns)
    with load.hook().sql_session("test") as run:
        rows = TableRows.of(run(query), columns[0])
        load.sql("INSERT INTO {T}_K VALUES ('t', NULL, 8), (NULL, 1, 9)")
        mixed = TableRows.of(run(query), columns[0])
    doubled, missing = rows.compared(ChannelAudit("c", "9", 4, 4, 0), {("t", "0"): 1}, 0).differences
    assert ("twice: 1 row of" in doubled, "number 6" in doubled, "1 of its" in missing) == (True, True, True)
    assert rows.compared(ChannelAudit("c", "5", 1, 1, 0), {("t", "1"): 1}, 0).differences == ()
    two = ChannelAudit("c", "5", 2, 2, 0)
    known, unknown = (one.compared(two, {("t", "1"): 1}, 0) for one in (rows, mixed))
    assert (len(known.differences), unknown.differences) == (1, ())
    assert "2 rows" in unknown.notes[0]


def test_of_a_dag_or_of_everything_fails_the_task_and_leaves_what_it_found(load):
    load.sql("DELETE FROM {T} WHERE ID = 0")
    for options in ({"dag_ids": "d"}, {"dag_ids": ["d", "e"]}, {}):
        assert len(load.audit(table=None, **options)) == 1
    with pytest.raises(AirflowFailException, match="NOPE"):
        load.audit("balance", table="NOPE")
    with pytest.raises(AirflowFailException, match="'e'"):
        load.audit(table=None, dag_ids="e")
    with pytest.raises(ConfigurationError, match="other_rows"):
        SnowpipeAuditOperator(task_id="t", other_rows=-1)
    given = context()
    operator = SnowpipeAuditOperator(
        task_id="audit", table=load.table, depth="counts", snowflake_conn_id=load.conn_id
    )
    with pytest.raises(AirflowFailException, match="AuditError"):
        operator.execute(given)
    left = given["ti"].xcoms[AUDIT_KEY]
    assert (left["differs"], left["pipes"][0]["connection"]) == (True, load.conn_id)
    assert left == json.loads(json.dumps(left))  # Airflow makes objects of tuples


class TestCommand:
    def run(self, load, *words):
        given = parser().parse_args([*words, "--conn-id", load.conn_id, "--table", load.table])
        given.func(given)

    def test_files_tokens_and_differences_are_shown(self, load, capsys):
        def shown(*words):
            self.run(load, *words)
            return json.loads(capsys.readouterr().out)

        load.write("a/3.ndjson")
        assert [
            (one["unit"], one["partition"], one["file"], one["state"])
            for one in shown("files", "list", str(load.folder), "--output", "json")
        ] == [
            (1, "a", "a/1.ndjson", "committed"),
            (2, "a", "a/2.ndjson", "committed"),
            (3, "b", "b/1.ndjson", "committed"),
        ]
        with pytest.raises(SystemExit, match="nowhere"):
            self.run(load, "files", "list", "/nowhere")

        token = str(load.hook().channel_statuses(["d_src_a"])["d_src_a"].committed)
        given = parser().parse_args(["offsets", "decode", token, "--json"])
        given.func(given)
        found = json.loads(capsys.readouterr().out.splitlines()[-1])  # Airflow 2 logs there
        assert (found["position"], found["format"], found["rows"]) == ("2/2.ndjson:3", "unit/file:line", 6)
        assert str(load.folder) in found["source"]

        assert not shown("audit", "--json")["differs"]
        load.sql("DELETE FROM {T} WHERE ID = 0")
        with pytest.raises(SystemExit) as ended:
            self.run(load, "audit", "--depth", "counts")
        assert ended.value.code == 1
        out = capsys.readouterr().out
        assert "DIFFERS: table" in out
        assert "d_src_a" in out

    def test_offsets_rebind_gives_a_channel_to_another_source_or_begins_again(self, load):
        channel, rebind = "d_src_a", ("offsets", "rebind", "d_src_a")
        self.run(load, *rebind, "continue", "--binding", "0123456789abcdef", "-y")
        token = str(load.hook().channel_statuses([channel])[channel].committed)
        assert Checkpoint.parse(token).binding == "0123456789abcdef"
        self.run(load, *rebind, "restart", "-y")
        load.sql("DELETE FROM {T} WHERE ID < 6")
        load.run()
        assert load.audit() == []
        with pytest.raises(SystemExit, match="binding"):
            self.run(load, *rebind, "continue", "--binding", "x", "-y")


def test_files_that_came_since_the_last_run_are_behind_by_channel(load, capsys):
    def lag():
        words = ("lag", "--conn-id", load.conn_id, "--table", load.table, "--output", "json")
        given = parser().parse_args(words)
        capsys.readouterr()
        given.func(given)
        lines = json.loads(capsys.readouterr().out)
        names = ("files_behind", "bytes_behind", "oldest_file_seconds")
        return {one["channel"]: tuple(one[name] for name in names) for one in lines}

    sizes = {}
    for name, age in (("a/0.ndjson", 30), ("a/3.ndjson", 600), ("c/1.ndjson", 5)):
        load.write(name)
        os.utime(load.folder / name, (time.time() - age, time.time() - age))
        sizes[name] = (load.folder / name).stat().st_size
    found = lag()
    assert {name: one[:2] for name, one in found.items()} == {
        "d_src_a": (2, sizes["a/0.ndjson"] + sizes["a/3.ndjson"]),
        "d_src_b": (0, 0),
        "d_src_c": (1, sizes["c/1.ndjson"]),
    }
    assert [600 <= found["d_src_a"][2] < 630, 5 <= found["d_src_c"][2] < 35] == [True, True]
    notifier, report = SnowpipeLagNotifier(table=load.table, snowflake_conn_id=load.conn_id), {}
    notifier.notify(report)
    assert "files_behind<=2" in report[REPORT_KEY]
    load.run()
    assert set(lag().values()) == {(0, 0, 0)}
    load.folder.rename(load.folder.with_name("elsewhere"))
    notifier.notify(report)
    assert "not known" in report[REPORT_KEY]
