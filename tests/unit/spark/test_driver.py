"""The driver's steps: resume, rounds, and the committed tokens as the only evidence."""

import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import pyarrow.parquet as pq
import pytest

from airflow_provider_snowpipe.spark.driver import rounds as rounds_module
from airflow_provider_snowpipe.spark.driver import run as driver
from airflow_provider_snowpipe.spark.driver.outcome import TaskFailedError
from airflow_provider_snowpipe.spark.driver.plan import JobPlan
from airflow_provider_snowpipe.spark.driver.report import ChannelReport, ChannelStart
from airflow_provider_snowpipe.spark.driver.rounds import TaskRounds
from airflow_provider_snowpipe.spark.driver.run import Run
from airflow_provider_snowpipe.spark.source import Behind, SourceSecrets
from airflow_provider_snowpipe.spark.task.sink import PartitionResult, PartitionWork
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.arguments import UnloadedRow
from airflow_provider_snowpipe.streaming.checkpoint import Checkpoint, source_of_token
from airflow_provider_snowpipe.streaming.lag import FileBehind
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.checkpoints import binding_of, loaded, shown, token
from tests.fake_snowpipe import PIPE, STALE, URL, KilledError, error
from tests.memory_source import (
    InProcessSpark,
    MemoryFramePartition,
    MemoryFrameSource,
    MemoryPartition,
    MemorySource,
    MemorySpec,
    rows,
)

PLAN = JobPlan(
    "app", URL, PIPE, "job", "src", MemorySpec(), credentials_variable="X", commit_timeout=60.0,
    limits=BatchLimits(requests_per_second=10_000),
)  # fmt: skip
COLUMNS = (TableColumn("ID", "NUMBER(38,0)"),)
P, Q = MemoryPartition("p", rows(6)), MemoryPartition("q", rows(4))
SLOW = replace(P, seconds_per_part=1000.0)


class SpelledSpec(MemorySpec):
    """A source whose channels others may have named in capital letters."""

    def other_spellings(self, prefix, partition):
        return (f"{prefix.upper()}_src_{partition}",)


def asked_source(*partitions):
    """A source that keeps what the driver gives it."""
    source = MagicMock(wraps=MemorySource(partitions))
    for step in (source.for_target, source.with_spark, source.without_spark):
        step.return_value = source
    return source


@dataclass
class ScriptedRounds:
    """Rounds of one channel each of which ends as scripted."""

    script: list[PartitionResult]

    def locate(self, partitions, committed):
        return [PartitionWork(name, one, committed[name], 0) for name, one in partitions.items()]

    def run(self, settings, token, works):
        return [self.script.pop(0)]

    def unfinished(self, works, results):
        return works if self.script else []

    def finished_channels(self, before):
        return before


@pytest.fixture
def opens(monkeypatch):
    """Has the driver open a source; what it gives for that."""
    opened = []

    def opens(source):
        monkeypatch.setattr(driver, "open_source", lambda *given: opened.append(given) or source)
        return source

    opens.given = opened
    return opens


@pytest.fixture
def make_run(snowpipe, opens):
    """A run over partitions in memory; the source that it opened is its ``source``."""

    def make(*partitions, listed=snowpipe.listed, **plan):
        of_frames = isinstance(partitions[0], MemoryFramePartition)
        source = opens((MemoryFrameSource if of_frames else MemorySource)(partitions))
        run = Run(replace(PLAN, **plan), snowpipe.client(), object, list_channels=listed)
        run.source = source
        return run

    return make


def load(run, spark=None):
    run.prepare()
    run.load(spark or InProcessSpark())


def whole(run, spark=None):
    load(run, spark)
    run.verify()
    run.finish()


def ids(snowpipe, channel="job_src_p"):
    return [row["ID"] for row in snowpipe.channels[channel].rows]


def by_channel(run, field):
    """A field of each channel's report; of a token, the position."""
    values = {one.channel: getattr(one, field) for one in run.channels}
    return {name: shown(one) if isinstance(one, str) else one for name, one in values.items()}


def stands(snowpipe, channel, position, sent=None, **counts):
    """A channel that has committed its partition up to a position."""
    own = binding_of(channel.rpartition("_")[2])
    sent = int(position) + 1 if sent is None else sent
    snowpipe.channel(channel, **loaded(position, sent, binding=own, **counts))


