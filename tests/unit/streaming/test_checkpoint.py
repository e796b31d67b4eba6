"""The offset token says whose rows these are, how they are numbered and how many, and what was reported."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming.checkpoint import (
    Binding,
    ChannelSource,
    Checkpoint,
    Start,
    balanced,
    check_balance,
    described,
    excess_of,
    is_begun,
    is_checkpoint,
    position_of,
    rebound,
    reported,
    run_mark,
    same_position,
    source_changed,
    source_of_token,
)
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    ImbalanceError,
    OffsetTokenError,
    SourceChangedError,
)
from airflow_provider_snowpipe.streaming.offsets import (
    BatchRowOffset,
    FileLineOffset,
    IntegerOffset,
    LexicographicOffset,
    TopicPartitionOffset,
)
from airflow_provider_snowpipe.streaming.progress import SUCCESS, ChannelStatus
from tests.refusals import refused

TOKEN = "a:9~f1.00112233445566aa.12.r1.3"
AUTHORS = "Z9~x1.00112233445566aa.12.r1.3"
OF_NUMBERS = "5~i1.00112233445566aa.12.r1.3"
EU = Binding("files of /data/orders, partition 'eu'", "csv, header")
US = Binding("files of /data/orders, partition 'us'", "csv, header")
EU_OTHERWISE = Binding(EU.source, "csv, no header")
THIRD = FileLineOffset("a", 3)


@dataclass(frozen=True)
class Lettered(LexicographicOffset):
    """Positions of an author's class."""

    code = "x"
    format_name = "lettered"


def source(binding: Binding = EU, **changes) -> ChannelSource:
    return ChannelSource(**{"positions": FileLineOffset, "binding": binding, "run": "r1", **changes})


def status(token: str | None, inserted: int = 0, errors: int = 0) -> ChannelStatus:
    return ChannelStatus("c", SUCCESS, token, rows_inserted=inserted, rows_error_count=errors)


POSITIONS = st.one_of(
    st.builds(IntegerOffset, st.integers(0, 10**18)),
    st.builds(FileLineOffset, st.text(min_size=1, max_size=120), st.integers(0, 10**9)),
    st.builds(TopicPartitionOffset, st.text(min_size=1), st.integers(0, 99), st.integers(0, 10**9)),
    st.builds(BatchRowOffset, st.integers(0, 10**9), st.integers(0, 10**9)),
    st.builds(LexicographicOffset, st.text(min_size=1)),
)


class TestText:
    @settings(max_examples=50)
    @given(position=POSITIONS, rows=st.integers(0, 10**15 - 1), errors=st.integers(0, 10**15 - 1))
    def test_is_read_as_it_was_written(self, position, rows, errors):
        one = Checkpoint(position, EU.digest, rows, run_mark("dag task", "2026-11-28T02:05:00+00:00"), errors)
        assert Checkpoint.parse(str(one)) == one
        assert position_of(str(one)) == position
        assert str(one).startswith(str(position))
        assert len(str(one)) - len(str(position)) <= 73

    def test_with_a_wrong_part_is_refused(self):
        parts = ["f2.00112233445566aa.1.r.0", "z1.00112233445566aa.1.r.0", "f1.00112233445566aa.01.r.0"]
        parts += ["f1.00112233445566AA.1.r.0", "f1.00112233445566aa.1..0", "f1.00112233445566aa.1.r.-1"]
        positions = ["a~f1.00112233445566aa.1.r.0", "~f1.00112233445566aa.1.r.0", "a:1", ""]
        refused(OffsetTokenError, Checkpoint.parse, [*(f"a:1~{one}" for one in parts), *positions])

    def test_is_explained_part_by_part(self):
        parts = {"version": 1, "binding": "00112233445566aa", "rows": 12, "run": "r1", "reported_errors": 3}
        assert described(TOKEN) == {"position": "a:9", "format": "file:line", **parts}
        assert described(AUTHORS) == {"position": "Z9", "format": "of its author's class", **parts}
        newer = TOKEN.replace("f1", "f2")
        for other, word in (("a:9", "not a checkpoint"), (newer, "version 2")):
            with pytest.raises(OffsetTokenError, match=f"^offset token.*{word}"):
                described(other)

    def test_has_a_position_or_is_one_of_a_class_that_is_named(self):
        assert position_of(TOKEN) == position_of(TOKEN, FileLineOffset) == FileLineOffset("a", 9)
        assert position_of("a:8", FileLineOffset) == FileLineOffset("a", 8)
        assert position_of(AUTHORS, Lettered) == Lettered("Z9")
        wrong = [("a:8", None), (TOKEN, IntegerOffset), (f"{TOKEN}.2", FileLineOffset), (AUTHORS, None)]
        for token, positions in (*wrong, ("x", IntegerOffset)):
            with pytest.raises(OffsetTokenError, match="'c7'"):
                position_of(token, positions, channel="c7")
            with pytest.raises(OffsetTokenError, match=r"^(offset token|a load)"):
                position_of(token, positions)
        for read in (position_of, Checkpoint.parse):
            with pytest.raises(OffsetTokenError, match="'c7'"):
                read(TOKEN.replace("a:9", "a"), FileLineOffset, channel="c7")

    def test_is_of_the_same_position_however_many_rows_led_to_it(self):
        assert same_position(TOKEN, "a:9~f1.00112233445566aa.99.r2.7")
        for changed in ("a:8~f1.00112233445566aa", "a:9~l1.00112233445566aa", "a:9~f1.00112233445566ab"):
            assert not same_position(TOKEN, f"{changed}.12.r1.3")
        for one, other in (("a:9", TOKEN), (None, TOKEN)):
            assert not same_position(one, other)
            assert same_position(one, one)


