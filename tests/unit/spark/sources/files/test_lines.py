import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.spark.sources.files.line_format import position_after_line, row_blocks
from airflow_provider_snowpipe.spark.sources.files.spec import SourceFile
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset

LINE = st.one_of(
    st.sampled_from([b"", b"\r", b" ", b"\t \r", b'{"a":1}', b'  {"a":2}', b'{"a":"x"}\r', b"\xc3\xa9"]),
    st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b"")),
)
CONTENT = st.tuples(st.lists(LINE, max_size=30), st.booleans()).map(
    lambda made: b"\n".join(made[0]) + (b"\n" if made[1] and made[0] else b"")
)
SIZES = st.integers(min_value=3, max_value=50)


def _file(path, content):
    path.write_bytes(content)
    return SourceFile(path.name, str(path), len(content))


def _lines(content):
    """All lines by the plainest means: (number, text, terminated)."""
    pieces = content.split(b"\n")
    lines = [(number, text, True) for number, text in enumerate(pieces[:-1], start=1)]
    return [*lines, (len(pieces), pieces[-1], False)] if pieces[-1] else lines


def _is_row(text):
    return bool(text.strip(b" \t\r"))


def _blocks(file, *, after=0, keep_tail=True, max_bytes=20, max_rows=5, read_bytes=16):
    offset = position_after_line(file, after, read_bytes=read_bytes).offset
    return list(
        row_blocks(
            file,
            after_line=after,
            offset=offset,
            keep_tail=keep_tail,
            max_bytes=max_bytes,
            max_rows=max_rows,
            read_bytes=read_bytes,
        )
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("lines") / "x.log"


@settings(max_examples=80, deadline=None)
@given(content=CONTENT, read=SIZES, most=SIZES, rows=st.integers(1, 8), keep=st.booleans(), data=st.data())
def test_any_block_size_and_any_resume_give_the_same_rows_in_order(
    path, content, read, most, rows, keep, data
):
    content = content.removeprefix(b"\xef\xbb\xbf")
    file = _file(path, content)
    lines = _lines(content)
    after = data.draw(st.integers(0, len(lines)))
    expected = [
        (number, text)
        for number, text, ended in lines
        if number > after and _is_row(text) and (ended or keep)
    ]

    blocks = _blocks(file, after=after, keep_tail=keep, max_bytes=most, max_rows=rows, read_bytes=read)

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
        assert block.end == position_after_line(file, block.last_line).offset
        previous = FileLineOffset("x.log", block.last_line)


@settings(max_examples=20, deadline=None)
@given(content=CONTENT, read=SIZES, beyond=st.integers(1, 5))
def test_committed_line_behind_the_end_is_an_error_with_evidence(path, content, read, beyond):
    file = _file(path, content)
    have = len(_lines(content))

    with pytest.raises(
        SourcePositionError, match=f"has {have} line.*but line {have + beyond} of it is committed"
    ):
        position_after_line(file, have + beyond, read_bytes=read)


def test_what_is_read_is_what_was_listed(path, tmp_path):
    path.write_bytes(b"1\n2\n3\n")
    assert [bytes(block.body) for block in _blocks(SourceFile("x.log", str(path), 4))] == [b"1\n2\n"]
    path.write_bytes(b"1\n23\n")
    for size, word in ((3, "grew"), (9, "shrank")):
        with pytest.raises(SourcePositionError, match=word):
            _blocks(SourceFile("x.log", str(path), size))
    with pytest.raises(SourcePositionError, match="opened"):
        position_after_line(SourceFile("gone.log", str(tmp_path / "gone.log"), 9), 1)


def test_control_characters_at_the_end_are_a_row_of_their_own(path):
    for control in (b"\x00", b"\x01\x02", b"\x1a", b"\x0b\x0c", b" \x1f\t"):
        for end in (b"", b"\n", b"\r\n", b"\n\n \n"):
            (first, last) = _blocks(_file(path, b"{}\n" + control + end), max_rows=1)

            assert (bytes(first.body), bytes(last.body).rstrip(b"\r\n")) == (b"{}\n", control)
            assert (last.first_line, last.last_line, last.rows) == (2, 2, 1)
