"""Avro files, block by block; on resume, blocks before the committed row are skipped unread.

Rows become Python objects on their way, made and taken apart again by compiled code (fastavro and Arrow):
no vectorised reader of Avro covers all of its types (those that were checked lack maps, decimals or unions).
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import pyarrow as pa

from airflow_provider_snowpipe.spark.source import required_module
from airflow_provider_snowpipe.spark.sources.files.arrow_format import (
    NumberedRowsReader,
    damaged,
    refuse_missing_columns,
    unsnapped,
)
from airflow_provider_snowpipe.spark.sources.files.formats import open_listed
from airflow_provider_snowpipe.spark.sources.files.spec import SourceFile
from airflow_provider_snowpipe.spark.sources.logical_types import (
    PLAIN,
    SCALED,
    SELF_SCALED,
    changes,
    decimal_type,
    logical_name,
    meaning,
    named,
    restored,
    self_scaled,
    stored,
)
from airflow_provider_snowpipe.streaming.arguments import UnknownTypes
from airflow_provider_snowpipe.streaming.errors import EncodingError, SnowpipeError

_DECODE_BYTES = 1 << 20
"""Bytes of rows that are decoded at once, unless one block is larger."""
_MOST_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class AvroReader(NumberedRowsReader):
    """Reads Avro."""

    def row_count(self, file: SourceFile) -> int:
        """Add up the counts of the blocks."""
        with _opened(file) as stream:
            header = read_header(stream)
            return sum(block.rows for block in read_blocks(stream, header, skip_rows=1 << 62))

    def tables(self, file: SourceFile, after_row: int) -> Iterator[pa.Table]:
        """Read the blocks that hold rows after a given one."""
        with _opened(file) as stream:
            header = read_header(stream)
            try:
                rows = rows_of(header.schema, self.form.unknown_types)
            except EncodingError as error:
                raise EncodingError(f"file {file.path!r}: {error}") from None
            refuse_missing_columns(file, self.form.columns, rows.arrow.names)
            skip = after_row
            for block in _joined(read_blocks(stream, header, skip_rows=after_row)):
                if skip < block.rows:
                    table = _decoded(block, rows).slice(skip)
                    yield table if self.form.columns is None else table.select(list(self.form.columns))
                skip = max(skip - block.rows, 0)


def _joined(blocks: Iterator[Block]) -> Iterator[Block]:
    """Put small blocks together, since decoding has a price for each call."""
    count, data = 0, bytearray()
    for block in blocks:
        if block.passed_over:
            yield block
            continue
        count += block.rows
        data += block.data
        if len(data) >= _DECODE_BYTES or count >= _MOST_ROWS:
            yield Block(count, bytes(data))
            count, data = 0, bytearray()
    if count:
        yield Block(count, bytes(data))


def _decoded(block: Block, rows: AvroRows) -> pa.Table:
    reader = required_module("fastavro", "the format Avro", "fastavro", "avro").reader
    records = list(reader(io.BytesIO(container_of(rows.read_schema, block.rows, block.data))))
    if len(records) != block.rows:
        raise ContainerError(f"a block states {block.rows} rows and holds {len(records)}")
    return pa.Table.from_batches([rows.batch(records)])


@contextmanager
def _opened(file: SourceFile) -> Iterator[BinaryIO]:
    with open_listed(file, exact=True) as raw, io.BufferedReader(raw) as stream:
        try:
            yield stream
        except (SnowpipeError, OSError):
            raise
        except Exception as error:
            raise damaged(file, "Avro", error) from error


# -- The container of Avro files: a header, then blocks of rows that can be skipped without reading them -
#
# The layout is that of "Object Container Files" in the Apache Avro specification. Blocks are framed and
# decompressed here; what is in them is fastavro's.

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MOST_BLOCK_BYTES = 1 << 30


class ContainerError(Exception):
    """The file does not have the layout of an Avro container."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of an Avro file; ``sync`` are the bytes behind each block."""

    schema: Any
    codec: str
    sync: bytes


@dataclass(frozen=True, slots=True)
class Block:
    """A run of rows.

    :param data: the rows in Avro's binary form
    :param passed_over: True if the block was not read, only the rows counted
    """

    rows: int
    data: bytes = field(repr=False)
    passed_over: bool = False


def read_header(stream: BinaryIO) -> Header:
    """Read the header, up to the first block."""
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise ContainerError("it does not begin as an Avro file does")
    values: dict[str, bytes] = {}
    while count := _number(stream):
        if count < 0:
            _number(stream)
        for _ in range(abs(count)):
            key = _bytes(stream).decode()
            values[key] = _bytes(stream)
    try:
        schema = json.loads(values["avro.schema"])
    except (KeyError, ValueError):
        raise ContainerError("its header holds no schema") from None
    codec = values.get("avro.codec", b"null").decode()
    if codec not in _CODECS:
        raise ContainerError(f"its codec {codec!r} is none of {sorted(_CODECS)}")
    return Header(schema, codec, _exactly(stream, _SYNC_BYTES))


