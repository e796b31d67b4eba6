"""The offset token says whose rows these are, how they are numbered and how many, and what was reported."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
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
    held_apart,
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

TOKEN = "a:9~f1.00112233445566aa.12.r1.3"
AUTHORS = "Z9~x1.00112233445566aa.12.r1.3"
HELD = f"{TOKEN}.2-10-20260301-abcdef012345"
EU = Binding("files of /data/orders, partition 'eu'", "csv, header")
US = Binding("files of /data/orders, partition 'us'", "csv, header")
EU_OTHERWISE = Binding(EU.source, "csv, no header")


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


@given(position=POSITIONS, rows=st.integers(0, 10**15 - 1), errors=st.integers(0, 10**15 - 1))
def test_a_token_is_read_as_it_was_written(position, rows, errors):
    one = Checkpoint(position, EU.digest, rows, run_mark("dag task", "2026-11-28T02:05:00+00:00"), errors)

    assert Checkpoint.parse(str(one)) == one
    assert position_of(str(one)) == position
    assert str(one).startswith(str(position))
    assert len(str(one)) - len(str(position)) <= 73


@given(text=st.text())
def test_any_other_text_is_refused_or_read_back_the_same(text):
    if is_checkpoint(text):
        return
    with pytest.raises(OffsetTokenError):
        Checkpoint.parse(text)


@pytest.mark.parametrize(
    "token",
    [
        "a:1~f2.00112233445566aa.1.r.0",
        "a:1~z1.00112233445566aa.1.r.0",
        "a:1~f1.00112233445566aa.01.r.0",
        "a:1~f1.00112233445566AA.1.r.0",
        "a:1~f1.00112233445566aa.1..0",
        "a:1~f1.00112233445566aa.1.r.-1",
        "a~f1.00112233445566aa.1.r.0",
        "~f1.00112233445566aa.1.r.0",
        "a:1",
        "",
    ],
)
def test_a_token_with_a_part_that_is_wrong_is_refused(token):
    with pytest.raises(OffsetTokenError):
        Checkpoint.parse(token)


def test_positions_of_another_class_are_refused():
    token = source().token(FileLineOffset("a", 1), 1, 0)

    with pytest.raises(OffsetTokenError):
        Checkpoint.parse(token, IntegerOffset)


def test_a_channel_starts_behind_the_position_of_its_own_token():
    start = source().start(status(source().token(FileLineOffset("a", 3), 5, 2), 3, 2))

    assert (start.position, start.rows, start.errors, start.run, start.excess) == (
        FileLineOffset("a", 3), 5, 2, "r1", 0,
    )  # fmt: skip


def test_a_new_channel_starts_at_the_beginning():
    start = source().start(status(None))

    assert (start.position, start.rows, start.errors, start.excess) == (None, 0, 0, 0)


@pytest.mark.parametrize("other", [US, EU_OTHERWISE])
def test_a_token_of_another_source_or_numbering_is_refused(other):
    token = source(other).token(FileLineOffset("a", 3), 5, 0)

    with pytest.raises(SourceChangedError, match="rebind") as refused:
        source().start(status(token, 5))

    assert "'c'" in str(refused.value)
    assert str(EU) in str(refused.value)


def test_sources_of_one_name_differ_by_their_partition_not_by_how_they_are_read():
    tokens = [
        Checkpoint.parse(source(one).token(FileLineOffset("a", 3), 5, 0)) for one in (EU, EU_OTHERWISE, US)
    ]

    assert tokens[0].source == tokens[1].source != tokens[2].source
    assert len({one.binding for one in tokens}) == 3


def test_rebind_continue_goes_on_behind_the_position_and_balances():
    token = source(US).token(FileLineOffset("a", 3), 5, 1)

    start = source(rebind="continue").start(status(token, 3, 3))

    assert (start.position, start.rows, start.errors) == (FileLineOffset("a", 3), 6, 1)


def test_rebind_restart_begins_again_and_balances():
    token = source(US).token(FileLineOffset("a", 3), 5, 1)
    restarted = source(rebind="restart")

    start = restarted.start(status(token, 3, 3))

    assert (start.position, start.rows, start.errors) == (None, 6, 1)
    assert restarted.read(token, channel="c") is None


def test_rebind_changes_nothing_once_the_new_token_is_committed():
    restarted = source(rebind="restart")
    token = restarted.token(FileLineOffset("a", 1), 7, 1)

    assert restarted.start(status(token, 6, 1)).position == FileLineOffset("a", 1)


def test_a_channel_that_counts_other_rows_than_its_token_shows_how_many():
    token = source().token(FileLineOffset("a", 3), 5, 0)

    assert source().start(status(token, 4, 0)).excess == -1
    assert source().start(status(token, 5, 2)).excess == 2
    assert source().start(status(None, 3, 0)).excess == 3


def test_a_bare_number_is_read_and_written_for_a_connector_alone():
    connector = ChannelSource(IntegerOffset, EU, is_bare=True)

    assert connector.start(status("41", 42)).position == IntegerOffset(41)
    assert connector.token(IntegerOffset(42), 43, 0) == "42"
    with pytest.raises(OffsetTokenError):
        ChannelSource(IntegerOffset, EU).start(status("41", 42))
    assert ChannelSource(IntegerOffset, EU, rebind="continue").start(status("41", 42)).rows == 42
    with pytest.raises(ConfigurationError):
        source(is_bare=True)


def test_a_token_set_by_hand_gets_the_channels_binding_and_balances():
    now = status(source().token(FileLineOffset("a", 9), 9, 0), 8, 1)

    found = Checkpoint.parse(balanced("a:3", now))

    assert (found.position, found.binding, found.rows, found.errors) == (
        FileLineOffset("a", 3), EU.digest, 9, 0,
    )  # fmt: skip
    assert excess_of(replace(now, committed=str(found))) == excess_of(replace(now, committed="41")) == 0
    assert balanced("a:3", status(None)) == "a:3"


def test_a_token_that_is_restored_balances_in_a_new_channel():
    token = source().token(FileLineOffset("a", 9), 9, 2)

    assert Checkpoint.parse(balanced(token, status(None))).rows == 0


def test_rejected_rows_are_reported_once():
    token = source().token(FileLineOffset("a", 9), 9, 1)

    now = reported(status(token, 6, 3))

    assert Checkpoint.parse(str(now)).errors == 3
    assert reported(status(now, 6, 3)) is None
    assert reported(status("41", 6, 3)) is None


@pytest.mark.parametrize("began", ["", "2026-11-28T02:05:00.123456+00:00", "manual__ä/ö"])
def test_a_run_has_the_same_name_on_every_try(began):
    mark = run_mark("dag task run", began)

    assert mark == run_mark("dag task run", began) != run_mark("dag task other", began)
    assert is_checkpoint(f"1~i1.{EU.digest}.1.{mark}.0")


@dataclass(frozen=True)
class Lettered(LexicographicOffset):
    """Positions of an author's class."""

    code = "x"
    format_name = "lettered"


