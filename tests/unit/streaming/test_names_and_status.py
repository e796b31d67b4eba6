"""Names and values as they are written in URLs and SQL, and the status object."""

import pytest

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.lag import ChannelLag
from airflow_provider_snowpipe.streaming.names import (
    PipeName,
    channel_name,
    channel_names,
    check_channel_name,
    grant_remedy,
    option,
    quote_identifier,
    string_literal,
)
from airflow_provider_snowpipe.streaming.progress import CHANNEL_MISSING, ChannelStatus
from tests.refusals import refused


def test_a_channel_is_named_as_the_kafka_connector_names_it():
    assert channel_name("connector", "orders", "7") == "connector_orders_7"
    parts = [("", "s", "0"), ("p", "", "0"), ("p", "s", ""), ("p" * 200, "s" * 60, "0")]
    refused(ConfigurationError, lambda given: channel_name(*given), parts)
    refused(ConfigurationError, check_channel_name, [".", ".."], "URL")


def test_channels_are_a_list_its_text_or_one_name():
    for given, found in [
        ("a", ["a"]), ('["a", "b"]', ["a", "b"]), ('{"a": "f:1"}', ["a"]), (("a", "b"), ["a", "b"]),
        ("5", ["5"]), ("null", ["null"]), ('"a"', ["a"]),
    ]:  # fmt: skip
        assert (given, channel_names(given)) == (given, found)
    refused(ConfigurationError, channel_names, [5, None, [5], "[5]", [""]], "channels")


def test_identifiers_texts_and_options_are_quoted_letter_by_letter():
    assert quote_identifier('a"; drop table t; --') == '"a""; drop table t; --"'
    assert string_literal("\\") == "'\\\\'"
    assert string_literal("'; DROP TABLE t; --") == "'''; DROP TABLE t; --'"
    refused(ConfigurationError, quote_identifier, ["a\0b"])
    refused(ConfigurationError, string_literal, ["a\0"], "NUL")
    assert [option("x", value) for value in (1, 1.5, True, None, "a", [])] == [
        "X = 1", "X = 1.5", "X = TRUE", "X = NONE", "X = 'a'", "X = ()",
    ]  # fmt: skip
    refused(ConfigurationError, lambda name: option(name, 1), ["x = 1 y"], "name")
    refused(ConfigurationError, lambda value: option("x", value), [{}], "option X is")


def test_a_pipes_url_is_encoded_once_and_strictly():
    pipe = PipeName("a b", "a/b", "%41+-STREAMING")
    assert pipe.url_path == "/databases/a%20b/schemas/a%2Fb/pipes/%2541%2B-STREAMING"
    assert pipe.default_table == "%41+"
    assert str(PipeName.default_for_table("D", "S", "T")) == "D.S.T-STREAMING"
    assert PipeName("D", "S", "P").default_table is None


def test_both_spellings_of_the_error_counter_are_read():
    base = {"channel_name": "c", "channel_status_code": "SUCCESS", "last_committed_offset_token": "5"}
    assert ChannelStatus.from_json({**base, "rows_error_count": 3}).rows_error_count == 3
    assert ChannelStatus.from_json({**base, "rows_errors": 4}).rows_error_count == 4


@pytest.mark.parametrize(
    "last",
    [
        {"last_error_timestamp_ms": 5_000},
        {"last_error_timestamp_ms": "5000"},
        {"last_error_timestamp": 5_000},
        {"last_error_timestamp": "1970-01-01T00:00:05Z"},
        {"last_error_timestamp": "1970-01-01T00:00:05"},
        {"last_error_timestamp": "yesterday"},
    ],
)
def test_the_time_of_the_last_rejected_row_is_read_as_it_is_spelled(last):
    status = ChannelStatus.from_json({"channel_name": "c", "rows_error_count": 1, **last})
    unknown = last == {"last_error_timestamp": "yesterday"}
    assert status.last_error_at_ms == (None if unknown else 5_000)


def test_a_missing_channel_has_the_status_missing():
    status = ChannelStatus.missing("c")
    assert (status.code, status.committed) == (CHANNEL_MISSING, None)
    assert not status.exists
    assert not status.is_valid


def test_channel_with_rejected_rows_is_not_shown_as_a_success():
    expected = {("SUCCESS", 0): "SUCCESS", ("SUCCESS", 1): "REJECTED ROWS", ("ERR_INVALID", 1): "ERR_INVALID"}
    for (code, rejected), shown in expected.items():
        status = ChannelStatus("c", code, rows_error_count=rejected)
        assert ChannelLag.of(status, None).row()["status"] == shown
        assert status.is_valid is (code == "SUCCESS")


@pytest.mark.parametrize(
    ("message", "grant"),
    [
        ("Database 'D' does not exist or not authorized.", "GRANT USAGE ON DATABASE D TO ROLE …"),
        ("Schema 'D.S' does not exist or not authorized", "GRANT USAGE ON SCHEMA D.S TO ROLE …"),
        ("Stage 'D.S.\"in\"' does not exist or not authorized", 'READ, WRITE ON STAGE D.S."in" TO ROLE …'),
        ("Table 'D.S.T' does not exist or not authorized", "GRANT INSERT, SELECT ON TABLE D.S.T TO ROLE …"),
        (
            "Object 'D.S.T' does not exist or not authorized",
            "GRANT INSERT, SELECT ON TABLE D.S.T TO ROLE …, for a view GRANT SELECT ON VIEW D.S.T TO ROLE …",
        ),
        ("View 'D.S.V' does not exist or not authorized", "right, GRANT SELECT ON VIEW D.S.V TO ROLE …"),
        ("Insufficient privileges to operate on table 'T'", "GRANT INSERT, SELECT ON TABLE T TO ROLE …"),
        ("Insufficient privileges to operate on pipe 'P'", "GRANT MONITOR, OPERATE ON PIPE P TO ROLE …"),
        ("Insufficient privileges to operate on warehouse 'W'", "GRANT USAGE ON WAREHOUSE W TO ROLE …"),
    ],
)
def test_remedy_is_the_grant_on_the_object_that_snowflake_names(message, grant):
    assert grant in grant_remedy(f"SQL compilation error: {message}")


def test_an_error_that_names_no_object_has_no_grant():
    messages = ("Object does not exist, or operation cannot be performed.", "Insufficient privileges", "x")
    assert [grant_remedy(message) for message in messages] == ["", "", ""]
