"""Writes the same rows as a file of any format that the file source reads."""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

Rows = Sequence[dict[str, Any]]
_TYPES = {"ID": "long", "FILE": "string", "NOTE": ["null", "string"]}
AVRO_SCHEMA = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": name, "type": kind} for name, kind in _TYPES.items()],
}


def numbered_rows(file: str, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Rows of the tests' table; every note needs quoting, every third is NULL."""
    return [
        {"ID": number, "FILE": file, "NOTE": None if number % 3 == 0 else f'"{number}",\nnext'}
        for number in ids
    ]


def _ndjson(rows: Rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _csv(rows: Rows) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def _parquet(rows: Rows) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), out, row_group_size=70)
    return out.getvalue()


def _orc(rows: Rows) -> bytes:
    out = pa.BufferOutputStream()
    orc.write_table(pa.Table.from_pylist(list(rows)), out, stripe_size=500, batch_size=30)
    return bytes(out.getvalue())


def _avro(rows: Rows) -> bytes:
    import fastavro

    out = io.BytesIO()
    fastavro.writer(out, AVRO_SCHEMA, rows, codec="deflate", sync_interval=800)
    return out.getvalue()


_FORMATS = {"ndjson": _ndjson, "csv": _csv, "parquet": _parquet, "orc": _orc, "avro": _avro}
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}


def write_file(path: Path, rows: Rows) -> None:
    """Write rows in the format, and compressed as, the name's endings show: ``a.parquet``, ``a.csv.gz``."""
    kind, *packed = path.name.split(".")[1:]
    data = _FORMATS[kind](rows)
    for ending in packed:
        data = PACK[ending](data)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
