"""``SnowpipeStageFilesOperator`` against a real local service: PUT by the connector, once for each file."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_snowpipe.hooks.account_sql import AccountSql
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.operators.stage_files import SnowpipeStageFilesOperator
from airflow_provider_snowpipe.streaming.errors import NothingStagedError, SqlError
from tests.airflow_connections import SetConnection, set_connection
from tests.airflow_version import AIRFLOW
from tests.file_pipes import PipePlace, make_place, place, task_context
from tests.local_connection import connect, connect_by_form
from tests.local_service import LocalService

__all__ = ["make_place", "place", "set_connection"]


def write(folder: Path, files: Mapping[str, str]) -> str:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return str(folder)


def operator(place: PipePlace, source: Any, **arguments: Any) -> SnowpipeStageFilesOperator:
    given: dict[str, Any] = {"snowflake_conn_id": place.conn_id, "stage": f"@{place.stage}", **arguments}
    return SnowpipeStageFilesOperator(task_id="stage", source=source, **given)


def stage(place: PipePlace, source: Any, **arguments: Any) -> dict[str, Any]:
    return operator(place, source, **arguments).execute(task_context())


def listed(place: PipePlace) -> dict[str, int]:
    """Sizes by the names below the stage."""
    rows = place.service.sql(f"LIST @{place.stage}")
    return {str(row["name"]).partition("/")[2]: int(row["size"]) for row in rows}


class TestSources:
    @pytest.mark.parametrize("define", [connect, connect_by_form], ids=["snowflake", "snowpipe"])
    def test_a_folder_keeps_its_paths_below_the_stages(
        self,
        place: PipePlace,
        local_service: LocalService,
        set_connection: SetConnection,
        tmp_path: Path,
        define: Any,
    ) -> None:
        place.conn_id = define(local_service, set_connection)
        source = write(tmp_path / "in", {"a.csv": "1,x\n", "ny/b.csv": "2,xy\n"})
        done = stage(place, source, stage=f"@{place.stage}/day")

        assert listed(place) == {"day/a.csv": 4, "day/ny/b.csv": 5}
        assert done == {
            "stage": f"@{place.stage}/day",
            "files": ["a.csv", "ny/b.csv"],
            "uploaded": ["a.csv", "ny/b.csv"],
            "skipped": [],
            "bytes": 9,
            "bytes_uploaded": 9,
        }

    def test_files_and_folders_may_be_listed_and_narrowed(self, place: PipePlace, tmp_path: Path) -> None:
        folder = write(tmp_path / "in", {"a.csv": "1,x\n", "a.txt": "?"})
        one = write(tmp_path / "other", {"one.csv": "2,x\n"}) + "/one.csv"
        done = stage(place, f'["{folder}", "file://{one}"]', pattern="*.csv")

        assert done["files"] == ["a.csv", "one.csv"]
        assert sorted(listed(place)) == ["a.csv", "one.csv"]

    @pytest.mark.skipif(AIRFLOW < (3, 2), reason="before Airflow 3.2 a provider has to bring each storage")
    def test_objects_of_a_store_are_brought_here_and_left_nowhere(
        self, place: PipePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        store = fsspec.filesystem("memory")
        store.pipe({f"/landing/{place.table}/ny/a.csv": b"1,x\n", f"/landing/{place.table}/b.csv": b"2,x\n"})
        done = stage(place, f"memory:///landing/{place.table}")

        assert done["files"] == ["b.csv", "ny/a.csv"]
        assert listed(place) == {"b.csv": 4, "ny/a.csv": 4}
        assert list(tmp_path.glob("snowpipe-stage-*")) == []

    def test_names_with_quotes_blanks_and_signs_of_patterns_are_names(
        self, place: PipePlace, tmp_path: Path
    ) -> None:
        names = {"it's a [file] (1).csv": "1,x\n", "what?.csv": "2,x\n", "all*.csv": "3,x\n"}
        stage(place, write(tmp_path / "in", names))

        assert listed(place) == dict.fromkeys(names, 4)

    def test_the_names_are_what_copy_takes(self, place: PipePlace, tmp_path: Path) -> None:
        context = task_context()
        source = write(tmp_path / "in", {"a.csv": "1,x\n", "ny/b.csv": "2,x\n"})
        operator(place, source, stage=f"@{place.stage}/day").execute(context)
        SnowpipeCopyOperator(
            task_id="copy",
            table=place.table,
            stage=f"@{place.stage}/day",
            files=context["ti"].xcoms["files"],
            options={"file_format": {"type": "CSV"}},
            snowflake_conn_id=place.conn_id,
        ).execute(task_context())

        assert place.ids() == [1, 2]

    def test_no_file_is_an_error_or_a_report(self, place: PipePlace, tmp_path: Path) -> None:
        source = write(tmp_path / "in", {"a.txt": "?"})
        with pytest.raises(NothingStagedError, match=r"no file below .* that matches '\*\.csv'"):
            stage(place, source, pattern="*.csv")
        with pytest.raises(NothingStagedError, match="no file below"):
            stage(place, str(tmp_path / "nowhere"))
        assert stage(place, source, pattern="*.csv", on_nothing="report")["files"] == []

    def test_two_files_of_one_name_are_refused(self, place: PipePlace, tmp_path: Path) -> None:
        sources = [write(tmp_path / name, {"a.csv": "1,x\n"}) for name in ("one", "two")]
        with pytest.raises(AirflowFailException, match=r"two files would be staged as 'a\.csv'"):
            stage(place, sources)

    @pytest.mark.parametrize(
        "arguments",
        [{"if_staged": "never"}, {"on_nothing": "skip"}, {"parallel": 0}, {"parallel": 100}],
        ids=["if_staged", "on_nothing", "none", "too-many"],
    )
    def test_arguments_that_cannot_be_are_refused_when_the_dag_is_read(
        self, arguments: dict[str, Any]
    ) -> None:
        with pytest.raises(ValueError, match=next(iter(arguments))):
            SnowpipeStageFilesOperator(task_id="stage", source="/in", stage="@S", **arguments)


class TestAgain:
    def test_what_is_staged_stays_and_what_was_changed_is_replaced(
        self, place: PipePlace, tmp_path: Path
    ) -> None:
        source = write(tmp_path / "in", {"a.csv": "1,x\n", "b.csv": "2,x\n", "c.csv": "3,x\n"})
        stage(place, source)
        write(tmp_path / "in", {"b.csv": "2,y\n", "c.csv": "3,longer\n", "d.csv": "4,x\n"})
        done = stage(place, source)

        assert done["skipped"] == ["a.csv"]
        assert done["uploaded"] == ["b.csv", "c.csv", "d.csv"]
        assert done["bytes_uploaded"] == 17
        assert listed(place)["c.csv"] == 9

    @pytest.mark.skipif(AIRFLOW < (3, 2), reason="before Airflow 3.2 a provider has to bring each storage")
    def test_objects_of_a_store_are_compared_too(self, place: PipePlace) -> None:
        store = fsspec.filesystem("memory")
        address = f"memory:///again/{place.table}"
        store.pipe({f"/again/{place.table}/a.csv": b"1,x\n", f"/again/{place.table}/b.csv": b"2,x\n"})
        stage(place, address)
        store.pipe({f"/again/{place.table}/b.csv": b"2,y\n"})

        assert stage(place, address)["uploaded"] == ["b.csv"]

    @pytest.mark.parametrize(
        ("if_staged", "uploaded", "size"),
        [("skip", [], 4), ("overwrite", ["a.csv", "b.csv"], 9)],
        ids=["skip", "overwrite"],
    )
    def test_a_name_that_is_staged_is_left_or_replaced(
        self, place: PipePlace, tmp_path: Path, if_staged: str, uploaded: list[str], size: int
    ) -> None:
        source = write(tmp_path / "in", {"a.csv": "1,x\n", "b.csv": "2,x\n"})
        stage(place, source)
        write(tmp_path / "in", {"b.csv": "2,longer\n"})

        assert stage(place, source, if_staged=if_staged)["uploaded"] == uploaded
        assert listed(place)["b.csv"] == size

    def test_another_content_fails_where_it_is_asked_for(self, place: PipePlace, tmp_path: Path) -> None:
        source = write(tmp_path / "in", {"a.csv": "1,x\n"})
        stage(place, source)
        assert stage(place, source, if_staged="fail")["skipped"] == ["a.csv"]
        write(tmp_path / "in", {"a.csv": "1,y\n"})

        with pytest.raises(AirflowFailException, match=r"a\.csv has 4 bytes.*another content"):
            stage(place, source, if_staged="fail")

    def test_a_copy_after_it_loads_nothing_again(self, place: PipePlace, tmp_path: Path) -> None:
        source = write(tmp_path / "in", {"a.csv": "1,x\n"})
        for _ in range(2):
            stage(place, source)
            place.service.sql(f"COPY INTO {place.table} FROM @{place.stage}")

        assert place.ids() == [1]

    def test_compressed_files_get_their_ending(self, place: PipePlace, tmp_path: Path) -> None:
        source = write(tmp_path / "in", {"a.csv": "1,x\n" * 1000})
        done = stage(place, source, auto_compress=True)

        assert done["files"] == ["a.csv.gz"]
        assert listed(place)["a.csv.gz"] < 1000
        place.service.sql(f"COPY INTO {place.table} FROM @{place.stage}")
        assert len(place.ids()) == 1000


class TestParallel:
    def test_files_go_over_as_many_sessions_as_are_asked_for(
        self,
        place: PipePlace,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        opened: list[str] = []
        session = AccountSql.session

        def counted(self: AccountSql, purpose: str) -> Any:
            opened.append(purpose)
            return session(self, purpose)

        monkeypatch.setattr(AccountSql, "session", counted)
        source = write(tmp_path / "in", {f"{number:02}.csv": f"{number},x\n" for number in range(12)})
        with caplog.at_level(logging.INFO):
            stage(place, source, parallel=3)

        assert opened.count("PUT") == 3
        assert len(listed(place)) == 12
        assert "staged 12 of 12 files, 0.0 MB uploaded, 0 were there already" in caplog.messages

    def test_a_file_that_cannot_be_staged_ends_it_and_a_retry_goes_on(
        self, place: PipePlace, tmp_path: Path
    ) -> None:
        place.put({"b.csv/inner.csv": "9,x\n"})  # so that b.csv is a folder of the stage
        source = write(tmp_path / "in", {"a.csv": "1,x\n", "b.csv": "2,x\n"})
        with pytest.raises(SqlError, match="PUT"):
            stage(place, source, parallel=1)
        place.service.sql(f"REMOVE @{place.stage}/b.csv")

        assert stage(place, source)["skipped"] == ["a.csv"]

    def test_a_killed_task_begins_no_other_file(self, place: PipePlace, tmp_path: Path) -> None:
        source = write(tmp_path / "in", {f"{number}.csv": f"{number},x\n" for number in range(5)})
        killed = operator(place, source, parallel=1)
        put = AccountSql._run
        seen: list[str] = []

        def one_then_kill(
            self: AccountSql, connection: Any, statement: str, *rest: Any, **options: Any
        ) -> Any:
            rows = put(self, connection, statement, *rest, **options)
            if statement.startswith("PUT"):
                seen.append(statement)
                killed.on_kill()
            return rows

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(AccountSql, "_run", one_then_kill)
            with pytest.raises(AirflowFailException, match="staging was stopped"):
                killed.execute(task_context())

        assert len(seen) == len(listed(place)) == 1

    def test_a_dry_run_says_what_would_become_of_each(self, place: PipePlace, tmp_path: Path) -> None:
        source = write(tmp_path / "in", {"a.csv": "1,x\n", "b.csv": "2,x\n"})
        stage(place, source)
        write(tmp_path / "in", {"b.csv": "2,y\n", "c.csv": "3,x\n"})

        assert operator(place, source).preview() == [
            "would skip a.csv (4 bytes)",
            "would replace b.csv (4 bytes)",
            "would upload c.csv (4 bytes)",
        ]
        assert sorted(listed(place)) == ["a.csv", "b.csv"]

    def test_a_stage_that_is_not_there_is_named(self, place: PipePlace, tmp_path: Path) -> None:
        source = write(tmp_path / "in", {"a.csv": "1,x\n"})
        with pytest.raises(AirflowFailException, match="NOWHERE"):
            stage(place, source, stage="@NOWHERE")
