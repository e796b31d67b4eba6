"""Which arguments of a source are in the binding: all that decide which rows there are, or their numbers."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from airflow_provider_snowpipe.spark.sources.files.listing import binding_of
from airflow_provider_snowpipe.spark.sources.files.spec import (
    AllFiles,
    Avro,
    ByKey,
    ByName,
    Csv,
    FileSource,
    Ndjson,
    Orc,
    Parquet,
    Text,
)
from airflow_provider_snowpipe.spark.sources.tables.spec import TableSource

FILES = FileSource(path="/data", pattern="*", format=Csv())
CSV_EDITS: dict[str, Any] = {"header": False, "delimiter": ";", "quote": "'", "escape": "\\"}
CSV_KEEPS: dict[str, Any] = {"compression": "gzip", "growing": True, "null_values": ["", "NULL"]}
CSV_KEEPS |= {"columns": ["ID"], "column_names": ["ID"]}
# Another path has another log, whose id is in the binding.
FILE_KEEPS: dict[str, dict[str, Any]] = {
    "path": {"path": "/other"},
    "on_changed_files": {"on_changed_files": "reload"},
    "log_path": {"log_path": "/logs"},
    "after_commit": {"after_commit": "delete"},
    "archive_path": {"after_commit": "archive", "archive_path": "/archive"},
    "retention": {"retention": 60.0},
    "conn_id": {"path": "s3://b/data", "conn_id": "aws"},
    "metadata": {"metadata": {"SRC": "filename"}},
    "kind": {"kind": "files"},
}
TABLE = TableSource(offset_column="ID", path="/data")
TABLE_EDITS: list[dict[str, Any]] = [
    {"path": "/other"},
    {"format": "csv"},
    {"table": "t", "path": None},
    {"query": "SELECT 1", "name": "n", "path": None},
    {"options": {"pathGlobFilter": "a*"}},
    {"options": {"modifiedAfter": "2026-01-01T00:00:00"}},
    {"table": "t", "path": None, "options": {"versionAsOf": "1"}, "format": "delta"},
    {"format": "jdbc", "options": {"dbtable": "a"}},
    {"format": "jdbc", "options": {"DBTABLE": "b"}},
    {"format": "jdbc", "options": {"query": "SELECT 1"}},
    {"format": "jdbc", "options": {"dbtable": "a", "url": "jdbc:postgresql://host/d"}},
]


def digest(source: FileSource, partition: str = "p") -> str:
    return binding_of(source, "5d41402abc4b2a76", partition).digest


def test_the_page_of_checkpoints_has_the_texts_of_files():
    page = (Path(__file__).parents[4] / "docs" / "reference" / "checkpoints.md").read_text()
    for text in (binding_of(FileSource(path="/data"), "<log id>", "EWR").source, Csv().numbering):
        assert f"`{text}`" in page


def test_what_decides_the_rows_of_a_partition_or_their_numbers_gives_another_binding():
    forms = [Ndjson(), Text(), Parquet(), Orc(), Avro()]
    forms += [Csv(**{name: value, "column_names": ["ID"]}) for name, value in CSV_EDITS.items()]
    splits = [AllFiles(), ByName("(?P<partition>.).*"), ByName("(?P<partition>..).*")]
    splits += [ByKey("day"), ByKey("hour"), ByKey("day", as_columns=True)]
    found = [digest(FILES), digest(FILES, "q"), digest(replace(FILES, pattern="*.csv"))]
    found += [digest(replace(FILES, format=one)) for one in forms]
    found += [digest(replace(FILES, partitions=one)) for one in splits]

    assert len(set(found)) == len(found)


def test_all_other_arguments_keep_the_binding():
    assert {one.name for one in fields(Csv)} == {*CSV_EDITS, *CSV_KEEPS}
    assert {one.name for one in fields(FileSource)} == {*FILE_KEEPS, "pattern", "format", "partitions"}
    changes = [{"format": Csv(**{name: value})} for name, value in CSV_KEEPS.items()]
    for change in (*changes, *FILE_KEEPS.values()):
        assert digest(replace(FILES, **change)) == digest(FILES), change


def test_what_a_table_source_reads_is_its_identity_and_how_quickly_is_not():
    found = [TABLE.identity, *(replace(TABLE, **change).identity for change in TABLE_EDITS)]

    assert len(set(found)) == len(found)
    for change in (
        {"options": {"mergeSchema": "true"}},
        {"non_finite": "null"},
        {"metadata": {"R": "run_id"}},
    ):
        assert replace(TABLE, **change).identity == TABLE.identity
    jdbc = [replace(TABLE, format="jdbc", options={"dbtable": "a", "fetchSize": size}) for size in "12"]
    spaced = [replace(TABLE, path=None, name="n", query=one) for one in ("SELECT 1", "SELECT\n 1")]
    for one, other in (jdbc, spaced):
        assert one.identity == other.identity