def test_run_loads_every_partition_verifies_and_moves_the_bookmark(snowpipe, make_run):
    run = make_run(P, Q)
    whole(run)
    assert (ids(snowpipe), ids(snowpipe, "job_src_q")) == ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3])
    assert by_channel(run, "target_token") == {"job_src_p": "5", "job_src_q": "3"}
    assert by_channel(run, "rows") == {"job_src_p": 6, "job_src_q": 4}
    assert all(by_channel(run, "committed").values())
    assert run.source.bookmark == {"p": IntegerOffset(5), "q": IntegerOffset(3)}


def test_two_runs_whose_new_channels_load_one_partition_at_one_time_both_fail(snowpipe, make_run):
    runs = make_run(P), make_run(P, channel_prefix="other")
    for run in runs:
        run.prepare()
    for run in runs:
        run.load(InProcessSpark())
    for run in runs:
        with pytest.raises(errors.SourceChangedError, match=r"(?=.*'job_src_p').*'other_src_p'"):
            run.verify()


def test_new_channels_are_created_and_left_to_be_recorded_before_a_row_is_sent(snowpipe, make_run):
    stands(snowpipe, "job_src_q", "1")
    snowpipe.channel("job_src_r")
    parts = (P, Q, replace(P, name="r"), replace(P, name="empty", rows=()))
    first = make_run(*parts, is_recorded=True)
    first.prepare()
    assert not first.load(InProcessSpark(), pytest.fail)
    begun = first.report(0.0).begun
    assert sorted(begun) == ["job_src_p", "job_src_r"]
    assert (snowpipe.appends(), snowpipe.did("open")) == ([], ["open job_src_p"])
    known = {source_of_token(token): (name, token) for name, token in begun.items()}
    whole(make_run(*parts, is_recorded=True, last_checkpoints=known))
    assert [len(ids(snowpipe, f"job_src_{name}")) for name in "pqr"] == [6, 2, 6]


def test_run_reports_what_it_was_and_what_ended_it(snowpipe, make_run, monkeypatch):
    stands(snowpipe, "job_src_p", "3")
    mine, row = binding_of("p"), UnloadedRow("job_src_q", "1", "bad")
    last = {mine.source_digest: ("job_src_p", token(3, 9, 2, binding=mine))}
    script = ScriptedRounds([PartitionResult("job_src_q", columns=("ID",), unloaded=(row,))])
    monkeypatch.setattr(rounds_module, "rounds_of", lambda source, spark: script)
    run = make_run(P, Q, last_checkpoints=last, wait_for_commit=False)
    load(run)
    run.verify()
    found = run.report(time.monotonic(), errors.SqlError("gone"))
    assert (found.application, found.error, found.error_type) == ("app", "gone", "SqlError")
    assert (found.reading, found.columns, found.unloaded) == (run.reading, ("ID",), (row,))
    moved = [(one.channel, one.partition, one.rows_before, one.rejected_earlier) for one in found.channels]
    assert moved == [("job_src_p", "p", 3, 2), ("job_src_q", "q", 0, 0)]
    assert (run.report(0.0).error, run.report(0.0).error_type) == (None, None)


def test_run_that_could_not_begin_has_no_channels_and_no_bookmark(snowpipe, make_run):
    run = make_run(P)
    snowpipe.fault(before="pipe_info", error=error(404, "ERR_TABLE_DOES_NOT_EXIST_NOT_AUTHORIZED"))
    with pytest.raises(errors.PipeNotFoundError):
        run.prepare()
    calls = len(snowpipe.calls)
    run.finish()
    assert (run.channels, run.source.bookmark) == ((), {})
    assert len(snowpipe.calls) == calls


