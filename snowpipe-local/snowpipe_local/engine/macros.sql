-- What values mean, as macros of the engine: one definition for SQL, COPY and streamed rows. Words such as $LONG are of
-- engine/conversions.py.

CREATE OR REPLACE MACRO _ten(e) AS CAST(power(10, e) AS BIGINT);

-- A VARIANT shows its text in quotes. Enough for what has no offset: _epoch makes eight copies of its
-- argument, and with _written in each a cast takes half as long again to prepare.
CREATE OR REPLACE MACRO _bare(s) AS trim(s, ' "');

-- The engine reads no blank before an offset.
CREATE OR REPLACE MACRO _written(s) AS replace(replace(replace(_bare(s), ' +', '+'), ' -', '-'), ' Z', 'Z');

-- The engine's casts read "infinity", "epoch", names of zones, and leave aside what follows a time. No
-- cast reads what begins with chr(1), which errors do not show.
CREATE OR REPLACE MACRO _iso(s) AS
    CASE WHEN NOT regexp_full_match(s, '(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])[-/][0-9]{1,2}[-/][0-9]{1,2}(?:[Tt ]$HOURS)?')
        THEN chr(1) || s ELSE s END;

CREATE OR REPLACE MACRO _iso_time(s) AS CASE WHEN NOT regexp_full_match(s, '$HOURS') THEN chr(1) || s ELSE s END;

-- Cheaper: a year of other than four digits, an hour 24, and what ends with another letter than Z, are left
-- to the slow path.
CREATE OR REPLACE MACRO _plain_end(s) AS s[-1] BETWEEN '0' AND '9' OR s[-1] = 'Z';

CREATE OR REPLACE MACRO _ended(s) AS
    CASE WHEN s IS NULL OR (_plain_end(s) AND s[5] IN ('-', '/') AND s[:4] <> '0000' AND NOT contains(s, ' 24:')
        AND NOT contains(s, 'T24:')) THEN s
        ELSE chr(1) || s END;

CREATE OR REPLACE MACRO _ended_time(s) AS
    CASE WHEN s IS NULL OR (_plain_end(s) AND s[3] = ':' AND s[:2] <> '24') THEN s ELSE chr(1) || s END;

-- The engine takes an odd number of digits, and its error for other characters is not Unicode.
CREATE OR REPLACE MACRO _hex(s) AS unhex(CASE WHEN regexp_full_match(s, '(?:[0-9A-Fa-f]{2})*') OR s IS NULL THEN s ELSE 'x' END);

