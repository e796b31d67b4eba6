"""Listings, folders, offsets and past loads become shapes."""

import datetime as dt
import os

import pytest

from airflow_provider_snowpipe.routing.cost_model import CostModel
from airflow_provider_snowpipe.routing.probes import (
    FileSet,
    ListedFile,
    backlog_shape,
    dataframe_shape,
    file_kind,
    folder_shape,
    listing_shape,
    past_loads_shape,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

NOW = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


def minutes_ago(minutes):
    return NOW - dt.timedelta(minutes=minutes)


def test_endings_determine_format_and_compression():
    for name, kind in {
        "a.csv": ("CSV", False),
        "in/a.CSV.GZ": ("CSV", True),
        "s3://b/day=1/part-0.json.zst": ("JSON", True),
        "part-0.snappy.parquet": ("PARQUET", False),
        "part-0.parquet.gz": ("PARQUET", False),
        "a.b.orc": ("ORC", False),
        "noending": (None, False),
        "in.csv/noending": (None, False),
        "data.gz": (None, True),
        "gz": (None, False),
    }.items():
        assert (name, file_kind(name)) == (name, kind)
    for kind, endings in {
        "CSV": "csv tsv txt tbl psv log", "JSON": "json jsonl ndjson", "XML": "xml", "PARQUET": "parquet",
        "AVRO": "avro", "ORC": "orc",
    }.items():  # fmt: skip
        assert {file_kind(f"a.{ending}") for ending in endings.split()} == {(kind, False)}
    for compression in ("gz", "zst", "bz2", "br", "deflate", "snappy", "lz4", "lzo"):
        assert file_kind(f"a.csv.{compression}") == ("CSV", True), compression
        assert file_kind(f"a.avro.{compression}") == ("AVRO", False)


class TestListing:
    def test_a_stage_is_counted_as_list_shows_it(self):
        rows = [
            {"name": "s/a.csv", "size": 100, "last_modified": "Sat, 31 Jan 2026 11:59:00 GMT"},
            {"name": "s/b.csv", "size": 300, "last_modified": minutes_ago(5)},
        ]
        shape = listing_shape(map(ListedFile.from_list_row, rows), NOW, staged=True, freshness=60)

        assert (shape.bounded, shape.freshness, shape.files.mean) == (True, 60, 200)
        known = {"largest": 300, "format": "CSV", "staged": True, "oldest": 300, "newest": 60}
        assert shape.files == FileSet(2, 400, **known)

    def test_formats_that_differ_are_a_mixture(self):
        for names, expected in {
            ("a.csv", "a.json.gz"): (None, False),
            ("a.csv", "a.csv.gz"): ("CSV", False),
            ("a.csv.gz", "b.csv.zst"): ("CSV", True),
            (): (None, False),
        }.items():
            found = listing_shape([ListedFile(name, 1) for name in names], NOW).files
            assert (found.format, found.compressed) == expected

    def test_files_that_keep_coming_have_an_interval(self):
        files = [ListedFile(f"{n}.csv", 10, minutes_ago(n)) for n in range(11)]
        shape = listing_shape(files, NOW, bounded=False)
        assert shape.files.interval == 60
        assert shape.uncompressed(CostModel()) == pytest.approx(10 / 60)


class TestFolder:
    def test_files_below_a_folder_count_and_hidden_ones_do_not(self, tmp_path):
        for name in ("a.csv.gz", "day/b.csv.gz", ".hidden.csv.gz", "_temporary/c.csv.gz"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(b"x" * 10)
        os.utime(tmp_path / "a.csv.gz", (NOW.timestamp() - 120, NOW.timestamp() - 120))
        shape = folder_shape(tmp_path, NOW)

        found = shape.files
        assert (found.count, found.bytes, found.oldest) == (2, 20, 120)
        assert (found.format, found.compressed, found.staged) == ("CSV", True, False)
        assert shape.uncompressed(CostModel()) == 80

    def test_one_file_is_a_shape_too_and_a_missing_folder_an_error(self, tmp_path):
        (tmp_path / "a.json").write_bytes(b"{}")
        found = folder_shape(tmp_path / "a.json", NOW).files
        assert (found.count, found.format) == (1, "JSON")
        with pytest.raises(ConfigurationError, match="cannot be listed"):
            folder_shape(tmp_path / "missing", NOW)

    @pytest.mark.parametrize("gone", ["file", "folder"])
    def test_what_goes_while_the_folder_is_listed_does_not_count(self, tmp_path, gone):
        """A writer that gives its file the final name, or one that clears up."""
        part, day = tmp_path / "b.csv.part", tmp_path / "day"
        day.mkdir()
        for path in (tmp_path / "a.csv", part):
            path.write_bytes(b"x")

        def scan(path):
            entries = list(os.scandir(path))
            part.rename(tmp_path / "b.csv")
            if gone == "folder":
                (tmp_path / "b.csv").unlink()
                day.rmdir()
            return entries

        assert folder_shape(tmp_path, NOW, scan=scan).files.count == 1


def test_of_a_queue_only_what_is_not_committed_and_still_there_counts():
    shape = backlog_shape({0: (90, 0, 100), 1: (None, 5, 10), 2: (3, 20, 30), 3: (50, 0, 50)}, 200)
    assert (shape.rows, shape.bytes, shape.partitions) == (10 + 5 + 10, 5000, 4)
    assert backlog_shape({0: (None, 0, 10), 1: (None, 0, 10)}, 200, partitions=1).partitions == 1
    assert backlog_shape({0: (500, 0, 100)}, 200).rows == 0, "made again"
    with pytest.raises(ConfigurationError, match="'p'"):
        backlog_shape({"p": (None, 5, 4)}, 1)


def test_a_size_that_spark_does_not_know_is_not_taken():
    assert dataframe_shape(2**63 - 1, 1, rows=7).bytes is None
    with pytest.raises(ConfigurationError, match="stands for unknown"):
        dataframe_shape(2**63 - 1, 1)


class TestHistory:
    def test_past_loads_give_the_files_that_keep_coming(self):
        rows = [
            {"file_name": f"{n}.parquet", "file_size": 1000, "last_load_time": minutes_ago(10 * n)}
            for n in range(4)
        ]
        shape = past_loads_shape(rows, freshness=600, arrival_rate=50.0)

        assert (shape.bounded, shape.freshness, shape.arrival_rate) == (False, 600, 50.0)
        assert (shape.files.interval, shape.files.mean, shape.files.format) == (600, 1000, "PARQUET")

    def test_loads_that_show_no_rate_and_what_they_do_not_show_are_refused(self):
        loads = [
            {"file_name": name, "file_size": 9, "last_load_time": minutes_ago(minutes)}
            for minutes, name in enumerate("ab")
        ]
        for rows, known, word in [
            (loads[:1], {}, "has 1 loads"),
            ([loads[0]] * 2, {}, "no rate"),
            (loads, {"files": {"count": 1, "bytes": 1}}, "files="),
            (loads, {"bounded": True}, "bounded=True"),
        ]:
            with pytest.raises(ConfigurationError, match=word):
                past_loads_shape(rows, **known)
