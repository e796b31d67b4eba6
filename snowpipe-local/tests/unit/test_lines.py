from hypothesis import given
from hypothesis import strategies as st
from snowpipe_local.engine.lines import arrow_lines, split_lines


def test_empty_lines_are_no_rows_and_bad_ones_are_rejected_one_by_one():
    for body, rows in [
        (b"", []), (b"\n\n", []), (b"{}", ["{}"]), (b'{"a":1}\n\n{"a":2}\n', ['{"a":1}', '{"a":2}']),
        (b'\n\r\n{"a":1}\r\n\r\n{"a":2}', ['{"a":1}', '{"a":2}']), ('{"a":"ü"}\n'.encode(), ['{"a":"ü"}']),
    ]:  # fmt: skip
        lines = split_lines(body)
        assert lines.parsed == len(rows)
        assert [line.strip() for line in arrow_lines([lines])["l"].to_pylist()] == rows
    lines = split_lines(b'{"a":1}\n\n{"a":"\xff"}\n{"a":3}\n')
    assert [line.strip() for line in arrow_lines([lines])["l"].to_pylist()] == ['{"a":1}', '{"a":3}']
    assert [(line.row, line.payload) for line in lines.rejected] == [(1, b'{"a":"\xff"}')]
    assert lines.parsed == 3
    for opening in [b"[", b'{"a":', b"[[],"]:
        deep = b'{"v":' + opening * 10_001 + b"1" + (b"}" if opening[:1] == b"{" else b"]") * 10_001 + b"}"
        text = b'{"v":"' + b"[" * 30_000 + b'\\""}'
        lines = split_lines(b"\n".join([b'{"v":1}', deep, text]))
        assert lines.body == b'{"v":1}\n' + text + b"\n"
        assert [(line.row, line.reason) for line in lines.rejected] == [
            (1, "the row is nested more than 10000 levels deep")
        ]


@given(st.lists(st.lists(st.text(alphabet="ab{ü\r", max_size=5), max_size=5), min_size=1, max_size=4))
def test_rows_of_joined_appends_are_those_of_each_append(appends):
    parts = [split_lines("\n".join(lines).encode()) for lines in appends]
    joined = arrow_lines(parts)["l"].to_pylist()
    expected = [line for lines in appends for line in lines if line not in ("", "\r")]
    assert [line.lstrip("\r\n").rstrip("\n") for line in joined] == [line.lstrip("\r") for line in expected]
    assert sum(part.parsed for part in parts) == len(expected)