def test_a_binding_is_ten_digits_of_the_source_and_six_of_the_reading():
    """As docs/reference/checkpoints.md has it."""
    log = "source log 5d41402abc4b2a76"
    files = Binding(f"files '*.ndjson', split by type 'directory' of the {log}, partition 'EWR'", "ndjson")

    assert (files.digest, files.source_digest) == ("f5dd20c7b4344e34", "f5dd20c7b4")
    assert str(EU) == "files of /data/orders, partition 'eu' (csv, header)"
    assert str(Binding("a topic")) == "a topic"


def test_a_run_is_named_by_when_it_began_and_four_digits():
    assert run_mark("dag task", "2026-11-28T02:05:00+00:00") == f"2026-11-28T0205-{run_mark('dag task')}"
    assert run_mark("dag task", "20261128T0205Z") == f"20261128T0205Z-{run_mark('dag task')}"
    assert len(run_mark("dag task")) == 4
    assert run_mark("dag task", "ä") == run_mark("dag task")


def test_a_token_is_explained_part_by_part():
    parts = {"version": 1, "binding": "00112233445566aa", "rows": 12, "run": "r1", "reported_errors": 3}

    assert described(HELD) == {**described(TOKEN), "hold": "2-10-20260301-abcdef012345"}
    assert described(TOKEN) == {"position": "a:9", "format": "file:line", **parts}
    assert described(AUTHORS) == {"position": "Z9", "format": "of its author's class", **parts}
    for other, word in (
        ("a:9", "not a checkpoint"),
        (TOKEN.replace("f1", "f2"), "version 2"),
    ):
        with pytest.raises(OffsetTokenError, match=f"^offset token.*{word}"):
            described(other)


