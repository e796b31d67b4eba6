"""Which appends share a commit: chosen by the measured arrival rate, the order within a channel kept."""

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from snowpipe_local.engine.channel import Append, Channel, Committed
from snowpipe_local.engine.committer import (
    GROUP_APPENDS,
    GROUP_BYTES,
    LINGER_SECONDS,
    ArrivalRate,
    Group,
    Schedule,
)
from snowpipe_local.engine.lines import Lines
from snowpipe_local.names import Pipe, PipeDefinition, PipeKey

KEY = PipeKey("PUBLIC", "T-STREAMING")
STORED = Committed(1, 1, 0, None, 0, 0, 0, None, None, None, None, None, 0)
MB = 1 << 20
NO_ROWS = np.empty(0, dtype=np.int64)


def channel(name: str, *, clusters: bool = False) -> Channel:
    definition = PipeDefinition("COPY ..", cluster_at_ingest_time=True) if clusters else None
    return Channel("LOCAL", Pipe(KEY, "T", "key", 0, definition), name, STORED)


class Clocked:
    """A schedule and the time."""

    def __init__(self) -> None:
        self.schedule = Schedule()
        self.now = 1000.0
        self._rows = itertools.count()

    def send(self, target: Channel, size: int) -> Append:
        append = self.made(target, size)
        self.schedule.add(append, self.now)
        return append

    def made(self, target: Channel, size: int) -> Append:
        body: Any = range(size)  # a schedule asks for its length alone
        lines = Lines(body, NO_ROWS)
        return Append(target, 1, next(self._rows), "r", lines, None, None, self.now)

    def take(self, *, after: float = 0.0) -> Group | None:
        self.now += after
        return self.schedule.take(self.now)

    def taken(self, *, after: float = 0.0) -> list[Append]:
        group = self.take(after=after)
        return group.appends if group else []

    def drain(self) -> list[Group]:
        groups = []
        while (group := self.schedule.take(self.now, flush=True)) is not None:
            groups.append(group)
        return groups


def test_low_volume_channels_share_one_commit_and_the_longest_waiting_group_is_first():
    clocked = Clocked()
    sent = [clocked.send(channel(name), 3 * MB) for name in ("c", "a")]
    sent += [clocked.send(channel(f"c{number}"), 1000) for number in range(50)]
    group = clocked.take(after=LINGER_SECONDS)
    assert (group.appends, group.own) == (sent, False)
    assert not clocked.schedule
    clocked = Clocked()
    busy, quiet = channel("busy"), channel("quiet")
    clocked.send(busy, GROUP_BYTES)
    clocked.drain()
    first = clocked.send(quiet, 10)
    clocked.now += 0.001
    clocked.send(busy, GROUP_BYTES)
    assert clocked.taken(after=LINGER_SECONDS) == [first]


def test_no_append_is_lost_and_the_order_of_every_channel_is_kept():
    for seed in range(6):
        chance = random.Random(seed)
        clocked = Clocked()
        channels = [channel(f"c{number}", clusters=number % 3 == 0) for number in range(6)]
        sent: dict[Channel, list[Append]] = {each: [] for each in channels}
        seen: dict[Channel, list[Append]] = {each: [] for each in channels}
        groups: list[Group] = []
        for _ in range(400):
            each = chance.choice(channels)
            sent[each].append(clocked.send(each, chance.choice((10, 1000, MB, 3 * MB))))
            clocked.now += chance.choice((0.0, 0.001, 0.2, 2.0))
            if chance.random() < 0.3 and (group := clocked.take()):
                groups.append(group)
                for append in group.appends:
                    seen[append.channel].append(append)
            if chance.random() < 0.02:
                removed = clocked.schedule.remove(each)
                assert removed == [append for append in sent[each] if append not in seen[each]]
                seen[each] += removed
        for group in clocked.drain():
            groups.append(group)
            for append in group.appends:
                seen[append.channel].append(append)
        assert seen == sent
        for group in groups:
            assert sum(append.size for append in group.appends[:-1]) < GROUP_BYTES
            assert not group.own or len({append.channel for append in group.appends}) == 1


