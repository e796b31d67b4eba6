import random
from typing import Any

from snowpipe_local.loading.csv_reader import CsvDialect, Fields, read_csv, split_exactly, split_fields

QUOTED = CsvDialect(quote=b'"')


def rows(fields: Fields) -> list[list[str | None]]:
    values = fields.values.to_pylist()
    return [values[first : first + count] for first, count in zip(fields.first, fields.count, strict=True)]


def read(content: bytes, width: int = 3, block: int = 7, **options: Any) -> list[dict[str, Any]]:
    """Read content that arrives in small blocks."""
    blocks = [content[start : start + block] for start in range(0, len(content), block)]
    return [row for chunk in read_csv(blocks, options, width) for row in chunk.table.to_pylist()]


def test_both_paths_split_into_the_same_fields():
    for content, dialect, expected in [
        (b"a,b\n\nc,\n", CsvDialect(), [["a", "b"], [None], ["c", None]]),
        (b"a,b\r\nc,d\r\n", CsvDialect(), [["a", "b"], ["c", "d"]]), (b'"a,1",""\n', QUOTED, [["a,1", ""]]),
        (b'"say ""hi""","x\ny"\n', QUOTED, [['say "hi"', "x\ny"]]), (b'"""",""""""\n', QUOTED, [['"', '""']]),
        (b"\\N,a\\,b,c\\\\d\n", CsvDialect(), [[None, "a,b", "c\\d"]]),
        (b"\\N\n", CsvDialect(bare_escape=b"", nulls=()), [["\\N"]]),
        (b"a||b||\n", CsvDialect(field=b"||"), [["a", "b", None]]),
        (b"a,b;c,d;", CsvDialect(record=b";"), [["a", "b"], ["c", "d"]]),
        (b" a , b\n", CsvDialect(trim=True), [["a", "b"]]),
        (b",x\n", CsvDialect(empty_is_null=False), [["", "x"]]),
        (b"a\n\n\nb\n", CsvDialect(skip_blank=True), [["a"], ["b"]]),
        (b"NULL,null\n", CsvDialect(nulls=(b"NULL",)), [[None, "null"]]),
    ]:  # fmt: skip
        fast = split_fields(content, dialect)
        assert fast is not None
        assert rows(fast) == rows(split_exactly(content, dialect, final=True)) == expected


def test_the_exact_path_reads_what_the_fast_one_leaves():
    for content, dialect, expected in [
        (b'5" pipe,6" bolt\n', QUOTED, [['5" pipe', '6" bolt']]),
        (b' "a" , "b,c"\n', CsvDialect(quote=b'"', trim=True), [["a", "b,c"]]),
        (b'"a\\"b","c\\\\"\n', CsvDialect(quote=b'"', escape=b"\\"), [['a"b', "c\\"]]),
    ]:
        assert split_fields(content, dialect) is None
        assert rows(split_exactly(content, dialect, final=True)) == expected


def test_records_are_the_same_wherever_blocks_end():
    enclosed = {"FIELD_OPTIONALLY_ENCLOSED_BY": '"', "TRIM_SPACE": True}
    for content, options in [
        (b'" Hello ", " world " , x \n"a" ,"b","c"\r\n', enclosed),
        (b'"a"||"b"||"c"\n"d" ||e||f\n', {**enclosed, "FIELD_DELIMITER": "||"}),
        (b'"a","b","c"END"d" ,e,f', {**enclosed, "RECORD_DELIMITER": "END"}),
    ]:
        expected = read(content, block=len(content), **options)
        assert len(expected) == 2
        for size in range(1, len(content)):
            assert read(content, block=size, **options) == expected, size


def test_the_fast_path_agrees_with_the_exact_one_on_random_text():
    for dialect in [
        CsvDialect(), QUOTED, CsvDialect(quote=b'"', bare_escape=b""),
        CsvDialect(quote=b'"', skip_blank=True), CsvDialect(trim=True),
        CsvDialect(field=b"ab", bare_escape=b""),
    ]:  # fmt: skip
        chooser = random.Random(7)
        parts = (b"a", b",", b"\n", b'"', b"\\", b"\r\n", b"b", b'""', b"N", "é".encode())
        compared = 0
        for _ in range(500):
            text = b"".join(chooser.choice(parts) for _ in range(chooser.randint(0, 14))) + b"\n"
            fast = split_fields(text, dialect)
            if fast is None or fast.consumed < len(text):
                continue
            exact = split_exactly(text, dialect, final=True)
            assert (rows(fast), exact.broken) == (rows(exact), {}), text
            compared += 1
        assert compared > 75


