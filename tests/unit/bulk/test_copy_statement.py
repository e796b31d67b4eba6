"""COPY INTO: its text, its options, the files of a run, and options that make other rows than expected."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.bulk.copy import CopyInto, CopyOptions
from airflow_provider_snowpipe.bulk.row_options import Difference, RowOptions
from airflow_provider_snowpipe.bulk.run_files import (
    TARGET_FILE_BYTES,
    CompactForm,
    CompactOptions,
    RunManifest,
    WrittenFile,
    block_bytes,
    check_target,
    content_key,
    file_count,
    is_well_cut,
    packed_bytes,
    run_folder,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.refusals import refused

TABLE = ("D", "S", 'my "t"')


def copy(location="@s", **options):
    return CopyInto(TABLE, location, CopyOptions(**options))


class TestStatement:
    def test_names_and_paths_are_quoted_and_texts_are_escaped(self):
        statement = copy('@"D"."S".s', pattern=r".*it's\.csv").statement(["a'b.csv", "c\\d.csv"])
        assert statement == (
            'COPY INTO "D"."S"."my ""t""" FROM \'@"D"."S".s\' '
            r"FILES = ('a''b.csv', 'c\\d.csv') PATTERN = '.*it''s\\.csv'"
        )
        assert "FROM '@s/a--b'" in copy("@s/a--b").statement()
        assert "FROM '@s/a b''c'" in copy("@s/a b'c").statement()
        paths = [f"@s/a{character}b" for character in (chr(0), chr(0xD800), chr(0xDFFF))]
        refused(ConfigurationError, lambda path: copy(path).statement(), paths, "stage path")

    def test_expressions_fill_named_columns(self):
        selected = CopyInto(TABLE, "@s/in", columns=["A", "b"], expressions=["$1", "$2::NUMBER"]).statement()
        assert selected.endswith('("A", "b") FROM (SELECT $1, $2::NUMBER FROM \'@s/in\')')
        copied = CopyInto(TABLE, "@s", CopyOptions(match_by_column_name="NONE"), columns=["A"])
        assert copied.statement().endswith("""("A") FROM '@s' MATCH_BY_COLUMN_NAME = NONE""")

        def into(arguments):
            CopyInto(TABLE, "@s", **arguments)

        matched = {"columns": ["A"], "options": CopyOptions(match_by_column_name="CASE_INSENSITIVE")}
        refused(
            ConfigurationError, into, [{"columns": ["A"], "expressions": ["$1", "$2"]}, matched], "columns"
        )
        for argument in ("columns", "expressions"):  # not the letters of a text
            refused(ConfigurationError, into, [{argument: "ID"}], f"{argument} is 'ID', a text")

    def test_more_than_a_thousand_files_are_split(self):
        files = [f"{number}.csv" for number in range(2500)]
        parts = copy().parts(files)
        assert [len(part) for part in parts] == [1000, 1000, 500]
        assert [name for part in parts for name in part] == files
        assert all(copy().statement(part).count(".csv'") == len(part) for part in parts)
        refused(ConfigurationError, copy().statement, [files], "1,000 files at most, not 2,500")

    def test_a_validation_loads_nothing_and_takes_no_expressions(self):
        assert copy().validation("RETURN_5_ROWS").endswith(" FROM '@s' VALIDATION_MODE = RETURN_5_ROWS")
        assert "PURGE" not in copy(purge=True).validation("RETURN_ERRORS")
        refused(ConfigurationError, copy().validation, ["ALL"], "validation_mode is 'ALL'", "RETURN_ERRORS")
        for copied, word in [
            (CopyInto(TABLE, "@s", expressions=["$1"]), "expressions"),
            (copy(match_by_column_name="CASE_INSENSITIVE"), "match_by_column_name"),
        ]:
            refused(ConfigurationError, copied.validation, ["RETURN_ERRORS"], word)


