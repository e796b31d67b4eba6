"""The path that each shape of data gets, by name."""

from dataclasses import replace

import pytest

from airflow_provider_snowpipe.routing.cost_model import LoadPolicy
from airflow_provider_snowpipe.routing.load_plan import Concern, LoadPath, measured_latency
from airflow_provider_snowpipe.routing.planner import least_seconds, plan_load
from airflow_provider_snowpipe.routing.probes import DataShape, FileSet

KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
STREAM, COPY, PIPE = LoadPath.STREAM, LoadPath.COPY, LoadPath.PIPE
OF_FILES = {"largest", "compressed", "staged", "oldest"}


def files(count, mean, kind="CSV", interval=None, **known):
    """Data in files; what is known of each goes to the files, the rest to the shape."""
    of_files = {name: known.pop(name) for name in OF_FILES & known.keys()}
    found = FileSet(count, count * mean, format=kind, interval=interval, **of_files)
    return DataShape(bounded=interval is None, files=found, **known)


def stage(count, mean, kind="CSV", **known):
    return files(count, mean, kind, staged=True, **known)


def drops(mean, interval, kind="CSV", **known):
    """Files that keep arriving."""
    return files(1, mean, kind, interval, **known)


def rows_at(rate, **known):
    return DataShape(bounded=False, arrival_rate=rate, **known)


def data(size, **known):
    """Data in no file."""
    return DataShape(bytes=size, **known)


SLOW, UNFIT, NOT_FRESH, TABLE_LIMIT = Concern.SLOW, Concern.UNFIT, Concern.NOT_FRESH, Concern.TABLE_LIMIT
MICRO_BATCHES, FLOOD = Concern.MICRO_BATCHES, Concern.FLOOD_THROUGH_STREAM
TINY, HUGE, OLD = Concern.TINY_FILES, Concern.HUGE_FILE, Concern.OLD_FILES
CHEAPEST, REMAINS, NO_PATH = {"reason": "cheapest"}, {"reason": "what remains"}, {"reason": "no path"}

# The name of a shape; its plan's path and all of its warnings; a reason of it, the path before, the policy.
CASES = [
    ("one-time history of 50 TB in a stage", stage(250_000, 200 * MB, backfill=True), COPY, (),
     {"reason": "backfill"}),
    ("endless clickstream", rows_at(5 * MB, freshness=10, partitions=8), STREAM, (),
     {"reason": "endless stream"}),
    ("a file every minute", drops(20 * MB, MINUTE), PIPE, (), {"reason": "keep arriving"}),
    ("a file every minute, where no pipe may be made", drops(50 * MB, MINUTE, staged=True), COPY, (),
     {"may_make_pipe": False, "reason": "suit a pipe, and none is known"}),
    ("100,000 tiny files", files(100_000, 4 * KB, "JSON"), COPY, (TINY,),
     {"reason": "100,000 files at once"}),
    ("1,000 small files", files(1000, 4 * KB), COPY, (TINY,), {"reason": "1,000 files at once"}),
    ("a live stream cut into files for COPY", drops(2 * MB, 20, "JSON", live_into_files=True), STREAM,
     (MICRO_BATCHES,), {}),
    ("a live stream forced through COPY", rows_at(2 * MB), COPY, (UNFIT, MICRO_BATCHES),
     {"path": "copy", "reason": "the shape suggests stream"}),
    ("a flood forced through streaming", files(10_000, 200 * MB), STREAM, (UNFIT, FLOOD, SLOW),
     {"path": "stream"}),
    ("files given to a pipe, forced through COPY", stage(20, 100 * MB, given_to="pipe"), COPY,
     (UNFIT, Concern.TWO_LOADERS), {"path": "copy"}),
    # Bounded data
    ("just above the crossover", data(5 * GB), COPY, (), {}),
    ("above the crossover, streamed before", data(5 * GB), STREAM, (),
     {"previous": STREAM, "reason": "run before"}),
    ("below the crossover, copied before", data(4 * GB), COPY, (), {"previous": COPY}),
    ("a day's files in a stage", stage(24, 1 * MB), COPY, (), {"reason": "in a stage"}),
    ("a day's files in a stage that a pipe reads", stage(24, 1 * MB), PIPE, (), {"has_pipe": True}),
    ("a day to load again, required at once", files(24, 1 * MB, backfill=True, freshness=5), COPY,
     (NOT_FRESH,), {}),
    ("a flood where no file may be written", data(1 * TB, partitions=64), STREAM, (FLOOD,),
     {"may_write_files": False}),
    ("files given to COPY", files(5, MB, given_to="copy"), COPY, (), {"reason": "given to copy"}),
    ("1 TB within ten minutes from a slow line", data(1 * TB, freshness=600), COPY, (SLOW,), {}),
    ("one large gz among small ones",
     stage(1000, 100 * MB, compressed=True, largest=90 * GB, freshness=HOUR), COPY, (SLOW,), {}),
    # Endless data
    ("a file of 1 GB every minute, hourly is enough", drops(1 * GB, MINUTE, freshness=HOUR), COPY, (), {}),
    ("the same as Parquet", drops(1 * GB, MINUTE, "PARQUET", freshness=HOUR), PIPE, (), {}),
    ("a file every minute, required in 20 seconds", drops(20 * MB, MINUTE, freshness=20), STREAM, (),
     REMAINS),
    ("files that arrive faster than a channel takes", drops(8 * MB, 0.1, freshness=20), PIPE,
     (MICRO_BATCHES, NOT_FRESH), {"reason": "stream lags behind"}),
    ("a tiny file every five seconds", drops(50 * KB, 5, "JSON"), PIPE, (MICRO_BATCHES,), {}),
    ("a clickstream faster than its one channel", rows_at(80 * MB), STREAM, (TABLE_LIMIT,), {}),
    ("a clickstream required at once", rows_at(1 * MB, freshness=1), STREAM, (NOT_FRESH,), {}),
    ("an endless stream forced through a pipe", rows_at(1 * MB, freshness=10), PIPE,
     (UNFIT, MICRO_BATCHES, NOT_FRESH), {"path": "pipe"}),
    # Required soon
    ("a flood in four seconds on 2,000 channels", data(100 * GB, freshness=4, partitions=2000), COPY,
     (NOT_FRESH,), NO_PATH),
    ("10 GB in 70 seconds on 100 channels", data(10 * GB, freshness=70, partitions=100), STREAM, (),
     CHEAPEST),
    ("1 GB in 4 seconds on 100 channels", data(GB, freshness=4, partitions=100), STREAM, (NOT_FRESH,),
     {"reason": "the soonest"}),
    # Nothing
    ("no row", DataShape(rows=0), STREAM, (), {"reason": "nothing to load: 0 rows"}),
    ("no file for a pipe", files(0, 0.0, given_to="pipe"), PIPE, (), {"reason": "nothing to load"}),
    ("no file, forced through streaming", files(0, 0.0), STREAM, (),
     {"path": "stream", "reason": "nothing to load"}),
]  # fmt: skip


