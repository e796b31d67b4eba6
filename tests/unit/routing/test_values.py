"""Shapes, policies and cost models refuse what cannot be, and name what can."""

import re

from airflow_provider_snowpipe.routing.cost_model import CostModel, LoadPolicy
from airflow_provider_snowpipe.routing.probes import DataShape, FileSet
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.refusals import refused


def test_a_shape_that_cannot_be_is_refused():
    for shape, words in [
        ({}, ["the shape has no size: give bytes, rows or files"]),
        ({"bounded": False, "files": {"count": 1, "bytes": 1}}, ["unbounded and has no rate"]),
        ({"bytes": -1}, ["bytes is -1"]),
        ({"bytes": float("nan")}, ["bytes is nan"]),
        ({"bytes": "5 GB"}, ["bytes is '5 GB': give a number"]),
        ({"rows": 1, "partitions": 0}, ["partitions is 0"]),
        ({"rows": 1, "given_to": "pipe"}, ["without files"]),
        ({"files": {"count": 1, "bytes": 1}, "given_to": "me"}, ["given_to is 'me'"]),
        ({"files": {"count": 1, "bytes": 1, "format": "csv"}}, ["format of the files is 'csv'"]),
        ({"files": {"count": 1, "bytes": 1, "interval": 0}}, ["interval of the files is 0"]),
        ({"files": {"count": 1, "bytes": 1, "size": 0}}, ["files of the shape", "'size'"]),
        ({"rows": 1, "backfil": True}, ["the shape", "'backfil'", "True", "'bounded'"]),
        ({"rows": 1, "backfill": "no"}, ["backfill of the shape is 'no': give true or false"]),
        ([], ["give a mapping"]),
        ({"files": {"count": None, "bytes": 1}}, ["count is None: give a number"]),
        ({"files": {"count": 1}}, ["files of the shape lacks the key 'bytes'"]),
        ("rows", ["the shape is the text 'rows', which is no JSON object"]),
    ]:
        refused(ConfigurationError, DataShape.from_json, [shape], *words)


def test_what_a_template_has_made_text_of_is_read_again():
    given = {"rows": "5", "bytes": "1e3", "backfill": "True", "files": {"count": "2", "bytes": "3"}}
    assert DataShape.from_json(given) == DataShape(rows=5, bytes=1e3, backfill=True, files=FileSet(2, 3))
    assert DataShape.known('{"freshness": "60"}') == {"freshness": 60}


def test_a_shape_is_json_and_back():
    shape = DataShape(files=FileSet(2, 10.0, format="CSV", staged=True), freshness=60.0)
    written = shape.as_json()
    assert ("rows" in written, "largest" in written["files"]) == (False, False)
    assert DataShape.from_json(written) == shape


def test_a_policy_that_cannot_be_is_refused():
    for option, value, words in [
        ("path", "fast", "path is 'fast'"),
        ("warehouse", "XS", "warehouse is 'XS': give one of X-SMALL"),
        ("largest_warehouse", "xl", "largest_warehouse is 'xl'"),
        ("band", -0.1, "band is -0.1"),
        ("flood_bytes", None, "flood_bytes is None: give a number"),
        ("has_pipe", "no", "has_pipe is 'no': give true or false"),
        ("warehouse", ["SMALL"], "warehouse is"),
        ("many_files", 0, "many_files=0"),
        ("measured", {"pipe": 0.0}, "measured is"),
        ("measured", {"train": 1.0}, "measured is"),
    ]:
        refused(ConfigurationError, lambda given: LoadPolicy(**dict([given])), [(option, value)], words)


class TestCostModel:
    def test_every_figure_has_a_unit_and_a_source(self):
        figures = CostModel().figures()
        assert len(figures) >= 25
        assert all(one.unit and one.source for one in figures)
        assert {one.name for one in figures if one.is_guess} > {"copy_file_seconds", "pipe_floor_seconds"}
        assert not next(one for one in figures if one.name == "stream_credits_per_gb").is_guess

    def test_limits_of_channel_and_table_are_of_one_state_of_one_page(self):
        figures = {one.name: one for one in CostModel().figures()}
        channel, table = figures["channel_bytes_per_second"], figures["table_bytes_per_second"]
        assert (channel.value, table.value, figures["stream_floor_seconds"].value) == (20e6, 20e9, 5.0)
        assert channel.source.startswith(table.source)
        assert re.search(r'page ".+", as of \w+ \d{4}', table.source)
        assert BatchLimits().bytes_per_second == channel.value

    def test_figures_can_be_replaced_by_name(self):
        costs = CostModel.with_figures({"stream_credits_per_gb": "0.01", "warehouse_threads": 16})
        assert (costs.stream_credits_per_gb, costs.warehouse_threads) == (0.01, 16.0)
        assert costs.pipe_credits_per_gb == 0.0037

    def test_a_figure_that_cannot_be_is_refused(self):
        for figures, words in [
            ({"stream_credits": 1}, ["'stream_credits'", "bytes_per_row"]),
            ({"text_ratio": "four"}, ["cost figure text_ratio is 'four'"]),
            ({"text_ratio": 0}, ["cost figure text_ratio is 0.0: give a number above 0"]),
            ({"text_ratio": "inf"}, ["cost figure text_ratio is inf"]),
        ]:
            refused(ConfigurationError, CostModel.with_figures, [figures], *words)
