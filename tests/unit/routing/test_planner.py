"""The path that each shape of data gets, by name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from airflow_provider_snowpipe.routing.cost_model import CostModel, LoadPolicy
from airflow_provider_snowpipe.routing.load_plan import Concern, LoadPath
from airflow_provider_snowpipe.routing.planner import least_seconds, plan_load
from airflow_provider_snowpipe.routing.probes import DataShape, FileSet

KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
STREAM, COPY, PIPE = LoadPath.STREAM, LoadPath.COPY, LoadPath.PIPE


@dataclass(frozen=True)
class Case:
    """A shape, and what its plan has to be; ``warns`` are all of its warnings."""

    name: str
    shape: DataShape
    path: LoadPath
    warns: tuple[Concern, ...] = ()
    reason: str = ""
    policy: dict[str, Any] = field(default_factory=dict)
    previous: LoadPath | None = None
    nothing: bool = False


def files(count, mean, kind="CSV", **known):
    return FileSet(count, count * mean, format=kind, **known)


def drops(mean, interval, kind="CSV", **known):
    """Files that keep arriving."""
    return FileSet(1, mean, format=kind, interval=interval, **known)


def rows_at(rate, **known):
    return DataShape(bounded=False, arrival_rate=rate, **known)


NAMED_IN_THE_SEEDS = [
    Case("one-time history of 50 TB in a stage",
         DataShape(files=files(250000, 200 * MB, staged=True), backfill=True), COPY, reason="backfill"),
    Case("one-time flood of 50 TB that is in no file", DataShape(bytes=50 * TB), COPY, (Concern.SLOW,)),
    Case("endless clickstream", rows_at(5 * MB, freshness=10, partitions=8), STREAM,
         reason="endless stream"),
    Case("a file every minute", DataShape(bounded=False, files=drops(20 * MB, MINUTE)), PIPE,
         reason="keep arriving"),
    Case("a file every minute, where no pipe may be made",
         DataShape(bounded=False, files=drops(50 * MB, MINUTE, staged=True)), COPY,
         policy={"may_make_pipe": False}, reason="suit a pipe, and none is known"),
    Case("a file every minute, where no other pipe may be made",
         DataShape(bounded=False, files=drops(50 * MB, MINUTE, staged=True)), PIPE,
         policy={"may_make_pipe": False, "has_pipe": True}),
    Case("100,000 tiny files", DataShape(files=files(100000, 4 * KB, "JSON", staged=True)), COPY,
         (Concern.TINY_FILES,)),
    Case("100,000 tiny files on a disk", DataShape(files=files(100000, 4 * KB, "JSON")), COPY,
         (Concern.TINY_FILES,), reason="100,000 files at once"),
    Case("a live stream cut into files for COPY",
         DataShape(bounded=False, files=drops(2 * MB, 20, "JSON"), live_into_files=True), STREAM,
         (Concern.MICRO_BATCHES,)),
    Case("a live stream forced through COPY", rows_at(2 * MB), COPY, (Concern.UNFIT, Concern.MICRO_BATCHES),
         reason="the shape suggests stream", policy={"path": "copy"}),
    Case("a one-shot flood forced through streaming", DataShape(files=files(10000, 200 * MB)), STREAM,
         (Concern.UNFIT, Concern.FLOOD_THROUGH_STREAM, Concern.SLOW), policy={"path": "stream"}),
    Case("the same files given to a pipe, forced through COPY",
         DataShape(files=files(20, 100 * MB, staged=True), given_to="pipe"), COPY,
         (Concern.UNFIT, Concern.TWO_LOADERS), policy={"path": "copy"}),
]  # fmt: skip
BOUNDED = [
    Case("a few rows", DataShape(rows=100), STREAM, reason="cheapest"),
    Case("a backlog after an outage of a week", DataShape(bytes=2 * TB, partitions=12), COPY),
    Case("just below the crossover", DataShape(bytes=4.4 * GB), STREAM),
    Case("just above the crossover", DataShape(bytes=5 * GB), COPY),
    Case("above the crossover, streamed before", DataShape(bytes=5 * GB), STREAM, previous=STREAM,
         reason="run before"),
    Case("below the crossover, copied before", DataShape(bytes=4 * GB), COPY, previous=COPY),
    Case("nearly as many files as a flood, copied before", DataShape(files=files(810, 1 * KB)), COPY,
         previous=COPY, reason="of 800 from which on"),
    Case("fewer files than a flood of the band, copied before", DataShape(files=files(790, 1 * KB)), STREAM,
         previous=COPY),
    Case("somewhat more files than a flood, streamed before", DataShape(files=files(1240, 1 * KB)), STREAM,
         (Concern.TINY_FILES,), previous=STREAM),
    Case("a day's files on a disk", DataShape(files=files(24, 1 * MB)), STREAM),
    Case("a day's files in a stage", DataShape(files=files(24, 1 * MB, staged=True)), COPY,
         reason="in a stage"),
    Case("a day's files in a stage that a pipe reads", DataShape(files=files(24, 1 * MB, staged=True)),
         PIPE, policy={"has_pipe": True}),
    Case("a day to load again", DataShape(files=files(24, 1 * MB), backfill=True), COPY, reason="backfill"),
    Case("a day to load again, required at once",
         DataShape(files=files(24, 1 * MB), backfill=True, freshness=5), COPY, (Concern.NOT_FRESH,)),
    Case("rows of the past where no file may be written", DataShape(bytes=1 * GB, backfill=True), STREAM,
         policy={"may_write_files": False}),
    Case("a flood where no file may be written", DataShape(bytes=1 * TB, partitions=64), STREAM,
         (Concern.FLOOD_THROUGH_STREAM,), policy={"may_write_files": False}),
    Case("10 GB required in 15 seconds", DataShape(bytes=10 * GB, freshness=15, partitions=100), STREAM,
         (Concern.FLOOD_THROUGH_STREAM,), reason="what remains"),
    Case("files in a stage required in 15 seconds",
         DataShape(files=files(9, MB, staged=True), freshness=15), COPY, (Concern.NOT_FRESH,)),
    Case("a warehouse that runs anyway", DataShape(bytes=1 * GB), COPY,
         policy={"warehouse_is_running": True}),
    Case("one file of 200 GB in a stage", DataShape(files=files(1, 200 * GB, staged=True)), COPY,
         (Concern.HUGE_FILE,)),
    Case("files of last year", DataShape(files=files(50, 100 * MB, staged=True, oldest=365 * DAY)), COPY,
         (Concern.OLD_FILES,)),
    Case("files of last month given to a pipe",
         DataShape(files=files(50, 100 * MB, staged=True, oldest=30 * DAY), given_to="pipe"), PIPE,
         (Concern.OLD_FILES,), reason="given to pipe already"),
    Case("files given to COPY", DataShape(files=files(5, MB), given_to="copy"), COPY,
         reason="given to copy"),
    Case("1 TB within ten minutes from a slow line", DataShape(bytes=1 * TB, freshness=600), COPY,
         (Concern.SLOW,)),
    Case("compressed JSON, 8 GB as stored", DataShape(files=files(80, 100 * MB, "JSON", compressed=True)),
         STREAM, reason="cheapest"),
]  # fmt: skip
ENDLESS = [
    Case("a file of 1 GB every minute, hourly is enough",
         DataShape(bounded=False, files=drops(1 * GB, MINUTE), freshness=HOUR), COPY),
    Case("the same as Parquet",
         DataShape(bounded=False, files=drops(1 * GB, MINUTE, "PARQUET"), freshness=HOUR), PIPE),
    Case("a file every minute, required in 20 seconds",
         DataShape(bounded=False, files=drops(20 * MB, MINUTE), freshness=20), STREAM,
         reason="what remains"),
    Case("the same in a stage",
         DataShape(bounded=False, files=drops(20 * MB, MINUTE, staged=True), freshness=20), PIPE,
         (Concern.NOT_FRESH,)),
    Case("a tiny file every five seconds", DataShape(bounded=False, files=drops(50 * KB, 5, "JSON")), PIPE,
         (Concern.MICRO_BATCHES,)),
    Case("a clickstream faster than its one channel", rows_at(80 * MB), STREAM, (Concern.TABLE_LIMIT,)),
    Case("15 GB/s on 500 channels", rows_at(15 * GB, partitions=500), STREAM, (Concern.TABLE_LIMIT,)),
    Case("more than a table takes", rows_at(25 * GB, partitions=2000), STREAM, (Concern.TABLE_LIMIT,)),
    Case("a clickstream required at once", rows_at(1 * MB, freshness=1), STREAM, (Concern.NOT_FRESH,)),
    Case("files faster than their one channel, required in 20 seconds",
         DataShape(bounded=False, files=drops(1 * GB, 10), freshness=20), PIPE, (Concern.NOT_FRESH,),
         reason="no path"),
    Case("an endless stream forced through a pipe", rows_at(1 * MB, freshness=10), PIPE,
         (Concern.UNFIT, Concern.MICRO_BATCHES, Concern.NOT_FRESH), policy={"path": "pipe"}),
    Case("a pipe by the old price of files",
         DataShape(bounded=False, files=drops(10 * KB, 1), freshness=400), STREAM, (Concern.MICRO_BATCHES,),
         policy={"costs": CostModel(pipe_credits_per_1000_files=0.06)}),
    Case("a backfill flag on an endless stream changes nothing", rows_at(1 * MB, backfill=True), STREAM),
]  # fmt: skip
LATE = [
    Case("50 TB required in a second", DataShape(bytes=50 * TB, freshness=1), COPY, (Concern.NOT_FRESH,),
         reason="no path has all rows within 1 s"),
    Case("90 GB required in 20 seconds on one channel", DataShape(bytes=90 * GB, freshness=20), COPY,
         (Concern.NOT_FRESH,), reason="no path"),
    Case("90 GB required in 20 seconds on 2,000 channels",
         DataShape(bytes=90 * GB, freshness=20, partitions=2000), STREAM, (Concern.FLOOD_THROUGH_STREAM,),
         reason="what remains"),
    Case("a flood required in four seconds on 2,000 channels",
         DataShape(bytes=100 * GB, freshness=4, partitions=2000), COPY, (Concern.NOT_FRESH,),
         reason="no path"),
    Case("10 GB required in 70 seconds on one channel", DataShape(bytes=10 * GB, freshness=70), COPY),
    Case("10 GB required in 70 seconds on 100 channels",
         DataShape(bytes=10 * GB, freshness=70, partitions=100), STREAM, reason="cheapest"),
    Case("1 GB required in 7 seconds on 100 channels", DataShape(bytes=GB, freshness=7, partitions=100),
         STREAM),
    Case("1 GB required in 4 seconds on 100 channels", DataShape(bytes=GB, freshness=4, partitions=100),
         STREAM, (Concern.NOT_FRESH,), reason="the soonest"),
    Case("10 GB in a stage required in a minute",
         DataShape(files=files(100, 100 * MB, staged=True), freshness=60), COPY),
]  # fmt: skip
ONE_THREAD = [
    Case("one gz of 400 GB", DataShape(files=files(1, 400 * GB, compressed=True, staged=True)), COPY,
         (Concern.HUGE_FILE, Concern.SLOW)),
    Case("one CSV of 400 GB that may be split", DataShape(files=files(1, 400 * GB, staged=True)), COPY,
         (Concern.HUGE_FILE,), policy={"splits_csv": True}),
    Case("20 gz of 20 GB", DataShape(files=files(20, 20 * GB, compressed=True, staged=True)), COPY),
    Case("ten gz of 2 GB required in five minutes",
         DataShape(files=files(10, 2 * GB, "JSON", compressed=True, staged=True), freshness=300), COPY,
         (Concern.SLOW,)),
    Case("one large gz among small ones",
         DataShape(files=files(1000, 100 * MB, compressed=True, largest=90 * GB, staged=True),
                   freshness=HOUR), COPY, (Concern.SLOW,)),
]  # fmt: skip
ARRIVING = [
    Case("a gz of 2 GB an hour required in five minutes",
         DataShape(bounded=False, files=drops(2 * GB, HOUR, compressed=True, staged=True), freshness=300),
         PIPE, (Concern.SLOW,), reason="no path has all rows within 5 min"),
    Case("the same required in ten minutes",
         DataShape(bounded=False, files=drops(2 * GB, HOUR, compressed=True, staged=True), freshness=600),
         PIPE),
    Case("a file of 2 GB an hour required in 60 seconds",
         DataShape(bounded=False, files=drops(2 * GB, HOUR), freshness=60), STREAM, (Concern.SLOW,)),
    Case("a file of 2 GB an hour required in 110 seconds",
         DataShape(bounded=False, files=drops(2 * GB, HOUR), freshness=110), STREAM, reason="what remains"),
]  # fmt: skip
NOTHING = [
    Case("no file on a disk", DataShape(files=files(0, 0.0)), COPY, nothing=True, reason="nothing to load"),
    Case("no row", DataShape(rows=0), STREAM, nothing=True, reason="nothing to load: 0 rows"),
    Case("no byte", DataShape(bytes=0.0), STREAM, nothing=True, reason="nothing to load: 0 bytes"),
    Case("only empty files", DataShape(files=files(9, 0.0)), COPY, nothing=True),
    Case("no file for a pipe", DataShape(files=files(0, 0.0), given_to="pipe"), PIPE, nothing=True),
    Case("no file, streamed before", DataShape(files=files(0, 0.0)), STREAM, previous=STREAM, nothing=True),
    Case("no file, forced through streaming", DataShape(files=files(0, 0.0)), STREAM, nothing=True,
         policy={"path": "stream"}, reason="asked for"),
    Case("a quiet stream", rows_at(0.0), STREAM),
]  # fmt: skip


@pytest.mark.parametrize(
    "cases",
    [NAMED_IN_THE_SEEDS, BOUNDED, ENDLESS, LATE, ONE_THREAD, ARRIVING, NOTHING],
    ids=["seeds", "bounded", "endless", "late", "one-thread", "arriving", "nothing"],
)
def test_a_shape_gets_its_path_and_its_warnings(cases):
    for case in cases:
        plan = plan_load(case.shape, LoadPolicy(**case.policy), case.previous)

        found = (plan.path, tuple(one.concern for one in plan.warnings))
        assert found == (case.path, case.warns), (case.name, plan.lines())
        assert case.reason in " ".join(plan.reasons), case.name
        assert plan.is_forced is ("path" in case.policy), case.name
        assert plan.nothing_to_load is case.nothing, case.name


def test_copy_is_as_soon_as_the_warehouse_lets_it_that_is_larger_than_the_largest_to_grow_to():
    shape = DataShape(files=files(1_000, GB, staged=True))

    grown, small = (
        least_seconds(COPY, shape, LoadPolicy(warehouse=one, largest_warehouse=other))
        for one, other in (("X-LARGE", "X-SMALL"), ("X-SMALL", "X-SMALL"))
    )

    assert grown == least_seconds(COPY, shape, LoadPolicy(warehouse="X-SMALL", largest_warehouse="X-LARGE"))
    assert grown < small


class TestDescription:
    def test_tiny_files_are_combined_to_the_size_that_is_advised(self):
        plan = plan_load(DataShape(files=files(100_000, 4 * KB, staged=True)))

        assert plan.compact is not None
        assert (plan.compact.files, plan.compact.combined) == (100_000, 3)
        assert 100 * MB < plan.compact.file_bytes < 250 * MB
        assert plan.compact.credits < plan.estimate().credits / 10

    def test_every_path_has_an_estimate(self):
        plan = plan_load(DataShape(bytes=1000 * GB))

        assert [one.path for one in plan.estimates] == [STREAM, COPY, PIPE]
        assert plan.estimate(STREAM).credits == pytest.approx(3.7)
        assert plan.estimate(PIPE).credits == pytest.approx(3.7)
        assert plan.estimate(COPY).credits == pytest.approx(1000 / 855, rel=0.01)
        assert plan.estimate(PIPE).unfit == "a pipe loads files, and these rows are in none"

    def test_copy_of_csv_costs_what_was_published(self):
        plan = plan_load(DataShape(files=files(30_000, 4.7 * TB / 30_000, staged=True)))

        assert plan.estimate().credits == pytest.approx(8.2, rel=0.02)

    def test_a_larger_warehouse_is_taken_when_time_is_short_and_costs_no_more(self):
        shape = DataShape(files=files(10_000, 200 * MB, staged=True))
        unhurried = plan_load(shape).estimate()
        hurried = plan_load(DataShape(files=shape.files, freshness=1200)).estimate()

        assert (unhurried.warehouse, hurried.warehouse) == ("X-SMALL", "X-LARGE")
        assert unhurried.credits == hurried.credits
        assert hurried.seconds < 1200 < unhurried.seconds

    def test_a_schedule_of_copies_follows_the_freshness(self):
        shape = DataShape(bounded=False, files=drops(1 * GB, MINUTE), freshness=HOUR)
        copy = plan_load(shape).estimate(COPY)

        one_thread = 8 * GB / (573 * GB / 3600) + 0.1
        assert copy.interval == pytest.approx(HOUR - 30 - one_thread)
        assert copy.seconds == HOUR

    def test_a_large_gz_is_read_by_one_thread_in_every_warehouse(self):
        one, many = (
            plan_load(
                DataShape(files=files(count, 400 * GB / count, compressed=True, staged=True))
            ).estimate()
            for count in (1, 4000)
        )

        assert (one.warehouse, many.warehouse) == ("X-SMALL", "X-SMALL")
        assert one.seconds == pytest.approx(8 * many.seconds, rel=0.01)
        assert one.credits == pytest.approx(8 * many.credits, rel=0.01)

    def test_a_warehouse_does_not_grow_for_the_thread_of_one_file(self):
        shape = DataShape(files=files(100, 40 * GB, "JSON", compressed=True, staged=True))
        estimate = plan_load(shape, LoadPolicy(load_within=HOUR)).estimate()

        assert estimate.warehouse == "LARGE"
        assert estimate.credits == pytest.approx(16 * TB / (269 * GB), rel=0.01)

    def test_only_csv_without_compression_is_split_and_only_where_the_policy_allows_it(self):
        for splits, kind, compressed, seconds in [
            (False, "CSV", False, 8 * 400 * GB / (573 * GB / 3600)),
            (True, "CSV", False, 400 * GB / (573 * GB / 3600)),
            (True, "CSV", True, 4 * 8 * 400 * GB / (573 * GB / 3600)),
            (True, "JSON", False, 8 * 400 * GB / (269 * GB / 3600)),
            (True, "PARQUET", False, 3.6 * 8 * 400 * GB / (270 * GB / 3600)),
        ]:
            shape = DataShape(files=files(1, 400 * GB, kind, compressed=compressed, staged=True))
            found = plan_load(shape, LoadPolicy(splits_csv=splits)).estimate().seconds
            assert found == pytest.approx(seconds, rel=0.02)

    def test_a_freshness_that_a_larger_warehouse_keeps_is_paid_for(self):
        shape = DataShape(files=files(100, 100 * MB, staged=True))
        unhurried, hurried = (plan_load(replace(shape, freshness=f)).estimate() for f in (None, 60))

        assert (unhurried.warehouse, hurried.warehouse) == ("X-SMALL", "MEDIUM")
        assert hurried.seconds < 60 < unhurried.seconds
        assert hurried.credits == pytest.approx(4 * 60 / 3600)

    def test_streaming_is_advised_only_where_it_keeps_the_freshness(self):
        for required, is_advised in {20: True, 4: False}.items():
            (warning,) = plan_load(DataShape(files=files(9, MB, staged=True), freshness=required)).warnings
            assert warning.concern is Concern.NOT_FRESH
            assert ("stream the rows" in warning.text) is is_advised

    def test_measured_latency_is_the_floor_of_its_path(self):
        shape = DataShape(files=files(24, 1 * MB, staged=True), freshness=120)
        slow_pipe = LoadPolicy(has_pipe=True, measured={PIPE: 150.0})

        assert plan_load(shape, LoadPolicy(has_pipe=True)).path is PIPE
        assert plan_load(shape, slow_pipe).path is COPY
        assert plan_load(shape, slow_pipe).estimate(PIPE).latency == 150.0

    def test_data_of_which_there_is_none_costs_nothing(self):
        plan = plan_load(DataShape(files=files(0, 0.0)), previous=STREAM)

        assert plan.lines() == ["path stream: nothing to load: 0 files"]
        assert [one.credits for one in plan.estimates] == [0.0, 0.0, 0.0]
        assert plan.as_json()["nothing_to_load"] is True

    def test_a_forced_plan_is_no_previous_path(self):
        shape = DataShape(bytes=5 * GB)
        forced = plan_load(shape, LoadPolicy(path="stream"))

        assert plan_load(shape, previous=forced).path is COPY
        assert plan_load(shape, previous=plan_load(DataShape(bytes=GB))).path is STREAM

    def test_a_plan_is_json_and_words(self):
        plan = plan_load(DataShape(files=files(100_000, 4 * KB)))
        written = plan.as_json()

        assert (written["path"], written["compact"]["combined"]) == ("copy", 3)
        assert type(written["path"]) is str
        assert {line.split()[0] for line in plan.lines()} == {"path", "advice:", "warning"}
        assert plan.table()[1]["path"] == "copy"
        assert plan.table()[1]["chosen"] == "yes"


class TestThresholds:
    """Where a decision changes, how far the path of the run before moves that, and what the words report."""

    STAGED = DataShape(files=files(1_000, GB, staged=True))
    FEW = DataShape(files=files(9, MB, staged=True))

    def test_the_path_of_the_run_before_may_be_late_by_the_band(self):
        policy = LoadPolicy(has_pipe=True, band=0.25)
        for share, previous, is_fresh in [
            (1.0, None, True), (0.99, None, False), (0.81, COPY, True), (0.81, PIPE, False),
            (0.79, COPY, False),
        ]:  # fmt: skip
            required = share * least_seconds(COPY, self.STAGED, policy)
            plan = plan_load(replace(self.STAGED, freshness=required), policy, previous)

            assert plan.path is COPY
            assert plan.reasons[-1].startswith("what remains" if is_fresh else "no path has all rows within")
            unfit = plan.estimate(PIPE).unfit
            assert (unfit or "").startswith("all rows after 57.1 min" if is_fresh else "")
            assert (unfit is None) is not is_fresh

    def test_a_path_that_is_late_from_its_first_row_on_is_reported_so(self):
        plan = plan_load(replace(self.FEW, freshness=45), LoadPolicy(has_pipe=True))

        assert plan.estimate(PIPE).unfit == "first rows after 90 s at best, required within 45 s"

    def test_where_none_is_in_time_the_path_before_stays_within_the_band(self):
        for seconds, previous, path in [
            (60.0, None, COPY), (60.0, PIPE, PIPE), (65.0, PIPE, COPY), (60.0, STREAM, COPY)
        ]:  # fmt: skip
            policy = LoadPolicy(has_pipe=True, band=0.25, measured={COPY: 50.0, PIPE: seconds})
            plan = plan_load(replace(self.FEW, freshness=20), policy, previous)
            assert plan.path is path
            assert f": {path.value} is the soonest" in " ".join(plan.reasons)

    def test_the_path_before_moves_what_counts_as_a_flood_and_many_files_are_one(self):
        for volume, previous, is_flood in [
            (99, None, False), (100, None, True), (124, STREAM, False), (125, STREAM, True),
            (79, COPY, False), (80, COPY, True),
        ]:  # fmt: skip
            policy = LoadPolicy(flood_bytes=100 * GB, band=0.25)
            plan = plan_load(DataShape(bytes=volume * GB), policy, previous)
            assert (plan.estimate(STREAM).unfit or "").startswith("a flood") is is_flood
        for count, is_flood in {999: False, 1_000: True}.items():
            plan = plan_load(DataShape(files=files(count, KB)), LoadPolicy(many_files=1_000))
            assert ("at once, of 1,000" in (plan.estimate(STREAM).unfit or "")) is is_flood

    def test_copy_stays_though_its_warehouse_has_grown_for_the_freshness(self):
        shape = DataShape(files=files(100, 100 * MB, staged=True), freshness=60)
        for previous, path in {None: PIPE, COPY: COPY, PIPE: PIPE}.items():
            plan = plan_load(shape, LoadPolicy(has_pipe=True, measured={PIPE: 20.0}), previous)
            assert plan.estimate(COPY).credits > 1.25 * plan.estimate(PIPE).credits
            assert plan.path is path

    def test_a_stream_that_is_much_dearer_does_not_stay(self):
        assert plan_load(DataShape(bytes=50 * GB), previous=STREAM).path is COPY

    def test_files_are_old_when_their_loader_has_forgotten_or_does_not_reach_them(self):
        for oldest, given_to, warns in [
            (63, None, 0), (64, None, 0), (65, None, 1), (6, "pipe", 0), (7, "pipe", 0), (8, "pipe", 1)
        ]:  # fmt: skip
            found = files(20, 100 * MB, staged=True, oldest=oldest * DAY)
            warnings = plan_load(DataShape(files=found, given_to=given_to)).warnings
            assert [one.concern for one in warnings] == [Concern.OLD_FILES] * warns

    def test_two_loaders_are_warned_of_with_the_memory_of_the_first(self):
        for given_to, forced, days in [("copy", "pipe", 64), ("pipe", "copy", 14)]:
            plan = plan_load(replace(self.FEW, given_to=given_to), LoadPolicy(path=forced))
            assert f"whose memory of {days} days {forced} does not share" in plan.warnings[-1].text

    def test_what_a_table_cannot_take_comes_with_the_number_of_channels_that_can(self):
        for rate, remedy in {
            50 * MB: "use at least 3 partitions, each with its channel",
            20 * GB: "use at least 1,000 partitions, each with its channel",
            21 * GB: "spread the rows over more tables",
        }.items():
            (warning,) = plan_load(rows_at(rate)).warnings
            assert warning.concern is Concern.TABLE_LIMIT
            assert warning.text.endswith(remedy)
        assert plan_load(rows_at(20 * MB)).warnings == ()

    def test_the_largest_file_is_the_huge_one_and_the_mean_where_it_is_not_known(self):
        for found, size in [
            (files(1, 200 * GB, staged=True), "200 GB"),
            (files(400, GB, staged=True, largest=150 * GB), "150 GB"),
        ]:
            text = {one.concern: one.text for one in plan_load(DataShape(files=found)).warnings}
            assert text[Concern.HUGE_FILE].startswith(f"a file of {size} is read by one thread, for ")

    def test_a_huge_file_of_an_endless_stream_has_no_end_to_report(self):
        shape = DataShape(bounded=False, files=drops(200 * GB, HOUR, staged=True))
        text = {one.concern: one.text for one in plan_load(shape).warnings}

        assert text[Concern.HUGE_FILE].startswith("a file of 200 GB takes long and fails as a whole")

    def test_a_freshness_that_no_path_keeps_is_compared_with_first_and_last_rows(self):
        (warning,) = plan_load(DataShape(files=files(1_000, 100 * MB, staged=True), freshness=20)).warnings

        assert warning.concern is Concern.NOT_FRESH
        assert "has the first ones after 30 s at best, all of them after 110 s: ask" in warning.text

    def test_a_forced_path_that_suits_is_not_called_unfit(self):
        assert plan_load(DataShape(bytes=GB), LoadPolicy(path="stream")).warnings == ()
