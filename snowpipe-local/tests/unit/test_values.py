"""Values of functions and operators as the pages of Snowflake's documentation have them."""

import pytest
from snowpipe_local.sql import front
from tests.unit.sql_sessions import SqlSessions, listed, pairs

DOCUMENT = '{"a":{"b":[1,2,{"c":"x"}]},"name":"bob","arr":[1,2,3]}'
TABLES = (
    "docs (id INT, v VARIANT, ts TIMESTAMP_NTZ) AS "
    f"SELECT 1, PARSE_JSON('{DOCUMENT}'), '2026-01-02 03:04:05'::TIMESTAMP_NTZ",
    "stamps AS SELECT '1700000000000005' micros, '2026-01-01 02:00:00.5' written, 'x' bad, "
    "1700000000 seconds, '2026-01-01 02:00:00 +02:00' zoned, "
    """PARSE_JSON('{"at": "2026-01-01T02:00:00", "epoch": 1700000000, "none": null}') v""",
    "quotients AS SELECT i AS id, x::NUMBER(10,2) AS n, 1::NUMBER(20,10) AS w, 1::NUMBER(20,14) AS deep "
    "FROM VALUES (1, 3.5), (2, 4.5) AS v (i, x)",
    "single (s VARCHAR, n INT, f FLOAT, z TIMESTAMP_TZ) AS SELECT '2.5', 2, 0.5, '2024-01-01 10:00 +0200'",
    "mixed (s VARCHAR, n INT, k INT, m NUMBER(10,4), b BINARY, d DATE, z TIME, w VARIANT) AS "
    "SELECT '01', 1, 2, -123.4567, TO_BINARY('CDEF01'), '2024-02-29', '15:00', PARSE_JSON('true')",
    "vartab (n INT, v VARIANT) AS SELECT 1, PARSE_JSON('null')",
    """member AS SELECT PARSE_JSON('{"k": "x", "n": 2}') AS v""",
    """subscripted AS SELECT 1 AS n, PARSE_JSON('[1, 2, {"a": 7, "b c": {"d": ["x"]}}]') AS v""",
    "rates AS SELECT 1.0001234565::NUMBER(38, 10) AS r, 1.5::NUMBER(10, 2) AS n, "
    "1.0000000000000000001::NUMBER(38, 20) AS f",
    "whole (i INT, d DATE, s VARCHAR, a ARRAY, k INT) AS "
    "SELECT 2, '2026-01-31'::DATE, 'abcb', ARRAY_CONSTRUCT(1, 2, 3), 3",
    "z (tz TIMESTAMP_TZ, ltz TIMESTAMP_LTZ, ntz TIMESTAMP_NTZ, t TIME) AS SELECT x::TIMESTAMP_TZ, "
    "x::TIMESTAMP_LTZ, x::TIMESTAMP_NTZ, '10:11:12'::TIME FROM (SELECT '2026-01-01 10:00:00 +0530' AS x)",
    "many AS SELECT column1 AS id, column2 AS s FROM VALUES (1, 'b'), (2, 'a'), (3, NULL)",
    """objects AS SELECT PARSE_JSON(x) AS v FROM VALUES ('{"b":1,"a":{"d":1,"c":2}}'), """
    """('{"a":{"c":2,"d":1},"b":1}') AS t (x)""",
    "numbers AS SELECT PARSE_JSON(column1) AS v FROM VALUES ('9'), ('100'), ('10'), ('9.5'), ('\"x\"')",
    "lists AS SELECT n, PARSE_JSON(x) AS v FROM VALUES (1, '[3,1,2]'), (2, '[[9,8],[7]]') AS t (n, x)",
    """long AS SELECT PARSE_JSON('{"n": 12345678901234567890.123, "e": 1000000000000000000000.5, """
    """"o": {"t": "x", "n": -12345678901234567890.125}, "t": "1234567890123456.7890"}') AS v""",
    """chosen (i INT, n NUMBER(10, 2), f FLOAT, v VARIANT) AS """
    """SELECT 7, 1.25, 0.5, PARSE_JSON('{"k": "q"}')""",
    "texts (a VARCHAR) AS SELECT column1 FROM VALUES ('1.5'), ('10.5'), ('1.5'), (NULL)",
    "tried AS SELECT x::VARCHAR AS x FROM VALUES (1), (2) AS v (x)",
    "l (k INT, v INT) AS SELECT * FROM VALUES (1, 5), (1, 30), (2, 20), (3, NULL)",
    "r (k INT, v INT) AS SELECT * FROM VALUES (1, 10), (2, 15)",
    "g AS SELECT 2 AS i, 2.5::FLOAT AS f",
    "splittable (v VARCHAR) AS SELECT * FROM VALUES ('a.b'), ('c'), (NULL)",
)
# Behind each query the expressions that stand in its braces, and what they return; typed, with their types.
VALUES = """
# {} FROM docs
v:a.b[0]::INT -> 1; v:a.b[2].c::STRING -> x; v:arr[0] + 1 -> 2.0; v:name = 'bob' -> True; UPPER(v:name) -> BOB
v:name LIKE 'b%' -> True; v:nope -> None; TRY_PARSE_JSON('{') -> None; PARSE_JSON('{"k":[1]}'):k[0]::INT -> 1
OBJECT_CONSTRUCT('k', v:name):k::STRING -> bob; {'a': 1, 'B': [1, 'x']} -> {"B":[1,"x"],"a":1}
ARRAY_SIZE(v:arr) -> 3; ARRAY_CONTAINS(2::VARIANT, v:arr) -> True; ARRAY_POSITION(3::VARIANT, v:arr) -> 2
IS_OBJECT(v) -> True; AS_INTEGER(v:arr[2]) -> 3
TO_TIMESTAMP('01/02/2026', 'MM/DD/YYYY') -> 2026-01-02 00:00:00; TIME('10:11:12') -> 10:11:12
TO_NUMBER('12.345', 10, 2) -> 12.35; TRY_TO_NUMBER('x') -> None
TO_TIMESTAMP('2026-01-02 12:30', 'YYYY-MM-DD HH12:MI') -> 2026-01-02 00:30:00
TO_VARCHAR(ts, 'YYYY-MM-DD' || ' ' || ('HH24' || ':MI')) -> 2026-01-02 03:04
IFF(id = 1, 'one', 'other') -> one; NVL(NULL, 2) -> 2; EQUAL_NULL(NULL, NULL) -> True
BOOLAND(TRUE, FALSE) -> False; WIDTH_BUCKET(5, 0, 10, 5) -> 3
SHA2('a') -> ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb
BASE64_DECODE_STRING('YQ==') -> a; CURRENT_ACCOUNT() -> LOCAL; CURRENT_SCHEMAS() -> ["LOCAL.PUBLIC"]
IS_ROLE_IN_SESSION('SYSADMIN') -> True; ARRAY_REVERSE(v:arr) -> [3,2,1]
ARRAY_SORT(ARRAY_CONSTRUCT(10, 9, 'a', 1.5)) -> [1.5,9,10,"a"]; ARRAY_REMOVE(v:arr, 2) -> [1,3]
ARRAY_REMOVE_AT(v:arr, -1) -> [1,2]; BASE64_ENCODE('é') -> w6k=; BASE64_ENCODE(TO_BINARY('FF00')) -> /wA=
# {}
X'41FF'::VARCHAR -> 41FF; TO_CHAR(X'41') -> 41; TO_CHAR(X'41', 'utf-8') -> A
TO_VARCHAR(X'41', 'base64') -> QQ==; (X'41' || X'42')::VARCHAR -> 4142; CAST('abc' AS CHAR) -> a
'1'::VARIANT = 1::VARIANT -> False; 1::VARIANT = 1.0::VARIANT -> True; PARSE_JSON('null') IS NULL -> False
PARSE_JSON('{"a":null}'):a::VARCHAR IS NULL -> True; IS_NULL_VALUE(PARSE_JSON('{"a":null}'):a) -> True
PARSE_JSON('{"b":1,"a":2}') = PARSE_JSON('{"a":2, "b":1}') -> True
PARSE_JSON('{"b":1,"a":2}') -> {"a":2,"b":1}; 3000000000::INT -> 3000000000
'99999999999999999999'::INTEGER + 1 -> 100000000000000000000
LENGTH('abc') * 9223372036854775807 -> 27670116110564327421
99999999999999999999999999999999999999 + 0 -> 99999999999999999999999999999999999999
-99999999999999999999999999999999999999 -> -99999999999999999999999999999999999999
DATEADD(DAY, 1, '2026-01-01') -> 2026-01-02 00:00:00
DATEADD(HOUR, 1, '2026-01-01 10:00') -> 2026-01-01 11:00:00
DATEDIFF(DAY, '1/1/2026', '01/05/2026'::DATE) -> 4; '2024-01-31 10:00'::TIMESTAMP + 1 -> 2024-02-01 10:00:00
TIMESTAMPDIFF(MINUTE, '2026-01-01 00:00:00', '2026-01-01 01:00:00'::TIMESTAMP_NTZ) -> 60
EQUAL_NULL('2026-01-02 03:04:05 +0200'::TIMESTAMP_TZ, '2026-01-02 01:04:05Z'::TIMESTAMP_TZ) -> True
EQUAL_NULL(PARSE_JSON('"q"'), 'q') -> True; LISTAGG(s, ',') WITHIN GROUP (ORDER BY s) FROM many -> a,b
ARRAY_AGG(id) WITHIN GROUP (ORDER BY id DESC) FROM many -> [3,2,1]
OBJECT_AGG(s, id) FROM many WHERE id = 1 -> {"b":1}
id FROM many QUALIFY ROW_NUMBER() OVER (ORDER BY s NULLS LAST) = 1 -> 2
SEQ4() FROM TABLE(GENERATOR(ROWCOUNT => 2)) -> 0 | 1
value FROM TABLE(SPLIT_TO_TABLE('a,b', ',')) ORDER BY index -> a | b
f.value:c::STRING FROM docs, LATERAL FLATTEN(INPUT => v, PATH => 'a.b') f WHERE f.index = 2 -> x
f.key FROM docs, LATERAL FLATTEN(v:arr, MODE => 'OBJECT') f -> no rows
f.key FROM docs, LATERAL FLATTEN(v:a, MODE => 'both') f -> b
id AS "x", "x" + 1 FROM docs ORDER BY "x" -> 1, 2; v FROM numbers ORDER BY v -> 9 | 9.5 | 10 | 100 | "x"
MAX(v) FROM numbers WHERE v < 50 -> 10; v FROM numbers WHERE v IN (9, 100) ORDER BY v -> 9 | 100
DISTINCT v FROM objects -> {"a":{"c":2,"d":1},"b":1}; COUNT(*) FROM objects GROUP BY v -> 2
COUNT(*) FROM objects a JOIN objects b ON a.v = b.v -> 4
p.y || 'a', q.y::VARCHAR FROM (SELECT v:k AS y FROM chosen) q, (SELECT 'x' AS y) p -> xa, q
(SELECT MAX(o.tz)::VARCHAR FROM z o WHERE o.t = z.t) FROM z -> 2026-01-01 10:00:00.000 +0530
v:k::VARCHAR AS v FROM chosen ORDER BY v -> q
MIN(tz)::DATE FROM z GROUP BY t HAVING MIN(tz) < '2026-01-01 04:30:01 Z' -> 2026-01-01
x || '' FROM (SELECT y AS x FROM (SELECT DATEADD(DAY, 1, ntz) AS y FROM z)) -> 2026-01-02 10:00:00.000
OBJECT_AGG(k, v) FROM VALUES ('a', 1), ('b', NULL), (NULL, 2) AS t(k, v) -> {"a":1}
OBJECT_CONSTRUCT('a', 1, NULL, 2) -> {"a":1}; ARRAY_SIZE(PARSE_JSON('{}')) -> None
ROUND(HAVERSINE(37.7749, -122.4194, 34.0522, -118.2437)) -> 559.0; UNIFORM(1, 3, 7) BETWEEN 1 AND 3 -> True
PARSE_JSON(' NULL ') -> null; TRIM(1) || TRIM(PARSE_JSON('{"k": " v "}'):k) -> 1v
LENGTH(RANDSTR(5, RANDOM(3))) -> 5; COUNT(DISTINCT RANDSTR(9, column1)) FROM VALUES (1), (2), (3) -> 3
'abcdef'::VARCHAR(3) -> abc; 12345::VARCHAR(2) -> 12; PARSE_JSON('{"a": "long"}'):a::VARCHAR(2) -> lo
TRY_TO_BINARY('zz') -> None
n, f.index, f.value FROM lists, LATERAL FLATTEN(v) f -> 1, 0, 3 | 1, 1, 1 | 1, 2, 2 | 2, 0, [9,8] | 2, 1, [7]
n, f.value::VARCHAR FROM lists l, TABLE(FLATTEN(l.v)) f LIMIT 2 -> 1, 3 | 1, 1
f.e FROM lists, LATERAL FLATTEN(v) f (a, b, c, d, e) WHERE n = 1 -> 3 | 1 | 2
g.value FROM lists l, LATERAL FLATTEN(l.v) f, LATERAL FLATTEN(f.value) g WHERE n = 2 -> 9 | 8 | 7
f.key FROM (SELECT 1) a, LATERAL FLATTEN(PARSE_JSON('{"b":1,"a":2,"c":3}')) f -> a | b | c
n, f.value FROM lists, LATERAL FLATTEN(v:nope, OUTER => TRUE) f -> 1, None | 2, None
ARRAY_SIZE(OBJECT_KEYS(OBJECT_AGG(n || f.index, 1))) FROM lists, LATERAL FLATTEN(v) f -> 5
n, BITOR_AGG(f.index) FROM lists, LATERAL FLATTEN(v) f GROUP BY n ORDER BY n -> 1, 3 | 2, 1
key, path, index, value FROM TABLE(FLATTEN(PARSE_JSON('[1, 7]'))) -> None, [0], 0, 1 | None, [1], 1, 7
path, value FROM TABLE(FLATTEN(INPUT => PARSE_JSON('{"b x":[77]}'), PATH => '"b x"')) -> ['b x'][0], 77
path FROM TABLE(FLATTEN(PARSE_JSON('{"c":{"d":1}}'), RECURSIVE => TRUE, MODE => 'OBJECT')) -> c | c.d
key, value FROM TABLE(FLATTEN(INPUT => PARSE_JSON('[]'), OUTER => TRUE)) -> None, None
ARRAY_SLICE([0, 1, 2, 3], 0, -1) -> [0,1,2]; ARRAY_MAX([2, 10, NULL]) -> 10; PARSE_JSON('') -> None
ARRAY_TO_STRING([1, NULL, 2], ',') -> 1,,2; OBJECT_KEYS({'b': 1, 'a': 2})::VARCHAR -> ["a","b"]
OBJECT_INSERT({'a': {'x': 1}}, 'a', PARSE_JSON('{"z":1}'), TRUE) -> {"a":{"z":1}}
OBJECT_PICK(PARSE_JSON('{"a":null,"b":1}'), 'a', 'z') -> {"a":null}
LISTAGG(column1, ',') || '|', ARRAY_AGG(column1) FROM VALUES (1) WHERE column1 > 1 -> |, []
v:o FROM long -> {"n":-12345678901234567890.125,"t":"x"}; v:e FROM long -> 1000000000000000000000.5
v:n::NUMBER(38, 3) FROM long -> 12345678901234567890.123
v['o']['n']::NUMBER(38, 3) FROM long -> -12345678901234567890.125
v:t::VARCHAR FROM long -> 1234567890123456.7890
f.value FROM long, LATERAL FLATTEN(v) f WHERE f.key = 'n' -> 12345678901234567890.123
SUM(f.value:n::NUMBER(38, 3)) FROM long, LATERAL FLATTEN(v) f WHERE f.key = 'o' -> -12345678901234567890.125
(ROW_NUMBER() OVER (ORDER BY SEQ8()) - 1) * 2 FROM TABLE(GENERATOR(ROWCOUNT => 2)) -> 0 | 2
column1 FROM VALUES (TRUE) -> True
SUM(a), AVG(a), SUM(DISTINCT a), MEDIAN(a), VARIANCE_POP(a), MAX(a) FROM texts -> \
13.5, 4.5, 12.0, 1.5, 18.0, 10.5
DISTINCT SUM(a) OVER (PARTITION BY a) FROM texts ORDER BY 1 -> 3.0 | 10.5 | None
COUNT_IF(id > 1), COUNT_IF(s > 'b') FROM many -> 2, 0; COUNT_IF(id > 1) FROM many WHERE id > 9 -> 0
DISTINCT COUNT_IF(id > 1) OVER (PARTITION BY s) FROM many ORDER BY 1 -> 0 | 1
AVG(id) OVER (ORDER BY id) FROM many QUALIFY AVG(id) OVER (ORDER BY id) > 1 ORDER BY 1 -> 1.500000 | 2.000000
COUNT(DISTINCT x) FROM (SELECT RANDOM(1) x FROM TABLE(GENERATOR(ROWCOUNT => 99))) -> 99
RANDOM(1) = RANDOM(1) -> True
(1 / 1 / 1 / 1 / 1 / 1 / 1 / 1 / 1 / 1 / 1 / 1 / 1 / 1 / 1 / 1 / 1 / 1 / 1 / 1 / 1)::INT -> 1
MD5_NUMBER_LOWER64('Snowflake') -> 9203306159527282910
MD5_NUMBER_UPPER64('Snowflake') -> 17145559544104499780
'inf'::FLOAT, '-inf'::FLOAT, EXP(1000), 1e308::FLOAT * 10 -> inf, -inf, inf, inf
x'10', $$0x10$$, '2024-01-01'::DATE + INTERVAL '1 day' = '2024-01-02' -> b'\\x10', 0x10, True
i FROM chosen UNION ALL SELECT 2.5 ORDER BY 1 -> 2.5 | 7.0
i FROM chosen UNION ALL SELECT '5' ORDER BY 1 -> 5 | 7
i FROM chosen UNION SELECT n / 3 FROM chosen ORDER BY 1 -> 0.41666667 | 7.00000000
s FROM (WITH a AS (SELECT i FROM chosen UNION ALL SELECT 0.5) SELECT SUM(i) AS s FROM a) -> 7.5
x::VARCHAR FROM (SELECT v:k AS x FROM chosen UNION ALL SELECT 'l') ORDER BY 1 -> l | q
i FROM chosen WHERE i IN (SELECT 7.4) -> no rows; i FROM chosen WHERE i NOT IN (SELECT 6.6) -> 7
column1 FROM VALUES (1::INT), (2.5) ORDER BY 1 -> 1.0 | 2.5
1 UNION ALL SELECT 2.5 UNION ALL SELECT '3' UNION ALL SELECT 10.25 ORDER BY 1 -> 1.00 | 2.50 | 3.00 | 10.25
s FROM (WITH RECURSIVE c AS (SELECT 1 n UNION ALL SELECT n + 1 FROM c WHERE n < 3) SELECT SUM(n) s FROM c) \
-> 6
k, v FROM l ORDER BY ALL -> 1, 5 | 1, 30 | 2, 20 | 3, None
k, COUNT(*) FROM l GROUP BY ALL ORDER BY ALL DESC -> 3, 1 | 2, 1 | 1, 2
* FROM r ORDER BY ALL DESC NULLS LAST -> 2, 15 | 1, 10
x FROM (WITH c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 2) SELECT x FROM c) -> 1 | 2
l.k, r.v AS w FROM l ASOF JOIN r MATCH_CONDITION (l.v >= r.v) ON l.k = r.k ORDER BY 2, 1 -> \
1, 10 | 2, 15 | 1, None | 3, None
a.k, b.v FROM l a ASOF JOIN r b MATCH_CONDITION (a.v <= b.v) ORDER BY 2, 1 -> \
1, 10 | 1, None | 2, None | 3, None
l.k, r.v FROM l, r WHERE l.k = r.k (+) AND l.v > 5 ORDER BY l.k -> 1, 10 | 2, 15
a.k, b.v FROM l a, r b WHERE b.k (+) = a.k AND b.v (+) > 12 ORDER BY 2, 1 -> \
2, 15 | 1, None | 1, None | 3, None
n FROM (WITH r AS (SELECT 7 n) SELECT n FROM r) -> 7; n FROM (WITH q AS (SELECT 3 n) SELECT n FROM q) w -> 3
n FROM (WITH r AS (SELECT v + 1 AS n FROM r) SELECT MAX(n) AS n FROM r) -> 16
m FROM (WITH a AS (SELECT 1 n), b AS (SELECT n + 1 m FROM a) SELECT m FROM b) -> 2
v, index, p.value FROM splittable, LATERAL SPLIT_TO_TABLE(v, '.') AS p ORDER BY 1, 2 -> \
a.b, 1, a | a.b, 2, b | c, 1, c
COUNT(*) FROM splittable, TABLE(SPLIT_TO_TABLE(splittable.v, '.')) p -> 3
v, value FROM splittable LEFT JOIN LATERAL SPLIT_TO_TABLE(v, '.') WHERE v IS NULL -> None, None
COUNT(*) FROM local..l -> 4; COUNT(*) FROM TABLE('l') -> 4
# ({0})::VARCHAR, ({0}) || '' FROM g
f * 2 -> 5, 5; -f -> -2.5, -2.5; f + i -> 4.5, 4.5; SUM(f) * 2 -> 5, 5; SQRT(4) -> 2, 2; 1e3 -> 1000, 1000
IFF(TRUE, f * 2, 0) -> 5, 5; ROUND(f) -> 3, 3; POWER(2, 3) -> 8, 8; TO_DOUBLE('3') -> 3, 3
# {} FROM tried LIMIT 1
TRY_PARSE_JSON('[' || LISTAGG(x, ',') WITHIN GROUP (ORDER BY x) || ']')[1]::INT -> 2
TRY_PARSE_JSON(LISTAGG(x, ',')) -> None; TRY_TO_BINARY(MAX(x), 'UTF-8') -> b'2'
TRY_TO_BINARY(MAX(x) || '0', 'HEX') -> b' '; TRY_TO_TIMESTAMP(MAX(x) || ' nope') -> None
TRY_TO_DATE(MAX(x) || '024-01-01') -> 2024-01-01; TRY_TO_TIME(MIN(x) || '0:00:00') -> 10:00:00
TRY_TO_NUMBER(MAX(x)) -> 2; TRY_TO_BOOLEAN(MIN(x)) -> True; TRY_CAST(MAX(x) || MIN(x) AS INT) -> 21
TRY_TO_DATE((SELECT MAX(x) FROM tried) || '024-01-01') -> 2024-01-01; TRY_TO_DOUBLE(MIN(x)) -> 1.0
TRY_TO_DATE(MAX(MAX(x)) OVER () || '024-01-01') -> 2024-01-01
# {} FROM stamps
TO_TIMESTAMP('1700000000000') -> 2023-11-14 22:13:20; TO_TIMESTAMP_NTZ(v:epoch) -> 2023-11-14 22:13:20
TO_TIMESTAMP_NTZ(v:at) -> 2026-01-01 02:00:00; TO_TIMESTAMP(written) -> 2026-01-01 02:00:00.500000
TO_TIMESTAMP_NTZ('2026-01-01'::DATE + 0) -> 2026-01-01 00:00:00; TO_TIMESTAMP_NTZ(v:none) -> None
TRY_TO_TIMESTAMP_NTZ(bad) -> None; TO_TIMESTAMP(NULL::VARCHAR) -> None
'1700000000000'::TIMESTAMP_LTZ -> 2023-11-14 22:13:20+00:00; zoned::TIMESTAMP_TZ -> 2026-01-01 02:00:00+02:00
micros::TIMESTAMP_NTZ -> 2023-11-14 22:13:20.000005; v:at::TIMESTAMP_NTZ -> 2026-01-01 02:00:00
TO_DATE('1700000000') -> 2023-11-14
# {} FROM quotients GROUP BY ALL ORDER BY 1 LIMIT 1
1 / 3 -> 0.333333; n / 0.0001 -> 35000.00000000; 1 / (2 / 3) -> 1.499999; MAX(deep) / 3 -> 0.33333333333333
SUM(id) / COUNT(*) -> 1.500000; AVG(id) + AVG(n) / 2 -> 3.500000000000; MAX(AVG(n)) OVER () -> 4.00000000
DIV0(1, 0) -> 0.000000; NULL / 3 -> None; 1::FLOAT / 4 -> 0.25; PARSE_JSON('3') / 4 -> 0.75
# typed {} FROM single
DATE_PART(TZH, z) -> 2 NUMBER; DATE_PART('epoch', '2024-05-01'::DATE) -> 1714521600 NUMBER
EXTRACT(TIMEZONE_HOUR FROM '2024-01-01 10:00:00 +0530'::TIMESTAMP_TZ) -> 5 NUMBER
DATE_PART(TIMEZONE_MINUTE, '2024-01-01 10:00:00 +0530'::TIMESTAMP_TZ) -> 30 NUMBER
ADD_MONTHS('2024-01-31 10:00:00'::TIMESTAMP, 1)::VARCHAR -> 2024-02-29 10:00:00.000 VARCHAR
ADD_MONTHS('2024-02-29 10:00:00 +0500'::TIMESTAMP_TZ, 1)::VARCHAR -> 2024-03-31 10:00:00.000 +0500 VARCHAR
MONTHS_BETWEEN('2019-03-01 02:00:00'::TIMESTAMP, '2019-02-15 01:00:00'::TIMESTAMP) -> 0.549731 NUMBER
MONTHS_BETWEEN('2019-02-15 10:00:00'::TIMESTAMP, '2019-03-15'::TIMESTAMP) -> -1.000000 NUMBER
REGEXP_SUBSTR_ALL('a1_a2', 'a([0-9])', 1, 1, 'e')[1]::VARCHAR -> 2 VARCHAR; CEIL(5) -> 5 NUMBER
AS_NUMBER(1.55::VARIANT, 10, 1) -> 1.6 NUMBER; AS_DECIMAL(1.50::VARIANT, 5, 2) -> 1.50 NUMBER
AS_DECIMAL('1'::VARIANT) -> None NUMBER; FLOOR(COUNT(*)) -> 1 NUMBER; CBRT(27) -> 3.0 FLOAT
LPAD('abc', 5, '') -> abc VARCHAR; CONTAINS('a', NULL) -> None BOOLEAN
DATEADD(day, 1, NULL) -> None TIMESTAMP_NTZ; COUNT(s, NULL, n) -> 0 NUMBER; COUNT(s, n) -> 1 NUMBER
('2024-01-01'::TIMESTAMP + INTERVAL '1 day, 2 hours, 3 minutes')::VARCHAR -> 2024-01-02 02:03:00.000 VARCHAR
TIMESTAMP_NTZ_FROM_PARTS(2024, 1, 2, 3, 4, 5, 123456789)::VARCHAR -> 2024-01-02 03:04:05.123 VARCHAR
TO_CHAR(TIMESTAMP_FROM_PARTS(2013, 4, 5, 12, 0, -3600, 999999), 'HH24:MI:SS.FF6') -> 11:00:00.000999 VARCHAR
TIMESTAMP_FROM_PARTS(2024, 13, 32, 25, 61, 61)::VARCHAR -> 2025-02-02 02:02:01.000 VARCHAR
TRY_TO_DATE('20240101')::VARCHAR -> 1970-08-23 VARCHAR; TRY_TO_DATE('x', 'AUTO') -> None DATE
s IS DISTINCT FROM 3 -> True BOOLEAN; CASE s WHEN 3 THEN 'three' ELSE 'no' END -> no VARCHAR
'2' + 1 -> 3.00000 NUMBER; -0.5::VARCHAR -> -0.50000 NUMBER; s + n -> 4.50000 NUMBER; s + f -> 3.0 FLOAT
UPPER(s) + 1 -> 3.50000 NUMBER; s::VARCHAR(1) + 1 -> 3.00000 NUMBER; NVL(s, '0') + 1 -> 3.50000 NUMBER
ABS('-3') -> 3.00000 NUMBER; ROUND('1.55', 1) -> 1.6 NUMBER; CEIL(s) -> 3 NUMBER
COALESCE(s, n) -> 2.50000 NUMBER; IFF(n > 2, s, n) -> 2.00000 NUMBER; COALESCE(f, s) -> 0.5 FLOAT
s > 1 -> True BOOLEAN; s < n -> False BOOLEAN; s BETWEEN 1 AND 3 -> True BOOLEAN; n = '2.0' -> True BOOLEAN
# HASH({}) FROM single
10::NUMBER(38,0)) = HASH(10::NUMBER(5,3) -> True; 10::NUMBER(38,0)) = HASH(10::FLOAT -> True
100000000000000000000) = HASH(1e20 -> True; n) = HASH(2.00 -> True; NULL::INT) = HASH(NULL::FLOAT -> True
n, s) = HASH(n::NUMBER(20,5), '2.5' -> True; z) = HASH('2024-01-01 08:00:00 Z'::TIMESTAMP_TZ -> True
10) = HASH('10' -> False; 1, 2) = HASH(2, 1 -> False; NULL) = HASH('' -> False; TRUE) = HASH(1 -> False
# {} FROM mixed
w::INT -> 1; PARSE_JSON('true')::FLOAT -> 1.0; PARSE_JSON('true')::VARCHAR -> true
n IN (SELECT s FROM mixed) -> True; n = (SELECT MAX(s) FROM mixed) -> True; NULLIF(s, 1) -> None
SUBSTR(b, 2)::VARCHAR -> EF01; LEFT(b, 2)::VARCHAR -> CDEF; ROUND(m, k) -> -123.4600; TRUNC(m, k) -> -123.4500
d IN ('29-FEB-2024', '2024-03-01') -> True; d BETWEEN '28-FEB-2024' AND '01-MAR-2024' -> True
CASE d WHEN '29-FEB-2024' THEN 1 END -> 1; z = '03:00 PM' -> True; 'CDEF02' > b -> True
# ({}) || '|' FROM single
SUBSTR('abc', -5) -> |; SUBSTR('abc', -3, 2) -> ab|; SUBSTR(s, -n - 2) -> |; SUBSTR(s, NULL) -> None
SUBSTR('0A0B'::BINARY, -1) -> 0B|
# OBJECT_CONSTRUCT_KEEP_NULL({}) FROM vartab
'key_1', 'one', 'key_2', NULL -> {"key_1":"one","key_2":null}; 'key_1', 'one', NULL, 'two' -> {"key_1":"one"}
'b', n, 'a', NULLIF(n, 1) -> {"a":null,"b":1}; NULLIF('a', 'a'), 1, 'c', NULL, 'a', 2 -> {"a":2,"c":null}
# {} FROM vartab
PARSE_JSON('[1]')::ARRAY -> [1]; PARSE_JSON('null')::ARRAY -> None; 5::ARRAY -> [5]
PARSE_JSON('{"b":1,"a":2}')::OBJECT:a::INT -> 2; TO_OBJECT(PARSE_JSON('null')) -> None
ARRAY_SIZE(PARSE_JSON('{"a":[1,2]}'):a::ARRAY) -> 2
# {} FROM member
CASE v:k WHEN 'x' THEN 1 END -> 1; DECODE(v:n, 2, 'two') -> two; MIN(v:k)::VARCHAR -> x
LISTAGG(v:k, ',') -> x
# {} FROM subscripted
v[-1] -> None; v[n] -> 2; v[n + 1]:a::INT -> 7; v[2]['b c'].d[0]::VARCHAR -> x
# {}::VARCHAR
ARRAY_GENERATE_RANGE(0, 3) -> [0,1,2]; STRTOK_TO_ARRAY('a.b', '.') -> ["a","b"]
REGEXP_SUBSTR_ALL('a1b2', '[0-9]') -> ["1","2"]
# {} FROM VALUES ('2024-01-31') AS t (d)
DATEADD(DAY, 1, d) -> 2024-02-01 00:00:00; DATEDIFF(DAY, d, '2024-02-01') -> 1; YEAR(d) + MONTH(d) -> 2025
# {} FROM rates
r * r -> 1.000246928242; (r * 1.5) * r -> 1.500370392362; -r * 0.1234567 -> -0.123471941532
n * n * n * n -> 5.06250000; f * 1.5 -> 1.50000000000000000015
# {} FROM whole
LEFT(s, i) -> ab; SUBSTR(s, i, i) -> bc; CHR(i + 64) -> B; SPLIT_PART(s, 'b', i) -> c; BITAND(i, 3) -> 2
BITNOT(i) -> -3; FACTORIAL(i + 1) -> 6; GET(a, i) -> 3; NTILE(i) OVER (ORDER BY s) -> 1
LAG(s, i, 'none') OVER (ORDER BY s) -> none; REGEXP_INSTR(s, 'b', i) -> 2
NTH_VALUE(s, i) OVER (ORDER BY s) -> None; REGEXP_SUBSTR(s, 'b', 1, i) -> b; POSITION('b', s, i + 1) -> 4
INSERT(s, i, 1, 'x') -> axcb; STRTOK(s, 'b', i) -> c; LENGTH(RANDSTR(i, 1)) -> 2
ARRAY_SIZE(ARRAY_GENERATE_RANGE(0, i)) -> 2; GETBIT(i, 1) -> 1; LEFT(s, 1.5) -> ab
TO_CHAR(TIMESTAMP_FROM_PARTS(2020, i, i, i, i, i), 'YYYY-MM-DD HH24:MI:SS') -> 2020-02-02 02:02:02
d + i -> 2026-02-02; d - i * 2 -> 2026-01-27; d + k -> 2026-02-03
# ({})::VARCHAR FROM (SELECT 1::INT AS a UNION ALL SELECT 2::INT) LIMIT 1
MEDIAN(a) -> 1.500; PERCENTILE_CONT(0.25) WITHIN GROUP (ORDER BY a) -> 1.250; APPROX_PERCENTILE(a, 0.5) -> 1.5
MOD(MAX(a) + 5, 2.5) -> 2.0; CEIL(SUM(a) / 8, 1) -> 0.4; FLOOR(-975.975, 2) -> -975.98
# {} FROM z
tz -> 2026-01-01 10:00:00+05:30; ltz -> 2026-01-01 04:30:00+00:00; ntz -> 2026-01-01 10:00:00
tz::VARCHAR -> 2026-01-01 10:00:00.000 +0530; t::VARCHAR(5) -> 10:11
TO_CHAR(tz, 'YYYY-MM-DD HH24:MI TZH:TZM') -> 2026-01-01 10:00 +05:30
tz::TIMESTAMP_LTZ -> 2026-01-01 04:30:00+00:00; tz = '2026-01-01 04:30:00' -> True
DATEADD(DAY, 1, DATEADD(MONTH, 1, tz)) -> 2026-02-02 10:00:00+05:30; HOUR(DATEADD(HOUR, 2, tz)) -> 12
COALESCE(tz, ltz) -> 2026-01-01 10:00:00+05:30; tz::VARIANT -> "2026-01-01 10:00:00.000 +0530"
'2026-01-01T10:00:00Z'::TIMESTAMP_TZ -> 2026-01-01 10:00:00+00:00
TO_TIMESTAMP(1700000000123456789, 9) -> 2023-11-14 22:13:20.123456
TO_TIMESTAMP(-1, 9) -> 1969-12-31 23:59:59.999999
TO_TIMESTAMP_NTZ(PARSE_JSON('{"a":"17.5"}'):a, 0) -> 1970-01-01 00:00:17.500000
CONVERT_TIMEZONE('Asia/Kolkata', ltz) -> 2026-01-01 10:00:00+05:30
MAX(tz)::VARCHAR -> 2026-01-01 10:00:00.000 +0530; MAX(tz)::DATE -> 2026-01-01
DATEADD(DAY, 1, MAX(tz)) -> 2026-01-02 10:00:00+05:30; ARRAY_AGG(tz) -> ["2026-01-01 10:00:00.000 +0530"]
# ({})::VARCHAR
TO_CHAR('2026-01-02 10:20:30.789'::TIMESTAMP, 'HH24:MI:SS.FF3') -> 10:20:30.789
TO_VARCHAR('2026-01-02'::DATE, '"on" DD/MM') -> on 02/01; DATEADD(day, 1.6, '2026-01-01'::DATE) -> 2026-01-03
TO_TIMESTAMP_TZ('2026 -03:30', 'YYYY TZH:TZM') -> 2026-01-01 00:00:00.000 -0330
TO_TIMESTAMP('2026-01-02 10:00 -0330', 'YYYY-MM-DD HH24:MI TZHTZM') -> 2026-01-02 10:00:00.000
'2026-01-31'::DATE + INTERVAL '1 month' -> 2026-02-28; '05-Jan-2026'::DATE -> 2026-01-05
'2026-01-02 10'::TIMESTAMP -> 2026-01-02 10:00:00.000
LEFT('2026-01-02'::DATE, 4) || LPAD(7, 3, '0') -> 2026007
# x::VARCHAR FROM (SELECT {} AS x FROM chosen)
COALESCE(NULL::INT, 0.5) -> 0.5; CASE WHEN FALSE THEN 1 WHEN FALSE THEN i ELSE n / 3 END -> 0.41666667
DECODE(1, 2, i, 0.5) -> 0.5; LAG(i, 1, 0.5) OVER (ORDER BY i) -> 0.5
IFF(FALSE, i, IFF(FALSE, n, 0.125)) -> 0.125; COALESCE(NULLIF(i, 7), f) -> 0.5; COALESCE(v:z, 0.5) -> 0.5
# ({})::VARCHAR FROM z
DATEADD(DAY, 1, ntz) -> 2026-01-02 10:00:00.000; DATEADD(HOUR, 1, ltz) -> 2026-01-01 05:30:00.000 +0000
DATEADD(DAY, 1, ntz::DATE) -> 2026-01-02; TIMEADD(HOUR, 1, tz) -> 2026-01-01 11:00:00.000 +0530
ADD_MONTHS(ntz::DATE, 1) -> 2026-02-01; ntz + INTERVAL '1 day' -> 2026-01-02 10:00:00.000
DATE_TRUNC('MONTH', ltz) -> 2026-01-01 00:00:00.000 +0000
TIME_SLICE(ntz, 2, 'HOUR') -> 2026-01-01 10:00:00.000
CONVERT_TIMEZONE('UTC', 'Asia/Tokyo', ntz) -> 2026-01-01 19:00:00.000
TIMESTAMP_TZ_FROM_PARTS(2026, 1, 2, 3, 4, 5, 0, 'Asia/Tokyo') -> 2026-01-02 03:04:05.000 +0900
IFF(TRUE, ntz, ntz) -> 2026-01-01 10:00:00.000; NULLIF(ntz, '2020-01-01') -> 2026-01-01 10:00:00.000
(SELECT ntz FROM z) -> 2026-01-01 10:00:00.000; TO_VARIANT(ntz) -> 2026-01-01 10:00:00.000
ARRAY_AGG(ntz) -> ["2026-01-01 10:00:00.000"]; OBJECT_CONSTRUCT('a', ltz):a -> 2026-01-01 04:30:00.000 +0000
LISTAGG(ntz, ',') -> 2026-01-01 10:00:00.000
CASE WHEN t = '10:11:12' THEN ntz ELSE tz END -> 2026-01-01 10:00:00.000 +0000
DECODE(t, '10:11:12', tz, ntz) -> 2026-01-01 10:00:00.000 +0530
"""


