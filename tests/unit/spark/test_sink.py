"""What one Spark task does with one partition, each crash point and each answer of the service included."""

import json
from dataclasses import dataclass, replace
from functools import partial

import pyarrow.parquet as pq
import pytest

from airflow_provider_snowpipe.spark.driver.plan import JobPlan
from airflow_provider_snowpipe.spark.task import sink
from airflow_provider_snowpipe.spark.task.sdk_channel import SdkChannel
from airflow_provider_snowpipe.spark.task.sink import PartitionWork, SinkSettings, load_partition
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.batch import Undecoded
from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.checked_values import RowRules
from airflow_provider_snowpipe.streaming.checkpoint import run_mark
from airflow_provider_snowpipe.streaming.http import UnreachableError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.row_gate import DeadLetter, DeadLetterFolder
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.checkpoints import loaded
from tests.fake_snowpipe import PIPE, URL, KilledError, error
from tests.memory_source import MemoryPartition, MemorySpec, rows

ONE_PART_A_REQUEST = BatchLimits(rows=2, age_seconds=30, requests_per_second=10_000)
SETTINGS = SinkSettings(URL, None, PIPE, wait_for_commit=True, commit_timeout=60.0, limits=ONE_PART_A_REQUEST)
SIX = MemoryPartition("p", rows(6))
COLUMNS = (TableColumn("ID", "NUMBER(38,0)"),)


@dataclass(frozen=True)
class UndecodedPartition(MemoryPartition):
    """Rows some of which cannot be decoded, by their number."""

    lost: tuple[int, ...] = ()

    def read(self, begin, limits):
        for part in super().read(begin, limits):
            lines = part.body.splitlines(keepends=True)
            kept = [line for line in lines if json.loads(line)["ID"] not in self.lost]
            here = range(part.start.value, part.end.value + 1)
            lost = tuple(self.broken(one) for one in self.lost if one in here)
            yield replace(part, body=b"".join(kept), rows=len(kept), undecoded=lost)

    def broken(self, one):
        headers = (("h", b"%d" % one),)
        position, why = IntegerOffset(one), f"record {one} is broken"
        return Undecoded(position, why, b"raw %d" % one, b"key %d" % one, headers)


@dataclass(frozen=True)
class GapsPartition(MemoryPartition):
    """Rows with the positions 0, 2, 4, …, of a source that declares whether it may skip some."""

    gaps_legal: bool = True

    def read(self, begin, limits):
        for part in super().read(begin, limits):
            start = IntegerOffset(2 * part.start.value)
            yield replace(part, start=start, end=start.next())


@pytest.mark.parametrize("on_error", ["abort", "continue", "dead_letter"])
def test_tasks_get_what_the_plan_specifies(on_error):
    path = "/dead" if on_error == "dead_letter" else None
    same = {
        "wait_for_commit": False, "commit_timeout": 7.0, "limits": ONE_PART_A_REQUEST, "columns": COLUMNS,
        "sdk_profile": "/profile", "run": "r9", "rebind": "restart", "on_imbalance": "fail",
    }  # fmt: skip
    plan = JobPlan(
        "app", URL, PIPE, "job", "src", MemorySpec(), credentials_variable="X", ca_bundle="ca",
        on_error=on_error, dead_letter_path=path, **same,
    )  # fmt: skip

    assert plan.sink_settings() == SinkSettings(
        URL, "ca", PIPE, skips_undecoded=on_error == "continue", unknown_columns="fail",
        row_rules=RowRules(COLUMNS, path, "app", "DB.S.T-STREAMING") if path else None, **same,
    )  # fmt: skip
    assert replace(plan, run="").sink_settings().run == run_mark("app")


@pytest.fixture
def load(snowpipe):
    def run(partition=SIX, committed=None, settings=SETTINGS, life=None):
        begin = IntegerOffset(committed) if committed is not None else None
        work = PartitionWork("c", partition, begin, partition.resume(begin))
        return load_partition(settings, snowpipe.scoped_token(life), work)

    return run


def ids(snowpipe, channel="c"):
    return [row["ID"] for row in snowpipe.channels[channel].rows]