class TestNames:
    def test_a_binding_is_ten_digits_of_the_source_and_six_of_the_reading(self):
        """As docs/reference/checkpoints.md has it."""
        log = "split by type 'directory' of the source log 5d41402abc4b2a76"
        files = Binding(f"files '*.ndjson', {log}, partition 'EWR'", "ndjson")
        assert (files.digest, files.source_digest) == ("f5dd20c7b4344e34", "f5dd20c7b4")
        assert Checkpoint.parse(source(EU).token(THIRD, 5, 0)).source == EU.source_digest
        assert EU.source_digest == EU_OTHERWISE.source_digest != US.source_digest
        assert len({one.digest for one in (EU, EU_OTHERWISE, US)}) == 3
        assert source_of_token(TOKEN) == source_of_token(AUTHORS) == "0011223344"
        assert source_of_token("a:9") == source_of_token("{}") == ""
        assert (str(EU), str(Binding("a topic"))) == (f"{EU.source} (csv, header)", "a topic")

    def test_a_run_is_named_by_when_it_began_and_four_digits_on_every_try(self):
        four = run_mark("dag task")
        assert len(four) == 4
        assert four == run_mark("dag task", "ä") != run_mark("dag other")
        assert run_mark("dag task", "2026-11-28T02:05:00+00:00") == f"2026-11-28T0205-{four}"
        assert run_mark("dag task", "20261128T0205Z") == f"20261128T0205Z-{four}"
        for began in ("", "2026-11-28T02:05:00.123456+00:00", "manual__ä/ö"):
            assert is_checkpoint(f"1~i1.{EU.digest}.1.{run_mark('dag task', began)}.0")

    def test_the_error_of_another_source_names_both_and_the_remedies(self):
        lost = replace(EU, lost="The log is gone. ")
        otherwise = source(EU_OTHERWISE).token(THIRD, 5, 0)
        for token, before, words in [
            (TOKEN, None, ("committed rows of another source (binding 00112233445566aa). ", "a:9")),
            (
                TOKEN,
                "files of /old",
                ("committed rows of another source: files of /old. ", "The log is gone. "),
            ),
            (otherwise, None, ("committed rows of the same source, numbered in another way (binding",)),
        ]:
            text = str(source_changed("c", Checkpoint.parse(token), lost, before))
            assert not [one for one in ("'c'", str(EU), EU.digest, "'continue'", *words) if one not in text]


