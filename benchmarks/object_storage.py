"""The same job on files of a local disk and of an S3 server, quick and with 20 ms added to each request.

Eight partitions of NDJSON or Parquet go through Spark into the counting receiver, one task at a time.
The server here sends ranges of files by ``sendfile``, since those that can be had would be what is measured:
moto takes 15 processor seconds for a GB, s3s-fs four. Its time does not count as the load's processor time.
pyarrow.fs reads the same bytes and drops them: a load from a store cannot cost less than that.
The other figure is a listing of many objects of which few are new, in a process of its own.

    python benchmarks/object_storage.py --megabytes 200 --rounds 5 --objects 100000
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit

from pyarrow import fs

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.files.listing import found_files
from airflow_provider_snowpipe.spark.sources.files.spec import AllFiles, FileSource
from airflow_provider_snowpipe.spark.sources.files.storage import storage_of
from benchmarks.measuring import Stopwatch, Target, interleaved, report
from benchmarks.receiver_process import Receiver
from benchmarks.rows import SHAPES
from benchmarks.spark_loads import KINDS, Loads, local_spark, write_sources

PARTITIONS = 8
PAGE = 1000
DELAY = 0.02
_NEW = 100
_READ_BYTES = 8 << 20
_TIME = "2026-01-01T00:00:00.000Z"
_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


# -- A server of one bucket, its keys the paths below a folder -------------------------------------------


class Store:
    """Answers what a reader asks: lists, and sends ranges.

    :param folder: what the bucket holds
    :param objects: how many more it lists, which cannot be read
    :param delay: seconds before each answer
    """

    def __init__(self, folder: Path, objects: int, delay: float) -> None:
        self.folder, self.delay = folder, delay
        files = (path for path in folder.rglob("*") if path.is_file())
        found = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
        found |= {f"many/{number:09}.parquet": 1000 + number for number in range(objects)}
        self.keys = sorted(found)
        self.sizes = found

    def serve(self, stream: socket.socket) -> None:
        """Answer one connection until its client hangs up."""
        ahead = b""
        with stream:
            while data := stream.recv(1 << 16):
                *requests, ahead = (ahead + data).split(b"\r\n\r\n")
                for head in requests:
                    time.sleep(self.delay)
                    self._answer(stream, head.decode("latin-1"))

    def _answer(self, stream: socket.socket, head: str) -> None:
        method, target, _ = head.split(" ", 2)
        url = urlsplit(target)
        key = unquote(url.path).partition("/")[2].partition("/")[2]
        if not key:
            body = self._page({name: one[0] for name, one in parse_qs(url.query).items()})
            stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return
        size = self.sizes[key]
        asked = re.search(r"(?im)^range: bytes=(\d+)-(\d+)", head)
        first, last = (int(asked[1]), min(int(asked[2]), size - 1)) if asked else (0, size - 1)
        lines = [
            "HTTP/1.1 206 Partial Content" if asked else "HTTP/1.1 200 OK",
            f"Content-Length: {last - first + 1}",
            f"Content-Range: bytes {first}-{last}/{size}" if asked else "Accept-Ranges: bytes",
            f'ETag: "{size}"',
            f"Last-Modified: {_DATE}",
        ]
        stream.sendall("\r\n".join([*lines, "", ""]).encode())
        if method == "GET":
            with (self.folder / key).open("rb") as file:
                stream.sendfile(file, first, last - first + 1)

    def _page(self, query: dict[str, str]) -> bytes:
        prefix = query.get("prefix", "")
        begin = bisect_right(self.keys, query.get("continuation-token") or query.get("start-after", ""))
        rest = (key for key in self.keys[begin : begin + 2 * PAGE] if key.startswith(prefix))
        keys = list(islice(rest, PAGE))
        is_cut = len(keys) == PAGE
        entries = (
            f"<Contents><Key>{key}</Key><LastModified>{_TIME}</LastModified><ETag>&quot;{self.sizes[key]}&quot;"
            f"</ETag><Size>{self.sizes[key]}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for key in keys
        )
        more = f"<NextContinuationToken>{keys[-1]}</NextContinuationToken>" if is_cut else ""
        cut = f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>{more}"
        return f"<ListBucketResult>{cut}{''.join(entries)}</ListBucketResult>".encode()


def serve(folder: Path, objects: int, delay: float) -> None:
    """Listen on a free port, print it, and answer until terminated."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    store = Store(folder, objects, delay)
    print(listener.getsockname()[1], flush=True)
    while True:
        stream, _ = listener.accept()
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        Thread(target=store.serve, args=(stream,), daemon=True).start()


