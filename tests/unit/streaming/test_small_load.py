"""Appending a bounded number of rows without Spark, and what a repetition finds."""

import bz2
import datetime as dt
import gzip
import json
import lzma
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from airflow_provider_snowpipe.streaming import append as module
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.append import AppendRules, RowLimits, lines_of_rows
from airflow_provider_snowpipe.streaming.commits import FailureReason, judge
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, EncodingError
from airflow_provider_snowpipe.streaming.offsets import BatchDigestOffset, IntegerOffset
from airflow_provider_snowpipe.streaming.progress import ChannelTarget, CommitTargets
from tests import checkpoints
from tests.checkpoints import binding_of, shown, source_of
from tests.fake_snowpipe import KilledError
from tests.refusals import refused

ROWS = [{"ID": number} for number in range(1, 5)]
SOURCE = source_of(BatchDigestOffset)


def numbered(rows=ROWS, batch=7):
    return module.numbered_by_batch(lines_of_rows(rows, RowLimits()), batch)


def place(position):
    """A position; of ``batch:row`` that of the row in ``ROWS``."""
    if not isinstance(position, str):
        return position
    batch, row = map(int, position.split(":"))
    known = numbered(batch=batch).offsets
    return known[row - 1] if row <= len(known) else BatchDigestOffset(batch, row, 0)


def token(position, *args, **more):
    return checkpoints.token(place(position), *args, **more)


def loaded(position, *args, **more):
    return checkpoints.loaded(place(position), *args, **more)


@pytest.fixture
def append(snowpipe):
    def run(rows=ROWS, batch=7, source=SOURCE, **rules):
        own = AppendRules(batch, **{"commit_timeout": 60.0, **rules})
        with snowpipe.client() as client:
            return module.append_to_channel(client, "c", numbered(rows, batch), source, own)

    return run


def ids(snowpipe):
    return [row["ID"] for row in snowpipe.channels["c"].rows]


def test_rows_are_appended_and_their_commit_awaited(snowpipe, append):
    snowpipe.fault(before="append", do=lambda: snowpipe.clock.sleep(3))
    snowpipe.fault(before="status", skip=1, do=lambda: snowpipe.clock.sleep(2))
    rows = [*ROWS[:3], {"ID": 4, "LATE": "x"}]

    load = append(rows)

    assert snowpipe.channels["c"].rows == rows
    assert (load.channel, load.bytes) == ("c", 4 * len('{"ID":1}\n') + len(',"LATE":"x"'))
    found = (load.from_token, shown(load.target_token), load.rows, load.skipped, load.committed)
    assert found == (None, "7:4", 4, 0, True)
    assert snowpipe.did("append") == ["append c 7:1..7:4"]
    assert (load.append_seconds, load.request_seconds, load.longest_request) == (3, 3, 3)
    assert load.commit_seconds == 2


