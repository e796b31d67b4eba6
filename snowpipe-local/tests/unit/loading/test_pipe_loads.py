import json
import os
import time
from typing import Any

import duckdb
import pytest
from snowpipe_local.engine.load_history import DAY_MS, LoadEvent
from snowpipe_local.errors import SqlError
from snowpipe_local.loading import loader
from snowpipe_local.names import PipeKey
from snowpipe_local.sql import pipe_loads
from snowpipe_local.sql.pipe_loads import PipeLoads
from tests.local_catalog import LocalCatalog, local_catalog

from tests.waiting import wait_until

KEY = PipeKey("PUBLIC", "P")


@pytest.fixture
def local(local):
    local.sql("CREATE TABLE t (id INT)")
    local.sql("CREATE PIPE p AS COPY INTO t FROM @s")
    return local


def submit(local: LocalCatalog, *paths: str) -> None:
    local.database.file_pipes.enqueue(KEY, [(path, None) for path in paths], local.catalog.clock.now_ms())


def drain(local: LocalCatalog) -> None:
    """Run the loader until the queue is empty."""
    loads = PipeLoads(local.catalog)
    wait_until(lambda: not waiting(local), what="an empty queue")
    loads.close()


def waiting(local: LocalCatalog) -> int:
    with local.catalog.cursor() as cursor:
        return local.database.file_pipes.count_waiting(cursor, KEY)


def events(local: LocalCatalog) -> list[LoadEvent]:
    with local.catalog.cursor() as cursor:
        found = local.database.history.events_of_pipe(cursor, KEY.schema, KEY.name)
    return [event for _, event in found]


def ids(local: LocalCatalog) -> list[int]:
    return [int(row["id"]) for row in local.sql("SELECT id FROM t ORDER BY id")]


def load(local: LocalCatalog, *paths: str) -> list[int]:
    """Submit files, wait for their loads and return the rows of the table."""
    submit(local, *paths)
    drain(local)
    return ids(local)


def test_a_path_is_remembered_for_14_days(local):
    local.put("a.csv", b"1\n")
    assert load(local, "a.csv") == [1]
    local.put("a.csv", b"2\n")
    local.catalog.clock.move(13 * DAY_MS / 1000)
    assert load(local, "a.csv") == [1]
    local.catalog.clock.move(2 * DAY_MS / 1000)
    assert load(local, "a.csv") == [1, 2]


def test_a_replaced_pipe_has_forgotten_its_loads_and_its_queue_but_not_what_copy_has_loaded(local):
    for path in ("a.csv", "b.csv"):
        local.put(path, b"1\n")
    assert load(local, "a.csv") == [1]
    local.sql("COPY INTO t FROM @s FILES = ('b.csv')")
    assert local.sql("ALTER PIPE p REFRESH") == []
    submit(local, "c.csv")
    local.catalog.clock.move(1)
    local.sql("CREATE OR REPLACE PIPE p AS COPY INTO t FROM @s")
    assert waiting(local) == 0
    assert local.sql("ALTER PIPE p REFRESH") == [{"file": "a.csv", "status": "SENT"}]
    drain(local)
    assert ids(local) == [1, 1, 1]


@pytest.mark.parametrize(
    "statement",
    ["TRUNCATE TABLE t", "CREATE OR REPLACE TABLE t (id INT)", "CREATE OR REPLACE TABLE t CLONE kept"],
)
def test_a_pipe_remembers_its_loads_when_its_table_is_emptied_or_replaced(local, statement):
    for path in ("a.csv", "b.csv"):
        local.put(path, b"1\n")
    load(local, "a.csv")
    local.sql("COPY INTO t FROM @s FILES = ('b.csv')")
    local.sql("CREATE TABLE kept CLONE t")
    local.sql(statement)
    before = ids(local)
    assert load(local, "a.csv") == before
    assert [event.file_name for event in events(local)] == ["a.csv"]
    # The history of COPY goes with the table.
    assert local.sql("ALTER PIPE p REFRESH") == [{"file": "b.csv", "status": "SENT"}]
    drain(local)
    local.sql("COPY INTO t FROM @s")
    assert ids(local) == [1, 1, 1, *before]


