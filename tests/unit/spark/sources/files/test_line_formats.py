"""Lines of text and JSON, and records of CSV: which rows they are, wherever reading begins."""

import csv
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.spark.sources.files import line_format
from airflow_provider_snowpipe.spark.sources.files.csv_format import CsvReader, whole_records
from airflow_provider_snowpipe.spark.sources.files.spec import Csv, Ndjson, SourceFile, Text
from airflow_provider_snowpipe.streaming.errors import EncodingError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset
from tests.unit.spark.sources.files.conftest import check_every_resume, listed, rows_after


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("lines") / "x.log"


def _file(path, content, values=()):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return SourceFile(path.name, str(path), path.stat().st_size, values)


LINE = st.one_of(
    st.sampled_from([b"", b"\r", b" ", b"\t \r", b'{"a":1}', b'  {"a":2}', b'{"a":"x"}\r', b"\xc3\xa9"]),
    st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b"")),
)
CONTENT = st.tuples(st.lists(LINE, max_size=30), st.booleans()).map(
    lambda made: b"\n".join(made[0]) + (b"\n" if made[1] and made[0] else b"")
)
SIZES = st.integers(min_value=3, max_value=50)


def _lines(content):
    """All lines by the plainest means: (number, text, terminated)."""
    pieces = content.split(b"\n")
    lines = [(number, text, True) for number, text in enumerate(pieces[:-1], start=1)]
    return [*lines, (len(pieces), pieces[-1], False)] if pieces[-1] else lines


def _is_row(text):
    return bool(text.strip(b" \t\r"))


def _blocks(file, after=0, **options):
    given = {"keep_tail": True, "max_bytes": 20, "max_rows": 5, "read_bytes": 16, **options}
    offset = line_format.position_after_line(file, after, read_bytes=given["read_bytes"]).offset
    return list(line_format.row_blocks(file, after_line=after, offset=offset, **given))


class TestLines:
    @settings(max_examples=80, deadline=None)
    @given(
        content=CONTENT, read=SIZES, most=SIZES, rows=st.integers(1, 8), keep=st.booleans(), data=st.data()
    )
    def test_are_the_same_rows_with_any_block_size_and_after_any_resume(
        self, path, content, read, most, rows, keep, data
    ):
        content = content.removeprefix(b"\xef\xbb\xbf")
        file, lines = _file(path, content), _lines(content)
        after = data.draw(st.integers(0, len(lines)))
        behind = [one for one in lines if one[0] > after]
        expected = [(number, text) for number, text, ended in behind if _is_row(text) and (ended or keep)]

        blocks = _blocks(file, after, keep_tail=keep, max_bytes=most, max_rows=rows, read_bytes=read)

        sent = [text for block in blocks for text in bytes(block.body).split(b"\n") if _is_row(text)]
        assert sent == [text for _, text in expected]
        assert sum(block.rows for block in blocks) == len(expected)
        assert all(0 < block.rows <= rows for block in blocks)
        assert all(len(block.body) <= most or block.rows == 1 for block in blocks)
        assert (blocks[-1].last_line if blocks else None) == (expected[-1][0] if expected else None)
        previous = FileLineOffset("x.log", after)
        for block in blocks:
            assert FileLineOffset("x.log", block.first_line).follows(previous)
            assert block.last_line >= block.first_line
            assert block.end == line_format.position_after_line(file, block.last_line).offset
            previous = FileLineOffset("x.log", block.last_line)

        end = line_format.position_after_line(file, len(lines), read_bytes=read)
        assert (end.offset, end.done) == (len(content), bool(lines))
        beyond = len(lines) + data.draw(st.integers(1, 5))
        with pytest.raises(SourcePositionError, match=f"has {len(lines)} line.*but line {beyond} of it"):
            line_format.position_after_line(file, beyond, read_bytes=read)

    def test_of_what_was_listed_are_read(self, path, tmp_path):
        (block,) = _blocks(SourceFile("x.log", _file(path, b"1\n2\n3\n").path, 4))
        assert bytes(block.body) == b"1\n2\n"
        path.write_bytes(b"1\n23\n")
        for size, word in ((3, "grew"), (9, "shrank")):
            with pytest.raises(SourcePositionError, match=word):
                _blocks(SourceFile("x.log", str(path), size))
        with pytest.raises(SourcePositionError, match="opened"):
            line_format.position_after_line(SourceFile("gone.log", str(tmp_path / "gone.log"), 9), 1)

    def test_of_control_characters_at_the_end_are_rows_of_their_own(self, path):
        for control in (b"\x00", b"\x01\x02", b"\x1a", b"\x0b\x0c", b" \x1f\t"):
            for end in (b"", b"\n", b"\r\n", b"\n\n \n"):
                (first, last) = _blocks(_file(path, b"{}\n" + control + end), max_rows=1)
                assert (bytes(first.body), bytes(last.body).rstrip(b"\r\n")) == (b"{}\n", control)
                assert (last.first_line, last.last_line, last.rows) == (2, 2, 1)

    def test_of_text_are_rows_of_a_column_as_many_as_are_counted(self, path):
        for content, lines in [
            (b"one\ntwo\n", ["one", "two"]),
            (b"one\n\n \r\n\ttwo \n", ["one", " ", "\ttwo "]),
            (b'say "hi" \\ \x01\n', ['say "hi" \\ \x01']),
            ("é — 日本\n".encode(), ["é — 日本"]),
            (b"\r\r\na\rb\n\r\n\r", ["\r", "a\rb"]),
            (b"one\n\x00\x00\n\t \r\n\x1a", ["one", "\x00\x00", "\t ", "\x1a"]),
            (b" \x03 \n\x0b", [" \x03 ", "\x0b"]),
            (b"\x01\n\n\x02\r\n \t\n", ["\x01", "\x02", " \t"]),
            ("\ufeffone\n\ufefftwo\n".encode(), ["one", "\ufefftwo"]),
        ]:
            rows = rows_after(line_format.LineReader(Text(column="LINE")), _file(path, content), 0)
            assert [row for _, row in rows] == [{"LINE": line} for line in lines]

    def test_of_text_in_other_encodings_are_refused_with_file_and_lines(self, path):
        with pytest.raises(EncodingError, match=r"'x\.log'.*UTF-8"):
            rows_after(line_format.LineReader(Text()), _file(path, "é\n".encode("latin-1")), 0)