class TestCommittedBefore:
    @pytest.mark.parametrize(
        ("committed", "rows", "sent"),
        [
            (None, ROWS, [1, 2, 3, 4]),
            ("6:9", ROWS, [1, 2, 3, 4]),
            ("7:2", ROWS, [3, 4]),
            ("7:4", ROWS, []),
            ("6:2", [], []),
        ],
        ids=["NULL", "earlier batch", "part of it", "all of it", "no rows"],
    )
    def test_only_the_rest_is_sent(self, snowpipe, append, committed, rows, sent):
        snowpipe.channel("c", **loaded(committed))
        load = append(rows)
        assert ids(snowpipe) == sent
        assert (load.rows, load.skipped, load.committed) == (len(sent), len(rows) - len(sent), True)
        assert shown(load.from_token) == committed
        assert shown(load.target_token) == snowpipe.channels["c"].position == ("7:4" if rows else committed)
        assert len(snowpipe.appends()) == bool(sent)

    def test_channel_that_has_gone_on_to_a_later_batch_or_row(self, snowpipe, append):
        snowpipe.channel("c", **loaded("8:1"))
        with pytest.raises(errors.SourcePositionError):
            append()
        load = append(on_older_batch="skip")
        assert (load.rows, load.skipped, load.target_token, load.committed) == (0, 4, token("8:1"), True)
        rules = AppendRules(7, on_older_batch="skip")
        skipped = module.rows_to_send(numbered(), place("8:1"), rules, channel="c")
        assert skipped == module.NumberedRows((), ())
        snowpipe.channels["c"].committed = token("7:9")
        with pytest.raises(errors.SourcePositionError, match=r"'c'.*7:9"):
            append()
        snowpipe.channels["c"].committed = token("7:2")
        with pytest.raises(errors.SourcePositionError, match=r"'c'.*7:2"):
            append([{"ID": 9}, *ROWS[1:]])
        assert snowpipe.did("append") == []

    @pytest.mark.parametrize(("rebind", "sent"), [("continue", [3, 4]), ("restart", [1, 2, 3, 4])])
    def test_token_of_another_source_stops_the_load_unless_the_author_rebinds_it(
        self, snowpipe, append, rebind, sent
    ):
        snowpipe.channel("c", **loaded("7:2", 10, 1, 1, binding=binding_of("other task")))
        with pytest.raises(errors.SourceChangedError, match="'c'"):
            append()
        assert snowpipe.did("open") == []
        load = append(source=replace(SOURCE, rebind=rebind))
        assert (ids(snowpipe), load.rejected) == (sent, 0)
        assert snowpipe.channels["c"].committed == token("7:4", rows=10 + len(sent), errors=1)

    def test_channel_that_counts_other_rows_than_its_checkpoint_is_reported(self, snowpipe, append, caplog):
        channel = snowpipe.channel("c", **loaded("6:9", 9))
        snowpipe.fault(after="append", do=lambda: setattr(channel, "rows_inserted", 14))
        with pytest.raises(errors.ImbalanceError, match="1 more"):
            append(on_imbalance="fail")
        appends = snowpipe.appends()
        channel.rows_inserted = 11
        with pytest.raises(errors.ImbalanceError, match="2 fewer"):
            append(batch=8, on_imbalance="fail")
        assert snowpipe.appends() == appends
        assert append(batch=8).rows == 4
        assert "2 fewer" in caplog.text


def test_received_rows_are_no_success_unless_nobody_waits(snowpipe, append):
    snowpipe.holds_commits = True
    with pytest.raises(errors.CommitTimeoutError) as late:
        append()
    assert (late.value.committed, late.value.target) == (None, str(place("7:4")))
    snowpipe.channels.clear()

    load = append(wait_for_commit=False)

    assert (load.committed, load.rows, load.commit_seconds) == (False, 4, 0.0)
    assert load.target_token == token("7:4", rows=4)
    snowpipe.commit()
    assert append(wait_for_commit=False).committed


def test_rows_numbered_by_a_column_may_leave_gaps(snowpipe):
    lines = [json.dumps({"AT": at}).encode() for at in (3, 7, 20)]
    snowpipe.channel("c", **loaded(3, 1))
    rows = module.numbered_by_column(lines, "AT", IntegerOffset, channel="c")
    with snowpipe.client() as client:
        load = module.append_to_channel(client, "c", rows, source_of(IntegerOffset), AppendRules())
    assert snowpipe.channels["c"].rows == [{"AT": 7}, {"AT": 20}]
    assert (load.skipped, load.target_token) == (1, token(20, rows=3))


def test_column_that_numbers_rows_has_a_position_in_each_that_grows():
    def number(line):
        module.numbered_by_column([b'{"AT":1}', b'{"AT":3}', line], "AT", IntegerOffset, channel="c")

    wrong = [b"{}", *(b'{"AT":%s}' % value for value in (b"null", b"true", b"1.5", b"[1]", b"{}"))]
    refused(ConfigurationError, number, [*wrong, b"[1]", b"x"], "row 3: ")
    refused(errors.ContinuityError, number, [b'{"AT":3}'], "row 3: ")
    words = ("'c', row 3: column 'AT'", "'x'", "'integer'")
    refused(errors.OffsetTokenError, number, [b'{"AT":"x"}'], *words)