def test_a_position_is_that_of_a_checkpoint_or_of_a_bare_text_whose_class_is_named():
    assert position_of(TOKEN) == position_of(TOKEN, FileLineOffset) == FileLineOffset("a", 9)
    assert position_of("a:8", FileLineOffset) == FileLineOffset("a", 8)
    assert position_of(AUTHORS, Lettered) == Lettered("Z9")
    wrong = [("a:8", None), (TOKEN, IntegerOffset), (HELD, FileLineOffset), (AUTHORS, None)]
    for token, positions in (*wrong, ("x", IntegerOffset)):
        with pytest.raises(OffsetTokenError, match="'c7'"):
            position_of(token, positions, channel="c7")
        with pytest.raises(OffsetTokenError) as without:
            position_of(token, positions)
        assert str(without.value).startswith(("offset token", "a load"))
    for read in (position_of, Checkpoint.parse):
        with pytest.raises(OffsetTokenError, match="'c7'"):
            read(TOKEN.replace("a:9", "a"), FileLineOffset, channel="c7")


def test_digits_of_the_source_are_those_of_a_checkpoint_or_of_a_load_under_way():
    assert source_of_token(TOKEN) == source_of_token(AUTHORS) == "0011223344"
    assert source_of_token(HELD) == "0011223344"
    assert source_of_token("a:9") == source_of_token("{}") == ""


def test_a_token_with_a_hold_is_another_one_that_no_reader_takes_for_committed():
    now = status(HELD, 12, 9)

    assert held_apart(HELD) == (TOKEN, "2-10-20260301-abcdef012345")
    assert held_apart(TOKEN) == (TOKEN, None)
    assert held_apart("a:9") == ("a:9", None)
    assert not same_position(TOKEN, HELD)
    assert same_position(HELD, HELD)
    assert reported(now) is None
    assert balanced("a:3", now) == "a:3~f1.00112233445566aa.21.r1.3"
    with pytest.raises(OffsetTokenError, match="'c'"):
        rebound(now, EU.digest)


def test_two_tokens_are_of_one_position_however_many_rows_led_to_it():
    other = "a:9~f1.00112233445566aa.99.r2.7"

    assert same_position(TOKEN, other)
    for changed in ("a:8~f1.00112233445566aa", "a:9~l1.00112233445566aa", "a:9~f1.00112233445566ab"):
        assert not same_position(TOKEN, f"{changed}.12.r1.3")
    assert same_position("a:9", "a:9")
    assert same_position(None, None)
    assert not same_position("a:9", TOKEN)
    assert not same_position(None, TOKEN)


def test_a_channel_is_given_to_another_source_at_its_position_with_the_rows_that_it_counts():
    now = status(TOKEN, 10, 5)

    assert rebound(now, "99887766554433bb") == "a:9~f1.99887766554433bb.15.r1.3"
    for binding in (None, "", "99887766554433b", "99887766554433bbb", "99887766554433BB", "99887766554433bg"):
        with pytest.raises(ConfigurationError, match="binding"):
            rebound(now, binding)
    for token in (None, "a:9"):
        with pytest.raises(OffsetTokenError, match=rf"'c'.*{token or 'NULL'}"):
            rebound(status(token), "99887766554433bb")