class TestPartitionValuesInJson:
    def blocks(self, file):
        reader = line_format.LineReader(Ndjson())
        return list(reader.blocks(file, after_line=0, offset=0, keep_tail=True, limits=BatchLimits()))

    def test_are_put_in_front_of_the_fields_of_each_object(self, path):
        added = {"day": 'a\\1"é', "n": None}
        content = b'{"a": 1}\r\n\n \t{ "b": "{\\"c\\"" }\n{}\n{ }\n[{"x": 1}]\n{"a":"day\xc3\xa9"}'
        blocks = self.blocks(_file(path, content, tuple(added.items())))
        lines = b"".join(block.body for block in blocks).splitlines()
        objects = [{"a": 1}, {"b": '{"c"'}, {}, {}, None, {"a": "dayé"}]
        expected = [[{"x": 1}] if one is None else {**added, **one} for one in objects]
        assert [json.loads(line) for line in lines if line.strip()] == expected
        assert [(block.rows, block.last_line) for block in blocks] == [(5, 6), (1, 7)]

    def test_are_refused_where_a_record_has_such_a_column_of_its_own(self, path):
        for line in [
            '{"a": 1, "day": "2024-01-02"}',
            '{"DAY" : null}',
            '{"x": {"day": 1}, "d\\u0061y": 2}',
            '{"a": 1, "größe": 3}',
        ]:
            content = f'\n{{"x": {{"day": 1}}, "y": "day"}}\n{line}\n'
            with pytest.raises(EncodingError, match=r"line 3.*'(day|DAY|größe)'.*as_columns"):
                self.blocks(_file(path, content, (("day", "1"), ("Größe", "2"))))


def _records(path, content, line=0, *, keep_tail=True, **options):
    return rows_after(CsvReader(Csv(**options)), _file(path, content), line, keep_tail=keep_tail)


VALUE = st.text(st.sampled_from('ab ,;"\n\t\\é'), max_size=6)
SPECIAL = {"delimiter": ",", "quote": '"', "escape": "\\"}


