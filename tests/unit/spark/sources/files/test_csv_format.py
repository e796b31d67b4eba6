import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.spark.sources.files.csv_format import CsvReader, whole_records
from airflow_provider_snowpipe.spark.sources.files.spec import Csv
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    EncodingError,
    SourcePositionError,
)
from tests.unit.spark.sources.files.conftest import listed, rows_after

VALUE = st.text(st.sampled_from('ab ,;"\n\t\\é'), max_size=6)
ROWS = st.lists(st.tuples(VALUE, VALUE, VALUE), min_size=1, max_size=20)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("csv") / "x.csv"


def _read(reader, path, content, line=0, **options):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return rows_after(reader, listed(path), line, **options)


@settings(max_examples=40, deadline=None)
@given(
    rows=ROWS,
    end=st.sampled_from(["\n", "\r\n"]),
    blank=st.booleans(),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    read_bytes=st.integers(1, 60),
)
def test_records_are_those_of_another_csv_library_wherever_reading_begins(
    path, rows, end, blank, quoting, read_bytes
):
    out = io.StringIO()
    writer = csv.writer(out, lineterminator=end, quoting=quoting)
    writer.writerow(["A", "B", "C"])
    for row in rows:
        writer.writerow(row)
        if blank:
            out.write(end)
    expected = [dict(zip("ABC", row, strict=True)) for row in rows]

    reader = CsvReader(Csv(null_values=()))
    for line in range(len(rows)):
        found = _read(reader, path, out.getvalue(), line)
        assert found == list(enumerate(expected, start=1))[line:]
    chunks = list(whole_records(listed(path), 0, Csv(), read_bytes=read_bytes))
    assert sum(len(chunk.ends) for chunk in chunks) == len(rows) + 1


@pytest.mark.parametrize(
    ("options", "content", "expected"),
    [
        ({}, 'A,B\n1,""\n,x\n', [{"A": "1", "B": ""}, {"A": None, "B": "x"}]),
        ({"null_values": ("\\N", "")}, 'A,B\n\\N,"\\N"\n', [{"A": None, "B": None}]),
        ({"null_values": ()}, "A,B\n,x\n", [{"A": "", "B": "x"}]),
        ({}, "\ufeffA,B\n1,2\n", [{"A": "1", "B": "2"}]),
        ({}, 'A,"B ""x"""\n1,2', [{"A": "1", 'B "x"': "2"}]),
        ({}, "A,B\n007,1e400\n1.10,true\n", [{"A": "007", "B": "1e400"}, {"A": "1.10", "B": "true"}]),
        ({"header": False, "column_names": ("X", "Y")}, "1,2\n", [{"X": "1", "Y": "2"}]),
        ({"column_names": ("X", "Y")}, "A,B\n1,2\n", [{"X": "1", "Y": "2"}]),
        ({"columns": ("B",)}, "A,B\n1,2\n", [{"B": "2"}]),
        (
            {"delimiter": "\t", "quote": "", "escape": ""},
            'A\tB\n5" pipe\t"x\n',
            [{"A": '5" pipe', "B": '"x'}],
        ),
        (
            {"delimiter": "|", "quote": "'", "escape": "\\"},
            "A|B\n'a|\n''b'|c\\|d\n",
            [{"A": "a|\n'b", "B": "c|d"}],
        ),
        (
            {"delimiter": ",", "quote": '"', "escape": "\\"},
            'A,B\na\\\nb,"\\"x"\n',
            [{"A": "a\nb", "B": '"x'}],
        ),
        ({"delimiter": ",", "quote": '"', "escape": "\\"}, 'A,B\n"\\\\","x"\n', [{"A": "\\", "B": "x"}]),
        ({}, "A,B\r\n\r\n1,2\r\n\r\n\n3,4", [{"A": "1", "B": "2"}, {"A": "3", "B": "4"}]),
        ({}, "A,B\n", []),
        ({}, "A,B", []),
        ({"column_names": ("X", "Y")}, "A,B", []),
    ],
)
def test_dialects_names_and_nulls(path, options, content, expected):
    assert _read(CsvReader(Csv(**options)), path, content) == list(enumerate(expected, start=1))


@pytest.mark.parametrize(
    ("written", "rows"),
    [
        (b'A\n1\n"two\n', 1),
        (b'A\n1\n"two\nlines', 1),
        (b'A\n1\n"two\nlines"', 1),
        (b'A\n1\n"two\nlines"\n', 2),
        (b"A\n1\n2", 1),
        (b"A", 0),
        (b"", 0),
    ],
)
def test_an_unfinished_record_of_a_growing_file_waits_for_the_next_run(path, written, rows):
    assert len(_read(CsvReader(Csv()), path, written, keep_tail=False)) == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('A,B\n5" pipe,x\n', "the quote .* at byte 5 stands within a value"),
        ('A,B\n1,2\n"3,4\n', "record at byte 8 has a quote that is never closed"),
        ("A,B\n1,2\n3\n", r"record 2 has 1 value, the columns are 2"),
        ("A,B\n1,2\r3,4\n", "carriage return without a newline"),
        (b"A\n\xff\n", "records 1 to 1 are not all UTF-8"),
        ("A,,C\n1,2,3\n", "column 2 of 3 has no name"),
        ("A,a\n1,2\n", "'A' and 'a' would go to the same column"),
    ],
)
def test_what_is_no_csv_is_refused_by_file_and_position(path, content, message):
    with pytest.raises(EncodingError, match=r"x\.csv.*" + message):
        _read(CsvReader(Csv()), path, content)


@pytest.mark.parametrize("options", [{}, {"column_names": ("X", "Y")}])
@pytest.mark.parametrize("content", ["A,B\r1,2\r3,4\r", "A,B\r1,2\n3,4\n"])
def test_carriage_returns_alone_do_not_make_rows_a_part_of_the_header(path, options, content):
    with pytest.raises(EncodingError, match=r"header.*a carriage return without a newline"):
        _read(CsvReader(Csv(**options)), path, content)


def test_a_byte_order_mark_behind_the_first_record_belongs_to_its_value_wherever_reading_begins(
    path, check_every_resume
):
    path.write_text("A\n1\n\ufeff2\n\ufeff\ufeff3\n")

    rows = check_every_resume(CsvReader(Csv()), listed(path), count=3)

    assert [row["A"] for row in rows] == ["1", "\ufeff2", "\ufeff\ufeff3"]


def test_a_column_that_is_not_there_is_refused(path):
    with pytest.raises(ConfigurationError, match=r"no column 'D'.*'A', 'B'"):
        _read(CsvReader(Csv(columns=("A", "D"))), path, "A,B\n1,2\n")


def test_errors_show_no_value_of_the_file(path):
    with pytest.raises(EncodingError) as refused:
        _read(CsvReader(Csv()), path, "A,B\n1,2\nsecret-value\n")

    assert "secret-value" not in str(refused.value)
    assert refused.value.__context__ is None or refused.value.__suppress_context__


@pytest.mark.parametrize("content", ["A\n1\n2\n3\n", "A\n1\n2\n3", 'A\n"1\n\n"\n2\n\n3\n\n'])
def test_a_committed_record_that_is_not_there_is_an_error_with_evidence(path, content):
    path.write_text(content)

    assert CsvReader(Csv()).position_after(listed(path), 3).done == (not content.endswith("\n\n"))
    with pytest.raises(SourcePositionError, match=r"has 3 records in \d+ bytes, but record 4 of it"):
        CsvReader(Csv()).position_after(listed(path), 4)
