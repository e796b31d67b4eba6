"""The driver's two gates, and what tasks report when they agree on a begun batch; the others are scripted."""

import datetime as dt
from dataclasses import replace

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem

from airflow_provider_snowpipe.spark.data_source import agreement, gates, parts
from airflow_provider_snowpipe.spark.data_source.agreement import Agreement, RefusedByAnotherError, forget
from airflow_provider_snowpipe.spark.data_source.gates import identity_of, prepare, settle_batch
from airflow_provider_snowpipe.spark.data_source.kept_offsets import read_backup
from airflow_provider_snowpipe.spark.data_source.task import Task, TaskOutcome
from airflow_provider_snowpipe.spark.driver.report import ChannelReport
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.checkpoint import Checkpoint
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offset_backup import KeptToken, OffsetBackup
from airflow_provider_snowpipe.streaming.offsets import BatchDigestOffset, IntegerOffset, LexicographicOffset
from airflow_provider_snowpipe.streaming.row_gate import store_whole
from tests.fake_snowpipe import MISSING, PIPE, KilledError, error
from tests.unit.spark.data_source.write_options import write_options as options

WRITER = "00000001"
MINE = parts.BatchIdentity(5, WRITER, 2)
BY_COLUMN = {"partitions": None, "channelColumn": "K"}


def token(batch=5, row=2, writer=WRITER, channel="ds_0", rows=0, errors=0, **more):
    source = parts.channel_source(options(**more), channel, parts.BatchIdentity(batch, writer, 2))
    return source.token(BatchDigestOffset(batch, row, 7, final=True), rows, errors)


def ordered(value, channel="ds_0", **more):
    """The token of a value of the offset column."""
    is_number = isinstance(value, int)
    source = parts.channel_source(
        options(offsetColumn="ID", **more), channel, None, integer_offsets=is_number
    )
    return source.token(IntegerOffset(value) if is_number else LexicographicOffset(value), 0, 0)


@pytest.fixture(autouse=True)
def driver_token(snowpipe, monkeypatch):
    monkeypatch.setattr(gates, "driver_token", lambda options: snowpipe.scoped_token())


def seen_by(**more):
    return prepare(options(**more), integer_offsets=False).seen


class TestPrepare:
    def test_unknown_pipe_is_refused(self, snowpipe):
        snowpipe.fault(before="pipe_info", error=error(404, "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"))
        with pytest.raises(errors.PipeNotFoundError):
            seen_by()

    @pytest.mark.parametrize("value", [7, "k"])
    def test_offset_column_over_another_number_of_partitions_is_refused(self, snowpipe, value):
        snowpipe.channel("ds_3", committed=ordered(value, "ds_3", partitions="4"))
        with pytest.raises(errors.SourceChangedError, match="ds_3"):
            prepare(options(offsetColumn="ID"), integer_offsets=isinstance(value, int))

    @pytest.mark.parametrize("column", [None, "ID"])
    def test_token_of_another_format_names_the_channel(self, snowpipe, column):
        snowpipe.channel("ds_0", committed="a.log:2")
        with pytest.raises(errors.OffsetTokenError, match="ds_0"):
            seen_by(offsetColumn=column)

    @pytest.mark.parametrize("committed", [None, *(token(channel="ds_1", rows=rows) for rows in (1, 3))])
    def test_channel_that_counts_other_rows_is_reported_before_one_moves(self, snowpipe, caplog, committed):
        snowpipe.channel("ds_1", committed=committed, rows_inserted=1, rows_error_count=1)
        with pytest.raises(errors.ImbalanceError, match="ds_1"):
            seen_by(onImbalance="fail")
        assert prepare(options(), integer_offsets=False)
        assert "ds_1" in caplog.text

    def test_batches_of_all_channels_are_seen_and_empty_ones_report_nothing(self, snowpipe):
        snowpipe.channel("ds_0", committed=token(batch=4))
        snowpipe.channel("ds_2")
        snowpipe.channel("ds_3", committed=token(batch=5, channel="ds_3"))
        seen = seen_by()
        assert (seen.batches(), sorted(seen.committed)) == ({4, 5}, ["ds_0", "ds_3"])

    def test_all_channels_together_reveal_another_query_or_a_later_batch(self, snowpipe):
        snowpipe.channel("ds_7", committed=token(channel="ds_7"))
        seen = seen_by()
        seen.check(options(), MINE)
        with pytest.raises(parts.SupersededError):
            seen.check(options(), replace(MINE, batch=4))
        for more, writer, words in (({}, "00000002", "query"), (BY_COLUMN, WRITER, r"\ba channelColumn\b")):
            with pytest.raises(errors.SourceChangedError, match=f"^channel 'ds_7' .*{words}"):
                seen.check(options(**more), parts.BatchIdentity(6, writer, 2))

    @pytest.mark.parametrize("channel", ["ds_0", "ds_1", "ds_3", "ds_99"])
    def test_another_number_of_partitions_is_refused_whichever_channel_has_a_token(self, snowpipe, channel):
        snowpipe.channel(channel, committed=token(channel=channel, partitions="100"))
        with pytest.raises(errors.SourceChangedError, match=channel):
            seen_by().check(options(), replace(MINE, batch=6))

    def test_channels_beyond_the_own_ones_are_polled_to_the_next_hundred(self, snowpipe):
        seen_by(partitions="101")
        asked = [name for call in snowpipe.did("status") for name in call.split()[1].split(",")]
        assert asked == [f"ds_{number}" for number in range(200)]