class TestRejectedRows:
    @pytest.fixture(autouse=True)
    def bad_row(self, snowpipe):
        snowpipe.rejects = lambda row: row["ID"] == 2

    @pytest.mark.parametrize("on_error", ["abort", "continue", "dead_letter"])
    def test_those_that_were_reported_before_do_not_count(self, snowpipe, append, on_error, caplog):
        snowpipe.channel("c", **loaded("6:9", 9, 5, 5))

        if on_error != "continue":
            with pytest.raises(errors.RowsRejectedError, match="fit") as refusal:
                append(on_error=on_error)
            assert (refusal.value.channel, refusal.value.rejected) == ("c", 1)
        else:
            load = append(on_error="continue")
            assert (load.rejected, load.errors) == (1, 5)
        assert ids(snowpipe) == [1, 3, 4]
        assert snowpipe.channels["c"].committed == token("7:4", rows=13, errors=6)
        assert "rejected 1 row" in caplog.text
        assert append().rejected == 0
        assert append([{"ID": 5}], batch=8).rejected == 0

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize(
        ("operation", "skip"), [("append", 0), ("status", 1), ("status", 2), ("open", 1)]
    )
    def test_those_of_a_run_that_died_are_reported_by_the_next(self, snowpipe, append, when, operation, skip):
        snowpipe.fault(**{when: operation}, skip=skip, error=KilledError())
        with pytest.raises(KilledError):
            append()
        with pytest.raises(errors.RowsRejectedError) as raised:
            append([*ROWS, {"ID": 5}])
        assert raised.value.rejected == 1
        assert ids(snowpipe) == [1, 3, 4, 5]
        assert append([{"ID": 6}], batch=8).rejected == 0

    def test_those_of_a_run_that_does_not_wait_are_those_of_its_sensor(self, snowpipe, append):
        snowpipe.holds_commits = True
        load = append(wait_for_commit=False)
        snowpipe.commit()
        with snowpipe.client() as client:
            found = client.channel_statuses(["c"])
        owed = ChannelTarget(load.target_token, errors=load.errors).to_json()
        verdict = judge(found, CommitTargets.parse({"c": owed}))
        assert verdict.reason is FailureReason.ROWS_REJECTED
        with pytest.raises(errors.RowsRejectedError):
            append(wait_for_commit=False)


def test_lines_of_a_file_are_cut_at_newlines_and_a_compressed_one_is_refused():
    for body in (b'{"A":1}\r\n\n  \n{"A":2}', b'\xef\xbb\xbf{"A":1}\n{"A":2}'):
        assert module.lines_of_ndjson(body, RowLimits(2, 21), "f") == [b'{"A":1}', b'{"A":2}']
    packed = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
    packed["zstd"] = lambda body: pa.compress(body, "zstd", asbytes=True)
    for kind, pack in packed.items():
        with pytest.raises(ConfigurationError, match=rf"file f is compressed by {kind}"):
            module.lines_of_ndjson(pack(b'{"A":1}\n'), RowLimits(), "file f")


def of_query(columns, rows):
    return module.lines_of_columns(columns, rows, RowLimits(), "q")


class TestLinesOfAQuery:
    def test_keep_each_object_and_list_as_it_is(self):
        """PostgreSQL's jsonb; Arrow gives every object of a column the keys of all of them."""
        for values in [({"a": 1}, {"b": [2, "x"]}, {}, None, "x", 7), ([1, "x", None], [], [[2.5]], None)]:
            found = [json.loads(line) for line in of_query(["ID", 'W"'], list(enumerate(values)))]
            assert found == [{"ID": number, 'W"': value} for number, value in enumerate(values)]
            alone = [json.loads(line) for line in of_query(["V"], [(value,) for value in values])]
            assert alone == [{"V": value} for value in values]

    def test_have_arrays_and_dates_as_arrow_writes_them_and_integers_of_any_size(self):
        day = dt.date(2026, 1, 2)
        rows = [(1, "x", day, [day]), (2, None, None, [])]
        lines = [b'{"ID":1,"T":"x","D":"2026-01-02","L":["2026-01-02"]}']
        lines += [b'{"ID":2,"T":null,"D":null,"L":[]}']
        assert of_query(["ID", "T", "D", "L"], rows) == lines
        assert of_query(["ID"], []) == []
        for last in (5, Decimal(5)):  # Oracle's NUMBER(38)
            numbers = [-(2**63) - 1, 10**37, last]
            assert of_query(["N"], [(number,) for number in (None, *numbers)]) == [
                b'{"N":null}', *(b'{"N":%d}' % number for number in numbers),
            ]  # fmt: skip

    def test_of_values_that_would_change_or_have_no_column_are_refused(self):
        day, midnight = dt.date(2026, 1, 2), dt.datetime(2026, 1, 2)
        zoned = midnight.replace(tzinfo=dt.UTC)
        wrong = [(day, midnight), (midnight, zoned), (zoned, None, midnight), ([day, midnight],)]
        wrong += [([[midnight]], [[zoned]]), (dt.time(1, 2, tzinfo=dt.UTC),), ({"a": 1}, {"a": day})]
        wrong += [({"a": float("nan")},), ("\ud800",), (10**80,), ("x", 3), ("x", b"y"), ([b"x", "y"],)]

        for values in wrong:
            rows = [(one,) for one in values]
            refused(EncodingError, lambda given: of_query(["A"], given), [rows], "q: column 'A'")
        with pytest.raises(EncodingError, match=r"'V' and 'v'"):
            of_query(["V", "v"], [({}, 1)])
        for names, bad in ((["A"], [(1, 2)]), (["A", "B"], [(1, 2), (3,)]), (["A"], [(1, 2), (3,)])):
            with pytest.raises(ValueError, match="zip"):
                of_query(names, bad)