class TestStart:
    def test_is_behind_the_own_token_or_where_rebind_sets_it(self):
        own, foreign = (source(one).token(THIRD, 5, 1) for one in (EU, US))
        for rebind, now, start in [
            (None, status(own, 3, 2), Start(THIRD, 5, 1, "r1")),
            (None, status(own, 4), Start(THIRD, 5, 1, "r1", excess=-1)),
            (None, status(own, 5, 2), Start(THIRD, 5, 1, "r1", excess=2)),
            (None, status(None), Start(None, 0, 0)),
            (None, status(None, 2, 1), Start(None, 0, 0, excess=3)),
            ("continue", status(foreign, 3, 3), Start(THIRD, 6, 1, "r1")),
            ("continue", status("a:3", 4, 1), Start(THIRD, 5, 1)),
            ("restart", status(foreign, 3, 3), Start(None, 6, 1, "r1", restarted=6)),
            ("restart", status(own, 3, 2), Start(THIRD, 5, 1, "r1")),
        ]:
            assert source(rebind=rebind).start(now) == start

    @pytest.mark.parametrize("rebind", [None, "continue", "restart"])
    def test_token_is_read_as_rebind_sets_it(self, rebind):
        reads = source(rebind=rebind)
        own, foreign, otherwise = (source(one).token(THIRD, 5, 0) for one in (EU, US, EU_OTHERWISE))

        def both(token):
            return reads.read(token, channel="c"), reads.start(status(token, 5)).position

        assert both(own) == (THIRD, THIRD)
        for other in (foreign, otherwise):
            if rebind is None:
                for read in (lambda one: reads.read(one, channel="c"), lambda one: reads.start(status(one))):
                    (error,) = refused(SourceChangedError, read, [other], "'c'", "rebind")
                    assert str(EU) in str(error)
            else:
                assert both(other) == ((THIRD, THIRD) if rebind == "continue" else (None, None))
        bare = "a" if rebind == "continue" else "a:3"
        for read in (lambda one: reads.read(one, channel="c"), lambda one: reads.start(status(one))):
            refused(OffsetTokenError, read, [bare, OF_NUMBERS], "'c'")

    def test_is_recorded_of_a_channel_without_a_token_before_it_gets_rows(self):
        now, gone = replace(status(None), created_on_ms=17), ChannelStatus.missing("c")
        token = source().begun(now, THIRD)
        assert Checkpoint.parse(token) == Checkpoint(THIRD, EU.digest, 0, "NULL-17")
        assert source_of_token(source().begun(now)) == EU.source_digest
        others = [replace(now, created_on_ms=1), status(None), replace(now, code=gone.code)]
        bare = ChannelSource(IntegerOffset, EU, is_bare=True).begun(now)
        assert (bare, source_of_token(bare)) == ("NULL-17", "")
        for one in (token, source().begun(now), bare):
            assert [is_begun(one, other) for other in (None, now, *others)] == [True] * 2 + [False] * 3
        assert not any(is_begun(one, other) for one in (TOKEN, "a:3") for other in (None, now))
        undated = source().begun(status(None))
        assert [is_begun(undated, one) for one in (status(None), now, gone)] == [True, True, False]

    def test_bare_number_is_read_and_written_for_a_connector_alone(self):
        connector = ChannelSource(IntegerOffset, EU, is_bare=True)
        tokens = source().token(THIRD, 5, 0), source(US).token(THIRD, 5, 0), "41"
        assert [source().is_own(one) for one in tokens] == [True, False, False]
        assert connector.is_own("41")
        assert connector.start(status("41", 42)).position == IntegerOffset(41)
        assert connector.token(IntegerOffset(42), 43, 0) == "42"
        refused(OffsetTokenError, connector.start, [status(f"{OF_NUMBERS}.2")], "'c'")
        refused(OffsetTokenError, ChannelSource(IntegerOffset, EU).start, [status("41", 42)])
        refused(ConfigurationError, lambda bare: source(is_bare=bare), [True])

    def test_a_difference_is_logged_or_an_error(self, caplog):
        for excess, word in [(2, "2 more"), (-1_000, "1,000 fewer")]:
            check_balance("c", excess, "warn")
            assert word in caplog.text
            with pytest.raises(ImbalanceError, match=f"'c'.*{word}"):
                check_balance("c", excess, "fail")
        check_balance("c", 0, "fail")


class TestSetTokens:
    def test_leave_rejected_rows_unreported_that_were_so(self):
        for known, counted, errors in [(3, 9, 3), (3, 2, 2), (0, 9, 0)]:
            now = status(f"a:9~f1.00112233445566aa.12.r1.{known}", 10, counted)
            for token in ("a:4", "a:4~f1.00112233445566aa.7.r1.8"):
                found = Checkpoint.parse(balanced(token, now))
                expected = ("a:4", "00112233445566aa", 10 + counted, errors)
                assert (str(found.position), found.binding, found.rows, found.errors) == expected
                assert excess_of(replace(now, committed=str(found))) == 0
        assert excess_of(status("41", 5)) == 0
        assert balanced("a:3", status(None)) == "a:3"
        assert Checkpoint.parse(balanced(TOKEN, status(None))).rows == 0, "in a new channel"
        assert balanced("Z1", status(AUTHORS, 12), Lettered) == "Z1~x1.00112233445566aa.12.r1.0"

    def test_of_another_class_are_refused(self):
        for token, committed, positions in [
            ("5", TOKEN, FileLineOffset),
            (OF_NUMBERS, TOKEN, FileLineOffset),
            ("five", TOKEN, None),
            ("a:4", OF_NUMBERS, FileLineOffset),
            ("a:4", "a~f1.00112233445566aa.7.r1.8", FileLineOffset),
        ]:
            with pytest.raises(OffsetTokenError, match="'c'"):
                balanced(token, status(committed), positions)

    def test_have_rejected_rows_reported_once(self):
        now = reported(status(source().token(THIRD, 9, 1), 6, 3))
        assert now == source().token(THIRD, 9, 3)
        assert reported(status(now, 6, 3)) is None
        assert reported(status("41", 6, 3)) is None

    def test_are_given_to_another_source_with_the_rows_that_the_channel_counts(self):
        now = status(TOKEN, 10, 5)
        assert rebound(now, "99887766554433bb") == "a:9~f1.99887766554433bb.15.r1.3"
        wrong = [None, "", "99887766554433b", "99887766554433bbb", "99887766554433BB", "99887766554433bg"]
        refused(ConfigurationError, lambda one: rebound(now, one), wrong, "binding")
        for token in (None, "a:9"):
            with pytest.raises(OffsetTokenError, match=rf"'c'.*{token or 'NULL'}"):
                rebound(status(token), "99887766554433bb")