DONE = ChannelReport("ds_0", "ds_0", target_token=token(), rows=2, errors_before=3, rejected_before=3)
LEFT = TaskOutcome(0, 0, (replace(DONE, rows=1),))
RIGHT = TaskOutcome(1, 0, (replace(DONE, channel="ds_1", rows=1),))
FAILED = replace(RIGHT, error_type="SourcePositionError", error="other rows")


def settle(*tasks, integer=False, **more):
    return settle_batch(options(**more), tasks, "batch=5", integer_offsets=integer)


def settle_channel(*channels, **more):
    return settle(TaskOutcome(0, 0, channels), TaskOutcome(1, 0), **more)


class TestSettle:
    def test_batch_is_no_success_whatever_spark_reports(self, snowpipe):
        overtaken, twice = replace(RIGHT, superseded=("ds_1", 9)), replace(RIGHT, channels=LEFT.channels)
        for tasks, kind, text in [
            ((LEFT, None), "WriterActive", "without the messages of 1 tasks"),
            ((LEFT, FAILED), "SourcePosition", "^other rows. 2 rows were sent on 2 channels$"),
            ((FAILED, FAILED), "SourcePosition", "1 more"),
            ((LEFT, replace(RIGHT, complete=False)), "Authentication", "partitions .1. took"),
            ((LEFT, overtaken), "WriterActive", "'ds_1' has committed batch 9"),
            ((LEFT, twice), "Continuity", "rows of channel 'ds_0' came from 2 partitions"),
            ((LEFT,), "Configuration", "plan has 1 partitions, option partitions is 2"),
        ]:
            with pytest.raises(getattr(errors, f"{kind}Error"), match=text) as raised:
                settle(*tasks)
            names_batch = kind in ("WriterActive", "Authentication")
            assert str(raised.value).startswith("batch=5: ") is names_batch, text
        assert snowpipe.calls == []

    def test_batch_without_rows_asks_nobody(self, snowpipe):
        assert settle() == settle(TaskOutcome(0, 0, (ChannelReport("ds_0", "ds_0"),))) == ()
        assert snowpipe.calls == []

    @pytest.mark.parametrize(("before", "owed", "committed"), [(1, 9, 10), ("a", "b", "c")])
    @pytest.mark.parametrize("more", [{}, BY_COLUMN], ids=["partitions", "column"])
    def test_tokens_of_a_column_have_its_order(self, snowpipe, more, before, owed, committed):
        report = ChannelReport("ds_0", "ds_0", target_token=ordered(owed, **more), rows=1)
        how = {"integer": isinstance(owed, int), "offsetColumn": "ID", **more}
        snowpipe.channel("ds_0", committed=ordered(committed, **more))
        assert settle_channel(report, **how)[0].committed
        snowpipe.channels["ds_0"].committed = ordered(before, **more)
        with pytest.raises(errors.CommitTimeoutError, match=r"T-STREAMING"):
            settle_channel(report, **how)

    def test_message_of_a_task_is_not_believed_without_the_committed_token(self, snowpipe):
        with pytest.raises(errors.CommitTimeoutError):
            settle_channel(DONE)
        channel = snowpipe.channel("ds_0", rows_error_count=3)
        for channel.committed in (None, token(row=1), token(batch=4, row=9)):
            with pytest.raises(errors.CommitTimeoutError) as missing:
                settle_channel(DONE)
            assert missing.value.channel == "ds_0"

    def test_rows_skipped_since_the_batch_began_fail_it(self, snowpipe):
        snowpipe.channel("ds_0", committed=token(), rows_error_count=5)
        with pytest.raises(errors.RowsRejectedError) as refused:
            settle_channel(DONE)
        (report,) = settle_channel(DONE, onError="continue")
        assert (refused.value.rejected, report.rejected) == (2, 2)
        assert Checkpoint.parse(snowpipe.channels["ds_0"].committed).errors == 5

    def test_all_that_the_task_reported_is_in_the_report(self, snowpipe):
        snowpipe.channel("ds_0", committed=token(errors=3), rows_inserted=9, rows_error_count=3)
        given = replace(
            DONE, from_token="f", bytes=3, inserted_before=7, append_seconds=5.0, commit_seconds=6.0,
            requests=8, request_seconds=10.0, longest_request=11.0, retries=12, dead_lettered=13,
        )  # fmt: skip
        (report,) = settle_channel(given)
        assert report == replace(given, to_token=token(errors=3), rejected=0, committed=True, latency_ms=5)

    def test_channel_that_counts_other_rows_than_its_checkpoint_fails_the_write_on_request(self, snowpipe):
        snowpipe.channel("ds_0", committed=token(rows=2), rows_inserted=1, rows_error_count=3)
        with pytest.raises(errors.ImbalanceError, match="ds_0"):
            settle_channel(DONE, onImbalance="fail")
        assert Checkpoint.parse(snowpipe.channels["ds_0"].committed).errors == 0, "nobody has reported them"
        assert settle_channel(DONE)[0].committed


