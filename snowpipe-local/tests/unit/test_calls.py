"""Which functions a statement may call, and with how many arguments."""

import pytest
from snowpipe_local.sql import checks


@pytest.fixture(scope="module")
def sql(module_sql):
    module_sql.run(
        "CREATE TABLE list (first INT, left_ VARCHAR)", "INSERT INTO list (first, left_) VALUES (1, 'a')"
    )
    return module_sql


def test_too_few_and_too_many_arguments(sql):
    for call, expected, got in [
        ("NVL(1)", 2, 1), ("COALESCE(1)", 2, 1), ("DATEADD(day, 1)", 3, 2), ("GREATEST()", 1, 0),
        ("ARRAY_CONTAINS([1, (2), {'a': 3}])", 2, 1), ("UNIFORM(1, 10)", 3, 2),
        ("LAG() OVER (ORDER BY 1)", 1, 0),
    ]:  # fmt: skip
        refused = sql.refused(f"SELECT 1,\n  {call}")
        written = call.partition(" OVER")[0]
        assert (refused.code, refused.sqlstate) == ("000938", "22023")
        assert refused.message == (
            "SQL compilation error: error line 2 at position 2\n"
            f"not enough arguments for function [{written}], expected {expected}, got {got}"
        )
    for call, expected, got in [
        ("NVL(1, 2, 3)", 2, 3), ("RANDOM(1, 2)", 1, 2), ("CURRENT_DATE(1)", 0, 1),
        ("PARSE_JSON('1', 'd', 'x')", 2, 3), ("IS_ARRAY([1, 2], 3)", 1, 2), ("ROW_NUMBER(1)", 0, 1),
    ]:  # fmt: skip
        refused = sql.refused(f"SELECT {call}")
        assert (refused.code, refused.sqlstate) == ("000939", "22023")
        assert refused.message == (
            "SQL compilation error: error line 1 at position 7\n"
            f"too many arguments for function [{call}] expected {expected}, got {got}"
        )


def test_functions_of_other_databases_are_unknown(sql):
    assert len(checks.FOREIGN) > 250
    codes = {name: sql.refused(f"SELECT {name}(1)").code for name in checks.FOREIGN}
    assert {name: code for name, code in codes.items() if code != "002140"} == {}
    for call in ["LIST(1)", "FIRST(1)", "STRPOS('a', 'b')", "DATE_ADD('2026-01-01', 1)", "IF(1, 2, 3)"]:
        refused = sql.refused(f"SELECT {call}")
        assert (refused.code, refused.sqlstate) == ("002140", "42601")
        assert refused.message == f"SQL compilation error:\nUnknown function {call.partition('(')[0]}"
    assert sql.values("SELECT first FROM list") == [(1,)]
    assert sql.values("SELECT left FROM (SELECT 1, 2) AS right (left, list)") == [(1,)]
    assert sql.values("WITH last (upper) AS (SELECT 5) SELECT upper FROM last") == [(5,)]
    assert sql.values("SELECT 1 WHERE 'first(' <> 'nvl(1)' AND \"UPPER\"('a') = 'A'") == [(1,)]
