"""Estimates of credits and time for each path, from a shape and the figures of the cost model."""

from __future__ import annotations

import math

from airflow_provider_snowpipe.routing.cost_model import GB, WAREHOUSE_CREDITS, WRITTEN
from airflow_provider_snowpipe.routing.data_shape import DataShape
from airflow_provider_snowpipe.routing.load_plan import CompactAdvice, LoadPath, PathEstimate
from airflow_provider_snowpipe.routing.load_policy import LoadPolicy

DAY = 86_400.0


def estimate_stream(shape: DataShape, policy: LoadPolicy) -> PathEstimate:
    """Estimate a load through channels: credits by uncompressed volume, time by the channels' limits.

    :param shape: the data
    :param policy: whose figures count
    """
    costs, volume = policy.costs, shape.uncompressed(policy.costs)
    latency = costs.stream_floor_seconds
    if not shape.bounded:
        per_day = volume * DAY / GB * costs.stream_credits_per_gb
        return PathEstimate(LoadPath.STREAM, per_day, latency, latency)
    seconds = latency + volume / stream_bytes_per_second(shape, policy)
    return PathEstimate(LoadPath.STREAM, volume / GB * costs.stream_credits_per_gb, latency, seconds)


def stream_bytes_per_second(shape: DataShape, policy: LoadPolicy) -> float:
    """The most that the channels of a shape's partitions take, uncompressed.

    :param shape: the data
    :param policy: whose figures count
    """
    costs = policy.costs
    return min(shape.partitions * costs.channel_bytes_per_second, costs.table_bytes_per_second)


def estimate_pipe(shape: DataShape, policy: LoadPolicy) -> PathEstimate:
    """Estimate a load by a file pipe: credits by the volume that it bills, and by files where that is billed.

    :param shape: the data
    :param policy: whose figures count
    """
    costs, files = policy.costs, shape.files
    billed = shape.billed_by_pipe(costs)
    count = float(files.count) if files else 1.0
    if not shape.bounded:
        billed *= DAY
        count = DAY / files.interval if files and files.interval else DAY / 60
    credits = billed / GB * costs.pipe_credits_per_gb + count / 1000 * costs.pipe_credits_per_1000_files
    latency = costs.pipe_floor_seconds
    seconds = latency
    if shape.bounded:
        seconds += _staging(shape, policy) + shape.uncompressed(costs) / costs.pipe_bytes_per_second
    return PathEstimate(LoadPath.PIPE, credits, latency, seconds)


def estimate_copy(shape: DataShape, policy: LoadPolicy) -> PathEstimate:
    """Estimate a load by COPY: seconds of a warehouse, with its minimum; unbounded data at an interval.

    The size grows until the load takes no longer than it may, but never so far that the billed minimum
    counts; so the credits do not depend on it.

    :param shape: the data
    :param policy: the warehouse, and whose figures count
    """
    costs = policy.costs
    work = _work(shape, policy, shape.uncompressed(costs), shape.files.count if shape.files else 1)
    if shape.bounded:
        size = _warehouse(work, _allowed(shape, policy), policy)
        seconds = costs.copy_floor_seconds + _staging(shape, policy) + work / WAREHOUSE_CREDITS[size]
        return PathEstimate(
            LoadPath.COPY, _credits(work, policy), costs.copy_floor_seconds, seconds, warehouse=size
        )
    scheduled = _interval(shape, policy)
    arrival = shape.files.interval if shape.files and shape.files.interval else scheduled
    interval = max(scheduled, arrival)
    work = _work(shape, policy, shape.uncompressed(costs) * interval, interval / arrival)
    size = _warehouse(work, interval, policy)
    credits = min(_credits(work, policy) * DAY / interval, _always_running(work, interval, policy))
    latency = costs.copy_floor_seconds + scheduled
    return PathEstimate(LoadPath.COPY, credits, latency, latency, warehouse=size, interval=interval)