class TestOffsetBackup:
    @pytest.fixture
    def path(self, tmp_path):
        return str(tmp_path / "offsets.json")

    def test_what_a_batch_has_committed_is_known_to_the_next_one(self, snowpipe, path):
        assert prepare(options(offsetBackup=path), integer_offsets=False).known == {}
        snowpipe.channel("ds_0", committed=token())
        settle_channel(DONE, offsetBackup=path)
        del snowpipe.channels["ds_0"]
        assert settle(offsetBackup=path) == ()
        assert prepare(options(offsetBackup=path), integer_offsets=False).known == {"ds_0": token()}

    @pytest.mark.parametrize("spread", [{}, BY_COLUMN], ids=["partitions", "column"])
    def test_rows_of_a_write_that_died_are_not_sent_again_where_its_channel_was_lost(
        self, snowpipe, path, spread
    ):
        given = options(offsetColumn="ID", fixedSpread="true", offsetBackup=path, **spread)

        def write(*ids):
            batch = pa.record_batch({"ID": ids, "K": pa.array(["0"] * len(ids), pa.string())})
            return Task(given, prepare(given, integer_offsets=True), None, 0, 0).run(iter([batch]))

        assert write().error_type is None
        assert snowpipe.channels == {}
        for when in ("before", "after"):
            snowpipe.fault(**{when: "append"}, error=KilledError())
            with pytest.raises(KilledError):
                write(1, 2)
        first = snowpipe.channels.pop("ds_0")
        assert [row["ID"] for row in first.rows] == [1, 2]
        for again in (lambda: None, lambda: snowpipe.channel("ds_0", created_on_ms=9)):
            again()
            assert write(1, 2, 3).error_type == "SourcePositionError"
        assert snowpipe.channels["ds_0"].rows == []
        snowpipe.channels["ds_0"] = first
        assert write(1, 2, 3).error_type is None
        assert [row["ID"] for row in first.rows] == [1, 2, 3]

    def test_a_backup_that_an_executor_does_not_reach_is_refused_before_a_row_moves(self, snowpipe, tmp_path):
        given = options(**BY_COLUMN, offsetBackup=str(tmp_path / "offsets.json"))
        task = Task(given, prepare(given, integer_offsets=False), MINE, 0, 0)
        (tmp_path / "offsets.json").unlink()
        outcome = task.run(iter([pa.record_batch({"ID": [1], "K": ["0"]})]))
        assert (outcome.error_type, snowpipe.channels) == ("ConfigurationError", {})

    def test_channels_that_are_quiet_are_opened_at_their_own_tokens(self, snowpipe, path):
        since = dt.datetime.now(dt.UTC) - dt.timedelta(days=8)
        kept = {name: KeptToken(token(channel=name), since) for name in ("ds_0", "ds_1", "ds_2")}
        store_whole(LocalFileSystem(), path, OffsetBackup(PIPE, since, kept).to_json().encode())
        for name in ("ds_0", "ds_1"):
            snowpipe.channel(name, committed=token(channel=name))
        settle_channel(DONE, offsetBackup=path)
        after = read_backup(path, PIPE).channels
        assert [name for name, one in after.items() if one.unchanged_since == since] == ["ds_0", "ds_2"]
        assert {one.offset_token for one in after.values()} == {one.offset_token for one in kept.values()}
        assert set(snowpipe.did("open")) == {"open ds_1"}

    def test_a_channel_that_another_program_has_moved_since_keeps_its_writer(self, snowpipe, path):
        since = dt.datetime.now(dt.UTC) - dt.timedelta(days=8)
        kept = {"other": KeptToken("1", since)}
        store_whole(LocalFileSystem(), path, OffsetBackup(PIPE, since, kept).to_json().encode())
        snowpipe.channel("other", committed="2", rows_inserted=2)
        assert settle(offsetBackup=path) == ()
        after = read_backup(path, PIPE).channels["other"]
        assert (after.offset_token, after.unchanged_since > since, snowpipe.did("open")) == ("2", True, [])

    def test_a_file_that_is_none_or_another_pipes_is_refused_before_a_row_moves(
        self, snowpipe, path, tmp_path
    ):
        other = OffsetBackup(PipeName("DB", "S", "OTHER"), dt.datetime.now(dt.UTC), {}).to_json().encode()
        for content, where in [(b"{}", path), (other, path), (b"", str(tmp_path / "no" / "folder"))]:
            store_whole(LocalFileSystem(), path, content)
            with pytest.raises(errors.ConfigurationError, match=r"offset backup|OTHER"):
                prepare(options(offsetBackup=where), integer_offsets=False)


