"""Files in Hadoop's file system: ``webhdfs://`` by HTTP (WebHDFS, HttpFS), and ``hdfs://`` by RPC."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from threading import Thread
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import quote, urlsplit
from uuid import uuid4

import requests

from airflow_provider_snowpipe.spark.sources.files.remote_storage import (
    RemoteStorage,
    gone,
    incomplete,
    rewritten,
)
from airflow_provider_snowpipe.spark.sources.files.storage import LOG_FOLDER, Listed
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    SnowpipeError,
    SourceMissingError,
    SourceUnavailableError,
)
from airflow_provider_snowpipe.streaming.http import (
    DEFAULT_TIMEOUTS,
    ProvenSession,
    certificate_authorities,
    raise_if_untrusted,
)


class HadoopStorage(RemoteStorage):
    """A folder of Hadoop's file system."""

    @property
    def renames(self) -> bool:
        """True over WebHDFS, which shows a file's number; size and time alone may be another's."""
        return self.root.startswith("webhdfs:")

    @cached_property
    def _client(self) -> _Client:
        scheme, _, rest = self.root.partition("://")
        name, options = rest.partition("/")[0], self.options.values
        hosts = [one for one in options.get("hadoop_hosts", "").split(",") if one]
        if not all(key.startswith("hadoop_") for key in options):
            raise ConfigurationError(
                f"source path {self.root!r} has a conn_id of another kind of store: give a connection of "
                "type webhdfs or hdfs, or leave conn_id out"
            )
        if hosts and ":" in name and name not in hosts:
            raise ConfigurationError(
                f"source path {self.root!r} is on another host than {', '.join(hosts)}, which the connection "
                "of conn_id is for: correct one of them"
            )
        with self._asking("connect", self.root):
            if scheme == "webhdfs":
                return _WebClient(hosts or [name], options)
            return cast(_Client, _Bounded(_NativeClient(name, hosts, options)))

    def files(self, depth: int | None = None) -> Iterator[Listed]:
        """List the files, folder by folder."""
        folders = [("", 1)]
        while folders:
            below, level = folders.pop()
            folder = self.path(below).rstrip("/")
            try:
                with self._asking("list", folder):
                    found = self._client.list(self._path(folder))
            except FileNotFoundError:
                if below:
                    continue  # it went meanwhile
                raise self._missing("does not exist") from None
            for one in found:
                name = f"{below}{one.name}"
                if not one.name:
                    raise self._missing("is not a folder")
                if not one.is_folder:
                    yield _listed(name, one)
                elif depth is None or level < depth or LOG_FOLDER in name.split("/"):
                    folders.append((f"{name}/", level + 1))

    def _missing(self, state: str) -> SourceMissingError:
        return SourceMissingError(
            f"source path {self.root!r} {state}: give the URL of the folder that holds the files"
        )

    def stat(self, path: str) -> Listed:
        """Describe one file."""
        with self._asking("status", path):
            return _listed(self._name(path), self._client.status(self._path(path)))

    def get(self, path: str, version: str, first: int, end: int) -> memoryview:
        """Read a range, and compare the file's version then: Hadoop has no condition for reading."""
        data, failed = b"", None
        try:
            with suppress(FileNotFoundError), self._asking("open", path):
                data = self._client.read(self._path(path), first, end)
        except SnowpipeError as error:
            failed = error
        try:
            if self.stat(path).version != version:
                raise rewritten(path)
        except FileNotFoundError:
            raise gone(path) from None
        if failed is not None:
            raise failed
        if len(data) != end - first:
            raise incomplete(path, len(data), end - first)
        return memoryview(data)

    def create(self, name: str, data: bytes) -> bool:
        """Create a file: a whole one gets its name, which fails where that is taken."""
        path = self.path(name)
        whole = f"{path.rpartition('/')[0]}/.{uuid4().hex}"
        try:
            with self._asking("create", path):
                self._client.write(self._path(whole), data)
                self._client.rename(self._path(whole), self._path(path))
        except BaseException as error:
            with suppress(OSError, SnowpipeError):
                self.delete(self._name(whole))
            if isinstance(error, (FileExistsError, FileNotFoundError)):  # repeated, it may find itself done
                return False
            raise
        return True

    def read(self, name: str) -> bytes:
        """Read a whole file."""
        with self._asking("open", self.path(name)):
            return self._client.read(self._path(self.path(name)))

    def delete(self, name: str) -> None:
        """Delete a file."""
        with suppress(FileNotFoundError), self._asking("delete", self.path(name)):
            self._client.delete(self._path(self.path(name)))

    def move(self, path: str, target: str) -> None:
        """Rename a file."""
        with self._asking("rename", target):
            self._client.make_folder(self._path(target.rpartition("/")[0]))
            self._client.rename(self._path(path), self._path(target))

    @contextmanager
    def _asking(self, what: str, url: str) -> Iterator[None]:
        """Name a request that failed."""
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(2, "no such file or folder", url) from None
        except FileExistsError:
            raise FileExistsError(17, "a file is there already", url) from None
        except (OSError, RuntimeError) as error:
            reported = _reported(error)
            for mark, remedy in _REFUSALS:
                if re.search(mark, reported):
                    raise ConfigurationError(
                        f"{url!r}: the request {what} failed ({reported}): {remedy}"
                    ) from None
            raise SourceUnavailableError(
                f"{url!r}: the request {what} failed ({reported}): see whether name node and data nodes "
                "answer from the driver and the executors"
            ) from None


