"""Options by which COPY makes rows of a file: which make other rows than expected, and what is unsure."""

import pytest

from airflow_provider_snowpipe.bulk.row_options import Difference, RowOptions

JSON = {"file_format": {"type": "JSON"}}


def found(given, expected_options, compressions=()):
    """The differences from the options that are required, of options or of the end of a statement."""
    if isinstance(given, str):
        judged = RowOptions.of_statement(f"COPY INTO T FROM @S {given}")
    else:
        judged = RowOptions.of(given)
    differences = judged.differences(RowOptions.of(expected_options), compressions)
    return [(one.option, one.given, one.expected) for one in differences]


def form(kind, **more):
    return {"file_format": {"TYPE": kind, **more}}


@pytest.mark.parametrize(
    ("kind", "defaults"),
    [
        ("CSV", "DATE_FORMAT=AUTO TIME_FORMAT=AUTO TIMESTAMP_FORMAT=AUTO BINARY_FORMAT=HEX TRIM_SPACE=FALSE "
         "REPLACE_INVALID_CHARACTERS=FALSE COMPRESSION=AUTO NULL_IF='\\\\N' RECORD_DELIMITER='\\n' "
         "FIELD_DELIMITER=',' PARSE_HEADER=FALSE SKIP_HEADER=0 SKIP_BLANK_LINES=FALSE ESCAPE=NONE "
         "ESCAPE_UNENCLOSED_FIELD='\\\\' FIELD_OPTIONALLY_ENCLOSED_BY=NONE EMPTY_FIELD_AS_NULL=TRUE "
         "ERROR_ON_COLUMN_COUNT_MISMATCH=TRUE VALIDATE_UTF8=TRUE SKIP_BYTE_ORDER_MARK=TRUE ENCODING=UTF8"),
        ("JSON", "DATE_FORMAT=AUTO TIME_FORMAT=AUTO TIMESTAMP_FORMAT=AUTO BINARY_FORMAT=HEX TRIM_SPACE=FALSE "
         "REPLACE_INVALID_CHARACTERS=FALSE COMPRESSION=AUTO NULL_IF=() STRIP_OUTER_ARRAY=FALSE "
         "STRIP_NULL_VALUES=FALSE ALLOW_DUPLICATE=FALSE ENABLE_OCTAL=FALSE IGNORE_UTF8_ERRORS=FALSE "
         "SKIP_BYTE_ORDER_MARK=TRUE"),
        ("PARQUET", "TRIM_SPACE=FALSE NULL_IF=() REPLACE_INVALID_CHARACTERS=FALSE BINARY_AS_TEXT=TRUE"),
        ("AVRO", "TRIM_SPACE=FALSE NULL_IF=() REPLACE_INVALID_CHARACTERS=FALSE"),
        ("ORC", "TRIM_SPACE=FALSE NULL_IF=() REPLACE_INVALID_CHARACTERS=FALSE"),
    ],
)  # fmt: skip
def test_what_snowflake_does_anyway_may_be_written_and_each_option_is_compared(kind, defaults):
    """The defaults are those of Snowflake's page "CREATE FILE FORMAT"."""
    assert found(f"FILE_FORMAT = (TYPE = {kind} {defaults})", form(kind)) == []
    for option in defaults.split():
        name = option.partition("=")[0]
        other = "7" if name == "SKIP_HEADER" else "'other'"
        given = f"FILE_FORMAT = (TYPE = {kind} {name} = {other})"
        assert [one[0] for one in found(given, form(kind), ["GZIP"])] == [name]
        assert RowOptions.of_statement(f"COPY INTO T FROM @S {given}").doubts() == []


def test_values_are_compared_whichever_way_they_are_written():
    for given, expected_options, expected in [
        (form("CSV"), form("JSON"), [("TYPE", "CSV", "JSON")]),
        ({"file_format": {"trim_space": True}}, form("JSON"), [("TRIM_SPACE", True, False)]),
        ({"file_format": {}}, form("JSON", TRIM_SPACE=True), []),
        (form("CSV", NULL_IF=["b", "a"]), form("CSV", NULL_IF=("a", "b", "a")), []),
        (form("CSV", NULL_IF=[]), form("CSV"), [("NULL_IF", (), ("\\N",))]),
        (form("CSV", ESCAPE="none"), form("CSV", ESCAPE=None), []),
        (form("CSV", ESCAPE="a"), form("CSV", ESCAPE="A"), [("ESCAPE", "a", "A")]),
        (form("CSV", FIELD_DELIMITER="0x2C"), form("CSV"), []),
        (form("CSV", FIELD_DELIMITER="\\t"), form("CSV", FIELD_DELIMITER="\t"), []),
        (form("CSV", FIELD_DELIMITER="||"), form("CSV", FIELD_DELIMITER="0x7c0x7C"), []),
        (form("CSV", DATE_FORMAT="UTF-8"), form("CSV"), [("DATE_FORMAT", "UTF-8", "AUTO")]),
        (form("CSV", EMPTY_FIELD_AS_NULL=False, FIELD_DELIMITER=None), form("CSV", FIELD_DELIMITER=None), []),
        (form("CSV", EMPTY_FIELD_AS_NULL=False, VALIDATE_UTF8=False), form("CSV", FIELD_DELIMITER=None),
         [("FIELD_DELIMITER", ",", None), ("VALIDATE_UTF8", False, True)]),
        (form("CSV", ESCAPE="07"), form("CSV", ESCAPE="7"), [("ESCAPE", "07", "7")]),
        ({**JSON, "truncate_columns": True}, JSON, [("TRUNCATECOLUMNS", True, False)]),
        ({**JSON, "match_by_column_name": "case_sensitive"}, JSON,
         [("MATCH_BY_COLUMN_NAME", "CASE_SENSITIVE", "NONE")]),
        ({**JSON, "include_metadata": {"F": "M"}}, JSON, [("INCLUDE_METADATA", {"F": "M"}, ())]),
        ({**JSON, "on_error": "CONTINUE", "purge": True}, JSON, []),
    ]:  # fmt: skip
        assert (given, found(given, expected_options)) == (given, expected)


