"""Files in a bucket or a container, read by obstore, Rust's ``object_store``.

It lists as Arrow batches, reads ranges of one version of an object, repeats failed requests itself, and
creates an object only where there is none. Neither ``pyarrow.fs`` nor fsspec has the last three for all
stores.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.files.remote_storage import (
    RemoteStorage,
    gone,
    incomplete,
    rewritten,
)
from airflow_provider_snowpipe.spark.sources.files.storage import LOG_FOLDER, Listed, bucket_of
from airflow_provider_snowpipe.spark.sources.files.storage_options import identity_of
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    SnowpipeError,
    SourceMissingError,
    SourceUnavailableError,
)

_RETRY = {"max_retries": 10, "retry_timeout": dt.timedelta(seconds=60)}
_CLIENT = {"connect_timeout": dt.timedelta(seconds=5), "timeout": dt.timedelta(seconds=30)}


class ObjectStorage(RemoteStorage):
    """A bucket or a container, or what is below a prefix of it."""

    @property
    def renames(self) -> bool:
        """False: a renamed object is a copy."""
        return False

    @property
    def _client(self) -> Any:
        return _client_of(os.getpid(), bucket_of(self.root), tuple(self.options.values.items()))

    def files(self, depth: int | None = None) -> Iterator[Listed]:
        """List the objects that have content: a mark of a folder looks like an object without any."""
        import obstore
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            with self._asking("list", self.root):
                prefix = self._path(self.root)
                for batch in obstore.list(self._client, prefix, chunk_size=1_000, return_arrow=True):
                    listed = pa.record_batch(batch)
                    times = listed.column("last_modified").cast(pa.timestamp("ns", "UTC")).cast(pa.int64())
                    names = pc.utf8_slice_codeunits(listed.column("path"), len(prefix.rstrip("/")))
                    columns = [names, listed.column("size"), times, listed.column("e_tag")]
                    for name, size, modified, tag in zip(*(c.to_pylist() for c in columns), strict=True):
                        if size and (depth is None or name.count("/") < depth or f"/{LOG_FOLDER}/" in name):
                            yield Listed(name, size, modified, _version(tag))
        except FileNotFoundError:
            raise SourceMissingError(
                f"source path {self.root!r}: there is no such bucket: create it, or correct the path"
            ) from None

    def stat(self, path: str) -> Listed:
        """Describe one object."""
        import obstore

        with self._asking("head", path):
            found = obstore.head(self._client, self._path(path))
        time, version = _nanoseconds(found["last_modified"]), _version(found["e_tag"])
        return Listed(self._name(path), found["size"], time, version)

    def create(self, name: str, data: bytes) -> bool:
        """Create an object by a conditional request, ``If-None-Match: *``."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._asking("put", path := self.path(name)):
            try:
                obstore.put(self._client, self._path(path), data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def read(self, name: str) -> bytes:
        """Read a whole object."""
        import obstore

        with self._asking("get", path := self.path(name)):
            return bytes(obstore.get(self._client, self._path(path)).bytes())

    def get(self, path: str, version: str, first: int, end: int) -> memoryview:
        """Read a range of one version of an object."""
        import obstore
        from obstore.exceptions import PreconditionError

        options: dict[str, Any] = {"range": (first, end)}
        if version:
            options["if_match"] = f'"{version}"'
        try:
            with self._asking("get", path):
                data = obstore.get(self._client, self._path(path), options=options).bytes()  # type: ignore[arg-type]
        except PreconditionError:
            raise rewritten(path) from None
        except FileNotFoundError:
            raise gone(path) from None
        if len(data) != end - first:
            raise incomplete(path, len(data), end - first)
        return memoryview(data)

    def delete(self, name: str) -> None:
        """Delete an object."""
        import obstore

        with suppress(FileNotFoundError), self._asking("delete", path := self.path(name)):
            obstore.delete(self._client, self._path(path))

    def move(self, path: str, target: str) -> None:
        """Copy an object within its bucket, and delete it then."""
        import obstore

        try:
            self.stat(target)
        except FileNotFoundError:
            with self._asking("copy", target):
                obstore.copy(self._client, self._path(path), self._path(target))
            self.delete(self._name(path))
        else:
            raise FileExistsError(17, "an object is there already", target)

    @contextmanager
    def _asking(self, what: str, url: str) -> Iterator[None]:
        """Name a request that failed: what listings report is known by its status only."""
        from obstore.exceptions import BaseError, InvalidPathError, PreconditionError

        try:
            yield
        except PreconditionError:
            raise
        except FileNotFoundError:
            raise FileNotFoundError(2, "no such object or bucket", url) from None
        except InvalidPathError as error:
            text = _reported(error, self.options)
            raise ConfigurationError(
                f"{url!r} has an object whose name cannot be read ({text}): rename it, or give a path that "
                "does not hold it"
            ) from None
        except BaseError as error:
            text = _reported(error, self.options)
            found = re.search(r"status code: (\d+)", str(error))
            status = int(found[1]) if found else 0
            if status == 404:
                raise FileNotFoundError(2, "no such object or bucket", url) from None
            for kind, statuses, mark, remedy in _REFUSALS:
                if status in statuses or (mark and re.search(mark, str(error))):
                    raise kind(f"{url!r}: the request {what} failed ({text}): {remedy}") from None
            raise SourceUnavailableError(
                f"{url!r}: the request {what} failed ({text}): see whether the store answers from the "
                "driver and the executors"
            ) from None


@lru_cache(maxsize=8)
def _client_of(process: int, bucket: str, options: tuple[tuple[str, str], ...]) -> Any:
    """Obstore's client of a bucket: all that a process asks of it shares connections and credentials.

    :param process: its id; connections must not be inherited by a forked one
    """
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    values: dict[str, Any] = dict(options)
    account = values.get("azure_storage_account_name")
    if account and "@" in bucket and bucket.partition("@")[2].partition(".")[0] != account:
        raise ConfigurationError(
            f"source path {bucket!r} is in another account than {account!r}, which the connection of "
            "conn_id is for: correct one of them"
        )
    client = {**_CLIENT, "allow_http": values.pop("allow_http", "") == "true"}
    client["timeout"] = values.pop("timeout", client["timeout"])
    identity = identity_of(values)
    try:
        bucket = bucket.replace("s3a:", "s3:", 1)
        return from_url(bucket, config=values, client_options=client, retry_config=_RETRY, **identity)  # type: ignore[call-overload]
    except (BaseError, ValueError) as error:
        text = _reported(error, SourceSecrets(dict(options)))
        raise ConfigurationError(
            f"source path {bucket!r}: its client cannot be made ({text}): correct the URL, or the connection "
            "that conn_id names"
        ) from None


def _reported(error: Exception, options: SourceSecrets) -> str:
    """The client's words: what is known of the request's fate, never a body or a query with a secret."""
    whole = str(error)
    known = [found[1] for one in _FATES if (found := re.search(one, whole))]
    text = ", ".join(known) or re.sub(r"\?[^\s\"')]*", "", " ".join(whole.partition("\n\n")[0].split()))
    for value in options.values.values():
        if len(value) > 5:
            text = text.replace(value, "…")
    return text[:200].rstrip()


_FATES = (
    r"status code: (\d+[\w ]*)",
    r"<Code>(\w+)</Code>",
    r"HttpError \{\s*kind: (\w+)",
    r'message: "([^"]+)"',
    r"(after \d+ retries)",
)
# Without a status the client has not sent the request.
_REFUSALS: tuple[tuple[type[SnowpipeError], tuple[int, ...], str, str], ...] = (
    (
        ConfigurationError,
        (401, 403),
        "",
        "allow it to the identity of the source's conn_id, or of driver and executors where there is none",
    ),
    (
        ConfigurationError,
        (301, 307, 400),
        "redirect|builder error",
        "correct region and endpoint in the connection that conn_id names",
    ),
    (
        SourceUnavailableError,
        (),
        "token request|credential",
        "give conn_id, or an identity to driver and executors",
    ),
)


def _version(e_tag: str | None) -> str:
    """An ETag as all requests state it: listings of Azure leave its quotes out."""
    return (e_tag or "").strip('"')


def _nanoseconds(time: dt.datetime) -> int:
    return round(time.timestamp() * 1_000_000) * 1_000
