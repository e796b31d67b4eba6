"""The sending side alone, in one process: against the SDK, a raw socket, compression and serial bodies."""

from __future__ import annotations

import json
import queue
import shutil
import socket
import ssl
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from airflow_provider_snowpipe.spark.source import LINE
from airflow_provider_snowpipe.spark.sources.files.partition import FilePartition
from airflow_provider_snowpipe.spark.sources.files.reader import FileSource
from airflow_provider_snowpipe.spark.sources.files.spec import FileGroup
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource as FileSourceSpec
from airflow_provider_snowpipe.spark.sources.tables.rows import POSITION, keyed_parts
from airflow_provider_snowpipe.spark.task.sink import PartitionWork, SinkSettings, load_partition
from airflow_provider_snowpipe.streaming.batch import Batch, Compressor, OpenBatch, Part
from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.checkpoint import Binding, ChannelSource
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.ndjson import encode_ndjson
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from benchmarks.receiver_process import Receiver
from benchmarks.rows import batches
from benchmarks.spark_loads import TABLE, UNPACED, sdk_append

READY_BYTES = 3_400_000
"""A body that fills the wire limit as far as our batches do."""
SERIAL_BYTES = 1_000_000


@dataclass
class ReadyRows:
    """Rows in memory, as Arrow has them and as lines of JSON.

    :param arrow: batches of columns
    :param lines: the same as batches of one line of JSON a row, with the row's position
    :param body: all lines
    """

    arrow: list[pa.RecordBatch]
    lines: list[pa.RecordBatch]
    body: bytes

    @classmethod
    def make(cls, rows: int) -> ReadyRows:
        """Make rows numbered from 0."""
        arrow = list(batches(rows))
        texts = [encode_ndjson(batch) for batch in arrow]
        return cls(
            arrow, [_lines(text, batch) for text, batch in zip(texts, arrow, strict=True)], b"".join(texts)
        )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(batch.num_rows for batch in self.arrow)

    def parts(self, size: int) -> list[Part]:
        """The lines in parts of about a size, each with the positions of its rows."""
        ends = np.flatnonzero(np.frombuffer(self.body, np.uint8) == 10) + 1
        cuts, begin = [0], 0
        while begin < len(ends):
            start = int(ends[begin - 1]) if begin else 0
            begin = max(int(np.searchsorted(ends, start + size, side="right")), begin + 1)
            cuts.append(begin)
        bounds = np.concatenate(([0], ends))
        view = memoryview(self.body)
        return [
            Part(view[bounds[low] : bounds[high]], IntegerOffset(low), IntegerOffset(high - 1), high - low)
            for low, high in pairwise(cuts)
        ]


