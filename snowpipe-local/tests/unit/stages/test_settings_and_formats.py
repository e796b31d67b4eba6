import pytest
from snowpipe_local.errors import SqlError
from snowpipe_local.sql.reader import Reader
from snowpipe_local.stages.definition import Word, read_file_format, read_literal


def test_settings_of_every_form_are_read_and_the_rest_is_returned():
    reader = Reader(
        r"""URL = 's3://b/p/' FILE_FORMAT = (TYPE = 'CSV', FIELD_DELIMITER = '\t' NULL_IF = ('', 'it''s',
        '\\N')) parallel=4 overwrite = TRUE, format_name => db."My schema".fmt empty = () DO $1 'x'"""
    )
    settings = reader.settings()
    assert settings == {
        "URL": "s3://b/p/",
        "FILE_FORMAT": {"TYPE": "CSV", "FIELD_DELIMITER": "\t", "NULL_IF": ("", "it's", r"\N")},
        "PARALLEL": 4, "OVERWRITE": True, "FORMAT_NAME": 'db."My schema".fmt', "EMPTY": (),
    }  # fmt: skip
    assert isinstance(settings["FORMAT_NAME"], Word)
    assert not isinstance(settings["URL"], Word)
    assert reader.rest() == "DO $1 'x'"


def test_broken_settings_are_refused():
    for text in ["A = ", "A = (", "A = ('x'", "A = (B = 1", "A = ('x' 'y')", "A = 'x", "A = 1 A = 2"]:
        with pytest.raises(SqlError):
            _read(text)


def _read(text: str) -> None:
    reader = Reader(text)
    reader.settings(needed=True)
    reader.end()


def test_a_broken_value_is_not_shown_because_it_may_be_a_secret():
    with pytest.raises(SqlError) as error:
        Reader("CREDENTIALS = (AWS_SECRET_KEY = 'top-secret")
    assert "top-secret" not in str(error.value)


def test_literals_are_read_with_their_escapes():
    for text, value in [
        ("'a''b' c", "a'b"), (r"'a\'b' c", "a'b"), (r"'\\' c", "\\"), (r"'\x41\101\u0041\n' c", "AAA\n"),
        (r"$$a'\n$$ c", r"a'\n"),
    ]:  # fmt: skip
        assert read_literal(text) == (value, "c")


def test_delimiters_are_read_in_every_notation():
    for written, delimiter in [
        ("NONE", None), ("0x1f", "\x1f"), (r"\x1F", "\x1f"), (r"\037", "\x1f"), (r"\t", "\t"), ("||", "||"),
        ("", None), ("0x6161", "aa"), ("¢", "¢"), (r"\xC2\xA2", "¢"), ("\xc2\xa2", "¢"),
    ]:  # fmt: skip
        assert read_file_format({"FIELD_DELIMITER": written})["FIELD_DELIMITER"] == delimiter


def test_options_of_the_statement_win_over_named_format_and_stage():
    named = read_file_format({"TYPE": "CSV", "SKIP_HEADER": 1, "TRIM_SPACE": True}).settings()
    stage = read_file_format({"TYPE": "CSV", "SKIP_HEADER": 2, "FIELD_DELIMITER": "|"}).settings()
    merged = read_file_format({"TRIM_SPACE": False}, named, stage)
    assert (merged["TRIM_SPACE"], merged["SKIP_HEADER"], merged["FIELD_DELIMITER"]) == (False, 1, "|")


def test_an_unknown_option_or_a_wrong_value_is_named():
    for settings, named in [
        ({"TYPE": "PDF"}, "TYPE"), ({"TYPE": "JSON", "SKIP_HEADER": 1}, "SKIP_HEADER"),
        ({"NO_SUCH": 1}, "NO_SUCH"), ({"SKIP_HEADER": -1}, "SKIP_HEADER"),
        ({"TRIM_SPACE": "maybe"}, "TRIM_SPACE"),
        ({"COMPRESSION": "RAR"}, "COMPRESSION"), ({"ESCAPE": "ab"}, "ESCAPE"), ({"NULL_IF": (1,)}, "NULL_IF"),
        ({"PARSE_HEADER": True, "SKIP_HEADER": 1}, "SKIP_HEADER"), ({"ESCAPE": "é"}, "ESCAPE"),
        ({"FIELD_OPTIONALLY_ENCLOSED_BY": "x"}, "FIELD_OPTIONALLY_ENCLOSED_BY"),
        ({"FIELD_DELIMITER": "aa", "RECORD_DELIMITER": "aabb"}, "FIELD_DELIMITER"),
        ({"RECORD_DELIMITER": "x" * 21}, "RECORD_DELIMITER"), ({"ENCODING": "ROT13"}, "ENCODING"),
    ]:  # fmt: skip
        with pytest.raises(SqlError) as error:
            read_file_format(settings)  # type: ignore[arg-type]
        assert error.value.sqlstate == "22023"
        assert f"'{named}'" in error.value.message


def test_what_there_is_not_here_is_refused():
    for settings in [{"ENCODING": "IBM420"}, {"TYPE": "JSON", "ENABLE_OCTAL": True}]:
        with pytest.raises(SqlError) as error:
            read_file_format(settings)
        assert error.value.code == "000002"
        assert read_file_format({"TYPE": "JSON", "ENABLE_OCTAL": False})["ENABLE_OCTAL"] is False