def read_blocks(stream: BinaryIO, header: Header, *, skip_rows: int) -> Iterator[Block]:
    """Read the blocks behind the header, and count those unread that end at or before ``skip_rows``."""
    begin = stream.tell()
    size = stream.seek(0, os.SEEK_END)
    stream.seek(begin)
    while stream.tell() < size:
        rows, length = _number(stream), _number(stream)
        if rows < 0 or not 0 <= length <= _MOST_BLOCK_BYTES:
            raise ContainerError(f"the block before byte {stream.tell()} states {rows} rows, {length} bytes")
        passed_over = rows <= skip_rows
        if passed_over:
            skip_rows -= rows
            stream.seek(length, os.SEEK_CUR)
            data = b""
        else:
            skip_rows = 0
            data = _decompressed(_exactly(stream, length), header.codec)
        if _exactly(stream, _SYNC_BYTES) != header.sync:
            raise ContainerError(f"the block before byte {stream.tell()} is not followed by the file's mark")
        yield Block(rows, data, passed_over)


def container_of(schema: Any, rows: int, data: bytes) -> bytes:
    """Write one block of rows as a container of its own, not compressed."""
    sync = bytes(_SYNC_BYTES)
    entries = {"avro.schema": json.dumps(schema).encode(), "avro.codec": b"null"}
    pairs = [_written(key.encode()) + _written(value) for key, value in entries.items()]
    header = _MAGIC + _written_number(len(pairs)) + b"".join(pairs) + _written_number(0) + sync
    return header + _written_number(rows) + _written(data) + sync


def _decompressed(data: bytes, codec: str) -> bytes:
    try:
        return _CODECS[codec](data)
    except (OSError, ValueError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        raise ContainerError(f"a block cannot be decompressed as {codec} ({error})") from None


def _snappy(data: bytes) -> bytes:
    """Four bytes of checksum follow the compressed ones."""
    text = unsnapped(data[:-4])
    if zlib.crc32(text) != int.from_bytes(data[-4:], "big"):
        raise ValueError("the checksum differs")
    return text


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": lambda data: zlib.decompress(data, -zlib.MAX_WBITS),
    "snappy": _snappy,
    "zstandard": lambda data: bytes(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()),
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
}


def _exactly(stream: BinaryIO, length: int) -> bytes:
    data = stream.read(length)
    if len(data) != length:
        raise ContainerError(f"it ends at byte {stream.tell()}, in the middle of a block or of its header")
    return data


def _bytes(stream: BinaryIO) -> bytes:
    length = _number(stream)
    if not 0 <= length <= _MOST_BLOCK_BYTES:
        raise ContainerError("its header is damaged")
    return _exactly(stream, length)


def _number(stream: BinaryIO) -> int:
    """Read a variable-length number: seven bits a byte, the sign in the lowest bit."""
    value = shift = 0
    while True:
        byte = _exactly(stream, 1)[0]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
        if shift > 63:
            raise ContainerError(f"a number before byte {stream.tell()} is too long")


def _written_number(value: int) -> bytes:
    bits = value << 1
    out = bytearray()
    while bits > 0x7F:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    out.append(bits)
    return bytes(out)


def _written(data: bytes) -> bytes:
    return _written_number(len(data)) + data


# -- Avro schemas as Arrow types, and as the schemas by which rows are read ------------------------------
#
# A date or a timestamp is read as the number that it is and becomes an Arrow value as a whole column, so
# that nanoseconds stay and years beyond 9999 do not stop the load. Decimals are the exception: their bytes
# become numbers one by one, in compiled code.

_PRIMITIVE: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.large_binary(),
    "string": pa.large_string(),
}
_WIDER = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}


@dataclass(frozen=True, slots=True)
class AvroRows:
    """How an Avro file's rows are read; its schema keeps the logical types that are decoded row by row."""

    read_schema: Any
    arrow: pa.Schema

    def batch(self, records: list[Any]) -> pa.RecordBatch:
        """Records as columns."""
        kind = pa.struct(list(self.arrow))
        array = pa.array(records, stored(kind))
        return pa.RecordBatch.from_struct_array(restored(array, kind) if changes(kind) else array)


def rows_of(schema: Any, unknown: UnknownTypes = "fail") -> AvroRows:
    """Translate a file's schema."""
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise EncodingError(f"its rows are {_kind(schema)!r}, not records: they have no columns")
    read, arrow = _Translation(unknown).translate(schema, "", "")
    return AvroRows(read, pa.schema(list(arrow)))


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    kind = schema["type"] if isinstance(schema, Mapping) else schema
    return kind if isinstance(kind, str) else _kind(kind)


