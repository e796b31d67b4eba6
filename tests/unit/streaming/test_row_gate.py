"""The gate between source and channel, and the files of dead letters that attempts leave."""

import datetime as dt
import json
import time
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from airflow_provider_snowpipe.streaming import errors, row_gate
from airflow_provider_snowpipe.streaming.arguments import UnloadedRow
from airflow_provider_snowpipe.streaming.batch import Part, Undecoded
from airflow_provider_snowpipe.streaming.checked_values import RowRules
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset, IntegerOffset, LexicographicOffset
from airflow_provider_snowpipe.streaming.row_gate import SCHEMA, Admission, DeadLetter, DeadLetterFolder
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

COLUMNS = (TableColumn("ID", "NUMBER(38,0)"),)


def _gate(path, committed=None, offset_class=IntegerOffset, pipe=""):
    rules = RowRules(COLUMNS, None if path is None else str(path), "app", pipe)
    return Admission(rules, (), "ignore", "a/b", offset_class, committed)


def _unchecked(columns=(), policy="ignore", rules=None, **options):
    return Admission(rules, columns, policy, "a/b", IntegerOffset, None, **options)


def _part(first, *values):
    body = "".join(f'{{"ID":{value}}}\n' for value in values).encode()
    return _whole(body, first, first + len(values) - 1, len(values))


def _whole(body, first, last, count):
    return Part(body, IntegerOffset(first), IntegerOffset(last), count)


def _put_aside(path, field="position"):
    files = sorted(path.rglob("*.parquet"))
    return [row[field] for file in files for row in pq.read_table(file).to_pylist()]


