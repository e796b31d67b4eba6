"""Addresses of kinds of storage that no provider of Airflow brings, and files that are written as a whole."""

import os
import stat
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_snowpipe.hooks.storage import file_system, storage_path, write_text
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.refusals import refused


def test_the_host_of_an_address_is_the_one_that_is_asked(monkeypatch):
    asked = []

    def made(protocol, **options):
        asked.append({"protocol": protocol, **options})
        return MemoryFileSystem()

    path = storage_path("hdfs://second:8021/loads", None)
    monkeypatch.setattr(fsspec, "filesystem", made)

    file_system(path)

    assert asked == [{"protocol": "hdfs", "host": "second", "port": 8021}]


def test_an_address_without_a_bucket_or_with_a_password_is_refused_without_it():
    for address in ("s3://", "gs:///", "file:///"):
        refused(ConfigurationError, lambda one: storage_path(one, None), [address], address, "folder")
    secret = ["sftp://me:hush@host/in", "https://me:hush@host:8443/a@b", "s3://:hush@bucket/a"]
    for error in refused(ConfigurationError, lambda one: storage_path(one, None), secret, "password"):
        assert "hush" not in str(error)
    assert str(storage_path("file://my_conn@/in/a", None)).endswith("/in/a"), "the id of a connection"


def test_only_a_machine_without_hadoops_client_is_a_mistake_of_configuration(monkeypatch):
    path = storage_path("hdfs://name:8020/loads", None)

    def opened(text):
        def made(*_, **__):
            raise OSError(text)

        monkeypatch.setattr(fsspec, "filesystem", made)
        file_system(path)

    missing = [f"Unable to load {library}" for library in ("libhdfs", "libjvm")]
    refused(ConfigurationError, opened, missing, "Unable to load", "hadoop classpath", "s3://")
    refused(OSError, opened, ["HDFS connection failed"], "connection failed")


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

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_text(storage_path(str(file), None), "second")

    assert file.read_text() == "first"
    assert os.listdir(tmp_path) == ["report.json"]