def test_task_sends_every_row_in_order_with_its_tokens_and_ends_at_the_commit(snowpipe, load):
    result = load()
    calls = ["status c", "open c", "append c 0..1", "append c 2..3", "append c 4..5", "status c"]
    assert snowpipe.did() == calls
    assert ids(snowpipe) == [0, 1, 2, 3, 4, 5]
    assert (result.channel, result.position, result.rows) == ("c", IntegerOffset(5), 6)
    assert (result.complete, result.error_type) == (True, None)
    assert (result.requests, result.retries, result.bytes) == (3, 0, 6 * len('{"ID": 0}\n'))
    appends = snowpipe.appends()
    assert [call.query["continuationToken"] for call in appends] == ["1_0", "1_1", "1_2"]
    assert [[row["ID"] for row in call.rows] for call in appends] == [[0, 1], [2, 3], [4, 5]]


def test_gap_of_a_source_that_has_none_ends_the_run(snowpipe, load):
    result = load(GapsPartition("p", rows(6), gaps_legal=False))
    assert result.error_type == "ContinuityError"
    assert "append c 4..5" not in snowpipe.did("append")


@pytest.mark.parametrize("gaps_legal", [True, False])
def test_rows_go_through_the_sdk_where_the_plan_has_a_profile(snowpipe, load, monkeypatch, gaps_legal):
    asked = []

    def open_sdk(client, name, source, **options):
        asked.append((client.pipe, name, source, options))
        return Channel.open(client, name, source, limits=ONE_PART_A_REQUEST, gaps_legal=gaps_legal)

    monkeypatch.setattr(SdkChannel, "open", open_sdk)
    by_sdk = replace(SETTINGS, sdk_profile="/profile", ca_bundle="ca")

    result = load(GapsPartition("p", rows(2), gaps_legal=gaps_legal), settings=by_sdk)

    options = {"profile": "/profile", "ca_bundle": "ca", "gaps_legal": gaps_legal}
    assert asked == [(PIPE, "c", SETTINGS.source_of(SIX), options)]
    assert (result.rows, ids(snowpipe)) == (2, [0, 1])


def test_tasks_of_a_process_share_connections_by_their_trusted_roots(snowpipe, load, monkeypatch):
    made = []
    monkeypatch.setattr(sink, "Transports", lambda *given: made.append(given) or snowpipe)
    monkeypatch.setattr("airflow_provider_snowpipe.streaming.client.Transports", None)
    for bundle in ("ca", "ca", "other"):
        load(settings=replace(SETTINGS, ca_bundle=bundle))
    assert made == [("ca",), ("other",)]
    monkeypatch.setattr(sink.os, "getpid", lambda: -1)
    load(settings=replace(SETTINGS, ca_bundle="ca"))
    assert made[2:] == [("ca",)]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("call", ["status 0", "open 0", "append 0", "append 1", "append 2", "status 1"])
def test_attempt_after_a_crash_brings_each_row_once(snowpipe, load, when, call, held):
    operation, skip = call.split()
    snowpipe.holds_commits = held
    snowpipe.fault(**{when: operation}, skip=int(skip), error=KilledError())
    with pytest.raises(KilledError):
        load()
    calls = len(snowpipe.calls)
    snowpipe.fault(before="open", skip=1, do=snowpipe.commit)
    snowpipe.fault(before="status", skip=1, do=snowpipe.commit)

    result = load()

    assert ids(snowpipe) == [0, 1, 2, 3, 4, 5]
    assert result.position == IntegerOffset(5)
    assert snowpipe.did()[calls:][:2] == ["status c", "open c"]


class TestResume:
    def test_token_before_the_first_row_of_the_source_is_refused(self, snowpipe, load):
        snowpipe.channel("c", **loaded(9))
        result = load()
        assert result.error_type == "SourcePositionError"
        assert result.error.startswith("channel 'c': ")
        assert snowpipe.did("append") == []

    def test_channels_of_a_connector_have_bare_tokens(self, snowpipe, load):
        snowpipe.channel("c", committed="3")
        result = load(settings=replace(SETTINGS, has_bare_tokens=True))
        assert (ids(snowpipe), result.token, snowpipe.channels["c"].committed) == ([4, 5], "5", "5")

    @pytest.mark.parametrize("now", [None, 2])
    def test_channel_that_has_less_than_the_run_has_found_gets_no_row(self, snowpipe, load, now):
        snowpipe.channel("c", **loaded(now))
        result = load(committed=3)
        assert result.error_type == "TokenWentBackError"
        assert f"went from 3 back to {now or 'NULL'}" in result.error
        assert snowpipe.appends() == []


