"""A name node and a data node that speak WebHDFS as Hadoop 3.5 does, in threads of the test process."""

import base64
import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote, urlencode

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.files.storage_options import options_of
from tests.http_server import Received, Reply, serving

_ABOVE = "/webhdfs/v1"


@dataclass
class _File:
    data: bytes
    number: int
    modified_ms: int


@dataclass
class FakeHdfs:
    """A running cluster.

    :param requests: each with node, method, operation, user and whether a password came along
    :param faults: what becomes of the next requests at the name node, one each: a status, or the name of an
        exception of Hadoop; empty lets it pass
    :param data_faults: the same at the data node; ``cut`` ends the connection in the middle of the content,
        and what is ``lost`` is done and not answered
    :param password: asks for this one, of ``loader``
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
            self._make(path.rpartition("/")[0])
            self.files[path] = _File(data, next(self.numbers), modified_ms or int(time.time() * 1000))

    def options(self, **connection: Any) -> SourceSecrets:
        return options_of(web_connection(**{"host": "127.0.0.1", "port": self.port, **connection}))

    def _make(self, folder: str) -> None:
        parts = folder.strip("/").split("/")
        self.folders |= {"/" + "/".join(parts[: at + 1]) for at in range(len(parts))}

    def answer(self, node: str, request: Received) -> Reply:
        path, query = unquote(request.path.removeprefix(_ABOVE)) or "/", request.query
        proof, user = request.headers.get("Authorization", ""), query.get("user.name", "")
        self.requests.append((node, request.method, query.get("op", ""), user, bool(proof)))
        faults = self.data_faults if node == "data" else self.faults
        fault = faults.popleft() if faults else ""
        if fault.isdecimal():
            return Reply(int(fault), "busy")
        if fault not in ("", "cut", "lost"):
            return _refused(fault, "as the test says\n\tat org.apache.hadoop")
        if node == "data":
            return self._data(path, query, request.body, fault)
        expected = base64.b64encode(f"loader:{self.password}".encode()).decode()
        if self.kerberos or (self.password and proof != f"Basic {expected}"):
            return Reply(401, "<html>", {"WWW-Authenticate": "Negotiate"})
        if not self.allowed(user or "dr.who"):
            return _refused("AccessControlException", f"Permission denied: user={query.get('user.name')}")
        with self.lock:
            return self._name(path, query)

    def _name(self, path: str, query: dict[str, str]) -> Reply:
        op = query["op"]
        if op in ("OPEN", "GETFILESTATUS") and path not in self.files:
            return _refused("FileNotFoundException", path)
        if op in ("OPEN", "CREATE"):
            address = f"{self.data_scheme}://127.0.0.1:{self.data_port}{_ABOVE}{quote(path)}"
            location = f"{address}?{urlencode(query)}&delegation=canary-token"
            return Reply(307, "", {"Location": location})
        if op == "LISTSTATUS":
            return self._list(path)
        if op == "GETFILESTATUS":
            return _json({"FileStatus": _status("", self.files[path])})
        if op == "RENAME":
            return self._rename(path, query["destination"], is_strict="renameoptions" in query)
        if op == "MKDIRS":
            self._make(path)
            return _json({"boolean": True})
        return _json({"boolean": self.files.pop(path, None) is not None})

    def _rename(self, path: str, target: str, *, is_strict: bool) -> Reply:
        """With options it fails with a reason; without, it answers true or false."""
        self.before_rename()
        if target in self.folders and not is_strict:
            target += f"/{path.rpartition('/')[2]}"
        refused = ""
        if path not in self.files or target.rpartition("/")[0] not in self.folders:
            refused = "FileNotFoundException"
        elif target in self.files or target in self.folders:
            refused = "FileAlreadyExistsException"
        else:
            self.files[target] = self.files.pop(path)
        if self.lost:
            self.lost -= 1
            return Reply(503, "busy")
        if self.http_fs or not is_strict:
            return _json({"boolean": not refused})
        return _refused(refused, path) if refused else Reply(200, "")

    def _list(self, path: str) -> Reply:
        below = f"{path.rstrip('/')}/"
        if path in self.files:
            found = [_status("", self.files[path])]
        elif path not in self.folders:
            return _refused("FileNotFoundException", f"File {path} does not exist.")
        else:
            paths = {*self.files, *self.folders} - {path}
            names = sorted(one for p in paths if p.startswith(below) and "/" not in (one := p[len(below) :]))
            found = [_status(one, self.files.get(below + one)) for one in names]
        return _json({"FileStatuses": {"FileStatus": found}})

    def _data(self, path: str, query: dict[str, str], content: bytes, fault: str) -> Reply:
        if query["op"] == "CREATE":
            if path in self.files and query.get("overwrite") != "true":
                return _refused("FileAlreadyExistsException", path)
            self.put(path, content)
            return Reply(504 if fault else 201, "")
        data = self.files[path].data
        first = int(query.get("offset", 0))
        if first > len(data):
            return _refused("IOException", f"Offset={first} out of the range")
        return Reply(200, data[first : first + int(query.get("length", len(data)))], cut=bool(fault))


def web_connection(
    host: str | None = None, login: str | None = None, conn_type: str = "webhdfs", **fields: Any
) -> SimpleNamespace:
    """An Airflow connection; further fields than those of each connection are its extra."""
    own = {name: fields.pop(name, None) for name in ("port", "password", "schema")}
    return SimpleNamespace(
        conn_id="lake", conn_type=conn_type, host=host, login=login, extra_dejson=fields, **own
    )


def _json(value: Any, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value))


def _refused(name: str, message: str) -> Reply:
    status = 404 if name == "FileNotFoundException" else 403
    return _json({"RemoteException": {"exception": name, "message": message}}, status)


def _status(name: str, file: _File | None) -> dict[str, Any]:
    if file is None:
        return {"pathSuffix": name, "type": "DIRECTORY", "length": 0, "modificationTime": 1, "fileId": 2}
    facts = {"length": len(file.data), "modificationTime": file.modified_ms, "fileId": file.number}
    return {"pathSuffix": name, "type": "FILE", **facts}


@contextmanager
def fake_webhdfs() -> Iterator[FakeHdfs]:
    hdfs = FakeHdfs()
    with (
        serving(partial(hdfs.answer, "name")) as hdfs.port,
        serving(partial(hdfs.answer, "data")) as hdfs.data_port,
    ):
        yield hdfs
