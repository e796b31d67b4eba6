"""Clustering keys, and pipes that sort the rows of a commit by them."""

from __future__ import annotations

import dataclasses
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from snowpipe_local.catalog import Catalog
from snowpipe_local.engine.channel import Append
from snowpipe_local.engine.database import Database
from snowpipe_local.engine.lines import split_lines
from snowpipe_local.faults import Faults
from snowpipe_local.names import PipeKey
from snowpipe_local.sql import front
from snowpipe_local.sql.session import Session, use_schema
from snowpipe_local.testing import LocalService

_PIPE = (
    "CREATE PIPE {name} AS COPY INTO {table} FROM (SELECT $1 FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING'))) "
    "MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE CLUSTER_AT_INGEST_TIME = {clusters}"
)


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def catalog(tmp_path: Path, faults: Faults) -> Iterator[Catalog]:
    catalog = Catalog(tmp_path, faults)
    yield catalog
    catalog.close()


def _sql(catalog: Catalog, statement: str) -> list[tuple[object, ...]]:
    session = Session(catalog, "DEMO")
    use_schema(session, "LOCAL", "PUBLIC")
    return [tuple(row) for row in front.execute(session, statement).rows]


def _send(faults: Faults, database: Database, pipe: str, bodies: dict[str, bytes]) -> None:
    """Send one append a channel and wait until one commit has taken all of them."""
    found = database.pipes.find(PipeKey("PUBLIC", pipe))
    assert found is not None
    made: list[Append] = []
    for name, body in bodies.items():
        channel = database.channels.open(found, name, offset_token=None, fail_on_uncommitted_rows=False)
        append = Append(channel, 1, 0, "r", split_lines(body), None, "1", time.monotonic())
        made.append(append)
    faults.add("hold-commits")
    for append in made:
        append.channel.accept(
            append.channel.continuation_token, "r", lambda c, r, a=append: a, database.committer.enqueue
        )
    faults.clear()
    for append in made:
        append.durable.result(60)


def _row_groups(catalog: Catalog, table: str, low: int, high: int) -> tuple[int, int, int]:
    """Row groups that a range query scanned, all of them, and the rows that it found."""
    cursor = catalog.cursor()
    query = f'SELECT count(*) FROM "LOCAL"."PUBLIC"."{table}" WHERE "K" BETWEEN {low} AND {high}'
    plan = cursor.execute(f"EXPLAIN ANALYZE {query}").fetchall()[0][1]
    match = re.search(r"Row Groups Scanned: (\d+) / (\d+)", plan)
    assert match is not None, plan
    (rows,) = cursor.execute(query).fetchone() or (0,)
    return int(match[1]), int(match[2]), rows


def test_range_queries_scan_fewer_row_groups_of_rows_that_were_sorted_at_ingest(
    catalog: Catalog, faults: Faults
) -> None:
    database = catalog.database("LOCAL")
    keys = list(range(600_000))
    random.Random(7).shuffle(keys)
    body = b"".join(b'{"k":%d}\n' % key for key in keys)
    scanned = {}
    for table, clusters in (("SORTED", "TRUE"), ("PLAIN", "FALSE")):
        _sql(catalog, f"CREATE TABLE {table} (k INT) CLUSTER BY (k)")
        _sql(catalog, _PIPE.format(name=f"{table}_PIPE", table=table, clusters=clusters))
        _send(faults, database, f"{table}_PIPE", {"c": body})
        scanned[table] = _row_groups(catalog, table, 10_000, 20_000)
    assert scanned["SORTED"][1] >= 4
    assert scanned["SORTED"] == (1, scanned["SORTED"][1], 10_001)
    assert scanned["PLAIN"] == (scanned["PLAIN"][1], scanned["PLAIN"][1], 10_001)


def test_a_column_of_the_key_cannot_be_lost(catalog: Catalog, faults: Faults) -> None:
    _sql(catalog, "CREATE TABLE t (k INT, other INT) CLUSTER BY (k)")
    database = catalog.database("LOCAL")
    table = database.tables.find("PUBLIC", "T")
    assert table is not None
    (kept,) = (column for column in table.columns if column.name == "OTHER")
    with pytest.raises(duckdb.BinderException):
        database.tables.change(
            dataclasses.replace(table, columns=(kept,)), [f'ALTER TABLE {table.path} DROP COLUMN "K"']
        )
    assert database.tables.find("PUBLIC", "T") == table
    _sql(catalog, _PIPE.format(name="P", table="t", clusters="TRUE"))
    _send(faults, database, "P", {"c": b'{"k":2}\n{"k":1}\n'})
    assert catalog.cursor().execute('SELECT "K" FROM "LOCAL"."PUBLIC"."T"').fetchall() == [(1,), (2,)]


def test_a_default_pipe_sorts_by_the_key_too(catalog: Catalog, faults: Faults) -> None:
    _sql(catalog, "CREATE TABLE t (k INT) CLUSTER BY (k)")
    database = catalog.database("LOCAL")
    database.pipes.resolve("PUBLIC", "T-STREAMING")
    _send(faults, database, "T-STREAMING", {"c": b'{"k":3}\n{"k":1}\n{"k":2}\n'})
    assert catalog.cursor().execute('SELECT "K" FROM "LOCAL"."PUBLIC"."T"').fetchall() == [(1,), (2,), (3,)]


def test_the_key_is_shown(local_service: LocalService) -> None:
    local_service.sql(
        'CREATE TABLE keyed (id INT, "At" TIMESTAMP_NTZ) CLUSTER BY (id, TO_DATE("At")) ERROR_LOGGING = TRUE'
    )
    local_service.sql("CREATE TABLE again (id INT) CLUSTER BY LINEAR(id)")
    local_service.sql("CREATE TABLE bare (id INT)")
    expected = {"KEYED": 'LINEAR(ID, TO_DATE("At"))', "AGAIN": "LINEAR(ID)", "BARE": ""}
    assert {row["name"]: row["cluster_by"] for row in local_service.sql("SHOW TABLES")} == expected


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("nope", "invalid identifier 'NOPE'"),
        ("count(*)", "CLUSTER BY"),
        ("(SELECT 1)", "CLUSTER BY"),
        ("no_such_function(id)", "NO_SUCH_FUNCTION"),
    ],
)
def test_a_key_that_no_row_can_have_is_refused(local_service: LocalService, key: str, message: str) -> None:
    done = local_service.cli("sql", f"CREATE TABLE refused (id INT) CLUSTER BY ({key})")
    assert done.returncode == 1
    assert message.upper() in done.stderr.upper()
