"""Shapes, policies, cost models and measured loads refuse what cannot be; listings become shapes."""

import datetime as dt
import math
import os

import pytest

from airflow_provider_snowpipe.routing import load_plan, probes
from airflow_provider_snowpipe.routing.cost_model import CostModel, LoadPolicy
from airflow_provider_snowpipe.spark.submit.source import SourceBacklog
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.refusals import refused


def test_a_shape_that_cannot_be_is_refused():
    for shape, words in [
        ({}, ["the shape has no size: give bytes, rows or files"]),
        ({"bounded": False, "files": {"count": 1, "bytes": 1}}, ["unbounded and has no rate"]),
        ({"bytes": -1}, ["bytes is -1"]),
        ({"rows": 1, "given_to": "pipe"}, ["without files"]),
        ({"files": {"count": 1, "bytes": 1, "format": "csv"}}, ["format of the files is 'csv'"]),
        ({"files": {"count": 1, "bytes": 1, "size": 0}}, ["files of the shape", "'size'"]),
        ({"rows": 1, "backfil": True}, ["the shape", "'backfil'", "True", "'bounded'"]),
        ({"rows": 1, "backfill": "no"}, ["backfill of the shape is 'no': give true or false"]),
        ({"files": {"count": 1}}, ["files of the shape lacks the key 'bytes'"]),
        ("rows", ["the shape is the text 'rows'"]),
    ]:
        refused(ConfigurationError, probes.DataShape.from_json, [shape], *words)


def test_what_a_template_has_made_text_of_is_read_again():
    given = {"rows": "5", "bytes": "1e3", "backfill": "True", "files": {"count": "2", "bytes": "3"}}
    assert probes.DataShape.from_json(given) == probes.DataShape(
        rows=5, bytes=1e3, backfill=True, files=probes.FileSet(2, 3)
    )
    assert probes.DataShape.known('{"freshness": "60"}') == {"freshness": 60}


def test_a_policy_that_cannot_be_is_refused():
    for option, value, words in [
        ("path", "fast", "path is 'fast'"),
        ("warehouse", "XS", "warehouse is 'XS': give one of X-SMALL"),
        ("band", -0.1, "band is -0.1"),
        ("has_pipe", "no", "has_pipe is 'no': give true or false"),
        ("measured", {"pipe": 0.0}, "measured is"),
        *((name, 0, f"{name}=0") for name in ("load_within", "many_files", "flood_bytes")),
    ]:
        refused(ConfigurationError, lambda given: LoadPolicy(**dict([given])), [(option, value)], words)
    assert LoadPolicy(load_within=0.5, many_files=1, flood_bytes=0.5).many_files == 1


class TestCostModel:
    def test_a_figure_that_cannot_be_is_refused(self):
        for figures, words in [
            ({"stream_credits": 1}, ["'stream_credits'", "bytes_per_row"]),
            ({"text_ratio": 0}, ["cost figure text_ratio is 0.0: give a number above 0"]),
            *(({"text_ratio": value}, [f"text_ratio is {value}"]) for value in (-1.0, math.nan, math.inf)),
        ]:
            refused(ConfigurationError, CostModel.with_figures, [figures], *words)


NOW = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


def test_endings_determine_format_and_compression():
    for name, kind in {
        "a.csv": ("CSV", False),
        "s3://b/day=1/part-0.json.zst": ("JSON", True),
        "part-0.snappy.parquet": ("PARQUET", False),
        "in.csv/noending": (None, False),
        "data.gz": (None, True),
    }.items():
        assert (name, probes.file_kind(name)) == (name, kind)
    for kind, endings in {
        "CSV": "csv tsv txt tbl psv log", "JSON": "json jsonl ndjson", "XML": "xml", "PARQUET": "parquet",
        "AVRO": "avro", "ORC": "orc",
    }.items():  # fmt: skip
        assert {probes.file_kind(f"a.{ending}") for ending in endings.split()} == {(kind, False)}
    for compression in ("gz", "zst", "bz2", "br", "deflate", "snappy", "lz4", "lzo"):
        assert probes.file_kind(f"a.csv.{compression}") == ("CSV", True), compression
        assert probes.file_kind(f"a.avro.{compression}") == ("AVRO", False)


