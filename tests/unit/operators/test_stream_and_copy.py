"""The rows that the stream makes of a file, and those that COPY makes with the load task's options."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from snowpipe_local.errors import SqlError
from snowpipe_local.loading.chunks import read_json
from snowpipe_local.loading.csv_reader import read_csv
from snowpipe_local.sql.reader import Reader
from snowpipe_local.stages.definition import read_file_format

from airflow_provider_snowpipe.bulk.copy import CopyInto, CopyOptions
from airflow_provider_snowpipe.bulk.row_options import RowOptions
from airflow_provider_snowpipe.operators.file_loading import joined_value
from airflow_provider_snowpipe.spark.sources.files.formats import reader_of
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource, SourceFile
from airflow_provider_snowpipe.spark.submit.copy_rows import (
    copy_arguments,
    row_options,
    why_not_copy_file,
    why_rows_are_staged,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, EncodingError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import option

REFUSED = "refused"
"""The file ends the load with an error: no row is made up, none is left out in silence."""


class Mixed:
    """A file of a source, read in both ways."""

    def __init__(self, path: Path, content: bytes, block: int = 1 << 20, **source: Any) -> None:
        self.block = block
        self.spec = FileSource(path=str(path.parent), **source)
        path.write_bytes(content)
        self.file = SourceFile(path.name, str(path), len(content))
        self.content = content

    def streamed(self) -> Any:
        """The rows that reach the service; it rejects what is not a JSON object, which ends the run."""
        blocks = reader_of(self.spec.form).blocks(
            self.file, after_line=0, offset=0, keep_tail=True, limits=BatchLimits(rows=3)
        )
        try:
            lines = [
                line for block in blocks for line in bytes(block.body).split(b"\n") if line.strip(b" \t\r")
            ]
            rows = [json.loads(line) for line in lines]
        except (EncodingError, ValueError):
            return REFUSED
        return rows if all(isinstance(row, dict) for row in rows) else REFUSED

    def copied(self) -> Any:
        arguments = copy_arguments(self.spec, {})
        form = arguments["options"]["file_format"]
        written = " ".join(option(name, value) for name, value in form.items())
        options = read_file_format(Reader(written).settings())
        blocks = [self.content[low : low + self.block] for low in range(0, len(self.content), self.block)]
        if options.type == "JSON":
            rows = [row for chunk in read_json(blocks, options) for row in chunk.table.to_pylist()]
            try:
                documents = [json.loads(row["l"]) for row in rows if row["x"] is None]
            except ValueError:
                return REFUSED
            broken = any(row["x"] for row in rows) or not all(isinstance(one, dict) for one in documents)
            return REFUSED if broken else documents
        try:
            return self._records(blocks, options, arguments.get("columns"))
        except SqlError:
            return REFUSED

    def _records(self, blocks: list[bytes], options: Any, columns: list[str] | None) -> Any:
        rows = []
        for chunk in read_csv(blocks, options, len(columns or ())):
            names = columns or list(chunk.shape.names)
            for row in chunk.table.to_pylist():
                if row["x"] or row["n"] != len(names):
                    return REFUSED
                rows.append({name: row[f"c{number}"] for number, name in enumerate(names)})
        return rows

    def check(self) -> bool:
        """Whether both make rows, which then are the same; or neither, or COPY is refused."""
        if why_rows_are_staged(self.spec) or why_not_copy_file(self.spec, self.file):
            return False
        streamed, copied = self.streamed(), self.copied()
        if streamed == REFUSED:  # a load by stream ends here, whatever COPY would make of it
            return False
        assert copied == streamed, (self.content, self.spec)
        return True


NAMES = ("A", "B")
TEXT = ["a", "b", " ", "\t", "\\", "\\N", "NULL", '"', ",", "é", "\x00", "\x1a", "", "", "'", "\\n"]
ENDS = ["\n", "\r\n", "\n\n", "\r\n\r\n", "\n \n", "\n\t\r\n"]
NULLS: list[tuple[str, ...]] = [("",), (), ("NULL",), ("", "NULL"), ("\\N", "")]


def _text(chance: random.Random) -> tuple[str, dict[str, Any]]:
    lines = ("".join(chance.choices(TEXT, k=chance.randint(0, 4))) + chance.choice(ENDS) for _ in range(8))
    return "".join(lines), {"format": "text"}


def _csv(chance: random.Random) -> tuple[str, dict[str, Any]]:
    delimiter, quote = chance.choice([",", ";", "\t"]), chance.choice(['"', '"', "'", ""])
    escape = chance.choice(["", "", "\\"])
    header = chance.random() < 0.7
    form: dict[str, Any] = {
        "type": "csv", "delimiter": delimiter, "quote": quote, "escape": escape, "header": header,
        "null_values": chance.choice(NULLS[:-1] if escape else NULLS),
    }  # fmt: skip
    if not header or chance.random() < 0.3:
        form["column_names"] = NAMES

    def value() -> str:
        text = "".join(chance.choices(TEXT, k=chance.randint(0, 2)))
        if quote and chance.random() < 0.4:
            odd = chance.choice(["", "", "", "x"]) if chance.random() < 0.1 else ""
            return quote + text.replace(quote, quote * 2) + chance.choice(["", "\n", delimiter]) + quote + odd
        return text if chance.random() < 0.05 else text.replace(delimiter, "").replace(quote or "\0", "")

    ends = [end for end in ENDS if " " not in end and "\t" not in end]
    blank = chance.choice(["", "", "", "\n", "\r\n"])
    head = blank + delimiter.join(NAMES) + chance.choice(ends) if header else ""
    rows = (f"{value()}{delimiter}{value()}" + chance.choice(ends) for _ in range(5))
    return head + "".join(rows), {"format": form}


def _ndjson(chance: random.Random) -> tuple[str, dict[str, Any]]:
    def document() -> str:
        value: Any = chance.choice([1, None, "}{", "} {", "é\n", [1, {"x": "]"}], {"y": {}}, "\\"])
        shown = json.dumps({"A": value, "B": chance.random()}, ensure_ascii=chance.random() < 0.5)
        odd = chance.random()
        if odd < 0.02:
            return shown + chance.choice(["", " ", "\t"]) + shown
        if odd < 0.04:
            return shown.replace(",", ",\n")
        if odd < 0.06:
            return chance.choice([f"[{shown}]", "oops", "\x00\x00", "5"])
        return chance.choice(["", " ", "\t"]) + shown + chance.choice(["", " "])

    return "".join(document() + chance.choice(ENDS) for _ in range(6)), {"format": "ndjson"}


@pytest.mark.parametrize("kind", [_text, _csv, _ndjson], ids=["text", "csv", "ndjson"])
def test_generated_files_give_the_same_rows_on_both_paths(tmp_path: Path, kind: Any) -> None:
    compared = 0
    for seed in range(60):
        chance = random.Random(seed)
        content, source = kind(chance)
        mark = "\ufeff" if chance.random() < 0.2 else ""
        if chance.random() < 0.3:
            content = content.rstrip("\r\n")
        compared += Mixed(
            tmp_path / "x", (mark + content).encode(), chance.choice([16, 1 << 20]), **source
        ).check()
    assert compared > 20


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('{"A":1}\n{"A":2}{"A":3}\n', 2),
        ('{"A":1} \t {"A":2}', 1),
        ('{"A":"}{"}\n\n{"A":1,\n"B":2}\n', 3),
        ('[{"A":1},{"A":2}]\n', 1),
        ('{"A":"}{"}\n{"A":[{"B":1},{"B":2}]}\noops\n', None),
    ],
)
def test_copy_refuses_lines_that_are_no_documents(tmp_path: Path, content: str, line: int | None) -> None:
    mixed = Mixed(tmp_path / "x", content.encode())
    why = why_not_copy_file(mixed.spec, mixed.file)
    assert why is None if line is None else f"line {line} " in str(why)


@pytest.mark.parametrize("head", ["\nA,B\n", '"A\nA",B\r\n'])
def test_copy_is_refused_for_a_header_that_is_more_than_the_first_line(tmp_path: Path, head: str) -> None:
    mixed = Mixed(tmp_path / "x", f"{head}1,2\n".encode(), format={"type": "csv", "column_names": NAMES})
    assert mixed.streamed() == [{"A": "1", "B": "2"}]
    assert "header" in str(why_not_copy_file(mixed.spec, mixed.file))


BY_NAME = {"match_by_column_name": "CASE_INSENSITIVE"}


def spec(**values: Any) -> FileSource:
    return FileSource.from_mapping({"path": "/data", **values})


@pytest.mark.parametrize(
    "source",
    [
        {"partitions": {"type": "key", "as_columns": True, "key": "day"}},
        {"format": {"type": "parquet", "columns": ["a"]}},
        {"format": {"type": "ndjson", "compression": "xz"}},
        {"format": {"type": "csv", "escape": "\\", "null_values": ["NULL"]}},
    ],
    ids=["partition-columns", "columns", "xz", "escaped-null"],
)
def test_copy_is_given_rows_where_it_would_make_others_of_the_files(source: dict[str, Any]) -> None:
    assert why_rows_are_staged(spec(**source)) is not None
    written = {"file_format": {"type": "JSON", "compression": "GZIP"}, **BY_NAME}
    assert copy_arguments(spec(**source), {}) == {"options": written}
    with pytest.raises(ConfigurationError, match="file_format"):
        copy_arguments(spec(**source), {"file_format": {"type": "CSV"}})


@pytest.mark.parametrize(
    "source",
    [
        {}, {"format": "avro"}, {"format": {"type": "text", "compression": "gzip"}},
        {"format": {"type": "csv", "delimiter": "\\", "quote": "'", "null_values": ["\\N", "it's", ""]}},
        {"format": {"type": "csv", "delimiter": "\t", "escape": "\\", "column_names": ["a", 'B"(']}},
    ],
)  # fmt: skip
def test_statement_with_the_options_of_copy_makes_the_same_rows(source: dict[str, Any]) -> None:
    arguments = copy_arguments(spec(**source), {})
    options = CopyOptions.of(arguments["options"])
    copy = CopyInto(("D", "S", "T"), "@D.S.G/a (b)", options, arguments.get("columns"))
    judged = RowOptions.of_statement(copy.statement())
    assert judged.differences(row_options(spec(**source), {})) == []
    assert judged.doubts() == []


def test_what_an_interrupted_copy_has_loaded_counts_with_the_rest() -> None:
    one = {"rows_loaded": 2, "rejected": 1, "bytes": 4, "files": {"a": 1}, "loaded_before": {}}
    two = {"rows_loaded": 3, "rejected": 1, "bytes": 5, "files": {"b": 2}, "loaded_before": {"c": 3}}
    found = joined_value({**one, "partitions": {"p": 2}}, {**two, "partitions": {"p": 2, "q": 1}})
    loads = {"rows_loaded": 5, "rejected": 2, "files": {"a": 1, "b": 2}, "loaded_before": {"c": 3}}
    assert found == {**loads, "bytes": 9, "partitions": {"p": 4, "q": 1}}
