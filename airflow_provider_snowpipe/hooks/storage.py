"""Small files at any address of Airflow's object storage; paths are what :func:`storage_path` makes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

from airflow_provider_snowpipe.streaming.arguments import without_secrets
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

_HADOOP_LIBRARIES = ("libhdfs", "libjvm")
"""What pyarrow, by which fsspec reads ``hdfs://``, loads and does not bring."""


def storage_path(address: str, conn_id: str | None) -> Any:
    """Make an ``ObjectStoragePath``."""
    from airflow.providers.common.compat.sdk import ObjectStoragePath

    if not isinstance(address, str) or not address:
        raise ConfigurationError(f"the address of a file is {address!r}: give a path or a URL")
    kind, separator, rest = address.partition("://")
    if separator and not rest.strip("/"):
        raise ConfigurationError(
            f"the address {address!r} names no file and no folder: write it whole, "
            f"such as {kind}://{'' if kind == 'file' else 'bucket'}/folder"
        )
    if (shown := without_secrets(address)) != address:
        raise ConfigurationError(
            f"the address {shown!r} holds a password, which logs would show: give the id of a connection"
        )
    try:
        return ObjectStoragePath(address, conn_id=conn_id) if conn_id else ObjectStoragePath(address)
    except (ValueError, ImportError) as error:
        raise ConfigurationError(
            f"the address {address!r} cannot be used ({error}): install the provider for its kind of storage"
        ) from None


def file_system(path: Any) -> Any:
    """The fsspec file system behind a path, which lists many files at once.

    Storage that no provider brings is left to fsspec, as Airflow's own paths do since 3.2.
    """
    import fsspec

    try:
        try:
            return path.fs
        except ValueError:
            return fsspec.filesystem(path.protocol, **path.storage_options)
    except OSError as error:
        if not any(library in str(error) for library in _HADOOP_LIBRARIES):
            raise
        raise ConfigurationError(
            f"{path} cannot be read ({error}): hdfs:// needs Hadoop's native client on this machine: "
            "libhdfs, libjvm, and in CLASSPATH what `hadoop classpath --glob` prints; or name a folder "
            "that needs none, such as s3://… or a shared directory"
        ) from None
    except (ValueError, ImportError) as error:
        raise ConfigurationError(
            f"{path} cannot be read ({error}): install the provider for its kind of storage"
        ) from None


def files_below(path: Any) -> dict[str, dict[str, Any]]:
    """What a file system has below a path, or of the file that it is, by key.

    Folders that cannot be listed are an error, and links to files are files; fsspec leaves both out.
    """
    from fsspec import AbstractFileSystem

    files, start = file_system(path), str(path.path).rstrip("/")
    if files.async_impl or type(files).find is not AbstractFileSystem.find:
        return dict(files.find(start, detail=True))  # an object store's own, of one listing
    found: dict[str, dict[str, Any]] = {}
    folders = [start]
    while folders:
        folder = folders.pop()
        try:
            listed = files.ls(folder, detail=True)
        except FileNotFoundError:
            continue  # it went meanwhile, or never was
        for one in listed:
            if one["type"] == "directory":
                folders += [one["name"]] if one["name"].rstrip("/") != folder else []
            elif one.get("islink") and os.path.isfile(one["name"]):
                found[one["name"]] = {**one, "type": "file"}
            else:
                found[one["name"]] = one
    return found


def read_text(path: Any) -> str | None:
    """Read a file, None where there is none."""
    try:
        text: str = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise ConfigurationError(f"{path} is a directory: name a file") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not text in UTF-8: name another file ({error})") from None
    return text


def write_text(path: Any, text: str) -> None:
    """Write a file as a whole or not at all, on this machine readable by its owner only."""
    if path.protocol not in ("file", "local", ""):
        path.write_text(text)
        return
    target = Path(path.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid4().hex}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def read_bytes(path: Any, most: int) -> bytes:
    """Read a file of bounded size; one byte more than that where it is larger."""
    try:
        with path.open("rb") as file:
            body: bytes = file.read(most + 1)
    except FileNotFoundError:
        raise ConfigurationError(f"there is no file {path}: name one that exists") from None
    return body
