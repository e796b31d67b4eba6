"""COPY INTO as text: names quoted, values escaped, options typed; the local service's parser reads "
"all of it."""

from __future__ import annotations

from typing import Any

import pytest
from snowpipe_local.sql.copy_into import read_copy_options
from snowpipe_local.sql.reader import Reader

from airflow_provider_snowpipe.bulk.copy import CopyInto, CopyOptions
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

TABLE = ("D", "S", 'my "t"')


def copy(location: str = "@s", **options: Any) -> CopyInto:
    return CopyInto(TABLE, location, CopyOptions(**options))


def test_names_are_quoted_and_texts_are_escaped() -> None:
    statement = copy('@"D"."S".s', pattern=r".*it's\.csv").statement(["a'b.csv", "c\\d.csv"])

    assert statement == (
        'COPY INTO "D"."S"."my ""t""" FROM \'@"D"."S".s\' '
        r"FILES = ('a''b.csv', 'c\\d.csv') PATTERN = '.*it''s\\.csv'"
    )


def test_a_path_is_quoted_as_a_whole() -> None:
    assert "FROM '@s/a--b'" in copy("@s/a--b").statement()
    assert "FROM '@s/a b''c'" in copy("@s/a b'c").statement()


def test_expressions_fill_named_columns() -> None:
    statement = CopyInto(TABLE, "@s/in", columns=["A", "b"], expressions=["$1", "$2::NUMBER"]).statement()

    assert statement.endswith('("A", "b") FROM (SELECT $1, $2::NUMBER FROM \'@s/in\')')
    named = CopyInto(TABLE, "@s", expressions=["r.$1"], alias="r").statement()
    assert named.endswith(" FROM (SELECT r.$1 FROM '@s' \"r\")")


EVERY_OPTION: dict[str, Any] = {
    "file_format": {"type": "CSV", "skip_header": 1, "field_delimiter": "\t", "null_if": ["", "NULL"],
                    "trim_space": True, "field_optionally_enclosed_by": None},
    "pattern": ".*[.]csv",
    "on_error": "SKIP_FILE_10%",
    "size_limit": 1000,
    "purge": True,
    "return_failed_only": True,
    "match_by_column_name": "CASE_SENSITIVE",
    "include_metadata": {"SOURCE": "METADATA$FILENAME"},
    "truncate_columns": True,
    "force": True,
    "load_uncertain_files": True,
    "load_mode": "FULL_INGEST",
    "cluster_at_ingest_time": True,
}  # fmt: skip


def test_every_option_is_read_as_it_was_meant() -> None:
    reader = Reader(" ".join(CopyOptions(**EVERY_OPTION).written()))
    settings = reader.settings()
    read = read_copy_options(settings)

    assert reader.is_at_end
    assert (read.pattern, read.size_limit, read.matching) == (".*[.]csv", 1000, "CASE_SENSITIVE")
    assert read.on_error is not None
    assert read.on_error.percent == 10
    assert read.included == {"SOURCE": "METADATA$FILENAME"}
    assert {name for name, value in read.flags.items() if value} == {
        "PURGE", "RETURN_FAILED_ONLY", "TRUNCATECOLUMNS", "FORCE", "LOAD_UNCERTAIN_FILES",
    }  # fmt: skip
    assert read.file_format["SKIP_HEADER"] == 1
    assert read.file_format["FIELD_DELIMITER"] == "\t"
    assert read.file_format["NULL_IF"] == ("", "NULL")
    assert read.file_format["TRIM_SPACE"] is True