def floor_seconds(path: LoadPath, shape: DataShape, policy: LoadPolicy) -> float:
    """Seconds until a row can be queried at best, whatever the volume.

    :param path: the path
    :param shape: the data
    :param policy: whose figures count
    """
    costs = policy.costs
    if path is LoadPath.STREAM:
        return costs.stream_floor_seconds
    if path is LoadPath.PIPE:
        return costs.pipe_floor_seconds
    return costs.copy_floor_seconds + (0.0 if shape.bounded else costs.copy_shortest_interval)


def compact_advice(shape: DataShape, policy: LoadPolicy) -> CompactAdvice | None:
    """Say how to combine thousands of tiny files, None where they are not so many or not so small.

    :param shape: the data
    :param policy: from how many files on, and whose figures count
    """
    files, costs = shape.files, policy.costs
    if not shape.bounded or files is None or files.count < policy.many_files:
        return None
    target = (costs.smallest_file_bytes + costs.largest_file_bytes) / 2
    combined = max(1, math.ceil(files.bytes / target))
    if files.mean >= costs.tiny_file_bytes:
        return None
    work = _work(shape, policy, shape.uncompressed(costs), combined)
    return CompactAdvice(files.count, combined, files.bytes / combined, _credits(work, policy))


def _work(shape: DataShape, policy: LoadPolicy, volume: float, files: float) -> float:
    """Seconds of an X-SMALL warehouse."""
    costs = policy.costs
    read = volume / costs.copy_bytes_per_second(shape.files.format if shape.files else WRITTEN)
    return costs.copy_statement_seconds + read + files * costs.copy_file_seconds / costs.warehouse_threads


def _credits(work: float, policy: LoadPolicy) -> float:
    costs = policy.costs
    billed = work
    if not policy.warehouse_is_running:
        billed = max(billed, costs.warehouse_minimum_seconds * WAREHOUSE_CREDITS[policy.warehouse])
    return billed / 3600 * costs.warehouse_credit_factor


def _always_running(work: float, interval: float, policy: LoadPolicy) -> float:
    """Credits of a day for a warehouse that never sleeps, which ends what resumes can cost."""
    hourly = WAREHOUSE_CREDITS[policy.warehouse] * policy.costs.warehouse_credit_factor
    return max(24.0 * hourly, work * DAY / interval / 3600 * policy.costs.warehouse_credit_factor)


def _warehouse(work: float, allowed: float, policy: LoadPolicy) -> str:
    """The smallest size from the author's on that does the work in time and is busy for a billed minimum."""
    sizes = list(WAREHOUSE_CREDITS)
    first, last = sizes.index(policy.warehouse), sizes.index(policy.largest_warehouse)
    longest = max(allowed, 2 * policy.costs.warehouse_minimum_seconds)
    for size in sizes[first:last]:
        if work / WAREHOUSE_CREDITS[size] <= longest:
            return size
    return sizes[max(first, last)]


def _allowed(shape: DataShape, policy: LoadPolicy) -> float:
    if shape.freshness is None or shape.backfill:
        return policy.load_within
    return max(0.0, shape.freshness - policy.costs.copy_floor_seconds - _staging(shape, policy))


def _interval(shape: DataShape, policy: LoadPolicy) -> float:
    """Seconds between two scheduled COPYs; where files come more rarely, nothing is done in between."""
    costs = policy.costs
    if shape.freshness is None:
        return costs.copy_usual_interval
    possible = max(costs.copy_shortest_interval, shape.freshness - costs.copy_floor_seconds)
    return min(costs.copy_usual_interval, possible)


def _staging(shape: DataShape, policy: LoadPolicy) -> float:
    """Seconds to bring bounded data to a stage."""
    costs, files = policy.costs, shape.files
    if files is not None and files.staged:
        return 0.0
    stored = files.bytes if files is not None else shape.uncompressed(costs) / costs.columnar_ratio
    return stored / costs.stage_bytes_per_second