class TestAdmission:
    def test_part_keeps_its_last_position_although_its_last_row_is_bad(self, tmp_path):
        gate = _gate(tmp_path)
        good = gate.admit(_part(10, 1, '"x"', 3, '"y"'))
        found = (good.body, good.start, good.end, good.rows)
        assert found == (b'{"ID":1}\n{"ID":3}\n', IntegerOffset(10), IntegerOffset(13), 2)
        assert (gate.dead_lettered, _put_aside(tmp_path)) == (2, ["11", "13"])
        assert (tmp_path / quote("a/b", safe="") / "10.parquet").is_file()

    def test_part_of_good_rows_goes_on_as_it_is_and_one_without_any_is_none(self, tmp_path):
        gate, good = _gate(tmp_path), _part(13, 4)
        assert gate.admit(good) is good
        assert list(tmp_path.iterdir()) == []
        for bad in (_part(10, '"x"'), _part(11, '"x"', '"x"')):
            assert gate.admit(bad) is None
        large = _whole(b'{"ID":"' + b"x" * 5000 + b'"}\n', 1, 1, 1)
        assert _unchecked(limits=BatchLimits(wire_bytes=1000)).admit(large) is large, "it compresses"

    def test_record_that_cannot_be_decoded_is_refused_or_counted_where_values_are_not_checked(self):
        lost = Undecoded(IntegerOffset(12), "broken", b"raw")
        part = replace(_part(10, 1, 2), end=IntegerOffset(12), undecoded=(lost,))
        refusing, skipping = _unchecked(), _unchecked(skips_undecoded=True)
        with pytest.raises(errors.EncodingError, match=r"'a/b'.* 12\)"):
            refusing.admit(part)
        for given in (part, part, _part(13, 1)):
            assert skipping.admit(given) == given
        assert (refusing.undecoded, skipping.undecoded, skipping.dead_lettered) == (0, 2, 0)
        assert skipping.unloaded == (UnloadedRow("a/b", "12", "broken", "raw"),) * 2
        assert skipping.unknown_columns == {}

    def test_row_without_a_key_of_the_table_or_with_two_for_a_column_is_put_aside(self, tmp_path):
        rules = RowRules(COLUMNS, str(tmp_path), "app")
        for row, unknown in [(b'{"NEW":2}', {"NEW": 1}), (b'{"ID":2,"id":3}', {})]:
            gate = _unchecked(COLUMNS, "warn", rules)
            good = gate.admit(_whole(b'{"ID":1}\n' + row + b"\n", 10, 11, 2))
            assert (good.body, good.rows, _put_aside(tmp_path)) == (b'{"ID":1}\n', 1, ["11"])
            assert (gate.dead_lettered, gate.unknown_columns) == (1, unknown)

    def test_the_first_rows_that_are_put_aside_are_reported_cut_by_character(self, tmp_path):
        gate = _gate(tmp_path)
        texts = ["x", "\N{GRINNING FACE}" * 300, "\N{RIGHT-TO-LEFT OVERRIDE}"]
        for at in range(10):
            gate.admit(_part(3 * at + 1, *(json.dumps(one, ensure_ascii=False) for one in texts)))
        first, second, third, *more = gate.unloaded
        assert first == UnloadedRow("a/b", "1", first.reason, '{"ID":"x"}')
        assert "'ID'" in first.reason
        assert (second.text, third.text) == ('{"ID":"' + texts[1][:193], '{"ID":"\N{REPLACEMENT CHARACTER}"}')
        assert (len(more), gate.dead_lettered) == (17, 30)

    def test_keys_without_a_column_are_refused_with_the_channel_and_the_positions(self):
        for policy, body, text in [
            ("fail", b'{"ID":1,"NEW":2}\n', "channel 'a/b': rows 10 to 11 have keys"),
            ("warn", b'{"NEW":2}\n', "channel 'a/b': row 1 of 10 to 11 has no key"),
            ("fail", b'{"ID":2,"ID":3}\n', "two keys for column 'ID'"),
        ]:
            with pytest.raises(errors.UnfitRowsError, match=text):
                _unchecked(COLUMNS, policy).admit(_whole(body * 2, 10, 11, 2))

    def test_without_a_dead_letter_path_the_first_bad_row_is_named(self):
        with pytest.raises(errors.UnfitRowsError) as refused:
            _gate(None).admit(_part(10, 1, '"secret"', '"x"'))
        assert str(refused.value).startswith(
            "channel 'a/b': row 11 does not fit the table: column \"ID\": the value cannot be converted to "
            "NUMBER(38,0) (2 such rows from 10 to 12). Neither it nor a row after it was sent; "
        )
        assert "secret" not in str(refused.value)

    @pytest.mark.parametrize("policy", ["abort", "continue", "dead_letter"])
    def test_a_row_that_no_request_carries_is_refused_skipped_or_put_aside(self, tmp_path, policy):
        rules = RowRules(COLUMNS, str(tmp_path), "app") if policy == "dead_letter" else None
        limits = BatchLimits(wire_bytes=1000, compression="none")
        gate = _unchecked(COLUMNS, "warn", rules, skips_undecoded=policy == "continue", limits=limits)
        large = b'{"ID":2,"NAME":"' + b"x" * 2000 + b'"}\n'
        part = _whole(b'{"ID":1}\n' + large + b'{"ID":3}\n', 1, 3, 3)

        if policy == "abort":
            with pytest.raises(errors.UnfitRowsError, match=r"row 2 .*2018 bytes.*COPY INTO"):
                gate.admit(part)
            return
        good = gate.admit(part)
        assert (bytes(good.body), good.rows, str(good.end)) == (b'{"ID":1}\n{"ID":3}\n', 2, "3")
        assert (gate.undecoded, gate.dead_lettered) == ((1, 0) if policy == "continue" else (0, 1))
        assert _put_aside(tmp_path) == ([] if policy == "continue" else ["2"])
        assert [(one.position, one.text) for one in gate.unloaded] == [("2", large.decode()[:200])]
        assert gate.admit(_whole(large, 4, 4, 1)) is None


def test_rules_that_do_not_go_together_are_refused():
    for on_error, check, path, columns, message in [
        ("abort", False, "/dead", COLUMNS, "set on_error='dead_letter', or drop the path"),
        ("continue", True, None, COLUMNS, "check_rows is True, but on_error is 'continue'"),
        ("abort", True, None, (), "the plan has no columns"),
        ("dead_letter", False, None, COLUMNS, "dead_letter_path is not given"),
        ("dead_letter", False, "dead", COLUMNS, "give an absolute path"),
        ("dead_letter", False, "s3://key:hidden@bucket/dead", COLUMNS, "holds a password"),
    ]:
        with pytest.raises(errors.ConfigurationError, match=message) as refused:
            RowRules.of(on_error, check, path, columns, "app", "D.S.P")
        assert "hidden" not in str(refused.value)
    for on_error, columns in [("abort", COLUMNS), ("continue", ())]:
        assert RowRules.of(on_error, False, None, columns, "app", "D.S.P") is None