def test_every_option_is_written_once_with_columns_that_are_no_plain_names_in_quotes() -> None:
    options = {**EVERY_OPTION, "include_metadata": {"A_1": "METADATA$FILENAME", "b": "METADATA$FILE_ROW"}}
    options["file_format"] = {"type": "JSON"}

    assert CopyOptions(**options).written() == [
        "FILE_FORMAT = (TYPE = 'JSON')",
        "PATTERN = '.*[.]csv'",
        "SIZE_LIMIT = 1000",
        "MATCH_BY_COLUMN_NAME = CASE_SENSITIVE",
        "LOAD_MODE = FULL_INGEST",
        "ON_ERROR = 'SKIP_FILE_10%'",
        "PURGE = TRUE",
        "RETURN_FAILED_ONLY = TRUE",
        "TRUNCATECOLUMNS = TRUE",
        "FORCE = TRUE",
        "LOAD_UNCERTAIN_FILES = TRUE",
        "CLUSTER_AT_INGEST_TIME = TRUE",
        'INCLUDE_METADATA = (A_1 = METADATA$FILENAME, "b" = METADATA$FILE_ROW)',
    ]


@pytest.mark.parametrize("value", ["CONTINUE", "SKIP_FILE", "SKIP_FILE_3", "SKIP_FILE_3%", "ABORT_STATEMENT"])
def test_each_way_to_treat_errors_is_read(value: str) -> None:
    settings = Reader(" ".join(CopyOptions(on_error=value).written())).settings()

    assert read_copy_options(settings).on_error is not None


def test_a_named_file_format_and_a_file_processor_are_written() -> None:
    assert CopyOptions(file_format="DB.S.F").written() == ["FILE_FORMAT = (FORMAT_NAME = 'DB.S.F')"]
    assert CopyOptions(file_processor={"scanner": "document_ai"}).written() == [
        "FILE_PROCESSOR = (SCANNER = 'document_ai')"
    ]


def test_what_is_left_out_is_not_written() -> None:
    assert CopyOptions().written() == []
    assert CopyOptions(enforce_length=False).written() == ["ENFORCE_LENGTH = FALSE"]


@pytest.mark.parametrize("argument", ["columns", "expressions"])
def test_a_text_is_no_list_of_its_letters(argument: str) -> None:
    """``columns="ID"`` would fill the columns I and D."""
    with pytest.raises(ConfigurationError, match=f"{argument} is 'ID', a text: give a list"):
        CopyInto(TABLE, "@s", **{argument: "ID"})  # type: ignore[arg-type]


def test_more_than_a_thousand_files_are_split() -> None:
    files = [f"{number}.csv" for number in range(2500)]
    parts = copy().statements(files)

    assert [len(part) for part, _ in parts] == [1000, 1000, 500]
    assert [name for part, _ in parts for name in part] == files
    assert all(statement.count(".csv'") == len(part) for part, statement in parts)
    with pytest.raises(ConfigurationError, match="names 1,000 files at most, not 2,500"):
        copy().statement(files)


def test_a_validation_loads_nothing_and_takes_no_expressions() -> None:
    assert copy().validation("RETURN_5_ROWS").endswith(" FROM '@s' VALIDATION_MODE = RETURN_5_ROWS")
    with pytest.raises(ConfigurationError, match="validation_mode is 'ALL': give RETURN_ERRORS, RETURN_"):
        copy().validation("ALL")
    with pytest.raises(ConfigurationError, match="together with expressions"):
        CopyInto(TABLE, "@s", expressions=["$1"]).validation("RETURN_ERRORS")
    with pytest.raises(ConfigurationError, match="together with match_by_column_name"):
        copy(match_by_column_name="CASE_INSENSITIVE").validation("RETURN_ERRORS")
    assert "PURGE" not in copy(purge=True).validation("RETURN_ERRORS")


