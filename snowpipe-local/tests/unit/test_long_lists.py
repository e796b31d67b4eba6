"""Lists of more literals than somebody writes by hand: they mean what short ones mean, and cost little."""

import pytest
from snowpipe_local.sql import translate

MANY = 150


@pytest.fixture(scope="module")
def sql(module_sql):
    module_sql.run(
        "CREATE TABLE t (id INT, n NUMBER(10, 2), f FLOAT, s VARCHAR, d DATE, tz TIMESTAMP_TZ, v VARIANT)"
    )
    module_sql.run(
        "INSERT INTO t SELECT 1, 1.00, 1.5, '1', '2024-01-01', '2024-01-01 10:00:00 +05:30', PARSE_JSON('1')"
        " UNION ALL SELECT 2, 2.50, 2.0, 'x y', '2024-02-29', '2024-01-01 04:30:00 Z', PARSE_JSON('\"x\"')"
        " UNION ALL SELECT 3, NULL, NULL, NULL, NULL, NULL, NULL"
    )
    return module_sql


def test_a_long_list_means_what_a_short_one_means_in_every_statement(sql):
    numbers, texts = "{}", "'{}'"
    for column, searched, other in [
        ("id", "2", numbers), ("id", "'2'", texts), ("n", "1", numbers), ("f", "2", numbers),
        ("s", "'x y'", "'{} a'"), ("d", "'2024-02-29'", "'1{}-01-01'"), ("v", "1", numbers),
        ("tz", "'2024-01-01 10:00:00 +0530'", "'1{}-01-01 01:00:00 +0200'"), ("v", "'x'", texts),
        ("v::VARCHAR", "'x'", texts), ("LOWER(s)", "'x y'", texts),
    ]:  # fmt: skip
        others = [other.format(number) for number in range(700, 700 + MANY)]
        for position in (0, 75, MANY) if column == "id" else (75,):
            listed = ", ".join([*others[:position], searched, *others[position:]])
            found = f"SELECT id, {column} IN ({{}}) FROM t ORDER BY 1"
            short = sql.values(found.format(f"{searched}, {others[0]}"))
            assert sql.values(found.format(listed)) == short
            assert True in {answer for _, answer in short}
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


def test_a_long_list_is_one_or_two_nodes_unless_another_value_is_in_it(sql):
    def nodes(*values):
        return sum(1 for _ in translate.parse(f"SELECT id FROM t WHERE s IN ({', '.join(values)})").walk())

    for value in ["{}", "'a{}'"]:
        assert nodes(*(value.format(number) for number in range(20_000))) < 20
    texts = [f"'{number}'" for number in range(MANY)]
    for value in ["'it''s'", "'back\\\\slash'", "'line\\nend'", "NULL", "-1", "1.5", "1e3", "id"]:
        assert nodes(value, *texts) > MANY
    assert sql.refused(f"SELECT id FROM t WHERE s IN ($1, {', '.join(texts)})").code