def test_a_shape_gets_its_path_and_its_warnings():
    for name, shape, path, warns, given in CASES:
        policy = dict(given)
        reason, previous = policy.pop("reason", ""), policy.pop("previous", None)
        plan = plan_load(shape, LoadPolicy(**policy), previous)
        found = (plan.path, tuple(one.concern for one in plan.warnings))
        assert found == (path, warns), (name, plan.lines())
        assert reason in " ".join(plan.reasons), name
        assert plan.is_forced is ("path" in policy), name
        assert plan.nothing_to_load is (reason.startswith("nothing to load")), name


class TestDescription:
    def test_tiny_files_are_combined_to_the_size_that_is_advised(self):
        plan = plan_load(stage(100_000, 4 * KB))
        assert (plan.compact.files, plan.compact.combined) == (100_000, 3)
        assert 100 * MB < plan.compact.file_bytes < 250 * MB
        assert plan.compact.credits < plan.estimate().credits / 10

    def test_every_path_has_an_estimate(self):
        plan = plan_load(data(1000 * GB))
        assert [one.path for one in plan.estimates] == [STREAM, COPY, PIPE]
        assert plan.estimate(STREAM).credits == pytest.approx(3.7)
        assert plan.estimate(PIPE).credits == pytest.approx(3.7)
        assert plan.estimate(COPY).credits == pytest.approx(1000 / 855, rel=0.01)
        assert plan.estimate(PIPE).unfit == "a pipe loads files, and these rows are in none"
        published = plan_load(stage(30_000, 4.7 * TB / 30_000)).estimate()
        assert published.credits == pytest.approx(8.2, rel=0.02)

    def test_measured_latency_is_the_floor_of_its_path(self):
        shape = stage(24, 1 * MB, freshness=120)
        slow_pipe = LoadPolicy(has_pipe=True, measured={PIPE: 150.0})
        assert plan_load(shape, LoadPolicy(has_pipe=True)).path is PIPE
        assert plan_load(shape, slow_pipe).path is COPY
        assert plan_load(shape, slow_pipe).estimate(PIPE).latency == 150.0
        for seconds, latency in [(100, 40), (50, 30), (20, 20)]:
            assert measured_latency({"seconds": 90, "latency": 30}, seconds) == latency

    def test_a_forced_plan_is_no_previous_path_and_one_that_is_much_dearer_does_not_stay(self):
        shape = data(5 * GB)
        assert plan_load(shape, previous=plan_load(shape, LoadPolicy(path="stream"))).path is COPY
        assert plan_load(shape, previous=plan_load(data(GB))).path is STREAM
        assert plan_load(data(50 * GB), previous=STREAM).path is COPY


class TestThresholds:
    """Where a decision changes, how far the path of the run before moves that, and what the words report."""

    STAGED = stage(1_000, GB)
    FEW = stage(9, MB)

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

    def test_files_are_old_when_their_loader_has_forgotten_or_does_not_reach_them(self):
        for oldest, given_to, warns in [
            (63, None, 0), (64, None, 0), (65, None, 1), (6, "pipe", 0), (7, "pipe", 0), (8, "pipe", 1)
        ]:  # fmt: skip
            warnings = plan_load(stage(20, 100 * MB, oldest=oldest * DAY, given_to=given_to)).warnings
            assert [one.concern for one in warnings] == [Concern.OLD_FILES] * warns
