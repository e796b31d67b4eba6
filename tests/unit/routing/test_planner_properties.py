"""What holds for every shape: a plan, the same one each time, and no move in the wrong direction."""

import itertools
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.routing.cost_model import CostModel, LoadPolicy
from airflow_provider_snowpipe.routing.load_plan import Concern, LoadPath, LoadPlan
from airflow_provider_snowpipe.routing.planner import least_seconds, plan_load
from airflow_provider_snowpipe.routing.probes import BINARY_FORMATS, TEXT_FORMATS, DataShape, FileSet

VOLUME = st.one_of(st.just(0.0), st.floats(-3, 15).map(lambda power: 10.0**power))
SECONDS = st.one_of(st.none(), st.floats(0, 6).map(lambda power: 10.0**power))
PREVIOUS = st.one_of(st.none(), st.sampled_from(LoadPath))
NEARLY = st.floats(0.96, 1.04)
MANY = settings(max_examples=25, deadline=None)


FILES = st.just(FileSet(0, 0.0)) | st.builds(
    FileSet,
    st.integers(1, 1_000_000),
    VOLUME,
    largest=st.none() | VOLUME,
    format=st.none() | st.sampled_from(TEXT_FORMATS + BINARY_FORMATS),
    compressed=st.booleans(),
    staged=st.booleans(),
    oldest=SECONDS,
    newest=SECONDS,
    interval=SECONDS,
)


@st.composite
def shapes(draw):
    bounded, files = draw(st.booleans()), draw(st.none() | FILES)
    needs_bytes = bounded and files is None
    needs_rate = not bounded and not (files and files.interval)
    return DataShape(
        bounded=bounded,
        bytes=draw(VOLUME if needs_bytes else st.one_of(st.none(), VOLUME)),
        rows=draw(st.one_of(st.none(), st.integers(0, 10**12))),
        files=files,
        arrival_rate=draw(VOLUME if needs_rate else st.one_of(st.none(), VOLUME)),
        freshness=draw(SECONDS),
        backfill=draw(st.booleans()),
        live_into_files=draw(st.booleans()),
        given_to=draw(st.sampled_from([None, None, None, "copy", "pipe"])) if files else None,
        partitions=draw(st.integers(1, 5000)),
    )


@st.composite
def policies(draw):
    return LoadPolicy(
        warehouse=draw(st.sampled_from(["X-SMALL", "SMALL", "LARGE"])),
        largest_warehouse=draw(st.sampled_from(["X-SMALL", "X-LARGE", "6X-LARGE"])),
        warehouse_is_running=draw(st.booleans()),
        has_pipe=draw(st.booleans()),
        may_write_files=draw(st.booleans()),
        may_make_pipe=draw(st.booleans()),
        costs=CostModel(pipe_credits_per_1000_files=draw(st.sampled_from([0.0, 0.06]))),
    )


def scaled(shape, factor):
    """The same data, more or less of it in as many files."""

    def times(value):
        return None if value is None else value * factor

    files = shape.files
    if files:
        files = replace(files, bytes=files.bytes * factor, largest=times(files.largest))
    rows = None if shape.rows is None else round(shape.rows * factor)
    rate = times(shape.arrival_rate)
    return replace(shape, bytes=times(shape.bytes), rows=rows, arrival_rate=rate, files=files)


@MANY
@given(shapes(), policies(), PREVIOUS)
def test_every_shape_gets_a_plan_with_a_reason_and_always_the_same(shape, policy, previous):
    plan = plan_load(shape, policy, previous)
    assert plan.reasons
    assert plan.estimate().unfit is None
    assert all(one.credits >= 0 and one.seconds >= one.latency > 0 for one in plan.estimates)
    assert plan.lines()
    assert len(plan.table()) == 3
    chosen = [one["chosen"] for one in plan.table() if one["chosen"]]
    assert chosen == ["forced" if plan.is_forced else "yes"]
    assert plan_load(DataShape.from_json(shape.as_json()), policy, previous) == plan
    assert LoadPlan.from_json(plan.as_json()) == plan


@MANY
@given(shapes(), policies(), PREVIOUS)
def test_a_freshness_that_a_path_keeps_is_kept(shape, policy, previous):
    """Of the paths that suit the shape, no late one is chosen where another has all rows in time."""
    plan = plan_load(shape, policy, previous)
    required = shape.freshness
    assume(required is not None and shape.nothing() is None)
    assert required is not None

    def needs(path):
        return least_seconds(path, shape, policy)

    if needs(plan.path) > required * (1 + policy.band):
        without = plan_load(replace(shape, freshness=None), policy, previous)
        suited = [one.path for one in without.estimates if one.unfit is None or "flood" in one.unfit]
        assert all(needs(path) > required for path in suited)
        assert any(one.concern in (Concern.NOT_FRESH, Concern.SLOW) for one in plan.warnings) or (
            shape.backfill or not shape.bounded
        )


@MANY
@given(shapes(), policies(), PREVIOUS, st.lists(st.tuples(NEARLY, NEARLY), min_size=2, max_size=12))
def test_small_changes_from_run_to_run_do_not_flap(shape, policy, previous, changes):
    taken = []
    for volume, freshness in changes:
        near = scaled(shape, volume)
        if shape.freshness is not None:
            near = replace(near, freshness=shape.freshness * freshness)
        previous = plan_load(near, policy, previous).path
        taken.append(previous)
    assert sum(before is not after for before, after in itertools.pairwise(taken)) <= 1
