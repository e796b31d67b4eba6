"""Tables whose names differ only in case ("Identifier requirements")."""

import pytest
from tests.local_catalog import local_catalog
from tests.unit.streamed_table import MadeTable


@pytest.fixture
def local(local):
    local.sql("CREATE TABLE t (a INT)")
    local.sql('CREATE TABLE "t" (a INT, b VARCHAR)')
    return local


def test_each_has_its_own_rows_and_columns(local):
    local.sql("INSERT INTO T VALUES (1)")
    local.sql("INSERT INTO \"t\" (a, b) SELECT a + 1, 'x' FROM t")
    local.put("a.csv", b"3,y\n")
    local.sql('COPY INTO "t" FROM @s')
    assert local.values("SELECT * FROM t") == [(1,)]
    assert local.values('SELECT "t".a, b FROM "t" ORDER BY a') == [(2, "x"), (3, "y")]
    local.sql('UPDATE "t" SET a = 4 WHERE "t".a = 3')
    local.sql('DELETE FROM "t" WHERE a = 2')
    local.sql('MERGE INTO "t" USING t ON "t".a = t.a WHEN NOT MATCHED THEN INSERT (a) VALUES (t.a)')
    assert local.values('SELECT a FROM "t" ORDER BY a') == [(1,), (4,)]
    common = (
        'WITH "t" AS (SELECT 9 AS z), o AS (SELECT count(*) AS n FROM public."t") SELECT "t".z, n FROM "t", o'
    )
    assert local.values(common) == [(9, 2)]
    local.sql('ALTER TABLE "t" ADD COLUMN c INT')
    assert len(local.sql('DESCRIBE TABLE "t"')) == 3
    assert len(local.sql("DESCRIBE TABLE t")) == 1
    assert [row["name"] for row in local.sql("SHOW TABLES")] == ["T", "t"]


def test_they_are_replaced_renamed_and_dropped_alone(local):
    local.sql("INSERT INTO t VALUES (1)")
    local.sql('CREATE OR REPLACE TABLE "t" AS SELECT 5 AS a')
    assert local.values('SELECT * FROM "t"') == [(5,)]
    local.sql('ALTER TABLE "t" SWAP WITH t')
    assert local.values("SELECT * FROM t") == [(5,)]
    assert local.values('SELECT * FROM "t"') == [(1,)]
    local.sql("DROP TABLE t")
    local.sql('ALTER TABLE "t" RENAME TO t')
    assert local.values("SELECT * FROM t") == [(1,)]
    local.sql('CREATE TABLE "t" CLONE t')
    local.sql("TRUNCATE TABLE t")
    assert local.values('SELECT * FROM "t"') == [(1,)]
    assert local.refused('CREATE TABLE "t" (a INT)').code == "002002"


def test_they_are_distinguished_after_a_restart(tmp_path):
    for attempt in range(2):
        with local_catalog(tmp_path) as local:
            if attempt == 0:
                local.sql("CREATE TABLE t AS SELECT 1 AS a")
                local.sql('CREATE TABLE "t" AS SELECT 2 AS a')
            assert local.values('SELECT a FROM t UNION ALL SELECT a FROM "t"') == [(1,), (2,)]


def test_rows_stream_into_the_one_that_is_named(local):
    for name, value in (("T", 1), ("t", 2)):
        MadeTable(local.database, name).send_at_once(f'{{"A":{value}}}'.encode())
    assert local.values("SELECT a FROM t") == [(1,)]
    assert local.values('SELECT a FROM "t"') == [(2,)]


def test_two_dots_mean_the_schema_public(local):
    for statement in (
        "CREATE SCHEMA elsewhere", "CREATE TABLE local..dotted AS SELECT 1 AS a",
        "ALTER TABLE local..dotted RENAME TO local..again",
    ):  # fmt: skip
        local.sql(statement)
    assert local.values("SELECT a FROM local.public.again") == [(1,)]
