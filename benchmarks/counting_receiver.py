"""A receiver that speaks the append contract and keeps bodies as they come; rows are counted afterwards.

The local service commits every row, which costs more than any client needs to send it. Where clients are
compared, this replaces the service for all of them: over TLS, with the same calls, inline bodies and the
official SDK's file mode. It only stores what arrives while the clock runs; later it decodes the bodies,
parses them as JSON and checks that each channel's rows are there once and in order. Nothing of it is part of
the product.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import jwt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from snowpipe_local.fronts.http import Request, decode_body
from snowpipe_local.fronts.stage_files import Fragment, decode_aws_chunked, read_fragment

from airflow_provider_snowpipe.streaming.checkpoint import Checkpoint, is_checkpoint

_BUCKET = "benchmark"
_PIPE_KEY = base64.b64encode(b"k" * 32).decode()
_DAY = 86_400
_PARSED_AT_ONCE = 64 << 20
_TEXT_ID = re.compile(rb'"ID"\s*:\s*"')
_FIRST_BYTES = 10_000


@dataclass(frozen=True)
class Counted:
    """What arrived, decoded and parsed after the clock was stopped.

    :param rows: rows that arrived
    :param distinct: different values of the column ``ID`` among them
    :param ordered: True if ``ID`` grows from row to row within every channel
    :param raw_bytes: bytes of NDJSON
    :param wire_bytes: bytes as sent
    :param appends: appends that carried them
    """

    rows: int
    distinct: int
    ordered: bool
    raw_bytes: int
    wire_bytes: int
    appends: int


@dataclass
class _Channel:
    name: str
    sequencer: int = 0
    row: int = 0
    tokens: list[tuple[float, str]] = field(default_factory=list)
    bodies: list[Callable[[], bytes]] = field(default_factory=list)
    wire_bytes: int = 0

    @property
    def continuation(self) -> str:
        return f"{self.sequencer}_{self.row}"

    def status(self, pipe: str, commit_delay: float) -> dict[str, Any]:
        until = time.monotonic() - commit_delay
        committed = next((token for when, token in reversed(self.tokens) if when <= until), None)
        # Bodies are parsed later only: a checkpoint shows how many rows they are, the SDK's tokens need none.
        rows = Checkpoint.parse(committed).rows if committed and is_checkpoint(committed) else 0
        return {
            "database_name": "LOCAL",
            "schema_name": "PUBLIC",
            "pipe_name": pipe,
            "channel_name": self.name,
            "channel_status_code": "SUCCESS",
            "last_committed_offset_token": committed,
            "created_on_ms": 1,
            "rows_inserted": rows,
            "rows_parsed": rows,
            "rows_error_count": 0,
        }


class ReceiverState:
    """Everything that arrived, and the answers to it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = Lock()
        self._channels: dict[tuple[str, str], _Channel] = {}
        self._files: dict[str, bytes] = {}
        self._append_delay = 0.0
        self._commit_delay = 0.0
        self._requests: Counter[str] = Counter()

    def answer(self, call: Request) -> tuple[bytes, str]:
        """Body and ETag of the answer; all answers are 200."""
        with self._lock:
            self._requests[call.segments[-1].rpartition(":")[2] if call.segments else ""] += 1
        match call.method, call.segments:
            case "GET", ("v2", "streaming", "hostname"):
                return b"127.0.0.1", ""
            case "POST", ("oauth", "token"):
                return jwt.encode({"exp": int(time.time()) + _DAY}, "k" * 32, "HS256").encode(), ""
            case "PUT", (bucket, *rest) if bucket == _BUCKET:
                return b"", self._store("/".join([bucket, *rest]), call)
            case "POST", (*_, "pipes", _, "channels", _, ("rows" | "filebuffer")):
                return _json(self._append(call)), ""
            case "PUT", (*_, "pipes", pipe, "channels", name):
                return _json(self._open(pipe, name)), ""
            case "POST", (*_, "pipes", verb):
                return _json(self._pipe_call(call, verb)), ""
            case "POST", ("benchmark", verb):
                return _json(self._command(verb, json.loads(call.body or b"{}"))), ""
        return b"{}", ""  # telemetry, drop

    def _store(self, location: str, call: Request) -> str:
        body = bytes(call.body)
        if "aws-chunked" in call.headers.get("content-encoding", ""):
            body = decode_aws_chunked(body)
        with self._lock:
            self._files[location] = body
        return hashlib.md5(location.encode(), usedforsecurity=False).hexdigest()

    def _open(self, pipe: str, name: str) -> dict[str, Any]:
        with self._lock:
            channel = self._channels.setdefault((pipe, name), _Channel(name))
            channel.sequencer += 1
            channel.row = 0
            status = channel.status(pipe, self._commit_delay)
            return {"next_continuation_token": channel.continuation, "channel_status": status}

    def _append(self, call: Request) -> dict[str, Any]:
        if self._append_delay:
            time.sleep(self._append_delay)  # stands for the distance to the service
        *_, pipe, _, name, kind = call.segments
        token = call.query.get("endOffsetToken", "")
        wire_bytes = len(call.body)
        if kind == "rows":
            encoding, body = call.headers.get("content-encoding", ""), call.body
            decode = lambda: decode_body(bytes(body), encoding)  # noqa: E731
        else:
            fragment = Fragment.from_request(call)
            file, token = self._files[fragment.file_path], fragment.end_offset_token or ""
            wire_bytes = fragment.length
            decode = lambda: read_fragment(file, fragment, base64.b64decode(_PIPE_KEY))  # noqa: E731
        with self._lock:
            channel = self._channels[pipe, name]
            if call.query.get("continuationToken") != channel.continuation:
                raise ConnectionError(f"channel {name!r}: a continuation token out of turn")
            channel.row += 1
            channel.bodies.append(decode)
            channel.wire_bytes += wire_bytes
            if token:
                channel.tokens.append((time.monotonic(), token))
            return {"next_continuation_token": channel.continuation}

    def _pipe_call(self, call: Request, last: str) -> dict[str, Any]:
        pipe, _, verb = last.rpartition(":")
        if verb == "pipe-info":
            return self._pipe_info()
        names = json.loads(call.body)["channel_names"]
        with self._lock:
            found = [self._channels[pipe, name] for name in names if (pipe, name) in self._channels]
            statuses = {channel.name: channel.status(pipe, self._commit_delay) for channel in found}
        return {"channel_statuses": statuses}

    def _pipe_info(self) -> dict[str, Any]:
        prefix = f"{secrets.token_hex(8)}/"
        location = {
            "location_type": "S3",
            "bucket_name": _BUCKET,
            "path_prefix": prefix,
            "location": f"{_BUCKET}/{prefix}",
            "region": "us-east-1",
            "use_s3_regional_url": False,
            "storage_endpoint": f"127.0.0.1:{self._port}",
            "expiry_time_ms": int((time.time() + 7 * _DAY) * 1000),
            "creds": {"AWS_KEY_ID": "k", "AWS_SECRET_KEY": "s", "AWS_TOKEN": "t"},
        }
        encryption = {"pipe_key": _PIPE_KEY, "pipe_key_id": "1", "diversifier": "d"}
        return {
            "rowset_stage_location": location,
            "durable_stage_location": location,
            "encryption_info": encryption,
            "parameter_overrides": {},
        }

    def _command(self, verb: str, values: Mapping[str, float]) -> Mapping[str, Any]:
        if verb == "delays":
            self._append_delay, self._commit_delay = values["append"], values["commit"]
            return {}
        if verb == "requests":
            with self._lock:
                seen, self._requests = self._requests, Counter()
            return seen
        with self._lock:
            channels = list(self._channels.values())
            self._channels, self._files = {}, {}
        return vars(_counted(channels)) if verb == "count" else {}