class TestPrepare:
    def test_token_that_is_not_a_checkpoint_names_the_channel(self, snowpipe, make_run):
        snowpipe.channel("job_src_q", committed="a.log:3")
        with pytest.raises(errors.OffsetTokenError, match="job_src_q"):
            make_run(P, Q).prepare()
        assert snowpipe.did("open") == []

    def test_position_that_the_source_has_no_more_names_the_channel(self, snowpipe, make_run):
        stands(snowpipe, "job_src_q", "1")
        with pytest.raises(errors.SourcePositionError, match="job_src_q"):
            make_run(P, replace(Q, first=10)).prepare()

    def test_new_channel_that_differs_in_case_from_a_committed_one_is_refused(self, snowpipe, make_run):
        snowpipe.channel("JOB_src_q", committed="3")
        snowpipe.channel("JOB_src_p")
        run = make_run(P, Q, source=SpelledSpec())
        with pytest.raises(errors.SourcePositionError, match=r"'job_src_q'.*'JOB_src_q'"):
            run.prepare()
        assert snowpipe.did("open") == []
        stands(snowpipe, "job_src_q", "1")  # a token of its own
        run.prepare()

    def test_source_gets_the_target_and_claims_the_partitions(self, snowpipe, opens, monkeypatch):
        source, secrets = opens(asked_source(P, Q)), SourceSecrets({"password": "x"})
        monkeypatch.setattr(driver, "start_spark", lambda application: ("session", application))
        stands(snowpipe, "job_src_p", "3")
        plan = replace(PLAN, on_data_loss="skip", source_logs={"log": 7}, table_created="2026")

        Run(plan, snowpipe.client()).prepare()
        Run(replace(plan, rebind="continue", is_recorded=True), snowpipe.client(), object, secrets).prepare()

        assert opens.given == [(plan.source, "skip", one) for one in (SourceSecrets(), secrets)]
        starts = [given.args[0] for given in source.with_spark.call_args_list]
        assert (starts[0](), starts[1]) == (("session", "app"), object)
        assert source.for_target.call_args == call(PIPE.address(URL), run=plan.run_mark)
        committed = {"job_src_p": IntegerOffset(3), "job_src_q": None}
        assert source.claim.call_args.args == ({"job_src_p": P, "job_src_q": Q}, committed)
        logs = {"rebind": None, "logs": None}, {"rebind": "continue", "logs": {"log": 7}}
        assert [given.kwargs for given in source.claim.call_args_list] == [
            {**one, "table": "2026"} for one in logs
        ]

    @pytest.mark.parametrize("skip", range(5))
    def test_rejected_rows_of_a_taken_over_channel_are_logged_first(self, snowpipe, make_run, caplog, skip):
        snowpipe.rejects = lambda row: row["ID"] == 1
        load(make_run(P, run="first-run"))
        snowpipe.fault(after="open", skip=skip, error=KilledError())
        with pytest.raises((KilledError, errors.RowsRejectedError)):
            make_run(P, channel_prefix="new", rebind="continue").prepare()
        marked = Checkpoint.parse(snowpipe.channels["job_src_p"].committed).errors == 1
        assert "first-run" in caplog.text or not marked
        assert marked == (skip >= 2)


class TestRebind:
    @pytest.mark.parametrize(("run_whole", "reported"), [(whole, 1), (Run.without_rows, 2)])
    def test_gives_its_binding_to_a_channel_without_new_rows(self, snowpipe, make_run, run_whole, reported):
        stands(snowpipe, "job_src_q", "3")
        kept = snowpipe.channels["job_src_q"].committed
        snowpipe.channel("job_src_p", **loaded("5", 9, 2, 1, binding=binding_of("other")))
        run = make_run(Q, P, rebind="continue", run="r9", on_error="continue")

        run_whole(run)

        assert snowpipe.channels["job_src_q"].committed == kept
        assert snowpipe.channels["job_src_p"].committed == token("5", 9, reported, run="r9")
        assert by_channel(run, "target_token") == {"job_src_q": "3", "job_src_p": "5"}
        assert all(by_channel(run, "committed").values())