class TestPositions:
    @pytest.mark.parametrize(
        ("kind", "body", "part", "position"),
        [
            (FileLineOffset, b'\n{"ID":1}\n\n{"ID":"x"}\n', ("f", 7, 10, 2), "f:10"),
            (IntegerOffset, b'\n{"ID":1}\n\n{"ID":"x"}\n{"ID":3}\n', (7, 9, 3), "8"),
            (IntegerOffset, b'{"ID":1}\n{"ID":"x"}\n', (7, 7, 2), None),
            (IntegerOffset, b'{"ID":1}\n{"ID":"x"}\n', (7, 9, 2), None),
            (LexicographicOffset, b'{"ID":1}\n{"ID":"x"}\n', ("a", "b", 2), None),
        ],
    )
    def test_are_counted_and_never_guessed(self, tmp_path, kind, body, part, position):
        *given, count = part
        ends = [kind(given[0], one) for one in given[1:]] if kind is FileLineOffset else map(kind, given)
        _gate(tmp_path, offset_class=kind).admit(Part(body, *ends, count))
        assert _put_aside(tmp_path) == [position]

    def test_are_the_sources_where_it_has_gaps_for_rows_and_records(self, tmp_path):
        lost = Undecoded(IntegerOffset(32), "broken", b"raw")
        part = replace(_part(20, 1, '"x"'), end=IntegerOffset(32), undecoded=(lost,))
        good = _gate(tmp_path).admit(replace(part, positions=lambda row: IntegerOffset([20, 29][row])))
        assert (good.undecoded, good.positions, good.rows) == ((), None, 1)
        (file,) = tmp_path.rglob("*.parquet")
        names = ("row", "position", "column", "first_position", "last_position", "payload", "application")
        assert [tuple(row[name] for name in names) for row in pq.read_table(file).to_pylist()] == [
            (1, "29", "ID", "20", "32", b'{"ID":"x"}', "app"), (2, "32", None, "20", "32", b"raw", "app"),
        ]  # fmt: skip


class TestAttempts:
    def test_with_other_parts_leave_each_row_in_one_file(self, tmp_path):
        killed = _gate(tmp_path)
        for part in (_part(1, 1, '"x"'), _part(3, '"x"', 4), _part(5, 5, '"x"')):
            killed.admit(part)
        again = _gate(tmp_path, committed=IntegerOffset(2))
        again.admit(_part(3, '"x"', 4, 5))
        assert sorted(_put_aside(tmp_path)) == ["2", "3"], "row 6 is not committed, and is met again"
        again.admit(_part(6, '"x"', 7))
        assert sorted(_put_aside(tmp_path)) == ["2", "3", "6"]

    def test_that_are_shut_out_lose_their_files_after_the_commit(self, tmp_path):
        gate = _gate(tmp_path, committed=IntegerOffset(2))
        gate.admit(_part(3, '"x"', 4, '"x"', 6))
        zombie = _gate(tmp_path, committed=IntegerOffset(2))
        zombie._dead_letters._left.clear()
        zombie.admit(_part(5, '"x"', 6))
        zombie.admit(_part(7, '"x"', 8))
        assert sorted(_put_aside(tmp_path)) == ["3", "5", "5", "7"]
        gate.settle(IntegerOffset(6))
        assert sorted(_put_aside(tmp_path)) == ["3", "5", "7"]

    def test_leave_what_lies_before_their_first_row_and_behind_their_commit(self, tmp_path):
        earlier = _gate(tmp_path)
        for first in (2, 3, 4, 5, 7):
            assert earlier.admit(_part(first, '"x"')) is None, "no token passes it"
        later = _gate(tmp_path, committed=IntegerOffset(1))
        later.admit(_part(3, 3, 4, '"y"'))
        later.settle(None)
        later.settle(IntegerOffset(5))
        _gate(None).settle(IntegerOffset(9))
        left = list(zip(_put_aside(tmp_path), _put_aside(tmp_path, "payload"), strict=True))
        assert left == [("2", b'{"ID":"x"}'), ("5", b'{"ID":"y"}'), ("7", b'{"ID":"x"}')]

    def test_leave_files_of_other_makers_and_of_older_rows(self, tmp_path):
        folder = tmp_path / quote("a/b", safe="")
        folder.mkdir()
        for name in ("1.parquet", "notes.parquet", "5.csv"):
            (folder / name).write_text("mine")
        gate = _gate(tmp_path, committed=IntegerOffset(2))
        gate.admit(_part(3, 3, 4, 5, 6))
        gate.settle(IntegerOffset(6))
        assert sorted(path.name for path in folder.iterdir()) == ["1.parquet", "5.csv", "notes.parquet"]

    def test_may_clear_away_the_same_file_at_once(self, tmp_path):
        _gate(tmp_path).admit(_part(3, '"x"'))
        gate = _gate(tmp_path)
        for file in tmp_path.rglob("*.parquet"):
            file.unlink()
        gate.admit(_part(3, 3))


