"""What a plan warns of: shapes and paths that cost money, time or rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from airflow_provider_snowpipe.routing.data_shape import DataShape
from airflow_provider_snowpipe.routing.estimates import (
    floor_seconds,
    least_seconds,
    one_thread_seconds,
    stream_bytes_per_second,
)
from airflow_provider_snowpipe.routing.in_words import credit_count, duration, size
from airflow_provider_snowpipe.routing.load_plan import Concern, LoadPath, LoadPlan, PlanWarning
from airflow_provider_snowpipe.routing.load_policy import LoadPolicy

_DAY = 86_400.0
_COPY_REMEMBERS = 64 * _DAY
_REFRESH_REACHES = 7 * _DAY


def warnings_of(shape: DataShape, policy: LoadPolicy, plan: LoadPlan) -> Iterator[PlanWarning]:
    """Find what the reader of a plan should know.

    :param shape: the data
    :param policy: the author's side
    :param plan: the plan, whose own warnings are not looked at
    """
    for concern, find in _CONCERNS.items():
        text = find(shape, policy, plan)
        if text is not None:
            yield PlanWarning(concern, text)


def _micro_batches(shape: DataShape, policy: LoadPolicy, plan: LoadPlan) -> str | None:
    remedy = "send the rows through channels as they come"
    if shape.bounded:
        return None
    if shape.live_into_files:
        return (
            "a live stream is cut into files only to be loaded, which brings back latency and tiny "
            f"files: {remedy}"
        )
    if shape.files is None:
        if plan.path is LoadPath.STREAM:
            return None
        return f"{plan.path.value} needs files, so the live rows would be cut into micro-batches: {remedy}"
    often = shape.files.interval is not None and shape.files.interval < 60
    if often and shape.files.mean < policy.costs.tiny_file_bytes:
        return (
            f"a file of {size(shape.files.mean)} every {duration(shape.files.interval or 0)} is a stream in "
            f"disguise: stage one a minute at most, or {remedy}"
        )
    return None


def _flood(shape: DataShape, policy: LoadPolicy, plan: LoadPlan) -> str | None:
    if not shape.bounded or plan.path is not LoadPath.STREAM:
        return None
    stream, copy = plan.estimate(LoadPath.STREAM), plan.estimate(LoadPath.COPY)
    volume = shape.uncompressed(policy.costs)
    if volume < policy.flood_bytes and stream.credits <= copy.credits * (1 + policy.band):
        return None
    return (
        f"{size(volume)} at once through channels costs {credit_count(stream.credits)} credits and takes "
        f"{duration(stream.seconds)}; COPY costs {credit_count(copy.credits)} and takes "
        f"{duration(copy.seconds)}: load it from files, and stream what comes after"
    )


def _tiny_files(shape: DataShape, policy: LoadPolicy, plan: LoadPlan) -> str | None:
    files, costs = shape.files, policy.costs
    if files is None or not shape.bounded or files.count < policy.many_files:
        return None
    if files.mean >= costs.tiny_file_bytes:
        return None
    return (
        f"{files.count:,} files of {size(files.mean)} on average: each one costs an open and an entry "
        "of load "
        f"history, combine them to {size(costs.smallest_file_bytes)} to {size(costs.largest_file_bytes)} "
        "each, by compact=True of SnowpipeStageFilesOperator"
    )


def _huge_file(shape: DataShape, policy: LoadPolicy, plan: LoadPlan) -> str | None:
    files = shape.files
    if files is None or plan.path is LoadPath.STREAM:
        return None
    largest = files.largest if files.largest is not None else files.mean
    if largest < policy.costs.huge_file_bytes:
        return None
    one = one_thread_seconds(shape, policy)
    reader = f"is read by one thread, for {duration(one)}," if one and shape.bounded else "takes long"
    aborted = (
        f", and a load may be aborted after {duration(policy.costs.copy_longest_seconds)}"
        if one > policy.costs.copy_longest_seconds
        else ""
    )
    return (
        f"a file of {size(largest)} {reader} and fails as a whole{aborted}: split it by lines into files of "
        f"{size(policy.costs.smallest_file_bytes)} to {size(policy.costs.largest_file_bytes)}, by "
        "compact=True of SnowpipeStageFilesOperator"
    )


def _two_loaders(shape: DataShape, policy: LoadPolicy, plan: LoadPlan) -> str | None:
    if shape.given_to is None or plan.path == shape.given_to:
        return None
    remembers = "64 days" if shape.given_to == LoadPath.COPY else "14 days"
    return (
        f"these files are given to {shape.given_to} already, whose memory of {remembers} "
        f"{plan.path.value} does "
        "not share: their rows would be loaded twice; take one of the two, and take these files from "
        "the other"
    )


def _old_files(shape: DataShape, policy: LoadPolicy, plan: LoadPlan) -> str | None:
    oldest = shape.files.oldest if shape.files is not None else None
    if oldest is None or not shape.bounded:
        return None
    if plan.path is LoadPath.COPY and oldest > _COPY_REMEMBERS:
        return (
            f"the oldest file is {duration(oldest)} old, and COPY forgets after 64 days: it skips "
            "files that it "
            "may have loaded before; where they were not, say LOAD_UNCERTAIN_FILES"
        )
    if plan.path is LoadPath.PIPE and oldest > _REFRESH_REACHES:
        return (
            f"the oldest file is {duration(oldest)} old, and ALTER PIPE … REFRESH takes files of the "
            "last 7 days "
            "only: name the older ones to insertFiles, or load them by COPY"
        )
    return None


def _not_fresh(shape: DataShape, policy: LoadPolicy, plan: LoadPlan) -> str | None:
    wanted = shape.freshness
    if wanted is None:
        return None
    floor = floor_seconds(plan.path, shape, policy)
    if floor <= wanted:
        return None
    is_kept = least_seconds(LoadPath.STREAM, shape, policy) <= wanted
    remedy = ", or stream the rows from where they come" if is_kept else ""
    last = plan.estimate().seconds
    all_rows = f", all of them after {duration(last)}" if shape.bounded and last > floor else ""
    return (
        f"rows are wanted within {duration(wanted)}, and {plan.path.value} has the first ones after "
        f"{duration(floor)} at best{all_rows}: ask for less freshness{remedy}"
    )


def _slow(shape: DataShape, policy: LoadPolicy, plan: LoadPlan) -> str | None:
    chosen = plan.estimate()
    if not shape.bounded and shape.freshness is None:
        return None
    wanted = shape.freshness if shape.freshness is not None and not shape.backfill else policy.load_within
    if chosen.seconds <= wanted or floor_seconds(plan.path, shape, policy) > wanted:
        return None
    remedy = (
        "split the largest file, which one thread reads"
        if plan.path is not LoadPath.STREAM and one_thread_seconds(shape, policy) > wanted / 2
        else f"allow a larger warehouse than {policy.largest_warehouse}, or stage the files nearer"
        if plan.path is LoadPath.COPY
        else "use more partitions, each with its channel"
        if plan.path is LoadPath.STREAM
        else "split the load, or take COPY with a larger warehouse"
    )
    what = "all rows" if shape.bounded else "the rows of a file"
    return f"{what} take {duration(chosen.seconds)}, wanted within {duration(wanted)}: {remedy}"


def _table_limit(shape: DataShape, policy: LoadPolicy, plan: LoadPlan) -> str | None:
    if shape.bounded or plan.path is not LoadPath.STREAM:
        return None
    rate, most = shape.uncompressed(policy.costs), stream_bytes_per_second(shape, policy)
    if rate <= most:
        return None
    costs = policy.costs
    needed = math.ceil(rate / costs.channel_bytes_per_second)
    remedy = f"use at least {needed:,} partitions, each with its channel"
    if rate > costs.table_bytes_per_second:
        remedy = "spread the rows over more tables"
    return (
        f"{size(rate)} arrive in a second, and {shape.partitions:,} channels take {size(most)}, a "
        "table at most "
        f"{size(costs.table_bytes_per_second)}: {remedy}"
    )


def _unfit(shape: DataShape, policy: LoadPolicy, plan: LoadPlan) -> str | None:
    why = plan.estimate().unfit
    if not plan.is_forced or why is None:
        return None
    return f"{plan.path.value} was forced, and does not suit: {why}"


_CONCERNS: dict[Concern, Callable[[DataShape, LoadPolicy, LoadPlan], str | None]] = {
    Concern.UNFIT: _unfit,
    Concern.TWO_LOADERS: _two_loaders,
    Concern.MICRO_BATCHES: _micro_batches,
    Concern.FLOOD_THROUGH_STREAM: _flood,
    Concern.TINY_FILES: _tiny_files,
    Concern.HUGE_FILE: _huge_file,
    Concern.OLD_FILES: _old_files,
    Concern.NOT_FRESH: _not_fresh,
    Concern.SLOW: _slow,
    Concern.TABLE_LIMIT: _table_limit,
}