def test_a_record_with_invalid_utf8_is_broken_and_its_neighbours_are_not():
    found = read(b"a,b\nc,\xff\xfe\nd,e\n", width=2)
    assert [(row["c0"], row["x"]) for row in found] == [
        ("a", None), ("c", "Invalid UTF8 detected in string '0xFF'"), ("d", None),
    ]  # fmt: skip
    replaced = read(b"a,\xff\n", width=2, REPLACE_INVALID_CHARACTERS=True)
    assert (replaced[0]["c1"], replaced[0]["x"]) == ("\ufffd", None)
    cut = read("a,é\n".encode(), width=2, block=3, REPLACE_INVALID_CHARACTERS=True)
    assert cut[0]["c1"] == "é"


def test_a_record_of_several_lines_is_broken_without_multi_line():
    for block in [7, 100]:
        options = {"FIELD_OPTIONALLY_ENCLOSED_BY": '"', "MULTI_LINE": False, "SKIP_BLANK_LINES": True}
        found = read(b'1,"a"\n\n2,"b\nc"\n3,d\n', width=2, block=block, **options)
        assert [row["x"] for row in found] == [None, "Record delimiter found inside of a field", None]


def test_an_enclosed_field_that_does_not_end_breaks_its_record_only():
    found = read(b'a,b\n"c"x,d\ne,f\n"g', width=2, FIELD_OPTIONALLY_ENCLOSED_BY='"')
    assert [row["x"] for row in found] == [
        None, "Found character 'x' instead of field delimiter ','", None,
        "Unterminated enclosed field or missing record delimiter",
    ]  # fmt: skip


def test_positions_count_lines_of_the_file_and_characters_of_the_line():
    content = b'skip\n1,"two\nlines",3\n\xc3\xa9,b,c\n'
    (chunk,) = read_csv([content], {"FIELD_OPTIONALLY_ENCLOSED_BY": '"', "SKIP_HEADER": 1}, 3)
    second = chunk.locate(1, 1)
    assert (second.line, second.character) == (4, 3)
    assert chunk.locate(1, None).character == 1


def test_options_set_how_fields_are_read():
    quoted = {"FIELD_OPTIONALLY_ENCLOSED_BY": '"'}
    lines = b"a,b\nc,d\n"
    for content, options, expected in [
        (b'" Hello ", " world " , x \n', {**quoted, "TRIM_SPACE": True}, [[" Hello ", " world ", "x"]]),
        (b"a^,b,c\\d\n", {"ESCAPE": "^"}, [["a,b", "c\\d"]]),
        (b"a^,b,c\\d\n", {**quoted, "ESCAPE": "^"}, [["a,b", "c\\d"]]),
        (b'"a^,b",c^,d\n', {**quoted, "ESCAPE_UNENCLOSED_FIELD": "^"}, [["a^,b", "c,d"]]),
        (lines, {"FIELD_DELIMITER": None, "ESCAPE_UNENCLOSED_FIELD": None}, [["a,b"], ["c,d"]]),
        (lines, {"FIELD_DELIMITER": None, "RECORD_DELIMITER": None}, [["a,b\nc,d\n"]]),
        ("grün,ß\n".encode("iso-8859-1"), {"ENCODING": "ISO88591"}, [["grün", "ß"]]),
        ("Ж,2\n".encode("koi8-r"), {"ENCODING": "KOI8R"}, [["Ж", "2"]]),
        ("é,2\n".encode("utf-16-le"), {"ENCODING": "UTF-16LE"}, [["é", "2"]]),
        (b"\xef\xbb\xbfa,b\n", {}, [["a", "b"]]),
    ]:
        found = read(content, len(expected[0]), 100, **options)
        assert [[row[f"c{n}"] for n in range(len(expected[0]))] for row in found] == expected
