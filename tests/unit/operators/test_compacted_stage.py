"""Which files are found, and how many are read and brought to a worker before Spark combines them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec
import pytest

from airflow_provider_snowpipe.bulk.run_files import CompactForm, CompactOptions
from airflow_provider_snowpipe.operators.stage_files import CompactedStage, SourceFiles
from airflow_provider_snowpipe.streaming.errors import SourceUnavailableError
from tests.airflow_version import AIRFLOW

FORM = CompactForm("ndjson", ".ndjson", header=False, splits=True)


def stage(source: SourceFiles, parallel: int = 3) -> CompactedStage:
    hook: Any = None
    return CompactedStage(hook, "@S", source, CompactOptions(), parallel)


class TestFound:
    """Which files of a folder are staged: all that there are, or the task fails."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("a.csv", "closed/b.csv", "open/c.csv"):
            (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "in" / name).write_text("1\n")
        return tmp_path / "in"

    @pytest.mark.parametrize("error", [PermissionError(13, "denied"), FileNotFoundError(2, "gone")])
    def test_a_folder_that_may_not_be_read_is_refused_and_one_that_went_meanwhile_is_empty(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
    ) -> None:
        scan = os.scandir

        def scandir(path: Any) -> Any:
            if Path(path) == folder / "closed":
                raise error
            return scan(path)

        monkeypatch.setattr(os, "scandir", scandir)
        source = SourceFiles([str(folder)])
        if isinstance(error, FileNotFoundError):
            assert [file.below for file in source.find()] == ["a.csv", "open/c.csv"]
            return
        with pytest.raises(SourceUnavailableError, match=r"cannot be listed: .*denied"):
            source.find()

    def test_a_link_to_a_file_is_one_and_a_link_to_nothing_or_to_a_folder_is_none(self, folder: Path) -> None:
        (folder / "closed" / "b.csv").write_text("1\n2\n")
        (folder / "linked.csv").symlink_to(folder / "closed" / "b.csv")
        (folder / "broken.csv").symlink_to(folder / "gone.csv")
        (folder / "again").symlink_to(folder)

        found = {file.below: file.size for file in SourceFiles([str(folder)]).find()}
        assert found == {"a.csv": 2, "closed/b.csv": 4, "linked.csv": 4, "open/c.csv": 2}
        assert [file.below for file in SourceFiles([str(folder / "a.csv")]).find()] == ["a.csv"]
        assert SourceFiles([str(folder / "none.csv")]).find() == []


@pytest.mark.parametrize("count", [2, 303])
def test_every_file_of_this_machine_is_read_where_it_is_in_order(tmp_path, count):
    (tmp_path / "in").mkdir()
    for number in range(count):
        (tmp_path / "in" / f"{number:05}.ndjson").write_text("{}\n")
    source = SourceFiles([str(tmp_path / "in")])

    paths = stage(source)._here(source.find(), tmp_path / "brought", FORM)

    assert paths == [str(tmp_path / "in" / f"{number:05}.ndjson") for number in range(count)]
    assert list((tmp_path / "brought").iterdir()) == []


@pytest.mark.skipif(AIRFLOW < (3, 2), reason="before Airflow 3.2 a provider has to bring each storage")
def test_objects_of_a_store_are_fetched_in_order_and_a_missing_one_is_reported(tmp_path):
    store = fsspec.filesystem("memory")
    store.pipe({f"/brought/{number:03}.ndjson": b"%d\n" % number for number in range(100)})
    source = SourceFiles(["memory:///brought"])
    files = source.find()

    paths = stage(source)._here(files, tmp_path / "one", FORM)
    assert [Path(path).read_text() for path in paths] == [f"{number}\n" for number in range(100)]

    store.rm("/brought/050.ndjson")
    with pytest.raises(SourceUnavailableError, match=r"050\.ndjson"):
        stage(source)._here(files, tmp_path / "two", FORM)
    store.rm("/brought", recursive=True)