class TestRunWithoutRows:
    def test_is_small_where_all_partitions_are(self, snowpipe, opens, monkeypatch):
        stands(snowpipe, "job_src_0", "3")
        for behind, expected in [
            ([Behind(10), Behind(None, 10)], True),
            ([Behind(64 << 20), Behind(None, 200_000)], True),
            ([Behind(40 << 20)] * 2, False),
            ([Behind(None, 110_000)] * 2, False),
            ([Behind(10), Behind(None)], False),
            ([], False),
        ]:
            opens(MemorySource([replace(P, name=str(number)) for number in range(len(behind))]))
            monkeypatch.setattr(
                MemoryPartition,
                "behind",
                lambda self, at, of=behind: of[int(self.name)] if (at is None) == (self.name != "0") else at,
            )
            run = Run(PLAN, snowpipe.client())
            run.has_no_rows()
            assert run.is_small() is expected, behind

    def test_source_claims_its_rows_only_where_there_are_none(self, snowpipe, opens):
        source = opens(asked_source(P))
        stands(snowpipe, "job_src_p", "4")
        assert not Run(PLAN, snowpipe.client()).has_no_rows()
        assert source.claim.call_count == 0
        snowpipe.channels["job_src_p"].committed = token("5", 5)
        assert Run(PLAN, snowpipe.client()).has_no_rows()
        assert source.claim.call_count == 1
        source.claim.return_value = False
        assert not Run(PLAN, snowpipe.client()).has_no_rows(), "others have written the source's log"

    def test_is_one_whose_partitions_all_end_at_their_tokens(self, snowpipe, make_run, monkeypatch):
        stands(snowpipe, "job_src_p", "5")
        assert not make_run(P, Q).has_no_rows()
        stands(snowpipe, "job_src_q", "2")
        assert not make_run(P, Q).has_no_rows()
        assert not make_run(MemoryFramePartition("p", rows(6))).has_no_rows(), "a query takes Spark"
        with monkeypatch.context() as patched:
            patched.setattr(MemoryFrameSource, "without_spark", lambda self: self)
            assert not make_run(MemoryFramePartition("p", ())).has_no_rows(), "a query takes Spark"
            patched.setattr(driver, "_QUICK_SECONDS", -1.0)
            assert not make_run(P).has_no_rows(), "the check may not take long"
        assert snowpipe.did("open", "append") == []

    def test_reads_the_committed_tokens_once_and_ends_as_one_that_spark_did(self, snowpipe, make_run):
        whole(make_run(P, Q))
        by_spark = make_run(P, Q)
        whole(by_spark)
        before, here = len(snowpipe.calls), make_run(P, Q)

        report = here.without_rows()

        assert [call.operation for call in snowpipe.calls[before:]] == ["hostname", "token", "status"]
        assert (report.application, report.rows, report.seconds >= 0) == ("app", 0, True)
        assert report.channels == here.channels == by_spark.channels
        assert by_channel(here, "to_token") == {"job_src_p": "5", "job_src_q": "3"}
        assert by_channel(here, "target_token") == by_channel(here, "to_token")
        assert by_channel(here, "unreported") == {"job_src_p": 0, "job_src_q": 0}
        assert here.source.bookmark == by_spark.source.bookmark
        assert here.source.bookmark == {"p": IntegerOffset(5), "q": IntegerOffset(3)}
        assert make_run(P, replace(Q, rows=rows(5))).without_rows() is None


