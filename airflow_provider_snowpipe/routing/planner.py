"""The choice of a load path: what the shape allows, what is fresh enough, what is no flood, what is cheapest.

Each step leaves paths out for a reason that the plan repeats. No step reads the clock or at anything but
its arguments, so the same shape, policy and previous path give the same plan. A path keeps a freshness when
the last row can be queried in time. So more volume moves towards streaming only where nothing else keeps the
freshness any more; tighter freshness never moves away from streaming as long as streaming keeps it; and the
path of the run before stays until another one is better by a band, so small changes near a boundary do not
flap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from airflow_provider_snowpipe.routing.cost_model import LoadPolicy
from airflow_provider_snowpipe.routing.estimates import (
    compact_advice,
    estimate_copy,
    estimate_pipe,
    estimate_stream,
    floor_seconds,
    least_seconds,
    warnings_of,
)
from airflow_provider_snowpipe.routing.load_plan import (
    LoadPath,
    LoadPlan,
    PathEstimate,
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

    :param shape: the data
    :param policy: the author's side, None for its defaults
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
    return replace(plan, warnings=tuple(warnings_of(shape, policy, plan)))


@dataclass(slots=True)
class _Choice:
    """One choice in the making; ``unfit`` collects why paths were left out."""

    shape: DataShape
    policy: LoadPolicy
    previous: LoadPath | None
    estimates: dict[LoadPath, PathEstimate]
    unfit: dict[LoadPath, str]

    def __init__(self, shape: DataShape, policy: LoadPolicy, previous: LoadPath | None) -> None:
        self.shape, self.policy, self.previous = shape, policy, previous
        self.estimates = {
            _STREAM: estimate_stream(shape, policy),
            _COPY: estimate_copy(shape, policy),
            _PIPE: estimate_pipe(shape, policy),
        }
        self.unfit = {}

    def nothing(self, what: str) -> LoadPlan:
        """The plan for data of which there is none, which keeps the path of the run before."""
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
        if chosen is best:
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
            return self._as_given(LoadPath(shape.given_to))
        if shape.backfill and shape.bounded and (shape.files or self.policy.may_write_files):
            return self._alone(
                _COPY,
                "a backfill: nobody waits for these rows, COPY is made for bulk, and live channels "
                "keep their "
                "offset tokens to themselves",
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

    def _as_given(self, owner: LoadPath) -> tuple[list[LoadPath], dict[LoadPath, str]]:
        return self._alone(
            owner,
            f"these files are given to {owner.value} already, whose load history keeps them from "
            "being loaded "
            "twice",
            f"the same files are given to {owner.value} already; its load history is not shared",
        )

    def _alone(self, path: LoadPath, why: str, against: str) -> tuple[list[LoadPath], dict[LoadPath, str]]:
        return [path], {path: why, **{other: against for other in LoadPath if other is not path}}

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
            <= required * (slack if path is self.previous else 1)
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
        volume = shape.uncompressed(policy.costs)
        if volume >= policy.flood_bytes * moved:
            return f"{size(volume)} at once, of {size(policy.flood_bytes)} from which on files are taken"
        count = shape.files.count if shape.files else 0
        if count >= policy.many_files * moved:
            return f"{count:,} files at once, of {policy.many_files:,} from which on they are loaded as files"
        return None

    def _cheapest(self, fresh: list[LoadPath]) -> tuple[LoadPath, list[str]]:
        credits = {path: self.estimates[path].credits for path in fresh}
        least = min(credits.values())
        best = next(path for path in fresh if credits[path] <= least * (1 + _EQUAL))
        kept = self.previous
        if kept is _COPY and self.shape.bounded and kept in credits:
            # A warehouse that grows for the freshness bills minimums in steps, at which paths would flap.
            credits[kept] = estimate_copy(replace(self.shape, freshness=None), self.policy).credits
        if kept in credits and kept is not best and credits[kept] <= (1 + self.policy.band) * credits[best]:
            return kept, [
                f"the run before took {kept.value}, and {best.value} is not cheaper by more than "
                f"{self.policy.band:.0%}: {self._compared(fresh)}",
            ]
        return best, [f"cheapest of those that suit: {self._compared(fresh)}"]

    def _compared(self, paths: list[LoadPath]) -> str:
        unit = "credits" if self.shape.bounded else "credits per day"
        return (
            ", ".join(f"{one.value} {credit_count(self.estimates[one].credits)}" for one in paths)
            + f" {unit}"
        )
