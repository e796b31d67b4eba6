"""Few rows on a local master, loaded by a task and its driver where there is neither Java nor PySpark."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.local_connection import ids
from tests.local_service import LocalService
from tests.spark_job import numbered_name, write_rows
from tests.stream_worker import FileState, execute, start_worker


@dataclass
class Lab:
    """A task whose tries are processes of their own.

    :param folder: has the source, what the tries keep, and their log
    """

    service: LocalService
    folder: Path
    table: str

    @property
    def source(self) -> Path:
        return self.folder / "src"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def write(self, name: str, ids: range) -> None:
        write_rows(self.source / name, ids)

    def given(self, options: dict[str, Any]) -> dict[str, Any]:
        given = {"source": {"path": str(self.source)}, "table": self.table, "channel_prefix": "p"}
        return {**given, **options}

    def start(self, **options: Any) -> subprocess.Popen[bytes]:
        """Run a try in a process of its own."""
        return start_worker(self.given(options), self.folder / "state.json", self.folder / "log")

    def run(self, **options: Any) -> dict[str, Any]:
        """Run a try in this process."""
        return execute(self.given(options), FileState(self.folder / "state.json"))


def no_java_no_pyspark(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Leave no Java on the path, and a PySpark that cannot be imported."""
    package = folder / "lib" / "pyspark"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('PySpark is imported')\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    patch.setenv("PATH", str(folder / "bin"))
    patch.delenv("JAVA_HOME", raising=False)
    patch.setenv("PYTHONPATH", os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def lab(local_service: LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    for name, value in local_service.env.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    no_java_no_pyspark(tmp_path, monkeypatch)
    return Lab(local_service, tmp_path, numbered_name("FEW"))


def test_rows_are_loaded_once_and_then_from_where_they_were_left(lab):
    lab.write("a/1.ndjson", range(300))
    lab.write("b/1.ndjson", range(300, 500))

    assert lab.start(create_table="if_missing").wait(240) == 0, lab.log
    lab.write("b/1.ndjson", range(500, 600))
    lab.write("c/1.ndjson", range(600, 700))
    second = lab.run()

    assert ids(lab.service, lab.table) == list(range(700))
    assert "snowpipe start channels=2" in lab.log
    assert second["rows"] == 200
    assert [one["rows"] for one in second["channels"].values()] == [0, 100, 100]
    assert all(one["committed"] for one in second["channels"].values())
    assert list((lab.folder / "tmp").glob("snowpipe-*")) == []