def _lines(text: bytes, batch: pa.RecordBatch) -> pa.RecordBatch:
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == 10) + 1
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    lines = pa.Array.from_buffers(
        pa.string(), batch.num_rows, [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    )
    return pa.record_batch({POSITION: batch.column("ID"), LINE: lines})


@dataclass
class Senders:
    """Every way to send ready rows, each call through a channel of its own.

    :param receiver: where they go
    :param ready: the rows
    """

    receiver: Receiver
    ready: ReadyRows

    def __post_init__(self) -> None:
        self._count = count()
        self._client = self.receiver.client(TABLE)
        self._bearer = self._client.scoped_token().token
        self._raw = self._connect()
        self._bodies = [bytes(part.body) for part in self.ready.parts(READY_BYTES)]
        self._parts = self.ready.parts(1 << 20)
        self._small = self.ready.parts(SERIAL_BYTES)

    def close(self) -> None:
        """Give the connections back."""
        self._raw.close()
        self._client.close()

    def prepare(self) -> None:
        """Open what the next work sends to."""
        self._name = f"sender{next(self._count)}"
        self._token = self._client.open_channel(self._name).continuation_token
        source = ChannelSource(IntegerOffset, Binding("rows in memory"))
        self._channel = Channel.open(
            self._client, f"{self._name}_channel", source, limits=UNPACED, gaps_legal=True
        )

    def lines(self) -> None:
        """Our sender in the worker of a table source: lines from Spark's JVM to a channel."""
        parts = keyed_parts(
            iter(self.ready.lines),
            None,
            UNPACED,
            column="ID",
            value=lambda at: at.value,
            offset=IntegerOffset,
        )
        for part in parts:
            self._channel.append(part.body, part.start, part.end, rows=part.rows)
        self._channel.wait_for_commit()

    def official(self) -> None:
        """The official SDK: rows from Arrow to dicts to ``append_rows``."""
        rows = (batch.to_pylist(maps_as_pydicts="strict") for batch in self.ready.arrow)
        sdk_append(self.receiver.sdk_properties(), f"{self._name}_sdk", rows)

    def ready_bodies(self) -> None:
        """Our client sends bodies as they are."""
        for body in self._bodies:
            self._send(body, None, len(body))

    def raw_socket(self) -> None:
        """A TLS socket sends the same requests, with no more done than the protocol needs."""
        path = f"/v2/streaming/data{self._client.pipe.url_path}/channels/{self._name}/rows"
        for body in self._bodies:
            query = f"continuationToken={self._token}&requestId={uuid.uuid4()}&retryCount=0"
            head = (
                f"POST {path}?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._bearer}\r\n"
                f"Content-Type: application/x-ndjson\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            self._raw.sendall(head.encode())
            self._raw.sendall(body)
            answer = self._raw.recv(1 << 16).split(b"\r\n\r\n")[1]
            self._token = json.loads(answer)["next_continuation_token"]

    def compressed_and_sent(self) -> None:
        """A channel compresses, and sends meanwhile."""
        for part in self._parts:
            self._channel.append(part.body, part.start, part.end, rows=part.rows)
        self._channel.flush()

    def compressed(self) -> None:
        """The same batches compressed and thrown away."""
        for _ in _closed(iter(self._parts)):
            pass

    def serial(self) -> None:
        """Bodies of 1 MB, each compressed when the one before is answered."""
        codec = pa.Codec("zstd", compression_level=1)
        for part in self._small:
            self._send(codec.compress(part.body, asbytes=True), "zstd", len(part.body))

    def _send(self, body: bytes, encoding: str | None, raw: int) -> None:
        self._token = self._client.append_rows(
            self._name,
            body,
            continuation_token=self._token,
            start_token="",
            end_token="",
            content_encoding=encoding,
            raw_length=raw,
        )

    def _connect(self) -> ssl.SSLSocket:
        address = urlsplit(self.receiver.url)
        context = ssl.create_default_context(cafile=str(self.receiver.ca_file))
        plain = socket.create_connection((address.hostname or "", address.port or 443))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(plain, server_hostname=address.hostname)


@dataclass
class FileSenders:
    """A group of files exactly once, and fire-and-forget.

    :param receiver: where the rows go
    :param folder: has ``g/0.ndjson``
    :param copies: names under which the file is read; the rows of all make a load of some seconds
    """

    receiver: Receiver
    folder: Path
    copies: int

    def __post_init__(self) -> None:
        self._count = count()
        first = self.folder / "g" / "0.ndjson"
        for number in range(1, self.copies):
            shutil.copy(first, first.with_name(f"{number}.ndjson"))
        (found,) = FileSource(FileSourceSpec(str(self.folder)), "fail").partitions()
        self._partition: FilePartition = found
        with self.receiver.client(TABLE) as client:
            self._token = client.scoped_token()

    @property
    def group(self) -> FileGroup:
        """The files."""
        return self._partition.group

    def exactly_once(self) -> None:
        """What a Spark task does: reads the token, checks positions, sends tokens, awaits the commit."""
        with self.receiver.client(TABLE) as client:
            settings = SinkSettings(
                self.receiver.url, str(self.receiver.ca_file), client.pipe, True, 600.0, UNPACED
            )
        work = PartitionWork(f"once{next(self._count)}", self._partition, None, self._partition.resume(None))
        result = load_partition(settings, self._token, work)
        if result.error_type or not result.complete:
            raise SystemExit(f"{result.error_type}: {result.error}: no result")

    def forgotten(self) -> None:
        """The same blocks, compressed and sent alike, without a token and without waiting for a commit."""
        resumed = self._partition.resume(None)
        assert resumed is not None
        first = IntegerOffset(0)
        parts = (
            Part(block.body, first, first, block.rows)
            for _, block in self._partition.blocks(resumed, UNPACED)
        )
        with self.receiver.client(TABLE) as known:
            pipe = known.pipe
        name, waiting = f"forgotten{next(self._count)}", queue.Queue[Batch | None](1)
        failures: list[Exception] = []
        with SnowpipeClient(
            self.receiver.url, self._token, pipe, ca_bundle=str(self.receiver.ca_file)
        ) as client:
            token = client.open_channel(name).continuation_token
            args = (client, name, token, waiting, failures)
            sender = threading.Thread(target=_send_all, args=args, daemon=True)
            sender.start()
            for batch in _closed(parts):
                waiting.put(batch)
            waiting.put(None)
            sender.join()
        if failures:
            raise failures[0]


def _closed(parts: Iterator[Part]) -> Iterator[Batch]:
    """The batches that a channel would make of parts."""
    compressor, batch = Compressor(UNPACED), OpenBatch(UNPACED)
    for part in parts:
        if full := batch.take(compressor.ratio, following=len(part.body)):
            yield from compressor.close(full)
        batch.add(part)
        if full := batch.take(compressor.ratio):
            yield from compressor.close(full)
    if left := batch.take():
        yield from compressor.close(left)


def _send_all(
    client: SnowpipeClient, name: str, token: str, waiting: queue.Queue[Any], failures: list[Exception]
) -> None:
    while (batch := waiting.get()) is not None:
        if failures:
            continue
        try:
            token = client.append_rows(
                name,
                batch.body,
                continuation_token=token,
                start_token="",
                end_token="",
                content_encoding=batch.encoding,
                raw_length=batch.raw_bytes,
            )
        except Exception as error:  # noqa: BLE001  raised by the thread that reads
            failures.append(error)