# Behind each number of an error what is refused with it.
REFUSED = """
# 000002
GRANT SELECT ON TABLE l TO USER demo; REVOKE OWNERSHIP ON TABLE l FROM ROLE public; ALTER ROLE sysadmin JUMP
SELECT * FROM @s
COPY INTO l FROM (SELECT $1, $2 FROM @s WHERE $1 > 1); COPY INTO l FROM @s FILE_FORMAT = (TYPE = AVRO)
COPY INTO l (k) FROM (SELECT seq.NEXTVAL FROM @s)
SELECT SOUNDEX('a'); CREATE TABLE FUNCTION f() RETURNS INT AS '1'; SELECT TO_CHAR(1.5, '9,999.00')
SELECT * FROM docs AT(OFFSET => -60); SELECT id INTO x FROM docs
SELECT * FROM TABLE(NO_SUCH_TABLE_FUNCTION()); SELECT * FROM TABLE(GENERATOR(ROWCOUNT => 'x'))
SELECT * FROM TABLE(GENERATOR(ROWCOUNT => 1.5)); SELECT 'a' COLLATE 'en-ci' = 'A'
CREATE TABLE c (a VARCHAR COLLATE 'en-ci'); SELECT 1::HUGEINT; SELECT 'a' SIMILAR TO 'b'; SELECT (1, 2)
CREATE TABLE c (a INT GENERATED ALWAYS AS (b + 1), b INT); SELECT GETVARIABLE('A'); BEGIN LET x := 1 END
SELECT TO_CHAR('2026-01-02'::TIMESTAMP, 'SS.FF2'); SELECT TO_TIMESTAMP('+02:00 2026', 'TZH:TZM YYYY')
SELECT '2026-01-02'::TIMESTAMP - '2026-01-01'::TIMESTAMP; ALTER SESSION SET DATE_INPUT_FORMAT = 'DD/MM/YYYY'
ALTER SESSION SET WEEK_START = 7; ALTER SESSION SET TIMESTAMP_TYPE_MAPPING = 'TIMESTAMP_LTZ'
SELECT 'a'::JSON; GRANT USAGE ON INTEGRATION i TO ROLE r; SELECT NULL::DECFLOAT; SELECT NULL::VECTOR(INT, 3)
CREATE TABLE no (a GEOMETRY); ALTER TABLE docs ADD COLUMN no ARRAY(INT); SELECT NULL::OBJECT(a INT)
CREATE TABLE no (a MAP(VARCHAR, INT)); SELECT NULL::INTERVAL DAY; SELECT TO_XML(v) FROM docs
SELECT COMPRESS('a', 'zlib'); SELECT SHA2('a', 512); SELECT ARRAYS_ZIP([1], [2])
SELECT ARRAY_SORT(v:arr, FALSE) FROM docs; SELECT FILTER([1, 2], x -> x > 1); SELECT SYSTEM$WAIT(0) FROM l
SELECT BASE64_ENCODE('a', 76)
SELECT * FROM l PIVOT (SUM(v) FOR k IN (ANY ORDER BY k)); SELECT SYSTEM$WAIT(0), 1
SELECT * FROM l ASOF JOIN r MATCH_CONDITION (l.v >= r.v) USING (k)
CREATE SCHEMA e DEFAULT_DDL_COLLATION = 'en-ci'; CREATE TABLE e (a OUT INT)
CREATE TABLE e (a INT CONSTRAINT c); EXPLAIN SELECT 1
ALTER TABLE docs ALTER id SET MASKING POLICY p; ALTER TABLE docs SET TAG x = 'y'; UNDROP TABLE docs; CALL f()
ALTER TABLE docs ADD SEARCH OPTIMIZATION; ALTER SCHEMA public SWAP WITH other
create or replace stream s on table docs; CREATE STORAGE  INTEGRATION i TYPE = EXTERNAL_STAGE
CREATE TASK t AS SELECT 1; CREATE DATABASE ROLE r
# 000904
SELECT t.$1 FROM @s
COPY INTO l (other) FROM @s; COPY INTO l FROM (SELECT $1, nonsense FROM @s)
SELECT x.id FROM docs; SELECT "id" FROM docs; SELECT 1 FROM docs WHERE "Id" = 1; SELECT rowid FROM docs
SELECT docs."rowid" FROM docs; UPDATE docs SET id = 1 WHERE RowId = 0
# 001003
GRANT SELECT ON TABLE l TO ROLE public SOMETIMES; GRANT SELECT ON STAGE s TO ROLE public
SELECT $999999999999 FROM @s; COPY INTO texts FROM (SELECT $99999 FROM @s); SELECT $1 FROM @s/../x
COPY INTO l FROM @s MATCH_BY_COLUMN_NAME = CASE_SENSITIVE; COPY INTO l FROM @s nonsense
SELECT * FROM A.B.C.D; INSERT INTO LOCAL.PUBLIC..T SELECT 1; DELETE FROM A.B.C.D; UPDATE A.B.C.D SET a = 1
GRANT SELECT TABLE t
SELECT OBJECT_CONSTRUCT('a', 'b', NULL); SELECT 1 AS t, TABLE(FLATTEN(PARSE_JSON('[1]'))); SELECT X'4'
SELECT * FROM TABLE(FLATTEN(INPUT => 1, MODE => 'SOME')); SELECT 5 & 3; SELECT 'a' 'b'
SELECT COUNT(*) FILTER (WHERE id > 1) FROM docs; SELECT CURRENT_TIMESTAMP AT TIME ZONE 'UTC'
SELECT DISTINCT ON (id) id FROM docs; SELECT id FROM docs SEMI JOIN docs u USING (id)
SELECT id FROM docs LIMIT 10 PERCENT; SELECT id FROM docs FETCH FIRST 1 ROWS WITH TIES
SELECT id FROM docs USING SAMPLE 10; SELECT id FROM docs EXCEPT ALL SELECT id FROM docs
INSERT OR REPLACE INTO docs (id) VALUES (1); INSERT INTO docs (id) VALUES (1) ON CONFLICT DO NOTHING
INSERT INTO docs DEFAULT VALUES; UPDATE docs SET (id, v) = (1, NULL); SELECT 5 DIV 2; SELECT [1,]
SELECT {'a': 1,}; SELECT ARRAY_CONSTRUCT(1,); SELECT 1 IN (1,); SELECT COALESCE(1, 2,); SELECT 1 IN [1]
SELECT '2024-01-01'::DATE + INTERVAL 1 DAY; SELECT * FROM docs TABLESAMPLE 10%; SELECT MAP {}; SELECT 0x10
CREATE TABLE no (a INT NOT NULL NULL); SHOW TABLES LIMIT -1; CREATE OR REPLACE TABLE IF NOT EXISTS no (a INT)
CREATE OR REPLACE ICEBERG TABLE IF NOT EXISTS no (a INT); CREATE OR REPLACE SEQUENCE IF NOT EXISTS no
CREATE OR REPLACE VIEW IF NOT EXISTS no AS SELECT 1 a; CREATE OR REPLACE STAGE IF NOT EXISTS no
CREATE OR REPLACE FILE FORMAT IF NOT EXISTS no TYPE = CSV; CREATE OR REPLACE SCHEMA IF NOT EXISTS no
CREATE OR REPLACE DATABASE IF NOT EXISTS no; CREATE OR REPLACE ROLE IF NOT EXISTS no
CREATE OR REPLACE USER IF NOT EXISTS no; CREATE OR REPLACE WAREHOUSE IF NOT EXISTS no
CREATE OR REPLACE PIPE IF NOT EXISTS no AS COPY INTO l FROM @~
# 001008
COPY INTO l FROM @s ON_ERROR = SKIP_FILE_0; COPY INTO l FROM @s SIZE_LIMIT = 0; COPY INTO l FROM @s FORCE = 1
CREATE STAGE e ENCRYPTION = (TYPE = 'NOPE')
# 001420
COPY INTO l FROM @s FRCE = TRUE
CREATE STAGE e COPY_OPTIONS = (NOPE = 1)
# 002002
CREATE SCHEMA information_schema
# 002108
ALTER TABLE single ALTER z VARCHAR(5)
# 100078
SELECT REPEAT('xy', 100000000); SELECT SPACE(1000000000)
SELECT LENGTH(REPLACE(REPEAT('a', 1000000), 'a', REPEAT('b', 1000)))
SELECT LENGTH(LISTAGG(REPEAT('a', 16000000))) FROM TABLE(GENERATOR(ROWCOUNT => 9))
# 001065
SELECT TRY_CAST(id AS VARCHAR) FROM docs
# 002140
SELECT NO_SUCH_FUNCTION(1); SELECT list_value(1, 2); SELECT range(1); SELECT * FROM range(3)
SELECT STRUCT_PACK(a := 1); SELECT epoch_ms(1) FROM VALUES (1); SELECT strptime('2024', '%Y')
SELECT format('{:>1000000000}', 1)
# 002303
SELECT RANK() OVER (PARTITION BY id) FROM docs
# 002003
GRANT SELECT ON TABLE nope TO ROLE public
SELECT $1 FROM @nowhere; SELECT $1 FROM @s (FILE_FORMAT => nowhere)
COPY INTO nowhere FROM @s; COPY INTO l FROM @nowhere
# 002020
COPY INTO l FROM (SELECT $1 FROM @s)
# 002028
SELECT $1 FROM @s a, @s b
# 002043
GRANT SELECT ON TABLE l TO ROLE nobody
# 002079
COPY INTO l FROM (SELECT $1, count($2) FROM @s)
# 003001
COPY INTO l FROM 'file:///etc/passwd'
# 100038
SELECT 'abc' + 1; SELECT '' + 1; SELECT -'x'; SELECT '2024-01-01' + 1; SELECT NULLIF('x', 1)
SELECT n IN (SELECT 'x') FROM single
SELECT i FROM chosen UNION ALL SELECT 'x'
# 100039
SELECT 100000000000000000000000000000000000000; SELECT 100000000000000000000000000000000000000.5; SELECT 1e400
# 100046
SELECT 99999999999999999999999999999999999999 + 1
SELECT SUM(x) FROM (SELECT 99999999999999999999999999999999999999 AS x UNION ALL SELECT 1)
CREATE TABLE no AS SELECT 99999999999999999999999999999999999999 + 1 AS x; SELECT FACTORIAL(34)
# 100048
SELECT $1 FROM @s (PATTERN => '(')
# 100051
SELECT 1 / 0; SELECT 1.5 / 0; SELECT 1 / (id - 1) FROM docs; SELECT 1::FLOAT / 0; SELECT MOD(5, 0)
# 100054
SELECT SQRT(-1); SELECT LN(0); SELECT LOG(10, -1); SELECT ACOS(2); SELECT ASIN(2); SELECT ATANH(2)
# 100115
SELECT b = 'x' FROM mixed; SELECT TO_BINARY('zz')
"""