class TestRounds:
    @pytest.mark.parametrize("partition", [SLOW, MemoryFramePartition("p", rows(6), 1000.0)])
    def test_run_needs_more_rounds_than_one_token_lives(self, snowpipe, make_run, partition):
        run = make_run(partition)
        whole(run)
        assert len(snowpipe.did("token")) > 1
        assert ids(snowpipe) == [0, 1, 2, 3, 4, 5]
        assert by_channel(run, "rows") == {"job_src_p": 6}
        assert by_channel(run, "requests") == {"job_src_p": len(snowpipe.did("append"))}

    def test_finished_channels_are_not_loaded_again(self, snowpipe, make_run):
        spark = InProcessSpark()
        # The quick channel is loaded first: the slow one uses up the token.
        whole(make_run(replace(Q, name="a"), SLOW), spark)
        assert spark.jobs[0] == 2
        assert set(spark.jobs[1:]) == {1}
        assert len([call for call in snowpipe.did("open") if call == "open job_src_a"]) == 1

    def test_rounds_in_which_nothing_moves_end_the_run(self, snowpipe, make_run, monkeypatch):
        begun, run_round = iter(range(5)), TaskRounds.run

        def one_of_few(*given):
            next(begun)  # raises where the run does not end
            return run_round(*given)

        monkeypatch.setattr(TaskRounds, "run", one_of_few)

        with pytest.raises(errors.AuthenticationError, match="clock"):
            load(make_run(replace(P, seconds_per_part=7200.0)))
        assert (len(snowpipe.did("open")), snowpipe.did("append")) == (3, [])

    def test_only_rounds_one_after_the_other_in_which_nothing_moves_end_the_run(self, make_run, monkeypatch):
        def ended(**what):
            return PartitionResult("job_src_p", IntegerOffset(1), **{"complete": False, **what})

        script = [ended(), ended(), ended(rows=1), ended(), ended(), ended(complete=True)]
        monkeypatch.setattr(rounds_module, "rounds_of", lambda source, spark: ScriptedRounds(script))
        run = make_run(P, wait_for_commit=False)

        load(run)
        run.verify()

        assert (script, by_channel(run, "rows")) == ([], {"job_src_p": 1})

    def test_position_of_an_earlier_round_stays_when_the_token_ends_a_later_one(self, make_run):
        run = make_run(SLOW, wait_for_commit=False)
        run.prepare()
        run._results = {"job_src_p": PartitionResult("job_src_p", IntegerOffset(3), token("3"), rows=4)}
        run._take([PartitionResult("job_src_p", complete=False)])
        run.verify()
        assert by_channel(run, "target_token") == {"job_src_p": "3"}

    def test_report_sums_up_the_results_of_all_rounds(self, snowpipe, make_run):
        stands(snowpipe, "job_src_p", "1", 5, rejected=3, errors=1)
        run = make_run(P, wait_for_commit=False)
        result = {
            "rows": 1, "bytes": 2, "requests": 3, "retries": 5, "dead_lettered": 6, "undecoded": 7,
            "append_seconds": 1.12324, "commit_seconds": 2.12324, "request_seconds": 3.12324,
        }  # fmt: skip
        run.prepare()
        before, after = snowpipe.channels["job_src_p"].committed, token("5", 7)
        run._results = {"job_src_p": PartitionResult("job_src_p", IntegerOffset(1), before)}
        of_round = partial(PartitionResult, "job_src_p", IntegerOffset(5), after, **result)
        for longest in (4.12324, 1.0):
            run._take([of_round(longest_request=longest)])

        run.verify()

        added = {name: round(2 * value, 3) for name, value in result.items()}
        (report,) = run.channels
        assert report == ChannelReport(
            "job_src_p", "p", from_token=before, to_token=after, target_token=after, longest_request=4.123,
            inserted_before=2, errors_before=3, rejected_before=1, unreported=2, unreported_run="r1", **added,
        )  # fmt: skip

    def test_error_of_a_task_is_the_first_one_with_the_number_of_the_others(self, make_run):
        run = make_run(P, Q)
        run.prepare()
        run._results = {name: PartitionResult(name) for name in ("job_src_p", "job_src_q")}
        first, second = (
            PartitionResult(name, error_type="SourcePositionError", error=f"error of {name}")
            for name in run._results
        )
        for results, text in [([second], "q"), ([first, second], r"p \(1 more channels failed\)")]:
            with pytest.raises(errors.SourcePositionError, match=rf"^error of job_src_{text}$"):
                run._take(results)

    def test_progress_is_asked_for_with_the_token_of_the_round(self, snowpipe, make_run, monkeypatch):
        polled = []

        class Polled(nullcontext):
            def __init__(self, client, partitions, start, *, began, done):
                assert start.keys() == {"job_src_a", "job_src_p"}
                with client() as asked:
                    statuses = asked.channel_statuses([*partitions])
                polled.append((len(statuses), done(), time.monotonic() - began < 60))
                super().__init__()

        monkeypatch.setattr(driver, "ProgressLines", Polled)
        monkeypatch.setattr(TaskRounds, "finished_channels", lambda self, before: before)
        whole(make_run(replace(Q, name="a"), SLOW))
        assert (polled[0], polled[-1]) == ((2, 0, True), (2, 1, True))