class TestOneDirectoryForTwoPipes:
    """Tasks that share a policy may have channels of one name, as where a source goes into two tables."""

    def test_rows_of_the_one_stay_whatever_the_other_reads_or_puts_aside(self, tmp_path):
        for pipe, values in (("D.S.A", ('"a"', 4)), ("D.S.B", (3, 4)), ("D.S.C", ('"c"', '"c"'))):
            gate = _gate(tmp_path, pipe=pipe)
            gate.admit(_part(3, *values))
            gate.settle(IntegerOffset(4))
        _gate(tmp_path, pipe="D.S.B").admit(_part(3, '"b"', 4))
        left = _put_aside(tmp_path, "payload")
        assert sorted(left) == [b'{"ID":"a"}', b'{"ID":"b"}', b'{"ID":"c"}', b'{"ID":"c"}']

    @pytest.mark.parametrize(("first", "second"), [("D.S.A", "D.S.B"), ("D.S.B", "D.S.A")])
    def test_two_that_begin_at_once_keep_their_rows(self, tmp_path, monkeypatch, first, second):
        gates = {pipe: _gate(tmp_path, pipe=pipe) for pipe in (first, second)}
        listed, overtaken = DeadLetterFolder._listed, []

        def overtakes(folder):
            if not overtaken:
                overtaken.append(folder)
                gates[second].admit(_part(3, f'"{second}"'))
            return listed(folder)

        monkeypatch.setattr(DeadLetterFolder, "_listed", overtakes)
        gates[first].admit(_part(3, f'"{first}"'))
        for gate in gates.values():
            gate.settle(IntegerOffset(3))

        assert sorted(_put_aside(tmp_path, "payload")) == [b'{"ID":"D.S.A"}', b'{"ID":"D.S.B"}']

    def test_another_attempt_replaces_what_its_own_pipe_or_one_without_a_name_has_left(self, tmp_path):
        _gate(tmp_path).admit(_part(3, '"old"', '"x"'))
        for pipe in ("D.S.A", "D.S.B", "D.S.A", "D.S.B"):
            _gate(tmp_path, pipe=pipe).admit(_part(3, f'"{pipe}"', '"x"'))
            _gate(tmp_path, pipe=pipe).admit(_part(3, f'"{pipe}"', 4))
        assert sorted(_put_aside(tmp_path, "payload")) == [b'{"ID":"D.S.A"}', b'{"ID":"D.S.B"}']