_RPC = re.compile(r'RPCError\("(?:\w+\.)*(?P<name>\w+)", "(?P<text>.*?)(?:\\n|"\))')
_REFUSALS = (
    (
        "HTTP 401|AuthenticationException|GSS|Gss|SASL|Sasl",
        "correct login and password in the connection of conn_id; for Kerberos give driver and executors a "
        "ticket, and for webhdfs:// the extra kerberos",
    ),
    (
        "AccessControlException|SecurityException",
        "allow it to the login of the source's conn_id, or to HADOOP_USER_NAME of driver and executors",
    ),
    (
        r"InvalidArgument|HTTP [34]\d\d",
        "correct host and port in the path, or in the connection of conn_id; a name of several hosts needs "
        "HADOOP_CONF_DIR",
    ),
)


def _reported(error: Exception) -> str:
    """The first line of what Hadoop or a client reports, without a query, which may hold a token."""
    found = _RPC.match(str(error))
    text = f"{found['name']}: {found['text']}" if found else str(error).partition("\n")[0]
    return re.sub(r"\?[^\s\"')]*", "", text)[:200].rstrip()


def _listed(name: str, found: _Status) -> Listed:
    node = (0, found.file_id) if found.file_id else ()
    version = "-".join(str(one) for one in (found.modified_ms, found.size, *node[1:]))
    return Listed(name, found.size, found.modified_ms * 1_000_000, version, node)


# -- The two protocols -----------------------------------------------------------------------------------


class _Status(NamedTuple):
    """A file or a folder.

    :param name: the last part of its path; empty where a file was listed as if it were a folder
    :param file_id: the number that it keeps when it is renamed, 0 where the protocol does not show it
    """

    name: str
    is_folder: bool
    size: int
    modified_ms: int
    file_id: int = 0


class _Client(Protocol):
    """What is asked of a name node, for paths within the file system.

    Errors are ``FileNotFoundError``, ``FileExistsError``, another ``OSError`` where there is no answer, and
    ``RuntimeError`` for any other answer.
    """

    def list(self, folder: str) -> Sequence[_Status]: ...
    def status(self, path: str) -> _Status: ...
    def read(self, path: str, first: int = 0, end: int | None = None) -> bytes: ...
    def write(self, path: str, data: bytes) -> None: ...
    def rename(self, path: str, target: str) -> None: ...
    def delete(self, path: str) -> None: ...
    def make_folder(self, path: str) -> None: ...


_PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Seconds before each attempt."""
_SECONDS = 120
"""For a whole call of hdfs-native, with its repetitions."""
_PASSING = ("StandbyException", "RetriableException", "HTTP 429", "HTTP 502", "HTTP 503", "HTTP 504")
_KINDS: Mapping[str, type[Exception]] = {
    "FileNotFoundException": FileNotFoundError,
    "FileAlreadyExistsException": FileExistsError,
}
_NO_ANSWER = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)


class _WebClient:
    """Asks by ``requests``.

    The client of fsspec drops the answer to a rename, which alone shows who has won; returns the text of a
    data node's error as the content of a file; and waits without a time-out.

    :param hosts: the name nodes; one is active
    """

    def __init__(self, hosts: Sequence[str], options: Mapping[str, str]) -> None:
        is_secure, schema = "hadoop_use_ssl" in options, options.get("hadoop_schema", "").strip("/")
        port = ":9871" if is_secure else ":9870"
        self._urls = [
            f"http{'s' * is_secure}://{one if ':' in one else one + port}{schema and '/' + schema}/webhdfs/v1"
            for one in hosts
        ]
        user = options.get("hadoop_user") or os.environ.get("HADOOP_USER_NAME")
        password = options.get("hadoop_password")
        self._query = {"user.name": user} if user and not password else {}
        self._session = ProvenSession()
        self._session.auth = (user or "", password) if password else _kerberos() or self._session.auth
        verify = options.get("hadoop_verify", "True")
        roots = {"true": certificate_authorities(None), "false": False}
        self._fixed = {"timeout": DEFAULT_TIMEOUTS, "verify": roots.get(verify.lower(), verify)}

    def list(self, folder: str) -> Sequence[_Status]:
        found = self._ask("GET", "LISTSTATUS", folder).json()
        return [_web_status(one) for one in found["FileStatuses"]["FileStatus"]]

    def status(self, path: str) -> _Status:
        return _web_status(self._ask("GET", "GETFILESTATUS", path).json()["FileStatus"])

    def read(self, path: str, first: int = 0, end: int | None = None) -> bytes:
        part = {} if end is None else {"offset": str(first), "length": str(end - first)}
        return self._ask("GET", "OPEN", path, part).content

    def write(self, path: str, data: bytes) -> None:
        self._ask("PUT", "CREATE", path, {"overwrite": "true"}, data)

    def rename(self, path: str, target: str) -> None:
        answer = self._ask("PUT", "RENAME", path, {"destination": target, "renameoptions": "NONE"})
        if answer.content and not answer.json()["boolean"]:  # of HttpFS, which knows no options
            raise FileExistsError

    def delete(self, path: str) -> None:
        self._ask("DELETE", "DELETE", path)

    def make_folder(self, path: str) -> None:
        self._ask("PUT", "MKDIRS", path)

    def _ask(
        self,
        method: str,
        op: str,
        path: str,
        query: Mapping[str, str] = MappingProxyType({}),
        data: bytes | None = None,
    ) -> requests.Response:
        """Ask the name nodes until one answers: each of these requests can be repeated."""
        failed = Exception()
        for pause in _PAUSES:
            time.sleep(pause)
            for url in tuple(self._urls):
                try:
                    parameters = {"op": op, **query, **self._query}
                    answer = self._send(method, f"{url}{quote(path)}", parameters, data)
                except _NO_ANSWER as error:
                    raise_if_untrusted(url, str(self._fixed["verify"]), error)
                    asked = urlsplit(error.request.url if error.request is not None else url).netloc
                    failed = OSError(f"{asked!s} does not answer, {type(error).__name__}")
                    continue
                if answer.ok:
                    self._urls = sorted(self._urls, key=url.__ne__)  # the active one is asked first
                    return answer
                failed = _failure(answer)
                if not str(failed).startswith(_PASSING):
                    raise failed
        raise failed

    def _send(self, method: str, url: str, query: Mapping[str, str], data: bytes | None) -> requests.Response:
        """Make one request; what is written goes to the data node that the name node names."""
        fixed: dict[str, Any] = dict(self._fixed)
        answer = self._session.request(method, url, params=query, allow_redirects=data is None, **fixed)
        if data is None or not answer.is_redirect:
            return answer
        location = answer.headers["Location"]
        if urlsplit(location)[:2] != urlsplit(url)[:2]:
            fixed["auth"] = lambda request: request  # the proof is for the name node
        headers = {"Content-Type": "application/octet-stream"}
        return self._session.request(method, location, data=data, headers=headers, **fixed)


def _web_status(found: Mapping[str, Any]) -> _Status:
    is_folder, file_id = found["type"] == "DIRECTORY", int(found.get("fileId", 0))
    return _Status(found["pathSuffix"], is_folder, found["length"], found["modificationTime"], file_id)


def _failure(answer: requests.Response) -> Exception:
    try:
        remote = answer.json()["RemoteException"]
        name, text = str(remote["exception"]), str(remote["message"])
    except (ValueError, KeyError, TypeError):
        return RuntimeError(f"HTTP {answer.status_code}")
    return _KINDS.get(name, RuntimeError)(f"{name}: {text}")


def _kerberos() -> Any:
    """Answers a name node that asks for Kerberos, by the ticket of this process; None where it cannot."""
    try:
        from requests_kerberos import HTTPKerberosAuth  # type: ignore[import-not-found]
    except ImportError:
        return None
    return HTTPKerberosAuth()


class _NativeClient:
    """Asks by hdfs-native, which needs neither Java nor libhdfs, as pyarrow's client does.

    It reads ``HADOOP_CONF_DIR``, ``HADOOP_TOKEN_FILE_LOCATION`` and a Kerberos ticket itself.

    :param name: the host and port of the path, or the name of several hosts
    :param hosts: those of a connection, none for what is configured by that name
    """

    def __init__(self, name: str, hosts: Sequence[str], options: Mapping[str, str]) -> None:
        try:
            from hdfs_native import Client, WriteOptions
        except ImportError:
            raise ConfigurationError(
                f"source path hdfs://{name}/… needs hdfs-native on the driver and the executors: install the "
                "extra hdfs, airflow-provider-snowpipe[hdfs], or give a path with webhdfs://"
            ) from None
        user = options.get("hadoop_user")
        if "hadoop_password" in options or user not in (None, os.environ.get("HADOOP_USER_NAME")):
            raise ConfigurationError(
                f"source path hdfs://{name}/… has a connection with the login {user!r}, and its client takes "
                "the user from HADOOP_USER_NAME only, and no password: set that variable for driver and "
                "executors and clear both in the connection, or give a path with webhdfs://"
            )
        settings = {"dfs.client.failover.max.attempts": str(len(_PAUSES))}
        if len(hosts) > 1:
            name = name.partition(":")[0]
            settings[f"dfs.ha.namenodes.{name}"] = ",".join(str(at) for at in range(len(hosts)))
            settings |= {f"dfs.namenode.rpc-address.{name}.{at}": one for at, one in enumerate(hosts)}
        self._client = Client(f"hdfs://{hosts[0] if len(hosts) == 1 else name}", settings)
        self._overwrite = WriteOptions(overwrite=True, create_parent=True)

    def list(self, folder: str) -> Sequence[_Status]:
        found = self._client.list_status(folder)
        below = len(folder.rstrip("/")) + 1
        return [_native_status(one, one.path[below:]) for one in found]

    def status(self, path: str) -> _Status:
        return _native_status(self._client.get_file_info(path), path)

    def read(self, path: str, first: int = 0, end: int | None = None) -> bytes:
        stream = self._client.read(path)
        end = len(stream) if end is None else end
        if len(stream) < end:  # the library panics
            raise OSError(f"the file ends at byte {len(stream)}")
        return stream.read_range(first, end - first)

    def write(self, path: str, data: bytes) -> None:
        with self._client.create(path, self._overwrite) as out:
            out.write(data)

    def rename(self, path: str, target: str) -> None:
        self._client.rename(path, target)

    def delete(self, path: str) -> None:
        self._client.delete(path)

    def make_folder(self, path: str) -> None:
        self._client.mkdirs(path, create_parent=True)


class _Bounded:
    """A client whose every call ends in time, and can be interrupted: hdfs-native waits without an end."""

    def __init__(self, client: _NativeClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, getattr(self._client, name))

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        answer: Future[Any] = Future()

        def ask() -> None:
            try:
                answer.set_result(method(*arguments))
            except BaseException as error:  # noqa: BLE001  a panic of Rust is none of Exception
                answer.set_exception(error if isinstance(error, Exception) else RuntimeError(str(error)))

        Thread(target=ask, daemon=True).start()
        if not wait([answer], _SECONDS).done:
            raise OSError(f"no answer in {_SECONDS} s")
        return answer.result()


def _native_status(found: Any, name: str) -> _Status:
    return _Status(name, found.isdir, found.length, found.modification_time)