@dataclass(slots=True)
class _Translation:
    """Walks a schema; named types are known from where they are defined to the schema's end."""

    unknown: UnknownTypes
    named: dict[str, pa.DataType | None] = field(default_factory=dict)

    def translate(self, schema: Any, path: str, space: str) -> tuple[Any, pa.DataType]:
        """Return the schema to read by and the Arrow type; names without a namespace are of ``space``."""
        if isinstance(schema, list):
            return self._union(schema, path, space)
        if isinstance(schema, str):
            return schema, _PRIMITIVE[schema] if schema in _PRIMITIVE else self._by_name(schema, path, space)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.translate(kind, path, space)
        match kind:
            case "record":
                return self._record(schema, path, space)
            case "array":
                self._meaning(schema, kind, path, pa.null())
                read, item = self.translate(schema["items"], f"{path}.[]", space)
                return {"type": "array", "items": read}, pa.large_list(item)
            case "map":
                read, value = self.translate(schema["values"], f"{path}.{{}}", space)
                return {"type": "map", "values": read}, pa.map_(pa.string(), value)
            case "enum" | "fixed":
                return self._named_value(schema, kind, path, space)
            case _ if kind in _PRIMITIVE:
                arrow, decimal = self._meaning(schema, kind, path, _PRIMITIVE[kind])
                return ({"type": kind, **decimal} if decimal else kind), arrow
        return schema, self._by_name(kind, path, space)

    def _record(self, schema: Mapping[str, Any], path: str, space: str) -> tuple[Any, pa.DataType]:
        name, space = _full_name(schema, space)
        self.named[name] = None
        fields, types = [], []
        for one in schema["fields"]:
            inner = f"{path}.{one['name']}" if path else one["name"]
            read, kind = self.translate(one["type"], inner, space)
            fields.append({"name": one["name"], "type": read})
            types.append(named(one["name"], kind, logical_name(one["type"])))
        scaled = meaning("record", schema.get("connect.name", name), path, self.unknown) == SELF_SCALED
        self.named[name] = self_scaled() if scaled else pa.struct(types)
        return {"type": "record", "name": name, "fields": fields}, self.named[name]

    def _named_value(
        self, schema: Mapping[str, Any], kind: str, path: str, space: str
    ) -> tuple[Any, pa.DataType]:
        name, _ = _full_name(schema, space)
        read = {key: schema[key] for key in ("type", "symbols", "size") if key in schema} | {"name": name}
        plain = pa.large_string() if kind == "enum" else pa.binary(schema["size"])
        arrow, decimal = self._meaning(schema, kind, path, plain)
        self.named[name] = arrow
        return read | decimal, arrow

    def _meaning(
        self, schema: Mapping[str, Any], kind: str, path: str, plain: pa.DataType
    ) -> tuple[pa.DataType, dict[str, Any]]:
        """The Arrow type of a schema's values, and what makes a decimal of the schema to read by."""
        found = meaning(kind, logical_name(schema), path, self.unknown)
        if found == PLAIN:
            return plain, {}
        if found != SCALED:
            return found, {}
        given = schema.get("connect.parameters") or {}
        precision = int(schema.get("precision", given.get("connect.decimal.precision", 38)))
        scale = int(schema.get("scale", given.get("scale", 0)))
        decimal = {"logicalType": "decimal", "precision": precision, "scale": scale}
        return decimal_type(precision, scale, path), decimal

    def _union(self, schema: list[Any], path: str, space: str) -> tuple[Any, pa.DataType]:
        translated = [self.translate(branch, path, space) for branch in schema]
        read = [branch for branch, _ in translated]
        kinds = [(branch, kind) for branch, kind in translated if branch != "null"]
        if len(kinds) < 2:
            return read, kinds[0][1] if kinds else pa.null()
        wider = _WIDER.get(frozenset(branch for branch, _ in kinds if isinstance(branch, str)))
        if wider is None or len(kinds) > 2 or any(kind != _PRIMITIVE[str(one)] for one, kind in kinds):
            raise EncodingError(
                f"column {path!r} is a union of {[_kind(one) for one in schema]}: only unions of one type "
                "with null, and of two numbers, make a column; write the file with one type"
            )
        return read, _PRIMITIVE[wider]

    def _by_name(self, name: str, path: str, space: str) -> pa.DataType:
        full = name if "." in name or not space else f"{space}.{name}"
        found = self.named.get(full, self.named.get(name))
        if found is None:
            state = "holds itself" if full in self.named or name in self.named else "is not defined"
            raise EncodingError(f"column {path!r}: the type {name!r} {state}, so that it is not a column")
        return found


def _full_name(schema: Mapping[str, Any], space: str) -> tuple[str, str]:
    """A named type's full name, and the namespace for the names within it."""
    name = str(schema["name"])
    if "." not in name:
        space = schema.get("namespace", space)
        name = f"{space}.{name}" if space else name
    return name, name.rpartition(".")[0]