def _counted(channels: list[_Channel]) -> Counted:
    ids: list[pa.ChunkedArray] = []
    raw_bytes, ordered = 0, True
    for channel in channels:
        mine: list[pa.Array] = []
        waiting: list[bytes] = []
        for number, decode in enumerate(channel.bodies, 1):
            waiting.append(decode())
            raw_bytes += len(waiting[-1])
            if number == len(channel.bodies) or sum(map(len, waiting)) > _PARSED_AT_ONCE:
                mine += _ids(b"".join(waiting)).chunks
                waiting = []
        values = pa.chunked_array(mine, pa.int64()).combine_chunks()
        ordered &= pc.all(pc.greater(values[1:], values[:-1]), min_count=0).as_py()
        ids.append(values)
    every = pa.chunked_array(ids, pa.int64())
    return Counted(
        rows=len(every),
        distinct=pc.count_distinct(every).as_py(),
        ordered=ordered,
        raw_bytes=raw_bytes,
        wire_bytes=sum(channel.wire_bytes for channel in channels),
        appends=sum(len(channel.bodies) for channel in channels),
    )


def _ids(body: bytes) -> pa.ChunkedArray:
    """The numbers of a body's rows; a line that is no JSON object with one is an error."""
    kind = pa.string() if _TEXT_ID.search(body[:_FIRST_BYTES]) else pa.int64()  # rows of CSV have texts
    parsing = pj.ParseOptions(
        explicit_schema=pa.schema([pa.field("ID", kind, nullable=False)]),
        unexpected_field_behavior="ignore",
    )
    reading = pj.ReadOptions(use_threads=False, block_size=max(len(body), 1 << 20))
    ids = pj.read_json(pa.BufferReader(body), reading, parsing).column("ID")
    if ids.null_count:
        raise ValueError(f"{ids.null_count} rows without an ID arrived")
    return ids.cast(pa.int64())


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