class TestCsv:
    @settings(max_examples=40, deadline=None)
    @given(
        rows=st.lists(st.tuples(VALUE, VALUE, VALUE), min_size=1, max_size=20),
        end=st.sampled_from(["\n", "\r\n"]),
        blank=st.booleans(),
        quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
        read_bytes=st.integers(1, 60),
    )
    def test_has_the_records_of_another_library_wherever_reading_begins(
        self, path, rows, end, blank, quoting, read_bytes
    ):
        out = io.StringIO()
        writer = csv.writer(out, lineterminator=end, quoting=quoting)
        writer.writerow(["A", "B", "C"])
        for row in rows:
            writer.writerow(row)
            out.write(end * blank)
        expected = [dict(zip("ABC", row, strict=True)) for row in rows]

        for line in range(len(rows)):
            found = _records(path, out.getvalue(), line, null_values=())
            assert found == list(enumerate(expected, start=1))[line:]
        chunks = list(whole_records(listed(path), 0, Csv(), read_bytes=read_bytes))
        assert sum(len(chunk.ends) for chunk in chunks) == len(rows) + 1

    def test_has_dialects_names_and_nulls(self, path):
        for options, content, expected in [
            ({}, 'A,B\n1,""\n,x\n', [{"A": "1", "B": ""}, {"A": None, "B": "x"}]),
            ({"null_values": ("\\N", "")}, 'A,B\n\\N,"\\N"\n', [{"A": None, "B": None}]),
            ({}, "\ufeffA,B\n1,2\n", [{"A": "1", "B": "2"}]),
            ({}, "A,B\n007,1e400\n1.10,true\n", [{"A": "007", "B": "1e400"}, {"A": "1.10", "B": "true"}]),
            ({"header": False, "column_names": ("X", "Y")}, "1,2\n", [{"X": "1", "Y": "2"}]),
            ({"column_names": ("X", "Y")}, "A,B\n1,2\n", [{"X": "1", "Y": "2"}]),
            (
                {"delimiter": "\t", "quote": "", "escape": ""},
                *('A\tB\n5" pipe\t"x\n', [{"A": '5" pipe', "B": '"x'}]),
            ),
            (
                {"delimiter": "|", "quote": "'", "escape": "\\"},
                *("A|B\n'a|\n''b'|c\\|d\n", [{"A": "a|\n'b", "B": "c|d"}]),
            ),
            (SPECIAL, 'A,B\na\\\nb,"\\"x"\n', [{"A": "a\nb", "B": '"x'}]),
            ({}, "A,B\r\n\r\n1,2\r\n\r\n\n3,4", [{"A": "1", "B": "2"}, {"A": "3", "B": "4"}]),
            ({"column_names": ("X", "Y")}, "A,B", []),
        ]:
            assert _records(path, content, **options) == list(enumerate(expected, start=1))

    def test_that_grows_keeps_an_unfinished_record_for_the_next_run(self, path):
        for written, rows in [(b'A\n1\n"two\n', 1), (b'A\n1\n"two\nlines"\n', 2), (b"A\n1\n2", 1), (b"", 0)]:
            assert len(_records(path, written, keep_tail=False)) == rows

    def test_that_is_none_is_refused_by_file_and_position_without_a_value(self, path):
        for content, message in [
            ('A,B\n5" pipe,x\n', "the quote .* at byte 5 stands within a value"),
            ('A,B\n1,2\n"3,4\n', "record at byte 8 has a quote that is never closed"),
            ("A,B\n1,2\nsecret\n", r"record 2 has 1 value, the columns are 2"),
            ("A,B\n1,2\r3,4\n", "carriage return without a newline"),
            ("A,B\r1,2\r3,4\r", "header.*carriage return without a newline"),
            (b"A\n\xff\n", "records 1 to 1 are not all UTF-8"),
            ("A,,C\n1,2,3\n", "column 2 of 3 has no name"),
            ("A,a\n1,2\n", "'A' and 'a' would go to the same column"),
        ]:
            with pytest.raises(EncodingError, match=r"x\.log.*" + message) as refused:
                _records(path, content)
            assert "secret" not in str(refused.value)
            assert refused.value.__context__ is None or refused.value.__suppress_context__
            if "header" in message:
                with pytest.raises(EncodingError, match=message):
                    _records(path, content, column_names=("X", "Y"))

    def test_keeps_a_byte_order_mark_behind_the_first_record_wherever_reading_begins(self, path):
        file = _file(path, "A\n1\n\ufeff2\n\ufeff\ufeff3\n")
        rows = check_every_resume(CsvReader(Csv()), file, count=3)
        assert [row["A"] for row in rows] == ["1", "\ufeff2", "\ufeff\ufeff3"]

    @pytest.mark.parametrize("content", ["A\n1\n2\n3\n", "A\n1\n2\n3", 'A\n"1\n\n"\n2\n\n3\n\n'])
    def test_without_a_committed_record_is_an_error_with_evidence(self, path, content):
        file = _file(path, content)
        assert CsvReader(Csv()).position_after(file, 3).done == (not content.endswith("\n\n"))
        with pytest.raises(SourcePositionError, match=r" 3 .* 4 "):
            CsvReader(Csv()).position_after(file, 4)