class Server:
    """The server's process.

    :param folder: what its bucket holds
    """

    def __init__(self, folder: Path, *, objects: int = 0, delay: float = 0.0) -> None:
        command = [sys.executable, __file__, "--serve", str(folder), "--delay", str(delay)]
        self._process = subprocess.Popen(
            [*command, "--objects", str(objects)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.secrets = SourceSecrets(
            {
                "aws_endpoint": f"http://127.0.0.1:{int(self._process.stdout.readline())}",
                "aws_access_key_id": "id",
                "aws_secret_access_key": "key",
                "aws_region": "us-east-1",
                "allow_http": "true",
            }
        )

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


# -- What is measured ------------------------------------------------------------------------------------


def list_objects(secrets: SourceSecrets) -> dict[str, float]:
    """List all objects, and find those that are not known; what it costs this process."""
    began, clock = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    spec = FileSource(path="s3://lake/many", format="parquet", partitions=AllFiles())
    names = [one.file for one in found_files(spec, storage_of(spec.path, secrets))[0]]
    known = set(names[:-_NEW])
    new = sum(name not in known for name in names)
    ended = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "objects": len(names),
        "new": new,
        "wall": time.perf_counter() - clock,
        "cpu": ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime,
        "peak_mb": ended.ru_maxrss / 1024,
    }


def listing(folder: Path, objects: int) -> dict[str, float]:
    """The cost of :func:`list_objects` in a new process."""
    server = Server(folder, objects=objects)
    try:
        command = [sys.executable, __file__, "--list", json.dumps(dict(server.secrets.values))]
        found: dict[str, float] = json.loads(subprocess.check_output(command, text=True))
    finally:
        server.stop()
    return found


def read_alone(folder: Path, secrets: SourceSecrets) -> None:
    """Read the NDJSON files by ``pyarrow.fs`` and do nothing with them: no load from the store costs less."""
    given = secrets.values
    host = given["aws_endpoint"].removeprefix("http://")
    keys = {"access_key": given["aws_access_key_id"], "secret_key": given["aws_secret_access_key"]}
    store = fs.S3FileSystem(**keys, region=given["aws_region"], scheme="http", endpoint_override=host)
    for path in sorted(folder.rglob("*.ndjson")):
        with store.open_input_file(f"lake/{path.relative_to(folder).as_posix()}") as file:
            while file.read_buffer(_READ_BYTES):
                pass


def loads(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """MB of JSON a second and a processor second, by format and storage."""
    receiver = Receiver(folder / "receiver")
    os.environ["SSL_CERT_FILE"] = str(receiver.ca_file)
    shape, target = SHAPES["usual"], folder / "files"
    rows = int(options.megabytes * 1e6 / shape.row_bytes)
    batches = list(shape.make(rows))
    for part in range(PARTITIONS):
        begin, end = (number * len(batches) // PARTITIONS for number in (part, part + 1))
        write_sources(target, batches[begin:end], shape.schema, f"g{part}")
    megabytes = sum(path.stat().st_size for path in target.rglob("*.ndjson")) / 1e6
    spark = local_spark(folder / "java")
    servers = {"S3": Server(target), f"S3 + {DELAY * 1000:.0f} ms": Server(target, delay=DELAY)}
    found: dict[str, dict[str, dict[str, float]]] = {}
    try:
        strangers = frozenset({receiver.pid, *(one.pid for one in servers.values())})
        watch, runs = Stopwatch(strangers), Loads(spark, receiver, target)
        for kind in KINDS:
            works = {"disk": partial(runs.job_of_files, kind)}
            for name, server in servers.items():
                works[name] = partial(
                    runs.job_of_files, kind, path=f"s3://lake/{kind}", secrets=server.secrets
                )
            costs = interleaved(options.rounds, watch, works, settle=partial(receiver.require, rows))
            found[kind] = {
                name: {"wall": megabytes / cost.wall, "cpu": megabytes / cost.cpu}
                for name, cost in costs.items()
            }
        alone = {"pyarrow.fs": partial(read_alone, target, servers["S3"].secrets)}
        cost = interleaved(options.rounds, watch, alone, settle=lambda: None)["pyarrow.fs"]
        found["alone"] = {"S3": {"wall": megabytes / cost.wall, "cpu": megabytes / cost.cpu}}
    finally:
        spark.stop()
        receiver.stop()
        for server in servers.values():
            server.stop()
    return found


def main() -> int:
    """Measure, and print ratios to the local disk and the cost of the listing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=200.0, help="of JSON, in eight files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--objects", type=int, default=100_000, help="to list")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--delay", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--list", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve, options.objects, options.delay)
    if options.list is not None:
        print(json.dumps(list_objects(SourceSecrets(options.list))))
        return 0
    with tempfile.TemporaryDirectory(prefix="snowpipe-bench-") as scratch:
        listed = listing(Path(scratch) / "empty", options.objects)
        found = loads(options, Path(scratch))
    alone = found.pop("alone")["S3"]
    targets = [
        Target(
            f"{kind}: {store} / disk",
            one["wall"] / costs["disk"]["wall"],
            0.9 if store == "S3" else 0.8,
            f"{one['wall']:.0f} and {costs['disk']['wall']:.0f} MB of JSON a second; "
            f"{one['cpu']:.0f} and {costs['disk']['cpu']:.0f} a processor second",
        )
        for kind, costs in found.items()
        for store, one in costs.items()
        if store != "disk"
    ]
    more = 1 / found["ndjson"]["S3"]["cpu"] - 1 / found["ndjson"]["disk"]["cpu"]
    detail = f"it reads {alone['wall']:.0f} MB a second; {alone['cpu']:.0f} a processor second"
    what = "ndjson: what S3 costs more than disk / pyarrow.fs alone, processor seconds"
    targets.append(Target(what, more * alone["cpu"], None, detail))
    detail = f"{listed['objects']:,} objects, {listed['new']} new, in {listed['wall']:.1f} s"
    targets.append(Target("listing, processor seconds", listed["cpu"], 5, detail, at_most=True))
    targets.append(Target("listing, peak MB", listed["peak_mb"], 300, detail, at_most=True))
    return report(targets, loads=found, listing=listed)


if __name__ == "__main__":
    sys.exit(main())