class TestEndWithoutRows:
    BAD = MemoryPartition("p", tuple({"ID": "x"} for _ in range(4)))

    @pytest.fixture
    def rules(self, tmp_path):
        return {"on_error": "dead_letter", "dead_letter_path": str(tmp_path), "columns": COLUMNS}

    @pytest.mark.parametrize("committed", [None, "1"])
    def test_token_and_bookmark_pass_it_once_and_for_all(self, snowpipe, make_run, rules, committed):
        if committed:
            stands(snowpipe, "job_src_p", committed)
        run = make_run(self.BAD, **rules)

        whole(run)

        assert (snowpipe.did("append"), snowpipe.channels["job_src_p"].position) == ([], "3")
        assert by_channel(run, "target_token") == {"job_src_p": "3"}
        assert all(by_channel(run, "committed").values())
        assert run.source.bookmark == {"p": IntegerOffset(3)}
        again = make_run(self.BAD, **rules)
        whole(again)
        assert by_channel(again, "dead_lettered") == {"job_src_p": 0}

    def test_token_is_not_set_where_another_writer_has_moved_it(self, snowpipe, make_run, rules):
        def elsewhere():
            channel = snowpipe.channels["job_src_p"]
            channel.committed, channel.rows_inserted = "7", 8

        snowpipe.fault(before="open", skip=1, do=elsewhere)

        with pytest.raises(errors.OffsetTokenMovedError):
            load(make_run(self.BAD, **rules))
        assert snowpipe.channels["job_src_p"].committed == "7"

    def test_token_passes_it_behind_channels_that_have_rows(self, snowpipe, make_run, rules):
        whole(make_run(Q, self.BAD, **rules))
        assert {name: one.position for name, one in snowpipe.channels.items()} == {
            "job_src_q": "3",
            "job_src_p": "3",
        }

    def test_killed_run_is_repeated_without_a_second_dead_letter(self, snowpipe, make_run, rules, tmp_path):
        snowpipe.fault(before="open", skip=1, error=KilledError())
        with pytest.raises(KilledError):
            load(make_run(self.BAD, **rules))
        whole(make_run(self.BAD, **rules))
        assert sum(len(pq.read_table(file)) for file in tmp_path.rglob("*.parquet")) == 4
        assert snowpipe.channels["job_src_p"].position == "3"

    def test_token_passes_it_behind_the_rows_of_an_earlier_round(self, snowpipe, make_run, rules):
        run = make_run(replace(SLOW, rows=({"ID": 0}, {"ID": 1}, *self.BAD.rows)), **rules)
        whole(run)
        assert snowpipe.did("append") == ["append job_src_p 0..3"]
        assert by_channel(run, "target_token") == {"job_src_p": "5"}
        assert all(by_channel(run, "committed").values())


class TestFailure:
    def test_fenced_task_ends_the_run(self, snowpipe, make_run):
        snowpipe.fault(before="append", error=error(409, STALE), times=1000)
        with pytest.raises(TaskFailedError) as failed:
            load(make_run(P, Q))
        assert failed.value.error_type == "ChannelFencedError"

    def test_final_error_of_a_task_ends_the_run_and_counts_the_others(self, snowpipe, make_run):
        snowpipe.fault(before="append", error=error(401, "390303"), times=1000)
        with pytest.raises(errors.AuthenticationError, match="1 more"):
            load(make_run(P, Q))


class TestVerify:
    def test_task_that_reported_success_is_not_believed_without_the_committed_token(self, snowpipe, make_run):
        run = make_run(P, Q)
        load(run)
        for snowpipe.channels["job_src_q"].committed in (None, token("2", binding=binding_of("q"))):
            with pytest.raises(errors.CommitTimeoutError, match="T-STREAMING") as missing:
                run.verify()
            assert (missing.value.channel, shown(missing.value.target)) == ("job_src_q", "3")
            assert by_channel(run, "committed") == {"job_src_p": True, "job_src_q": False}
        del snowpipe.channels["job_src_q"]
        with pytest.raises(errors.CommitTimeoutError, match="ERR_CHANNEL_DOES_NOT_EXIST"):
            run.verify()

    def test_channel_that_counts_other_rows_fails_the_run_if_it_is_to(self, snowpipe, make_run):
        stands(snowpipe, "job_src_p", "3")
        channel = snowpipe.channels["job_src_p"]
        channel.rows_inserted = 6
        make_run(P).prepare()
        channel.rows_inserted = 4
        run = make_run(P, on_imbalance="fail")
        load(run)
        channel.rows_inserted += 1  # by another program, during the run
        with pytest.raises(errors.ImbalanceError, match=r"'job_src_p'.*1 more"):
            run.verify()

    def test_run_that_does_not_wait_reports_what_it_sent_and_nothing_as_committed(self, snowpipe, make_run):
        stands(snowpipe, "job_src_p", "2")
        snowpipe.holds_commits = True
        run = make_run(P, wait_for_commit=False)
        load(run)
        calls = len(snowpipe.calls)

        run.verify()
        run.finish()

        assert by_channel(run, "target_token") == {"job_src_p": "5"}
        assert by_channel(run, "committed") == {"job_src_p": False}
        assert run.source.bookmark == {"p": IntegerOffset(2)}, "what is committed by then"
        assert snowpipe.did()[calls:] == ["status job_src_p"]
        snowpipe.channels["job_src_p"].committed = "a.log:1"
        with pytest.raises(errors.OffsetTokenError, match="job_src_p"):
            run.finish()