@pytest.mark.parametrize(
    ("options", "message", "remedy"),
    [
        ({"on_error": "continue; DROP TABLE t"}, "on_error is 'continue; DROP",
         "give CONTINUE, SKIP_FILE, SKIP_FILE_10, SKIP_FILE_10%, …"),
        ({"on_error": "SKIP_FILE_0"}, "on_error is 'SKIP_FILE_0'", "SKIP_FILE_10%, …"),
        ({"match_by_column_name": "YES"}, "match_by_column_name is 'YES'",
         "give CASE_SENSITIVE, CASE_INSENSITIVE, NONE"),
        ({"include_metadata": {"A": "METADATA$FILENAME"}}, "needs match_by_column_name", ""),
        ({"include_metadata": {"A": "METADATA$FILENAME"}, "match_by_column_name": "NONE"},
         "needs match_by_column_name", ""),
        ({"include_metadata": {"A": "x)"}}, "include_metadata of 'A'", "give METADATA$FILENAME, …"),
        ({"load_mode": "FAST"}, "load_mode is 'FAST'", "give FULL_INGEST, ADD_FILES_COPY"),
        ({"size_limit": 0}, "size_limit is 0", ""),
        ({"size_limit": "1 GB"}, "size_limit is '1 GB'", ""),
        ({"include_metadata": ["A"]}, "include_metadata", "give a mapping"),
        ({"file_processor": "X"}, "file_processor", "give a mapping"),
        ({"file_format": ["CSV"]}, "file_format", "give a name, or options as a mapping"),
        ({"enforce_length": True, "truncate_columns": True}, "they are opposites", ""),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)  # fmt: skip
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        CopyOptions(**options)
    assert str(refused.value).endswith(remedy)


@pytest.mark.parametrize(
    "arguments",
    [
        {"columns": ["A"], "expressions": ["$1", "$2"]},
        {"columns": ["A"], "options": CopyOptions(match_by_column_name="CASE_INSENSITIVE")},
    ],
    ids=["counts", "matching"],
)
def test_columns_that_cannot_be_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="columns"):
        CopyInto(TABLE, "@s", **arguments)


def test_columns_may_be_named_where_nothing_is_matched_by_name() -> None:
    copied = CopyInto(TABLE, "@s", CopyOptions(match_by_column_name="NONE"), columns=["A"])

    assert copied.statement().endswith("""("A") FROM '@s' MATCH_BY_COLUMN_NAME = NONE""")


@pytest.mark.parametrize(
    "character", [chr(0), chr(0xD800), chr(0xDFFF)], ids=["NUL", "first half", "last half"]
)
def test_letter_that_no_text_of_sql_can_have_is_refused(character: str) -> None:
    with pytest.raises(ConfigurationError, match="stage path"):
        copy(f"@s/a{character}b").statement()


@pytest.mark.parametrize(
    ("paths", "named"),
    [(["a.csv", "b.v2.json"], "'b.v2.json' is JSON"), (["A.PARQUET"], "'A.PARQUET' is PARQUET")],
)
def test_remedy_for_files_of_another_format_is_the_format(paths: list[str], named: str) -> None:
    remedy = copy().format_remedy(paths)

    assert named in remedy
    assert remedy.startswith(" ")
    assert copy(file_format={"type": "CSV"}).format_remedy(paths) == copy().format_remedy(["a.csv"]) == ""


def test_option_that_there_is_not_is_refused_with_its_value_and_those_that_there_are() -> None:
    with pytest.raises(ConfigurationError) as refused:
        CopyOptions.of({"on_eror": "CONTINUE"})

    assert all(
        word in str(refused.value) for word in ("options", "'on_eror'", "'CONTINUE'", "on_error", "purge")
    )


@pytest.mark.parametrize("options", [None, {}])
def test_no_options_are_all_defaults(options: dict[str, Any] | None) -> None:
    assert CopyOptions.of(options) == CopyOptions()


def test_options_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="options is"):
        CopyOptions.of(["force"])  # type: ignore[arg-type]


def test_what_a_template_has_made_text_of_is_read_again() -> None:
    given = {"force": "False", "purge": "true", "size_limit": "100", "enforce_length": "False"}

    assert CopyOptions.of(given) == CopyOptions(purge=True, size_limit=100, enforce_length=False)
    assert CopyOptions.of('{"on_error": "CONTINUE", "force": null}') == CopyOptions(on_error="CONTINUE")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"force": "no"}, "force is 'no': give true or false"),
        ({"purge": 1}, "purge is 1: give true or false"),
        ({"size_limit": True}, "size_limit is True: give a number"),
        ({"on_error": 5}, "on_error is 5: give CONTINUE"),
    ],
)
def test_a_switch_or_number_that_is_none_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        CopyOptions.of(options)
