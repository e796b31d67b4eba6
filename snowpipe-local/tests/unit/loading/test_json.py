import json
from typing import Any

from snowpipe_local.loading.chunks import read_json


def read(content: bytes, block: int = 9, **options: Any) -> list[tuple[Any, str | None]]:
    """Read content that arrives in small blocks; each record as value and reason."""
    blocks = [content[start : start + block] for start in range(0, len(content), block)]
    found = []
    for chunk in read_json(blocks, options):
        for row in chunk.table.to_pylist():
            try:
                value = json.loads(row["l"] or "null")
            except ValueError:
                value = "broken"
            found.append((row["i"], value, row["x"]))
    assert [number for number, _, _ in found] == list(range(len(found)))
    return [(value, reason) for _, value, reason in found]


def test_documents_are_found_however_they_are_laid_out():
    for block in [1, 9, 1000]:
        for content, options, expected in [
            (b'{"a":1}\n\n{"a":2}\r\n{"a":3}', {}, [{"a": 1}, {"a": 2}, {"a": 3}]),
            (b'{"a":1}{"a":2}\n {"a":3}', {}, [{"a": 1}, {"a": 2}, {"a": 3}]),
            (b'{\n "a": "}\\"{",\n "b": [1]}\n{"c":{}}', {}, [{"a": '}"{', "b": [1]}, {"c": {}}]),
            (b'[{"a":1},\n {"b":[2]}]', {"STRIP_OUTER_ARRAY": True}, [{"a": 1}, {"b": [2]}]),
            (b'[{"a":1},\n {"b":[2]}]', {}, [[{"a": 1}, {"b": [2]}]]), (b'1\n"x"\n', {}, [1, "x"]),
            (b"", {}, []),
        ]:  # fmt: skip
            assert read(content, max(block, 16), **options) == [(value, None) for value in expected]


def test_fields_that_are_null_are_stripped_at_every_depth():
    for document, stripped in [
        (b'{"a":null,"b":null,"c":123}', '{"c":123}'),
        (b'{"a":[1,{"x":null}],"b":{"x":null,"y":8.10}}', '{"a":[1,{}],"b":{"y":8.10}}'),
        (b'[{"x": null, "y": ":null"}]', '[{"y":":null"}]'), (b'{"a":1 null}', '{"a":1 null}'),
        (b"null", "null"),
    ]:  # fmt: skip
        (chunk,) = read_json([document], {"STRIP_NULL_VALUES": True})
        assert [text.strip() for text in chunk.table["l"].to_pylist()] == [stripped]


def test_the_last_field_of_a_name_counts_where_that_is_allowed():
    document = b'{"a": 1, "b": {"c": null, "c": [2, {}]}, "a": {"a":3}}'
    (chunk,) = read_json([document], {"ALLOW_DUPLICATE": True})
    assert chunk.table["l"].to_pylist() == ['{"a":{"a":3},"b":{"c":[2,{}]}}']


def test_a_document_of_several_lines_is_broken_without_multi_line():
    found = read(b'{\n"a":1}{"a":2}\n{"a":\n3}', 1000, MULTI_LINE=False)
    reason = "Error parsing JSON: a line ends inside of the record"
    assert found == [(None, reason), ({"a": 2}, None), (None, reason)]


def test_invalid_characters_are_replaced_by_unicode_s_own():
    for option in ("REPLACE_INVALID_CHARACTERS", "IGNORE_UTF8_ERRORS"):
        assert read(b'{"a":"\xff"}\n', 1000, **{option: True}) == [({"a": "\ufffd"}, None)]


def test_a_broken_line_spoils_no_other():
    found = read(b'{"a":1}\n{"a":\n{"a":"\xff"}\n{"a":2}\n', 1000)
    assert [value for value, _ in found] == [{"a": 1}, "broken", None, {"a": 2}]
    assert found[2][1] == "Error parsing JSON: the row is not valid UTF-8"


def test_text_between_documents_is_an_error():
    found = read(b'{"a":1} {"a":2}\noops {"a":3}', 1000)
    assert [value for value, _ in found] == [{"a": 1}, {"a": 2}, None]
    assert found[2][1] == 'Error parsing JSON: oops {"a":3}'


def test_positions_count_empty_lines():
    (chunk,) = read_json([b'{"a":1}\n\n\n{"a":2}\n'], {})
    assert chunk.locate(1, None).line == 4
