import pytest

from airflow_provider_snowpipe.spark.sources.files.spec import ByDirectory, ByKey, Csv, FileSourceSpec
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": []}, "columns is empty"),
        ({"columns": "A"}, "source format columns is 'A': it must be a list of texts"),
        ({"delimiter": ""}, "delimiter is '': give one ASCII character"),
        ({"delimiter": "||"}, r"delimiter is '\|\|'"),
        ({"quote": "»"}, "quote is '»'.*or '' where"),
        ({"escape": "\n"}, "escape is"),
        ({"escape": '"'}, "must differ"),
        (
            {"escape": "\\", "null_values": ["", "\\N"]},
            r"null_values has '\\\\N' with escape '\\\\'.*load it by COPY",
        ),
        ({"header": False}, "header is False: give column_names"),
        ({"growing": True, "compression": "zstd"}, "a compressed file cannot grow"),
        ({"non_finite": "null"}, "source format csv has the unknown key 'non_finite' .value 'null'.: use"),
    ],
)
def test_options_of_csv_that_do_not_fit_are_refused_by_name_and_value(options, message):
    with pytest.raises(ConfigurationError, match=message):
        source_spec({"path": "/data", "format": {"type": "csv", **options}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "xml"}, r"source format is 'xml': it must be one of \['ndjson'.*Csv\(…\)"),
        ({"format": {"delimiter": ";"}}, "source format is {'delimiter': ';'}: it must be one of"),
        ({"format": ByDirectory()}, r"source format is ByDirectory\(\): it must be one of"),
        (
            {"format": {"type": "parquet", "growing": True}},
            "source format parquet has .*'growing'",
        ),
        ({"format": {"type": "orc", "delimiter": ";"}}, "source format orc has the unknown key 'delimiter'"),
        (
            {"format": {"type": "ndjson", "columns": ["A"]}},
            "source format ndjson has .*'columns'",
        ),
        ({"format": {"type": "text", "column": ""}}, "source format column is empty"),
        ({"partitions": "days"}, r"source partitions is 'days': it must be one of \['directory'"),
        ({"partitions": "key"}, "source partitions key lacks the key 'key'"),
        ({"partitions": {"type": "key", "key": ""}}, "source partitions key is empty"),
        ({"partitions": {"type": "name", "regex": "x"}}, r"regex 'x' needs a group \(\?P<partition>"),
        ({"partitions": {"type": "all", "key": "day"}}, "source partitions all has the unknown key 'key'"),
        ({"delimiter": ";"}, "source has the unknown key 'delimiter' .value ';'.: use .*'format'"),
        ({"pattern": "**x"}, r"pattern '\*\*x' is no glob"),
    ],
)
def test_what_a_source_does_not_know_is_refused_by_name_and_value(options, message):
    with pytest.raises(ConfigurationError, match=message):
        source_spec({"path": "/data", **options})


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"format": "csv"}, FileSourceSpec("/data", format=Csv())),
        ({"format": {"type": "csv", "columns": ["A"]}}, FileSourceSpec("/data", format=Csv(columns=("A",)))),
        ({"format": {"type": "ndjson"}, "partitions": "directory"}, FileSourceSpec("/data")),
        ({"partitions": {"type": "key", "key": "day"}}, FileSourceSpec("/data", partitions=ByKey("day"))),
    ],
)
def test_a_text_or_a_dictionary_is_a_value(given, value):
    assert source_spec({"path": "/data", **given}) == value


def test_a_pattern_that_is_a_template_is_checked_when_it_is_rendered():
    assert FileSourceSpec("/data", pattern="{{ params.depth }}**/*.log").pattern.endswith("**/*.log")