def test_batches_of_clustering_pipes_are_formed_by_the_names_of_channels_and_cut_at_the_size_of_a_group():
    clocked = Clocked()
    names = [f"c{number:02}" for number in range(24)]
    plain = clocked.send(channel("plain"), 10)
    for name in random.Random(1).sample(names, len(names)):
        target = channel(name, clusters=True)
        clocked.send(target, MB // 2)
        clocked.send(target, MB // 2)
    clocked.now += 1
    groups = clocked.drain()
    assert (len(groups), groups[0].appends[0]) == (3, plain)
    assert [append.channel.name for group in groups for append in group.appends][1:] == [
        name for name in names for _ in range(2)
    ]
    for sent, groups in [
        ([GROUP_BYTES - 1, 1, 10], [2, 1]), ([1] * (GROUP_APPENDS + 1), [GROUP_APPENDS, 1]),
    ]:  # fmt: skip
        clocked = Clocked()
        for number, size in enumerate(sent):
            clocked.send(channel(f"{number:05}", clusters=True), size)
        clocked.now += 1
        assert [len(group.appends) for group in clocked.drain()] == groups


def test_a_group_that_is_due_is_never_empty_whatever_the_rounding():
    for seed in range(8):
        chance = random.Random(seed)
        clocked = Clocked()
        clocked.now = chance.random() * 1e6
        delay = chance.random() * 3
        target = channel("a")
        for _ in range(GROUP_APPENDS):
            clocked.send(target, 1)
        due = clocked.schedule.due_at(delay)
        assert due is not None
        group = clocked.schedule.take(due, delay)
        assert len(group.appends) == GROUP_APPENDS


def test_a_delay_holds_back_what_came_later_and_a_flush_waits_for_nothing():
    clocked = Clocked()
    for number in range(10):
        clocked.send(channel(f"c{number}"), MB)
    assert clocked.schedule.take(clocked.now + 1, delay=2) is None
    assert clocked.schedule.due_at(2) == clocked.now + 2
    assert clocked.schedule.take(clocked.now + 2, delay=2) is not None
    left = list(clocked.schedule)
    late = clocked.send(channel("late"), 10)
    group = clocked.schedule.take(clocked.now, 60.0, flush=True)
    assert group.appends == [*left, late]
    assert clocked.schedule.take(clocked.now, 60.0, flush=True) is None
    clocked = Clocked()
    first = clocked.send(channel("a"), MB)
    clocked.now += 1.0
    late = clocked.send(channel("b"), MB)
    group = clocked.schedule.take(1002.0 + LINGER_SECONDS, delay=2.0)
    assert group.appends == [first]
    assert list(clocked.schedule) == [late]


def test_without_appends_there_is_no_rate_and_no_commit():
    schedule = Schedule()
    assert (schedule.rate(channel("a"), 1000.0), schedule.due_at(), schedule.take(1000.0)) == (
        0.0, None, None,
    )  # fmt: skip
    assert not schedule
    assert not list(schedule)
    rate = ArrivalRate()
    assert rate.at(5.0) == 0.0
    assert rate.add(1000, 10.0) == 500.0
    assert rate.at(10.0) == rate.at(9.0) == 500.0
    assert rate.at(12.0) == pytest.approx(500.0 / math.e)
    assert rate.add(1000, 12.0) == pytest.approx(500.0 / math.e + 500.0)


def test_a_group_that_is_just_full_waits_no_longer_and_what_is_left_of_it_waits_for_more():
    for count, size in [(8, GROUP_BYTES // 8), (GROUP_APPENDS, 1)]:
        clocked = Clocked()
        changes = [
            clocked.schedule.add(clocked.made(channel(f"c{number}"), size), 1000.0)
            for number in range(count + 1)
        ]
        # The committer looks at the first append, and when the group is full.
        assert [number for number, changed in enumerate(changes) if changed] == [0, count - 1]
        assert clocked.schedule.due_at() == 1000.0
        assert len(clocked.taken()) == count
    for clustering_before in [False, True]:
        clocked = Clocked()
        if clustering_before:
            clocked.send(channel("k", clusters=True), 10)
            clocked.drain()
        sent = [clocked.send(channel("a"), GROUP_BYTES - 1)]
        assert clocked.schedule.due_at() == 1000.0 + LINGER_SECONDS
        sent += [clocked.send(channel("b"), 10) for _ in range(3)]
        assert clocked.taken() == sent[:2]
        assert list(clocked.schedule) == sent[2:]
        assert clocked.schedule.due_at() == 1000.0 + LINGER_SECONDS
        assert clocked.take() is None
        assert clocked.taken(after=LINGER_SECONDS) == sent[2:]


def test_a_channel_has_its_own_commits_from_four_megabytes_a_second_on_and_keeps_them_down_to_two():
    for size, own in [(GROUP_BYTES - 1, False), (GROUP_BYTES, True)]:
        clocked = Clocked()
        busy, quiet = channel("busy"), channel("quiet")
        clocked.send(quiet, 10)
        sent = clocked.send(busy, size)
        assert clocked.schedule.has_own_group(busy) is own
        assert not clocked.schedule.has_own_group(quiet)
        clocked.now += 1
        assert sorted((group.own, len(group.appends)) for group in clocked.drain()) == (
            [(False, 1), (True, 1)] if own else [(False, 2)]
        )
        waits = clocked.send(busy, 10)
        assert clocked.schedule.remove(busy) == [waits]
        assert sent not in clocked.schedule
        assert not clocked.schedule.has_own_group(busy)
    for waits, size, own in [(False, 4 * MB, True), (False, 4 * MB - 2, False), (True, 10, True)]:
        clocked = Clocked()
        busy = channel("busy")
        sent = [clocked.send(busy, GROUP_BYTES)]
        if not waits:
            clocked.drain()
        clocked.now += 1e6
        late = clocked.send(busy, size)
        assert clocked.schedule.has_own_group(busy) is own
        expected = [(True, sent)] if waits else []
        assert [(group.own, group.appends) for group in clocked.drain()] == [*expected, (own, [late])]
    clocked = Clocked()
    busy = channel("busy")
    early = clocked.send(busy, MB)
    other = clocked.send(channel("quiet"), MB)
    late = clocked.send(busy, 7 * MB + 2)
    assert [(group.own, group.appends) for group in clocked.drain()] == [
        (False, [other]), (True, [early, late]),
    ]  # fmt: skip


def test_groups_that_are_formed_are_committed_at_once_and_before_what_came_later():
    clocked = Clocked()
    first = [clocked.send(channel(name, clusters=True), GROUP_BYTES - 1) for name in "ab"]
    extra = [clocked.send(channel(name, clusters=True), 1) for name in "ab"]
    assert clocked.take() is not None
    assert list(clocked.schedule) == [first[1], extra[1]]
    clocked.send(channel("c"), 10)
    assert clocked.schedule.due_at() <= clocked.now
    assert clocked.taken() == [first[1], extra[1]]
    assert clocked.take() is None
    clocked = Clocked()
    busy = channel("busy", clusters=True)
    sent = [clocked.send(busy, size) for size in (MB, MB)]
    other = clocked.send(channel("a", clusters=True), GROUP_BYTES - MB)
    seen = clocked.taken(after=1.0)
    late = clocked.send(busy, GROUP_BYTES)
    assert not clocked.schedule.has_own_group(busy)
    seen += [append for group in clocked.drain() for append in group.appends]
    assert [append for append in seen if append is not other] == [*sent, late]


def test_a_removed_channel_leaves_no_trace_and_takes_its_groups_with_it():
    clocked = Clocked()
    gone = channel("gone", clusters=True)
    removed = [clocked.send(gone, GROUP_BYTES - 1)]
    kept = clocked.send(channel("kept"), 10)
    removed.append(clocked.send(gone, 1))
    assert clocked.schedule.due_at() == 1000.0
    assert clocked.schedule.remove(gone) == removed
    assert clocked.schedule.remove(gone) == []
    assert clocked.schedule.due_at() == 1000.0 + LINGER_SECONDS
    full = [clocked.send(channel("full"), GROUP_BYTES - 10), clocked.send(channel("left"), 10)]
    assert clocked.taken() == [kept, full[0]]
    assert clocked.take() is None
    clocked = Clocked()
    gone, kept = channel("a", clusters=True), channel("b", clusters=True)
    mixed = [clocked.send(gone, 10), clocked.send(gone, GROUP_BYTES - 1), clocked.send(gone, 10)]
    rest = clocked.send(kept, 10)
    clocked.send(channel("0", clusters=True), GROUP_BYTES - 1)
    clocked.send(channel("1", clusters=True), 1)
    assert clocked.take(after=1.0) is not None
    assert clocked.schedule.remove(gone) == mixed
    assert [group.appends for group in clocked.drain()] == [[rest]]