class TestBalance:
    @pytest.mark.parametrize(("rows", "word"), [(9, "more"), (7, "fewer")])
    def test_channel_that_counts_other_rows_is_reported(self, snowpipe, load, caplog, rows, word):
        snowpipe.channel("c", **loaded(3, 8)).rows_inserted = rows
        refused = load(settings=replace(SETTINGS, on_imbalance="fail"))
        assert (refused.error_type, snowpipe.appends()) == ("ImbalanceError", [])
        assert f"'c' counts 1 {word}" in refused.error
        assert load().error_type is None
        assert f"'c' counts 1 {word}" in caplog.text


class TestAnswers:
    @pytest.mark.parametrize(
        ("operation", "skip", "when", "failure"),
        [
            ("append", 1, "after", error(404)),
            ("append", 1, "after", UnreachableError("cut")),
            ("append", 1, "before", error(503)),
            ("open", 0, "before", error(409, "ERR_OPEN_CHANNEL_IN_PROGRESS")),
            ("open", 0, "after", UnreachableError("cut")),
            ("status", 1, "after", error(500, "INTERNAL")),
        ],
        ids=str,
    )
    def test_passing_failure_doubles_no_row(self, snowpipe, load, operation, skip, when, failure):
        snowpipe.fault(**{when: operation}, skip=skip, error=failure, times=2)
        result = load()
        assert ids(snowpipe) == [0, 1, 2, 3, 4, 5]
        assert result.retries == 2

    @pytest.mark.parametrize("appends", [0, 1, 2])
    def test_stale_attempt_ends_and_never_opens_the_channel_again(self, snowpipe, load, appends):
        snowpipe.fault(before="append", skip=appends, do=partial(snowpipe.open_elsewhere, "c"))
        with pytest.raises(errors.ChannelFencedError):
            load()
        assert snowpipe.did("open") == ["open c"]
        assert ids(snowpipe) == list(range(2 * appends))

    @pytest.mark.parametrize("operation", ["append", "status"])
    def test_channel_that_is_dropped_under_way_is_not_recreated(self, snowpipe, load, operation):
        snowpipe.holds_commits = operation == "status"
        snowpipe.fault(before=operation, skip=1, do=lambda: snowpipe.channels.pop("c"))
        result = load()
        assert result.error_type == "TokenWentBackError"
        assert "channel 'c' was dropped" in result.error
        assert len(snowpipe.did("open")) == 1

    @pytest.mark.parametrize(
        ("answer", "kind"),
        [
            (error(400, "BAD"), "ChannelError"),
            (error(302), "ChannelError"),
            (error(403, "390303"), "AuthenticationError"),
        ],
        ids=str,
    )
    def test_append_that_no_attempt_can_send_is_a_result(self, snowpipe, load, answer, kind):
        """A task cannot renew the driver's token."""
        snowpipe.fault(before="append", skip=1, error=answer, times=1000)
        result = load()
        assert (result.channel, result.error_type, result.complete) == ("c", kind, True)
        assert snowpipe.did("append", "open") == ["open c", "append c 0..1", "append c 2..3"]


class TestShortToken:
    def test_task_stops_ahead_of_the_tokens_end_with_what_it_sent_committed(self, snowpipe, load):
        result = load(replace(SIX, seconds_per_part=1000.0))
        assert (result.complete, result.rows, result.position) == (False, 4, IntegerOffset(3))
        assert snowpipe.channels["c"].position == "3"

    @pytest.mark.parametrize("life", [-1.0, 0.0])
    def test_token_that_has_expired_before_asks_nobody(self, snowpipe, load, life):
        result = load(life=life)
        assert (result.channel, result.complete, result.error_type) == ("c", False, None)
        assert snowpipe.calls == []


def put_aside(path):
    return [row for file in sorted(path.rglob("*.parquet")) for row in pq.read_table(file).to_pylist()]


