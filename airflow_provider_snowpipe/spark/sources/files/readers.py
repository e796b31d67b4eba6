"""The file formats, each imported when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_snowpipe.spark.sources.files.spec import FileSourceSpec

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.sources.files.formats import FileReader


def reader_of(spec: FileSourceSpec) -> FileReader:
    """Make the reader of a source's files.

    :param spec: the source
    :raises ConfigurationError: if the format's library is missing here
    """
    match spec.format:
        case "ndjson" | "text":
            from airflow_provider_snowpipe.spark.sources.files.line_format import LineReader

            return LineReader(spec.text_column if spec.format == "text" else None, spec.compression)
        case "csv":
            from airflow_provider_snowpipe.spark.sources.files.csv_format import CsvReader

            return CsvReader.of(spec)
        case "parquet":
            from airflow_provider_snowpipe.spark.sources.files.parquet_format import ParquetReader

            return ParquetReader(spec.columns)
        case "orc":
            from airflow_provider_snowpipe.spark.sources.files.orc_format import OrcReader

            return OrcReader(spec.columns)
        case "avro":
            from airflow_provider_snowpipe.spark.sources.files.avro_format import AvroReader

            return AvroReader(spec.columns)
