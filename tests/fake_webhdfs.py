"""A name node and a data node that speak WebHDFS as Hadoop 3.5 does, in threads of the test process."""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.files.storage_options import options_of

_ABOVE = "/webhdfs/v1"


@dataclass
class _File:
    data: bytes
    number: int
    modified_ms: int


@dataclass
class FakeHdfs:
    """A running cluster.

    :param files: by path
    :param requests: each with node, method, operation, user and whether a password came along
    :param faults: what becomes of the next requests at the name node, one each: a status, or the name of an
        exception of Hadoop; empty lets it pass
    :param data_faults: the same at the data node; ``cut`` ends the connection in the middle of the content,
        and what is ``lost`` is done and not answered
    :param data_scheme: of the data node's address, as the name node gives it
    :param password: asks for this one, of ``loader``
    :param kerberos: asks for Kerberos
    :param http_fs: True answers a rename as HttpFS does, which knows no options
    :param before_rename: runs when a rename has arrived
    :param lost: so many renames are done, and answered with 503
    """

    port: int = 0
    data_port: int = 0
    files: dict[str, _File] = field(default_factory=dict)
    folders: set[str] = field(default_factory=lambda: {"/"})
    requests: list[tuple[str, str, str, str, bool]] = field(default_factory=list)
    faults: deque[str] = field(default_factory=deque)
    data_faults: deque[str] = field(default_factory=deque)
    allowed: Callable[[str], bool] = bool
    data_scheme: str = "http"
    password: str = ""
    kerberos: bool = False
    http_fs: bool = False
    before_rename: Callable[[], object] = lambda: None
    lost: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(16_386))

    @property
    def url(self) -> str:
        return f"webhdfs://127.0.0.1:{self.port}"

    def put(self, path: str, data: bytes, modified_ms: int | None = None) -> None:
        """Write a file, and the folders above it."""
        with self.lock:
            self.make(path.rpartition("/")[0])
            self.files[path] = _File(data, next(self.numbers), modified_ms or int(time.time() * 1000))

    def make(self, folder: str) -> None:
        """Make a folder and those above it."""
        parts = folder.strip("/").split("/")
        self.folders |= {"/" + "/".join(parts[: at + 1]) for at in range(len(parts))}

    def rename(self, path: str, target: str) -> str:
        """Rename a file; the exception that the name node makes of it."""
        if path not in self.files:
            return "FileNotFoundException"
        if target in self.files or target in self.folders:
            return "FileAlreadyExistsException"
        if target.rpartition("/")[0] not in self.folders:
            return "FileNotFoundException"
        self.files[target] = self.files.pop(path)
        return ""

    def options(self, **connection: Any) -> SourceSecrets:
        """The cluster as a source of files asks it."""
        return options_of(web_connection(**{"host": "127.0.0.1", "port": self.port, **connection}))


def web_connection(
    host: str | None = None, login: str | None = None, conn_type: str = "webhdfs", **fields: Any
) -> SimpleNamespace:
    """An Airflow connection; further fields than those of each connection are its extra."""
    own = {name: fields.pop(name, None) for name in ("port", "password", "schema")}
    return SimpleNamespace(
        conn_id="lake", conn_type=conn_type, host=host, login=login, extra_dejson=fields, **own
    )


