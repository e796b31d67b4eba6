"""The choice of a load path: what the shape allows, is fresh enough, is not a flood, and is cheapest.

Each step leaves paths out for a reason that the plan repeats. No step reads the clock or anything but its
arguments, so the same shape, policy and previous path give the same plan. More volume moves towards streaming
only where nothing else has the last row in time, and tighter freshness never away from streaming that keeps
it. The previous path stays until another is better by a band.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from airflow_provider_snowpipe.routing.cost_model import (
    DAY,
    LoadPolicy,
    compact_advice,
    estimate_copy,
    estimate_pipe,
    estimate_stream,
    floor_seconds,
    least_seconds,
    one_thread_seconds,
    stream_bytes_per_second,
)
from airflow_provider_snowpipe.routing.load_plan import (
    Concern,
    LoadPath,
    LoadPlan,
    PlanWarning,
    credit_count,
    duration,
    size,
)
from airflow_provider_snowpipe.routing.probes import DataShape

_STREAM, _COPY, _PIPE = LoadPath.STREAM, LoadPath.COPY, LoadPath.PIPE
_EQUAL = 1e-9
"""Relative difference of credits below which two paths cost the same."""


def plan_load(
    shape: DataShape, policy: LoadPolicy | None = None, previous: LoadPath | LoadPlan | None = None
) -> LoadPlan:
    """Choose streaming, COPY or a pipe for data of a shape, with the reasons.

    :param previous: the path of the run before, or its plan, which stays unless another is clearly better
    """
    policy = policy or LoadPolicy()
    if isinstance(previous, LoadPlan):
        previous = None if previous.is_forced else previous.path
    choice = _Choice(shape, policy, None if previous is None else LoadPath(previous))
    nothing = shape.nothing()
    if nothing is not None:
        return choice.nothing(nothing)
    path, reasons = choice.forced() if policy.forced else choice.best()
    reasons += [
        f"measured: the last loads by {one.value} had rows after {duration(seconds)}"
        for one, seconds in sorted(policy.measured.items())
    ]
    plan = LoadPlan(
        path,
        tuple(reasons),
        tuple(replace(choice.estimates[one], unfit=choice.unfit.get(one)) for one in (_STREAM, _COPY, _PIPE)),
        per_day=not shape.bounded,
        is_forced=policy.forced is not None,
        compact=None if path is _STREAM else compact_advice(shape, policy),
    )
    found = {concern: find(shape, policy, plan) for concern, find in _CONCERNS.items()}
    warnings = (PlanWarning(concern, text) for concern, text in found.items() if text is not None)
    return replace(plan, warnings=tuple(warnings))


class _Choice:
    """One choice in the making; ``unfit`` collects why paths were left out."""

    def __init__(self, shape: DataShape, policy: LoadPolicy, previous: LoadPath | None) -> None:
        self.shape, self.policy, self.previous = shape, policy, previous
        self.estimates = {
            _STREAM: estimate_stream(shape, policy),
            _COPY: estimate_copy(shape, policy),
            _PIPE: estimate_pipe(shape, policy),
        }
        self.unfit: dict[LoadPath, str] = {}

    def nothing(self, what: str) -> LoadPlan:
        """The plan where there is no data: it keeps the path of the run before."""
        suited = self._suited()[0]
        path = self.policy.forced or next(
            (one for one in (self.previous, _COPY if self.shape.files else None) if one in suited), suited[0]
        )
        reasons = [f"nothing to load: {what}"]
        if self.policy.forced:
            reasons.append(f"path={path.value!r} was asked for")
        return LoadPlan(
            path,
            tuple(reasons),
            tuple(replace(one, credits=0.0, seconds=one.latency) for one in self.estimates.values()),
            is_forced=self.policy.forced is not None,
            nothing_to_load=True,
        )

    def forced(self) -> tuple[LoadPath, list[str]]:
        best, reasons = self.best()
        chosen = self.policy.forced or best
        words = f"path={chosen.value!r} was asked for"
        if chosen == best:
            return chosen, [f"{words}, and is what the shape suggests", *reasons]
        return chosen, [f"{words}; the shape suggests {best.value}", *reasons]

    def best(self) -> tuple[LoadPath, list[str]]:
        suited, words = self._suited()
        self.unfit = {path: why for path, why in words.items() if path not in suited}
        path, deciding = self._decide(suited)
        return path, [why for why in (words.get(path) if path in suited else None, *deciding) if why]

    def _decide(self, suited: list[LoadPath]) -> tuple[LoadPath, list[str]]:
        if len(suited) == 1:
            return suited[0], []
        fresh = self._fresh(suited)
        none_is_fresh = not fresh
        if none_is_fresh:
            fresh = list(suited)
        if _STREAM in fresh and len(fresh) > 1 and (flood := self._flood()):
            fresh.remove(_STREAM)
            self.unfit[_STREAM] = f"a flood: {flood}"
        if none_is_fresh:
            return self._soonest(suited, fresh)
        if len(fresh) == 1:
            left = "; ".join(f"{path.value}: {self.unfit[path]}" for path in suited if path not in fresh)
            return fresh[0], [f"what remains of those that suit ({left})"]
        return self._cheapest(fresh)

    def _suited(self) -> tuple[list[LoadPath], dict[LoadPath, str]]:
        """The paths that the shape allows, in the order in which equals are taken, and words about paths."""
        shape = self.shape
        if shape.given_to is not None:
            return self._alone(
                LoadPath(shape.given_to),
                f"these files are given to {shape.given_to} already, which loads none of them twice",
                f"the same files are given to {shape.given_to} already; its load history is not shared",
            )
        if shape.backfill and shape.bounded and (shape.files or self.policy.may_write_files):
            return self._alone(
                _COPY,
                "a backfill: nobody waits for these rows, and live channels keep their offset tokens",
                "a backfill goes by COPY",
            )
        if not shape.bounded:
            return self._endless()
        return self._bounded()

    def _bounded(self) -> tuple[list[LoadPath], dict[LoadPath, str]]:
        files, words = self.shape.files, dict[LoadPath, str]()
        suited = [_STREAM, _COPY, _PIPE] if files is not None else [_STREAM, _COPY]
        if files is None:
            words[_PIPE] = "a pipe loads files, and these rows are in none"
            if not self.policy.may_write_files:
                suited.remove(_COPY)
                words[_COPY] = "the rows are in no file, and may_write_files is False"
                words[_STREAM] = "the rows are in no file, and none may be written"
        else:
            if not self.policy.has_pipe:
                suited.remove(_PIPE)
                words[_PIPE] = "no pipe for these files is known (has_pipe), and one load is not worth one"
            if files.staged:
                suited.remove(_STREAM)
                words[_STREAM] = "the files are in a stage already, from where Snowflake reads them itself"
                words[_COPY] = "the files are in a stage already: COPY reads them where they are"
        return suited, words

    def _endless(self) -> tuple[list[LoadPath], dict[LoadPath, str]]:
        shape = self.shape
        if shape.files is None or shape.live_into_files:
            return self._alone(
                _STREAM,
                "an endless stream of rows: they are queryable in seconds, and no file is written",
                "the rows come one by one; cutting them into files brings back latency and tiny files",
            )
        words = {_PIPE: "files that keep arriving: a pipe loads each one as it comes, without a warehouse"}
        suited = [_PIPE, _COPY, _STREAM]
        if not (self.policy.has_pipe or self.policy.may_make_pipe):
            suited.remove(_PIPE)
            words = {_PIPE: "no pipe for these files is known (has_pipe), and none may be made"}
            words[_COPY] = words[_STREAM] = "files that keep arriving suit a pipe, and none is known for them"
        if shape.files.staged:
            suited.remove(_STREAM)
            words[_STREAM] = "the files arrive in a stage, from where Snowflake reads them itself"
        return suited, words

    def _alone(self, path: LoadPath, why: str, against: str) -> tuple[list[LoadPath], dict[LoadPath, str]]:
        return [path], {path: why, **{other: against for other in LoadPath if other != path}}

    def _fresh(self, suited: list[LoadPath]) -> list[LoadPath]:
        """The paths that have the last row in time."""
        required = self.shape.freshness
        if required is None:
            return list(suited)
        slack = 1 + self.policy.band
        fresh = [
            path
            for path in suited
            if least_seconds(path, self.shape, self.policy)
            <= required * (slack if path == self.previous else 1)
        ]
        for path in suited:
            if fresh and path not in fresh:
                self.unfit[path] = self._late(path, required)
        return fresh

    def _late(self, path: LoadPath, required: float) -> str:
        floor = floor_seconds(path, self.shape, self.policy)
        least = least_seconds(path, self.shape, self.policy)
        if math.isinf(least):
            return f"more arrives than the channels take, required within {duration(required)}"
        late = (
            f"first rows after {duration(floor)}" if floor > required else f"all rows after {duration(least)}"
        )
        return f"{late} at best, required within {duration(required)}"

    def _soonest(self, suited: list[LoadPath], left: list[LoadPath]) -> tuple[LoadPath, list[str]]:
        """The path that has the last row first, of those that a flood leaves, where none has it in time."""
        needs = {path: least_seconds(path, self.shape, self.policy) for path in suited}
        path = min(left, key=lambda one: (needs[one], left.index(one)))
        kept = self.previous
        if kept in left and needs[kept] <= (1 + self.policy.band) * needs[path]:
            path = kept
        words = ", ".join(
            f"{one.value} lags behind" if math.isinf(needs[one]) else f"{one.value} {duration(needs[one])}"
            for one in suited
        )
        what = "the soonest" if len(left) == len(suited) else "the soonest that a flood may take"
        required = duration(self.shape.freshness or 0.0)
        return path, [f"no path has all rows within {required} ({words} at best): {path.value} is {what}"]

    def _flood(self) -> str | None:
        """Why bounded data is a flood, None where it is not; the previous path moves the thresholds."""
        shape, policy = self.shape, self.policy
        if not shape.bounded:
            return None
        slack = 1 + policy.band
        moved = slack if self.previous is _STREAM else 1 if self.previous is None else 1 / slack
        volume, most = shape.uncompressed(policy.costs), policy.flood_bytes * moved
        if volume >= most:
            return f"{size(volume)} at once, of {size(most)} from which on files are taken"
        count, many = shape.files.count if shape.files else 0, policy.many_files * moved
        if count >= many:
            return f"{count:,} files at once, of {many:,.0f} from which on they are loaded as files"
        return None

    def _cheapest(self, fresh: list[LoadPath]) -> tuple[LoadPath, list[str]]:
        credits = {path: self.estimates[path].credits for path in fresh}
        least = min(credits.values())
        best = next(path for path in fresh if credits[path] <= least * (1 + _EQUAL))
        kept = self.previous
        if kept is _COPY and self.shape.bounded and kept in credits:
            # A warehouse that grows for the freshness bills minimums in steps, at which paths would flap.
            credits[kept] = estimate_copy(replace(self.shape, freshness=None), self.policy).credits
        if kept in credits and kept != best and credits[kept] <= (1 + self.policy.band) * credits[best]:
            return kept, [
                f"the run before took {kept.value}, and {best.value} is not cheaper by more than "
                f"{self.policy.band:.0%}: {self._compared(fresh)}"
            ]
        return best, [f"cheapest of those that suit: {self._compared(fresh)}"]

    def _compared(self, paths: list[LoadPath]) -> str:
        unit = "credits" if self.shape.bounded else "credits per day"
        return (
            ", ".join(f"{one.value} {credit_count(self.estimates[one].credits)}" for one in paths)
            + f" {unit}"
        )


# -- What a plan warns of: shapes and paths that cost money, time or rows --------------------------------

_COPY_REMEMBERS = 64 * DAY
_REFRESH_REACHES = 7 * DAY


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
    if files is None or compact_advice(shape, policy) is None:
        return None
    return (
        f"{files.count:,} files of {size(files.mean)} on average: each one costs an open and an entry of "
        f"load history, combine them to {size(costs.smallest_file_bytes)} to "
        f"{size(costs.largest_file_bytes)} each, by compact=True of SnowpipeStageFilesOperator"
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
        f"these files are given to {shape.given_to} already, whose memory of {remembers} {plan.path.value} "
        "does not share: their rows would be loaded twice; take these files from one of the two"
    )


def _old_files(shape: DataShape, policy: LoadPolicy, plan: LoadPlan) -> str | None:
    oldest = shape.files.oldest if shape.files is not None else None
    if oldest is None or not shape.bounded:
        return None
    if plan.path is LoadPath.COPY and oldest > _COPY_REMEMBERS:
        return (
            f"the oldest file is {duration(oldest)} old, and COPY forgets after 64 days: it skips files that "
            "it may have loaded before; where they were not, set LOAD_UNCERTAIN_FILES"
        )
    if plan.path is LoadPath.PIPE and oldest > _REFRESH_REACHES:
        return (
            f"the oldest file is {duration(oldest)} old, and ALTER PIPE … REFRESH takes files of the last 7 "
            "days only: name the older ones to insertFiles, or load them by COPY"
        )
    return None


def _not_fresh(shape: DataShape, policy: LoadPolicy, plan: LoadPlan) -> str | None:
    required = shape.freshness
    if required is None:
        return None
    floor = floor_seconds(plan.path, shape, policy)
    if floor <= required:
        return None
    is_kept = least_seconds(LoadPath.STREAM, shape, policy) <= required
    remedy = ", or stream the rows from where they come" if is_kept else ""
    last = plan.estimate().seconds
    all_rows = f", all of them after {duration(last)}" if shape.bounded and last > floor else ""
    return (
        f"rows are required within {duration(required)}, and {plan.path.value} has the first ones after "
        f"{duration(floor)} at best{all_rows}: ask for less freshness{remedy}"
    )


def _slow(shape: DataShape, policy: LoadPolicy, plan: LoadPlan) -> str | None:
    chosen = plan.estimate()
    if not shape.bounded and shape.freshness is None:
        return None
    required = shape.freshness if shape.freshness is not None and not shape.backfill else policy.load_within
    if chosen.seconds <= required or floor_seconds(plan.path, shape, policy) > required:
        return None
    remedy = (
        "split the largest file, which one thread reads"
        if plan.path is not LoadPath.STREAM and one_thread_seconds(shape, policy) > required / 2
        else f"allow a larger warehouse than {policy.largest_warehouse}, or stage the files nearer"
        if plan.path is LoadPath.COPY
        else "use more partitions, each with its channel"
        if plan.path is LoadPath.STREAM
        else "split the load, or take COPY with a larger warehouse"
    )
    what = "all rows" if shape.bounded else "the rows of a file"
    return f"{what} take {duration(chosen.seconds)}, required within {duration(required)}: {remedy}"


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
        f"{size(rate)} arrive in a second, and {shape.partitions:,} channels take {size(most)}, a table at "
        f"most {size(costs.table_bytes_per_second)}: {remedy}"
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
