"""VARIANT values of the local service; above each test the page of Snowflake's documentation."""

import pytest
from tests.unit.sql_sessions import pairs


@pytest.fixture(scope="module")
def sql(module_sql):
    module_sql.run(
        "CREATE TABLE vartab (n INT, v VARIANT)",
        "INSERT INTO vartab SELECT column1, PARSE_JSON(column2) FROM VALUES (1, 'null'), (2, NULL), "
        "(3, 'true'), (4, '-17'), (5, '123.12'), (6, '1.912e2'), (7, '\"Om ara pa ca na dhih\"  '), "
        '(8, \'[-1, 12, 289, 2188, false]\'), (9, \'{ "x" : "abc", "y" : false, "z": 10}\')',
        "CREATE TABLE objects (n INT, v VARIANT)",
        'INSERT INTO objects SELECT 1, PARSE_JSON(\'{"b":1,"a":{"d":1,"c":2}}\') UNION ALL '
        'SELECT 2, PARSE_JSON(\'{"a":{"c":2,"d":1},"b":1}\')',
        "CREATE TABLE numbers (v VARIANT)",
        "INSERT INTO numbers SELECT PARSE_JSON(column1) FROM "
        "VALUES ('9'), ('100'), ('10'), ('9.5'), ('\"x\"')",
    )
    return module_sql


# TYPEOF
def test_types_and_casts_of_variants(sql):
    assert [kind for (kind,) in sql.values("SELECT TYPEOF(v) FROM vartab ORDER BY n")] == [
        "NULL_VALUE", None, "BOOLEAN", "INTEGER", "DECIMAL", "DOUBLE", "VARCHAR", "ARRAY", "OBJECT",
    ]  # fmt: skip
    error = sql.refused("SELECT v::OBJECT FROM vartab WHERE n = 4")
    assert (error.code, "-17" in error.message) == ("100071", True)
    flat = "SELECT value FROM vartab, LATERAL FLATTEN(INPUT => v::ARRAY) WHERE n = 4"
    assert sql.values(flat) == [("-17",)]
    # FLATTEN; Semi-structured data types ("VARIANT null")
    sql.run("CREATE TABLE flat (v VARIANT)")
    flat = "FROM TABLE(FLATTEN(PARSE_JSON('[null, \"0AFF\"]')))"
    sql.run(f"INSERT INTO flat SELECT value::VARIANT {flat}")
    assert sql.values("SELECT v, v::BINARY FROM flat") == [("null", None), ('"0AFF"', b"\x0a\xff")]
    types = ("BOOLEAN", "TIME", "DATE", "TIMESTAMP_TZ", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "NUMBER")
    first = sql.values(f"SELECT {', '.join(f'value::{kind}' for kind in types)} {flat} WHERE index = 0")
    assert first == [(None,) * len(types)]
    found = sql.values(
        "SELECT ABS(v:n), ROUND(v:n, 1), FLOOR(v:n), CEIL(v:n), SIGN(v:n), SQRT(v:m) "
        'FROM (SELECT PARSE_JSON(\'{"n": -2.25, "m": 9}\') AS v)'
    )
    assert found == [(2.25, -2.3, -3, -2, -1, 3)]
    seqs = sql.values("SELECT DISTINCT o.n, f.seq FROM objects o, LATERAL FLATTEN(v) f")
    assert len({seq for _, seq in seqs}) == len(seqs) == 2


LONG = "1234567890123456789.0123456789"
BUILT = pairs("""
OBJECT_CONSTRUCT('k', @) -> {"k":@}; {'k': @} -> {"k":@}; OBJECT_AGG('k', @) -> {"k":@}
OBJECT_CONSTRUCT('k', ARRAY_CONSTRUCT(OBJECT_CONSTRUCT('k', @))) -> {"k":[{"k":@}]}
OBJECT_INSERT(OBJECT_CONSTRUCT(), 'k', @) -> {"k":@}
OBJECT_INSERT(OBJECT_CONSTRUCT('k', @), 'a', 1) -> {"a":1,"k":@}
OBJECT_DELETE(OBJECT_CONSTRUCT('k', @, 'a', 1), 'a') -> {"k":@}
OBJECT_PICK(OBJECT_CONSTRUCT('k', @, 'a', 1), 'k') -> {"k":@}; ARRAY_CONSTRUCT(@, 1) -> [@,1]; [@] -> [@]
ARRAY_AGG(@) -> [@]; ARRAY_UNIQUE_AGG(@) -> [@]; ARRAY_AGG(OBJECT_CONSTRUCT('k', @)) -> [{"k":@}]
ARRAY_APPEND(ARRAY_CONSTRUCT(1), @) -> [1,@]; ARRAY_PREPEND(ARRAY_CONSTRUCT(@), 1) -> [1,@]
ARRAY_CAT(ARRAY_CONSTRUCT(@), ARRAY_CONSTRUCT(1)) -> [@,1]; ARRAY_CAT([], PARSE_JSON(' [ ] ')) -> []
ARRAY_CAT(PARSE_JSON(' [ ] '), [@]) -> [@]; ARRAY_APPEND([@], NULL) -> [@,null]
ARRAY_CAT([@], ['] ']) -> [@,"] "]; ARRAY_DISTINCT(ARRAY_CONSTRUCT(@, @)) -> [@]
ARRAY_SLICE(ARRAY_CONSTRUCT(1, @), 1, 2) -> [@]; ARRAY_REMOVE(ARRAY_CONSTRUCT(1, @), 1::VARIANT) -> [@]
ARRAY_MAX(ARRAY_CONSTRUCT(NULL, @)) -> @; ARRAY_SORT(ARRAY_CONSTRUCT(@)) -> [@]; TO_VARIANT(@) -> @
TO_ARRAY(@) -> [@]; @::VARIANT -> @; TO_JSON(TO_VARIANT(@)) -> @; COALESCE(NULL::VARIANT, TO_VARIANT(@)) -> @
""")