class TestLinesOfRows:
    def test_of_what_is_no_row_are_refused_by_its_number(self):
        rows = [[1], "x", {"A": float("nan")}, {"A": object()}]
        refused(EncodingError, lambda row: lines_of_rows([{}, row], RowLimits()), rows, "row 2 ")

    def test_of_two_keys_that_json_writes_alike_are_refused(self):
        for one, other in [(1, "1"), ("1", 1), (None, "null"), (True, "true")]:
            with pytest.raises(EncodingError, match=rf"^row 2 has the keys {one!r} and {other!r}, "):
                lines_of_rows([{}, {"A": 1, one: 2, other: 3}], RowLimits())
            written = json.dumps({one: 2, 5: 3}).replace(" ", "").encode()
            assert lines_of_rows([{one: 2, 5: 3}], RowLimits()) == [written]
        assert lines_of_rows([{"A": "é", "B": [1]}], RowLimits()) == ['{"A":"é","B":[1]}'.encode()]

    def test_that_are_too_many_are_refused_by_where_they_come_from(self):
        for make, size in [
            (lambda limits: module.lines_of_ndjson(b"{}\n{}\n", limits, "here"), 6),
            (lambda limits: module.lines_of_columns(["A"], [(1,), (2,)], limits, "here"), 16),
            (lambda limits: lines_of_rows([{}, {}], limits), 6),
        ]:
            for limits in (RowLimits(1, size), RowLimits(2, size - 1)):
                with pytest.raises(ConfigurationError, match=r"^(here|the rows): "):
                    make(limits)
            assert len(make(RowLimits(2, size))) == 2

    def test_of_json_text_keep_the_digits_that_are_written(self):
        digits = '{"A": 12345678901234567890.123456789,"T":"a,]\\n{"}'
        for text, lines in [
            (f"[{digits}\n]", [digits]),
            ('[{"A":1e-400,\n"B":{"C":[{}]}} , {"B":"[é"}]', ['{"A":1e-400, "B":{"C":[{}]}}', '{"B":"[é"}']),
            (' {"A": 0.10} ', ['{"A": 0.10}']),
            ('{"A":1}{"A":2}', ['{"A":1}', '{"A":2}']),
            ("[ ]", []),
        ]:
            assert module.lines_as_written(text, len(lines)) == [line.encode() for line in lines]

    def test_are_sent_in_bodies_of_a_quarter_of_a_mebibyte(self):
        quarter = b"x" * (2**16 - 1)
        one_short = [quarter, quarter, quarter, quarter[1:], b""]
        lines = [*one_short, *[quarter] * 4, *one_short, b"last"]
        parts = list(module.numbered_by_batch(lines, 7).parts())
        found = [(f"7:{one.start.row}", f"7:{one.end.row}", one.rows) for one in parts]
        assert found == [("7:1", "7:5", 5), ("7:6", "7:9", 4), ("7:10", "7:14", 5), ("7:15", "7:15", 1)]
        assert b"".join(one.body for one in parts) == b"\n".join(lines) + b"\n"


