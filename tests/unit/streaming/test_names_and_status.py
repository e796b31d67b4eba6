"""Names, values and arguments as they are written in URLs and SQL, and the status object."""

from airflow_provider_snowpipe.bulk.copy import CopyOptions
from airflow_provider_snowpipe.streaming import names
from airflow_provider_snowpipe.streaming.arguments import check_one_of, known_arguments
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.lag import ChannelLag
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.progress import CHANNEL_MISSING, ChannelStatus
from tests.refusals import refused


def test_a_channel_is_named_as_the_kafka_connector_names_it():
    assert names.channel_name("connector", "orders", "7") == "connector_orders_7"
    parts = [("", "s", "0"), ("p", "", "0"), ("p", "s", ""), ("p" * 200, "s" * 60, "0")]
    refused(ConfigurationError, lambda given: names.channel_name(*given), parts)
    refused(ConfigurationError, names.check_channel_name, [".", ".."], "URL")


def test_channels_are_a_list_its_text_or_one_name():
    for given, found in [
        ("a", ["a"]), ('["a", "b"]', ["a", "b"]), ('{"a": "f:1"}', ["a"]), (("a", "b"), ["a", "b"]),
        ("5", ["5"]), ("null", ["null"]), ('"a"', ["a"]),
    ]:  # fmt: skip
        assert (given, names.channel_names(given)) == (given, found)
    refused(ConfigurationError, names.channel_names, [5, None, [5], "[5]", [""]], "channels")


def test_of_many_texts_five_are_shown():
    shown = [names.first_few("abcdefgh"[:number], "; ") for number in (1, 5, 6)]
    assert shown == ["a", "a; b; c; d; e", "a; b; c; d; e; and 1 more"]
    assert names.first_few("abcdefgh") == "a, b, c, d, e and 3 more"


def test_identifiers_texts_and_options_are_quoted_letter_by_letter():
    assert names.quote_identifier('a"; drop table t; --') == '"a""; drop table t; --"'
    assert names.string_literal("\\") == "'\\\\'"
    assert names.string_literal("'; DROP TABLE t; --") == "'''; DROP TABLE t; --'"
    written = r"'it''s \101\7\x41\u00e9\n\q\\'"
    assert names.read_string_literal(written) == "it's A\x07Aé\nq\\"
    refused(ConfigurationError, names.quote_identifier, ["a\0b"], "'a\\x00b'")
    refused(ConfigurationError, names.string_literal, ["a\0"], "NUL")
    written = {1: "1", 1.5: "1.5", None: "NONE", "a": "'a'", (): "()"}
    assert [names.option("x", value) for value in written] == [f"X = {one}" for one in written.values()]
    assert names.option("x", True) == "X = TRUE"
    refused(ConfigurationError, lambda name: names.option(name, 1), ["x = 1 y"], "name")
    refused(ConfigurationError, lambda value: names.option("x", value), [{}], "option X is")


def test_a_pipes_url_is_encoded_once_and_strictly():
    pipe = PipeName("a b", "a/b", "%41+-STREAMING")
    assert pipe.url_path == "/databases/a%20b/schemas/a%2Fb/pipes/%2541%2B-STREAMING"
    assert pipe.default_table == "%41+"
    assert str(PipeName.default_for_table("D", "S", "T")) == "D.S.T-STREAMING"
    assert PipeName("D", "S", "P").default_table is None


def test_rejected_rows_are_read_as_they_are_spelled():
    for counter in ("rows_error_count", "rows_errors"):
        assert ChannelStatus.from_json({"channel_name": "c", counter: 3}).rows_error_count == 3


def test_a_channel_that_is_missing_or_has_rejected_rows_is_not_shown_as_a_success():
    missing = ChannelStatus.missing("c")
    assert (missing.code, missing.committed, missing.exists) == (CHANNEL_MISSING, None, False)
    expected = {("SUCCESS", 0): "SUCCESS", ("SUCCESS", 1): "REJECTED ROWS", ("ERR_INVALID", 1): "ERR_INVALID"}
    for (code, rejected), shown in expected.items():
        status = ChannelStatus("c", code, rows_error_count=rejected)
        assert ChannelLag.of(status, None).row()["status"] == shown
        assert status.is_valid is (code == "SUCCESS")
    assert not missing.is_valid


def test_remedy_is_the_grant_on_the_object_that_snowflake_names():
    for message, grant in {
        "Database 'D' does not exist or not authorized.": "GRANT USAGE ON DATABASE D TO ROLE …",
        "Schema 'D.S' does not exist or not authorized": "GRANT USAGE ON SCHEMA D.S TO ROLE …",
        "Stage 'D.S.\"in\"' does not exist or not authorized": 'READ, WRITE ON STAGE D.S."in" TO ROLE …',
        "Object 'D.T' does not exist or not authorized": "…, for a view GRANT SELECT ON VIEW D.T TO ROLE …",
        "View 'D.V' does not exist or not authorized": "right, GRANT SELECT ON VIEW D.V TO ROLE …",
        "Insufficient privileges to operate on warehouse 'W'": "GRANT USAGE ON WAREHOUSE W TO ROLE …",
    }.items():
        assert grant in names.grant_remedy(f"SQL compilation error: {message}")
    messages = ("Object does not exist, or operation cannot be performed.", "Insufficient privileges", "x")
    assert [names.grant_remedy(message) for message in messages] == ["", "", ""]


def test_wrong_argument_is_named_with_those_there_are_and_its_value_unless_that_may_be_a_secret():
    def read(given):
        known_arguments(CopyOptions, given, "options")

    check_one_of("on_error", "abort", ("abort", "continue"))
    wrong, there = ["Abort", None, ["abort"]], {"abort": 1, "continue": 2}
    for value, error in zip(
        wrong,
        refused(ConfigurationError, lambda one: check_one_of("on_error", one, there), wrong),
        strict=True,
    ):
        assert str(error) == f"on_error is {value!r}: it must be one of ['abort', 'continue']"
    refused(ConfigurationError, read, [{"forced": True}], "options", "'forced'", "True", "force")
    secret = {"aws_secret_key": "hunter2"}
    for name, value in {
        "credentials": secret,
        "CREDENTIALS": "hunter2",
        "encryption": {"master_key": "hunter2"},
        "forced": {"aws_token": "hunter2"},
        "password": "hunter2",
    }.items():
        (error,) = refused(ConfigurationError, read, [{name: value}], name)
        assert "hunter2" not in str(error)