class TestFolder:
    BAD = DeadLetter(None, 7, None, "bad", b"raw")

    def write(self, path, start, offset_class=IntegerOffset):
        folder = DeadLetterFolder(str(path), "c", offset_class, None)
        folder.write(offset_class.parse(start), offset_class.parse(start), [self.BAD], "app")

    def names(self, path):
        return sorted(file.name for file in path.rglob("*.parquet"))

    @pytest.fixture
    def tokyo(self, monkeypatch):
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
        monkeypatch.undo()
        time.tzset()

    @pytest.mark.usefixtures("tokyo")
    @pytest.mark.parametrize("form", ["{}", "file://{}", "{}/"])
    def test_file_has_the_columns_that_readers_know_and_the_time_in_utc(self, tmp_path, form):
        directory = tmp_path / "NEW" / "er"
        folder = DeadLetterFolder(form.format(directory), "c", FileLineOffset, None)
        before = dt.datetime.now(dt.UTC)

        folder.write(FileLineOffset("a/b", 1), FileLineOffset("a/b", 2), [self.BAD], "app")

        file = directory / "c" / "a%2Fb%3A1.parquet"
        table = pq.read_table(file)
        assert table.schema.equals(SCHEMA)
        (row,) = table.to_pylist()
        assert before <= row.pop("at") <= dt.datetime.now(dt.UTC)
        assert row == {
            "channel": "c", "position": None, "first_position": "a/b:1", "last_position": "a/b:2", "row": 7,
            "column": None, "reason": "bad", "payload": b"raw", "application": "app", "key": None,
            "headers": [],
        }  # fmt: skip
        assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"
        assert row_gate.read_letters(str(directory)) == [b"raw"]

    @pytest.mark.parametrize("letter", ["日", "😀"])
    def test_long_names_of_other_scripts_and_dots_are_no_hindrance(self, tmp_path, letter):
        """A channel is named by its partition, and a token by its file."""
        channel = f"d_s/{letter * 40}"
        for file in (f"{letter * 55}%41.csv", ".hidden"):
            start, end = FileLineOffset(file, 1), FileLineOffset(file, 9)
            bad = DeadLetter(start, 0, None, "because", b"{}")
            DeadLetterFolder(str(tmp_path), channel, FileLineOffset, None).write(start, end, [bad], "app")
            assert _put_aside(tmp_path) == [str(start)]
            DeadLetterFolder(str(tmp_path), channel, FileLineOffset, None).pass_by(start, end)
            assert _put_aside(tmp_path) == []

    def test_write_is_hidden_until_it_is_whole_and_one_that_fails_is_named_and_leaves_nothing(
        self, tmp_path, monkeypatch
    ):
        hidden = []

        def full(_):
            hidden.extend(file.name[0] for file in (tmp_path / "c").iterdir())
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(row_gate.os, "fsync", full)

        with pytest.raises(errors.DeadLetterError, match="space"):
            self.write(tmp_path, "3")
        assert (hidden, list((tmp_path / "c").iterdir())) == (["."], [])
        (tmp_path / "file").write_text("")
        with pytest.raises(errors.DeadLetterError, match="file'"):
            self.write(tmp_path / "file", "1")

    def test_object_store_is_given_the_whole_file_under_its_name(self, monkeypatch):
        store, asked = fs._MockFileSystem(), []

        def from_uri(uri):
            asked.append(uri)
            return store, "bucket/BOX/"

        known = SimpleNamespace(
            FileSystem=SimpleNamespace(from_uri=from_uri), FileSelector=fs.FileSelector,
            LocalFileSystem=fs.LocalFileSystem,
        )  # fmt: skip
        monkeypatch.setattr(row_gate, "fs", known)

        self.write("s3://bucket/BOX/", "3")

        assert asked == ["s3://bucket/BOX/"]
        with store.open_input_file("bucket/BOX/c/3.parquet") as file:
            assert pq.read_table(file)["payload"].to_pylist() == [b"raw"]

    @pytest.mark.parametrize(
        ("committed", "left"), [(IntegerOffset(4), ["11.parquet", "4.parquet"]), (None, ["11.parquet"])]
    )
    def test_files_are_cleared_away_in_the_order_of_positions_and_only_behind_the_committed_one(
        self, tmp_path, committed, left
    ):
        for start in ("4", "5", "9", "10", "11"):
            self.write(tmp_path, start)
        folder = DeadLetterFolder(str(tmp_path), "c", IntegerOffset, committed)
        folder.pass_by(IntegerOffset(4), IntegerOffset(10))
        assert self.names(tmp_path) == left