class TestOptions:
    def test_each_is_written_once_with_columns_that_are_no_plain_names_in_quotes(self):
        flags = ("purge", "truncate_columns", "force", "load_uncertain_files", "cluster_at_ingest_time")
        options = CopyOptions(
            file_format={"type": "JSON"}, pattern=".*[.]csv", on_error="SKIP_FILE_10%", size_limit=1000,
            match_by_column_name="CASE_SENSITIVE", load_mode="FULL_INGEST", **dict.fromkeys(flags, True),
            include_metadata={"A_1": "METADATA$FILENAME", "b": "METADATA$FILE_ROW"},
        )  # fmt: skip

        assert options.written() == [
            "FILE_FORMAT = (TYPE = 'JSON')",
            "PATTERN = '.*[.]csv'",
            "SIZE_LIMIT = 1000",
            "MATCH_BY_COLUMN_NAME = CASE_SENSITIVE",
            "LOAD_MODE = FULL_INGEST",
            "ON_ERROR = 'SKIP_FILE_10%'",
            "PURGE = TRUE",
            "TRUNCATECOLUMNS = TRUE",
            "FORCE = TRUE",
            "LOAD_UNCERTAIN_FILES = TRUE",
            "CLUSTER_AT_INGEST_TIME = TRUE",
            'INCLUDE_METADATA = (A_1 = METADATA$FILENAME, "b" = METADATA$FILE_ROW)',
        ]
        for options, written in [
            ({}, []),
            ({"enforce_length": False}, ["ENFORCE_LENGTH = FALSE"]),
            ({"file_format": "DB.S.F"}, ["FILE_FORMAT = (FORMAT_NAME = 'DB.S.F')"]),
            ({"file_processor": {"scanner": "document_ai"}}, ["FILE_PROCESSOR = (SCANNER = 'document_ai')"]),
        ]:
            assert CopyOptions(**options).written() == written

    @pytest.mark.parametrize(
        ("options", "message", "remedy"),
        [
            ({"on_error": "continue; DROP TABLE t"}, "on_error is 'continue; DROP",
             "give CONTINUE, SKIP_FILE, SKIP_FILE_10, SKIP_FILE_10%, …"),
            ({"match_by_column_name": "YES"}, "match_by_column_name is 'YES'",
             "give CASE_SENSITIVE, CASE_INSENSITIVE, NONE"),
            ({"include_metadata": {"A": "METADATA$FILENAME"}}, "needs match_by_column_name", ""),
            ({"include_metadata": {"A": "x)"}}, "include_metadata of 'A'", "give METADATA$FILENAME, …"),
            ({"load_mode": "FAST"}, "load_mode is 'FAST'", "give FULL_INGEST, ADD_FILES_COPY"),
            ({"size_limit": "1 GB"}, "size_limit is '1 GB'", ""),
            ({"include_metadata": ["A"]}, "include_metadata", "give a mapping"),
            ({"file_format": ["CSV"]}, "file_format", "give a name, or options as a mapping"),
            ({"enforce_length": True, "truncate_columns": True}, "opposites", ""),
        ],
        ids=lambda value: "" if isinstance(value, str) else "-".join(value),
    )  # fmt: skip
    def test_that_cannot_be_are_refused(self, options, message, remedy):
        with pytest.raises(ConfigurationError, match=message) as refusal:
            CopyOptions(**options)
        assert str(refusal.value).endswith(remedy)

    def test_of_a_mapping_may_be_text_of_a_template(self):
        given = {"force": "False", "purge": "true", "size_limit": "100", "enforce_length": "False"}
        text = '{"on_error": "CONTINUE", "force": null}'
        assert CopyOptions.of(None) == CopyOptions.of({}) == CopyOptions()
        assert CopyOptions.of(given) == CopyOptions(purge=True, size_limit=100, enforce_length=False)
        assert CopyOptions.of(text) == CopyOptions(on_error="CONTINUE")
        for options, words in [
            ({"on_eror": "CONTINUE"}, ["options", "'on_eror'", "'CONTINUE'", "on_error", "purge"]),
            ({"force": "no"}, ["force is 'no': give true or false"]),
            ({"size_limit": True}, ["size_limit is True: give a number"]),
        ]:
            refused(ConfigurationError, CopyOptions.of, [options], *words)


MB = 1_000_000


class TestSizes:
    @settings(max_examples=30)
    @given(total=st.integers(100 * MB, 10**15))
    def test_with_the_default_target_files_have_100_to_250_megabytes(self, total):
        assert 100 * MB <= total / file_count(total, TARGET_FILE_BYTES) <= 250 * MB

    def test_files_are_written_again_where_they_are_too_large_or_too_many(self):
        for sizes, well in [
            ([5], True),
            ([251 * MB], False),
            ([99 * MB] * 40, False),
            ([1 * MB] * 2, False),
            ([160 * MB, 160 * MB, 10 * MB], True),
            ([160 * MB, 160 * MB, 400 * MB], False),
        ]:
            assert (sizes, is_well_cut(sizes, TARGET_FILE_BYTES)) == (sizes, well)

    @settings(max_examples=30)
    @given(total=st.integers(1, 10**13), target=st.integers(1_000, 10**9))
    def test_a_pack_has_room_for_an_even_share_and_a_row_group_is_a_small_part_of_it(self, total, target):
        assert packed_bytes(total, target) >= total / file_count(total, target)
        assert (64 << 10) <= block_bytes(target) <= (128 << 20)

    def test_a_target_that_no_file_can_have_is_refused(self):
        refused(ConfigurationError, check_target, [0, 999, -1, 1e9, True, "160MB"], "target_file_bytes is")


