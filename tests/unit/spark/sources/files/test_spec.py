import pytest

from airflow_provider_snowpipe.spark.sources.files.spec import FileSourceSpec
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "parquet", "compression": "gzip"}, "compression 'gzip' is only for format 'text' or"),
        ({"format": "parquet", "growing": True}, "growing True is only for format"),
        ({"format": "ndjson", "columns": ["A"]}, r"columns \('A',\) is only for format 'csv' or 'parquet'"),
        ({"format": "orc", "delimiter": ";"}, "delimiter ';' is only for format 'csv'"),
        ({"format": "ndjson", "text_column": "X"}, "text_column 'X' is only for format 'text'"),
        ({"format": "avro", "null_values": []}, r"null_values \(\) is only for format 'csv'"),
        ({"format": "csv", "columns": []}, "columns is empty"),
        ({"format": "csv", "columns": "A"}, "source columns is 'A': it must be a list of texts"),
        ({"format": "csv", "delimiter": ""}, "delimiter is '': give one ASCII character"),
        ({"format": "csv", "delimiter": "||"}, r"delimiter is '\|\|'"),
        ({"format": "csv", "quote": "»"}, "quote is '»'.*or '' where"),
        ({"format": "csv", "escape": "\n"}, "escape is"),
        ({"format": "csv", "escape": '"'}, "must differ"),
        (
            {"format": "csv", "escape": "\\", "null_values": ["", "\\N"]},
            r"null_values has '\\\\N' with escape '\\\\'.*load it by COPY",
        ),
        ({"format": "csv", "header": False}, "header is False: give column_names"),
        ({"format": "xml"}, "source format is 'xml': it must be one of"),
        ({"growing": True, "compression": "zstd"}, "a compressed file cannot grow"),
        ({"group_by": "partition"}, "partition_key is None: with group_by='partition' give the key"),
        ({"partition_key": "day"}, "partition_key 'day' is only for group_by='partition'"),
        ({"pattern": "**x"}, r"pattern '\*\*x' is no glob"),
        ({"non_finite": "null"}, "non_finite 'null' is only for format 'parquet' or 'orc' or 'avro'"),
        ({"partition_columns": True}, "partition_columns True is only for group_by='partition'"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name_and_value(options, message):
    with pytest.raises(ConfigurationError, match=message):
        source_spec({"path": "/data", **options})


def test_a_pattern_that_is_a_template_is_checked_when_it_is_rendered():
    assert FileSourceSpec("/data", pattern="{{ params.depth }}**/*.log").pattern.endswith("**/*.log")
