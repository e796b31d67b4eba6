import pytest

from airflow_provider_snowpipe.spark.data_source.options import OPTIONS, WriteOptions
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName

LEAST = {
    "accountUrl": "https://acme.snowflakecomputing.com",
    "database": "DB",
    "schema": "S",
    "table": "T",
    "channelPrefix": "orders",
    "partitions": "4",
}
DEAD = {"onError": "dead_letter", "deadLetterPath": "/dead"}


def _parse(**changes):
    return WriteOptions.parse({k: v for k, v in {**LEAST, **changes}.items() if v is not None})


def test_defaults_are_those_of_the_job():
    options = _parse()

    assert options.pipe == PipeName("DB", "S", "T-STREAMING")
    assert (options.on_error, options.commit_timeout, options.limits.compression) == ("abort", 600.0, "zstd")
    assert options.channel(3) == "orders_3"
    assert options.limits.raw_bytes == 16 * 1024 * 1024


def test_option_names_have_no_case_and_sparks_own_are_passed_over():
    given = {name.lower(): value for name, value in LEAST.items()}
    options = WriteOptions.parse(
        {**given, "checkpointlocation": "/ck", "queryname": "q", "BATCHBYTES": "1000"}
    )

    assert options.limits.raw_bytes == 1000


def test_pipe_is_taken_letter_by_letter():
    assert _parse(table=None, pipe="My Pipe").pipe == PipeName("DB", "S", "My Pipe")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param(
            {"frobnicate": "1"}, r"option 'frobnicate' is unknown: use accountUrl, batchBytes", id="unknown"
        ),
        pytest.param({"path": "/x"}, r"a path was given to save\(\) or start\(\)", id="path"),
        pytest.param({"accountUrl": None}, r"option accountUrl is missing", id="missing"),
        pytest.param({"accountUrl": "http://x"}, r"option accountUrl: account URL 'http://x'", id="http"),
        pytest.param({"table": None}, "exactly one of the options table", id="no-target"),
        pytest.param({"pipe": "P"}, "exactly one of the options table", id="two-targets"),
        pytest.param({"partitions": None}, "exactly one of the options channelColumn", id="no-channels"),
        pytest.param({"channelColumn": "K"}, "exactly one of the options channelColumn", id="two-channels"),
        pytest.param({"partitions": "0"}, "option partitions is '0'.*from 1 to 2000", id="no-partition"),
        pytest.param({"partitions": "four"}, "option partitions is 'four'", id="partitions-in-words"),
        pytest.param({"onError": "skip"}, "onError is 'skip'.*'abort', 'continue'", id="on-error"),
        pytest.param({"onError": "dead_letter"}, "deadLetterPath is None: rows that", id="no-path"),
        pytest.param({"deadLetterPath": "/dead"}, "onError is 'abort' and deadLetterPath", id="no-use"),
        pytest.param({**DEAD, "deadLetterPath": "kafka:dead"}, "a DataFrame has no brokers", id="topic"),
        pytest.param({**DEAD, "deadLetterPath": "dead"}, "'dead': give an absolute path", id="relative-path"),
        pytest.param({**DEAD, "deadLetterPath": "s3://k:s@b/d"}, "holds credentials", id="open-path"),
        pytest.param({**DEAD, "deadLetterPath": "s3://b/d?secret_key=s"}, r"'s3://b/d\?…'", id="query"),
        pytest.param(
            {"deadLetterPaths": "/d"}, "'deadLetterPaths' is unknown: use accountUrl", id="no-secret"
        ),
        pytest.param({"onError": "continue", "checkRows": "true"}, "checkRows is true", id="check-no-use"),
        pytest.param({"checkRows": "yes"}, "checkRows is 'yes': it must be true or false", id="check"),
        pytest.param({**DEAD, "table": None, "pipe": "P"}, "pipe 'P', which may transform", id="own-pipe"),
        pytest.param({"compression": "lz4"}, "compression is 'lz4'.*'zstd', 'gzip'", id="compression"),
        pytest.param({"commitTimeout": "soon"}, "commitTimeout is 'soon'.*seconds above 0", id="timeout"),
        pytest.param({"commitTimeout": "inf"}, "commitTimeout is 'inf'", id="endless"),
        pytest.param({"batchBytes": "-1"}, "batchBytes is '-1'", id="bytes"),
        pytest.param({"batchId": "1.5"}, "batchId is '1.5'", id="batch-id"),
        pytest.param({"batchId": "1", "offsetColumn": "ID"}, "leave batchId out", id="two-identities"),
        pytest.param({"credentialsFile": "c.json"}, "credentialsFile is 'c.json'.*absolute", id="relative"),
        pytest.param({"channelPrefix": " "}, "channelPrefix is empty", id="blank"),
        pytest.param({"channelPrefix": "x" * 255}, "channel name", id="long-prefix"),
        pytest.param({"omitColumns": "A,,B"}, "omitColumns is 'A,,B'", id="columns"),
    ],
)
def test_wrong_option_is_named_with_its_value_and_the_remedy(changes, text):
    with pytest.raises(ConfigurationError, match=text):
        _parse(**changes)


@pytest.mark.parametrize(
    "name", ["password", "sfPassword", "privateKey", "pem_private_key", "token", "sfToken"]
)
def test_credential_given_as_an_option_is_refused_without_showing_it(name):
    with pytest.raises(ConfigurationError, match="credentialsFile") as caught:
        _parse(**{name: "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_a_write_needs_a_batch_id_or_an_offset_column_and_a_stream_counts_itself():
    with pytest.raises(ConfigurationError, match=r"offsetColumn .* or batchId .* send its rows twice"):
        _parse().for_batch()
    assert _parse(batchId="20261121").for_batch() == 20261121
    assert _parse(offsetColumn="ID").for_batch() is None
    with pytest.raises(ConfigurationError, match="batchId is 7: a stream counts"):
        _parse(batchId="7").for_stream()


def test_every_option_has_a_row_in_the_reference(pytestconfig):
    page = (pytestconfig.rootpath / "docs" / "reference" / "data-source.md").read_text(encoding="utf-8")
    listed = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]

    assert listed[: len(OPTIONS)] == list(OPTIONS)