@pytest.fixture(scope="module")
def sql(module_sql: SqlSessions) -> SqlSessions:
    module_sql.run(*(f"CREATE TABLE {table}" for table in TABLES), "CREATE STAGE s", "CREATE SEQUENCE seq")
    return module_sql


@pytest.mark.parametrize("part", VALUES.split("\n# ")[1:], ids=lambda part: part.partition("\n")[0])
def test_an_expression_has_snowflakes_value(sql: SqlSessions, part: str) -> None:
    query, _, cases = part.partition("\n")
    for expression, expected in pairs(cases):
        result = front.execute(sql.session(), f"SELECT {query.removeprefix('typed ').format(expression)}")
        kind = f" {result.columns[0].type.kind}" if query.startswith("typed") else ""
        found = " | ".join(", ".join(map(str, row)) + kind for row in result.rows)
        assert (found or "no rows") == expected, expression


@pytest.mark.parametrize("part", REFUSED.split("\n# ")[1:], ids=lambda part: part.partition("\n")[0])
def test_what_is_not_known_or_has_no_value_is_refused(sql: SqlSessions, part: str) -> None:
    code, _, statements = part.partition("\n")
    found = {statement: sql.refused(statement).code for statement in listed(statements)}
    assert found == dict.fromkeys(found, code)