class TestDeadLetters:
    BAD = MemoryPartition("p", [{"ID": 0}, {"ID": "x"}, {"ID": 2}, {"ID": 3}, {"ID": "y"}, {"ID": 5}])

    @pytest.fixture
    def aside(self, tmp_path):
        return replace(SETTINGS, row_rules=RowRules(COLUMNS, str(tmp_path), "app"))

    def positions(self, path):
        return sorted(row["position"] for row in put_aside(path))

    @pytest.mark.parametrize("bad", [(2, 3), (0, 1), (2, 3, 4, 5), (0, 1, 2, 3), (0, 1, 4, 5), (2, 3, 6, 7)])
    def test_parts_without_a_good_row_are_passed_by_the_others(self, snowpipe, load, aside, tmp_path, bad):
        """A part is two rows here, and the source has no gaps."""
        numbers = range(8)
        partition = MemoryPartition("p", [{"ID": "x" if number in bad else number} for number in numbers])
        result = load(partition, settings=aside)
        assert ids(snowpipe) == [number for number in numbers if number not in bad]
        assert (result.dead_lettered, snowpipe.channels["c"].position) == (len(bad), "7")
        assert self.positions(tmp_path) == [str(number) for number in bad]

    def test_bad_rows_go_to_the_store_of_the_source(self, snowpipe, load, aside, tmp_path):
        opened = []

        class Elsewhere(MemoryPartition):
            def open_dead_letters(self, *asked):
                opened.append(asked)
                raise errors.DeadLetterError("no such path")

        snowpipe.channel("c", **loaded(1))

        with pytest.raises(errors.DeadLetterError):
            load(Elsewhere("p", self.BAD.rows), settings=aside)
        assert opened == [(str(tmp_path), "c", IntegerOffset, IntegerOffset(1))]
        assert snowpipe.did("append") == []

    def test_bad_row_is_safe_before_one_behind_it_is_sent_and_a_zombies_file_removed_after_the_commit(
        self, snowpipe, load, aside, tmp_path
    ):
        def leave_file():
            """A zombie, which cut its parts elsewhere, puts row 4 aside once more."""
            assert "1" in self.positions(tmp_path)
            folder = DeadLetterFolder(str(tmp_path), "c", IntegerOffset, None)
            bad = DeadLetter(IntegerOffset(4), 1, "ID", "does not fit", b"{}")
            folder.write(IntegerOffset(3), IntegerOffset(5), [bad], "app")

        snowpipe.fault(before="append", do=leave_file)

        load(self.BAD, settings=aside)

        assert self.positions(tmp_path) == ["1", "4"]


@pytest.mark.parametrize("rule", ["ignore", "warn", "fail"])
def test_keys_that_match_no_column_are_counted_or_end_the_run(snowpipe, load, rule):
    strange = MemoryPartition("p", ({"ID": 0}, {"ID": 1, "KIMD": "x"}))
    result = load(strange, settings=replace(SETTINGS, columns=COLUMNS, unknown_columns=rule))
    if rule == "fail":
        assert (result.error_type, snowpipe.did("append")) == ("UnknownColumnsError", [])
    else:
        assert (result.rows, result.unknown_columns) == (2, {"KIMD": 1} if rule == "warn" else {})


class TestUndecoded:
    """Records that are no rows: ids 2 and 5 of six."""

    LOST = UndecodedPartition("p", rows(6), lost=(2, 5), rows_per_part=3)

    @pytest.mark.parametrize("rules", [None, RowRules(COLUMNS, None, "app")], ids=["unchecked", "checked"])
    def test_first_one_ends_the_run_and_is_named(self, snowpipe, load, rules):
        result = load(self.LOST, settings=replace(SETTINGS, row_rules=rules))
        assert (result.error_type, snowpipe.did("append")) == ("EncodingError", [])
        assert result.error.startswith("channel 'c': record 2 is broken")
        assert "on_error" in result.error

    def test_they_are_put_aside_with_value_key_headers_and_position(self, snowpipe, load, tmp_path):
        rules = RowRules(COLUMNS, str(tmp_path), "app")
        result = load(self.LOST, settings=replace(SETTINGS, row_rules=rules))
        assert ids(snowpipe) == [0, 1, 3, 4]
        assert (result.dead_lettered, result.undecoded, result.position) == (2, 0, IntegerOffset(5))
        written = put_aside(tmp_path)
        found = [(one["position"], one["payload"], one["key"]) for one in written]
        assert found == [("2", b"raw 2", b"key 2"), ("5", b"raw 5", b"key 5")]
        assert written[0]["headers"] == [{"key": "h", "value": b"2"}]
        assert "broken" in written[0]["reason"]

    def test_without_any_row_nothing_is_appended_and_the_task_reports_what_it_passed(self, snowpipe, load):
        snowpipe.channel("c", **loaded(1))
        partition = UndecodedPartition("p", rows(6), lost=(2, 3, 4, 5))
        result = load(partition, committed=1, settings=replace(SETTINGS, skips_undecoded=True))
        assert snowpipe.did("append") == []
        assert (result.position, result.passed, result.undecoded) == (IntegerOffset(1), IntegerOffset(5), 4)