class PutAside:
    """An admission that puts some rows aside, and notes what it is asked.

    :param bad: the ids of those rows
    """

    def __init__(self, bad):
        self.bad, self.dead_lettered, self.unknown_columns = set(bad), 0, {"KIMD": 1}
        self.committed, self.settled, self.positions = [], [], []

    def __call__(self, committed):
        self.committed.append(committed)
        return self

    def admit(self, part):
        rows = [json.loads(line) for line in bytes(part.body).splitlines()]
        good = [row for row in rows if row["ID"] not in self.bad]
        self.positions += [part.positions(number) for number in range(len(rows))]
        self.dead_lettered += len(rows) - len(good)
        body = b"".join(json.dumps(row).encode() + b"\n" for row in good)
        return replace(part, body=body, rows=len(good)) if good else None

    def settle(self, committed):
        self.settled.append(committed)


class TestAdmission:
    @pytest.fixture
    def admit(self, snowpipe, monkeypatch):
        monkeypatch.setattr("airflow_provider_snowpipe.streaming.append._PART_BYTES", 1)

        def run(bad, rows=ROWS, **rules):
            gate = PutAside(bad)
            own = AppendRules(7, **{"commit_timeout": 60.0, **rules})
            with snowpipe.client() as client:
                return gate, module.append_to_channel(client, "c", numbered(rows), SOURCE, own, gate)

        return run

    def test_the_appends_pass_what_is_put_aside(self, snowpipe, admit):
        for bad in ([], [4], [3, 4], [2], [2, 3], [1], [1, 2, 3], [1, 3], [2, 4], [1, 4]):
            snowpipe.channels.clear()
            snowpipe.calls.clear()
            gate, load = admit(bad)

            assert snowpipe.did("append") == ["append c 7:1..7:4"]
            assert ids(snowpipe) == [number for number in range(1, 5) if number not in bad]
            found = (load.target_token, load.rows, load.dead_lettered, load.committed)
            sent = 4 - len(bad)
            assert found == (token("7:4", rows=sent), sent, len(bad), True)
            assert load.unknown_columns == {"KIMD": 1}
            assert gate.positions == numbered().offsets
            assert gate.settled == [place("7:4")]

    def test_a_try_that_does_not_wait_settles_nothing(self, admit):
        gate, load = admit([2], wait_for_commit=False)
        assert (gate.settled, load.commit_seconds, load.committed) == ([], 0.0, False)

    def test_without_a_row_to_send_the_token_is_set(self, snowpipe, admit):
        gate, load = admit([1, 2, 3, 4])
        assert snowpipe.did("append") == []
        assert snowpipe.channels["c"].committed == load.target_token == token("7:4")
        assert (load.rows, load.rejected, load.committed) == (0, 0, True)
        assert (load.dead_lettered, load.commit_seconds) == (4, 0.0)
        assert (gate.committed, gate.settled) == ([None], [])
        again, load = admit([1, 2, 3, 4])
        assert (load.skipped, load.dead_lettered, again.positions) == (4, 0, [])
        assert again.committed == [place("7:4")]

    def test_a_token_that_another_writer_sets_meanwhile_is_not_set_over(self, snowpipe, admit):
        now = token("9:1")
        snowpipe.fault(before="open", skip=1, do=lambda: setattr(snowpipe.channels["c"], "committed", now))
        with pytest.raises(errors.SnowpipeError, match="9:1"):
            admit([1, 2, 3, 4])
        assert snowpipe.channels["c"].committed == now

    def test_rows_behind_the_committed_ones_are_admitted(self, snowpipe, admit):
        admit([], rows=ROWS[:2])
        gate, load = admit([3], rows=ROWS[:3])
        assert (gate.positions, gate.committed) == ([place("7:3")], [place("7:2")])
        assert snowpipe.channels["c"].committed == token("7:3", rows=2)
        assert (load.from_token, load.target_token) == (token("7:2", rows=2), token("7:3", rows=2))
        assert (load.skipped, load.rows, load.dead_lettered) == (2, 0, 1)
        gate, load = admit([])
        assert (gate.positions, load.skipped, load.rows, load.dead_lettered) == ([place("7:4")], 3, 1, 0)
