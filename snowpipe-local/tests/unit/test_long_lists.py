"""Lists of more literals than somebody writes by hand: they mean what short ones mean, and cost little."""

from __future__ import annotations

import pytest
from snowpipe_local.sql import translate
from tests.unit.sql_sessions import SqlSessions

MANY = 150


@pytest.fixture(scope="module")
def sql(tmp_path_factory):
    sessions = SqlSessions(tmp_path_factory.mktemp("lists"))
    sessions.run(
        "CREATE TABLE t (id INT, n NUMBER(10, 2), f FLOAT, s VARCHAR, d DATE, tz TIMESTAMP_TZ, v VARIANT)"
    )
    sessions.run(
        "INSERT INTO t SELECT 1, 1.00, 1.5, '1', '2024-01-01', '2024-01-01 10:00:00 +05:30', PARSE_JSON('1')"
        " UNION ALL SELECT 2, 2.50, 2.0, 'x y', '2024-02-29', '2024-01-01 04:30:00 Z', PARSE_JSON('\"x\"')"
        " UNION ALL SELECT 3, NULL, NULL, NULL, NULL, NULL, NULL"
    )
    yield sessions
    sessions.close()


def test_a_long_list_means_what_a_short_one_means(sql):
    for column, searched, others in [
        ("id", "2", [str(number) for number in range(100, 100 + MANY)]),
        ("id", "'2'", [f"'{number}'" for number in range(100, 100 + MANY)]),
        ("n", "1", [str(number) for number in range(100, 100 + MANY)]),
        ("f", "2", [str(number) for number in range(100, 100 + MANY)]),
        ("s", "'x y'", [f"'{number} a'" for number in range(MANY)]),
        ("d", "'2024-02-29'", [f"'{1700 + number}-01-01'" for number in range(MANY)]),
        (
            "tz",
            "'2024-01-01 10:00:00 +0530'",
            [f"'{1700 + number}-01-01 01:00:00 +0200'" for number in range(MANY)],
        ),
        ("v", "1", [str(number) for number in range(100, 100 + MANY)]),
        ("v", "'x'", [f"'{number}'" for number in range(100, 100 + MANY)]),
        ("v::VARCHAR", "'x'", [f"'{number}'" for number in range(100, 100 + MANY)]),
        ("LOWER(s)", "'x y'", [f"'{number}'" for number in range(100, 100 + MANY)]),
    ]:
        for position in (0, 75, MANY) if column == "id" else (75,):
            listed = [*others[:position], searched, *others[position:]]
            for negated in ("NOT", ""):
                short = sql.values(
                    f"SELECT id FROM t WHERE {column} {negated} IN ({searched}, {others[0]}) ORDER BY 1"
                )
                long = sql.values(
                    f"SELECT id FROM t WHERE {column} {negated} IN ({', '.join(listed)}) ORDER BY 1"
                )
                assert long == short
            assert short


def test_a_list_with_another_value_in_it_is_read_as_ever(sql):
    for value in ["'it''s'", "'back\\\\slash'", "'line\\nend'", "NULL", "-1", "1.5", "1e3", "id", "$1"]:
        listed = ", ".join([value, *(f"'{number}'" for number in range(MANY))])
        if value == "$1":
            assert sql.refused(f"SELECT id FROM t WHERE s IN ({listed})").code
        else:
            known = translate.parse(f"SELECT id FROM t WHERE s IN ({listed})")
            assert sum(1 for _ in known.walk()) > MANY


def test_long_lists_stand_in_every_statement(sql):
    listed = ", ".join(str(number) for number in range(2, MANY))
    sql.run(f"CREATE OR REPLACE TABLE c AS SELECT id FROM t WHERE id IN ({listed})")
    sql.run(f"CREATE OR REPLACE VIEW w AS SELECT id, id IN ({listed}) AS listed FROM t")
    assert sql.values("SELECT id FROM c ORDER BY 1") == [(2,), (3,)]
    assert sql.values("SELECT listed FROM w ORDER BY id") == [(False,), (True,), (True,)]
    sql.run(f"UPDATE c SET id = 0 WHERE id IN ({listed}) AND id NOT IN ({listed.removeprefix('2, ')})")
    assert sql.values("SELECT id FROM c ORDER BY 1") == [(0,), (3,)]
    sql.run(f"MERGE INTO c USING t ON c.id = t.id AND t.id IN ({listed}) WHEN MATCHED THEN DELETE")
    assert sql.values("SELECT id FROM c") == [(0,)]
    named = sql.session()
    assert named is not None
    assert list(sql.run(f"SELECT id IN ({listed}) FROM t")[0]) == [f"ID IN ({listed})"]


def test_a_long_list_is_one_or_two_nodes():
    for value in ["{}", "'a{}'"]:
        tree = translate.parse(
            f"SELECT 1 FROM t WHERE x IN ({', '.join(value.format(n) for n in range(50_000))})"
        )
        assert sum(1 for _ in tree.walk()) < 20