@pytest.mark.parametrize(("known", "counted", "errors"), [(3, 9, 3), (3, 2, 2), (0, 9, 0)])
def test_a_checkpoint_that_is_set_leaves_rejected_rows_unreported_that_were_so(known, counted, errors):
    now = status(f"a:9~f1.00112233445566aa.12.r1.{known}", 10, counted)

    for token in ("a:4", "a:4~f1.00112233445566aa.7.r1.8"):
        found = Checkpoint.parse(balanced(token, now))
        assert (str(found.position), found.rows, found.errors) == ("a:4", 10 + counted, errors)
    for token in ("5", "5~i1.00112233445566aa.7.r1.8"):
        with pytest.raises(OffsetTokenError, match="'c'"):
            balanced(token, now, FileLineOffset)
    with pytest.raises(OffsetTokenError, match="'c'"):
        balanced("five", now)
    for committed in ("5~i1.00112233445566aa.7.r1.8", "a~f1.00112233445566aa.7.r1.8"):
        with pytest.raises(OffsetTokenError, match="'c'"):
            balanced("a:4", status(committed), FileLineOffset)
    assert balanced("Z1", status(AUTHORS, 12), Lettered) == "Z1~x1.00112233445566aa.12.r1.0"


def test_the_error_of_another_source_names_both_and_the_remedies():
    found = Checkpoint.parse(TOKEN)

    text = str(source_changed("c", found, EU))
    for part in (
        "'c'",
        "has committed rows of another source (binding 00112233445566aa). ",
        "a:9",
        str(EU),
        EU.digest,
        "'continue'",
    ):
        assert part in text
    known = str(source_changed("c", found, replace(EU, lost="The log is gone. "), "files of /old"))
    assert "files of /old" in known
    assert "The log is gone. " in known
    assert "00112233445566aa" not in known
    same = Checkpoint.parse(source(EU_OTHERWISE).token(FileLineOffset("a", 3), 5, 0))
    text = str(source_changed("c", same, EU))
    assert "committed rows of the same source, numbered in another way (binding" in text
    assert "another source" not in text


@pytest.mark.parametrize("rebind", [None, "continue", "restart"])
def test_what_a_channel_has_is_read_as_rebind_sets_it(rebind):
    reads = source(rebind=rebind)
    own, foreign = (source(one).token(FileLineOffset("a", 3), 5, 0) for one in (EU, US))

    assert reads.read(own, channel="c") == FileLineOffset("a", 3)
    if rebind is None:
        with pytest.raises(SourceChangedError, match="'c'"):
            reads.read(foreign, channel="c")
    else:
        assert reads.read(foreign, channel="c") == (FileLineOffset("a", 3) if rebind == "continue" else None)
    if rebind == "continue":
        assert reads.read("a:3", channel="c") == FileLineOffset("a", 3)
        assert reads.start(status("a:3", 4, 1)) == Start(FileLineOffset("a", 3), 5, 1)
    for read in (lambda token: reads.read(token, channel="c"), lambda token: reads.start(status(token))):
        with pytest.raises(OffsetTokenError, match="'c'"):
            read("a" if rebind == "continue" else "a:3")
    for token in (HELD, "5~i1.00112233445566aa.12.r1.3"):
        with pytest.raises(OffsetTokenError, match="'c'"):
            reads.read(token, channel="c")
        with pytest.raises(OffsetTokenError, match="'c'"):
            reads.start(status(token))


def test_where_a_writer_of_another_source_begins():
    token = source(US).token(FileLineOffset("a", 3), 5, 1)

    assert source(rebind="continue").start(status(token, 3, 3)) == Start(FileLineOffset("a", 3), 6, 1, "r1")
    assert source(rebind="restart").start(status(token, 3, 3)) == Start(None, 6, 1, "r1", restarted=6)
    assert source().start(status(None, 2, 1)) == Start(None, 0, 0, excess=3)


@pytest.mark.parametrize(("excess", "word"), [(2, "2 more"), (-1_000, "1,000 fewer")])
def test_a_difference_is_logged_or_an_error(excess, word, caplog):
    check_balance("c", excess, "warn")
    assert "'c'" in caplog.text
    assert word in caplog.text
    with pytest.raises(ImbalanceError, match=word):
        check_balance("c", excess, "fail")
    check_balance("c", 0, "fail")
