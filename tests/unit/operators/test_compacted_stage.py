"""Which files are found, and how many are read and brought to a worker before Spark combines them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest

from airflow_provider_snowpipe.bulk.run_files import CompactForm, CompactOptions, WrittenFile
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.account_operator import run_identity
from airflow_provider_snowpipe.operators.stage_files import CompactedStage, SourceFiles
from airflow_provider_snowpipe.spark.driver.plan import WriteReport
from airflow_provider_snowpipe.streaming.errors import SourceUnavailableError
from tests.airflow_version import AIRFLOW
from tests.fake_account import FakeAccount
from tests.unit.operators.account_in_task import task_context

FORM = CompactForm("ndjson", ".ndjson", header=False, splits=True)


def stage(source: SourceFiles, parallel: int = 3) -> CompactedStage:
    hook: Any = None
    return CompactedStage(hook, "@S", source, CompactOptions(), parallel)


class TestStaged:
    """The ledger shows what is staged of a content: each attempt has files of its own, and one counts."""

    @pytest.fixture
    def account(self, account: FakeAccount, tmp_path: Path) -> FakeAccount:
        (tmp_path / "in").mkdir()
        for name in ("a.ndjson", "b.ndjson"):
            (tmp_path / "in" / name).write_text("{}\n")
        return account

    @staticmethod
    def attempt(tmp_path: Path, number: int, named: str = "@S/day", late: Any = None) -> list[str]:
        """Let a task look for what is staged, and write and stage it where nothing is; the files' paths."""
        source = SourceFiles([str(tmp_path / "in")])
        files = source.find()
        hook = SnowpipeBulkHook("account")
        work = CompactedStage(hook, named, source, CompactOptions(kind="ndjson"), 2)
        context = task_context(f"r{number}")

        class Writer:
            @contextmanager
            def writing(self, *_: Any) -> Iterator[WriteReport]:
                if late is not None:
                    late()
                folder = tmp_path / f"out{number}" / f"a{number}"
                folder.mkdir(parents=True)
                (folder / "1.ndjson.gz").write_text("rows")
                report = WriteReport(
                    "app", folder.as_uri(), f"a{number}", (WrittenFile("1.ndjson.gz", 4, 2),)
                )
                yield report

        writer: Any = Writer()
        found = work.staged(run_identity(context), files)
        return work.names(found or work.made(context, writer, files, FORM))

    def test_the_same_content_is_staged_once_however_the_stage_is_spelled(
        self, account: FakeAccount, tmp_path: Path
    ) -> None:
        first = self.attempt(tmp_path, 1)
        assert self.attempt(tmp_path, 2) == self.attempt(tmp_path, 3, "@local.PUBLIC.S/day") == first
        assert [f"day/{name}" for name in first] == list(account.stages["S"])

    def test_of_two_attempts_the_first_that_is_in_the_ledger_counts(
        self, account: FakeAccount, tmp_path: Path
    ) -> None:
        early: list[str] = []
        late = self.attempt(tmp_path, 1, late=lambda: early.extend(self.attempt(tmp_path, 2)))
        assert late == early
        assert "/a2/" in late[0]
        assert len(account.stages["S"]) == 2

    def test_files_that_were_removed_are_staged_again(self, account: FakeAccount, tmp_path: Path) -> None:
        self.attempt(tmp_path, 1)
        account.stages["S"].clear()
        again = self.attempt(tmp_path, 2)
        assert [f"day/{name}" for name in again] == list(account.stages["S"])
        assert self.attempt(tmp_path, 3) == again


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
        with pytest.raises(SourceUnavailableError, match="denied"):
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