class TestFinish:
    def test_partitions_are_complete_where_all_that_was_sent_is_committed(self, snowpipe, make_run):
        stands(snowpipe, "job_src_p", "5")
        snowpipe.holds_commits = True
        run = make_run(P, Q, MemoryPartition("none", ()), wait_for_commit=False)
        load(run)
        run.verify()
        run.source.mark_complete = complete = MagicMock()
        run.finish()
        sent = {"p": (), "q": ((IntegerOffset(0), 4),), "none": ()}
        complete.assert_called_once_with({"p": IntegerOffset(5), "none": None}, sent)

    def test_quiet_channels_are_opened_at_their_own_tokens(self, snowpipe, make_run, caplog):
        stands(snowpipe, "job_src_p", "5", rejected=2, errors=2)
        before = snowpipe.channels["job_src_p"].committed
        empty = MemoryPartition("none", ())
        run = make_run(empty, Q, P, renew=("job_src_gone", "job_src_none", "job_src_q", "job_src_p"))
        load(run)
        run.verify()
        snowpipe.fault(before="open", error=error(409, STALE))
        run.finish()
        assert "'job_src_p' could not be renewed" in caplog.text
        run.finish()
        assert {*snowpipe.did("open")} == {"open job_src_q", "open job_src_p"}
        assert snowpipe.channels["job_src_p"].committed == before


@dataclass(frozen=True)
class CountedPartition(MemoryPartition):
    rows_behind: int = 0

    def behind(self, committed):
        return Behind(None, self.rows_behind * committed.value)

    def files_behind(self, committed):
        first = FileBehind(committed.value, 10 * committed.value, 1_000)
        return [first, FileBehind(2, 20, 2_000), FileBehind(3, 3, 3_000)]


@pytest.mark.parametrize(
    ("most", "files"),
    [(2, (FileBehind(2, 30, 1_000, 2), FileBehind(3, 3, 3_000))), (0, (FileBehind(3, 33, 1_000, 3),))],
)
def test_what_the_run_finds_is_handed_on_before_it_sends(snowpipe, make_run, monkeypatch, most, files):
    stands(snowpipe, "job_src_p", "1", 3, rejected=1)
    stands(snowpipe, "job_src_q", "3")
    rounds = ScriptedRounds([PartitionResult("job_src_p", IntegerOffset(5), rows=4)])
    # The rows of a table are counted when its positions are located.
    counted = PartitionWork("job_src_p", CountedPartition("p", rows(6), rows_behind=4), IntegerOffset(1), 2)
    rounds.locate = lambda *_: [counted]
    monkeypatch.setattr(driver, "_FOLLOWED_FILES", most)
    monkeypatch.setattr(rounds_module, "rounds_of", lambda source, spark: rounds)
    run, found = make_run(CountedPartition("p", rows(6)), Q, wait_for_commit=False), []
    run.prepare()
    before = int(time.time() * 1_000)

    run.load(object(), lambda channels: found.append((channels, list(rounds.script))))

    ((channels, script),) = found
    (began,) = {one.began_ms for one in channels.values()}
    assert before <= began <= time.time() * 1_000
    first, second = ChannelStart(2, 1, began, 4, files), ChannelStart(4, 0, began, 0, ())
    assert channels == {"job_src_p": first, "job_src_q": second}
    assert len(script) == 1
    run.verify()
    of_files, other = run.channels
    assert (of_files.files_found, of_files.bytes_found, of_files.oldest_found_ms) == (3, 33, 1_000)
    assert (other.files_found, other.bytes_found, other.oldest_found_ms) == (None, 0, None)


def test_elapsed_seconds_have_milliseconds(monkeypatch):
    monkeypatch.setattr(driver, "time", SimpleNamespace(monotonic=lambda: 10.12346))
    assert driver.elapsed(8.0) == 2.123