def test_batch_is_identified_by_number_and_query_or_by_a_column():
    for more, batch, query, identity in [
        ({}, 5, None, parts.BatchIdentity(5, parts.GIVEN_WRITER, 2)),
        ({}, 5, "q", parts.BatchIdentity.of_query(5, "q", 2)),
        ({"offset_column": "ID", "partitions": None}, 5, "q", None),
        ({"partitions": None}, 5, None, parts.BatchIdentity(5, parts.GIVEN_WRITER, 0)),
        ({}, None, "q", None),
    ]:
        assert identity_of(replace(options(), **more), batch, query) == identity


CHANNELS = ["ds_0", "ds_1", "ds_2"]


def marker(number):
    return f"ds_{number}__compared"


ALL = ",".join(map(marker, range(3)))


class Others:
    """The tasks of a write, of which one is real."""

    def __init__(self, snowpipe, client):
        self.snowpipe, self.client = snowpipe, client

    def task(self, number):
        return Agreement(self.client, CHANNELS, number, "w")

    def begun(self, number, **reported):
        """A task that has begun; what the others have reported, by name (``t1="agrees"``)."""
        task = self.task(number)
        task.begin()
        self.snowpipe.calls.clear()
        for name, what in reported.items():
            self.report(int(name[1:]), what)
        return task

    def report(self, number, what, write="w"):
        self.snowpipe.channel(marker(number)).committed = f"{write}:{what}"

    def reported(self, number):
        channel = self.snowpipe.channels.get(marker(number))
        return None if channel is None else channel.committed

    def at_poll(self, poll, number, what):
        """Have a task report something just before a poll is answered, of those that come now."""
        self.snowpipe.fault(before="status", skip=poll, do=lambda: self.report(number, what))

    def polls(self):
        return [call.removeprefix("status ") for call in self.snowpipe.did("status")]


@pytest.fixture
def others(snowpipe, monkeypatch):
    monkeypatch.setattr(agreement, "time", snowpipe.clock)
    snowpipe.clock.sleep(100)
    snowpipe.clock.slept.clear()
    with snowpipe.client() as client:
        yield Others(snowpipe, client)


def test_first_task_waits_for_all_and_then_lets_them_send(others, snowpipe):
    first = others.begun(0, t1="compares")
    others.at_poll(2, 2, "agrees")
    others.at_poll(3, 1, "agrees")
    first.wait()
    assert others.reported(0) == "w:sends"
    assert others.polls() == [ALL] * 4
    assert snowpipe.clock.slept == [0.25] * 3


@pytest.mark.parametrize("what", ["compares", "agrees"])
def test_nobody_sends_before_the_first_task_allows_it_however_long_it_takes(others, what):
    task = others.begun(2, t0=what, t1="agrees")
    others.at_poll(400, 0, "sends")
    task.wait()
    assert len(others.polls()) == 401