def test_a_pipe_that_was_paused_for_14_days_is_stale(local):
    local.sql("ALTER PIPE p SET PIPE_EXECUTION_PAUSED = TRUE")
    local.catalog.clock.move(15 * DAY_MS / 1000)
    error = local.refused("ALTER PIPE p SET PIPE_EXECUTION_PAUSED = FALSE")
    assert "is stale" in error.message
    assert "SYSTEM$PIPE_FORCE_RESUME" in error.message
    for arguments in ("'p'", "'p', 'please'"):
        local.refused(f"SELECT SYSTEM$PIPE_FORCE_RESUME({arguments})")
    local.sql("SELECT SYSTEM$PIPE_FORCE_RESUME('local.public.p', 'staleness_check_override')")
    (row,) = local.sql("SELECT SYSTEM$PIPE_STATUS('p')")
    assert json.loads(next(iter(row.values())))["executionState"] == "RUNNING"


def test_refresh_covers_the_last_7_days(local):
    old, new = local.put("old.csv", b"1\n"), local.put("new.csv", b"2\n")
    week_ago = time.time() - 8 * DAY_MS / 1000
    os.utime(old, (week_ago, week_ago))
    assert new.exists()
    assert local.sql("ALTER PIPE p REFRESH") == [{"file": "new.csv", "status": "SENT"}]
    assert local.refused("ALTER PIPE p REFRESH MODIFIED_AFTER = 'soon'").code == "001008"


def test_many_files_share_transactions_and_large_ones_do_not(local, monkeypatch):
    groups: list[int] = []
    commit = pipe_loads.commit_load

    def counted(database: Any, cursor: Any, work: Any) -> Any:
        before = len(events(local))
        result = commit(database, cursor, work)
        groups.append(len(events(local)) - before)
        return result

    monkeypatch.setattr(pipe_loads, "commit_load", counted)
    monkeypatch.setattr(pipe_loads, "GROUP_BYTES", 12)
    sizes = [2, 2, 2, 2, 2, 2, 20, 2, 20, 20]
    for number, size in enumerate(sizes):
        local.put(f"{number}.csv", f"{number:0{size - 1}}\n".encode())
    submit(local, *(f"{number}.csv" for number in range(len(sizes))))
    drain(local)
    assert groups == [6, 1, 1, 1, 1]
    assert ids(local) == list(range(10))


def test_a_file_that_breaks_the_engine_fails_alone(local, monkeypatch):
    def breaking(plan: Any, cursor: Any, file: Any, load_file: Any = loader.load_file) -> Any:
        if file.path == "b.csv":
            raise duckdb.InternalException("INTERNAL Error: it broke")
        return load_file(plan, cursor, file)

    monkeypatch.setattr(loader, "load_file", breaking)
    for name, content in (("a.csv", b"1\n"), ("b.csv", b"2\n"), ("c.csv", b"3\n")):
        local.put(name, content)
    assert load(local, "a.csv", "b.csv", "c.csv") == [1, 3]
    assert [(event.file_name, event.status) for event in events(local)] == [
        ("a.csv", "LOADED"), ("b.csv", "LOAD_FAILED"), ("c.csv", "LOADED"),
    ]  # fmt: skip


def test_the_queue_holds_a_path_once_and_survives_a_restart(tmp_path):
    with local_catalog(tmp_path) as local:
        local.sql("CREATE TABLE t (id INT)")
        local.sql("CREATE PIPE p AS COPY INTO t FROM @s")
        local.put("a.csv", b"1\n")
        for _ in range(3):
            submit(local, "a.csv", "a.csv")
    with local_catalog(tmp_path) as local:
        assert waiting(local) == 1
        drain(local)
        assert ids(local) == [1]
        local.sql("DROP PIPE p")
        with pytest.raises(SqlError, match="exist"):
            submit(local, "a.csv")


def test_what_copy_and_a_pipe_have_loaded_outlives_a_rename_of_their_schema(local):
    for path in ("a.csv", "b.csv"):
        local.put(path, b"1\n")
    load(local, "a.csv")
    local.sql("COPY INTO t FROM @s FILES = ('b.csv')")
    local.sql("ALTER SCHEMA public RENAME TO former")
    assert local.sql("COPY INTO t FROM @s FILES = ('b.csv')")[0]["status"] == "LOAD_SKIPPED"
    assert local.sql("ALTER PIPE p REFRESH") == []
    assert ids(local) == [1, 1]
