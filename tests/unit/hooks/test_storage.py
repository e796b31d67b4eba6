"""Addresses of kinds of storage that no provider of Airflow brings, and files that are written as a whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_snowpipe.hooks.storage import file_system, storage_path, write_text
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


def test_the_host_of_an_address_is_the_one_that_is_asked(monkeypatch):
    asked: list[dict[str, Any]] = []

    def made(protocol: str, **options: Any) -> MemoryFileSystem:
        asked.append({"protocol": protocol, **options})
        return MemoryFileSystem()

    path = storage_path("hdfs://second:8021/loads", None)
    monkeypatch.setattr(fsspec, "filesystem", made)

    file_system(path)

    assert asked == [{"protocol": "hdfs", "host": "second", "port": 8021}]


@pytest.mark.parametrize("address", ["s3://", "gs:///", "file:///"])
def test_an_address_without_a_bucket_or_a_folder_is_refused(address):
    with pytest.raises(ConfigurationError, match=f"'{address}' names no file and no folder.*/folder"):
        storage_path(address, None)


@pytest.mark.parametrize("library", ["libhdfs", "libjvm"])
def test_a_machine_without_hadoops_client_is_a_mistake_of_configuration(monkeypatch, library):
    def made(*_: Any, **__: Any) -> None:
        raise OSError(f"Unable to load {library}")

    path = storage_path("hdfs://name:8020/loads", None)
    monkeypatch.setattr(fsspec, "filesystem", made)

    with pytest.raises(ConfigurationError, match=rf"Unable to load {library}.*hadoop classpath.*s3://"):
        file_system(path)


def test_a_storage_that_is_away_is_no_mistake_of_configuration(monkeypatch):
    def made(*_: Any, **__: Any) -> None:
        raise OSError("HDFS connection failed")

    path = storage_path("hdfs://name:8020/loads", None)
    monkeypatch.setattr(fsspec, "filesystem", made)

    with pytest.raises(OSError, match="connection failed"):
        file_system(path)


def test_a_file_of_this_machine_is_for_its_owner_only_and_replaced_as_a_whole(tmp_path):
    file = tmp_path / "folder" / "report.json"
    write_text(storage_path(str(file), None), "first")
    reader = file.open()

    write_text(storage_path(str(file), None), "second")

    assert (reader.read(), file.read_text()) == ("first", "second")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "report.json"
    write_text(storage_path(str(file), None), "first")

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_text(storage_path(str(file), None), "second")

    assert file.read_text() == "first"
    assert os.listdir(tmp_path) == ["report.json"]


@pytest.mark.parametrize(
    "address", ["sftp://me:hush@host/in", "https://me:hush@host:8443/a@b", "s3://:hush@bucket/a"]
)
def test_an_address_with_a_password_is_refused_without_it(address: str) -> None:
    with pytest.raises(ConfigurationError, match="holds a password") as refused:
        storage_path(address, None)

    assert "hush" not in str(refused.value)


def test_the_id_of_a_connection_is_part_of_an_address() -> None:
    assert str(storage_path("file://my_conn@/in/a", None)).endswith("/in/a")