def test_compression_is_the_same_where_the_files_leave_one_reading():
    for given, expected_options, files, same in [
        ("AUTO", "AUTO", ["GZIP", "ZSTD"], True),
        ("GZIP", "AUTO", ["GZIP"], True),
        ("GZIP", "AUTO", ["GZIP", "ZSTD"], False),
        ("AUTO", "GZIP", ["GZIP"], True),
        ("AUTO", "GZIP", ["ZSTD"], False),
        ("AUTO", "NONE", [], True),
        (None, "NONE", [], True),
    ]:
        differences = found(
            form("JSON", COMPRESSION=given), form("JSON", COMPRESSION=expected_options), files
        )
        assert [one[0] for one in differences] == ([] if same else ["COMPRESSION"])


@pytest.mark.parametrize(
    ("statement", "doubts"),
    [
        ("FILE_FORMAT = (TYPE = JSON MULTI_LINE = FALSE FILE_EXTENSION = 'x' COMPRESSION = GZIP)", []),
        ("FILE_FORMAT = (TYPE = PARQUET SNAPPY_COMPRESSION = TRUE USE_VECTORIZED_SCANNER = TRUE)",
         ["it sets USE_VECTORIZED_SCANNER"]),
        ("FILE_FORMAT = (TYPE = XML TRIM_SPACE = TRUE STRIP_OUTER_ELEMENT = TRUE)",
         ["it sets STRIP_OUTER_ELEMENT"]),
        ("FILE_FORMAT = (FORMAT_NAME => 'D.S.F')", ["it names the file format D.S.F"]),
        ("", ["it has no FILE_FORMAT, so that the stage's own counts"]),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_reported(statement, doubts):
    judged = RowOptions.of_statement(f"COPY INTO T FROM @S {statement}")
    assert judged.doubts() == doubts
    if isinstance(judged.file_format, str | None):
        assert judged.differences(RowOptions.of(form("CSV"))) == []


def test_parts_of_a_statement_are_read_past_comments_and_texts():
    for statement, columns, transforms, options in [
        ("copy into t (a, \"b\", \"c\"\"d\") from @s/x PATTERN='.*'", ["A", "b", 'c"d'], False,
         {"PATTERN": ".*"}),
        ("COPY INTO T (A) FROM (SELECT $1, f(g($2), 'x)') FROM @S) FORCE = TRUE", ["A"], True,
         {"FORCE": "TRUE"}),
        ("COPY INTO T FROM (SELECT f($1), X = (1) FROM @S)", None, True, {}),
        ("COPY INTO T FROM @S -- (A) FORCE = TRUE\nPURGE = FALSE // FORCE = TRUE\n", None, False,
         {"PURGE": "FALSE"}),
        ("COPY INTO T /* (A) FORCE = TRUE\n */ FROM @S", None, False, {}),
        ("COPY INTO T FROM '@S/ (A) FORCE = TRUE'", None, False, {}),
        ("COPY INTO T FROM @S FILES = ('a b', 'it''s') VALIDATION_MODE = RETURN_ERRORS", None, False,
         {"FILES": ("a b", "it's"), "VALIDATION_MODE": "RETURN_ERRORS"}),
        ("COPY INTO T FROM @S PATTERN = $$a'b$$", None, False, {"PATTERN": "a'b"}),
        ("COPY INTO T FROM @S INCLUDE_METADATA = (F = METADATA$FILENAME, N = METADATA$FILE_ROW_NUMBER)", None,
         False, {"INCLUDE_METADATA": {"F": "METADATA$FILENAME", "N": "METADATA$FILE_ROW_NUMBER"}}),
    ]:  # fmt: skip
        judged = RowOptions.of_statement(statement)
        found = (judged.columns, judged.transforms, dict(judged.options), judged.file_format)
        assert (statement, *found) == (statement, columns, transforms, options, None)


def test_columns_are_compared_only_where_both_name_them_and_nothing_behind_a_selection_is():
    named, other = RowOptions.of(JSON, ["A"]), RowOptions.of(JSON, ["B"])
    selects = RowOptions.of_statement("COPY INTO T (C) FROM (SELECT $1 FROM @S) FILE_FORMAT = (TYPE = CSV)")

    assert named.differences(other) == [Difference("the columns", ("A",), ("B",))]
    assert named.differences(RowOptions.of(JSON)) == RowOptions.of(JSON).differences(named) == []
    assert [one.option for one in selects.differences(named)] == ["TYPE"]
    assert selects.doubts() == ["its statement selects from the files"]
    assert str(Difference("ESCAPE", ("a", "b"), None)) == "ESCAPE = ('a', 'b') in place of NONE"