class _Node(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hdfs: FakeHdfs
    is_data = False

    def log_message(self, *_: Any) -> None:
        pass

    def _take(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path.removeprefix(_ABOVE)) or "/"
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proof = self.headers.get("Authorization", "")
        node = "data" if self.is_data else "name"
        seen = (node, self.command, query.get("op", ""), query.get("user.name", ""), bool(proof))
        self.hdfs.requests.append(seen)
        faults = self.hdfs.data_faults if self.is_data else self.hdfs.faults
        fault = faults.popleft() if faults else ""
        if fault.isdecimal():
            self._answer(int(fault), b"busy")
        elif fault not in ("", "cut", "lost"):
            self._refuse(fault, "as the test says\n\tat org.apache.hadoop")
        elif self.is_data:
            self._data(path, query, content, fault)
        elif not self._is_proven(proof):
            self._answer(401, b"<html>", {"WWW-Authenticate": "Negotiate"})
        elif not self.hdfs.allowed(query.get("user.name") or "dr.who"):
            self._refuse("AccessControlException", f"Permission denied: user={query.get('user.name')}")
        else:
            with self.hdfs.lock:
                self._name(path, query)

    do_GET = do_PUT = do_DELETE = _take

    def _is_proven(self, proof: str) -> bool:
        expected = base64.b64encode(f"loader:{self.hdfs.password}".encode()).decode()
        return not self.hdfs.kerberos and (not self.hdfs.password or proof == f"Basic {expected}")

    def _name(self, path: str, query: dict[str, str]) -> None:
        hdfs, op = self.hdfs, query["op"]
        if op in ("OPEN", "CREATE"):
            if op == "OPEN" and path not in hdfs.files:
                return self._refuse("FileNotFoundException", path)
            location = f"{hdfs.data_scheme}://127.0.0.1:{hdfs.data_port}{_ABOVE}{quote(path)}?{urlsplit(self.path).query}"
            return self._answer(307, b"", {"Location": f"{location}&delegation=canary-token"})
        if op == "LISTSTATUS":
            return self._list(path)
        if op == "GETFILESTATUS":
            if path not in hdfs.files:
                return self._refuse("FileNotFoundException", path)
            return self._json({"FileStatus": _status("", hdfs.files[path])})
        if op == "RENAME":
            return self._rename(path, query["destination"], is_strict="renameoptions" in query)
        if op == "MKDIRS":
            hdfs.make(path)
            return self._json({"boolean": True})
        return self._json({"boolean": hdfs.files.pop(path, None) is not None})

    def _rename(self, path: str, target: str, *, is_strict: bool) -> None:
        """With options it fails with a reason; without, it answers true or false."""
        hdfs = self.hdfs
        hdfs.before_rename()
        if target in hdfs.folders and not is_strict:
            target += f"/{path.rpartition('/')[2]}"
        refused = hdfs.rename(path, target)
        if hdfs.lost:
            hdfs.lost -= 1
            return self._answer(503, b"busy")
        if hdfs.http_fs or not is_strict:
            return self._json({"boolean": not refused})
        return self._refuse(refused, path) if refused else self._answer(200, b"")

    def _list(self, path: str) -> None:
        hdfs, below = self.hdfs, f"{path.rstrip('/')}/"
        if path in hdfs.files:
            found = [_status("", hdfs.files[path])]
        elif path not in hdfs.folders:
            return self._refuse("FileNotFoundException", f"File {path} does not exist.")
        else:
            paths = {*hdfs.files, *hdfs.folders} - {path}
            names = sorted(one for p in paths if p.startswith(below) and "/" not in (one := p[len(below) :]))
            found = [_status(one, hdfs.files.get(below + one)) for one in names]
        return self._json({"FileStatuses": {"FileStatus": found}})

    def _data(self, path: str, query: dict[str, str], content: bytes, fault: str) -> None:
        hdfs = self.hdfs
        if query["op"] == "CREATE":
            if path in hdfs.files and query.get("overwrite") != "true":
                return self._refuse("FileAlreadyExistsException", path)
            hdfs.put(path, content)
            return self._answer(504 if fault else 201, b"")
        data = hdfs.files[path].data
        first = int(query.get("offset", 0))
        if first > len(data):
            return self._refuse("IOException", f"Offset={first} out of the range")
        part = data[first : first + int(query.get("length", len(data)))]
        if not fault:
            return self._answer(200, part)
        self.send_response(200)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part[: len(part) // 2])
        self.close_connection = True
        return None

    def _refuse(self, name: str, message: str) -> None:
        status = 404 if name == "FileNotFoundException" else 403
        self._json({"RemoteException": {"exception": name, "message": message}}, status)

    def _json(self, value: Any, status: int = 200) -> None:
        self._answer(status, json.dumps(value).encode())

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _status(name: str, file: _File | None) -> dict[str, Any]:
    found = {"pathSuffix": name, "type": "DIRECTORY" if file is None else "FILE"}
    if file is None:
        return {**found, "length": 0, "modificationTime": 1, "fileId": 2}
    return {
        **found, "length": len(file.data), "modificationTime": file.modified_ms, "fileId": file.number
    }  # fmt: skip


@contextmanager
def fake_webhdfs() -> Iterator[FakeHdfs]:
    """Run a cluster until the block ends."""
    hdfs = FakeHdfs()
    nodes = [
        ThreadingHTTPServer(("127.0.0.1", 0), type("Node", (_Node,), {"hdfs": hdfs, "is_data": is_data}))
        for is_data in (False, True)
    ]
    hdfs.port, hdfs.data_port = (one.server_port for one in nodes)
    threads = [threading.Thread(target=one.serve_forever, args=(0.05,)) for one in nodes]
    for thread in threads:
        thread.start()
    try:
        yield hdfs
    finally:
        for node in nodes:
            node.shutdown()
            node.server_close()
        for thread in threads:
            thread.join()