class TestFolder:
    def test_files_below_a_folder_count_and_hidden_ones_do_not(self, tmp_path):
        for name in ("a.csv.gz", "day/b.csv.gz", ".hidden.csv.gz", "_temporary/c.csv.gz"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(b"x" * 10)
        os.utime(tmp_path / "a.csv.gz", (NOW.timestamp() - 120, NOW.timestamp() - 120))
        shape = probes.folder_shape(tmp_path, NOW)
        found = shape.files
        assert (found.count, found.bytes, found.oldest) == (2, 20, 120)
        assert (found.format, found.compressed, found.staged) == ("CSV", True, False)
        assert shape.uncompressed(CostModel()) == 80

    def test_one_file_is_a_shape_too_and_a_missing_folder_an_error(self, tmp_path):
        (tmp_path / "a.json").write_bytes(b"{}")
        found = probes.folder_shape(tmp_path / "a.json", NOW).files
        assert (found.count, found.format) == (1, "JSON")
        with pytest.raises(ConfigurationError, match="listed"):
            probes.folder_shape(tmp_path / "missing", NOW)

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

        assert probes.folder_shape(tmp_path, NOW, scan=scan).files.count == 1


def test_of_a_queue_only_what_is_not_committed_and_still_there_counts():
    shape = probes.backlog_shape({0: (90, 0, 100), 1: (None, 5, 10), 2: (3, 20, 30), 3: (50, 0, 50)}, 200)
    assert (shape.rows, shape.bytes, shape.partitions) == (10 + 5 + 10, 5000, 4)
    assert probes.backlog_shape({0: (None, 0, 10), 1: (None, 0, 10)}, 200, partitions=1).partitions == 1
    assert probes.backlog_shape({0: (500, 0, 100)}, 200).rows == 0, "made again"
    with pytest.raises(ConfigurationError, match="'p'"):
        probes.backlog_shape({"p": (None, 5, 4)}, 1)


def test_a_queue_whose_size_the_author_knows_is_not_asked():
    def connect():
        raise ConnectionError

    backlog = SourceBacklog(connect)
    for known in ({"bounded": False, "arrival_rate": 1.0}, {"rows": 0}, {"bytes": 5.0, "bounded": True}):
        assert backlog.shape(known) == probes.DataShape.from_json(known)
    for known in ({}, {"bounded": True, "files": None}):
        with pytest.raises(ConnectionError):
            backlog.shape(known)


def test_a_size_that_spark_does_not_know_is_not_taken():
    assert probes.DataShape(rows=7, bytes=5).expected(CostModel()) == {"rows": 7, "bytes": 5}
    assert [probes.dataframe_shape(size, 1, rows=7).bytes for size in (2**63 - 1, 5)] == [None, 5]
    with pytest.raises(ConfigurationError, match="unknown"):
        probes.dataframe_shape(2**63 - 1, 1)


class TestHistory:
    def test_loads_that_show_no_rate_and_what_they_do_not_show_are_refused(self):
        loads = [
            {"file_name": name, "file_size": 9, "last_load_time": NOW - dt.timedelta(minutes=minutes)}
            for minutes, name in enumerate("ab")
        ]
        for rows, known, word in [
            (loads[:1], {}, "has 1 loads"),
            ([loads[0]] * 2, {}, "no rate"),
            (loads, {"files": {"count": 1, "bytes": 1}}, "files="),
            (loads, {"bounded": True}, "bounded=True"),
        ]:
            with pytest.raises(ConfigurationError, match=word):
                probes.past_loads_shape(rows, **known)


PIPE, COPY = load_plan.LoadPath.PIPE, load_plan.LoadPath.COPY


def load(latency, path=PIPE, table="T"):
    return load_plan.MeasuredLoad(table, path, 200.0, latency)


def test_loads_are_json_and_back_and_what_is_no_load_is_left_out():
    loads = (
        load(150.0),
        load_plan.MeasuredLoad("T", COPY, 9.0, 8.0, 0.01, "warehouse seconds", "tag", 1.7e9),
    )
    assert load_plan.kept_loads([one.as_json() for one in loads], "T") == loads
    other = {**load(1.0).as_json(), "path": "train"}
    assert [load_plan.kept_loads(kept, "T") for kept in (None, "text", [1], [{"path": "pipe"}], [other])] == [
        ()
    ] * 5


def test_the_last_loads_of_the_table_are_kept():
    kept = [load(float(n), table="ABT"[n % 3]).as_json() for n in range(3 * load_plan.MOST_KEPT + 30)]
    found = load_plan.kept_loads(kept, "T")
    assert len(found) == load_plan.MOST_KEPT
    assert {one.table for one in found} == {"T"}
    assert found[-1].latency == kept[-1]["latency"]


def test_a_floor_is_the_median_of_loads_enough():
    loads = [load(140.0), load(150.0), load(900.0)]
    assert load_plan.measured_floors([*loads, load(5.0, COPY)]) == {PIPE: 150.0}
    assert (
        load_plan.measured_floors(loads[: load_plan.ENOUGH - 1])
        == load_plan.measured_floors([load(None), *loads[1:]])
        == {}
    )