-- A number in a text counts seconds, milliseconds, microseconds or nanoseconds by its size
-- ("TO_TIMESTAMP", usage notes); NULL for another text.
CREATE OR REPLACE MACRO _epoch(s) AS
    CASE WHEN contains(s, ':') OR contains(substr(s, 2), '-') THEN NULL
    WHEN abs(TRY_CAST(s AS DOUBLE)) < 31536000000
        THEN make_timestamp(CAST(round(TRY_CAST(s AS DECIMAL(38, 9)) * 1000000) AS BIGINT))
    WHEN contains(s, '.') THEN NULL
    WHEN abs(TRY_CAST(s AS DOUBLE)) < 31536000000000 THEN make_timestamp(TRY_CAST(s AS BIGINT) * 1000)
    WHEN abs(TRY_CAST(s AS DOUBLE)) < 31536000000000000 THEN make_timestamp(TRY_CAST(s AS BIGINT))
    ELSE make_timestamp(TRY_CAST(s AS BIGINT) // 1000) END;

-- A number that counts parts of a second: n of them are 10 to the power of s.
CREATE OR REPLACE MACRO _scaled(n, s) AS
    make_timestamp(CAST(CASE WHEN s > 6
        THEN (CAST(n AS HUGEINT) - (CAST(n AS HUGEINT) % _ten(s - 6) + _ten(s - 6)) % _ten(s - 6))
            // _ten(s - 6)
        ELSE CAST(n AS DECIMAL(28, 6)) * _ten(6 - s) END AS BIGINT));

-- A text of a number other than 0 is true: rows of JSON do not distinguish it from the number.
CREATE OR REPLACE MACRO _read_boolean(s) AS
    CASE WHEN s = 'true' THEN true WHEN s = 'false' THEN false
        WHEN regexp_full_match(s, ' *(?i:true|t|yes|y|on|1) *') THEN true
        WHEN regexp_full_match(s, ' *(?i:false|f|no|n|off|0) *') THEN false
        ELSE coalesce(TRY_CAST(s AS DOUBLE) <> 0, CAST(s AS BOOLEAN)) END;

-- No format stands for these words and for a year 0, which the engine's strptime takes all the same.
CREATE OR REPLACE MACRO _finite(s) AS
    CASE WHEN contains(lower(s), 'inf') OR contains(lower(s), 'epoch') OR s[:4] = '0000' THEN 'x' ELSE s END;

-- The other formats of AUTO ("Date and time input and output formats").
CREATE OR REPLACE MACRO _other_clock(s) AS
    CAST(try_strptime(regexp_replace(_finite(s), '(:.*?) ?[+-][0-9]{2}:?[0-9]{2}$', '\1'),
        ['%d-%b-%Y', '%m/%d/%Y', '%m/%d/%Y %H:%M:%S', '%a, %d %b %Y %H:%M:%S',
            '%a, %d %b %Y %I:%M:%S %p', '%Y-%m-%d %H:%M', '%Y-%m-%d %H', '%Y-%m-%dT%H']) AS TIMESTAMP);

CREATE OR REPLACE MACRO _other_instant(s) AS
    coalesce(CAST(try_strptime(_finite(s), '%a, %d %b %Y %H:%M:%S%z') AS TIMESTAMP WITH TIME ZONE),
        CAST(try_strptime(_finite(s), ['%Y-%m-%dT%H:%M%z', '%Y-%m-%d %H:%M%z'])
            AS TIMESTAMP WITH TIME ZONE),
        CAST(_other_clock(s) AS TIMESTAMP WITH TIME ZONE));

CREATE OR REPLACE MACRO _read_ntz(s) AS
    coalesce(_epoch(_bare(s)), TRY_CAST(_iso(_written(s)) AS TIMESTAMP), _other_clock(_written(s)),
        CAST(_iso(s) AS TIMESTAMP));

CREATE OR REPLACE MACRO _read_ltz(s) AS
    coalesce(_epoch(_bare(s)) AT TIME ZONE 'UTC',
        TRY_CAST(_iso(_written(s)) AS TIMESTAMP WITH TIME ZONE),
        _other_instant(_written(s)), CAST(_iso(s) AS TIMESTAMP WITH TIME ZONE));

CREATE OR REPLACE MACRO _read_date(s) AS
    coalesce(CAST(_epoch(_bare(s)) AS DATE), CAST(TRY_CAST(_iso(_written(s)) AS TIMESTAMP) AS DATE),
        CAST(_other_clock(_written(s)) AS DATE), CAST(_iso(s) AS DATE));

CREATE OR REPLACE MACRO _read_time(s) AS
    coalesce(CAST(_epoch(_bare(s)) AS TIME), TRY_CAST(_iso_time(_written(s)) AS TIME),
        CAST(try_strptime(_finite(_bare(s)), ['%I:%M:%S %p', '%I:%M %p']) AS TIME),
        CAST(_iso_time(s) AS TIME));

-- The local time, and its minutes east of UTC.
CREATE OR REPLACE MACRO _zoned(wall, o) AS
    CASE WHEN wall IS NOT NULL THEN struct_pack(
        t := (wall - to_minutes(CAST(o AS BIGINT))) AT TIME ZONE 'UTC', o := CAST(o AS SMALLINT)) END;

-- Of a text that ends with an offset.
CREATE OR REPLACE MACRO _minutes_east(s) AS
    CASE WHEN regexp_matches(s, '-[0-9]{2}:?([0-9]{2})?\s*$') THEN -1 ELSE 1 END
        * (60 * coalesce(TRY_CAST(regexp_extract(s, '[+-]([0-9]{2}):?([0-9]{2})?\s*$', 1) AS INTEGER), 0)
            + coalesce(TRY_CAST(regexp_extract(s, '[+-][0-9]{2}:?([0-9]{2})\s*$', 1) AS INTEGER), 0));

CREATE OR REPLACE MACRO _at_offset(x, m) AS CASE WHEN x IS NOT NULL THEN struct_pack(t := x, o := CAST(m AS SMALLINT)) END;

-- Instant and clock of what is known to be a TIMESTAMP_TZ: HAVING takes no macro that goes by type.
CREATE OR REPLACE MACRO _instant(x) AS (x).t;

CREATE OR REPLACE MACRO _clock(x) AS ((x).t AT TIME ZONE 'UTC') + to_minutes(CAST((x).o AS BIGINT));

CREATE OR REPLACE MACRO _zoned_local(x) AS
    CASE WHEN x IS NOT NULL THEN struct_pack(
        t := x, o := CAST(date_part('timezone', x) / 60 AS SMALLINT)) END;

-- One cast leaves an offset aside, the other one counts it.
CREATE OR REPLACE MACRO _read_tz(s) AS
    CASE WHEN s IS NOT NULL THEN struct_pack(t := _read_ltz(s), o := CASE
        WHEN _epoch(_bare(s)) IS NOT NULL THEN CAST(0 AS SMALLINT)
        ELSE coalesce(CAST(date_diff('minute', _read_ltz(s) AT TIME ZONE 'UTC', _read_ntz(s))
            AS SMALLINT), 0) END) END;

-- A time that was computed at the offset of another one.
CREATE OR REPLACE MACRO _added(wall, x) AS _zoned(CAST(wall AS TIMESTAMP), (x).o);

CREATE OR REPLACE MACRO _in_zone(t, z) AS _zoned(t AT TIME ZONE z, date_diff('minute', t AT TIME ZONE 'UTC', t AT TIME ZONE z));

CREATE OR REPLACE MACRO _float_text(x) AS CASE WHEN isnan(x) THEN 'NaN' ELSE format('{:.15g}', x) END;

-- The digits of a number without zeros at the end; those of a DOUBLE may have an exponent.
CREATE OR REPLACE MACRO _digits(t) AS
    CASE WHEN NOT contains(t, '.') AND NOT contains(t, 'e') THEN t
        WHEN NOT contains(t, 'e') THEN regexp_replace(t, '\.?0+$', '')
        WHEN abs(CAST(t AS DOUBLE)) < 1
            THEN regexp_replace(CAST(CAST(t AS DECIMAL(38, 37)) AS VARCHAR), '\.?0+$', '')
        ELSE coalesce(CAST(TRY_CAST(CAST(t AS DOUBLE) AS DECIMAL(38, 0)) AS VARCHAR), t) END;

CREATE OR REPLACE MACRO _whole_epoch(x, n) AS (epoch_us(x) - (epoch_us(x) % n + n) % n) // n;

CREATE OR REPLACE MACRO _zone_part(x, unit) AS CAST(CASE unit WHEN 'h' THEN trunc((x).o / 60) ELSE (x).o % 60 END AS BIGINT);

-- The time of the day counts, but on the same day of the month and on the last days of both.
CREATE OR REPLACE MACRO _months_between(a, b) AS
    (year(a) - year(b)) * 12 + month(a) - month(b) + CASE
        WHEN day(a) = day(b) OR (CAST(a AS DATE) = last_day(a) AND CAST(b AS DATE) = last_day(b)) THEN 0
        ELSE (day(a) - day(b) + (epoch_us(a) % 86400000000 - epoch_us(b) % 86400000000) / 86400000000.0)
            / 31 END;

CREATE OR REPLACE MACRO _hash_key(x) AS
    CASE WHEN regexp_full_match(typeof(x), 'U?[A-Z]*INT|INTEGER|DECIMAL.*|DOUBLE|FLOAT')
        THEN hash(chr(1) || _digits(CAST(x AS VARCHAR))) ELSE hash(x) END;

CREATE OR REPLACE MACRO _offset_text(o) AS
    CASE WHEN o < 0 THEN '-' ELSE '+' END || lpad(CAST(abs(CAST(o AS INTEGER)) // 60 AS VARCHAR), 2, '0')
        || lpad(CAST(abs(CAST(o AS INTEGER)) % 60 AS VARCHAR), 2, '0');

-- The engine chooses no macro by the type of an aggregate: these are called where the type is known.
CREATE OR REPLACE MACRO _format_date(x, f) AS strftime(x, f);

CREATE OR REPLACE MACRO _format_time(x, f) AS strftime(DATE '1970-01-01' + x, f);

CREATE OR REPLACE MACRO _format_timestamp_ntz(x, f) AS replace(replace(replace(strftime(x, f), chr(1), '+0000'), chr(2), left('+0000', 3) || ':' || right('+0000', 2)), chr(3), left('+0000', 3));

CREATE OR REPLACE MACRO _format_timestamp_ltz(x, f) AS replace(replace(replace(strftime(x, f), chr(1), _offset_text(date_part('timezone', x) // 60)), chr(2), left(_offset_text(date_part('timezone', x) // 60), 3) || ':' || right(_offset_text(date_part('timezone', x) // 60), 2)), chr(3), left(_offset_text(date_part('timezone', x) // 60), 3));

CREATE OR REPLACE MACRO _format_timestamp_tz(x, f) AS replace(replace(replace(strftime(_clock(x), f), chr(1), _offset_text((x).o)), chr(2), left(_offset_text((x).o), 3) || ':' || right(_offset_text((x).o), 2)), chr(3), left(_offset_text((x).o), 3));

-- The engine reads a number inside JSON of more than 16 digits through a DOUBLE: it gets it as a text that
-- begins with a mark, which no JSON of its own has.
CREATE OR REPLACE MACRO _mark(t) AS
    replace(replace(replace(regexp_replace(CAST(t AS VARCHAR), '$OTHER_JSON|(-?[0-9][0-9.]{16,})',
        '\1' || chr(2) || '\2' || chr(3), 'g'), chr(2) || chr(3), ''), chr(2), '"\u0001'), chr(3), '"');

CREATE OR REPLACE MACRO _marked(t) AS CASE WHEN regexp_matches(t, $LONG) THEN CAST(_mark(t) AS JSON) ELSE t END;

CREATE OR REPLACE MACRO _unmark(t) AS regexp_replace(t, '"\\u0001(-?[0-9.]+)"', '\1', 'g');

CREATE OR REPLACE MACRO _unmarked(j) AS CASE WHEN contains(j, '\u0001') THEN CAST(_unmark(j) AS JSON) ELSE j END;

-- _shallow stands inside the cast: the engine computes all branches of constants.
-- Objects with their keys in order, so that equal ones have the same text.
CREATE OR REPLACE MACRO _sorted_keys(j) AS
    CASE WHEN j IS NULL OR NOT contains(CAST(j AS VARCHAR), '{')
        OR regexp_matches(CAST(j AS VARCHAR), $LONG) THEN j
    ELSE CAST(CAST(_shallow(j) AS VARIANT) AS JSON) END;

-- Arrays and objects are put together as text, which leaves the digits of numbers as they are.
CREATE OR REPLACE MACRO _element(j) AS coalesce(CAST(j AS VARCHAR), 'null');

CREATE OR REPLACE MACRO _pair(k, j) AS to_json(k) || ':' || j;

CREATE OR REPLACE MACRO _enclosed(a, z, t) AS CAST(a || t || z AS JSON);

CREATE OR REPLACE MACRO _elements(j) AS CAST(_marked(j) AS JSON[]);

CREATE OR REPLACE MACRO _array_of(l) AS
    CAST(_unmark('[' || array_to_string(list_transform(l, lambda e: coalesce(CAST(e AS VARCHAR), 'null')),
        ',') || ']') AS JSON);

-- As text: a list of the elements takes some 450 bytes for each of them.
CREATE OR REPLACE MACRO _concatenated(a, b) AS
    CASE WHEN strlen(a) + strlen(b) > $MAX_TEXT THEN CAST(CAST('too long and would be truncated' AS INTEGER) AS JSON)
        WHEN NOT (ltrim(a) ^@ '[' AND ltrim(b) ^@ '[') THEN error('an argument is not an array')
        WHEN regexp_full_match(a, '\s*\[\s*\]\s*') THEN b WHEN regexp_full_match(b, '\s*\[\s*\]\s*') THEN a
        ELSE CAST(regexp_replace(a, '\s*\]\s*$', ',') || regexp_replace(b, '^\s*\[', '') AS JSON) END;

CREATE OR REPLACE MACRO _object_of(m) AS
    CAST(_unmark('{' || array_to_string(list_transform(list_sort(map_entries(m)),
        lambda e: to_json(e['key']) || ':' || e['value']), ',') || '}') AS JSON);

-- The text of a VARIANT that becomes a number; one that is none has a word before it, for the error.
CREATE OR REPLACE MACRO _number_text(j) AS
    CASE WHEN CAST(j AS VARCHAR) = 'true' THEN '1' WHEN CAST(j AS VARCHAR) = 'false' THEN '0'
        WHEN TRY_CAST(json_extract_string(j, '$') AS DOUBLE) IS NULL AND json_type(j) <> 'NULL' THEN 'variant ' || j
        ELSE json_extract_string(j, '$') END;

-- ARRAY makes an array of any other value, OBJECT takes nothing else ("TO_ARRAY", "TO_OBJECT").
CREATE OR REPLACE MACRO _array(j) AS
    CASE WHEN j IS NULL OR json_type(j) = 'NULL' THEN NULL WHEN json_type(j) = 'ARRAY' THEN j
        ELSE CAST('[' || j || ']' AS JSON) END;

CREATE OR REPLACE MACRO _object(j) AS
    CASE WHEN j IS NULL OR json_type(j) = 'NULL' THEN NULL WHEN json_type(j) = 'OBJECT' THEN j
        ELSE error('Failed to cast variant value ' || j || ' to OBJECT') END;

-- Of n elements; a negative position counts from the end ("ARRAY_SLICE").
CREATE OR REPLACE MACRO _index(i, n) AS CASE WHEN i < 0 THEN greatest(n + CAST(i AS BIGINT), 0) ELSE CAST(i AS BIGINT) END;

CREATE OR REPLACE MACRO _member(j, k) AS json_extract(j, '/' || replace(replace(k, '~', '~0'), '/', '~1'));

CREATE OR REPLACE MACRO _picked(j, keys) AS
    _object_of(map_from_entries(list_transform(list_filter(json_keys(j),
        lambda k: list_contains(keys, k)), lambda k: row(k, _member(j, k)))));

CREATE OR REPLACE MACRO _inserted(j, k, v, replaces) AS
    CASE WHEN NOT replaces AND list_contains(json_keys(j), k)
        THEN error('the object has the key ' || k)
    ELSE _object_of(map_from_entries(list_concat(
        list_transform(list_filter(json_keys(j), lambda n: n <> k), lambda n: row(n, _member(j, n))),
        CASE WHEN v IS NULL THEN [] ELSE [row(k, v)] END))) END;

-- What a path finds, r, with the digits that the document d has at p. All of this is prepared for every
-- path of a statement, so that the condition is a short one, and the function has the exact one.
CREATE OR REPLACE MACRO _exact(r, d, p) AS CASE WHEN regexp_matches(r, $SUSPECT) THEN CAST(_as_written(r, d, p) AS JSON) ELSE r END;

CREATE OR REPLACE MACRO _exact_text(r, d, p) AS CASE WHEN regexp_matches(r, $SUSPECT) THEN _as_written(r, d, p) ELSE r END;

-- Columns of FLATTEN, from the engine's path and key of an element.
CREATE OR REPLACE MACRO _flat_key(f, k) AS CASE WHEN NOT f LIKE '%]' THEN k END;

CREATE OR REPLACE MACRO _flat_path(f) AS regexp_replace(regexp_replace(f, '\."([^"]*)"', '[''\1'']', 'g'), '^\$\.?', '');

-- The input may be an array of the engine's own, as SPLIT makes one.
CREATE OR REPLACE MACRO _flat_this(r, d, p) AS _exact(r, CAST(d AS VARCHAR), p);

CREATE OR REPLACE MACRO _flat_value(v, d, p) AS _flat_this(coalesce(v, CAST('null' AS JSON)), d, p);

-- Without blanks between values, so that equal arrays have the same text; _sorted_keys does it to objects.
CREATE OR REPLACE MACRO _compact(j) AS
    CASE WHEN starts_with(j, '{') AND NOT regexp_matches(j, $LONG) THEN j
        ELSE CAST(regexp_replace(j, '$OTHER_JSON|[ \t\r\n]+', '\1', 'g') AS JSON) END;

-- A text of JSON, NULL when it is nested so deeply that the engine's stack has no room for its value.
CREATE OR REPLACE MACRO _shallow(t) AS CASE WHEN strlen(t) <= 2 * $MOST_LEVELS OR NOT _is_deep(t) THEN t END;

-- The path leaves out the value itself: it is wrapped, after a sign by which an error is known.
CREATE OR REPLACE MACRO _has_key_twice(t) AS
    contains(t, '{') AND len(list_filter(
        CAST(json_keys(chr(9) || '[' || _shallow(t) || ']', '$..*') AS VARCHAR[][]),
        lambda k: len(k) <> list_unique(k))) > 0;

-- A number with an exponent stays a DOUBLE: json() would write it without. What is too deep is not JSON to
-- json(): error() would keep the engine from taking the value by its alias. Not with _sorted_keys, which
-- would write all of it seven times: the engine took 5 ms to prepare a statement.
CREATE OR REPLACE MACRO _parse_json(t) AS
    CASE WHEN trim(t, ' ' || chr(9) || chr(13) || chr(10)) = '' THEN NULL
        WHEN t IS NOT NULL AND _shallow(t) IS NULL THEN json('more than $MOST_LEVELS levels')
        WHEN regexp_full_match(t, '\s*-?[0-9.]+[eE][+-]?[0-9]+\s*') THEN CAST(trim(t) AS JSON)
        WHEN regexp_matches(t, $LONG) AND json_valid(t)
            THEN CAST(_unmark(CAST(CAST(CAST(_mark(_shallow(t)) AS JSON) AS VARIANT) AS JSON)) AS JSON)
        WHEN NOT contains(t, '{') THEN json(t)
        ELSE CAST(CAST(json(_shallow(t)) AS VARIANT) AS JSON) END;

CREATE OR REPLACE MACRO _try_parse_json(t) AS CASE WHEN json_valid(t) AND _shallow(t) IS NOT NULL THEN _parse_json(t) END;

-- An object that has a key twice is not JSON. Not a condition inside the argument of _parse_json, which
-- would write it eight times: the engine took 4 ms to prepare a statement.
CREATE OR REPLACE MACRO _parse_json_once(t) AS CASE WHEN _has_key_twice(t) THEN json('duplicate object attribute') ELSE _parse_json(t) END;

CREATE OR REPLACE MACRO _try_parse_json_once(t) AS CASE WHEN NOT coalesce(TRY(_has_key_twice(t)), TRUE) THEN _try_parse_json(t) END;

CREATE OR REPLACE MACRO _variant_type(v) AS
    CASE WHEN v IS NULL THEN NULL
        WHEN json_type(to_json(v)) IN ('BIGINT', 'UBIGINT', 'HUGEINT') THEN 'INTEGER'
        WHEN json_type(to_json(v)) = 'NULL' THEN 'NULL_VALUE'
        WHEN json_type(to_json(v)) <> 'DOUBLE' THEN json_type(to_json(v))
        WHEN contains(lower(CAST(v AS VARCHAR)), 'e') THEN 'DOUBLE' ELSE 'DECIMAL' END;

-- What VARIANT values are compared and ordered by: their type first, then the number or the text.
CREATE OR REPLACE MACRO _variant_key(j) AS
    CASE WHEN j IS NOT NULL THEN struct_pack(
        rank := CASE json_type(j) WHEN 'NULL' THEN 0 WHEN 'BOOLEAN' THEN 1 WHEN 'VARCHAR' THEN 3
            WHEN 'ARRAY' THEN 4 WHEN 'OBJECT' THEN 5 ELSE 2 END,
        number := CASE WHEN json_type(j) IN $NUMBERS THEN CAST(j AS DOUBLE) END,
        digits := CASE WHEN json_type(j) IN $NUMBERS
            THEN TRY_CAST(CAST(j AS VARCHAR) AS DECIMAL(38, 12)) END,
        written := CASE WHEN json_type(j) NOT IN $NUMBERS
            THEN CAST(_sorted_keys(j) AS VARCHAR) END) END;

-- Values of every type as a timestamp, a date, ..; a number counts seconds. The engine chooses by the argument's type.

CREATE OR REPLACE MACRO _ntz
    (x VARCHAR) AS _read_ntz(x),
    (x TIMESTAMP) AS x,
    (x TIMESTAMP WITH TIME ZONE) AS CAST(x AS TIMESTAMP),
    (x $ZONED) AS _clock(x),
    (x DATE) AS CAST(x AS TIMESTAMP),
    (x BIGINT) AS make_timestamp(x * 1000000),
    (x DECIMAL(38, 9)) AS make_timestamp(CAST(x * 1000000 AS BIGINT)),
    (x DOUBLE) AS make_timestamp(CAST(x * 1000000 AS BIGINT));

CREATE OR REPLACE MACRO _ltz
    (x VARCHAR) AS _read_ltz(x),
    (x TIMESTAMP) AS CAST(x AS TIMESTAMP WITH TIME ZONE),
    (x TIMESTAMP WITH TIME ZONE) AS x,
    (x $ZONED) AS x.t,
    (x DATE) AS CAST(CAST(x AS TIMESTAMP) AS TIMESTAMP WITH TIME ZONE),
    (x BIGINT) AS make_timestamp(x * 1000000) AT TIME ZONE 'UTC',
    (x DECIMAL(38, 9)) AS make_timestamp(CAST(x * 1000000 AS BIGINT)) AT TIME ZONE 'UTC',
    (x DOUBLE) AS make_timestamp(CAST(x * 1000000 AS BIGINT)) AT TIME ZONE 'UTC';

CREATE OR REPLACE MACRO _tz
    (x VARCHAR) AS _read_tz(x),
    (x TIMESTAMP) AS _zoned_local(CAST(x AS TIMESTAMP WITH TIME ZONE)),
    (x TIMESTAMP WITH TIME ZONE) AS _zoned_local(x),
    (x $ZONED) AS x,
    (x DATE) AS _zoned_local(CAST(CAST(x AS TIMESTAMP) AS TIMESTAMP WITH TIME ZONE)),
    (x BIGINT) AS _zoned(make_timestamp(x * 1000000), 0),
    (x DECIMAL(38, 9)) AS _zoned(make_timestamp(CAST(x * 1000000 AS BIGINT)), 0),
    (x DOUBLE) AS _zoned(make_timestamp(CAST(x * 1000000 AS BIGINT)), 0);

-- Text for BINARY is hexadecimal, as BINARY_INPUT_FORMAT is.
CREATE OR REPLACE MACRO _binary
    (x BLOB) AS x,
    (x VARCHAR) AS _hex(x);

CREATE OR REPLACE MACRO _boolean
    (x VARCHAR) AS _read_boolean(x),
    (x BOOLEAN) AS x,
    (x BIGINT) AS x <> 0,
    (x DECIMAL(38, 9)) AS x <> 0,
    (x DOUBLE) AS x <> 0;

CREATE OR REPLACE MACRO _date
    (x VARCHAR) AS _read_date(x),
    (x DATE) AS x,
    (x TIMESTAMP) AS CAST(x AS DATE),
    (x TIMESTAMP WITH TIME ZONE) AS CAST(x AS DATE),
    (x $ZONED) AS CAST(_ntz(x) AS DATE);

CREATE OR REPLACE MACRO _time
    (x VARCHAR) AS _read_time(x),
    (x TIME) AS x,
    (x TIMESTAMP) AS CAST(x AS TIME),
    (x TIMESTAMP WITH TIME ZONE) AS CAST(CAST(x AS TIMESTAMP) AS TIME),
    (x $ZONED) AS CAST(_ntz(x) AS TIME);

-- Digits of a fraction that a type does not keep are cut off; f is the microseconds of its last digit.
CREATE OR REPLACE MACRO _cut
    (x TIME, f) AS CAST(DATE '1970-01-01' + x - to_microseconds(epoch_us(DATE '1970-01-01' + x) % f) AS TIME),
    (x TIMESTAMP, f) AS x - to_microseconds((epoch_us(x) % f + f) % f),
    (x TIMESTAMP WITH TIME ZONE, f) AS x - to_microseconds((epoch_us(x) % f + f) % f),
    (x $ZONED, f) AS _at_offset(x.t - to_microseconds((epoch_us(x.t) % f + f) % f), x.o);

-- Text in a format, in which \x01, \x02 and \x03 stand for an offset.
CREATE OR REPLACE MACRO _formatted
    (x DATE, f) AS _format_date(x, f),
    (x TIME, f) AS _format_time(x, f),
    (x TIMESTAMP, f) AS _format_timestamp_ntz(x, f),
    (x TIMESTAMP WITH TIME ZONE, f) AS _format_timestamp_ltz(x, f),
    (x $ZONED, f) AS _format_timestamp_tz(x, f);