# OBJECT_CONSTRUCT, ARRAY_CONSTRUCT, TO_VARIANT and others: a BINARY is its text, a NUMBER has 38 digits
def test_what_is_built_from_values_keeps_them(sql):
    sql.run(
        "CREATE TABLE built (b BINARY, n NUMBER(38,10), z TIMESTAMP_TZ)",
        f"INSERT INTO built VALUES ('00FF', {LONG}, '2024-01-02 03:04:05 +0200')",
    )
    for column, member in [("b", '"00FF"'), ("n", LONG), ("z", '"2024-01-02 03:04:05.000 +0200"')]:
        for expression, text in BUILT:
            found = sql.values(f"SELECT {expression.replace('@', column)} FROM built")
            assert found == [(text.replace("@", member),)]


# Semi-structured data types ("VARIANT", decimal numbers), "FLATTEN"
def test_numbers_keep_all_digits_in_paths_flatten_and_texts(sql):
    # Keys with signs of paths, and what Python reads otherwise than the engine
    for document, query, value in [
        ('{"a.b": {"c \\"d": [1, 0.12345678901234567]}}', "v['a.b']['c \"d'][1]", "0.12345678901234567"),
        ('{"a": {"x": 1.50, "n": 12345678901234567890.5}}', "v:a", '{"n":12345678901234567890.5,"x":1.5}'),
        ('{"a": [1e300, 1234567890123456.7]}', "v:a[0]", "1e300"),
        ('{"n": ' + "[" * 2_000 + "0.123456789012345678" + "]" * 2_000 + ', "d": 0.5}', "v:d", "0.5"),
    ]:
        stored = document.replace("\\", "\\\\")
        sql.run(f"CREATE OR REPLACE TABLE pathed AS SELECT PARSE_JSON('{stored}') AS v")
        assert sql.values(f"SELECT {query} FROM pathed") == [(value,)]
    sql.run('CREATE TABLE levels AS SELECT PARSE_JSON(\'{"o": {"p q": [0.12345678901234567890]}}\') AS v')
    flat = "SELECT path, value FROM levels, LATERAL FLATTEN(v:o, RECURSIVE => TRUE) ORDER BY path"
    assert sql.values(flat) == [
        ("['p q']", "[0.12345678901234567890]"), ("['p q'][0]", "0.12345678901234567890"),
    ]  # fmt: skip
    # A number of more digits than a DOUBLE has keeps them beside a number.
    rows = "(SELECT PARSE_JSON('{\"a\": 12345678901234567890.123}') AS v)"
    grouped = f"SELECT v:a = 12345678901234567890.124, v['a']::VARCHAR FROM {rows} GROUP BY ALL"
    assert sql.values(grouped) == [(False, "12345678901234567890.123")]


def test_arrays_become_one_up_to_the_length_of_a_variant(sql):
    assert sql.values("SELECT ARRAY_CAT(NULL, [1]), ARRAY_APPEND(NULL, 1)") == [(None, None)]
    assert sql.refused("SELECT ARRAY_CAT(1::VARIANT, [1])").code == "100069"
    long = "ARRAY_CONSTRUCT(REPEAT('x', 40000000))"
    nested = f"ARRAY_CAT(ARRAY_CAT({long}, {long}), ARRAY_CAT({long}, {long}))"
    # Beside other tests, the limit of the engine's memory may come first.
    refused = sql.refused(f"SELECT ARRAY_SIZE({nested})").message
    assert "too long" in refused or "more memory" in refused


def test_an_object_has_each_key_once_in_their_order(sql):
    for statement in [
        "SELECT OBJECT_CONSTRUCT('a', 1, 'a', 2)", "SELECT {'a': 1, 'a': 2}",
        "SELECT OBJECT_CONSTRUCT(column1, 1, column2, 2) FROM VALUES ('a', 'a')",
    ]:  # fmt: skip
        assert "Duplicate field key" in sql.refused(statement).message
    assert "has the key 'a'" in sql.refused("SELECT OBJECT_INSERT({'a': 1}, 'a', 2)").message
    assert sql.values("SELECT OBJECT_CONSTRUCT('b', 1, 'a', 2, 'b', NULL)") == [('{"a":2,"b":1}',)]
    built = "OBJECT_CONSTRUCT('é', 1, 'z\\n', 2, 'a\"b', 3, 'Z', PARSE_JSON('null'), 4, NULL)"
    assert sql.values(f"SELECT {built}") == [('{"Z":null,"a\\"b":3,"z\\n":2,"é":1}',)]
    assert sql.values(
        """SELECT ARRAY_CONSTRUCT("to_json") FROM (SELECT PARSE_JSON('[1]') AS "to_json")"""
    ) == [("[[1]]",)]
    # PARSE_JSON
    for text in ['{"a":1', "[1,", '{"a": nope}']:
        assert sql.refused(f"SELECT PARSE_JSON('{text}')").message.endswith(f'Input: "{text}"')
    # The engine's HAVING takes no field of a lambda's parameter, which it reads as a column.
    for built in ["OBJECT_AGG(s, n)", "OBJECT_PICK(OBJECT_CONSTRUCT('a', MAX(s)), 'a')"]:
        rows = sql.values(f"SELECT s FROM (SELECT 'x' AS s, 1 AS n) GROUP BY s HAVING {built} IS NOT NULL")
        assert rows == [("x",)]