class TestCompaction:
    def test_files_have_the_format_of_their_endings(self):
        for names, options, form in [
            (["a.ndjson", "b/c.jsonl.gz"], {}, CompactForm("ndjson", ".ndjson", False, True)),
            (["a.csv", "b.csv.zst"], {"header": True}, CompactForm("csv", ".csv", True, False)),
            (
                ["a.csv"],
                {"header": False, "newlines_in_values": False},
                CompactForm("csv", ".csv", False, True),
            ),
            (["a.snappy.parquet"], {}, CompactForm("parquet", ".parquet", False, False)),
            (["part-0", "part-1"], {"kind": "ndjson"}, CompactForm("ndjson", ".ndjson", False, True)),
        ]:
            assert CompactOptions(**options).form_of(names) == form
        for names, word in [
            (["a.ndjson", "part-0"], "file 'part-0'"),
            (["a.ndjson", "b.parquet"], "'a.ndjson' is ndjson and 'b.parquet' is parquet"),
            (["a.csv"], "compact={'header': True}"),
        ]:
            refused(ConfigurationError, CompactOptions().form_of, [names], word)

    def test_compaction_is_true_or_parameters(self):
        refused(ConfigurationError, CompactOptions.of, ["yes", {"size": 5}, {"kind": "xml"}])
        assert (CompactOptions.of(True), CompactOptions.of(False)) == (CompactOptions(), None)

    def test_files_that_have_the_right_size_are_left_alone(self):
        for sizes, worth in [([10], False), ([1, 1], True), ([4_000], True)]:
            files = [(f"{number}.ndjson", size * MB) for number, size in enumerate(sizes)]
            form = CompactOptions().form_of([name for name, _ in files])
            assert form.is_worth_it(files, CompactOptions().target_file_bytes) is worth

    def test_the_name_goes_by_the_content_and_by_how_it_is_combined(self):
        files = [("a", 1, "x"), ("b", 2, "y")]
        key = content_key(files, CompactOptions())
        assert content_key(files[::-1], CompactOptions()) == key
        assert content_key([("a", 1, "x"), ("b", 2, "z")], CompactOptions()) != key
        assert content_key(files, CompactOptions(target_file_bytes=MB)) != key


class TestManifest:
    FILES = (WrittenFile("a1/one.parquet", 10, 3), WrittenFile("a1/two.parquet", 20, 4))
    MANIFEST = RunManifest("a1", FILES, ("ID", "V"), ("V",))

    def test_comes_back_as_it_was_written(self):
        text = self.MANIFEST.to_json()
        assert RunManifest.from_json(text, "m") == self.MANIFEST
        assert (self.MANIFEST.rows, self.MANIFEST.bytes) == (7, 30)
        wrong = ["", "[]", "{}", text.replace('"manifest_version": 1', '"manifest_version": 2')]
        refused(ConfigurationError, lambda one: RunManifest.from_json(one, "@S/x"), wrong, "@S/x", "run_key")

    def test_a_folder_is_the_same_for_every_attempt_and_of_one_piece_of_work(self):
        names = ("d", "manual__2026-01-01T00:00:00+00:00", "t", "-1")
        assert run_folder(names, "T") != run_folder(names, "U")
        assert run_folder(("a", "b.c")) != run_folder(("a.b", "c"))
        assert run_folder(names) == "d.manual__2026-01-01T00-00-00-00-00.t.-1-a6a329279e2055d3"
        assert run_folder((".Xa", "b-.")).startswith("Xa.b-")


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
    for ours, expected_options, expected in [
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
        assert (ours, found(ours, expected_options)) == (ours, expected)


def test_compression_is_the_same_where_the_files_leave_one_reading():
    for ours, expected_options, files, same in [
        ("AUTO", "AUTO", ["GZIP", "ZSTD"], True),
        ("GZIP", "AUTO", ["GZIP"], True),
        ("GZIP", "AUTO", ["GZIP", "ZSTD"], False),
        ("AUTO", "GZIP", ["GZIP"], True),
        ("AUTO", "GZIP", ["ZSTD"], False),
        ("AUTO", "NONE", [], True),
        (None, "NONE", [], True),
    ]:
        differences = found(form("JSON", COMPRESSION=ours), form("JSON", COMPRESSION=expected_options), files)
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
