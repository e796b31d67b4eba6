"""Files of lines, combined and cut: every line once, in order, whatever the cuts."""

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.spark.driver import combine_lines
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError

# Any bytes but a line's end, and but the first one of a byte order mark, which no new file has.
_LINES = st.binary(max_size=40).map(lambda line: line.translate(None, b"\n\xef"))


def written(folder, texts):
    files = []
    for name, text in texts.items():
        (folder / name).write_bytes(text)
        kind = "gzip" if name.endswith(".gz") else "none"
        files.append(combine_lines.LineFile(str(folder / name), len(text), kind, kind == "none"))
    return files


def combined(files, folder, target, header=None):
    made = []
    for number, slices in enumerate(combine_lines.cut_lines(files, target, 1.0)):
        file = combine_lines.combine(slices, folder / f"{number}.gz", header)
        made.append(gzip.decompress((folder / file.name).read_bytes()))
        assert file.rows == made[-1].count(b"\n") - (header is not None)
    return made


@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(st.lists(_LINES, min_size=1, max_size=30), min_size=1, max_size=6),
    target=st.integers(1, 300),
)
def test_every_line_is_there_once_and_in_order(tmp_path_factory, texts, target):
    folder = tmp_path_factory.mktemp("lines")
    contents = {f"{number:02}": b"\n".join(lines) for number, lines in enumerate(texts)}
    files = [file for file in written(folder, contents) if file.size]
    whole = b"".join(text + (b"" if text.endswith(b"\n") else b"\n") for text in contents.values() if text)
    assert b"".join(combined(files, folder, target)) == whole


def test_new_files_have_about_the_target_and_large_ones_are_cut(tmp_path):
    line = b"x" * 99 + b"\n"
    files = written(tmp_path, {"a": line * 4_500, **{f"b{n:03}": line * 5 for n in range(300)}})
    sizes = [len(text) for text in combined(files, tmp_path, 100_000)]
    assert len(sizes) == 6
    assert 66_000 < min(sizes) <= max(sizes) < 150_000
    even = [combine_lines.LineFile(str(number), 100, "none", False) for number in range(6)]
    assert [len(one) for one in combine_lines.cut_lines(even, 200, 1.0)] == [2, 2, 2]
    one = combine_lines.cut_lines([combine_lines.LineFile("a", 1_000, "none", True)], 200, 0.5)
    assert [[(piece.start, piece.end) for piece in cut] for cut in one] == [[(0, 500)], [(500, 1_000)]]


@pytest.mark.parametrize("read_bytes", [5, 1 << 20])
def test_each_new_file_begins_with_the_header_and_has_no_other(tmp_path, monkeypatch, read_bytes):
    monkeypatch.setattr(combine_lines, "_READ_BYTES", read_bytes)
    bodies = [b"%d,x\n" % n * 50 for n in range(6)]
    files = written(tmp_path, {f"{n}": b"id,name\r\n" + body for n, body in enumerate(bodies)})
    made = combined(files, tmp_path, 500, combine_lines.header_of(files[0]))
    assert len(made) > 1
    assert all(text.startswith(b"id,name\n") and text.count(b"name") == 1 for text in made)
    assert b"".join(text.partition(b"\n")[2] for text in made) == b"".join(bodies)


def test_another_header_or_a_file_that_changed_since_it_was_listed_is_refused(tmp_path):
    files = written(tmp_path, {"a": b"id,name\n1,x\n", "b": b"name,id\nx,1\n"})
    (slices,) = combine_lines.cut_lines(files, 10_000, 1.0)
    with pytest.raises(ConfigurationError, match="b'name,id'"):
        combine_lines.combine(slices, tmp_path / "x.gz", b"id,name")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    (tmp_path / "a").write_bytes(b"1\n2\n")
    with pytest.raises(SourcePositionError, match=r"12 bytes.* 4 "):
        combine_lines.combine([combine_lines.LineSlice(files[0], 0, 12)], tmp_path / "x.gz", None)


def test_the_ratio_is_measured_on_what_is_not_compressed(tmp_path):
    files = written(tmp_path, {"a": b'{"a": 1}\n' * 10_000, "b.gz": gzip.compress(b"x")})
    assert 0 < combine_lines.sampled_ratio(files) < 0.1
    assert combine_lines.sampled_ratio(files[1:]) == 0.25


def test_a_byte_order_mark_is_in_no_line(tmp_path):
    mark = b"\xef\xbb\xbf"
    texts = {"a": mark + b"id\n1\n", "b.gz": gzip.compress(mark + b"id\n2\n"), "c": b"id\n3"}
    files = written(tmp_path, texts)
    assert combined(files, tmp_path, 10_000, combine_lines.header_of(files[0])) == [b"id\n1\n2\n3\n"]
    assert combined(files, tmp_path, 10_000) == [b"id\n1\nid\n2\nid\n3\n"]