def test_first_task_refuses_for_all_when_one_does_and_names_it(others):
    first = others.begun(0, t1="agrees", t2="refuses")
    with pytest.raises(RefusedByAnotherError, match=r"'ds_0'.*'ds_2'"):
        first.wait()
    assert others.reported(0) == "w:refuses"


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("now", [None, "another:compares"], ids=["gone", "taken"])
def test_write_whose_channel_another_one_opened_sends_and_reports_nothing(others, snowpipe, number, now):
    task = others.begun(number, **{f"t{one}": "agrees" for one in {0, 1, 2} - {number}})

    def taken():
        snowpipe.channel(marker(number)).committed = now

    snowpipe.fault(before="status", do=taken)

    with pytest.raises(RefusedByAnotherError, match=f"ds_{number}"):
        task.wait()
    assert others.reported(number) == now


@pytest.mark.parametrize("number", [0, 1])
def test_later_attempt_does_not_take_a_refusal_back(others, snowpipe, number):
    for one in range(3):
        others.report(one, "refuses" if one == number else "agrees")
    again = others.task(number)
    again.begin()
    if number:
        others.at_poll(1, 0, "refuses")
    with pytest.raises(RefusedByAnotherError):
        again.wait()
    assert (others.reported(number), snowpipe.did("open")) == ("w:refuses", [])


def test_task_that_has_started_within_half_a_minute_is_waited_for(others):
    first = others.begun(0, t1="agrees")
    others.at_poll(120, 2, "compares")
    others.at_poll(900, 2, "agrees")
    first.wait()
    assert len(others.polls()) == 901


@pytest.mark.parametrize(
    ("number", "missing", "polls", "reported"), [(0, 2, 122, {"t1": "agrees"}), (1, 0, 123, {"t2": "agrees"})]
)
def test_task_that_does_not_start_needs_a_slot(others, snowpipe, number, missing, polls, reported):
    task = others.begun(number, **reported)
    with pytest.raises(SourcePositionError, match="slot") as refused:
        task.wait()
    assert not isinstance(refused.value, RefusedByAnotherError), "nobody knows the reason better"
    for word in (f"'ds_{number}'", f"'ds_{missing}'", "3 task slots", "30 s", "write_checked"):
        assert word in str(refused.value)
    assert others.reported(number) == "w:refuses"
    assert (len(others.polls()), sum(snowpipe.clock.slept)) == (polls, 30.25)


@pytest.mark.parametrize("decision", ["sends", "refuses", None])
def test_refusal_ends_the_wait_for_the_first_task_unless_it_decides_just_then(others, decision):
    task = others.begun(1, t2="refuses")
    if decision:
        others.at_poll(1, 0, "compares")
        others.at_poll(3, 0, decision)
    if decision == "sends":
        task.wait()
    else:
        with pytest.raises(RefusedByAnotherError, match="ds_0" if decision else "ds_2"):
            task.wait()
    assert others.reported(1) == "w:refuses", "the first task may have read it"
    assert others.polls()[:2] == [ALL, marker(0)]


def test_later_attempt_at_the_first_partition_keeps_the_decision(others, snowpipe):
    others.report(0, "sends")
    again = others.task(0)
    for step in (again.begin, again.wait, again.refuse, again.finish):
        step()
    assert (others.reported(0), snowpipe.did("open")) == ("w:sends", [])


def test_channels_of_a_comparison_are_dropped_once_and_no_others(others, snowpipe):
    for number in (0, 2):
        others.report(number, "agrees")
        snowpipe.channel(f"ds_{number}")
    snowpipe.fault(before="drop", channel=marker(0), error=error(404, MISSING))
    forget(others.client, CHANNELS)
    assert sorted(snowpipe.did("drop")) == [f"drop {marker(0)}", f"drop {marker(2)}"]
    assert {"ds_0", "ds_2"} <= snowpipe.channels.keys()


def test_messages_of_another_write_are_ignored(others):
    first = others.begun(0)
    others.report(1, "refuses", write="v")
    others.report(2, "agrees", write="v")
    with pytest.raises(SourcePositionError, match="slot"):
        first.wait()


def test_first_task_decides_even_if_it_has_nothing_to_send_and_not_where_it_has_refused(others, snowpipe):
    others.begun(0, t1="agrees", t2="agrees").finish()
    assert others.reported(0) == "w:sends"
    snowpipe.channels.clear()
    first = others.begun(0)
    first.refuse()
    first.finish()
    assert (others.reported(0), snowpipe.did("status")) == ("w:refuses", [])


@pytest.mark.parametrize("before", [None, "v:sends", "w:agrees", "w:compares"])
def test_task_begins_by_reporting_that_it_compares(others, snowpipe, before):
    snowpipe.channel(marker(1), committed=before)
    others.task(1).begin()
    assert (others.reported(1), len(snowpipe.did("open"))) == ("w:compares", 1)
